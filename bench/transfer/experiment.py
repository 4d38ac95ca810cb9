"""The papers' experiments on transfers between two sites, over an emulated long link or over loopback.

    bench/run transfer                        all of them, five rounds (some hours)
    bench/run transfer --quick                all of them, small, one round (some minutes)
    bench/run transfer against sizes -n 3     some of them, three rounds
    bench/run transfer sizes --folder target  files on a disk at both ends instead of in memory

Each adds its lines to raw.csv in bench/runs/<date>-<machine>/ (or --out) and makes summary.md and the plots there anew. A line is one
measurement: seconds of the whole command, the load before it, and how late the emulator was at worst. A round that was disturbed is to be
repeated.
"""

import argparse
import importlib
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import host  # noqa: E402
import peers  # noqa: E402
import record  # noqa: E402
import sets  # noqa: E402
from experiments import ALL  # noqa: E402
from sites import PERCALE  # noqa: E402


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="EXPERIMENT", help=f"which of them: {', '.join(ALL)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sets and one round: to see that everything works")
    parser.add_argument("-n", "--rounds", type=int, help="rounds of each case (default 5; 1 with --quick)")
    parser.add_argument("--sets", type=lambda text: tuple(text.split(",")), help=f"other sets of files; there are {', '.join(sets.SETS)}")
    parser.add_argument("--tools", type=lambda text: tuple(text.split(",")), help="only these tools (`against`): percale, iperf3, aria2c, tar-ssh, …")
    parser.add_argument("--files", type=int, help="how many tiny files (`memory`; default 1 000 000)")
    parser.add_argument("--sparse", type=int, metavar="GB", help="how large the sparse file is (`memory`; default 20)")
    parser.add_argument("--net", choices=["wan", "loopback"], help="instead of the network that an experiment is made for")
    parser.add_argument("--rtt", default="50ms", help="round trip of the emulated link (default 50ms)")
    parser.add_argument("--rate", default="1.2gbit", help="its rate (default 1.2gbit)")
    parser.add_argument("--loss", default="0", help="its loss (default none)")
    parser.add_argument("--tcpmem", help="largest TCP buffers of the sites; the host's if absent")
    parser.add_argument("--folder", help="where the files lie (default /dev/shm, memory; `memory`: target/, a disk)")
    parser.add_argument("--out", type=Path, help="where the figures go (default bench/runs/<date>-<machine>)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    for name in options.names:
        if name not in ALL:
            parser.error(f"no experiment '{name}'; there are {', '.join(ALL)}")
    for name in options.sets or ():
        if name not in sets.SETS:
            parser.error(f"no set '{name}'; there are {', '.join(sets.SETS)}")
    tools = ("percale", "iperf3", *(kind.name for kind in peers.PEERS))
    for name in options.tools or ():
        if name not in tools:
            parser.error(f"no tool '{name}'; there are {', '.join(tools)}")
    options.rounds = options.rounds or (1 if options.quick else 5)
    return options


def main():
    options = parse()
    if not PERCALE.exists():
        sys.exit(f"{PERCALE} is not there: run `make bench`, which builds it")
    # Ended from outside, it still takes down its servers and its network.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    failed = False
    for name in options.names or ALL:
        experiment = importlib.import_module(f"experiments.{name}")
        print(f"== {name}: {experiment.__doc__.splitlines()[0]}", flush=True)
        mine = argparse.Namespace(**vars(options))
        mine.net = options.net or experiment.NET
        mine.folder = options.folder or getattr(experiment, "FOLDER", "/dev/shm")
        lines = record.Record(name)
        try:
            experiment.measure(mine, lines)
        except SystemExit as stopped:
            # One experiment that cannot be made here does not keep the others from being made.
            if stopped.code:
                print(f"FAILED: {name}: {stopped.code}", file=sys.stderr)
                failed = True
            if stopped.code == "terminated":
                sys.exit(1)
        failed |= not all(row["ok"] for row in lines.rows)
        if lines.rows:
            # As they are read back from a file.
            rows = [{key: str(value) if key in ("streams", "at_once") else value for key, value in row.items()} for row in lines.rows]
            print("\n" + experiment.summarise(rows), flush=True)
            if not options.no_save:
                record.save(options.out or host.default_folder(), lines.rows, PERCALE)
    sys.exit("some transfers failed" if failed else 0)


if __name__ == "__main__":
    main()
