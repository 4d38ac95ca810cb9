"""One file of 5 MB to 10 GB: put, get, replicate, and a copy steered from a third place (`cp --to`).

Shows from which size on the line is filled. With `--folder` on a disk it is the same experiment from file system to file system,
everything flushed before it is acknowledged.
"""

import plots
from lab import lab

from experiments import good, groups, places, table

NET = "wan"
ACTIONS = ("put", "get", "replicate", "cp --to")
SETS = ("f5m", "f20m", "f100m", "f500m", "f1g", "f2500m", "f10g")
QUICK = ("f5m", "f100m")


def measure(options, lines):
    with lab(options, lines) as made:
        for name in options.sets or (QUICK if options.quick else SETS):
            for number in range(options.rounds):
                made.cycle(name, number, ACTIONS)
            made.drop(name)


def summarise(rows):
    return table(rows, "action", "case")


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        series = {action: [(row["bytes"] / 1e6, row["value"]) for row in part] for (action,), part in groups(group, "action").items()}
        files += plots.curves(folder / f"sizes-{slug}.svg", f"One file ({title})", "size, MB", "MB/s", series, log=True)
    return files


