//! A process as the guest: the driver of `atoll-virtio` at this device, and at a stock one.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_host::guest::{AttachError, GuestFs, attach};
use atoll_tests::hostdir::{quirks_of, raise_descriptor_limit};
use atoll_tests::{Quirks, Subject, filesystem_conformance_subjects, fixtures};
use atoll_vfs::{
    Context, DirEntry, Errno, FileSystem, Handle, Ino, Locks, Name, OpenFlags, RenameFlags, SeekTo,
    SetAttr, verbs,
};

use atoll_vm::Virtiofsd;
use tempfile::TempDir;

use super::{Ids, Options, Served};

/// The one that is written in C, from Debian's package.
const VIRTIOFSD_C: &str = "/usr/lib/qemu/virtiofsd";
const PATIENCE: Duration = Duration::from_secs(30);

/// A client that ends with its server.
struct Attached {
    fs: GuestFs,
    _served: Served,
}

macro_rules! inner {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        FileSystem::$verb(&mut $self.fs, $($arg),*)
    };
}

impl FileSystem for Attached {
    verbs!(inner: all);

    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        self.fs.shared_locks()
    }
}

fn client() -> Option<Subject> {
    // The client says who calls.
    let options = Options { ids: Ids::Guest, ..Options::default() };
    let served = Served::with(fixtures::volume(16 << 10), options);
    let fs = attach(&served.socket()).unwrap();
    let quirks =
        Quirks { caller_time: false, ownership: false, finds_itself: true, ..Quirks::default() };
    Some(Subject::new(Attached { fs, _served: served }, quirks))
}

filesystem_conformance_subjects!(conformance, client);

/// A client that ends with its daemon, and the folder of the host that this serves.
struct AtDaemon {
    fs: GuestFs,
    _daemon: Virtiofsd,
    _folder: TempDir,
}

macro_rules! passed {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        FileSystem::$verb(&mut $self.fs, $($arg),*)
    };
}

impl FileSystem for AtDaemon {
    verbs!(passed: lookup forget getattr setattr readlink mknod mkdir symlink unlink rmdir rename
        link open create tmpfile read read_vectored write write_vectored copy_file_range fallocate
        seek fsync release opendir releasedir fsyncdir syncfs statfs setxattr getxattr listxattr
        removexattr);

    /// With the numbers that lookups have: those of the daemon's listings are the host's.
    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let mut entries = Vec::new();
        self.fs.readdir(cx, ino, handle, cookie, &mut |entry| {
            entries.push((entry.name.to_vec(), entry.cookie, entry.file_type, entry.ino));
            true
        })?;
        for (name, cookie, file_type, listed) in &entries {
            let found = match &name[..] {
                b"." => ino,
                name => match self.fs.lookup(cx, ino, Name::new(name).unwrap()) {
                    Ok(attr) => attr.ino,
                    // It was removed since.
                    Err(_) => *listed,
                },
            };
            let (cookie, file_type) = (*cookie, *file_type);
            if !emit(&DirEntry { ino: found, file_type, cookie, name }) {
                break;
            }
        }
        Ok(())
    }

    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        self.fs.shared_locks()
    }
}

/// The file system of a fresh folder, by the daemon that `start` makes serve it.
fn at_daemon(start: impl FnOnce(&Path) -> Virtiofsd) -> Option<Subject> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: the daemon wants to be root");
        return None;
    }
    raise_descriptor_limit();
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = tempfile::tempdir_in(parent).unwrap();
    let host = quirks_of(parent).unwrap();
    // Every caller may do everything there: who may do what the daemon leaves to the kernel.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(1000), Some(1001)).unwrap();
    let daemon = start(folder.path());
    let fs = attach(&daemon.socket()).unwrap();
    let quirks = Quirks { many_inodes: false, ..host };
    Some(Subject::new(AtDaemon { fs, _daemon: daemon, _folder: folder }, quirks))
}

fn at_c() -> Option<Subject> {
    if !Path::new(VIRTIOFSD_C).exists() {
        eprintln!("not run: no {VIRTIOFSD_C}; the package qemu-system-common has it");
        return None;
    }
    at_daemon(|folder| Virtiofsd::start(folder, &["xattr"]))
}

