"""The network between the sites of a benchmark: emulated, or loopback."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Several benchmarks may run on one host, each in a network of its own.
INSTANCE = os.environ.get("PERCALE_WAN_INSTANCE", f"pc{os.getpid()}")


def emulator():
    """The emulator's command, or nothing. PERCALE_WAN names it; else it is looked for beside the project."""
    named = os.environ.get("PERCALE_WAN")
    found = Path(named) if named else ROOT.parent / "shared/wan/wan"
    return found if found.is_file() and os.geteuid() == 0 and shutil.which("ip") else None


class Loopback:
    """Every site on this host."""

    name = "loopback"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def command(self, _site, argv):
        return [str(word) for word in argv]

    def address(self, _site):
        return "127.0.0.1"

    def late_us(self):
        return 0

    def line_bytes(self):
        return 0


class Emulated:
    """A network namespace for each site, joined by links of their own delay and rate."""

    def __init__(self, sites, rtt="50ms", rate="1.2gbit", loss="0", behind_nat=(), tcpmem=None):
        self.wan = emulator()
        if self.wan is None:
            print("SKIPPED: the emulated network is not here (PERCALE_WAN names its command), or this is not root", file=sys.stderr)
            sys.exit(0)
        self.sites, self.rtt, self.rate, self.loss = sites, rtt, rate, loss
        self.behind_nat, self.tcpmem = behind_nat, tcpmem
        self.name = f"{rtt} {rate}" + (f" loss {loss}" if loss != "0" else "") + (f" tcpmem {tcpmem}" if tcpmem else "")

    def run(self, *argv):
        done = subprocess.run([self.wan, "-i", INSTANCE, *argv], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"the emulator failed: wan {' '.join(argv)}\n{done.stderr}")
        return done.stdout

    def __enter__(self):
        subprocess.run([self.wan, "-i", INSTANCE, "down"], capture_output=True)
        nat = [word for site in self.behind_nat for word in ("--nat", site)]
        memory = ["--tcpmem", str(self.tcpmem)] if self.tcpmem else []
        names = ",".join(self.sites)
        up = ["up", "--names", names, "--rtt", self.rtt, "--rate", self.rate, "--loss", self.loss, *nat, *memory]
        for _ in range(3):
            # It gives its process two seconds, which a busy machine may not.
            if subprocess.run([self.wan, "-i", INSTANCE, *up], capture_output=True).returncode == 0:
                return self
        self.run(*up)
        return self

    def __exit__(self, *_):
        subprocess.run([self.wan, "-i", INSTANCE, "down"], capture_output=True)

    def command(self, site, argv):
        return ["ip", "netns", "exec", f"{INSTANCE}-{site}", *map(str, argv)]

    def address(self, site):
        return self.run("ip", site).strip()

    def set(self, a, b, *link):
        self.run("set", a, b, *link)

    def paths(self):
        lines = [line.split() for line in self.run("status").splitlines() if line.startswith("path ")]
        return {(line[1], line[2]): line for line in lines}

    def late_us(self):
        """The latest delivery so far, in µs: a run with tens of milliseconds was disturbed."""
        return max(int(line[-1]) for line in self.paths().values())

    def line_bytes(self):
        """Bytes that went over all links so far."""
        return sum(int(line[4]) for line in self.paths().values())
