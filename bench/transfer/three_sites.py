"""Three sites over an emulated long link, one behind a firewall: put, list, read, copy both ways, check.

Anything that goes wrong ends it with an error, so that it is a test as well; the figures are printed only. Needs root and the
emulator, see net.py; `nft` puts a real firewall in front of the third site, which only dials out in any case.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import sets
from net import Emulated
from sites import PERCALE, fabric, remove

NAMES = ["alps", "baltic", "coast"]
SMALL = 1000


def timed(what, size, count, work):
    began = time.monotonic()
    work()
    took = time.monotonic() - began
    files = f"{count / took:8.0f} files/s" if count > 1 else ""
    print(f"{what:<62} {took:7.2f} s {size / took / 1e6:8.1f} MB/s {files}", flush=True)


def exchange(home, others, large, small, size):
    """Everything that concerns the space of one site."""
    space, small_size = f"percale:/{home.name}", SMALL * 10_000
    put = lambda site, source, target: site.client(site.name, "put", *(["-r"] if source.is_dir() else []), source, target)
    put(home, large, f"{space}/large")
    put(home, small, f"{space}/")
    for other in others:
        other.sees(f"{space}/{small.name}/{SMALL - 1:06}.bin")
        timed(f"{other.name}: list {space}", 0, SMALL, lambda: other.client(other.name, "ls", "-R", space))
        read = other.folder / "read"
        other.client(other.name, "get", f"{space}/{small.name}/000007.bin", read)
        assert read.read_bytes() == (small / "000007.bin").read_bytes()
        read.unlink()
        # The bytes stay there, the name comes from the home.
        mine = f"{space}/from-{other.name}"
        timed(f"{other.name}: put a large file, named by {home.name}", size, 1, lambda: put(other, large, mine))
        for what, target, to, much, count in (
            (f"{home.name} -> {other.name}: replicate a large file", f"{space}/large", other, size, 1),
            (f"{home.name} -> {other.name}: replicate small files", f"{space}/{small.name}", other, small_size, SMALL),
            (f"{other.name} -> {home.name}: replicate a large file", mine, home, size, 1),
        ):
            timed(what, much, count, lambda target=target, to=to: to.client(to.name, "replicate", target, "--to", to.name))
        copy = f"percale:/{other.name}/copy-of-{home.name}"
        sync = lambda copy=copy, other=other: other.client(other.name, "sync", "--to", other.name, f"{space}/{small.name}", copy)
        timed(f"{home.name} -> {other.name}: sync small files into another space", small_size, SMALL, sync)
    timed(f"{home.name}: check --deep at all sites", 0, 1, lambda: home.client(home.name, "check", "--deep", space))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rtt", default="50ms", help="round trip (default 50ms)")
    parser.add_argument("--rate", default="1.2gbit", help="of each link (default 1.2gbit)")
    parser.add_argument("--large", default="f100m", help="which large file, of sets.py (default f100m)")
    parser.add_argument("--folder", default="/dev/shm", help="where the files lie (default /dev/shm, memory)")
    options = parser.parse_args()
    if not PERCALE.exists():
        sys.exit(f"{PERCALE} is not there: run `make bench`, which builds it")
    has_firewall = shutil.which("nft") is not None
    if not has_firewall:
        print(f"no `nft` here: {NAMES[-1]} has no firewall in front of it, and only dials out all the same", file=sys.stderr)
    net = Emulated(NAMES, options.rtt, options.rate, behind_nat=NAMES[-1:] if has_firewall else ())
    folder = Path(tempfile.mkdtemp(prefix="percale-bench-", dir=options.folder))
    try:
        sets.SETS["small"] = (SMALL, 10_000)
        large, small = sets.make(folder, options.large), sets.make(folder, "small")
        outgoing = {NAMES[-1]: "[federation]\noutgoing_only = true"}
        with net, fabric(net, NAMES, folder, outgoing) as sites:
            for home in sites:
                exchange(home, [site for site in sites if site is not home], large, small, sets.total(options.large))
            print(f"latest delivery of the emulator: {net.late_us()} µs")
    finally:
        remove(folder)


if __name__ == "__main__":
    main()
