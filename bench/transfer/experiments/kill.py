"""The receiver is killed (`kill -9`) at half of 1 GB and started again: bytes that crossed the line twice.

The emulator counts what crossed. What an undisturbed transfer of the same file took in the same round is subtracted, so headers do not count.
The last column of raw.csv says how much had crossed when the server was dead: sent again from the beginning is as much as that.
Nobody helps: a put goes on by the same command, a replicate by its task. At the end the object is fetched and compared.
"""

import json
import os
import subprocess
import time

import plots
import sets
from lab import lab
from sites import PERCALE

from experiments import good, groups, places, table

NET = "wan"
PATIENCE_S = 600


def measure(options, lines):
    if options.net == "loopback":
        raise SystemExit("kill: only the emulator counts what crosses the line; leave --net out")
    name = options.sets[0] if options.sets else ("f100m" if options.quick else "f1g")
    with lab(options, lines) as made:
        source = sets.make(made.folder, name)
        for number in range(options.rounds):
            for action in ("put", "replicate"):
                disturbed(made, source, action, name, number)


def disturbed(made, source, action, name, number):
    size = sets.total(name)
    receiver = made.far if action == "put" else made.near
    plain, seconds = crossed(made, source, action, f"{name}-{number}-plain", None)
    if plain is None:
        made.note(action, name, number, seconds, False, "the undisturbed transfer failed", unit="MB re-sent", value=0)
        return
    target = f"{name}-{number}-killed"
    kill = Kill(receiver, size // 2)
    twice, seconds = crossed(made, source, action, target, kill)
    ok, said = twice is not None, "it did not end by itself"
    if ok:
        # Read at the site that was killed, whose copy it must be.
        said = made.wrong(receiver, f"percale:/far/{target}", source)
        ok = not said
    made.forget(made.far, f"percale:/far/{target}")
    resent = (twice - plain) / 1e6 if ok else 0
    made.note(action, name, number, seconds, ok, f"killed at {kill.at / 1e6:.1f} MB" if ok else said, unit="MB re-sent", value=resent)


class Kill:
    """Kills a server once so many bytes have crossed, and starts it again."""

    def __init__(self, site, after):
        self.site, self.after, self.at = site, after, 0

    def look(self, net, before):
        if self.at or net.line_bytes() - before < self.after:
            return
        self.site.stop(hard=True)
        # Finding out takes a while, during which more crosses.
        self.at = net.line_bytes() - before
        self.site.start()


def crossed(made, source, action, target, kill):
    """Transfers, with a kill if there is one, and returns the bytes that crossed in all and the seconds."""
    path = f"percale:/far/{target}"
    if action == "replicate":
        made.far.client("far", "put", "-q", source, path)
        made.near.sees(path)
    before, began = made.net.line_bytes(), time.monotonic()
    made.load = os.getloadavg()[0]
    if action == "put":
        client = subprocess.Popen(
            made.net.command("near", [PERCALE, "put", "-q", source, path]), env=made.far.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        state = lambda: {None: None, 0: "succeeded"}.get(client.poll(), "failed")
    else:
        task = made.near.client("near", "replicate", "-q", "--detach", "--to", "near", path).stdout.split()[0]
        state = lambda: task_state(made.near, task)
    ended = None
    while ended is None and time.monotonic() - began < PATIENCE_S:
        if kill:
            kill.look(made.net, before)
        time.sleep(0.02)
        ended = state()
    seconds = time.monotonic() - began
    if action == "put" and ended is None:
        client.kill()
        client.wait()
    sent = made.net.line_bytes() - before
    if not kill:
        made.forget(made.far, path)
    # A transfer that was over before the kill proves nothing.
    return (sent if ended == "succeeded" and (kill is None or kill.at) else None), seconds


def task_state(site, task):
    """`succeeded`, another end, or nothing while it goes on or the site does not answer."""
    done = site.client(site.name, "task", "show", "--json", task, check=False)
    if done.returncode != 0:
        return None
    state = json.loads(done.stdout)["state"]
    return None if state in ("queued", "running") else state


def summarise(rows):
    return table(rows, "action", "case")


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        bars = {
            action: {case: sum(row["value"] for row in each) / len(each) for (case,), each in groups(part, "case").items()}
            for (action,), part in groups(group, "action").items()
        }
        files += plots.bars(folder / f"kill-{slug}.svg", f"Receiver killed at half ({title})", "MB sent again, mean", bars)
    return files
