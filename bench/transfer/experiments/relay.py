"""A copy between two sites that only dial out, through a third, beside the copies over each leg alone.

`left` and `right` are behind firewalls that let no connection in, `hub` is not. The third site forwards and stores nothing: that its store has
no file more is checked, as is the copy.
"""

import os
import shutil
import statistics
import tempfile
from pathlib import Path

import plots
import sets
from lab import Lab, network
from sites import fabric, remove

from experiments import good, groups, places, table

NET = "wan"
SITES = ("hub", "left", "right")
BEHIND = SITES[1:]


def measure(options, lines):
    if options.net == "loopback":
        raise SystemExit("relay: loopback has no firewalls; leave --net out")
    name = options.sets[0] if options.sets else ("f100m" if options.quick else "f1g")
    net = network(options, sites=list(SITES), behind_nat=BEHIND if shutil.which("nft") else ())
    settings = dict.fromkeys(BEHIND, "[federation]\noutgoing_only = true")
    folder = Path(tempfile.mkdtemp(prefix="percale-bench-", dir=options.folder))
    try:
        with net, fabric(net, SITES, folder, settings) as sites:
            made = Lab(options, lines, net, folder)
            hub, left, right = sites
            source = sets.make(folder, name)
            # The first round opens the connections, and is not counted.
            for number in range(-1, options.rounds):
                for action, giver, taker in (("left to hub", left, hub), ("hub to right", hub, right), ("left to right through hub", left, right)):
                    one(made, hub, action, giver, taker, source, name, number)
    finally:
        remove(folder)


def one(made, hub, action, giver, taker, source, name, number):
    target = f"percale:/{giver.name}/{name}-{number}"
    giver.client(giver.name, "put", "-q", source, target)
    taker.sees(target)
    before = stored(hub)
    took, ok, said = made.percale(taker.name, taker, "replicate", "-q", "--to", taker.name, target)
    if ok and taker is not hub and stored(hub) - before:
        ok, said = False, "something of it lies at the hub"
    if ok and number <= 0:
        said = made.wrong(taker, target, source)
        ok = not said
    if number >= 0:
        made.note(action, name, number, took, ok, said)
    made.forget(giver, target)


def stored(site):
    """The files of objects in a site's store. Those of removed objects go a while later."""
    found = {Path(folder, name) for folder, _, names in os.walk(site.folder / "store") for name in names}
    return {path for path in found if ".percale" not in path.parts}


def summarise(rows):
    lines = []
    for (net, case), group in groups(good(rows), "net", "case").items():
        rate = {action: statistics.median(row["value"] for row in each) for (action,), each in groups(group, "action").items()}
        through = rate.pop("left to right through hub", None)
        if through and rate:
            lines.append(f"- {case}, {net}: through the third site at **{through / min(rate.values()):.2f}** of the slower leg")
    return table(rows, "action", "case") + "\n" + "\n".join(lines) + "\n"


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        bars = {"copy": {action: sum(row["value"] for row in each) / len(each) for (action,), each in groups(group, "action").items()}}
        files += plots.bars(folder / f"relay-{slug}.svg", f"Between sites that only dial out ({title})", "MB/s, mean", bars)
    return files
