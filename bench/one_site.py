"""One site on loopback, beside what the disk does: large and small files, put and get, over TLS, verified and durable.

Starts a server of its own in a temporary directory for each medium, and ends it. The peer in each round is `cp` (one
large file) or a loop of writes (small files) to the same medium, followed by a flush: what no transfer can beat.
"""

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import host

PERCALE = Path(os.environ.get("PERCALE_BIN", host.ROOT / "target/release/percale"))
SMALL_COUNT, SMALL_SIZE = 10_000, 10_000
LARGE_SIZE = 1_000_000_000


def run(*command, env=None):
    """Runs a command and returns the seconds it took; its output is shown only if it fails."""
    start = time.monotonic()
    done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True)
    took = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return took


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def site(folder, name="bench", store=()):
    """A server with one store and the space `bench`; yields the environment of a client. `store`: more words for its store."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("PERCALE")}
    log = open(folder / "server.log", "w")
    server = subprocess.Popen(
        [PERCALE, "serve", "--state-dir", folder / "state", "--listen", f"127.0.0.1:{port}", "--site-name", name],
        env=env, stdout=log, stderr=log,
    )
    env |= {
        "PERCALE_URL": f"https://127.0.0.1:{port}",
        "PERCALE_TOKEN_FILE": str(folder / "state/admin.token"),
        "PERCALE_CA_FILE": str(folder / "state/tls/ca.pem"),
        "XDG_STATE_HOME": str(folder / "client"),
        "XDG_CONFIG_HOME": str(folder / "client"),
    }
    try:
        deadline = time.monotonic() + 30
        while subprocess.run([PERCALE, "whoami"], env=env, capture_output=True).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server did not start:\n{(folder / 'server.log').read_text()}")
            time.sleep(0.05)
        run(PERCALE, "store", "add", "disk", "--posix", folder / "store", *store, env=env)
        run(PERCALE, "space", "create", name, env=env)
        yield env
    finally:
        server.terminate()
        server.wait()


def write_random(path, size):
    with open("/dev/urandom", "rb") as source, open(path, "wb") as target:
        block = source.read(1 << 20)
        while size > 0:
            # Each block differs, so that nothing could be shared or compressed away.
            stamp = size.to_bytes(8, "little")
            target.write(stamp + block[8 : min(size, len(block))] if size >= 8 else block[:size])
            size -= len(block)


def flushed_copy(source, target):
    start = time.monotonic()
    shutil.copyfile(source, target)
    with open(target, "rb") as copy:
        os.fsync(copy.fileno())
    return time.monotonic() - start


def small_writes(folder, bytes_each):
    folder.mkdir()
    start = time.monotonic()
    for number in range(SMALL_COUNT):
        with open(folder / f"{number:05}.bin", "wb") as file:
            file.write(bytes_each)
    os.sync()
    return time.monotonic() - start


def rounds(medium, parent, count, record):
    folder = Path(tempfile.mkdtemp(prefix="percale-bench-", dir=parent))
    try:
        large, small = folder / "large.bin", folder / "small"
        write_random(large, LARGE_SIZE)
        small_writes(small, os.urandom(SMALL_SIZE))
        with site(folder) as env:
            for number in range(count):
                load = os.getloadavg()[0]
                took = {"cp of 1 GB, flushed": flushed_copy(large, folder / "copy.bin")}
                took["put of 1 GB"] = run(PERCALE, "put", "-q", large, f"percale:/bench/large-{number}.bin", env=env)
                back = folder / "back.bin"
                took["get of 1 GB"] = run(PERCALE, "get", "-q", f"percale:/bench/large-{number}.bin", back, env=env)
                if run("cmp", large, back) < 0:
                    raise AssertionError
                took["10 000 x 10 KB written, flushed"] = small_writes(folder / "native", os.urandom(SMALL_SIZE))
                took["put of 10 000 x 10 KB"] = run(PERCALE, "put", "-q", "-r", small, f"percale:/bench/small-{number}", env=env)
                took["get of 10 000 x 10 KB"] = run(PERCALE, "get", "-q", "-r", f"percale:/bench/small-{number}", folder / "trees", env=env)
                for what, seconds in took.items():
                    record(medium, what, number, seconds, load)
                for left in (folder / "copy.bin", back):
                    left.unlink()
                shutil.rmtree(folder / "native")
                shutil.rmtree(folder / "trees")
                run(PERCALE, "rm", "-r", "-y", f"percale:/bench/small-{number}", env=env)
                run(PERCALE, "rm", "-y", f"percale:/bench/large-{number}.bin", env=env)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds on each medium (default 5)")
    parser.add_argument("--no-save", action="store_true", help="print only, write nothing to bench/runs")
    options = parser.parse_args()
    if not PERCALE.exists():
        sys.exit(f"{PERCALE} is not there: run `make bench`, which builds it")

    rows = []

    def record(medium, what, number, seconds, load):
        rows.append({"medium": medium, "what": what, "round": number, "seconds": round(seconds, 4), "load": round(load, 2)})
        print(f"{medium:6} {number}  {what:34} {seconds:8.3f} s   load {load:.2f}", flush=True)

    media = {"disk": host.ROOT / "target"}
    if os.access("/dev/shm", os.W_OK):
        media["memory"] = Path("/dev/shm")
    for medium, parent in media.items():
        rounds(medium, parent, options.rounds, record)

    lines = ["| medium | what | median s | GB/s | files/s | load |", "|---|---|---|---|---|---|"]
    for medium in media:
        for what in dict.fromkeys(row["what"] for row in rows):
            these = [row for row in rows if (row["medium"], row["what"]) == (medium, what)]
            median = statistics.median(row["seconds"] for row in these)
            is_large = "1 GB" in what
            size = LARGE_SIZE if is_large else SMALL_COUNT * SMALL_SIZE
            files = "" if is_large else f"{SMALL_COUNT / median:,.0f}"
            load = max(row["load"] for row in these)
            lines.append(f"| {medium} | {what} | {median:.3f} | {size / median / 1e9:.2f} | {files} | ≤ {load} |")
    summary = "\n".join(lines)
    print("\n" + summary)
    if options.no_save:
        return
    folder = host.default_folder("site")
    folder.mkdir(parents=True, exist_ok=True)
    host.write_csv(folder / "raw.csv", rows)
    described = host.setup(folder, PERCALE, "site")
    (folder / "summary.md").write_text(f"# One site on loopback\n\n{described}\n\n{summary}\n")


if __name__ == "__main__":
    main()
