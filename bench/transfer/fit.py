"""Least squares for the time of a transfer: T = S0 + N·t0 + B/R, N files of B bytes together (equation 4 of the Connector paper)."""

import numpy
from scipy import stats


class Fit:
    """Coefficients of `y = X·b` with the half widths of their 95 % intervals."""

    def __init__(self, columns, y):
        x, y = numpy.column_stack(columns), numpy.asarray(y, dtype=float)
        # Columns differ by ten powers of ten: without scaling the inverse would be noise.
        scale = numpy.abs(x).max(axis=0)
        scale[scale == 0] = 1
        inverse = numpy.linalg.pinv((x / scale).T @ (x / scale))
        self.coefficients = inverse @ (x / scale).T @ y / scale
        self.freedom = len(y) - x.shape[1]
        left = y - x @ self.coefficients
        self.error = numpy.sqrt(left @ left / self.freedom) if self.freedom > 0 else numpy.nan
        quantile = stats.t.ppf(0.975, self.freedom) if self.freedom > 0 else numpy.nan
        self.half_widths = quantile * self.error * numpy.sqrt(numpy.diag(inverse)) / scale


def line(x, y):
    """`y = a + b·x`: the fit of (a, b), and Pearson's r of x and y (nan where one of them never varies)."""
    fit = Fit([numpy.ones(len(x)), x], y)
    varies = len(set(x)) > 1 and len(set(y)) > 1
    return fit, float(numpy.corrcoef(x, y)[0, 1]) if varies else float("nan")


def model(files, sizes, seconds):
    """The fit of (S0 in seconds, t0 in seconds a file, 1/R in seconds a byte)."""
    return Fit([numpy.ones(len(files)), files, sizes], seconds)
