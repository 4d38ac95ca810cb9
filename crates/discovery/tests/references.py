"""Compares arrays that are read by references with what h5py, netCDF4 and xarray read from the files themselves.

    references.py REFERENCES FOLDER

REFERENCES is the example program of this crate. Files of many kinds are made in the folder; the references of each are opened as Zarr, and
every array must have the values, the type and the attributes that the libraries see, or be named as left out. Then files that follow each
other are opened as one.
"""

import json
import os
import subprocess
import sys
import warnings

import h5py
import netCDF4
import numpy as np
import xarray as xr
import zarr

PROGRAM, FOLDER = sys.argv[1], sys.argv[2]
warnings.simplefilter("ignore")
random = np.random.default_rng(1)
# Files, and what is left out of them on purpose.
FILES = {}


def at(name, left_out=()):
    FILES[name] = set(left_out)
    return os.path.join(FOLDER, name)


def make_netcdf4():
    with netCDF4.Dataset(at("packed.nc"), "w") as file:
        file.title, file.levels, file.version = "packed", np.array([1.5, 2.5], "f4"), np.int32(3)
        file.createDimension("time", None)
        file.createDimension("lat", 5)
        file.createDimension("lon", 7)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2000-01-01"
        time[:] = np.arange(40) * 0.5
        for name, options in [
            ("tas", dict(zlib=True, shuffle=True, fletcher32=True, chunksizes=(7, 2, 4), fill_value=-999.0)),
            ("pr", dict(zlib=True, shuffle=False, complevel=9, chunksizes=(1, 5, 7))),
            ("ps", dict(fletcher32=True, chunksizes=(40, 5, 7))),
            ("huss", dict(contiguous=False)),
        ]:
            variable = file.createVariable(name, "f4", ("time", "lat", "lon"), **options)
            variable.units = "K"
            variable[:] = random.random((40, 5, 7))
        packed = file.createVariable("packed", "i2", ("time", "lat"), zlib=True, fill_value=-32767)
        packed.scale_factor, packed.add_offset = np.float32(0.01), 273.15
        packed[:] = 273.15 + random.random((40, 5))
        file.createVariable("lat", ">f4", ("lat",))[:] = np.arange(5)
        file.createVariable("lon", "f8", ("lon",))[:] = np.arange(7)
        file.createVariable("crs", "i4", ()).grid_mapping_name = "latitude_longitude"
        file["crs"][...] = 7
        # As long as one wants: an array of the half of a chunk, and one that was never written.
        file.createVariable("never", "f4", ("lat", "lon"), zlib=True, chunksizes=(2, 3))
        half = file.createVariable("half", "i4", ("lat", "lon"), zlib=True, shuffle=True, fletcher32=True, chunksizes=(2, 3))
        half[:2, :] = 1
        missing = file.createVariable("missing", "f4", ("lat", "lon"), chunksizes=(2, 3), fill_value=np.nan)
        missing[:2, :] = 1
    with netCDF4.Dataset(at("kinds.nc"), "w") as file:
        file.createDimension("x", 11)
        file.createDimension("len", 4)
        for kind in ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]:
            for order in "<>":
                limits = np.iinfo(kind) if kind[0] in "iu" else np.finfo(kind)
                variable = file.createVariable(f"{kind}_{'little' if order == '<' else 'big'}", order + kind, ("x",))
                variable[:] = np.linspace(float(limits.min) / 2, float(limits.max) / 2, 11).astype(kind)
        flags = file.createEnumType("u1", "cloud_t", {"clear": 0, "cloud": 1, "missing": 255})
        cloud = file.createVariable("cloud", flags, ("x",), fill_value=255)
        cloud[:] = np.arange(11) % 2
        chars = file.createVariable("chars", "S1", ("x", "len"))
        chars[:] = netCDF4.stringtochar(np.array([f"n{n}" for n in range(11)], "S4"))
        text = file.createVariable("text", str, ("x",))
        for n in range(11):
            text[n] = "é" * n
        file.createVariable("x", "i4", ("x",))[:] = np.arange(11)
        file.createVariable("note", str, ())[...] = "a note"
    with netCDF4.Dataset(at("groups.nc"), "w") as file:
        file.createDimension("time", None)
        file.createVariable("time", "i4", ("time",))[:] = np.arange(6)
        inner = file.createGroup("forecast").createGroup("high")
        inner.title = "inner"
        inner.createDimension("y", 3)
        inner.createVariable("y", "f8", ("y",))[:] = [1, 2, 3]
        inner.createVariable("t", "f4", ("time", "y"), zlib=True)[:] = random.random((6, 3))
        # Shorter than its dimension: what is behind its end was never written.
        file.createVariable("short", "f4", ("time",), chunksizes=(1,))[:3] = [1, 2, 3]
        file.createVariable("within", "f4", ("time",), chunksizes=(4,))[:3] = [1, 2, 3]
        # A coordinate of two dimensions, and one that has the name of a dimension and is not its coordinate.
        file.createDimension("name", 2)
        file.createDimension("len", 3)
        file.createVariable("name", "S1", ("name", "len"))[:] = netCDF4.stringtochar(np.array(["ab", "cde"], "S3"))
        file.createVariable("len", "f4", ("name",))[:] = [1, 2]


