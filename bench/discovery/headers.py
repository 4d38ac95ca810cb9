"""Files with attributes in their headers: how long it takes to put them when these are not read, read behind, and read before the
answer; and how fast they are found then.

The experiments of a paper on workspaces across data centers (its figure 9b and table II) at their size: 4 600 HDF5 files with 5 and 20
attributes; four kinds of queries, of which a share of all files is found, asked by four clients a thousand times. Beside the search stands
what there is without one: h5py, which opens every file.

The paper's files have 25 MB each, more than there is room for: of these a part is put, as many as have the bytes of 4 600 files of 1 MiB.
Files of 8 KiB show what reading headers costs at most.
"""

import argparse
import http.client
import multiprocessing
import os
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import host  # noqa: E402
import one_site  # noqa: E402
import plots  # noqa: E402

PERCALE = one_site.PERCALE
MODES = ("off", "async", "sync")
CLIENTS = 4
PLACES = ("North Pacific", "South Pacific", "North Atlantic", "Indian Ocean", "Arctic")
INSTRUMENTS = ("MODIS", "VIIRS", "AVHRR", "SeaWiFS", "OLCI")
SHARES = (0, 1, 20, 50, 100)


def make(folder, files, attributes, kib=1):
    """Makes the files, each with as much data. All have a serial number, by which any share of them is found."""
    import h5py
    import numpy

    values = numpy.full(kib * 256, 0.5, dtype="f4")

    for number in range(files):
        path = folder / f"{number // 500:03}" / f"granule-{number:06}.h5"
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            file.create_dataset("sst", data=values)
            said = {
                "serial": number,
                "location": PLACES[number % len(PLACES)],
                "instrument": INSTRUMENTS[number % len(INSTRUMENTS)],
                "time_coverage_start": f"2018-{1 + number % 12:02}-{1 + number % 28:02}T00:00:00Z",
                "is_day": bool(number % 2),
            }
            said |= {f"parameter_{n}": number * n / 7 for n in range(attributes - len(said))}
            for name, value in said.items():
                file.attrs[name] = value


