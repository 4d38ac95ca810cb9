"""Plots as SVG, the same bytes for the same figures. Without matplotlib there are none, and that is said."""

import sys

try:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot
except ImportError:
    matplotlib = None

_told = False


def _figure(title, x_label, y_label):
    global _told
    if matplotlib is None:
        if not _told:
            print("no matplotlib here, so no plots: scripts/bootstrap bench installs it", file=sys.stderr)
        _told = True
        return None, None
    matplotlib.rcParams["svg.hashsalt"] = "percale"
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    return figure, axes


def _save(figure, axes, path):
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize="small")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return [path]


def curves(path, title, x_label, y_label, series, log=False, fits=None):
    """Draws points {name: [(x, y), …]} with a line through the medians at each x, or the straight lines {name: (a, b)} where there are
    fits. Returns the files written."""
    figure, axes = _figure(title, x_label, y_label)
    if figure is None:
        return []
    for name, points in series.items():
        xs = sorted({x for x, _ in points})
        dots = axes.plot([x for x, _ in points], [y for _, y in points], "o", markersize=3, alpha=0.5)
        color = dots[0].get_color()
        if fits and name in fits:
            a, b = fits[name]
            axes.plot(xs, [a + b * x for x in xs], "-", color=color, label=name)
        else:
            middle = [_median([y for other, y in points if other == x]) for x in xs]
            axes.plot(xs, middle, "-", color=color, label=name)
    if log:
        every = sorted({x for points in series.values() for x, _ in points})
        axes.set_xscale("log")
        axes.set_xticks(every, [f"{x:g}" for x in every])
        axes.minorticks_off()
    return _save(figure, axes, path)


def bars(path, title, y_label, groups):
    """Draws groups of bars {group: {bar: value}}. Returns the files written."""
    figure, axes = _figure(title, "", y_label)
    if figure is None:
        return []
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    width = 0.8 / max(len(names), 1)
    for at, name in enumerate(names):
        where = [(number, group[name]) for number, group in enumerate(groups.values()) if name in group]
        axes.bar([number + (at - (len(names) - 1) / 2) * width for number, _ in where], [value for _, value in where], width, label=name)
    axes.set_xticks(range(len(groups)), list(groups), rotation=20 if len(groups) > 4 else 0)
    return _save(figure, axes, path)


def _median(values):
    values = sorted(values)
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
