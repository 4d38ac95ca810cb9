"""Transfers between sites over an emulated long link, and over loopback, beside the tools that people use today.

    bench/run transfer                        the sets of README's table, five rounds
    bench/run transfer --sets f1g,n1000 -n 3  some sets, three rounds
    bench/run transfer --net loopback         on this host alone
    bench/run transfer --no-peers             Percale only

Every line of raw.csv is one measurement: seconds of the whole command, the load before it, and how late the emulator was at
worst. A round that was disturbed is to be repeated.
"""

import argparse
import csv
import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import peers
import sets
from net import ROOT, Emulated, Loopback
from sites import PERCALE, fabric

STANDARD = "f5m,f100m,f1g,g1,n1000,k10000"


class Bench:
    def __init__(self, net, folder, rows):
        self.net, self.folder, self.rows = net, folder, rows

    def note(self, tool, action, name, number, seconds, ok=True, extra=""):
        late = self.net.late_us()
        rate = sets.total(name) / seconds / 1e6 if name in sets.SETS else 0
        row = {
            "net": self.net.name, "tool": tool, "action": action, "set": name, "round": number,
            "seconds": round(seconds, 4), "mb_s": round(rate, 1), "ok": int(ok),
            "load": round(self.load, 2), "max_late_us": late, "extra": extra,
        }  # fmt: skip
        self.rows.append(row)
        mark = "" if ok else "  FAILED"
        print(f"{tool:18} {action:16} {name:8} {number}  {seconds:8.3f} s {rate:8.1f} MB/s   load {self.load:5.2f} late {late}{mark}", flush=True)

    def timed(self, at, argv, env=None):
        self.load = os.getloadavg()[0]
        began = time.monotonic()
        try:
            done = subprocess.run(self.net.command(at, argv), env=env, capture_output=True, text=True, timeout=300)
            return time.monotonic() - began, done.returncode == 0, (done.stderr or done.stdout)[-600:]
        except subprocess.TimeoutExpired:
            return time.monotonic() - began, False, "more than 300 s"

    def same(self, left, right):
        return subprocess.run(["diff", "-rq", left, right], capture_output=True).returncode == 0


def percale(bench, near, far, names, rounds):
    """`near` has the files; they go to `far` and come back."""
    for name in names:
        source = sets.make(bench.folder, name)
        for number in range(rounds):
            target = f"percale:/{far.name}/{name}-{number}"
            recursive = ["-r"] if source.is_dir() else []
            arguments = [f"{source}/" if source.is_dir() else source, target]
            took, ok, said = bench.timed(near.name, [PERCALE, "put", "-q", *recursive, *arguments], far.env())
            bench.note("percale", "put", name, number, took, ok, "" if ok else said)
            back = bench.folder / "back"
            fetch = [f"{target}/" if source.is_dir() else target, back]
            took, ok, said = bench.timed(near.name, [PERCALE, "get", "-q", *recursive, *fetch], far.env())
            ok = ok and (number > 0 or bench.same(source, back))
            bench.note("percale", "get", name, number, took, ok, "" if ok else said)
            remove(back)
            # The copy is made where the files came from, by a task of that site, watched from there.
            replicate = [PERCALE, "replicate", "--json", "--to", near.name, target]
            took, ok, said = bench.timed(near.name, replicate, near.env())
            bench.note("percale", "replicate", name, number, took, ok, "" if ok else said)
            far.client(far.name, "rm", "-r", "-y", target)


def with_peers(bench, near, far, names, rounds):
    for kind in peers.PEERS:
        if not kind.is_installed():
            print(f"{kind.name} is not installed; left out", flush=True)
            continue
        peer = kind()
        peer.start(bench.net, far, bench.folder / f"peer-{kind.name}")
        try:
            for name in names:
                source = sets.make(bench.folder, name)
                for number in range(rounds):
                    target = peer.folder / f"t-{name}-{number}"
                    put = peer.put(source, target)
                    if put:
                        took, ok, said = bench.timed(near, put)
                        ok = ok and bench.same(source, target) if number == 0 else ok
                        bench.note(peer.name, "put", name, number, took, ok, "" if ok else said)
                    back = peer.folder / "t-back"
                    took, ok, said = bench.timed(near, peer.get(source, back))
                    ok = ok and bench.same(source, back) if number == 0 else ok
                    bench.note(peer.name, "get", name, number, took, ok, "" if ok else said)
                    peer.clean()
        finally:
            peer.stop()


