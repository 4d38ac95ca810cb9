"""Percale beside iperf3 and the tools that people use today, in the same run: those that are installed.

`scripts/bootstrap peers` installs them where it may. Percale encrypts and verifies; of the others only tar over ssh encrypts, none verifies.
What each brings is compared with what was sent in the first round.
"""

import shutil
import subprocess
import sys
import time

import peers
import plots
import sets
from lab import lab

from experiments import good, groups, places, table

NET = "wan"
SETS = ("f5m", "f100m", "f1g", "g1", "n1000", "k10000")
QUICK = ("f5m", "f100m", "k1000")


def measure(options, lines):
    names = options.sets or (QUICK if options.quick else SETS)
    wanted = lambda tool: not options.tools or tool in options.tools
    if wanted("percale"):
        with lab(options, lines) as made:
            for name in names:
                for number in range(options.rounds):
                    made.cycle(name, number, ("put", "get", "replicate"))
                made.drop(name)
            for site in (made.near, made.far):
                print(f"server {site.name}: {site.rss_mb():.0f} MB resident at most, {site.cpu_s():.1f} s of processor")
    with lab(options, lines, has_fabric=False) as made:
        if wanted("iperf3"):
            iperf(made)
        for kind in (kind for kind in peers.PEERS if wanted(kind.name)):
            missing = [program for program in kind.programs if not shutil.which(program)]
            if missing:
                print(f"LEFT OUT: {kind.name}, for want of {', '.join(missing)} (scripts/bootstrap peers)", file=sys.stderr, flush=True)
                continue
            with_peer(made, kind(), names)


def with_peer(made, peer, names):
    peer.start(made.net, "far", made.folder / f"peer-{'-'.join(peer.programs[:1])}")
    try:
        for name in names:
            source = sets.make(made.folder, name)
            for number in range(made.rounds):
                target, back = peer.folder / f"t-{name}-{number}", peer.folder / "t-back"
                if source.is_dir():
                    peer.prepare(target)
                    peer.prepare(back)
                for action, command, end in (("put", peer.put(source, target), target), ("get", peer.get(source, back), back)):
                    if command is None:
                        continue
                    took, ok, said = made.timed("near", command, timeout=600)
                    if ok and number == 0 and not made.same(source, peer.landed(source, end)):
                        ok, said = False, "what arrived is not what was sent"
                    made.note(action, name, number, took, ok, said, tool=peer.name)
                peer.clean()
    finally:
        peer.stop()


def iperf(made):
    """What eight bare TCP connections reach: the line itself."""
    if not shutil.which("iperf3"):
        print("LEFT OUT: iperf3, which is not installed (scripts/bootstrap peers)", file=sys.stderr, flush=True)
        return
    amount = "100M" if made.quick else "1G"
    for number in range(made.rounds):
        server = subprocess.Popen(made.net.command("far", ["iperf3", "-s", "-1", "-B", made.net.address("far")]), stdout=subprocess.DEVNULL)
        try:
            time.sleep(0.5)
            took, ok, said = made.timed("near", ["iperf3", "-c", made.net.address("far"), "-n", amount, "-P", "8"])
        finally:
            server.kill()
            server.wait()
        size = 100 << 20 if made.quick else 1 << 30
        made.note("put", "m100" if made.quick else "g1", number, took, ok, said, tool="iperf3 -P 8", files=1, bytes=size)


def summarise(rows):
    rows = sorted(rows, key=lambda row: (row["action"], row["case"]))
    return table(rows, "action", "case", "tool")


def draw(rows, folder):
    files = []
    for title, slug, group in places(good(rows)):
        for (action,), part in groups(group, "action").items():
            bars = {
                case: {tool: sum(row["value"] for row in each) / len(each) for (tool,), each in groups(of_case, "tool").items()}
                for (case,), of_case in groups(part, "case").items()
            }
            files += plots.bars(folder / f"against-{action}-{slug}.svg", f"{action} ({title})", "MB/s, mean", bars)
    return files
