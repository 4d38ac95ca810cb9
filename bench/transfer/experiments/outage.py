"""The link is cut at half of 1 GB and mended after 60 s: seconds that the transfer takes beyond these, by itself.

Nobody helps: a put goes on by the same command, a replicate by its task. At the end the object is fetched and compared.
"""

import os
import subprocess
import time

import plots
import sets
from lab import lab
from sites import PERCALE

from experiments import good, groups, places, table

NET = "wan"
PATIENCE_S = 300


def measure(options, lines):
    if options.net == "loopback":
        raise SystemExit("outage: only the emulator's links can be cut; leave --net out")
    name = options.sets[0] if options.sets else ("f100m" if options.quick else "f1g")
    away = 5 if options.quick else 60
    with lab(options, lines) as made:
        source = sets.make(made.folder, name)
        for number in range(options.rounds):
            for action in ("put", "replicate"):
                cut(made, source, action, name, number, away)


def cut(made, source, action, name, number, away):
    target = f"percale:/far/{name}-{number}-{action}"
    site, command = made.far, ["put", "-q", source, target]
    if action == "replicate":
        made.far.client("far", "put", "-q", source, target)
        site, command = made.near, ["replicate", "-q", "--to", "near", target]
    made.load = os.getloadavg()[0]
    before, began = made.net.line_bytes(), time.monotonic()
    with open(made.folder / "said", "w+") as said:
        client = subprocess.Popen(made.net.command("near", [PERCALE, *command]), env=site.env(), stdout=said, stderr=said)
        while made.net.line_bytes() - before < sets.total(name) // 2 and client.poll() is None:
            time.sleep(0.02)
        was_over = client.poll() is not None
        made.net.set("near", "far", "--down")
        time.sleep(away)
        made.net.set("near", "far", "--up")
        try:
            ok = client.wait(PATIENCE_S) == 0 and not was_over
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()
            ok = False
        seconds = time.monotonic() - began - away
        said.seek(0)
        text = said.read()[-300:]
    if ok:
        text = made.wrong(made.far if action == "put" else made.near, target, source)
        ok = not text
    made.note(action, name, number, seconds, ok, text, value=seconds, unit=f"s beyond {away} s")
    made.forget(made.far, target)


def summarise(rows):
    return table(rows, "action", "case")


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        bars = {}
        for (action, case), each in groups(group, "action", "case").items():
            bars.setdefault(case, {})[action] = sum(row["seconds"] for row in each) / len(each)
        files += plots.bars(folder / f"outage-{slug}.svg", f"A link that is away ({title})", "seconds beyond that, mean", bars)
    return files
