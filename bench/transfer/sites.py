"""Percale sites for a benchmark: servers, a client's environment, spaces."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from net import ROOT

PERCALE = Path(os.environ.get("PERCALE_BIN", ROOT / "target/release/percale"))


def resident_mb(pid):
    """Largest resident size of a process so far, in MiB; nothing of one that has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Site:
    """One site: a server in its place of the network, one store, its administrator's token."""

    def __init__(self, net, name, folder, settings=""):
        self.net, self.name, self.folder = net, name, Path(folder) / name
        self.folder.mkdir(parents=True)
        self.address = net.address(name)
        self.port = free_port()
        self.settings = settings
        self.server = None
        (self.folder / "client").mkdir()

    @property
    def url(self):
        return f"https://{self.address}:{self.port}"

    def start(self):
        config = self.folder / "percale.toml"
        config.write_text(
            f'[site]\nname = "{self.name}"\nstate_dir = "{self.folder}/state"\n'
            f'[http]\nlisten = "{self.address}:{self.port}"\n{self.settings}\n'
        )
        log = open(self.folder / "server.log", "a")
        env = {name: value for name, value in os.environ.items() if not name.startswith("PERCALE_")}
        self.server = subprocess.Popen(
            self.net.command(self.name, [PERCALE, "serve", "--config", config]), env=env, stdout=log, stderr=log
        )
        deadline = time.monotonic() + 30
        while self.client(self.name, "whoami", check=False).returncode != 0:
            if self.server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"site {self.name} did not start:\n{(self.folder / 'server.log').read_text()[-3000:]}")
            time.sleep(0.05)

    def stop(self, hard=False):
        if self.server:
            self.server.kill() if hard else self.server.terminate()
            self.server.wait()
            self.server = None

    def env(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith("PERCALE_")}
        return env | {
            "PERCALE_URL": self.url,
            "PERCALE_TOKEN_FILE": str(self.folder / "state/admin.token"),
            "PERCALE_CA_FILE": str(self.folder / "state/tls/ca.pem"),
            "XDG_STATE_HOME": str(self.folder / "client"),
            "XDG_CONFIG_HOME": str(self.folder / "client"),
        }

    def client(self, at, *argv, check=True):
        """Runs a command of the client in the place `at`, against this site."""
        command = self.net.command(at, [PERCALE, *argv])
        done = subprocess.run(command, env=self.env(), capture_output=True, text=True)
        if check and done.returncode != 0:
            sys.exit(f"{' '.join(map(str, argv))} at {at} failed:\n{done.stdout}{done.stderr}")
        return done

    def json(self, at, *argv):
        return json.loads(self.client(at, *argv, "--json").stdout)

    def sees(self, path):
        """Waits until this site knows an entry."""
        deadline = time.monotonic() + 60
        while self.client(self.name, "stat", path, check=False).returncode != 0:
            if time.monotonic() > deadline:
                sys.exit(f"{self.name} does not see {path}")
            time.sleep(0.0005)

    def rss_mb(self):
        """Largest resident size of the server so far, in MiB."""
        return resident_mb(self.server.pid)

    def cpu_s(self):
        """Seconds of processor that the server took so far."""
        fields = Path(f"/proc/{self.server.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def fabric(net, names, folder, settings=None):
    """Sites that know each other, each with a store `disk` and a space of its own name. The first one has been joined by
    the others."""
    settings = settings or {}
    sites = [Site(net, name, folder, settings.get(name, "")) for name in names]
    try:
        for site in sites:
            site.start()
            site.client(site.name, "store", "add", "disk", "--posix", site.folder / "store")
            site.client(site.name, "space", "create", site.name)
        for site in sites[1:]:
            line = sites[0].client(names[0], "site", "invite", "-q").stdout.strip().splitlines()[-1]
            site.client(site.name, "site", "join", line)
        for site in sites:
            for other in (other for other in sites if other is not site):
                grant = f"user:admin@site:{site.name}"
                other.client(other.name, "grant", "add", f"percale:/{other.name}", grant, "manage")
        wait_for(sites)
        yield sites
    finally:
        for site in sites:
            site.stop()


def wait_for(sites):
    """Waits until every site sees every space."""
    for site in sites:
        for other in sites:
            site.sees(f"percale:/{other.name}")


def remove(path):
    """Removes a file or a folder, if it is there."""
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
