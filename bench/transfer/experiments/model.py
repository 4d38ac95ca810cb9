"""The Connector model T = S0 + N·t0 + B/R: 1 GB as 50 to 1000 files, and 1 to 19 files of 50 MB.

The first series has one amount of bytes, so that its slope over the number of files is the cost of a file, t0; Pearson's r says whether time
follows the number at all (the Connector paper reports 0.97 to 0.999; near 0 means that a file costs too little to be seen). The second one
goes back to no files at all, which leaves the cost of a start, S0. Both together give S0, t0 and R at once. ± is half of a 95 % interval.
"""

import plots
from lab import lab

from experiments import good, groups, places

NET = "wan"
ACTIONS = ("put", "get", "replicate")
FILES = tuple(f"c{count}" for count in (50, 100, 200, 400, 600, 800, 1000))
STARTS = tuple(f"s{count}" for count in range(1, 20, 2))
QUICK = ("q50", "q200", "q400", "s1", "s3", "s5")


def measure(options, lines):
    with lab(options, lines) as made:
        for name in options.sets or (QUICK if options.quick else FILES + STARTS):
            for number in range(options.rounds):
                made.cycle(name, number, ACTIONS)
            made.drop(name)


def series(rows):
    """The lines of fixed bytes, of the larger amount if there are two, and those of a growing number of equal files."""
    kind = lambda letter: [row for row in rows if row["case"].startswith(letter)]
    return kind("c") or kind("q"), kind("s")


def summarise(rows):
    try:
        import fit
    except ImportError as error:
        return f"No fit: {error}. `scripts/bootstrap bench` installs what it needs.\n"
    heads = "| net | medium | action | r | t0, ms a file (fixed bytes) | S0, s (50 MB files) | S0, s (both) | t0, ms (both) | R, MB/s (both) | n |"
    lines = [heads, "|---" * heads.count(" | ") + "|---|"]
    for (net, medium, action), group in groups(good(rows), "net", "medium", "action").items():
        fixed, starts = series(group)
        cells = [net, medium, action]
        column = lambda part, name: [row[name] for row in part]
        if len({row["files"] for row in fixed}) > 2:
            found, r = fit.line(column(fixed, "files"), column(fixed, "seconds"))
            cells += [f"{r:.3f}", f"{found.coefficients[1] * 1e3:.3f} ± {found.half_widths[1] * 1e3:.3f}"]
        else:
            cells += ["", ""]
        if len({row["files"] for row in starts}) > 2:
            found, _ = fit.line(column(starts, "files"), column(starts, "seconds"))
            cells.append(f"{found.coefficients[0]:.3f} ± {found.half_widths[0]:.3f}")
        else:
            cells.append("")
        if fixed and len({row["bytes"] for row in group}) > 1 and len(group) > 4:
            found = fit.model(column(group, "files"), column(group, "bytes"), column(group, "seconds"))
            (start, each, byte), half = found.coefficients, found.half_widths
            rate = f"{1e-6 / byte:.1f} ± {1e-6 / byte * half[2] / byte:.1f}" if byte > 0 else "lost in the noise"
            cells += [f"{start:.3f} ± {half[0]:.3f}", f"{each * 1e3:.3f} ± {half[1] * 1e3:.3f}", rate]
        else:
            cells += ["", "", ""]
        lines.append("| " + " | ".join([*cells, str(len(group))]) + " |")
    return "\n".join(lines) + "\n"


def draw(rows, folder):
    try:
        import fit
    except ImportError:
        return []
    files = []
    for title, slug, group in places(good(rows)):
        for part, what, name in zip(series(group), ("The same bytes as more files", "More files of 50 MB"), ("files", "start"), strict=True):
            points = {action: [(row["files"], row["seconds"]) for row in each] for (action,), each in groups(part, "action").items()}
            points = {action: each for action, each in points.items() if len({x for x, _ in each}) > 1}
            fits = {action: tuple(fit.line(*zip(*each, strict=True))[0].coefficients) for action, each in points.items()}
            if points:
                files += plots.curves(folder / f"model-{name}-{slug}.svg", f"{what} ({title})", "files", "seconds", points, fits=fits)
    return files
