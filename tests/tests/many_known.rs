//! A client that knows many files of a directory of the host, 1,000,000 at most: each number stays
//! the one file's, whatever the host renames, with a bounded number of descriptors.
//!
//! `ATOLL_FILES=1000000 cargo test --release -p atoll-tests --test many_known -- --nocapture` says
//! what that takes.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use atoll_host::directory::Options;
use atoll_server::{Access, Credentials, Identity, KnownMost, Limits, Session, Volume};
use atoll_tests::fixtures::{root, user};
use atoll_tests::hostdir::HostDir;
use atoll_tests::subject::name;
use atoll_vfs::{Attr, Context, Errno, FileSystem, Ino, Timespec};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags, Timestamps};

/// Files of a directory.
const EACH: usize = 1000;
/// Without ATOLL_FILES.
const FILES: usize = 20_000;

fn cx() -> Context {
    Context { uid: 0, gid: 0, now: Timespec::default() }
}

/// The files of the host: which directory has which, by which name. The time of last modification
/// of each is its number.
struct Tree {
    path: PathBuf,
    dirs: Vec<(String, Vec<usize>)>,
}

impl Tree {
    fn make(path: &Path, files: usize) -> Tree {
        let dirs = (0..files / EACH).map(|dir| {
            let at = format!("d{dir}");
            let path = path.join(&at);
            fs::create_dir(&path).unwrap();
            let files: Vec<usize> = (0..EACH).map(|file| dir * EACH + file).collect();
            let folder = rustix::fs::open(&path, rustix::fs::OFlags::PATH, Mode::empty()).unwrap();
            for (file, number) in files.iter().enumerate() {
                let at = CString::new(file.to_string()).unwrap();
                let mode = Mode::from_raw_mode(0o644);
                rustix::fs::mknodat(&folder, &at, FileType::RegularFile, mode, 0).unwrap();
                let time = rustix::fs::Timespec { tv_sec: *number as i64, tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(&folder, &at, &times, AtFlags::empty()).unwrap();
            }
            (at, files)
        });
        Tree { path: path.to_owned(), dirs: dirs.collect() }
    }

    /// What a program of the host renames: some directories get other names, some the names of
    /// each other, and in some each file gets the name of the next.
    fn rename(&mut self) {
        for dir in (0..self.dirs.len()).step_by(5) {
            let to = format!("e{dir}");
            fs::rename(self.path.join(&self.dirs[dir].0), self.path.join(&to)).unwrap();
            self.dirs[dir].0 = to;
        }
        for dir in (1..self.dirs.len() - 1).step_by(5) {
            let [a, b] = [dir, dir + 1].map(|dir| self.path.join(&self.dirs[dir].0));
            rustix::fs::renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
            let [a, b] = self.dirs.get_disjoint_mut([dir, dir + 1]).unwrap();
            std::mem::swap(&mut a.0, &mut b.0);
        }
        for (at, files) in self.dirs.iter_mut().skip(3).step_by(5) {
            let path = self.path.join(at);
            fs::rename(path.join((EACH - 1).to_string()), path.join("last")).unwrap();
            for file in (0..EACH - 1).rev() {
                let [from, to] = [file, file + 1].map(|file| path.join(file.to_string()));
                fs::rename(from, to).unwrap();
            }
            fs::rename(path.join("last"), path.join("0")).unwrap();
            files.rotate_right(1);
        }
    }
}

/// Looks all of it up; `known` are the numbers before, if there are any.
fn look_up<F: FileSystem + Send>(session: &mut Session<F>, tree: &Tree, known: &mut [Option<Ino>]) {
    for (at, files) in &tree.dirs {
        let dir = session.lookup(&cx(), Ino::ROOT, name(at)).unwrap().ino;
        for (file, number) in files.iter().enumerate() {
            let found = session.lookup(&cx(), dir, name(&file.to_string())).unwrap();
            assert_eq!(found.mtime.sec, *number as i64);
            let before = known[*number].replace(found.ino);
            assert!(before.is_none_or(|before| before == found.ino), "it has another number");
        }
    }
}

/// How many are found by their numbers; the others are `ESTALE`, and none is another.
fn find<F: FileSystem + Send>(session: &mut Session<F>, known: &[Option<Ino>]) -> usize {
    let is = |number: usize, found: atoll_vfs::Result<Attr>| match found {
        Ok(attr) => {
            assert_eq!(attr.mtime.sec, number as i64, "another file");
            true
        }
        Err(error) => {
            assert_eq!(error, Errno::ESTALE);
            false
        }
    };
    let all = known.iter().enumerate();
    all.filter(|(number, ino)| is(*number, session.getattr(&cx(), ino.unwrap()))).count()
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn session(volume: &Arc<Volume<HostDir>>, peer: Credentials) -> Session<HostDir> {
    let identity = if peer.uid == 0 { Identity::Checked } else { Identity::Peer };
    let limits = Limits { inodes: KnownMost::default().of_user, ..Limits::default() };
    volume.session(peer, Access { identity, limits, ..Access::default() }).unwrap()
}

#[test]
fn each_number_is_one_file() {
    let files = std::env::var("ATOLL_FILES").ok();
    let files = files.map_or(FILES, |files| files.parse().expect("a number")) / EACH * EACH;
    for peer in [root(), user()] {
        let parent = std::env::var_os("ATOLL_DIRECTORY");
        let parent = parent.map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
        let (mut dir, _) = HostDir::with(&parent, &Options::default()).unwrap();
        let mut tree = Tree::make(dir.path(), files);
        let least = dir.inner().known();
        let volume = atoll_host::server::volume(dir, "v");
        volume.set_foreign(KnownMost::default()).unwrap();
        let mut session = session(&volume, peer);
        let mut known = vec![None; files];
        let mut latest = (Instant::now(), resident(), descriptors());
        let mut say = |what: &str, found: usize| {
            let (before, memory, open) = latest;
            let taken = before.elapsed();
            let more = resident().saturating_sub(memory);
            // Directories, files, and those that are open for a while.
            assert!(descriptors() <= open + 1024 + 64 + 16, "{} descriptors", descriptors());
            println!(
                "{files} files, {what}: {found} found, {:.2} s, {:.1} us each, {} MB, {} descriptors",
                taken.as_secs_f64(),
                taken.as_secs_f64() * 1e6 / files as f64,
                more / 1_000_000,
                descriptors(),
            );
            latest = (Instant::now(), memory, open);
        };
        look_up(&mut session, &tree, &mut known);
        say("looked up", files);
        let found = find(&mut session, &known);
        say("found again", found);
        assert_eq!(found, files);
        tree.rename();
        say("renamed by the host", 0);
        let found = find(&mut session, &known);
        say("found after that", found);
        assert!(found > files / 10, "those that are where they were are found");
        look_up(&mut session, &tree, &mut known);
        say("looked up anew", files);
        let found = find(&mut session, &known);
        say("found by that", found);
        assert_eq!(found, files);
        for ino in known.into_iter().flatten() {
            session.forget(ino, u64::MAX);
        }
        say("forgotten", 0);
        drop(session);
        let mut dir = volume.into_inner().ok().flatten().expect("nobody has it");
        assert_eq!(dir.inner().known().0, least.0);
    }
}
