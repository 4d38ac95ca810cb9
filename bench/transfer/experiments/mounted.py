"""A file of far, read through a mount at near: once over the network, again, and again with cold pages of the kernel.

Beside it stands the same file by `get`, and the same bytes on near's own file system. What `dd` reads in pieces of 1 MiB goes nowhere.
Needs /dev/fuse.
"""

import json
import os
import statistics
import subprocess
import sys
import time

import mount_reads
import plots
import sets
from lab import lab
from sites import PERCALE, remove

from experiments import good, groups, places, table

NET = "wan"
SETS = ("f100m", "f1g")
QUICK = ("f100m",)


def measure(options, lines):
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        print("SKIPPED: mounting needs /dev/fuse", file=sys.stderr)
        return
    with lab(options, lines) as made:
        for name in options.sets or (QUICK if options.quick else SETS):
            source = sets.make(made.folder, name)
            for number in range(options.rounds):
                # Another content each time, or the last one's groups would be in the cache.
                with open(source, "r+b") as file:
                    file.write(os.urandom(64))
                target = f"percale:/far/{name}-{number}"
                made.far.client("far", "put", "-q", source, target)
                made.near.sees(target)
                read(made, name, number, target)
                back = made.folder / "back"
                took, ok, said = made.percale("near", made.far, "get", "-q", target, back)
                made.note("get", name, number, took, ok, said)
                began = time.monotonic()
                mount_reads.drain(back)
                made.note("own file system", name, number, time.monotonic() - began, tool="dd")
                remove(back)
            made.drop(name)


def read(made, name, number, target):
    folder = made.folder / "mount"
    argv = [sys.executable, mount_reads.__file__, PERCALE, folder, target.rsplit("/", 1)[1]]
    made.load = os.getloadavg()[0]
    # Mounts are seen in the place where they were made, and nowhere else.
    done = subprocess.run(made.net.command("near", argv), env=made.near.env(), capture_output=True, text=True, timeout=900)
    said = json.loads(done.stdout) if done.returncode == 0 else {}
    for action in mount_reads.ACTIONS:
        made.note(action, name, number, said.get(action, 1), bool(said), done.stderr[-600:])
    remove(folder)


def summarise(rows):
    return table(rows, "action", "case")


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        cases = {case: {action: statistics.median(row["value"] for row in part) for (action,), part in groups(of_case, "action").items()}
                 for (case,), of_case in groups(group, "case").items()}  # fmt: skip
        files += plots.bars(folder / f"mounted-{slug}.svg", f"Read through a mount ({title})", "MB/s", cases)
    return files