fn at_rust() -> Option<Subject> {
    let Some(program) = Virtiofsd::rust_program() else {
        eprintln!("not run: ATOLL_VIRTIOFSD names no program");
        return None;
    };
    at_daemon(|folder| Virtiofsd::start_rust(&program, folder, &["--xattr"]))
}

const LIVES: &str = "an inode lives as long as it is known, though it has no name";
const NO_TMPFILE: &str = "it makes no files without a name";
const ERROR: &str = "its error is another";

/// What the daemon in C does not do.
const NOT_C: &[(&str, &str)] = &[
    ("bad_handles", "it closes what is not open"),
    ("copy_errors", "it goes by handles alone: that of a directory is taken for a file's"),
    ("inode_numbers_are_never_used_again", LIVES),
    ("mknod_errors", "it makes directories by MKNOD"),
    ("mknod_makes_special_files", ERROR),
    ("opening_other_types", ERROR),
    ("parents_are_directories", NO_TMPFILE),
    ("readlink_errors", ERROR),
    ("removed_directories_live_in_their_handles", LIVES),
    ("removed_directories_take_no_names", LIVES),
    ("rename_replaces_a_file", LIVES),
    ("rename_replaces_an_empty_directory", LIVES),
    ("rename_replaces_an_open_file", LIVES),
    ("rename_whiteout", "what is left is its own user's"),
    ("rmdir_removes_empty_directories", LIVES),
    ("setattr_size_errors", ERROR),
    ("setgid_directories", NO_TMPFILE),
    ("stale_inodes", LIVES),
    ("tmpfiles_can_be_linked", NO_TMPFILE),
    ("tmpfiles_go_with_their_handles", NO_TMPFILE),
    ("unlink_removes_one_name", LIVES),
    ("unlinked_files_live_in_their_handles", LIVES),
];
/// What the one in Rust does not.
const NOT_RUST: &[(&str, &str)] = &[
    ("copy_errors", ERROR),
    ("files_end_at_the_largest_offset", "its thread ends at such a write, and it answers no more"),
    ("mknod_errors", ERROR),
    ("mknod_makes_special_files", ERROR),
    ("opendir_errors", ERROR),
    ("opening_other_types", ERROR),
    ("parents_are_directories", NO_TMPFILE),
    ("readlink_errors", ERROR),
    ("removed_directories_live_in_their_handles", "a directory that was removed lists nothing"),
    ("setattr_size_errors", ERROR),
    ("setgid_directories", NO_TMPFILE),
    ("stale_inodes", NO_TMPFILE),
    ("tmpfiles_can_be_linked", NO_TMPFILE),
    ("tmpfiles_go_with_their_handles", NO_TMPFILE),
];

