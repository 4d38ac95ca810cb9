"""From the moment when a managed transfer is accepted to its first byte at the destination; sites warm, one small file.

Accepted is the time that the task itself names (`created`); the first byte is there when a group of 1 MiB of the file at the destination begins
with something else than zeros, since room is reserved before bytes come. Both are of one host's clock. The first round is not counted: it opens
the connections between the sites.
"""

import contextlib
import datetime
import json
import os
import threading
import time

import plots
import sets
from lab import lab

from experiments import good, places, table

NET = "wan"
LOOK_S = 0.0005


def measure(options, lines):
    name = "f5m"
    with lab(options, lines) as made:
        source = sets.make(made.folder, name)
        for number in range(-1, 4 * options.rounds):
            target = f"percale:/far/start-{number}"
            made.far.client("far", "put", "-q", source, target)
            made.near.sees(target)
            watch = Watch(made.near.folder / "store", sets.total(name))
            watch.start()
            _, ok, said = made.percale("near", made.near, "replicate", "-q", "--to", "near", target)
            # By then it was seen, or never will be.
            watch.over.set()
            watch.join()
            if number < 0:
                continue
            if ok and watch.seen is None:
                ok, said = False, "the copy was made, but nothing of it was seen on its way"
            waited = watch.seen - accepted(made.near) if ok else 0
            made.note("replicate", name, number, waited, ok, said, value=waited * 1e3, unit="ms")


def accepted(site):
    """When the newest task was accepted, in seconds since 1970."""
    task = json.loads(site.client(site.name, "task", "list", "--json", "--limit", "1").stdout.splitlines()[0])
    return datetime.datetime.fromisoformat(task["created"].replace("Z", "+00:00")).timestamp()


class Watch(threading.Thread):
    """Notes the time at which a new file of this size below a folder first has content."""

    def __init__(self, folder, size):
        super().__init__()
        self.folder, self.size = folder, size
        self.known = set(self.files(folder))
        self.seen, self.over = None, threading.Event()

    def run(self):
        while self.seen is None and not self.over.wait(LOOK_S):
            if any(self.has_content(path) for path in self.files(self.folder) if path not in self.known):
                self.seen = time.time()

    def files(self, folder):
        """Files of the size; what goes away meanwhile is passed over."""
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        yield from self.files(entry.path)
                    elif entry.stat().st_size == self.size:
                        yield entry.path

    def has_content(self, path):
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            return any(any(os.pread(file.fileno(), 16, at)) for at in range(0, self.size, sets.MIB))
        return False


def summarise(rows):
    return table(rows, "action", "case")


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        series = {"accepted to first byte": [(row["round"], row["value"]) for row in group]}
        files += plots.curves(folder / f"start-{slug}.svg", f"Start of a managed transfer ({title})", "round", "ms", series)
    return files
