"""What a run leaves: set-up, raw figures, summary and plots, in one folder for a day and a machine.

Several experiments share the folder. One that is run again replaces its own lines, on the same network and medium, and the
summary and the plots are made anew from all lines.
"""

import csv
import datetime
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from net import ROOT

COLUMNS = (
    "experiment", "net", "medium", "tool", "action", "case", "files", "bytes", "streams", "at_once", "round",
    "seconds", "value", "unit", "ok", "load", "max_late_us", "extra",
)  # fmt: skip
# Where a number is read back from raw.csv.
NUMBERS = {"files": int, "bytes": int, "round": int, "seconds": float, "value": float, "ok": int, "load": float, "max_late_us": int}
# What tells whether a machine is as another one.
SYSCTLS = ("net/ipv4/tcp_congestion_control", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/core/default_qdisc")
VERSIONS = {
    "iperf3": ["iperf3", "--version"], "globus-url-copy": ["globus-url-copy", "-version"], "aria2c": ["aria2c", "--version"],
    "nginx": ["nginx", "-v"], "xrootd": ["xrootd", "-v"], "rsync": ["rsync", "--version"], "rclone": ["rclone", "version"], "ssh": ["ssh", "-V"],
}  # fmt: skip


def cpu():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine():
    """A short name of processor and cores, such as `amd-epyc-7763-2c`."""
    words = re.sub(r"\((R|TM|C)\)|\d+-Core|Processor|CPU|@.*", " ", cpu(), flags=re.I)
    return "-".join([*re.findall(r"[a-z0-9]+", words.lower()), f"{os.cpu_count()}c"])


def default_folder():
    return ROOT / f"bench/runs/{datetime.date.today().isoformat()}-{machine()}"


def medium(folder):
    """`memory`, or the file system that the files lie on."""
    done = subprocess.run(["findmnt", "-no", "FSTYPE", "-T", folder], capture_output=True, text=True)
    # Of several that lie over each other, the last one is seen.
    kind = next(reversed(done.stdout.split()), "unknown")
    return "memory" if kind == "tmpfs" else kind


def setup(binary):
    first = lambda argv: next(iter(subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.splitlines()), "")
    either = lambda argv: (lambda done: (done.stdout or done.stderr).strip().splitlines()[:1])(subprocess.run(argv, capture_output=True, text=True))
    return {
        "date": datetime.date.today().isoformat(),
        "processor": f"{os.cpu_count()} x {cpu()}",
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30,
        "kernel": platform.release(),
        "commit": first(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]),
        "percale": first([binary, "--version"]),
        "sysctl": {name: Path(f"/proc/sys/{name}").read_text().strip() for name in SYSCTLS if Path(f"/proc/sys/{name}").exists()},
        "tools": {name: "".join(either(argv)) for name, argv in VERSIONS.items() if shutil.which(argv[0])},
    }


class Record:
    """The lines of one experiment, as they come."""

    def __init__(self, experiment):
        self.experiment, self.rows = experiment, []

    def add(self, **columns):
        row = dict.fromkeys(COLUMNS, "") | {"experiment": self.experiment} | columns
        row["seconds"], row["value"] = round(row["seconds"], 4), round(row["value"], 3)
        self.rows.append(row)
        mark = "" if row["ok"] else f"  FAILED: {row['extra'][-300:]}"
        many = f" x{row['at_once']}" if row["at_once"] else ""
        streams = f" -j {row['streams']}" if row["streams"] else ""
        print(
            f"{row['tool']:16} {row['action']:14} {row['case']}{streams}{many} #{row['round']}  {row['seconds']:9.3f} s "
            f"{row['value']:9.1f} {row['unit']}   load {row['load']:5.2f} late {row['max_late_us']}{mark}",
            flush=True,
        )


def read(folder):
    """The lines of a folder, numbers as numbers."""
    path = folder / "raw.csv"
    if not path.exists():
        return []
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {name: kind(float(row[name])) if row[name] else 0 for name, kind in NUMBERS.items()}
    return rows


def save(folder, rows, binary):
    """Adds an experiment's lines to a folder and makes its summary and plots anew."""
    folder.mkdir(parents=True, exist_ok=True)
    place = lambda row: (row["experiment"], row["net"], row["medium"])
    new = {place(row) for row in rows}
    rows = [row for row in read(folder) if place(row) not in new] + rows
    with open(folder / "raw.csv", "w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows)
    described = setup(binary) | {"command": f"bench/run transfer {' '.join(sys.argv[1:])}"}
    (folder / "setup.json").write_text(json.dumps(described, indent=1) + "\n")
    rows = read(folder)
    parts = [
        f"# Transfers, {described['date']}\n\n{described['processor']}, {described['memory_gib']} GiB, Linux {described['kernel']}; commit "
        f"{described['commit']}; more in setup.json. Each line is the median of its rounds. Encryption and verification are on for Percale; "
        "of the others only tar over ssh encrypts. Seconds are of the whole command, a new process each, unless a line says otherwise.\n"
    ]
    for name in dict.fromkeys(row["experiment"] for row in rows):
        experiment = importlib.import_module(f"experiments.{name}")
        mine = [row for row in rows if row["experiment"] == name]
        parts.append(f"## {name}\n\n{experiment.__doc__.splitlines()[0]}\n\n{experiment.summarise(mine)}")
        parts += [f"![{plot.stem}]({plot.name})\n" for plot in experiment.draw(mine, folder)]
    (folder / "summary.md").write_text("\n".join(parts))
    print(f"written to {folder}")
