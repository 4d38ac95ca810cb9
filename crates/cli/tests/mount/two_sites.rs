//! Two sites, each with a mount.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use percale_testkit::process::{Site, SiteOptions};
use percale_testkit::wait;

use crate::mounted::{Mounted, SOON, can_mount, run, soon, xattr};

/// Two sites; the space is ordered by the first.
fn sites() -> [Site; 2] {
    let sites = ["alps", "baltic"].map(|name| {
        let options =
            SiteOptions::new(env!("CARGO_BIN_EXE_percale")).set("site.name", &format!("\"{name}\""));
        let site = Site::start(options);
        let store = site.directory().join("store");
        run(&site, &["store", "add", &format!("{name}-disk"), "--posix", store.to_str().unwrap()]);
        site
    });
    let invitation = run(&sites[0], &["-q", "site", "invite"]);
    run(&sites[1], &["site", "join", invitation.trim()]);
    run(&sites[0], &["space", "create", "lab"]);
    run(&sites[0], &["grant", "add", "percale:/lab", "user:admin@site:baltic", "write"]);
    wait::until("the space at the other site", SOON, || {
        sites[1].command(&["stat", "percale:/lab"]).output().unwrap().status.success().then_some(())
    });
    sites
}

#[test]
fn what_one_writes_the_other_reads() {
    if !can_mount() {
        return;
    }
    let (sites, folders) = (sites(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let [alps, baltic] = [0, 1].map(|at| Mounted::start(&sites[at], folders[at].path(), &[]));
    for (from, to, name) in [(&alps, &baltic, "one"), (&baltic, &alps, "other")] {
        let bytes: Vec<u8> = (0..5_000_000_u32).map(|at| (at / 7) as u8).collect();
        fs::create_dir(from.path(name)).unwrap();
        fs::write(from.path(&format!("{name}/large")), &bytes).unwrap();
        fs::write(from.path(&format!("{name}/small")), name).unwrap();
        soon("the small one", || to.path(&format!("{name}/small")).exists());
        assert_eq!(fs::read_to_string(to.path(&format!("{name}/small"))).unwrap(), name);
        soon("the large one", || to.path(&format!("{name}/large")).exists());
        let large = fs::File::open(to.path(&format!("{name}/large"))).unwrap();
        let mut middle = vec![0; 100_000];
        large.read_exact_at(&mut middle, 3_123_456).unwrap();
        assert_eq!(middle, bytes[3_123_456..3_223_456]);
        assert_eq!(fs::read(to.path(&format!("{name}/large"))).unwrap(), bytes);
        // Changed where it was not written.
        let file = OpenOptions::new().write(true).open(to.path(&format!("{name}/large"))).unwrap();
        file.write_all_at(b"changed", 2_000_000).unwrap();
        drop(file);
        soon("the change", || {
            let mut found = [0; 7];
            fs::File::open(from.path(&format!("{name}/large")))
                .unwrap()
                .read_exact_at(&mut found, 2_000_000)
                .unwrap();
            &found == b"changed"
        });
    }
}

#[test]
fn what_the_home_refuses_stays_with_its_host() {
    if !can_mount() {
        return;
    }
    let (sites, folders) = (sites(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let mounts = [0, 1].map(|at| Mounted::start(&sites[at], folders[at].path(), &[]));
    run(&sites[0], &["space", "set", "lab", "--quota", "100kB"]);
    for (mount, name) in mounts.iter().zip(["at-home", "abroad"]) {
        let content = name.repeat(20_000);
        fs::write(mount.path(name), &content).unwrap();
        soon("the refusal", || xattr(&mount.path(name), "state") == "refused");
        assert_eq!(fs::read_to_string(mount.path(name)).unwrap(), content);
        run(&sites[0], &["space", "set", "lab", "--quota", "10MB"]);
        OpenOptions::new().append(true).open(mount.path(name)).unwrap().write_all(b"!").unwrap();
        for other in &mounts {
            soon("what was written again", || {
                fs::read_to_string(other.path(name)).is_ok_and(|read| read.len() == content.len() + 1)
            });
        }
        run(&sites[0], &["space", "set", "lab", "--quota", "100kB"]);
    }
}

#[test]
fn bits_and_times_are_the_same_everywhere() {
    if !can_mount() {
        return;
    }
    let (sites, folders) = (sites(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let [alps, baltic] = [0, 1].map(|at| Mounted::start(&sites[at], folders[at].path(), &[]));
    let looks = |mount: &Mounted| {
        let meta = fs::metadata(mount.path("run.sh")).ok()?;
        Some((meta.permissions().mode() & 0o777, meta.modified().unwrap()))
    };
    let bits = |mount: &Mounted| looks(mount).map(|(mode, _)| mode);
    fs::write(alps.path("run.sh"), "#!/bin/sh\necho ran\n").unwrap();
    soon("the file", || bits(&baltic) == Some(0o644));
    fs::set_permissions(alps.path("run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    soon("the bits", || bits(&baltic) == Some(0o755));
    let ran = Command::new(baltic.path("run.sh")).output().unwrap();
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), "ran\n");

    // Said where the bytes are not; they stay where they are, and the version what it was.
    let version = run(&sites[0], &["stat", "--json", "percale:/lab/run.sh"]);
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = fs::File::open(baltic.path("run.sh")).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(time)).unwrap();
    fs::set_permissions(baltic.path("run.sh"), fs::Permissions::from_mode(0o500)).unwrap();
    assert_eq!(looks(&baltic), Some((0o500, time)));
    soon("both", || looks(&alps) == Some((0o500, time)));
    let told =
        |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap()["content"]["version"].clone();
    assert_eq!(told(&version), told(&run(&sites[0], &["stat", "--json", "percale:/lab/run.sh"])));

    // Before it is published, too.
    let mut file = fs::File::create(alps.path("early")).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o711)).unwrap();
    file.write_all(b"bytes").unwrap();
    drop(file);
    let early = |mount: &Mounted| {
        fs::metadata(mount.path("early")).ok().map(|meta| meta.permissions().mode() & 0o777)
    };
    soon("a new one", || early(&baltic) == Some(0o711));
    // Another process knows it from the catalog alone.
    alps.stop();
    let alps = Mounted::start(&sites[0], folders[0].path(), &[]);
    assert_eq!((early(&alps), looks(&alps)), (Some(0o711), Some((0o500, time))));
}

#[test]
fn a_damaged_cache_is_fetched_again() {
    if !can_mount() {
        return;
    }
    let (sites, folders) = (sites(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let bytes: Vec<u8> = (0..4_000_000_u32).map(|at| (at / 3) as u8).collect();
    let local = folders[0].path().join("local");
    fs::write(&local, &bytes).unwrap();
    run(&sites[0], &["put", local.to_str().unwrap(), "percale:/lab/file"]);
    let cache = folders[1].path().join("state/cache");
    let mount = Mounted::start(&sites[1], folders[1].path(), &[]);
    soon("the file", || mount.path("file").exists());
    assert_eq!(fs::read(mount.path("file")).unwrap(), bytes);
    soon("all groups on disk", || files_below(&cache).len() == 4);
    drop(mount);
    for path in files_below(&cache) {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(b"damage", 1000).unwrap();
    }
    let mount = Mounted::start(&sites[1], folders[1].path(), &[]);
    assert_eq!(fs::read(mount.path("file")).unwrap(), bytes);
}

#[test]
fn pieces_at_equal_distances_come_before_they_are_read() {
    const MIB: u64 = 1 << 20;
    if !can_mount() {
        return;
    }
    let (sites, folders) = (sites(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let bytes: Vec<u8> = (0..60 * MIB as u32).map(|at| (at / 3) as u8).collect();
    let local = folders[0].path().join("local");
    fs::write(&local, &bytes).unwrap();
    run(&sites[0], &["put", local.to_str().unwrap(), "percale:/lab/file"]);
    let cache = folders[1].path().join("state/cache");
    let mount = Mounted::start(&sites[1], folders[1].path(), &[]);
    soon("the file", || mount.path("file").exists());
    let file = fs::File::open(mount.path("file")).unwrap();
    let read = |at: u64| {
        let mut piece = vec![0; 4096];
        file.read_exact_at(&mut piece, at).unwrap();
        assert!(bytes[at as usize..].starts_with(&piece), "at {at}");
    };
    (0..4).for_each(|n| read((3 + 7 * n) * MIB));
    let groups = || {
        let mut groups: Vec<u64> = files_below(&cache)
            .iter()
            .filter_map(|path| path.file_name().unwrap().to_str().unwrap().parse().ok())
            .collect();
        groups.sort_unstable();
        groups
    };
    soon("three more", || groups() == [3, 10, 17, 24, 31, 38, 45]);
    (0..8).rev().for_each(|n| read((1 + 7 * n) * MIB + 77));
    drop(file);
    assert_eq!(fs::read(mount.path("file")).unwrap(), bytes);
}

fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// The files below a directory, each with its size and the runs of bytes in it, and links with where they lead; nothing for a directory.
type Contents = BTreeMap<String, Option<(usize, Vec<(u8, usize)>)>>;

fn contents(root: &Path) -> Contents {
    fn add(root: &Path, directory: &Path, found: &mut Contents) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let link = fs::read_link(&path).ok();
            if let Some(target) = link {
                let target = target.to_str().unwrap().bytes().map(|byte| (byte, 1)).collect();
                found.insert(name, Some((usize::MAX, target)));
            } else if path.is_dir() {
                found.insert(name, None);
                add(root, &path, found);
            } else {
                let bytes = fs::read(&path).unwrap_or_default();
                let runs = bytes.chunk_by(|one, next| one == next).map(|run| (run[0], run.len()));
                found.insert(name, Some((bytes.len(), runs.collect())));
            }
        }
    }
    let mut found = BTreeMap::new();
    add(root, root, &mut found);
    found
}

/// A thousand operations, each at one of two mounts, and the same on a plain directory. Before the other mount goes on, it has seen what
/// the one did.
#[test]
fn what_both_do_agrees_with_a_model() {
    if !can_mount() {
        return;
    }
    let (sites, folders) = (sites(), [(); 2].map(|()| tempfile::tempdir().unwrap()));
    let mounts = [0, 1].map(|at| Mounted::start(&sites[at], folders[at].path(), &[]));
    let model = tempfile::tempdir().unwrap();
    let seed =
        std::env::var("PERCALE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand_seed);
    println!("PERCALE_SEED={seed}");
    let mut random = Random(seed);
    let rounds = 50;
    for round in 0..rounds {
        let at = random.below(2);
        for _ in 0..1000 / rounds {
            let operation = random.operation();
            let (there, here) = (apply(&mounts[at].root(), &operation), apply(model.path(), &operation));
            assert_eq!(there, here, "{operation:?} in round {round}");
        }
        let wanted = contents(model.path());
        assert_eq!(contents(&mounts[at].root()), wanted, "at {at} in round {round}");
        let other = mounts[1 - at].root();
        let agrees = (0..400).any(|_| {
            std::thread::sleep(Duration::from_millis(25));
            contents(&other) == wanted
        });
        let fabric = || crate::mounted::listing(&sites[0]);
        assert!(agrees, "at {at} in round {round}: {:?}\n{wanted:?}\n{:?}", contents(&other), fabric());
    }
}

fn rand_seed() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// SplitMix64: Steele, Lea and Flood, 2014.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }

    fn name(&mut self) -> String {
        let names = ["a", "b", "c", "d/a", "d/b", "d/e/a", "f", "g"];
        names[self.below(names.len())].to_owned()
    }

    fn operation(&mut self) -> Operation {
        let bytes = vec![b'a' + self.below(26) as u8; [0, 10, 5000, 1_500_000][self.below(4)]];
        match self.below(9) {
            0 | 1 => Operation::Write(self.name(), bytes),
            2 => Operation::Append(self.name(), bytes),
            3 => Operation::Remove(self.name()),
            4 => Operation::Rename(self.name(), self.name()),
            5 => Operation::MakeDirectory(["d", "d/e", "h"][self.below(3)].to_owned()),
            7 => {
                Operation::Link(self.name(), ["a", "e", "d/a", "b", "d", "nothing"][self.below(6)].to_owned())
            }
            6 => Operation::RemoveDirectory(["d", "d/e", "h"][self.below(3)].to_owned()),
            _ => Operation::Cut(self.name(), self.below(6000) as u64),
        }
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Write(String, Vec<u8>),
    Append(String, Vec<u8>),
    Remove(String),
    Rename(String, String),
    MakeDirectory(String),
    Link(String, String),
    RemoveDirectory(String),
    Cut(String, u64),
}

/// Does it, and tells how it ended.
fn apply(root: &Path, operation: &Operation) -> Result<(), Option<i32>> {
    let outcome = match operation {
        Operation::Write(name, bytes) => fs::write(root.join(name), bytes),
        Operation::Append(name, bytes) => {
            OpenOptions::new().append(true).open(root.join(name)).and_then(|mut file| file.write_all(bytes))
        }
        Operation::Remove(name) => fs::remove_file(root.join(name)),
        Operation::Rename(from, to) => fs::rename(root.join(from), root.join(to)),
        Operation::Link(name, target) => symlink(target, root.join(name)),
        Operation::MakeDirectory(name) => fs::create_dir(root.join(name)),
        Operation::RemoveDirectory(name) => fs::remove_dir(root.join(name)),
        Operation::Cut(name, size) => {
            OpenOptions::new().write(true).open(root.join(name)).and_then(|file| file.set_len(*size))
        }
    };
    outcome.map_err(|error| error.raw_os_error())
}
