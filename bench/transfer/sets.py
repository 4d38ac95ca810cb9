"""What is transferred: files of random bytes, made once for a run."""

import os
from pathlib import Path

MB, MIB = 1_000_000, 1 << 20

# name: (number of files, bytes of each)
SETS = {
    "f5m": (1, 5 * MB),
    "f20m": (1, 20 * MB),
    "f100m": (1, 100 * MB),
    "f500m": (1, 500 * MB),
    "f1g": (1, 1000 * MB),
    "f2500m": (1, 2500 * MB),
    "f10g": (1, 10_000 * MB),
    "g1": (1, 1 << 30),
    "n10": (10, 100 * MIB),
    "n1000": (1000, MIB),
    "k10000": (10_000, 10_000),
    "k1000": (1000, 10_000),
    **{f"c{count}": (count, 1000 * MB // count) for count in (50, 100, 200, 400, 600, 800, 1000)},
    **{f"q{count}": (count, 100 * MB // count) for count in (50, 200, 400)},
    **{f"s{count}": (count, 50 * MB) for count in range(1, 20, 2)},
}


def total(name):
    count, size = SETS[name]
    return count * size


def make(folder, name):
    """Makes a set and returns its path: a file, or a directory for several. No two blocks are the same, so nothing could be
    compressed or shared away."""
    count, size = SETS[name]
    root = Path(folder) / name
    if root.exists():
        return root
    block = os.urandom(MIB)
    written = 0

    def write(path):
        nonlocal written
        with open(path, "wb") as file:
            left = size
            while left > 0:
                written += 1
                piece = written.to_bytes(8, "little") + block[8 : min(left, MIB)]
                file.write(piece[:left])
                left -= len(piece[:left])

    if count == 1:
        write(root)
    else:
        root.mkdir(parents=True)
        for number in range(count):
            write(root / f"{number:06}.bin")
    return root