def make_hdf5():
    for version in ["earliest", "latest"]:
        left_out = {"lzf", "scaled", "compound", "list", "reference", "unwritten", "grp/external", "virtual",
                    "texts", "array", "empty", "long"}
        if version == "latest":
            left_out.add("shuffled")
        with h5py.File(at(f"{version}.h5", left_out), "w", libver=version) as file:
            data = random.random((30, 20))
            make = file.create_dataset
            make("contiguous", data=data)
            make("scalar", data=4.5)
            make("fixed", data=data, chunks=(7, 6), compression="gzip", shuffle=True)
            make("fixed_unpacked", data=data, chunks=(7, 6))
            make("single", data=data, chunks=(30, 20), compression="gzip")
            make("extensible", data=data, chunks=(4, 20), maxshape=(None, 20), compression="gzip", fletcher32=True)
            make("extensible_unpacked", data=data, chunks=(1, 20), maxshape=(None, 20))
            make("tree", data=data, chunks=(4, 3), maxshape=(None, None), compression="gzip", compression_opts=1)
            make("tree_unpacked", data=data, chunks=(1, 1), maxshape=(None, None))
            make("shuffled", data=data, chunks=(7, 6), shuffle=True)
            make("empty_axis", shape=(0, 5), maxshape=(None, 5), chunks=(2, 5), dtype="f4")
            cut = make("cut", data=data, chunks=(4, 20), maxshape=(None, 20))
            cut.resize((9, 20))
            part = make("part", shape=(40, 20), chunks=(10, 20), dtype=">i4", fillvalue=-5, compression="gzip")
            part[10:20] = 3
            part = make("part_shuffled", shape=(40, 20), chunks=(9, 7), dtype=">i4", fillvalue=-5, shuffle=True,
                        compression="gzip", fletcher32=True)
            part[10:20] = 3
            make("unwritten", shape=(4000, 4000, 30), chunks=(10, 20, 30), dtype="f8", fillvalue=2.0)
            made = make("missing", shape=(4000, 40), chunks=(10, 20), dtype="f8", fillvalue=2.0)
            made.attrs["_FillValue"] = 2.0
            created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            created.set_layout(h5py.h5d.COMPACT)
            space = h5py.h5s.create_simple((6,))
            compact = h5py.h5d.create(file.id, b"compact", h5py.h5t.STD_I32BE, space, created)
            compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(6, dtype=">i4"))
            make("bool", data=np.arange(30) % 2 == 0)
            make("half", data=data.astype("f2"))
            make("fixed_text", data=np.array(["a", "bcd"], "S5"))
            make("short_texts", data=["a", "bc", ""], dtype=h5py.string_dtype())
            make("texts", data=["x" * 50] * 30000, dtype=h5py.string_dtype())
            make("lzf", data=random.random((200, 200)), chunks=(50, 50), compression="lzf")
            make("scaled", data=np.arange(40000), chunks=(1000,), scaleoffset=0)
            make("small_scaled", data=np.arange(100), chunks=(50,), scaleoffset=0)
            make("compound", data=np.zeros(4, [("a", "f4"), ("b", "i4")]))
            make("array", shape=(4,), dtype=np.dtype("(3,)f4"))
            make("empty", data=h5py.Empty("f4"))
            make("long", data=np.zeros(3, np.longdouble))
            make("list", shape=(3,), dtype=h5py.vlen_dtype("i4"))
            make("reference", data=[file.ref], dtype=h5py.ref_dtype)
            group = file.create_group("grp/deep")
            group.attrs["title"] = "deep"
            file["grp"].create_dataset("external", shape=(5,), dtype="f4", external=[("other.raw", 0, 20)])
            layout = h5py.VirtualLayout(shape=(5,), dtype="f4")
            file.create_group("virtual").create_virtual_dataset("v", layout)
            group.create_dataset("y", data=np.arange(30))
            group["loop"] = file["grp"]
            group["outside"] = h5py.ExternalLink("/etc/passwd", "/")
            file.attrs["list"] = np.arange(300)
            file.attrs["text"] = ["a", "b"]
            file.attrs["half"] = np.float16(0.5)
            file.attrs["yes"] = True
    # Behind a block of the user's own.
    with h5py.File(at("block.h5"), "w", userblock_size=512) as file:
        file.create_dataset("a", data=random.random(3000), chunks=(100,), compression="gzip")
        file.create_dataset("b", data=random.random(3000))
    with h5py.File(at("many.h5"), "w", libver="latest") as file:
        for name, most in [("fixed", None), ("extensible", (None, 3)), ("tree", (None, None))]:
            data = np.arange(9000, dtype="i4").reshape(3000, 3)
            file.create_dataset(name, data=data, chunks=(1, 3), maxshape=most)
            file.create_dataset(f"{name}_packed", data=data[:1500], chunks=(1, 3), maxshape=most, compression="gzip")
    with h5py.File(at("strange.h5", {".zarray"}), "w") as file:
        file.create_dataset("a b/ü.v", data=np.arange(3))
        file.create_dataset(".zarray", data=np.arange(3))
        file["nan"] = np.arange(3.0)
        file["nan"].attrs["valid_max"] = np.inf


