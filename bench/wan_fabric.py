"""Three sites with an emulated wide-area network between them, one behind a firewall: put, list, read, copy, check.

Needs root and the emulator `wan`, which makes network namespaces with delay and rate between them; PERCALE_WAN names it if it
is not on the PATH. Without either it says so and does nothing. Anything that goes wrong ends it with an error, so that it is a
test too; the figures are printed beside what the link carries.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import one_site

NAMES = ("alps", "baltic", "coast")
PORT = 8443
# Of 1500 bytes on the line, TCP payload has this part.
PAYLOAD = 0.965


class Network:
    def __init__(self, program, options):
        self.command = [program, "-i", f"percale{os.getpid()}"]
        self.options = options

    def __enter__(self):
        options = self.options
        has_firewall = not options.no_nat and shutil.which("nft") is not None
        if not has_firewall:
            print(f"NOTE: no firewall in front of {NAMES[-1]} ('nft' is needed for it); it only dials out all the same", file=sys.stderr)
        nat = ["--nat", NAMES[-1]] if has_firewall else []
        self.run("up", "--names", ",".join(NAMES), "--rtt", options.rtt, "--rate", options.rate, "--tcpmem", "67108864", *nat)
        return self

    def __exit__(self, *_):
        self.run("down")

    def run(self, *words):
        done = subprocess.run([*self.command, *words], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"wan {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout


class Site:
    def __init__(self, network, number, folder, percale, outgoing_only):
        self.name, self.folder = NAMES[number], folder / NAMES[number]
        self.address = f"10.77.{number + 1}.1"
        self.inside = [*network.command, "exec", self.name]
        self.percale = percale
        self.folder.mkdir()
        state = self.folder / "state"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("PERCALE")} | {
            "PERCALE_URL": f"https://{self.address}:{PORT}",
            "PERCALE_TOKEN_FILE": str(state / "admin.token"),
            "PERCALE_CA_FILE": str(state / "tls/ca.pem"),
            "XDG_STATE_HOME": str(self.folder / "client"),
            "XDG_CONFIG_HOME": str(self.folder / "client"),
        }
        self.log = open(self.folder / "server.log", "w")
        self.server = subprocess.Popen(
            [*self.inside, percale, "serve", "--state-dir", state, "--listen", f"{self.address}:{PORT}", "--site-name", self.name],
            env=self.env | {"PERCALE__FEDERATION__OUTGOING_ONLY": str(outgoing_only).lower()},
            stdout=self.log, stderr=self.log,
        )
        self.soon("whoami")
        self.ask("store", "add", "disk", "--posix", self.folder / "store")

    def attempt(self, *words):
        command = [str(word) for word in (*self.inside, self.percale, *words)]
        return subprocess.run(command, env=self.env, capture_output=True)

    def ask(self, *words):
        """Returns what a command prints, and ends everything if it fails."""
        done = self.attempt(*words)
        if done.returncode != 0:
            text = (done.stdout[-2000:] + done.stderr[-4000:]).decode(errors="replace")
            sys.exit(f"percale {' '.join(map(str, words))} at {self.name} failed:\n{text}")
        return done.stdout

    def soon(self, *words, until=lambda said: True):
        """Asks until it succeeds and says what it should."""
        deadline = time.monotonic() + 60
        while True:
            done = self.attempt(*words)
            if done.returncode == 0 and until(done.stdout):
                return done.stdout
            if time.monotonic() > deadline or self.server.poll() is not None:
                sys.exit(f"percale {' '.join(map(str, words))} at {self.name} never succeeded:\n{done.stderr.decode(errors='replace')}\n{(self.folder / 'server.log').read_text()[-4000:]}")
            time.sleep(0.2)

    def stop(self):
        self.server.terminate()
        self.server.wait()
        self.log.close()


def timed(work):
    began = time.monotonic()
    work()
    return time.monotonic() - began


def report(what, seconds, size, count=None):
    files = f", {count / seconds:8.0f} files/s" if count else ""
    print(f"{what:<58} {seconds:7.2f} s {size / seconds / 1e6:8.1f} MB/s{files}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rtt", default="50ms", help="round trip (default 50ms)")
    parser.add_argument("--rate", default="1.2gbit", help="of each link (default 1.2gbit)")
    parser.add_argument("--large", type=int, default=200, help="megabytes of the large file (default 200)")
    parser.add_argument("--small", type=int, default=1000, help="small files of 10 kB (default 1000)")
    parser.add_argument("--percale", type=Path, default=one_site.PERCALE, help="the binary (default that of the release build)")
    parser.add_argument("--no-nat", action="store_true", help="no firewall in front of the third site, which only dials out all the same")
    options = parser.parse_args()
    program = os.environ.get("PERCALE_WAN") or shutil.which("wan")
    if program is None or not Path(program).exists() or os.geteuid() != 0:
        print("SKIPPED: needs root and the network emulator 'wan'; name it in PERCALE_WAN", file=sys.stderr)
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        network = stack.enter_context(Network(program, options))
        sites = []
        for number in range(len(NAMES)):
            site = Site(network, number, folder, options.percale.resolve(), number == len(NAMES) - 1)
            stack.callback(site.stop)
            sites.append(site)
        alps = sites[0]
        for site in sites[1:]:
            site.ask("site", "join", alps.ask("-q", "site", "invite").decode().strip())
        for site in sites:
            for other in sites:
                if other is not site:
                    shown = site.soon("site", "show", "--json", other.name, until=lambda said: json.loads(said)["route"] != "unreachable")
                    shown = json.loads(shown)
                    print(f"{site.name} reaches {other.name}: {shown['route']}, {shown.get('rtt_ms') or 0:.1f} ms", flush=True)
        tree = folder / "tree"
        tree.mkdir()
        one_site.write_random(tree / "large", options.large * 1_000_000)
        for number in range(options.small):
            path = tree / "small" / f"{number // 100:03}" / f"{number:05}"
            path.parent.mkdir(parents=True, exist_ok=True)
            one_site.write_random(path, 10_000)
        large, small, all_files = options.large * 1_000_000, options.small * 10_000, options.small + 1
        for home in sites:
            space = f"percale:/at-{home.name}"
            home.ask("space", "create", f"at-{home.name}")
            for other in sites:
                if other is not home:
                    home.ask("grant", "add", space, f"user:admin@site:{other.name}", "manage")
            report(f"{home.name}: put the large file at home", timed(lambda: home.ask("put", tree / "large", f"{space}/")), large)
            report(f"{home.name}: put the small files at home", timed(lambda: home.ask("put", "-r", tree / "small", f"{space}/")), small, options.small)
            for other in sites:
                if other is home:
                    continue
                last = f"{space}/small/{(options.small - 1) // 100:03}/{options.small - 1:05}"
                other.soon("stat", last)
                took = timed(lambda: other.ask("ls", "-R", space))
                print(f"{other.name}: list {space} {took:.2f} s", flush=True)
                read = other.ask("cat", last)
                assert read == (tree / "small" / last.split("/small/")[1]).read_bytes(), last
                # A put at another site: bytes there, the name at the home.
                took = timed(lambda: other.ask("put", tree / "large", f"{space}/from-{other.name}"))
                report(f"{other.name}: put the large file there, named by {home.name}", took, large)
                took = timed(lambda: other.ask("put", "-r", tree / "small", f"{space}/many-from-{other.name}/"))
                report(f"{other.name}: put the small files there, named by {home.name}", took, small, options.small)
                for what, size, count in (("large", large, None), ("small", small, options.small)):
                    took = timed(lambda: other.ask("replicate", f"{space}/{what}", "--to", other.name))
                    report(f"{home.name} -> {other.name}: replicate {what}", took, size, count)
                took = timed(lambda: home.ask("replicate", f"{space}/from-{other.name}", "--to", home.name))
                report(f"{other.name} -> {home.name}: replicate large", took, large)
                took = timed(lambda: other.ask("cat", f"{space}/large"))
                report(f"{other.name}: read the large file from its own copy", took, large)
            report(f"{home.name}: check --deep at all sites", timed(lambda: home.ask("check", "--deep", space)), large + small, all_files)
        print(network.run("status"))


if __name__ == "__main__":
    main()
