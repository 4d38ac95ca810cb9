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

    def prepare(self, target):
        """Makes what the tool wants to find at the destination of a directory."""

    def landed(self, _source, target):
        """Where a source ends that was sent to a target."""
        return target

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

    def landed(self, source, target):
        return target / source.name if source.is_dir() else target

    def serve(self):
        config = self.folder / "xrootd.cfg"
        config.write_text(
            f"all.export /\nxrd.port {self.port}\nall.adminpath {self.folder}/admin\nall.pidpath {self.folder}/admin\n"
        )
        os.chmod(config, 0o644)
        return ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "xrootd", "-c", config, "-l", self.folder / "x.log"]

    def url(self, path):
        return f"root://{self.address}:{self.port}/{path}"

    def prepare(self, target):
        target.mkdir()
        os.chmod(target, 0o777)

    def put(self, source, target):
        if source.is_dir():
            return ["xrdcp", "-f", "-N", "-r", "--parallel", "64", f"{source}/", self.url(f"{target}/")]
        return ["xrdcp", "-f", "-N", "-S", "8", source, self.url(target)]

    def get(self, source, target):
        if source.is_dir():
            return ["xrdcp", "-f", "-N", "-r", "--parallel", "64", self.url(f"{source}/"), f"{target}/"]
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


class Rclone(Peer):
    """rclone with 64 files at once, a large one in eight parts: it puts by WebDAV and gets by plain HTTP, from servers of its own."""

    name = "rclone"
    programs = ("rclone",)

    def serve(self):
        # With its cache of directories it takes a file that was removed for one that is there, and sends nothing.
        return ["rclone", "serve", "webdav", "/", "--addr", f"{self.address}:{self.port}", "--dir-cache-time", "0s"]

    def start(self, net, place, folder):
        super().start(net, place, folder)
        # Its WebDAV server lists no directories for plain HTTP.
        self.web_port = free_port()
        listen = ["rclone", "serve", "http", "/", "--addr", f"{self.address}:{self.web_port}", "--dir-cache-time", "0s"]
        log = open(folder / "http.log", "w")
        self.web = subprocess.Popen(net.command(place, listen), stdout=log, stderr=log)
        time.sleep(1)

    def stop(self):
        super().stop()
        self.web.kill()
        self.web.wait()

    def remote(self, kind, port, path):
        return f":{kind}url='http://{self.address}:{port}':{path}"

    def copy(self, source, target, is_directory):
        common = ["--config", "/dev/null", "--transfers", "64", "--checkers", "64", "--multi-thread-streams", "8", "-q"]
        return ["rclone", "copy" if is_directory else "copyto", *common, source, target]

    def put(self, source, target):
        return self.copy(source, self.remote("webdav,vendor=other,", self.port, target), source.is_dir())

    def get(self, source, target):
        return self.copy(self.remote("http,", self.web_port, source), target, source.is_dir())


class TarSsh(Peer):
    """tar through ssh for a directory, the bare bytes through it for a file. One stream; the only peer that encrypts."""

    name = "tar-ssh"
    programs = ("sshd", "ssh", "ssh-keygen", "tar")

    def serve(self):
        # sshd wants this folder, which an init script makes where it runs as a service.
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        for key in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key], check=True)
        os.chmod(self.folder, 0o755)
        config = self.folder / "sshd_config"
        config.write_text(
            f"ListenAddress {self.address}:{self.port}\nHostKey {self.folder}/host\nAuthorizedKeysFile {self.folder}/user.pub\n"
            "PasswordAuthentication no\nPermitRootLogin prohibit-password\nUsePAM no\nStrictModes no\nPidFile none\n"
        )
        return [shutil.which("sshd"), "-D", "-e", "-f", config]

    def ssh(self, command):
        options = f"-F /dev/null -q -p {self.port} -i {self.folder}/user -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
        return f"ssh {options} {self.address} '{command}'"

    def put(self, source, target):
        if source.is_dir():
            unpack = self.ssh(f"mkdir {target} && tar -C {target} -xf -")
            return ["sh", "-c", f"tar -C {source} -cf - . | {unpack}"]
        return ["sh", "-c", f"{self.ssh(f'cat > {target}')} < {source}"]

    def get(self, source, target):
        if source.is_dir():
            return ["sh", "-c", f"mkdir {target} && {self.ssh(f'tar -C {source} -cf - .')} | tar -C {target} -xf -"]
        return ["sh", "-c", f"{self.ssh(f'cat {source}')} > {target}"]


PEERS = (Gridftp, Aria2, Xrootd, Rsync, Rclone, TarSsh)
