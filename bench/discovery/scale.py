"""Searching among millions of objects with six attributes each, on SQLite and on PostgreSQL, and beside it a table as one would make it by
hand: the same objects in PostgreSQL, with a column of JSON and a GIN index.

The work is done by the program `searches` (crates/catalog/examples/searches.rs), which says what it measures; this keeps it. To search what a
run before has loaded, name its database.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import host  # noqa: E402
import one_site  # noqa: E402

HEADS = {
    "objects_per_s": "objects/s", "found": "found", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "rows": "rows", "seconds": "s",
    "rows_per_s": "rows/s", "first_page_ms": "first page ms",
}  # fmt: skip


def measure(program, objects, rounds, url, rows):
    """Has the program measure one database, and keeps what it says."""
    with tempfile.TemporaryDirectory(prefix="percale-bench-", dir=host.ROOT / "target") as folder:
        urls = [] if url == "sqlite" else [url]
        started = [str(program), str(objects), str(rounds), *urls]
        with subprocess.Popen(started, cwd=folder, stdout=subprocess.PIPE, text=True) as running:
            for line in running.stdout:
                load = round(os.getloadavg()[0], 2)
                print(f"{line.rstrip()}   load {load}", flush=True)
                engine, what, said = line.strip().split(": ", 2)
                values = dict(re.findall(r"(\w+) ([\d.]+)(?:, |$)", said))
                if not values:
                    # It says why there is no figure.
                    continue
                number = {head: float(values[head]) if head in values else None for head in HEADS}
                whole = {head: int(value) for head, value in number.items() if value is not None and value.is_integer()}
                rows.append({"objects": objects, "engine": engine, "what": what, **number, **whole, "load": load})
    if running.returncode:
        sys.exit(f"{' '.join(started)} failed")


def table(rows):
    """Medians of the rounds."""
    return host.medians(rows, {"objects": "objects", "engine": "where", "what": "what"}, HEADS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--rounds", type=int, default=5, help="rounds of searching (default 5); it is loaded once")
    parser.add_argument("--sqlite", type=int, default=1_000_000, help="objects on SQLite (default a million; 0: none)")
    parser.add_argument("--postgres", type=int, default=10_000_000, help="objects on PostgreSQL (default ten million; 0: none)")
    parser.add_argument("--url", default="postgres", help="the database that has them from a run before (default: a new server)")
    parser.add_argument("--out", type=Path, help="where the figures go (default bench/runs/<date>-<machine>-scale)")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    program = host.ROOT / "target/release/examples/searches"
    build = ["cargo", "build", "--release", "--quiet", "--locked", "--package", "percale-catalog", "--example", "searches"]
    subprocess.run(build, cwd=host.ROOT, check=True)
    rows = []
    for objects, url in [(options.sqlite, "sqlite"), (options.postgres, options.url)]:
        if objects:
            measure(program, objects, options.rounds, url, rows)
    print(f"\n{table(rows)}")
    if not options.no_save:
        folder = options.out or host.default_folder("scale")
        folder.mkdir(parents=True, exist_ok=True)
        host.write_csv(folder / "raw.csv", rows)
        described = host.setup(folder, one_site.PERCALE, "scale", {"postgres": ["postgres", "--version"]})
        parts = [f"# Searching at scale\n\n{described} Six attributes each. Medians of the rounds.\n", table(rows)]
        (folder / "summary.md").write_text("\n".join(parts) + "\n")
        print(f"written to {folder}")


if __name__ == "__main__":
    main()
