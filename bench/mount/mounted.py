"""The mount beside the file system below it, mergerfs and unionfs-fuse: rates of small files, and reads and writes by block size.

Each round makes a directory, a site with a store on the same file system and a mount of it, and the same in the peers that are
installed, one after the other. Metadata: files of 1 KiB made (without a flush), looked at twice, listed by `ls -lR`, read, removed; by one
process, which takes its own share of the time everywhere. Data: `fio` with plain reads and writes, on a new file, and on one that was
there before (in the mount, a version that is published). Needs root and /dev/fuse.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import one_site  # noqa: E402

PERCALE = one_site.PERCALE
FILE_SIZE = 1024


@contextlib.contextmanager
def native(folder):
    (folder / "at").mkdir()
    yield folder / "at"


@contextlib.contextmanager
def percale(folder, *more, store=()):
    with one_site.site(folder, store=store) as env:
        at = folder / "at"
        at.mkdir()
        mount = subprocess.Popen([PERCALE, "mount", "--json", *more, "percale:/bench", at], env=env, stdout=subprocess.PIPE)
        said = json.loads(mount.stdout.readline())
        if said["stores"] == 0:
            sys.exit("the mount does not see the store")
        try:
            yield at
        finally:
            mount.terminate()
            mount.wait()


def percale_daemon(folder):
    return percale(folder, "--no-passthrough")


def percale_native(folder):
    return percale(folder, store=["--native"])


@contextlib.contextmanager
def peer(folder, command):
    (folder / "below").mkdir()
    (folder / "at").mkdir()
    subprocess.run([str(word) for word in command(folder)], check=True, capture_output=True)
    try:
        yield folder / "at"
    finally:
        subprocess.run(["umount", "-l", folder / "at"], check=True)


def mergerfs(folder):
    return peer(folder, lambda folder: ["mergerfs", folder / "below", folder / "at"])


def unionfs(folder):
    return peer(folder, lambda folder: ["unionfs", "-o", "cow", f"{folder / 'below'}=RW", folder / "at"])


WAYS = {
    "native": native,
    "percale": percale,
    "percale, native store": percale_native,
    "percale, no passthrough": percale_daemon,
    "mergerfs": mergerfs,
    "unionfs-fuse": unionfs,
}
TOOLS = {"mergerfs": "mergerfs", "unionfs-fuse": "unionfs"}


def metadata(at, count, record):
    at = at / "small"
    at.mkdir()
    names = [f"{at}/file-{number:06}" for number in range(count)]
    bytes_ = b"x" * FILE_SIZE

    def timed(what, each):
        began = time.perf_counter()
        each()
        record(what, count / (time.perf_counter() - began), "/s")

    def create():
        for name in names:
            file = os.open(name, os.O_CREAT | os.O_WRONLY, 0o644)
            os.write(file, bytes_)
            os.close(file)

    def look():
        for name in names:
            os.stat(name)

    def read():
        for name in names:
            file = os.open(name, os.O_RDONLY)
            os.read(file, 2 * FILE_SIZE)
            os.close(file)

    def remove():
        for name in names:
            os.unlink(name)

    timed("create 1 KiB", create)
    look()
    timed("stat, warm", look)
    list_all = ["ls", "-lR", at]
    subprocess.run(list_all, stdout=subprocess.DEVNULL, check=True)
    timed("ls -lR, warm", lambda: subprocess.run(list_all, stdout=subprocess.DEVNULL, check=True))
    timed("open, read, close", read)
    timed("unlink", remove)


def data(at, options, record):
    for block in options.blocks:
        for what, job in [("write new", "write"), ("overwrite", "write"), ("read", "read")]:
            file = at / f"data-{block}"
            command = ["fio", "--name=x", f"--filename={file}", f"--rw={job}", f"--bs={block}", f"--size={options.mib}m",
                       "--ioengine=psync", "--direct=0", "--invalidate=0", "--fallocate=none", "--output-format=json",
                       *(["--overwrite=0"] if job == "write" else [])]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
            job_result = json.loads(done.stdout)["jobs"][0][job]
            record(f"{what} {block}", job_result["bw_bytes"] / 1e9, " GB/s")
            settle(at)
        file.unlink()


def settle(at):
    """Waits until what was written is published, which costs no program anything, but the machine."""
    directory = os.open(at, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--files", type=int, default=20_000, help="small files (default 20 000)")
    parser.add_argument("--mib", type=int, default=384, help="MiB of the large file (default 384)")
    parser.add_argument("--blocks", default="4k,16k,64k,512k", help="block sizes (default 4k,16k,64k,512k)")
    parser.add_argument("--ways", help=f"some of these, with a semicolon between: {'; '.join(WAYS)}")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where everything lies (default: memory)")
    parser.add_argument("--save", type=Path, help="write the figures there as CSV")
    options = parser.parse_args()
    options.blocks = [block for block in options.blocks.split(",") if block]
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        print("SKIPPED: mounting needs root and /dev/fuse")
        return
    if options.blocks and not shutil.which("fio"):
        print("SKIPPED: reads and writes by block size need fio (apt-get install fio)")
        options.blocks = []
    ways = options.ways.split(";") if options.ways else list(WAYS)
    for way in [way for way in ways if way in TOOLS and not shutil.which(TOOLS[way])]:
        print(f"SKIPPED: {way} is not installed (apt-get install {way})")
        ways.remove(way)

    rows = []
    for number in range(options.rounds):
        for way in ways:
            load = os.getloadavg()[0]
            with tempfile.TemporaryDirectory(prefix="percale-bench-", dir=options.folder) as folder, WAYS[way](Path(folder)) as at:

                def record(what, figure, unit):
                    rows.append({"round": number, "way": way, "what": what, "figure": round(figure, 3), "unit": unit.strip(), "load": round(load, 2)})

                if options.files:
                    metadata(at, options.files, record)
                    settle(at)
                data(at, options, record)
            print(f"round {number}: {way}, load {load:.2f}", flush=True)

    median = {}
    for row in rows:
        median.setdefault((row["what"], row["way"]), []).append(row["figure"])
    median = {key: statistics.median(figures) for key, figures in median.items()}
    print("\n| what | " + " | ".join(ways) + " |")
    print("|---" * (len(ways) + 1) + "|")
    for what in dict.fromkeys(row["what"] for row in rows):
        unit = next(row["unit"] for row in rows if row["what"] == what)
        base = median.get((what, "native"))
        cells = []
        for way in ways:
            figure = median[what, way]
            shown = f"{figure:,.0f} {unit}" if unit == "/s" else f"{figure:.2f} {unit}"
            cells.append(f"{shown} ({figure / base:.2f})" if base and way != "native" else shown)
        print(f"| {what} | " + " | ".join(cells) + " |")
    if options.save:
        one_site.write_csv(options.save, rows)


if __name__ == "__main__":
    main()
