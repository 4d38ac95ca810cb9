"""Several commands at once, each with a file of its own: what all of them reach together.

The Connector paper's throughput by concurrency. More commands than the line needs should share it, not lose it.
"""

import os
import threading
import time

import plots
import sets
from lab import lab
from sites import remove

from experiments import good, groups, places, table

NET = "wan"
AT_ONCE, QUICK = (1, 2, 4, 8, 16), (1, 4)


def measure(options, lines):
    name = options.sets[0] if options.sets else ("f5m" if options.quick else "f100m")
    with lab(options, lines) as made:
        source = sets.make(made.folder, name)
        for number in range(options.rounds):
            for count in QUICK if options.quick else AT_ONCE:
                paths = [f"percale:/far/{name}-{number}-{count}-{part}" for part in range(count)]
                backs = [made.folder / f"back-{part}" for part in range(count)]
                columns = {"at_once": count, "files": count, "bytes": count * sets.total(name)}
                together(made, "put", name, number, [["put", "-q", source, path] for path in paths], columns)
                together(made, "get", name, number, [["get", "-q", path, back] for path, back in zip(paths, backs, strict=True)], columns)
                for path, back in zip(paths, backs, strict=True):
                    made.forget(made.far, path)
                    remove(back)


def together(made, action, name, number, commands, columns):
    """Runs commands side by side; the line has the seconds until the last one ended."""
    results = [None] * len(commands)

    def one(at):
        results[at] = made.percale("near", made.far, *commands[at])

    load = os.getloadavg()[0]
    threads = [threading.Thread(target=one, args=(at,)) for at in range(len(commands))]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    made.load = load
    said = " ".join(said for _, ok, said in results if not ok)
    made.note(action, name, number, took, all(ok for _, ok, _ in results), said, **columns)


def summarise(rows):
    return table(rows, "action", "case", "at_once")


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        series = {
            f"{action} {case}": [(int(row["at_once"]), row["value"]) for row in part]
            for (action, case), part in groups(group, "action", "case").items()
        }
        files += plots.curves(folder / f"concurrency-{slug}.svg", f"Commands at once ({title})", "commands", "MB/s, all together", series)
    return files
