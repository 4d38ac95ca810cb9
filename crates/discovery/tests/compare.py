"""Compares what the readers of headers find with what h5py and netCDF4 see.

    compare.py HEADERS FOLDER...

HEADERS is the example program of this crate. All files below the folders that are HDF5 or NetCDF are read by it and by the libraries: each
attribute that these see must be there, with its values and their types. Prints what differs; the exit code says whether anything does.
"""

import json
import math
import os
import subprocess
import sys
import warnings

import h5py
import netCDF4
import numpy as np

# Most values of an attribute that are kept, and bytes of a text.
MOST_VALUES, MOST_TEXT = 256, 8192
# By which NetCDF-4 keeps dimensions in HDF5, and which are not read.
OF_DIMENSIONS = {"CLASS", "DIMENSION_LIST", "NAME", "REFERENCE_LIST", "_NCProperties", "_Netcdf4Coordinates",
                 "_Netcdf4Dimid", "_nc3_strict"}
NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
# What the libraries themselves read wrongly, looked at with h5dump: text behind the zero byte that ends it, and lists of numbers
# whose bytes are in the other order.
KNOWN = {("MLS-Aura_L2GP-IWC_v02-21-c02_2007d210.he5", "HDFEOS INFORMATION.HDFEOSVersion"),
         ("attr_datatypes.hdf5", "vlen_uint64")}


def is_sample(path):
    with open(path, "rb") as file:
        begin = file.read(4)
    return begin in (b"CDF\1", b"CDF\2", b"CDF\5") or h5py.is_hdf5(path)


def samples(folders):
    for folder in folders:
        for place, _, names in os.walk(folder):
            for name in sorted(names):
                path = os.path.join(place, name)
                if os.path.isfile(path) and not os.path.islink(path) and is_sample(path):
                    yield path


def name_of(name):
    """The name that an attribute gets: at most 255 bytes, without control characters and back quotes."""
    is_control = lambda char: ord(char) < 32 or 127 <= ord(char) < 160
    plain = "".join("_" if is_control(char) or char == "`" else char for char in name.strip())
    return plain.encode()[:255].decode(errors="ignore").strip()


def flat(value):
    """The single values of what a library returned."""
    if isinstance(value, h5py.Empty):
        return [""]
    if isinstance(value, (str, bytes, h5py.Reference, h5py.RegionReference)):
        return [value]
    if isinstance(value, (list, tuple)):
        return [one for part in value for one in flat(part)]
    values = np.asarray(value)
    if values.dtype.kind == "V" and values.dtype.names is None:
        return [values]
    parts = values.reshape(-1)[:MOST_VALUES]
    return [one for part in parts for one in (flat(part) if isinstance(part, np.ndarray) else [part])] or [""]


def text_of(value):
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            value = value.decode("latin-1")
    try:
        value.encode()
    except UnicodeEncodeError:
        value = value.encode("utf-8", "surrogateescape").decode("latin-1")
    return value.rstrip("\0").replace("\0", "\ufffd").encode()[:MOST_TEXT].decode(errors="ignore")


def is_same(ours, theirs):
    """Whether a value is what a library returned, in its type."""
    (kind, value), = ours.items()
    if isinstance(theirs, (str, bytes)):
        text = text_of(theirs)
        return kind == "text" and value in (text, text.rstrip(" "))
    if isinstance(theirs, (bool, np.bool_)):
        return kind == "bool" and value == bool(theirs)
    if isinstance(theirs, np.floating):
        if kind != "float":
            return False
        number = float(value.replace("Infinity", "inf")) if isinstance(value, str) else value
        return math.isnan(theirs) if math.isnan(number) else theirs.dtype.type(number) == theirs
    if isinstance(theirs, np.integer):
        return value == int(theirs) if kind == "integer" else kind == "float" and int(theirs) > 2**63 - 1
    # References and opaque bytes have no type of ours; they are texts.
    return kind == "text"


