"""One module for each experiment, with

- `NET`: the network it is made for, `wan` or `loopback`;
- `measure(options, lines)`: does it, adding lines to a `record.Record`;
- `summarise(rows)`: the lines of one experiment as Markdown;
- `draw(rows, folder)`: its plots, as a list of files.

The first line of a module's docstring says what it shows.
"""

import statistics

ALL = ("against", "sizes", "shapes", "model", "concurrency", "buffers", "start", "kill", "outage", "relay", "verification", "transports", "memory", "mounted")


def groups(rows, *columns):
    """The lines by the values of some columns, in their order."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def table(rows, *columns):
    """Medians for each combination of columns, as a Markdown table."""
    columns = ("net", "medium", *columns)
    heads = [*columns, "median s", "best s", "median", "n", "load ≤", "late µs ≤"]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for key, group in groups(rows, *columns).items():
        good = [row for row in group if row["ok"]]
        cells = [str(value) for value in key]
        if good:
            seconds = [row["seconds"] for row in good]
            value = statistics.median(row["value"] for row in good)
            cells += [f"{statistics.median(seconds):.3f}", f"{min(seconds):.3f}", f"{value:.1f} {good[0]['unit']}"]
        else:
            cells += ["failed", "", ""]
        failed = f" of {len(group)}" if len(good) < len(group) else ""
        cells += [f"{len(good)}{failed}", f"{max(row['load'] for row in group):.1f}", str(max(row["max_late_us"] for row in group))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def slug(*words):
    """A file name of a few words."""
    return "-".join(word for text in words for word in "".join(c if c.isalnum() or c == "." else " " for c in str(text)).split())


def places(rows):
    """The lines by network and medium, each with a text for a title and one for a file name."""
    for (net, medium), group in groups(rows, "net", "medium").items():
        yield f"{net}, {medium}", slug(net, medium), group


def good(rows):
    return [row for row in rows if row["ok"]]
