"""A fabric of two sites on a network, and the transfers that the experiments are made of.

`near` has the files; `far` is where they go and come back from; `desk` is a place without a site, from which copies between the two are
steered. Each command is a new process.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import host
import sets
from net import Emulated, Loopback
from sites import PERCALE, fabric, remove

# A million files take longest.
PATIENCE_S = 600
PLACES = ("near", "far", "desk")


def network(options, **changes):
    if options.net == "loopback":
        return Loopback()
    link = {"rtt": options.rtt, "rate": options.rate, "loss": options.loss, "tcpmem": options.tcpmem} | changes
    return Emulated(link.pop("sites", list(PLACES)), **link)


class Lab:
    """Two sites, and what is written down about them."""

    def __init__(self, options, lines, net, folder):
        self.options, self.lines, self.net, self.folder = options, lines, net, folder
        self.rounds, self.quick = options.rounds, options.quick
        self.medium = host.medium(folder)
        self.load = 0.0
        self.near = self.far = None

    def timed(self, at, argv, env=None, timeout=1800):
        """Runs a command at a place; returns its seconds, whether it succeeded, and what it said if not."""
        self.load = os.getloadavg()[0]
        began = time.monotonic()
        try:
            done = subprocess.run(self.net.command(at, argv), env=env, capture_output=True, text=True, timeout=timeout)
            return time.monotonic() - began, done.returncode == 0, "" if done.returncode == 0 else (done.stderr or done.stdout)[-600:]
        except subprocess.TimeoutExpired:
            return time.monotonic() - began, False, f"more than {timeout} s"

    def note(self, action, case, number, seconds, ok=True, said="", tool="percale", value=None, unit="MB/s", **columns):
        """Writes a line. The value is the rate of the case's bytes, unless there is another."""
        files, size = sets.SETS.get(case, (0, 0))
        columns = {"files": files, "bytes": files * size} | columns
        if value is None:
            value = columns["bytes"] / seconds / 1e6 if ok else 0
        self.lines.add(
            net=self.net.name, medium=self.medium, tool=tool, action=action, case=case, round=number, seconds=seconds, value=value,
            unit=unit, ok=int(ok), load=round(self.load, 2), max_late_us=self.net.late_us(), extra=said.replace("\n", " "), **columns,
        )  # fmt: skip

    def percale(self, at, site, *argv):
        """Runs a command of the client at a place, against a site."""
        return self.timed(at, [PERCALE, *argv], site.env())

    def same(self, left, right):
        return subprocess.run(["diff", "-rq", left, right], capture_output=True).returncode == 0

    def wrong(self, site, target, source):
        """Fetches an object from a site; returns what is wrong with it beside the file that it was made of, if anything."""
        back = self.folder / "back"
        done = site.client(site.name, "get", "-q", target, back, check=False)
        is_right = done.returncode == 0 and self.same(source, back)
        remove(back)
        return "" if is_right else f"it came back damaged, or not at all: {done.stderr}"

    def cycle(self, name, number, actions, streams=None):
        """Puts a set from near to far and moves it as the actions say: `put`, `get`, `replicate` to near, `cp --to` near steered from the
        desk. A put that is not among them is made, but not written down. All is removed after."""
        source = sets.make(self.folder, name)
        is_tree = source.is_dir()
        slash = "/" if is_tree else ""
        target = f"percale:/far/{name}-{number}"
        how = (["-r"] if is_tree else []) + (["-j", str(streams)] if streams else [])
        columns = {"streams": streams or ""}
        took, ok, said = self.percale("near", self.far, "put", "-q", *how, f"{source}{slash}", target)
        if "put" in actions or not ok:
            self.note("put", name, number, took, ok, said, **columns)
        if ok and "get" in actions:
            back = self.folder / "back"
            took, ok, said = self.percale("near", self.far, "get", "-q", *how, f"{target}{slash}", back)
            if ok and number == 0 and not self.same(source, back):
                ok, said = False, "what came back is not what was put"
            self.note("get", name, number, took, ok, said, **columns)
            remove(back)
        if ok and "replicate" in actions:
            # The copy is made where the files came from, by a task of that site, watched from there.
            took, ok, said = self.percale("near", self.near, "replicate", "--json", "--to", "near", target)
            self.note("replicate", name, number, took, ok, said, **columns)
            self.far.client("far", "evict", "--from", "near", target, check=False)
        if ok and "cp --to" in actions:
            copy = f"percale:/near/{name}-{number}"
            recursive = ["-r"] if is_tree else []
            took, ok, said = self.percale("desk", self.far, "cp", "-q", *recursive, "--to", "near", f"{target}{slash}", copy)
            self.note("cp --to", name, number, took, ok, said, **columns)
            self.forget(self.near, copy)
        self.forget(self.far, target)

    def forget(self, site, target):
        """Removes an object or a tree at its site, and waits until its files are gone from all stores. A site looks for such files every few
        seconds; that work would else fall into whatever is measured next."""
        done = site.client(site.name, "rm", "-r", "-f", "-y", target, check=False)
        deadline = time.monotonic() + PATIENCE_S
        while done.returncode == 0 and self.has_files(target):
            if time.monotonic() > deadline:
                sys.exit(f"the files of {target} are still in a store {PATIENCE_S} s after it was removed")
            time.sleep(0.05)

    def has_files(self, target):
        """Tells whether a store of a site has files by the name of an object, or below that, where folders may go meanwhile."""
        names = self.folder.glob(f"*/store/{target.removeprefix('percale:/')}")
        return any(path.is_file() or any(files for _, _, files in os.walk(path)) for path in names)

    def drop(self, name):
        """Removes a set's files, which are made anew when they are wanted."""
        remove(self.folder / name)


@contextlib.contextmanager
def lab(options, lines, has_fabric=True, settings=None, **link):
    """A network with two sites on it; `link` changes it (`tcpmem`), `settings` are further lines of a site's configuration, by name."""
    folder = Path(tempfile.mkdtemp(prefix="percale-bench-", dir=options.folder))
    os.chmod(folder, 0o755)
    try:
        with network(options, **link) as net:
            made = Lab(options, lines, net, folder)
            if not has_fabric:
                yield made
                return
            with fabric(net, PLACES[:2], folder, settings) as (made.near, made.far):
                yield made
    finally:
        remove(folder)
