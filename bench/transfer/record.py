"""What a run leaves: set-up, raw figures, summary and plots, in one folder for a day and a machine.

Several experiments share the folder. One that is run again replaces its own lines, on the same network and medium, and the
summary and the plots are made anew from all lines.
"""

import csv
import importlib

import host

COLUMNS = (
    "experiment", "net", "medium", "tool", "action", "case", "files", "bytes", "streams", "at_once", "round",
    "seconds", "value", "unit", "ok", "load", "max_late_us", "extra",
)  # fmt: skip
# Where a number is read back from raw.csv.
NUMBERS = {"files": int, "bytes": int, "round": int, "seconds": float, "value": float, "ok": int, "load": float, "max_late_us": int}
VERSIONS = {
    "iperf3": ["iperf3", "--version"], "globus-url-copy": ["globus-url-copy", "-version"], "aria2c": ["aria2c", "--version"],
    "nginx": ["nginx", "-v"], "xrootd": ["xrootd", "-v"], "rsync": ["rsync", "--version"], "rclone": ["rclone", "version"], "ssh": ["ssh", "-V"],
}  # fmt: skip


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
    host.write_csv(folder / "raw.csv", rows)
    described = host.setup(folder, binary, "transfer", VERSIONS)
    rows = read(folder)
    parts = [
        f"# Transfers\n\n{described} Each line is the median of its rounds. Encryption and verification are on for Percale; of the "
        "others only tar over ssh encrypts. Seconds are of the whole command, a new process each, unless a line says otherwise.\n"
    ]
    for name in dict.fromkeys(row["experiment"] for row in rows):
        experiment = importlib.import_module(f"experiments.{name}")
        mine = [row for row in rows if row["experiment"] == name]
        parts.append(f"## {name}\n\n{experiment.__doc__.splitlines()[0]}\n\n{experiment.summarise(mine)}")
        parts += [f"![{plot.stem}]({plot.name})\n" for plot in experiment.draw(mine, folder)]
    (folder / "summary.md").write_text("\n".join(parts))
    print(f"written to {folder}")
