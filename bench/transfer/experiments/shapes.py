"""1 GiB as 1, 10 and 1000 files, by number of streams (`-j`): the NSDF paper's table.

XRootD was measured there with 417, 71 and 32 MiB/s. Here 1000 × 1 MiB is to reach 0.95 of the rate of 1 × 1 GiB. `auto` is without `-j`.
"""

import statistics

import plots
from lab import lab

from experiments import good, groups, places, table

NET = "wan"
SETS = ("g1", "n10", "n1000")
STREAMS = (None, 1, 2, 4, 8, 16, 32)
QUICK_SETS, QUICK_STREAMS = ("f100m", "c100"), (None, 1, 8)


def measure(options, lines):
    names, streams = (QUICK_SETS, QUICK_STREAMS) if options.quick else (SETS, STREAMS)
    with lab(options, lines) as made:
        for name in options.sets or names:
            for number in range(options.rounds):
                for count in streams:
                    made.cycle(name, number, ("put", "get"), count)
                made.cycle(name, number, ("replicate",))
            made.drop(name)


def summarise(rows):
    for row in rows:
        row["streams"] = row["streams"] or "auto"
    lines = []
    for (net, medium, action), group in groups(good(rows), "net", "medium", "action").items():
        rate = lambda case, group=group: [row["value"] for row in group if row["case"] == case and row["streams"] == "auto"]
        if rate("g1") and rate("n1000"):
            share = statistics.median(rate("n1000")) / statistics.median(rate("g1"))
            lines.append(f"- {action}, {net}, {medium}: 1000 × 1 MiB at **{share:.2f}** of the rate of 1 × 1 GiB")
    return table(rows, "action", "case", "streams") + "\n" + "\n".join(lines) + "\n"


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        counted = [row for row in group if row["streams"] not in ("", "auto")]
        series = {
            f"{action} {case}": [(int(row["streams"]), row["value"]) for row in part]
            for (action, case), part in groups(counted, "action", "case").items()
        }
        files += plots.curves(folder / f"shapes-{slug}.svg", f"By number of streams ({title})", "streams", "MB/s", series, log=True)
    return files
