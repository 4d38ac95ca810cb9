"""A copy from site to site on one machine, encrypted (TLS) and only authenticated (`federation.integrity_only`).

Both ends share the processors, so this is what hashing, encryption and the kernel leave of them. The seconds are of the whole command; those of
the processor are of both sites, for 1 GB.
"""

import plots
import sets
from lab import lab

from experiments import good, groups, places, table

NET = "loopback"
MODES = {
    "TLS": None,
    "integrity only": {near: f'[federation]\nintegrity_only = ["{far}"]' for near, far in (("near", "far"), ("far", "near"))},
}


def measure(options, lines):
    name = "f100m" if options.quick else "f2500m"
    for mode, settings in MODES.items():
        with lab(options, lines, settings=settings) as made:
            source = sets.make(made.folder, name)
            case = f"{sets.total(name) / 1e9:.1f} GB, {mode}"
            # The first opens the connections, and is not counted.
            for number in range(-1, options.rounds):
                target = f"percale:/far/{name}-{number}"
                made.far.client("far", "put", "-q", source, target)
                before = made.near.cpu_s() + made.far.cpu_s()
                took, ok, said = made.percale("near", made.near, "replicate", "-q", "--to", "near", target)
                processor = (made.near.cpu_s() + made.far.cpu_s() - before) / sets.total(name) * 1e9
                if number >= 0:
                    columns = {"files": 1, "bytes": sets.total(name)}
                    made.note("replicate", case, number, took, ok, said, value=sets.total(name) / took / 1e6, **columns)
                    made.note("processor", case, number, took, ok, said, value=processor, unit="s/GB", **columns)
                made.forget(made.far, target)


def summarise(rows):
    return table(rows, "action", "case")


def draw(rows, folder):
    files = []
    rates = [row for row in good(rows) if row["unit"] == "MB/s"]
    for title, slug, group in places(rows):
        bars = {"copy": {case: sum(row["value"] for row in each) / len(each) for (case,), each in groups(group, "case").items()}}
        files += plots.bars(folder / f"transports-{slug}.svg", f"Site to site ({title})", "MB/s, mean", bars)
    return files