filesystem_conformance_subjects!(conformance_at_c, at_c, NOT_C);
filesystem_conformance_subjects!(conformance_at_rust, at_rust, NOT_RUST);

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// What every daemon has to do, with data of many sizes.
fn use_it(fs: &mut GuestFs) {
    let cx = fixtures::cx();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let dir = fs.mkdir(&cx, Ino::ROOT, name("d"), 0o755).unwrap();
    let (file, handle) = fs.create(&cx, dir.ino, name("f"), 0o644, flags).unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|at| (at / 3) as u8 ^ (at >> 16) as u8).collect();
    for (at, len) in [(0, 1), (5, 4096), (4096, 100_000), (0, 1 << 20), (7, 2_900_000)] {
        let piece = &data[at..at + len];
        let written = fs.write(&cx, file.ino, handle, at as u64, piece).unwrap();
        assert_eq!(written.len, len);
        let mut read = vec![0; len + 10];
        let got = fs.read(&cx, file.ino, handle, at as u64, &mut read).unwrap();
        assert!(got >= len && read[..len] == *piece, "{at} {len}");
    }
    let size = 2_900_007;
    assert_eq!(fs.getattr(&cx, file.ino).unwrap().size, size);
    // Past the end, and across it.
    let mut read = vec![0; 100];
    assert_eq!(fs.read(&cx, file.ino, handle, size, &mut read), Ok(0));
    assert_eq!(fs.read(&cx, file.ino, handle, size - 7, &mut read), Ok(7));
    let set = SetAttr { size: Some(5000), ..SetAttr::default() };
    assert_eq!(fs.setattr(&cx, file.ino, Some(handle), &set).unwrap().size, 5000);
    fs.fsync(&cx, file.ino, handle, false).unwrap();
    assert_eq!(fs.seek(&cx, file.ino, handle, 0, SeekTo::Hole), Ok(5000));
    fs.release(&cx, file.ino, handle).unwrap();
    for number in 0..300 {
        let called = format!("{number}-{}", "x".repeat(number % 200));
        let (made, handle) =
            fs.create(&cx, dir.ino, name(&called), 0o600, OpenFlags::WRITE).unwrap();
        fs.release(&cx, made.ino, handle).unwrap();
        // Forgotten in batches, by the queue of high priority.
        fs.forget(made.ino, 1);
    }
    let listed = fs.opendir(&cx, dir.ino).unwrap();
    let mut names = Vec::new();
    fs.readdir(&cx, dir.ino, listed, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    fs.releasedir(&cx, dir.ino, listed).unwrap();
    names.retain(|name| !name.starts_with(b"."));
    assert_eq!(names.len(), 301);
    let to = name("renamed");
    fs.rename(&cx, dir.ino, name("f"), dir.ino, to, RenameFlags::empty()).unwrap();
    assert_eq!(fs.lookup(&cx, dir.ino, name("f")).unwrap_err(), Errno::ENOENT);
    let link = fs.symlink(&cx, dir.ino, name("l"), b"a target").unwrap();
    let mut target = Vec::new();
    fs.readlink(&cx, link.ino, &mut target).unwrap();
    assert_eq!(target, b"a target");
    assert_eq!(fs.rmdir(&cx, Ino::ROOT, name("d")), Err(Errno::ENOTEMPTY));
    assert!(fs.statfs(&cx).unwrap().blocks > 0);
    let gone = fs.read(&cx, file.ino, Handle(u64::MAX), 0, &mut read);
    assert!(gone.is_err());
}

#[test]
fn this_device() {
    let served = Served::new(Options::default());
    let mut fs = attach(&served.socket()).unwrap();
    use_it(&mut fs);
    // It has one guest at a time.
    drop(fs.into_inner().disconnect());
    let mut fs = attach(&served.socket()).unwrap();
    let found = fs.lookup(&fixtures::cx(), Ino::ROOT, name("d"));
    assert!(found.is_ok());
}

/// A server that ends is an error for its guests, and no wait.
#[test]
fn a_device_that_goes() {
    let served = Served::new(Options::default());
    let mut fs = attach(&served.socket()).unwrap();
    let cx = fixtures::cx();
    fs.getattr(&cx, Ino::ROOT).unwrap();
    let socket = served.socket();
    drop(served.end());
    assert_eq!(fs.getattr(&cx, Ino::ROOT), Err(Errno::EIO));
    assert_eq!(fs.getattr(&cx, Ino::ROOT), Err(Errno::EIO));
    fs.into_inner().disconnect();
    assert!(matches!(attach(&socket), Err(AttachError::Connect(..))));
    // One that speaks nothing.
    let folder = tempfile::tempdir().unwrap();
    let mute = folder.path().join("mute");
    let listener = std::os::unix::net::UnixListener::bind(&mute).unwrap();
    let thread = std::thread::spawn(move || drop(listener.accept()));
    assert!(matches!(attach(&mute), Err(AttachError::Refused(_))));
    thread.join().unwrap();
}