class Comparison:
    def __init__(self):
        self.compared, self.differences = 0, []

    def differs(self, path, name, what):
        if (os.path.basename(path), name) not in KNOWN:
            self.differences.append(f"{path}: {name}: {what}")

    def attribute(self, path, found, name, value):
        self.compared += 1
        name = name_of(name)
        kind = getattr(value, "dtype", np.dtype(type(value)) if isinstance(value, complex) else None)
        fields = ("r", "i") if kind is not None and kind.kind == "c" else getattr(kind, "names", None)
        if fields:
            missing = [field for field in fields if name_of(f"{name}.{field}") not in found]
            if missing:
                self.differs(path, name, f"without the fields {missing}")
        elif name not in found:
            self.differs(path, name, f"is not there: {value!r:.60}")
        else:
            for one in flat(value)[:MOST_VALUES]:
                if not any(is_same(ours, one) for ours in found[name]):
                    return self.differs(path, name, f"{one!r:.60} is not in {found[name]!s:.80}")

    def hdf5(self, path, found):
        def attributes(of, before):
            for name in of.attrs:
                if name not in OF_DIMENSIONS:
                    self.attribute(path, found, before + name, of.attrs[name])

        def group(of, names, above):
            here = h5py.h5o.get_info(of.id).addr
            if here in above:
                return
            attributes(of, "".join(f"{name}." for name in names))
            for name in of:
                if isinstance(of.get(name, getlink=True), h5py.ExternalLink):
                    continue
                inner = of.get(name)
                if isinstance(inner, h5py.Group):
                    group(inner, [*names, name], above | {here})
                elif isinstance(inner, h5py.Dataset):
                    scale = inner.attrs.get("NAME", b"")
                    if not (isinstance(scale, bytes) and scale.startswith(NO_VARIABLE)):
                        attributes(inner, "var." + ".".join([*names, name]) + ".")

        with h5py.File(path) as file:
            group(file, [], frozenset())

    def netcdf(self, path, found):
        def group(of, names):
            before = "".join(f"{name}." for name in names)
            for name in of.ncattrs():
                self.attribute(path, found, before + name, of.getncattr(name))
            for name, dimension in of.dimensions.items():
                # What the library calls dimensions that have no name.
                if not name.startswith("phony_dim"):
                    self.attribute(path, found, f"dim.{before}{name}", np.int64(len(dimension)))
            for name, variable in of.variables.items():
                for key in variable.ncattrs():
                    self.attribute(path, found, f"var.{before}{name}.{key}", variable.getncattr(key))
                if variable.shape:
                    self.attribute(path, found, f"var.{before}{name}.shape", np.array(variable.shape))
            for name, inner in of.groups.items():
                group(inner, [*names, name])

        with netCDF4.Dataset(path) as file:
            group(file, [])


def main(headers, *folders):
    warnings.simplefilter("ignore")
    paths = list(samples(folders))
    printed = subprocess.run([headers, "-"], input="\n".join(paths), stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in printed.stdout.splitlines()]
    comparison, unread = Comparison(), 0
    for line in lines:
        path = line["path"]
        found = {one["name"]: one["values"] for one in line.get("found", [])}
        if "error" in line or "extraction.error" in found:
            comparison.differs(path, "header", line.get("error") or found["extraction.error"])
        # Of files that are no NetCDF there are some that end the library.
        is_netcdf = any(value["text"].startswith("netcdf") for value in found.get("format", []))
        for look in ([comparison.hdf5] if h5py.is_hdf5(path) else []) + ([comparison.netcdf] if is_netcdf else []):
            try:
                look(path, found)
            except (OSError, TypeError, KeyError, AttributeError):
                # Not a file that this library reads, or not all of it.
                unread += 1
    for difference in comparison.differences:
        print(difference)
    print(json.dumps({"files": len(lines), "attributes": comparison.compared, "not read by a library": unread}))
    return 1 if comparison.differences or len(lines) != len(paths) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
