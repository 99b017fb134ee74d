//! A process as the guest: the driver of `atoll-virtio` at this device, and at a stock one.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_host::guest::{AttachError, GuestFs, attach};
use atoll_tests::{Quirks, Subject, filesystem_conformance_subjects, fixtures};
use atoll_vfs::{
    Errno, FileSystem, Handle, Ino, Locks, Name, OpenFlags, RenameFlags, SeekTo, SetAttr, verbs,
};

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