/// A daemon that ends with this.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn virtiofsd_in_c() {
    if !Path::new(VIRTIOFSD_C).exists() {
        eprintln!("not run: no {VIRTIOFSD_C}; the package qemu-system-common has it");
        return;
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("not run: {VIRTIOFSD_C} wants to be root");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, socket) = (folder.path().join("source"), folder.path().join("socket"));
    std::fs::create_dir(&source).unwrap();
    let mut command = Command::new(VIRTIOFSD_C);
    command.arg("-f").arg(format!("--socket-path={}", socket.display()));
    command.arg("-o").arg(format!("source={}", source.display()));
    command.args(["-o", "cache=auto", "-o", "sandbox=chroot"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = Daemon(command.spawn().unwrap());
    let begin = Instant::now();
    let mut fs = loop {
        match attach(&socket) {
            Ok(fs) => break fs,
            // It does not listen yet.
            Err(AttachError::Connect(..)) if begin.elapsed() < PATIENCE => {
                assert!(daemon.0.try_wait().unwrap().is_none(), "it has ended");
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => panic!("{error}"),
        }
    };
    use_it(&mut fs);
    fs.into_inner().disconnect();
    // The host sees the same.
    assert_eq!(std::fs::read_dir(source.join("d")).unwrap().count(), 302);
    assert_eq!(std::fs::metadata(source.join("d/renamed")).unwrap().len(), 5000);
}

/// How many descriptors a process has.
fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// A daemon has a descriptor for each inode that it has given: it has none any more when all have
/// been forgotten as often, whatever came of the calls.
#[test]
fn what_is_forgotten_a_daemon_lets_go_of() {
    if !Path::new(VIRTIOFSD_C).exists() || !nix::unistd::geteuid().is_root() {
        eprintln!("not run: no {VIRTIOFSD_C}, or not as root");
        return;
    }
    const CALLED: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let folder = tempfile::tempdir().unwrap();
    Virtiofsd::each(folder.path(), |daemon, server| {
        let mut fs = attach(&server.socket()).unwrap();
        let cx = fixtures::cx();
        fs.getattr(&cx, Ino::ROOT).unwrap();
        let before = descriptors(server.pid());
        let mut rng = atoll_tests::rng::Rng::new(3);
        let mut given = BTreeMap::<Ino, u64>::new();
        let mut most = 0;
        for _ in 0..6000 {
            let dirs: Vec<Ino> = given.keys().copied().chain([Ino::ROOT]).collect();
            let (dir, to) = (rng.pick(&dirs), rng.pick(&dirs));
            let (called, new) = (name(rng.pick(&CALLED)), name(rng.pick(&CALLED)));
            let flags = if rng.chance(50) { OpenFlags::WRITE } else { OpenFlags::READ };
            let got = match rng.within(0..12) {
                0 | 1 => fs.lookup(&cx, dir, called).ok(),
                2 => fs.mkdir(&cx, dir, called, 0o755).ok(),
                3 => fs.symlink(&cx, dir, called, b"a target").ok(),
                4 => fs.mknod(&cx, dir, called, 0o100_644, 0).ok(),
                5 => fs.link(&cx, to, dir, called).ok(),
                6 => fs.lookup(&cx, dir, name("..")).ok(),
                7 => {
                    let flags = flags | OpenFlags::TRUNC;
                    fs.create(&cx, dir, called, 0o644, flags).ok().map(|(attr, handle)| {
                        fs.release(&cx, attr.ino, handle).unwrap();
                        attr
                    })
                }
                8 => {
                    let _ = fs.rename(&cx, dir, called, to, new, RenameFlags::empty());
                    None
                }
                9 => {
                    let _ = fs.unlink(&cx, dir, called);
                    None
                }
                10 => {
                    let _ = fs.rmdir(&cx, dir, called);
                    None
                }
                _ => {
                    let gone = given.keys().copied().nth(rng.within(0..9) as usize);
                    if let Some((ino, count)) = gone.and_then(|ino| given.remove_entry(&ino)) {
                        fs.forget(ino, count);
                    }
                    None
                }
            };
            if let Some(attr) = got {
                *given.entry(attr.ino).or_default() += 1;
            }
            most = most.max(given.len());
        }
        for (ino, count) in given {
            fs.forget(ino, count);
        }
        // Some wait until there are more.
        let begin = Instant::now();
        while descriptors(server.pid()) > before + 32 {
            assert!(begin.elapsed() < PATIENCE, "{daemon}: {}", descriptors(server.pid()));
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("{daemon}: {before} descriptors, at most {most} inodes");
        fs.statfs(&cx).expect("it goes on");
    });
}