def make_netcdf3():
    for form in ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA"]:
        with netCDF4.Dataset(at(f"{form}.nc"), "w", format=form) as file:
            file.title, file.levels = "classic", np.array([1.5, 2.5], "f4")
            file.createDimension("time", None)
            file.createDimension("x", 5)
            file.createDimension("len", 3)
            kinds = ["i1", "i2", "i4", "f4", "f8"]
            kinds += ["u1", "u2", "u4", "i8", "u8"] if form == "NETCDF3_64BIT_DATA" else []
            for kind in kinds:
                data = random.integers(0, 100, (9, 5)).astype(kind)
                file.createVariable(f"record_{kind}", kind, ("time", "x"))[:] = data
                file.createVariable(f"fixed_{kind}", kind, ("x",), fill_value=np.dtype(kind).type(7))[:] = data[0]
            file.createVariable("scalar", "f8", ())[...] = 3
            file.createVariable("chars", "S1", ("x", "len"), fill_value=b"-")[:] = netCDF4.stringtochar(
                np.array(["ab", "cde", "", "f", "g"], "S3"))
            time = file.createVariable("time", "i4", ("time",))
            time.units = "hours since 1990-01-01"
            time[:] = np.arange(9)
    # One variable alone has records without padding.
    with netCDF4.Dataset(at("single.nc"), "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("time", None)
        file.createDimension("x", 3)
        file.createVariable("only", "i1", ("time", "x"))[:] = np.arange(21).reshape(7, 3)
        file.createVariable("other", "i2", ("x",))[:] = [1, 2, 3]
    # Whoever wrote this did not say how many records there are.
    with open(os.path.join(FOLDER, "NETCDF3_CLASSIC.nc"), "rb") as file:
        content = bytearray(file.read())
    content[4:8] = b"\xff" * 4
    with open(at("streaming.nc"), "wb") as file:
        file.write(content)


def opened(refs):
    storage = dict(fo=refs, remote_protocol="file")
    # Zarr 3.1.6 does not find groups within groups by listing them.
    is_whole = ".zmetadata" in refs["refs"]
    whole = dict(consolidated=is_whole, storage_options=storage)
    return lambda group: xr.open_dataset("reference://", engine="zarr", group=group.strip("/") or None, backend_kwargs=whole), \
        zarr.open_group("reference://", mode="r", zarr_format=2, use_consolidated=False, storage_options=storage)


def run(*words):
    done = subprocess.run([PROGRAM, *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def kerchunk(path, found):
    refs = {key: value if isinstance(value, str) else [f"file://{path}", *value] for key, value in found["refs"].items()}
    return {"version": 1, "refs": refs}


def raw(path):
    """Every array of a file as its library reads it, with nothing done to the values."""
    if path.endswith(".h5"):
        arrays = {}

        def add(name, item):
            if isinstance(item, h5py.Dataset):
                arrays[name] = item

        with h5py.File(path) as file:
            file.visititems(add)
            for name, item in arrays.items():
                if item.shape is None or not FILES[os.path.basename(path)].isdisjoint([name, name.split("/")[0]]):
                    yield name, None
                elif h5py.check_string_dtype(item.dtype) and item.dtype.kind == "O":
                    yield name, item.asstr()[...]
                elif item.dtype == bool:
                    yield name, item[...].astype("i1")
                else:
                    yield name, item[...]
        return

    # That library takes what was not said for a number.
    path = path.replace("streaming.nc", "NETCDF3_CLASSIC.nc")

    def walk(group, prefix):
        for name, variable in group.variables.items():
            variable.set_auto_maskandscale(False)
            variable.set_auto_chartostring(False)
            yield prefix + name, variable[...]
        for name, inner in group.groups.items():
            yield from walk(inner, f"{prefix}{name}/")

    with netCDF4.Dataset(path) as file:
        yield from walk(file, "")


def same(name, wanted, found):
    wanted, found = np.asarray(wanted), np.asarray(found)
    assert wanted.shape == found.shape, f"{name}: shape {found.shape}, not {wanted.shape}"
    if wanted.dtype.kind == "O" or wanted.dtype.kind == "U":
        assert [str(one) for one in wanted.flat] == [str(one) for one in found.flat], f"{name}: {found}"
        return
    assert wanted.dtype.newbyteorder("=") == found.dtype.newbyteorder("="), f"{name}: {found.dtype}, not {wanted.dtype}"
    is_float = wanted.dtype.kind == "f"
    assert np.array_equal(wanted, found, equal_nan=is_float), f"{name}: {found}, not {wanted}"


def compare(name):
    path = os.path.join(FOLDER, name)
    code, out, err = run("--each", path)
    assert code == 0, f"{name}: {err}"
    found = json.loads(out)
    size = os.path.getsize(path)
    for key, value in found["refs"].items():
        assert isinstance(value, str) or value[0] + value[1] <= size, f"{name}: {key}: {value}"
    left_out = {one["variable"] for one in found["left_out"] if not one["why"].startswith("attribute ")}
    assert left_out == FILES[name], f"{name}: {found['left_out']}"
    code, out, err = run(path)
    assert code == 0, f"{name}: {err}"
    count = 0
    for refs in [kerchunk(path, found), json.loads(out)]:
        tree, group = opened(refs)
        for variable, wanted in raw(path):
            if wanted is not None and variable not in left_out:
                same(f"{name}: {variable}", wanted, group[variable][...])
                count += 1
        if name.endswith(".nc"):
            with xr.open_datatree(path.replace("streaming.nc", "NETCDF3_CLASSIC.nc"), engine="netcdf4") as wanted:
                for one in wanted.groups if ".zmetadata" in refs["refs"] else ["/"]:
                    assert_same(f"{name}{one}", wanted[one].to_dataset(inherit=False), tree(one))
    return count


def assert_same(name, wanted, found):
    try:
        xr.testing.assert_identical(wanted.load(), found.load())
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error


def fails(words, *said):
    code, _, err = run(*words)
    assert code != 0, f"{words} is taken for one array"
    for text in said:
        assert text in err, f"{text}: {err}"


def write_part(name, begin, days, form="NETCDF4", units="days since 2000-01-01", shift=0, kind="f4", chunk=2, **more):
    path = os.path.join(FOLDER, name)
    with netCDF4.Dataset(path, "w", format=form) as file:
        file.title = "parts"
        file.createDimension("time", days if more.get("is_fixed") else None)
        file.createDimension("lat", 3)
        file.createDimension("lon", 4)
        time = file.createVariable("time", "f8", ("time",))
        time.units, time.calendar = units, "standard"
        time[:] = np.arange(begin, begin + days)
        lat = file.createVariable("lat", "f8", ("lat",))
        lat[:] = np.arange(3) + shift
        file.createVariable("lon", "f8", ("lon",))[:] = np.arange(4)
        data = (np.arange(begin * 12, (begin + days) * 12) * 1000).reshape(days, 3, 4)
        if form == "NETCDF4":
            options = dict(contiguous=True) if more.get("is_fixed") else dict(zlib=True, shuffle=True, chunksizes=(chunk, 3, 4))
        else:
            options = {}
        # So many that they are not small.
        file.createDimension("deep", 400)
        if more.get("has_deep", True):
            if form == "NETCDF4" and not more.get("is_fixed"):
                options = {**options, "chunksizes": (chunk, 3, 4, 100)}
            deep = file.createVariable("deep_tas", kind, ("time", "lat", "lon", "deep"), **options)
            deep.units = more.get("deep_units", "K")
            deep[:] = data[..., None] + np.arange(400)
        options = dict(zlib=True) if form == "NETCDF4" else {}
        file.createVariable("small", kind, ("time", "lat"), **options)[:] = data[:, :, 0]
        if form == "NETCDF4":
            file.createVariable("turned", kind, ("lat", "time"), **options)[:] = data[:, :, 1].T
        file.createVariable("orography", "f4", ("lat", "lon"))[:] = 5
        file.createVariable("run", "i4", ())[...] = more.get("run", 0)
        if form == "NETCDF4":
            name = file.createVariable("label", str, ("time",))
            for n in range(days):
                name[n] = f"day {begin + n}"
    return path


def joined(*paths, left_out=(), **options):
    code, out, err = run(*paths)
    assert code == 0, err
    refs = json.loads(out)
    found, _ = opened(refs)
    wanted = xr.concat([xr.open_dataset(path, engine="netcdf4") for path in sorted(paths)], "time", data_vars="minimal",
                       coords="minimal", compat="override", **options)
    assert_same(" ".join(map(os.path.basename, paths)), wanted.drop_vars(left_out), found('/'))
    return refs["refs"], err


def check_joins():
    a, b, c = write_part("p1.nc", 0, 4), write_part("p2.nc", 4, 6), write_part("p3.nc", 10, 3)
    refs, _ = joined(c, a, b)
    assert refs["deep_tas/2.0.0.0"][0] == f"file://{b}", refs["deep_tas/2.0.0.0"]
    assert isinstance(refs["time/0"], str), "values of the coordinate stand in the references"
    fails([a, c, write_part("p4.nc", 13, 1)], "p3.nc", "deep_tas", "cannot follow within a chunk")
    # Months of different lengths, each in one piece.
    months = [write_part(f"m{n}.nc", begin, days, is_fixed=True) for n, (begin, days) in enumerate([(0, 31), (31, 28), (59, 31)])]
    joined(*months)
    classic = [write_part(f"c{n}.nc", 5 * n, 5, form="NETCDF3_CLASSIC") for n in range(3)]
    refs, _ = joined(*classic)
    refs, err = joined(a, write_part("run.nc", 4, 6, run=1), left_out=["run"])
    assert "run: it has other values" in err, err
    fails([a, write_part("units.nc", 4, 6, units="days since 2001-01-01")], "2000-01-01", "2001-01-01", "units.nc", "time")
    fails([a, write_part("grid.nc", 4, 6, shift=1)], "lat has other values", "p1.nc", "grid.nc")
    fails([a, write_part("kind.nc", 4, 6, kind="f8")], "the type <f4", "<f8", "deep_tas")
    fails([a, write_part("chunk.nc", 4, 6, chunk=3)], "chunks of", "deep_tas")
    fails([a, write_part("without.nc", 4, 6, has_deep=False)], "without.nc has not", "deep_tas")
    fails([a, write_part("celsius.nc", 4, 6, deep_units="degC")], "'degC'", "celsius.nc")
    fails([a, write_part("again.nc", 0, 4)], "both begin with")
    fails([os.path.join(FOLDER, "earliest.h5"), os.path.join(FOLDER, "latest.h5")], "no dimension time", "--concat")
    fails(["--concat", "nowhere", a, b], "no dimension nowhere")
    code, out, err = run("--concat", "x", *[os.path.join(FOLDER, "NETCDF3_CLASSIC.nc")])
    assert code == 0, err


make_netcdf4()
make_hdf5()
make_netcdf3()
arrays, failures = 0, []
for name in FILES:
    try:
        arrays += compare(name)
    except AssertionError as error:
        failures.append(str(error))
try:
    check_joins()
except AssertionError as error:
    failures.append(str(error))
print("\n".join(failures))
print(json.dumps({"files": len(FILES), "arrays": arrays}))
sys.exit(bool(failures))
