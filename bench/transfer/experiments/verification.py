"""What encryption and verification cost: seconds of processor for 1 GB on loopback, of both ends, beside a bare copy.

Percale always verifies and always encrypts, so there is no run without. Instead the samples of `perf` say which share of a transfer's processor
went to hashing (BLAKE3), to TLS, to the kernel (sockets, files) and to the rest; the cost of verification is hashing over all that is not hashing.
The bare copy is sendfile from a file to a socket, and recv into a file: what any transfer must do. Without perf the shares are left out.
"""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import plots
import sets
from lab import lab
from sites import PERCALE, remove

from experiments import good, groups, places, table

NET = "loopback"
SHARES = (
    ("hashing", re.compile(r"blake3", re.I)),
    ("TLS", re.compile(r"aes|gcm|ghash|chacha|poly1305|rustls|aws_lc|gf2m|ring_core|sha256|sha512", re.I)),
)


def measure(options, lines):
    name = options.sets[0] if options.sets else ("f100m" if options.quick else "f1g")
    has_perf = shutil.which("perf") is not None
    if not has_perf:
        print("LEFT OUT: the shares of hashing and TLS, for want of perf (Debian: linux-perf)", file=sys.stderr)
    with lab(options, lines) as made:
        source = sets.make(made.folder, name)
        for number in range(options.rounds):
            bare(made, source, name, number)
            back = made.folder / "back"
            target = f"percale:/far/{name}-{number}"
            for action, command in (("put", ["put", "-q", source]), ("get", ["get", "-q"])):
                # Measured without perf, whose own work would count; then once more for the shares.
                to_or_from = lambda path, action=action: [path] if action == "put" else [path, back]
                cpu, took, ok, said = measured(made, [*command, *to_or_from(target)])
                note(made, action, "percale", name, number, took, cpu, ok, said)
                remove(back)
                if has_perf and ok:
                    again = f"{target}-again" if action == "put" else target
                    shares = profiled(made, [*command, *to_or_from(again)])
                    for what, share in shares.items():
                        note(made, f"{action}: {what}", "percale", name, number, took, cpu * share)
                    remove(back)
            for path in (target, f"{target}-again"):
                made.forget(made.far, path)


def note(made, action, tool, name, number, took, cpu, ok=True, said=""):
    per_gb = cpu / (sets.total(name) / 1e9)
    made.note(action, name, number, took, ok, said, tool=tool, value=per_gb * 1e3, unit="CPU ms/GB")


def measured(made, command):
    """Runs a client; returns the seconds of processor of both ends, its time, and how it ended."""
    used = lambda: resource.getrusage(resource.RUSAGE_CHILDREN)
    before, server = used(), made.far.cpu_s()
    took, ok, said = made.percale("near", made.far, *command)
    after = used()
    client = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return client + made.far.cpu_s() - server, took, ok, said


def profiled(made, command):
    """Runs a client and returns the shares of it and the server together."""
    data = made.folder / "perf.data"
    record = ["perf", "record", "-q", "-F", "499", "-o"]
    server = subprocess.Popen([*record, f"{data}.server", "-p", str(made.far.server.pid)], stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    # The client is not there yet, so its recording starts it.
    argv = [*record, f"{data}.client", "--", *made.net.command("near", [PERCALE, *command])]
    done = subprocess.run(argv, env=made.far.env(), capture_output=True)
    server.send_signal(signal.SIGINT)
    server.wait()
    if done.returncode != 0:
        print(f"LEFT OUT: the shares of `{command[0]}`: {done.stderr.decode(errors='replace')[-300:]}", file=sys.stderr)
        return {}
    return split([f"{data}.server", f"{data}.client"])


def split(files):
    """The shares of all samples by what they were taken in."""
    counts = dict.fromkeys([*(name for name, _ in SHARES), "kernel", "rest"], 0)
    for file in files:
        report = subprocess.run(
            ["perf", "script", "-i", file, "-F", "comm,ip,sym,dso"], capture_output=True, text=True, errors="replace"
        ).stdout
        for line in report.splitlines():
            if "perf-exec" in line or not line.strip():
                continue
            kind = next((name for name, pattern in SHARES if pattern.search(line)), None)
            counts[kind or ("kernel" if "[kernel" in line or "[guest.kernel" in line else "rest")] += 1
        Path(file).unlink(missing_ok=True)
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def bare(made, source, name, number):
    """sendfile in one process, recv and write in another."""
    target = made.folder / "bare"
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    made.load = os.getloadavg()[0]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    children = [os.fork()]
    if children[0] == 0:
        with listener.accept()[0] as link, open(target, "wb", buffering=0) as file:
            buffer = bytearray(1 << 20)
            while got := link.recv_into(buffer):
                file.write(memoryview(buffer)[:got])
        os._exit(0)
    children.append(os.fork())
    if children[1] == 0:
        with socket.create_connection(listener.getsockname()) as link, open(source, "rb") as file:
            link.sendfile(file)
        os._exit(0)
    ended = [os.waitpid(child, 0)[1] for child in children]
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    listener.close()
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    ok = ended == [0, 0] and made.same(source, target)
    note(made, "bare copy", "sendfile", name, number, took, cpu, ok, "" if ok else "the bare copy failed")
    remove(target)


def summarise(rows):
    lines = []
    for (net, medium, action), group in groups(good(rows), "net", "medium", "action").items():
        hashing = [row["value"] for row in good(rows) if (row["net"], row["medium"], row["action"]) == (net, medium, f"{action}: hashing")]
        if hashing:
            all_of_it = sum(row["value"] for row in group) / len(group)
            part = sum(hashing) / len(hashing)
            lines.append(f"- {action}, {net}, {medium}: verification adds **{part / (all_of_it - part):+.0%}** to the processor's time without it")
    return table(rows, "tool", "action", "case") + "\n" + "\n".join(lines) + "\n"


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        bars = {}
        for (action,), each in groups(group, "action").items():
            what, _, part = action.partition(": ")
            bars.setdefault(what, {})[part or "all"] = sum(row["value"] for row in each) / len(each) / 1e3
        files += plots.bars(folder / f"verification-{slug}.svg", f"Processor for 1 GB ({title})", "seconds, both ends", bars)
    return files
