"""The machine that a benchmark runs on, and how its figures are kept."""

import csv
import datetime
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What tells whether a machine is as another one.
SYSCTLS = ("net/ipv4/tcp_congestion_control", "net/ipv4/tcp_rmem", "net/ipv4/tcp_wmem", "net/core/wmem_max", "net/core/default_qdisc")


def cpu():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine():
    """A short name of processor and cores, such as `amd-epyc-7763-2c`."""
    words = re.sub(r"\((R|TM|C)\)|\d+-Core|Processor|CPU|@.*", " ", cpu(), flags=re.I)
    return "-".join([*re.findall(r"[a-z0-9]+", words.lower()), f"{os.cpu_count()}c"])


def default_folder(*more):
    """Where the figures of today go."""
    return ROOT / "bench/runs" / "-".join([datetime.date.today().isoformat(), machine(), *more])


def medium(folder):
    """`memory`, or the file system that the files lie on."""
    done = subprocess.run(["findmnt", "-no", "FSTYPE", "-T", folder], capture_output=True, text=True)
    # Of several that lie over each other, the last one is seen.
    kind = next(reversed(done.stdout.split()), "unknown")
    return "memory" if kind == "tmpfs" else kind


def write_csv(path, rows):
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows(rows)


def medians(rows, by, heads):
    """A table of the medians of the rounds, as Markdown. `by`: the columns that tell lines from each other; `heads` {column: its title}."""
    lines = ["| " + " | ".join([*by.values(), *heads.values(), "load"]) + " |", "|---" * (len(by) + len(heads) + 1) + "|"]
    for line in dict.fromkeys(tuple(row[column] for column in by) for row in rows):
        mine = [row for row in rows if tuple(row[column] for column in by) == line]
        middle = [statistics.median(row[column] for row in mine) if mine[0][column] is not None else "" for column in heads]
        loads = [row["load"] for row in mine]
        shown = [f"{value:,}" if isinstance(value, int) else str(value) for value in (*line, *middle)]
        lines.append("| " + " | ".join([*shown, f"{min(loads)}–{max(loads)}"]) + " |")
    return "\n".join(lines)


def _first_line(argv):
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return next(iter((done.stdout or done.stderr).strip().splitlines()), "")


def setup(folder, binary, program, tools=()):
    """Describes the machine, and the versions of those `tools` {name: command that says its version} that are installed.

    Writes it to setup.json in the folder, and returns what is said of it above the figures.
    """
    described = {
        "date": datetime.date.today().isoformat(),
        "processor": f"{os.cpu_count()} x {cpu()}",
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30,
        "kernel": platform.release(),
        "commit": _first_line(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]),
        "percale": _first_line([binary, "--version"]),
        "sysctl": {name: Path(f"/proc/sys/{name}").read_text().strip() for name in SYSCTLS if Path(f"/proc/sys/{name}").exists()},
        "tools": {name: _first_line(argv) for name, argv in dict(tools).items() if shutil.which(argv[0])},
        "command": f"bench/run {program} {' '.join(sys.argv[1:])}".rstrip(),
    }
    (folder / "setup.json").write_text(json.dumps(described, indent=1) + "\n")
    return (
        f"{described['date']}, {described['processor']}, {described['memory_gib']} GiB, Linux {described['kernel']}; "
        f"commit {described['commit']}; more in setup.json."
    )