def iperf(bench, near, far, rounds):
    if not shutil.which("iperf3") or isinstance(bench.net, Loopback):
        return
    for number in range(rounds):
        server = subprocess.Popen(bench.net.command(far, ["iperf3", "-s", "-1"]), stdout=subprocess.DEVNULL)
        time.sleep(0.3)
        took, ok, said = bench.timed(near, ["iperf3", "-c", bench.net.address(far), "-n", "1G", "-P", "8"])
        server.wait()
        bench.note("iperf3 -P 8", "put", "g1", number, took, ok, "" if ok else said)


def remove(path):
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds of each case (default 5)")
    parser.add_argument("--sets", default=STANDARD, help=f"which sets (default {STANDARD}); there are {', '.join(sets.SETS)}")
    parser.add_argument("--net", choices=["wan", "loopback"], default="wan")
    parser.add_argument("--rtt", default="50ms")
    parser.add_argument("--rate", default="1.2gbit")
    parser.add_argument("--loss", default="0")
    parser.add_argument("--tcpmem", help="largest TCP buffers of the sites; the host's if absent")
    parser.add_argument("--no-peers", action="store_true", help="measure Percale only")
    parser.add_argument("--no-save", action="store_true", help="print only, write nothing to bench/runs")
    parser.add_argument("--folder", default="/dev/shm", help="where the files lie (default /dev/shm, memory)")
    options = parser.parse_args()
    if not PERCALE.exists():
        sys.exit(f"{PERCALE} is not there: run `make bench`, which builds it")
    places = ["near", "far"]
    net = Loopback() if options.net == "loopback" else Emulated(places, options.rtt, options.rate, options.loss, tcpmem=options.tcpmem)
    folder = Path(tempfile.mkdtemp(prefix="percale-bench-", dir=options.folder))
    os.chmod(folder, 0o755)
    rows, names = [], options.sets.split(",")
    try:
        with net:
            bench = Bench(net, folder, rows)
            if not options.no_peers:
                iperf(bench, *places, options.rounds)
            with fabric(net, places, folder) as sites:
                percale(bench, *sites, names, options.rounds)
                for site in sites:
                    print(f"server {site.name}: {site.rss_mb():.0f} MB resident at most, {site.cpu_s():.1f} s of processor")
            if not options.no_peers:
                with_peers(bench, *places, names, options.rounds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    summary = summarise(rows)
    print("\n" + summary)
    if not options.no_save and rows:
        save(rows, summary, options)


def summarise(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row["net"], row["action"], row["set"], row["tool"]), []).append(row)
    lines = ["| network | action | set | tool | median s | best | MB/s | n | load | late µs |", "|---|---|---|---|---|---|---|---|---|---|"]
    for (net, action, name, tool), group in sorted(groups.items(), key=lambda item: item[0][:3]):
        good = [row["seconds"] for row in group if row["ok"]]
        if not good:
            lines.append(f"| {net} | {action} | {name} | {tool} | failed | | | {len(group)} | | |")
            continue
        median = statistics.median(good)
        rate = statistics.median(row["mb_s"] for row in group if row["ok"])
        load, late = max(row["load"] for row in group), max(row["max_late_us"] for row in group)
        lines.append(f"| {net} | {action} | {name} | {tool} | {median:.3f} | {min(good):.3f} | {rate:.1f} | {len(good)} | {load} | {late} |")
    return "\n".join(lines) + "\n"


def save(rows, summary, options):
    day = datetime.date.today().isoformat()
    target = ROOT / f"bench/runs/{day}-transfer-{options.net}"
    target.mkdir(parents=True, exist_ok=True)
    with open(target / "raw.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    (target / "README.md").write_text(
        f"# Transfers, {day}\n\n{os.cpu_count()} cores {model}, {memory} GiB, Linux {platform.release()}; commit {commit}; "
        f"files in {options.folder}; `bench/run transfer {' '.join(sys.argv[1:])}`. Encryption and verification on for Percale, off for "
        f"the others. Seconds are of the whole command, a new process each.\n\n{summary}"
    )
    print(f"written to {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
