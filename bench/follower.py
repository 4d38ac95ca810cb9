"""Two sites on loopback: how far a follower is behind its home after creates in bulk, and how fast it lists.

The home gets a tree of empty files in one `put`; from the moment that ends, the other site is asked until its own rows
have all of them. Then both list a collection of 10 000 entries, each from its own rows.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import host
import one_site

PERCALE = one_site.PERCALE
FILES, LISTED = 100_000, 10_000


def ask(env, *command):
    """Returns what a command prints."""
    done = subprocess.run([str(word) for word in (PERCALE, *command)], env=env, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def where(env):
    """Returns the position of the space that a site has."""
    return json.loads(ask(env, "space", "show", "follow", "--json"))["position"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--files", type=int, default=FILES, help=f"files in bulk (default {FILES})")
    options = parser.parse_args()
    lags, here, there = [], [], []
    parent = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else host.ROOT / "target"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent)))
        for name in ("home", "away", "tree"):
            (folder / name).mkdir()
        home = stack.enter_context(one_site.site(folder / "home", "home"))
        away = stack.enter_context(one_site.site(folder / "away", "away"))
        ask(away, "site", "join", ask(home, "-q", "site", "invite").strip())
        ask(home, "space", "create", "follow")
        ask(home, "grant", "add", "percale:/follow", "user:admin@site:away", "read")
        for number in range(options.files):
            path = folder / "tree" / f"{number // LISTED:03}" / f"{number:06}"
            path.parent.mkdir(exist_ok=True)
            path.touch()
        for number in range(options.rounds):
            load = os.getloadavg()[0]
            target = f"percale:/follow/{number}/"
            ask(home, "put", "-r", f"{folder}/tree/", target)
            ended = time.monotonic()
            position = where(home)
            while where(away) != position:
                if time.monotonic() - ended > 300:
                    sys.exit("the follower did not get there in 300 s")
            lags.append(time.monotonic() - ended)
            for env, times in ((home, here), (away, there)):
                began = time.monotonic()
                lines = ask(env, "-q", "ls", f"{target}000").count("\n")
                times.append(time.monotonic() - began)
                assert lines == min(LISTED, options.files), lines
            print(f"{number}  behind {lags[-1]:.3f} s   listed at home {here[-1]:.3f} s, at the follower {there[-1]:.3f} s   load {load:.2f}", flush=True)
    print(
        f"\nmedians of {options.rounds}: behind {statistics.median(lags):.3f} s after {options.files} creates; "
        f"{LISTED} entries listed at home in {statistics.median(here):.3f} s, at the follower in {statistics.median(there):.3f} s"
    )


if __name__ == "__main__":
    main()
