"""1 GB by the largest TCP buffers that the kernel gives (`net.ipv4.tcp_rmem`, `tcp_wmem`) at both sites.

A tool with one stream is bound by them. Here the number of streams follows from the buffers, so the rate should not depend on them.
"""

import plots
from lab import lab

from experiments import good, groups, table

NET = "wan"
BYTES, QUICK = (1 << 20, 2 << 20, 4 << 20, 16 << 20, 64 << 20), (1 << 20, 16 << 20)


def measure(options, lines):
    if options.net == "loopback":
        raise SystemExit("buffers: loopback has no round trip, so buffers do not matter there; leave --net out")
    name = options.sets[0] if options.sets else ("f100m" if options.quick else "f1g")
    for size in QUICK if options.quick else BYTES:
        with lab(options, lines, tcpmem=size) as made:
            for number in range(options.rounds):
                made.cycle(name, number, ("put", "get", "replicate"))
                made.cycle(name, number, ("put",), streams=1)


def buffer(row):
    return int(row["net"].split("tcpmem ")[1]) >> 20


def summarise(rows):
    for row in rows:
        row["streams"] = row["streams"] or "auto"
    return table(rows, "action", "case", "streams")


def draw(rows, folder):
    rows = good(rows)
    if not rows:
        return []
    series = {}
    for (action, streams), part in groups(rows, "action", "streams").items():
        what = f"{action} -j {streams}" if streams not in ("", "auto") else action
        series[what] = [(buffer(row), row["value"]) for row in part]
    return plots.curves(folder / "buffers.svg", "By the largest TCP buffers", "MiB", "MB/s", series, log=True)
