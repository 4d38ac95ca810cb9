//! Tests of the mount: the real binary, the kernel's FUSE, and programs that know nothing of it.
//!
//! | module | proves |
//! |---|---|
//! | [`files`] | files and directories behave as on a local file system, and are in the fabric afterwards |
//! | [`in_place`] | files of native stores are written where they lie |
//! | [`posix`] | what a public suite for POSIX asks holds, but for what is named |
//! | [`doctor`] | why the kernel does not read and write the copies on a store is said before |
//! | [`programs`] | git, make, a compiler, SQLite, HDF5 and xarray work |
//! | [`large`] | one name of a large directory does not cost all of them |
//! | [`quota`] | a space is as large as its quota, and no more is written |
//! | [`faults`] | what was written survives the death of the mount and an absence of the server |
//! | [`writers`] | a file is published when nobody can write it any more, whatever others do to it meanwhile |
//! | [`together`] | several mounts and programs share files, and several spaces a mount |
//! | [`other_user`] | who is not root mounts with a helper, and reads and writes over the network |
//! | [`two_sites`] | what one site's mount writes, another's reads; what both do agrees with a model |
//!
//! They need `/dev/fuse` and the right to mount. Where these are missing, each says so and passes.

#![allow(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod doctor;
mod faults;
mod files;
mod in_place;
mod large;
mod mounted;
mod other_user;
mod posix;
mod programs;
mod quota;
mod together;
mod two_sites;
mod writers;
