"""The tools that people use today, measured in the same run where they are installed. All without encryption.

Each is a class with `start(net, server, folder)`, `stop()` and what it can do: `put(client, source, target)` and
`get(client, source, target)` return the command that runs at `client`. Sources are paths on the host, which all places share.
"""

import contextlib
import os
import shutil
import subprocess
import time

from sites import free_port


class Peer:
    """A server at one place of the network."""

    programs = ()
    sets = None
    server = None

    @classmethod
    def is_installed(cls):
        return all(shutil.which(program) for program in cls.programs)

    def start(self, net, place, folder):
        self.net, self.place, self.folder = net, place, folder
        self.address, self.port = net.address(place), free_port()
        folder.mkdir(exist_ok=True)
        os.chmod(folder, 0o777)
        log = open(folder / "log", "w")
        os.chmod(folder / "log", 0o666)
        self.server = subprocess.Popen(net.command(place, self.serve()), stdout=log, stderr=log, cwd=folder)
        time.sleep(1)

    def stop(self):
        if self.server:
            self.server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.server.wait(5)
            self.server.kill()
            self.server.wait()

    def clean(self):
        """Removes what was put."""
        for entry in self.folder.glob("t-*"):
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()


class Gridftp(Peer):
    """globus-url-copy, as its users run it: parallel streams for one file, concurrency and pipelining for many."""

    name = "globus-url-copy"
    programs = ("globus-gridftp-server", "globus-url-copy")

    def serve(self):
        return ["globus-gridftp-server", "-aa", "-anonymous-user", "nobody", "-p", self.port, "-l", self.folder / "gridftp.log"]

    def url(self, path):
        return f"ftp://{self.address}:{self.port}{path}"

    def put(self, source, target):
        if source.is_dir():
            return ["globus-url-copy", "-q", "-r", "-cd", "-cc", "16", "-pp", f"file://{source}/", self.url(f"{target}/")]
        return ["globus-url-copy", "-q", "-p", "4", f"file://{source}", self.url(target)]

    def get(self, source, target):
        if source.is_dir():
            return ["globus-url-copy", "-q", "-r", "-cd", "-cc", "16", "-pp", self.url(f"{source}/"), f"file://{target}/"]
        return ["globus-url-copy", "-q", "-p", "8", self.url(source), f"file://{target}"]


class Xrootd(Peer):
    """xrdcp with eight streams, and 64 files at once."""

    name = "xrdcp"
    programs = ("xrootd", "xrdcp", "setpriv")

    def serve(self):
        config = self.folder / "xrootd.cfg"
        config.write_text(
            f"all.export /\nxrd.port {self.port}\nall.adminpath {self.folder}/admin\nall.pidpath {self.folder}/admin\n"
        )
        os.chmod(config, 0o644)
        return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "xrootd", "-c", config, "-l", self.folder / "x.log"]

    def url(self, path):
        return f"root://{self.address}:{self.port}/{path}"

    def put(self, source, target):
        if source.is_dir():
            return ["xrdcp", "-f", "-N", "-r", "--parallel", "64", source, self.url(target)]
        return ["xrdcp", "-f", "-N", "-S", "8", source, self.url(target)]

    def get(self, source, target):
        if source.is_dir():
            return ["xrdcp", "-f", "-N", "-r", "--parallel", "64", self.url(source), target]
        return ["xrdcp", "-f", "-N", "-S", "8", self.url(source), target]


class Rsync(Peer):
    """An rsync daemon: one stream."""

    name = "rsync"
    programs = ("rsync",)

    def serve(self):
        config = self.folder / "rsyncd.conf"
        config.write_text("use chroot = no\nuid = root\ngid = root\n[all]\npath = /\nread only = no\n")
        return ["rsync", "--daemon", "--no-detach", f"--port={self.port}", f"--config={config}"]

    def url(self, path):
        return f"rsync://{self.address}:{self.port}/all{path}"

    def put(self, source, target):
        slash = "/" if source.is_dir() else ""
        return ["rsync", "-a", "-W", "--inplace", f"{source}{slash}", self.url(f"{target}{slash}")]

    def get(self, source, target):
        slash = "/" if source.is_dir() else ""
        return ["rsync", "-a", "-W", "--inplace", self.url(f"{source}{slash}"), f"{target}{slash}"]


class Aria2(Peer):
    """aria2c from nginx: sixteen connections. Downloads only."""

    name = "aria2c"
    programs = ("aria2c", "nginx")

    def serve(self):
        config = self.folder / "nginx.conf"
        config.write_text(
            f"daemon off; user root; pid {self.folder}/pid; error_log {self.folder}/error.log; worker_processes 2;\n"
            "events {}\nhttp { access_log off; sendfile on; keepalive_requests 100000;\n"
            f"server {{ listen {self.address}:{self.port}; root /; }} }}\n"
        )
        return ["nginx", "-c", config, "-p", self.folder]

    def put(self, _source, _target):
        return None

    def get(self, source, target):
        common = ["aria2c", "-q", "--allow-overwrite=true", "--file-allocation=none", "--auto-file-renaming=false"]
        if source.is_dir():
            urls = self.folder / "urls"
            files = sorted(file.name for file in source.iterdir())
            urls.write_text("".join(f"http://{self.address}:{self.port}{source}/{file}\n" for file in files))
            return [*common, "-j16", "-d", target, "-i", urls]
        url = f"http://{self.address}:{self.port}{source}"
        return [*common, "-x16", "-s16", "-k1M", "-d", target.parent, "-o", target.name, url]


PEERS = (Gridftp, Aria2, Xrootd, Rsync)
