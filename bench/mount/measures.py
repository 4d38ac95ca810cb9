"""What is measured in a directory. Each measure calls `record(what, figure, unit, x)`; more is better everywhere."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time

FILE_SIZE = 1024
COLLABORATORS = (1, 2, 4, 8, 16, 24)
# Fields of a line of Bonnie++ 1.98 and later, by their place (bon_csv2txt(1) names them).
BONNIE = {
    "write by block": (11, "KiB/s"), "rewrite": (13, "KiB/s"), "read by block": (17, "KiB/s"), "seeks": (19, "/s"),
    "create": (26, "/s"), "stat": (28, "/s"), "delete": (30, "/s"), "create, random": (32, "/s"), "delete, random": (36, "/s"),
}  # fmt: skip


def settle(at):
    """Waits until what was written is published, which costs no program anything, but the machine."""
    directory = os.open(at, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def create(names, finish=os.close):
    content = b"x" * FILE_SIZE
    for name in names:
        file = os.open(name, os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(file, content)
        finish(file)


def sync_and_close(file):
    os.fsync(file)
    os.close(file)


def look(names):
    for name in names:
        os.stat(name)


def read(names):
    for name in names:
        file = os.open(name, os.O_RDONLY)
        os.read(file, 2 * FILE_SIZE)
        os.close(file)


def remove(names):
    for name in names:
        os.unlink(name)


def metadata(at, options, record):
    """Small files by one process, which takes its own share of the time everywhere."""
    at = at / "small"
    at.mkdir()
    names = [f"{at}/file-{number:06}" for number in range(options.files)]
    list_all = ["ls", "-lR", at]

    def timed(what, count, each):
        began = time.perf_counter()
        each()
        record(what, count / (time.perf_counter() - began), "/s")

    timed("create 1 KiB", len(names), lambda: create(names))
    look(names)
    timed("stat, warm", len(names), lambda: look(names))
    subprocess.run(list_all, stdout=subprocess.DEVNULL, check=True)
    timed("ls -lR, warm", len(names), lambda: subprocess.run(list_all, stdout=subprocess.DEVNULL, check=True))
    timed("open, read, close", len(names), lambda: read(names))
    timed("unlink", len(names), lambda: remove(names))
    durable = [f"{at}/durable-{number:06}" for number in range(options.files // 20)]
    settle(at)
    timed("create 1 KiB, fsync", len(durable), lambda: create(durable, sync_and_close))
    remove(durable)


def blocks(at, options, record):
    """Plain reads and writes of a file by block size: new, there before (in a mount, a version that is published), there before and cut to
    nothing first, as most programs write a file anew, and read.

    Where files share their blocks, also a clone is overwritten. That is what a mount does with a published file of a managed store, since the
    version stays as it is.
    """
    for block in options.blocks:
        file, clone = at / f"data-{block}", at / f"clone-{block}"
        words = [f"--bs={block}k", f"--size={options.mib}m"]
        for what, job in [("write new", "write"), ("overwrite", "write"), ("write anew", "write"), ("read", "read")]:
            if what == "write anew":
                os.truncate(file, 0)
            record(what, fio(f"--filename={file}", f"--rw={job}", *words), "GB/s", block)
            settle(at)
        if subprocess.run(["cp", "--reflink=always", file, clone], capture_output=True).returncode == 0:
            settle(at)
            record("overwrite a clone", fio(f"--filename={clone}", "--rw=write", *words), "GB/s", block)
        clone.unlink(missing_ok=True)
        file.unlink()
        settle(at)


def fio(*words):
    """Runs jobs of fio with plain reads or writes. Returns GB/s of all of them together."""
    command = ["fio", "--name=x", "--ioengine=psync", "--direct=0", "--invalidate=0", "--fallocate=none", "--overwrite=0",
               "--group_reporting", "--output-format=json", *words]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    job = json.loads(done.stdout)["jobs"][0]
    return (job["write"]["bw_bytes"] + job["read"]["bw_bytes"]) / 1e9


def collaborators(at, options, record):
    """Several processes at once: small files in directories of their own, and files of their own in blocks of 512 KiB."""
    for count in COLLABORATORS:
        names = []
        for one in range(count):
            (at / f"by-{count}-{one}").mkdir()
            names.append([f"{at}/by-{count}-{one}/{number}" for number in range(options.files // count)])
        for what, work in [("create", create), ("read small", read), ("unlink", remove)]:
            record(what, sum(map(len, names)) / together(work, names), "/s", count)
            settle(at)
        words = [f"--directory={at}", f"--filename_format=of-{count}-$jobnum", f"--numjobs={count}", "--bs=512k", f"--size={max(options.mib // count, 1)}m"]
        record("write", fio("--rw=write", *words), "GB/s", count)
        settle(at)
        record("read", fio("--rw=read", *words), "GB/s", count)
        for one in range(count):
            (at / f"of-{count}-{one}").unlink()
        settle(at)


def together(work, parts):
    """Does the parts in processes of their own. Returns the seconds from when all were ready until the last one ended."""
    ready = multiprocessing.Barrier(len(parts) + 1)

    def one(part):
        ready.wait()
        work(part)

    processes = [multiprocessing.Process(target=one, args=(part,)) for part in parts]
    for process in processes:
        process.start()
    ready.wait()
    began = time.perf_counter()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            sys.exit("a collaborator failed")
    return time.perf_counter() - began


def bonnie(at, options, record):
    """Bonnie++ without what it does by the character: a large file, and many small ones."""
    if not shutil.which("bonnie++"):
        print("SKIPPED: Bonnie++ is not installed (apt-get install bonnie++)")
        return
    # What takes less than half a second is not told.
    size, thousands = options.mib * 10, max(options.files * 6 // 1024, 1)
    command = ["bonnie++", "-q", "-f", "-d", at, "-s", f"{size}m", "-r", f"{size // 2}m", "-n", f"{thousands}:{FILE_SIZE}:{FILE_SIZE}:1", "-u", "root"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    fields = done.stdout.strip().splitlines()[-1].split(",")
    for what, (place, unit) in BONNIE.items():
        # Plus signs stand where it was too quick.
        if fields[place].replace(".", "").isdigit():
            figure = float(fields[place])
            record(what, figure * 1024 / 1e9 if unit == "KiB/s" else figure, "GB/s" if unit == "KiB/s" else unit)
    settle(at)


# What `x` is, where a measure has one.
AXES = {"blocks": "KiB in a block", "collaborators": "processes at once"}
ALL = {"metadata": metadata, "blocks": blocks, "collaborators": collaborators, "bonnie": bonnie}
