"""Directories to measure: the file system itself, a mount of Percale on it, and the same in other file systems of user space."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import one_site  # noqa: E402


@contextlib.contextmanager
def native(folder):
    (folder / "at").mkdir()
    yield folder / "at"


@contextlib.contextmanager
def percale(folder, *more, store=()):
    with one_site.site(folder, store=store) as env:
        at = folder / "at"
        at.mkdir()
        mount = subprocess.Popen([one_site.PERCALE, "mount", "--json", *more, "percale:/bench", at], env=env, stdout=subprocess.PIPE)
        said = json.loads(mount.stdout.readline())
        if said["stores"] == 0:
            sys.exit("the mount does not see the store")
        try:
            yield at
        finally:
            mount.terminate()
            mount.wait()


def percale_daemon(folder):
    return percale(folder, "--no-passthrough")


def percale_native(folder):
    return percale(folder, store=["--native"])


@contextlib.contextmanager
def peer(folder, command):
    (folder / "below").mkdir()
    (folder / "at").mkdir()
    subprocess.run([str(word) for word in command(folder)], check=True, capture_output=True)
    try:
        yield folder / "at"
    finally:
        subprocess.run(["umount", "-l", folder / "at"], check=True)


def mergerfs(folder):
    return peer(folder, lambda folder: ["mergerfs", folder / "below", folder / "at"])


def unionfs(folder):
    return peer(folder, lambda folder: ["unionfs", "-o", "cow", f"{folder / 'below'}=RW", folder / "at"])


ALL = {
    "native": native,
    "percale": percale,
    "percale, native store": percale_native,
    "percale, no passthrough": percale_daemon,
    "mergerfs": mergerfs,
    "unionfs-fuse": unionfs,
}
TOOLS = {"mergerfs": "mergerfs", "unionfs-fuse": "unionfs"}


def installed(names):
    """Returns those that are here, and says which are not."""
    missing = [name for name in names if name in TOOLS and not shutil.which(TOOLS[name])]
    for name in missing:
        print(f"SKIPPED: {name} is not installed (apt-get install {name})")
    return [name for name in names if name not in missing]


@contextlib.contextmanager
def made(name, parent):
    """Makes a directory of this kind below `parent`, and takes it away with all that is in it."""
    with tempfile.TemporaryDirectory(prefix="percale-bench-", dir=parent) as folder, ALL[name](Path(folder)) as at:
        yield at