def whole(site, query):
    """Reads an answer to its end, as lines. Returns its rows and the seconds until the first of them was there."""
    port, ca, token = site
    if port not in CONNECTIONS:
        CONNECTIONS[port] = http.client.HTTPSConnection("127.0.0.1", port, context=ssl.create_default_context(cafile=ca))
    connection = CONNECTIONS[port]
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/jsonl"}
    began = time.monotonic()
    connection.request("GET", f"/v1/search?{urllib.parse.urlencode({'q': query})}", headers=headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(answer.read().decode())
    rows, first = 0, None
    # The rows are counted, not read: what a client makes of them is its own matter.
    while piece := answer.read1(1 << 20):
        first = first or time.monotonic() - began
        rows += piece.count(b"\n")
    return rows, first or time.monotonic() - began


CONNECTIONS = {}


def client(site, queries):
    """One of the clients: asks all its queries. Returns rows, and seconds until the first row of each."""
    CONNECTIONS.clear()
    answers = [whole(site, query) for query in queries]
    return sum(rows for rows, _ in answers), [first for _, first in answers]


def ask(pool, site, queries):
    """Has the clients ask the same queries. Returns seconds, rows, and the sorted seconds until the first rows."""
    began = time.monotonic()
    answers = pool.starmap(client, [(site, queries)] * CLIENTS)
    took = time.monotonic() - began
    return took, sum(rows for rows, _ in answers), sorted(one for _, times in answers for one in times)


def put(env, folder, space, mode, files, site):
    """Puts all files into a new space. Returns the seconds that took, and those until all were found."""
    one_site.run(PERCALE, "space", "create", space, env=env)
    one_site.run(PERCALE, "space", "set", space, "--extraction", mode, env=env)
    began = time.monotonic()
    took = one_site.run(PERCALE, "put", "-r", f"{folder}/", f"percale:/{space}/", env=env)
    if mode == "off":
        return took, None
    while True:
        rows, _ = whole(site, f"format:* path:/{space}/**")
        if rows == files:
            return took, time.monotonic() - began
        if time.monotonic() - began > 600:
            sys.exit(f"{rows} of {files} files were found after ten minutes")
        time.sleep(0.1)


def put_large(options, record, attributes, kib):
    """Puts files of some megabytes, in each mode at a site of its own, so that all of them have room in memory."""
    files = max(1, options.files * 1024 // max(1024, kib))
    with tempfile.TemporaryDirectory(prefix="percale-bench-", dir=options.folder) as folder:
        made = Path(folder) / "made"
        make(made, files, attributes, kib)
        # The first one finds memory that was never used, which takes longer, and does not count.
        for counts, mode in [(False, "off"), *((True, mode) for mode in MODES)]:
            with tempfile.TemporaryDirectory(dir=folder) as place, one_site.site(Path(place)) as env:
                token = Path(env["PERCALE_TOKEN_FILE"]).read_text().strip()
                site = (int(env["PERCALE_URL"].rsplit(":", 1)[1]), env["PERCALE_CA_FILE"], token)
                load = os.getloadavg()[0]
                took, found = put(env, made, f"{mode}-large", mode, files, site)
                if not counts:
                    continue
                record(f"put, {attributes} attributes, {mode}, {files} x {kib} KiB", took, load)
                if found:
                    record(f"put and found, {attributes} attributes, {mode}, {files} x {kib} KiB", found, load)


def scan(folder):
    """What there is without a search: every file is opened. Returns the seconds."""
    import h5py

    began = time.monotonic()
    found = 0
    for path in folder.rglob("*.h5"):
        with h5py.File(path) as file:
            found += file.attrs["instrument"] == "MODIS"
    return time.monotonic() - began if found else sys.exit("h5py finds nothing")


def round_of(options, record):
    with tempfile.TemporaryDirectory(prefix="percale-bench-", dir=options.folder) as folder:
        folder = Path(folder)
        with one_site.site(folder) as env:
            token = Path(env["PERCALE_TOKEN_FILE"]).read_text().strip()
            site = (int(env["PERCALE_URL"].rsplit(":", 1)[1]), env["PERCALE_CA_FILE"], token)
            for attributes in map(int, options.attributes.split(",")):
                made = folder / f"made-{attributes}"
                make(made, options.files, attributes)
                # The same files for all, read once before.
                subprocess.run(["cat", *map(str, made.rglob("*.h5"))], stdout=subprocess.DEVNULL, check=True)
                for mode in MODES:
                    load = os.getloadavg()[0]
                    took, found = put(env, made, f"{mode}-{attributes}", mode, options.files, site)
                    record(f"put, {attributes} attributes, {mode}", took, load)
                    if found:
                        record(f"put and found, {attributes} attributes, {mode}", found, load)
                record(f"h5py opens all, {attributes} attributes", scan(made), os.getloadavg()[0])
            below = f"path:/sync-{attributes}/**"
            with multiprocessing.Pool(CLIENTS) as pool:
                for what, query in [
                    ("location", 'location like "%Pacific%"'),
                    ("instrument", "instrument=MODIS"),
                    ("date", "time_coverage_start>2018-06-15"),
                    ("day or night", "is_day=true"),
                ]:
                    load = os.getloadavg()[0]
                    took, rows, firsts = ask(pool, site, [f"{query} {below}"] * (options.queries // 10))
                    record(f"{what}, {rows // len(firsts)} of {options.files} found", took, load, rows, firsts)
                for share in SHARES:
                    load = os.getloadavg()[0]
                    queries = options.queries if share < 20 else options.queries // 10
                    query = f"serial<{options.files * share // 100} {below}"
                    took, rows, firsts = ask(pool, site, [query] * queries)
                    record(f"{share} % found, {CLIENTS} x {queries} queries", took, load, rows, firsts)
    for kib in filter(None, map(int, options.large.split(","))):
        put_large(options, record, attributes, kib)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--files", type=int, default=4600, help="how many files (default 4600)")
    parser.add_argument("--attributes", default="5,20", help="attributes of each, several with commas between (default 5,20)")
    parser.add_argument("--large", default="1024,25600", help="KiB of the files of which bytes are what counts (default 1024,25600; 0: none)")
    parser.add_argument("--queries", type=int, default=1000, help="queries of each client (default 1000; a tenth where many rows are found)")
    parser.add_argument("--folder", type=Path, default=None, help="where files and catalog lie (default: memory, if there is a place)")
    parser.add_argument("--out", type=Path, help="where the figures go (default bench/runs/<date>-<machine>-headers)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    if not PERCALE.exists():
        sys.exit(f"{PERCALE} is not there: build it, or name another in PERCALE_BIN")
    memory_disk = Path("/dev/shm")
    options.folder = options.folder or (memory_disk if os.access(memory_disk, os.W_OK) else host.ROOT / "target")
    rows = []
    for number in range(options.rounds):

        def record(what, seconds, load, found=None, firsts=None):
            at = lambda part: round(firsts[len(firsts) * part // 100] * 1000, 2) if firsts else None
            rows.append({"round": number, "what": what, "seconds": round(seconds, 3), "rows_per_s": found and round(found / seconds),
                         "first_p50_ms": at(50), "first_p99_ms": at(99), "load": round(load, 2)})  # fmt: skip
            more = f"   {rows[-1]['rows_per_s'] or 0:9} rows/s   first p50 {at(50)} ms, p99 {at(99)} ms" if firsts else ""
            print(f"{number}  {what:45} {seconds:8.3f} s   load {load:.2f}{more}", flush=True)

        round_of(options, record)
    print(f"\n{table(rows)}")
    if not options.no_save:
        save(options.out or host.default_folder("headers"), rows, options)


def table(rows):
    """Medians of the rounds."""
    heads = {"seconds": "s", "rows_per_s": "rows/s", "first_p50_ms": "first row, p50 ms", "first_p99_ms": "p99 ms"}
    return host.medians(rows, {"what": "what"}, heads)


def save(folder, rows, options):
    folder.mkdir(parents=True, exist_ok=True)
    host.write_csv(folder / "raw.csv", rows)
    described = host.setup(folder, PERCALE, "headers")
    series = {}
    for row in rows:
        if row["what"].startswith("put, ") and not row["what"].endswith("KiB"):
            _, attributes, mode = row["what"].split(", ")
            series.setdefault(mode, []).append((int(attributes.split()[0]), row["seconds"]))
    drawn = plots.curves(folder / "put.svg", f"Put of {options.files} HDF5 files", "attributes", "s", series)
    parts = [f"# Headers\n\n{described} {options.files} HDF5 files. Medians of the rounds.\n"]
    parts += [table(rows), *(f"\n![{plot.stem}]({plot.name})\n" for plot in drawn)]
    (folder / "summary.md").write_text("\n".join(parts))
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
