"""The mount beside the file system below it, mergerfs and unionfs-fuse.

    bench/run mounted                           all measures, five rounds: about two hours
    bench/run mounted blocks -n 3 --ways 'native;percale'

Each round makes a directory, a site with a store on the same file system and a mount of it, and the same in the peers that are installed,
one after the other. Needs root and /dev/fuse. The figures go to bench/runs/<date>-<machine>-mount/.

  metadata       files of 1 KiB made, looked at twice, listed by `ls -lR`, read and removed
  blocks         plain reads and writes (fio) by block size: a new file, one that was there before, also cut first, and reading it
  collaborators  1 to 24 processes at once, with small files and with one large file each
  bonnie         Bonnie++: writes, rewrites, reads, seeks, small files
"""

import argparse
import csv
import os
import shutil
import statistics
import sys
from pathlib import Path

import measures
import ways

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import host  # noqa: E402
import one_site  # noqa: E402
import plots  # noqa: E402

DEFAULT_WAYS = ["native", "percale", "percale, native store", "mergerfs", "unionfs-fuse"]
VERSIONS = {
    "fio": ["fio", "--version"], "mergerfs": ["mergerfs", "--version"], "unionfs-fuse": ["unionfs", "--version"], "bonnie++": ["bonnie++", "--version"],
}  # fmt: skip


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MEASURE", help=f"which of them: {', '.join(measures.ALL)} (default: all)")
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--files", type=int, default=20_000, help="small files (default 20 000)")
    parser.add_argument("--mib", type=int, default=384, help="MiB of a large file (default 384)")
    parser.add_argument("--blocks", default="4,16,64,512", help="KiB in a block (default 4,16,64,512)")
    parser.add_argument("--ways", help=f"some of these, with a semicolon between: {'; '.join(ways.ALL)}")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="where everything lies (default: memory)")
    parser.add_argument("--out", type=Path, help="where the figures go (default bench/runs/<date>-<machine>-mount)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    for name in options.names:
        if name not in measures.ALL:
            parser.error(f"no measure '{name}'; there are {', '.join(measures.ALL)}")
    options.names = options.names or list(measures.ALL)
    options.blocks = [int(block) for block in options.blocks.split(",")]
    options.ways = ways.installed(options.ways.split(";") if options.ways else DEFAULT_WAYS)
    return options


def main():
    options = parse()
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        print("SKIPPED: mounting needs root and /dev/fuse")
        return
    if not shutil.which("fio"):
        print("SKIPPED: reads and writes by block size need fio (apt-get install fio)")
        options.names = [name for name in options.names if name not in ("blocks", "collaborators")]
    rows = []
    for name in options.names:
        for number in range(options.rounds):
            for way in options.ways:
                load = os.getloadavg()[0]

                def record(what, figure, unit, x=""):
                    rows.append({"measure": name, "medium": host.medium(options.folder), "round": number, "way": way, "what": what, "x": x,
                                 "figure": round(figure, 3), "unit": unit, "load": round(load, 2)})  # fmt: skip

                with ways.made(way, options.folder) as at:
                    measures.ALL[name](at, options, record)
                print(f"{name} {number}: {way}, load {load:.2f}", flush=True)
        mine = [row for row in rows if row["measure"] == name]
        print(f"\n{table(mine)}", flush=True)
        if not options.no_save:
            save(options.out or host.default_folder("mount"), mine)


def table(rows):
    """Medians, each with its ratio to the native file system in the same run."""
    median = {}
    for row in rows:
        median.setdefault((row["what"], row["x"], row["way"]), []).append(row["figure"])
    median = {key: statistics.median(figures) for key, figures in median.items()}
    names = list(dict.fromkeys(row["way"] for row in rows))
    axis = measures.AXES.get(rows[0]["measure"])
    lines = [f"| | {f'{axis} | ' if axis else ''}" + " | ".join(names) + " |", "|---" * (len(names) + 1 + bool(axis)) + "|"]
    for what, x, unit in dict.fromkeys((row["what"], row["x"], row["unit"]) for row in rows):
        base = median.get((what, x, "native"))
        cells = [what, str(x)] if axis else [what]
        for way in names:
            figure = median.get((what, x, way))
            shown = "–" if figure is None else f"{figure:,.0f} {unit}" if unit == "/s" else f"{figure:.2f} {unit}"
            cells.append(f"{shown} ({figure / base:.2f})" if figure and base and way != "native" else shown)
        lines.append(f"| {' | '.join(cells)} |")
    loads = [row["load"] for row in rows]
    lines.append(f"\nLoad before a round: {min(loads)} to {max(loads)}.\n")
    return "\n".join(lines)


def draw(rows, folder):
    """Draws what goes by a number. Returns the plots."""
    axis = measures.AXES.get(rows[0]["measure"])
    made = []
    for what, unit in dict.fromkeys((row["what"], row["unit"]) for row in rows) if axis else ():
        series = {}
        for row in rows:
            if row["what"] == what:
                series.setdefault(row["way"], []).append((int(row["x"]), row["figure"]))
        name = f"{rows[0]['measure']}-{what.replace(' ', '-')}-{rows[0]['medium']}.svg"
        made += plots.curves(folder / name, f"{what} ({rows[0]['medium']})", axis, unit, series, log=True)
    return made


def save(folder, rows):
    """Replaces a measure's lines in a folder, and makes the summary and the plots anew."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / "raw.csv"
    if raw.exists():
        with open(raw, newline="") as file:
            old = [row | {"figure": float(row["figure"]), "load": float(row["load"])} for row in csv.DictReader(file)]
        rows = [row for row in old if (row["measure"], row["medium"]) != (rows[0]["measure"], rows[0]["medium"])] + rows
    host.write_csv(raw, rows)
    described = host.setup(folder, one_site.PERCALE, "mounted", VERSIONS)
    parts = [f"# The mount\n\n{described} Medians of the rounds; in brackets the ratio to the native file system in the same run.\n"]
    for name, medium in dict.fromkeys((row["measure"], row["medium"]) for row in rows):
        mine = [row for row in rows if (row["measure"], row["medium"]) == (name, medium)]
        parts.append(f"## {name}, {medium}\n\n{table(mine)}")
        parts += [f"![{plot.stem}]({plot.name})\n" for plot in draw(mine, folder)]
    (folder / "summary.md").write_text("\n".join(parts))
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
