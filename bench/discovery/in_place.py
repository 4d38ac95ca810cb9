"""From a question to its answer: files found by what their headers say and compared where they lie, beside files that are looked for, copied and
compared.

The experiment of a paper on workspaces across data centers (its figure 9c): HDF5 files of a site, of which a growing number is compared, each
with the next, by h5diff. Without a fabric every file is opened (h5py) to find those, and they are copied to where the work is done. With it a search
finds them, and h5diff reads them through the mount, where they lie. The copies are those of one disk, which is more than a
network gives. Needs root, /dev/fuse and h5diff (hdf5-tools).

    bench/run in_place                 five rounds, 2 to 64 of 4600 files of 1 MiB
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import host  # noqa: E402
import one_site  # noqa: E402
import plots  # noqa: E402
from headers import make  # noqa: E402

PERCALE = one_site.PERCALE


def compared(files):
    """Compares each file with the next one. Returns the seconds; that they differ is what is to be found."""
    began = time.monotonic()
    for one, other in zip(files[::2], files[1::2]):
        done = subprocess.run(["h5diff", "-q", str(one), str(other)], capture_output=True, text=True)
        # The attributes differ, and nothing else.
        if done.returncode > 1:
            sys.exit(f"h5diff {one} {other} failed:\n{done.stderr}")
    return time.monotonic() - began


def looked_for(raw, count, away):
    """Opens every file, copies those that are wanted, and compares the copies."""
    import h5py

    began = time.monotonic()
    found = []
    for path in sorted(raw.rglob("*.h5")):
        with h5py.File(path) as file:
            if file.attrs["serial"] < count:
                found.append(path)
    looked = time.monotonic()
    away.mkdir()
    copies = [Path(shutil.copyfile(path, away / path.name)) for path in found]
    copied = time.monotonic()
    took = compared(copies)
    shutil.rmtree(away)
    return len(found), looked - began, copied - looked, took


def found(env, mounted, count):
    """Searches, and compares what is found where it lies."""
    began = time.monotonic()
    done = subprocess.run([PERCALE, "-q", "search", f"serial<{count}"], env=env, capture_output=True, text=True, check=True)
    paths = [mounted / path.removeprefix("percale:").removeprefix("/bench/") for path in sorted(done.stdout.split())]
    searched = time.monotonic() - began
    return len(paths), searched, 0.0, compared(paths)


def round_of(options, number, rows):
    with tempfile.TemporaryDirectory(prefix="percale-bench-", dir=options.folder) as folder:
        folder = Path(folder)
        raw, mounted = folder / "store/raw", folder / "mnt"
        raw.mkdir(parents=True)
        mounted.mkdir()
        make(raw, options.files, 20, options.kib)
        with one_site.site(folder, store=("--native",)) as env:
            one_site.run(PERCALE, "import", "--extract", "--hash", "never", f"bench:{raw}", "percale:/bench/raw", env=env)
            mount = subprocess.Popen([PERCALE, "mount", "--json", "percale:/bench", mounted], env=env, stdout=subprocess.PIPE)
            try:
                json.loads(mount.stdout.readline())
                for count in map(int, options.counts.split(",")):
                    for way, run in {
                        "looked for, copied": lambda: looked_for(raw, count, folder / "away"),
                        "found, in place": lambda: found(env, mounted, count),
                    }.items():
                        load = os.getloadavg()[0]
                        many, looked, copied, took = run()
                        if many != count:
                            sys.exit(f"{way}: {many} files were found, not {count}")
                        rows.append({"round": number, "way": way, "files": count, "find_s": round(looked, 3), "copy_s": round(copied, 3),
                                     "compare_s": round(took, 3), "seconds": round(looked + copied + took, 3), "load": round(load, 2)})  # fmt: skip
                        print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
            finally:
                mount.terminate()
                mount.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--files", type=int, default=4600, help="how many files there are (default 4600)")
    parser.add_argument("--kib", type=int, default=1024, help="KiB of each (default 1024)")
    parser.add_argument("--counts", default="2,8,16,32,64", help="how many of them are compared (default 2,8,16,32,64)")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where everything lies (default: memory)")
    parser.add_argument("--out", type=Path, help="where the figures go (default bench/runs/<date>-<machine>-in-place)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    if not PERCALE.exists():
        sys.exit(f"{PERCALE} is not there: build it, or name another in PERCALE_BIN")
    for missing, why in [
        (os.geteuid() != 0 or not os.path.exists("/dev/fuse"), "mounting needs root and /dev/fuse"),
        (not shutil.which("h5diff"), "comparing needs h5diff (apt-get install hdf5-tools)"),
    ]:
        if missing:
            return print(f"SKIPPED: {why}")
    rows = []
    for number in range(options.rounds):
        round_of(options, number, rows)
    heads = {"find_s": "find, s", "copy_s": "copy, s", "compare_s": "compare, s", "seconds": "all, s"}
    table = host.medians(rows, {"way": "", "files": "files"}, heads)
    print(f"\n{table}")
    if not options.no_save:
        save(options.out or host.default_folder("in-place"), rows, table, options)


def save(folder, rows, table, options):
    folder.mkdir(parents=True, exist_ok=True)
    host.write_csv(folder / "raw.csv", rows)
    described = host.setup(folder, PERCALE, "in_place", {"h5diff": ["h5diff", "--version"]})
    series = {}
    for row in rows:
        series.setdefault(row["way"], []).append((row["files"], row["seconds"]))
    drawn = plots.curves(folder / "in-place.svg", "From a question to its answer", "files compared", "s", series)
    parts = [f"# Found and compared\n\n{described} {options.files} HDF5 files of {options.kib} KiB. Medians of the rounds.\n", table]
    parts += [f"\n![{plot.stem}]({plot.name})\n" for plot in drawn]
    (folder / "summary.md").write_text("\n".join(parts))
    print(f"written to {folder}")


if __name__ == "__main__":
    sys.exit(main())
