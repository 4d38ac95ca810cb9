"""A million files registered in place: the first import, a pass that finds nothing, and one that finds ten overwritten files.

Makes the files, of no bytes or as many as are asked for, in directories of a thousand below the root of a native store. The
overwrites keep size and time of modification, so that only inode and ctime tell. Beside each pass stands `find -printf`, which
looks at every file as well: what no pass can beat. Times are those of the command, from its start until the task has ended.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import one_site  # noqa: E402

PERCALE = one_site.PERCALE
IN_DIRECTORY = 1000
OVERWRITTEN = 10


def make(root, files, size):
    """Makes the files, each with its number at the beginning if it has room for that."""
    for first in range(0, files, IN_DIRECTORY):
        directory = root / f"{first // IN_DIRECTORY:05}"
        directory.mkdir(parents=True)
        at = os.open(directory, os.O_RDONLY)
        for number in range(first, min(first + IN_DIRECTORY, files)):
            file = os.open(f"file-{number:08}.dat", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=at)
            if size:
                os.write(file, number.to_bytes(8, "little")[:size].ljust(size, b"."))
            os.close(file)
        os.close(at)


def overwrite(root, files, size, chance):
    """Overwrites some files in place, with their size and time of modification. Returns them."""
    chosen = chance.sample(range(files), OVERWRITTEN)
    for number in chosen:
        path = root / f"{number // IN_DIRECTORY:05}" / f"file-{number:08}.dat"
        before = path.stat()
        with open(path, "r+b") as file:
            file.write(os.urandom(size))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return chosen


def server_of(folder):
    """Returns the process of the server whose state is there."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and str(folder / "state").encode() in words:
            return process
    sys.exit("the server is not there")


def memory(process):
    """Returns the most memory that a process had, in MB."""
    for line in (process / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    sys.exit("the server has no memory")


def importing(env, root, hash_when):
    """Imports once. Returns the seconds it took, and what became of the files."""
    start = time.monotonic()
    command = [PERCALE, "import", "--json", "--hash", hash_when, f"bench:{root}", "percale:/bench/raw"]
    done = subprocess.run([str(word) for word in command], env=env, capture_output=True, text=True)
    took = time.monotonic() - start
    if done.returncode != 0:
        sys.exit(f"the import failed:\n{done.stdout}{done.stderr}")
    return took, json.loads(done.stdout)["progress"]["counts"]


def finding(root):
    """Returns the seconds in which every file is looked at by find."""
    return one_site.run("find", root, "-type", "f", "-printf", "%i %s %T@ %C@\\n")


def rounds(options, record):
    chance = random.Random(options.seed)
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="percale-bench-", dir=options.folder) as folder:
            folder = Path(folder)
            root = folder / "raw/run"
            make(root, options.files, options.size)
            with one_site.site(folder) as env:
                one_site.run(PERCALE, "store", "add", "raw", "--native", "--posix", folder / "raw", env=env)
                process = server_of(folder)
                idle = memory(process)

                def one(what, expected):
                    load = os.getloadavg()[0]
                    native = finding(root)
                    took, counts = importing(env, root, options.hash)
                    if counts != expected:
                        sys.exit(f"{what}: {counts} instead of {expected}")
                    record(number, what, took, native, memory(process), load)

                print(f"{number}  {options.files} files, server at rest {idle:.0f} MB", flush=True)
                one("first import", {"registered": options.files})
                one("nothing new", {"unchanged": options.files})
                chosen = overwrite(root, options.files, options.size, chance)
                expected = {"changed": len(chosen), "unchanged": options.files - len(chosen)}
                one(f"{len(chosen)} overwritten", expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--files", type=int, default=1_000_000, help="files (default 1 000 000)")
    parser.add_argument("--size", type=int, default=0, help="bytes of each (default 0)")
    parser.add_argument("--hash", default="never", choices=["now", "later", "never"], help="when they are hashed (default never)")
    parser.add_argument("--folder", type=Path, default=None, help="where files and catalog lie (default: memory, if there is a place)")
    parser.add_argument("--seed", type=int, default=1, help="which files are overwritten (default 1)")
    parser.add_argument("--save", type=Path, help="write the figures there as CSV")
    options = parser.parse_args()
    if not PERCALE.exists():
        sys.exit(f"{PERCALE} is not there: build it, or name another in PERCALE_BIN")
    memory_disk = Path("/dev/shm")
    options.folder = options.folder or (memory_disk if os.access(memory_disk, os.W_OK) else one_site.ROOT / "target")
    rows = []

    def record(number, what, seconds, native, most_mb, load):
        row = {"round": number, "what": what, "seconds": round(seconds, 2), "find_seconds": round(native, 2),
               "server_mb": round(most_mb), "load": round(load, 2)}
        rows.append(row)
        print(f"{number}  {what:16} {seconds:7.2f} s   find {native:6.2f} s   server {most_mb:5.0f} MB at most   load {load:.2f}", flush=True)

    rounds(options, record)
    if options.save:
        one_site.write_csv(options.save, rows)


if __name__ == "__main__":
    main()
