"""A million files registered in place: the first import, a pass that finds nothing, and one that finds ten overwritten files.

Makes the files, of no bytes or as many as are asked for, in directories of a thousand below the root of a native store. The
overwrites keep size and time of modification, so that only inode and ctime tell. Beside each pass stands `find -printf`, which
looks at every file as well: what no pass can beat. Times are those of the command, from its start until the task has ended.
With --create the same number of files is also made through a mount, which is what an import saves.
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
import host  # noqa: E402
import measures  # noqa: E402
import one_site  # noqa: E402
import plots  # noqa: E402
import ways  # noqa: E402

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


def round_of(files, options, chance, record):
    with tempfile.TemporaryDirectory(prefix="percale-bench-", dir=options.folder) as folder:
        folder = Path(folder)
        root = folder / "raw/run"
        make(root, files, options.size)
        with one_site.site(folder) as env:
            one_site.run(PERCALE, "store", "add", "raw", "--native", "--posix", folder / "raw", env=env)
            process = server_of(folder)
            print(f"{files} files, server at rest {memory(process):.0f} MB", flush=True)

            def one(what, expected):
                load = os.getloadavg()[0]
                native = finding(root)
                took, counts = importing(env, root, options.hash)
                if counts != expected:
                    sys.exit(f"{what}: {counts} instead of {expected}")
                record(what, took, load, native, memory(process))

            one("first import", {"registered": files})
            one("nothing new", {"unchanged": files})
            chosen = overwrite(root, files, options.size, chance)
            one(f"{len(chosen)} overwritten", {"changed": len(chosen), "unchanged": files - len(chosen)})
            # One name, the beginning of some, and a part of some; each by a process of its own, as everything here.
            for what, name in [("find a name", f"file-{files // 2:08}.dat"), ("find a beginning", f"file-{files // 20000:06}*"), ("find a part", "*00042*")]:
                load = os.getloadavg()[0]
                record(what, one_site.run(PERCALE, "find", "percale:/bench", "--name", name, env=env), load)


def created(files, options, record):
    """Makes as many files through a mount."""
    load = os.getloadavg()[0]
    with ways.made("percale", options.folder) as at:
        began = time.monotonic()
        make(at / "run", files, options.size)
        record("created through a mount", time.monotonic() - began, load)
        measures.settle(at)
        record("created and published", time.monotonic() - began, load)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--files", default="1000000", help="how many files, several with commas between (default 1000000)")
    parser.add_argument("--size", type=int, default=0, help="bytes of each (default 0)")
    parser.add_argument("--hash", default="never", choices=["now", "later", "never"], help="when they are hashed (default never)")
    parser.add_argument("--create", action="store_true", help="also make them through a mount; needs root and /dev/fuse")
    parser.add_argument("--folder", type=Path, default=None, help="where files and catalog lie (default: memory, if there is a place)")
    parser.add_argument("--seed", type=int, default=1, help="which files are overwritten (default 1)")
    parser.add_argument("--out", type=Path, help="where the figures go (default bench/runs/<date>-<machine>-import)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    if not PERCALE.exists():
        sys.exit(f"{PERCALE} is not there: build it, or name another in PERCALE_BIN")
    memory_disk = Path("/dev/shm")
    options.folder = options.folder or (memory_disk if os.access(memory_disk, os.W_OK) else host.ROOT / "target")
    chance = random.Random(options.seed)
    rows = []
    for number in range(options.rounds):
        for files in map(int, options.files.split(",")):

            def record(what, seconds, load, native=None, most_mb=None):
                rows.append({"round": number, "files": files, "what": what, "seconds": round(seconds, 3),
                             "find_seconds": native and round(native, 2), "server_mb": most_mb and round(most_mb), "load": round(load, 2)})  # fmt: skip
                more = f"   find {native:6.2f} s   server {most_mb:5.0f} MB at most" if native else ""
                print(f"{number}  {files:8} {what:24} {seconds:8.3f} s   load {load:.2f}{more}", flush=True)

            round_of(files, options, chance, record)
            if options.create:
                created(files, options, record)
    print(f"\n{table(rows)}")
    if not options.no_save:
        save(options.out or host.default_folder("import"), rows, options)


def table(rows):
    """Medians of the rounds."""
    heads = {"seconds": "s", "find_seconds": "`find` there, s", "server_mb": "server at most, MB"}
    return host.medians(rows, {"files": "files", "what": "what"}, heads)


def save(folder, rows, options):
    folder.mkdir(parents=True, exist_ok=True)
    host.write_csv(folder / "raw.csv", rows)
    described = host.setup(folder, PERCALE, "importing")
    series = {}
    for row in rows:
        if row["what"] in ("first import", "nothing new", "created through a mount"):
            series.setdefault(row["what"], []).append((row["files"], row["seconds"]))
    drawn = plots.curves(folder / "import.svg", f"Import of files of {options.size} bytes", "files", "s", series, log=True)
    parts = [f"# Import\n\n{described} Medians of the rounds.\n"]
    parts += [table(rows), *(f"\n![{plot.stem}]({plot.name})\n" for plot in drawn)]
    (folder / "summary.md").write_text("\n".join(parts))
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
