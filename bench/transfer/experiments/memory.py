"""Resident memory at most, of clients and servers, while very many tiny files (0 to 4096 bytes) and one huge sparse file are moved.

It should not grow with the number of files nor with their size. `--files` and `--sparse` say how many and how large.
"""

import contextlib
import os
import subprocess
import time
from pathlib import Path

import plots
import sets
from lab import lab
from net import ROOT
from sites import PERCALE, remove, resident_mb

from experiments import good, groups, places, table

NET = "loopback"
# The huge file does not fit in most machines' memory.
FOLDER = ROOT / "target"
IN_FOLDER = 1000
LOOK_S = 0.01


def measure(options, lines):
    files = options.files or (20_000 if options.quick else 1_000_000)
    sparse = options.sparse or (1 if options.quick else 20)
    with lab(options, lines) as made:
        many = made.folder / "many"
        size = make_many(many, files)
        name = f"{files} files"
        target = "percale:/far/many"
        for number in range(options.rounds):
            columns = {"files": files, "bytes": size}
            watched(made, "put", name, number, "near", made.far, ["put", "-q", "-r", f"{many}/", target], [made.far], columns)
            watched(made, "replicate", name, number, "near", made.near, ["replicate", "-q", "--to", "near", target], [made.far, made.near], columns)
            back = made.folder / "back"
            watched(made, "get", name, number, "near", made.far, ["get", "-q", "-r", f"{target}/", back], [made.far], columns)
            remove(back)
            made.forget(made.far, target)
        remove(many)
        huge = made.folder / "huge"
        with open(huge, "wb") as file:
            file.truncate(sparse * 10**9)
        name, columns = f"{sparse} GB sparse", {"files": 1, "bytes": sparse * 10**9}
        for number in range(options.rounds):
            watched(made, "put", name, number, "near", made.far, ["put", "-q", huge, "percale:/far/huge"], [made.far], columns)
            watched(made, "get", name, number, "near", made.far, ["get", "-q", "percale:/far/huge", made.folder / "back"], [made.far], columns)
            remove(made.folder / "back")
            made.forget(made.far, "percale:/far/huge")


def make_many(root, files):
    """Makes files of 0, 1, 2, … 4096, 0, … bytes, a thousand in a folder; returns the bytes of all."""
    block, total = os.urandom(sets.MIB), 0
    for number in range(files):
        if number % IN_FOLDER == 0:
            folder = root / f"{number // IN_FOLDER:05}"
            folder.mkdir(parents=True)
        size = number % 4097
        with open(folder / f"{number:07}.bin", "wb") as file:
            # The number first, so that no two are the same.
            file.write((number.to_bytes(8, "little") + block[number % 4096 :][:4096])[:size])
        total += size
    return total


def watched(made, action, name, number, at, site, command, servers, columns):
    """Runs a client; one line for its memory and one for each server's, counted from here on."""
    for server in servers:
        # Forgets the largest size so far.
        Path(f"/proc/{server.server.pid}/clear_refs").write_text("5")
    made.load = os.getloadavg()[0]
    began = time.monotonic()
    with open(made.folder / "said", "w+") as said:
        client = subprocess.Popen(made.net.command(at, [PERCALE, *command]), env=site.env(), stdout=said, stderr=said)
        # What wait4 tells is at least what this program had when it forked, so the process itself is looked at. The number only grows.
        largest = 0.0
        while client.poll() is None:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                largest = resident_mb(client.pid) or largest
            time.sleep(LOOK_S)
        said.seek(0)
        took, ok, words = time.monotonic() - began, client.returncode == 0, said.read()[-400:]
    made.note(f"{action}: client", name, number, took, ok, "" if ok else words, value=largest, unit="MiB", **columns)
    for server in servers:
        made.note(f"{action}: server {server.name}", name, number, took, ok, value=server.rss_mb(), unit="MiB", **columns)


def summarise(rows):
    return table(rows, "action", "case")


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        bars = {
            action: {case: max(row["value"] for row in each) for (case,), each in groups(part, "case").items()}
            for (action,), part in groups(group, "action").items()
        }
        files += plots.bars(folder / f"memory-{slug}.svg", f"Resident memory at most ({title})", "MiB", bars)
    return files
