//! Tests of what a confined server can still do, and that everything else fails or ends it.
//!
//! Each case runs in a process of its own: this test program again, told by the environment. It has
//! a `main` of its own, since the test harness starts threads and a process is confined before it
//! has any.
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#![allow(missing_docs)]

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};

use atoll_host::directory::{HostDirectory, Options};
use atoll_host::server::confine::{Landlocked, confine, drop_privileges, filter_calls, landlock};
use atoll_host::server::jail::Jail;
use atoll_vfs::{
    Context, FallocateMode, FileSystem, Ino, LockKind, Name, OpenFlags, RenameFlags, SetAttr,
    SetTime, Timespec, XattrFlags,
};

/// asm-generic/fcntl.h.
const F_SETSIG: i32 = 10;
const CASE: &str = "ATOLL_CONFINE_CASE";
const SIGABRT: i32 = 6;
const SIGSYS: i32 = 31;

fn main() -> ExitCode {
    if let Some(case) = std::env::var_os(CASE) {
        return part(case.to_str().unwrap());
    }
    // The cases that must work, and end with success.
    for case in [
        "serve",
        "view",
        "no-file",
        "no-file-by-landlock",
        "no-privileges",
        "a-thread",
        "jail",
        "directory",
    ] {
        assert_eq!(run(case), (Some(0), None), "{case}");
    }
    // The cases that must end the process.
    for case in [
        "socket",
        "exec",
        "fork",
        "code",
        "kill-another",
        "move-another",
        "signal-another",
        "own-by-another",
        "signal-of-choice",
        "exec-beside-a-directory",
        "another-user-beside-a-directory",
    ] {
        assert_eq!(run(case), (None, Some(SIGSYS)), "{case}");
    }
    // A panic that ends the process ends it by the signal that says so.
    assert_eq!(run("abort"), (None, Some(SIGABRT)));
    println!("test result: ok. 20 passed");
    ExitCode::SUCCESS
}

fn run(case: &str) -> (Option<i32>, Option<i32>) {
    let status = Command::new(std::env::current_exe().unwrap()).env(CASE, case).status().unwrap();
    (status.code(), status.signal())
}

fn part(case: &str) -> ExitCode {
    let mut open = File::open("/proc/self/status").unwrap();
    let (a, b) = UnixDatagram::pair().unwrap();
    match case {
        "no-file-by-landlock" => {
            drop_privileges().unwrap();
            if landlock().unwrap() == Landlocked::No {
                println!("this kernel has no Landlock");
                return ExitCode::SUCCESS;
            }
            let denied = |error: std::io::Error| error.kind() == ErrorKind::PermissionDenied;
            assert!(File::open("/etc/passwd").is_err_and(denied));
            assert!(std::fs::create_dir("/tmp/atoll-confine-test").is_err_and(denied));
            return ExitCode::SUCCESS;
        }
        "no-privileges" => {
            drop_privileges().unwrap();
            let mut status = String::new();
            open.read_to_string(&mut status).unwrap();
            for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"]
            {
                assert!(status.contains(line), "{line} in {status}");
            }
            return ExitCode::SUCCESS;
        }
        "jail" => {
            let superuser = rustix::process::geteuid().is_root();
            match confine(Jail::Require, &[]) {
                // As where a container keeps namespaces from its superuser.
                Err(error) => println!("no jail here: {error}"),
                Ok(_) => assert!(superuser),
            }
        }
        "view" => {
            use atoll_server::host::Host;
            let landlocked = confine(Jail::Auto, &[]).unwrap().landlocked;
            // Its memory can be taken back, for which its descriptor has been opened anew.
            let view = atoll_host::server::Machine.view(1 << 20, true).map(|view| view.is_some());
            let without = Err(atoll_vfs::Errno::ENOSYS);
            assert_eq!(view, if landlocked == Landlocked::No { without } else { Ok(true) });
        }
        "directory" => return directory(),
        "exec-beside-a-directory" | "another-user-beside-a-directory" => {
            let folder = File::open(".").unwrap();
            confine(Jail::Auto, &[folder.as_fd()]).unwrap();
        }
        "serve" | "no-file" | "a-thread" => {
            confine(Jail::Auto, &[]).unwrap();
        }
        _ => filter_calls(None).unwrap(),
    }
    match case {
        "serve" => {
            let mut bytes = [0; 64];
            assert!(open.read(&mut bytes).unwrap() > 0);
            a.send(b"x").unwrap();
            assert_eq!(b.recv(&mut bytes).unwrap(), 1);
            let big = vec![1u8; 64 << 20];
            assert_eq!(big[12345], 1);
            std::thread::sleep(std::time::Duration::from_millis(1));
            // A worker chooses its processor.
            assert!(nix::sched::sched_getcpu().is_ok());
            let processors = rustix::thread::sched_getaffinity(None).unwrap();
            rustix::thread::sched_setaffinity(None, &processors).unwrap();
            println!("it can still print");
            std::io::stdout().flush().unwrap();
        }
        "no-file" => {
            assert!(File::open("/etc/passwd").is_err());
            assert!(File::create("/tmp/atoll-confine-test").is_err());
            // A panic tells its story without one.
            assert!(std::panic::catch_unwind(|| panic!("of a test")).is_err());
        }
        "a-thread" => {
            let inner = std::thread::Builder::new()
                .name("inner".to_owned())
                .spawn(|| File::open("/etc/passwd").is_err());
            assert!(inner.unwrap().join().unwrap());
        }
        "jail" | "view" => {}
        "abort" => std::process::abort(),
        // SAFETY: these take numbers.
        "signal-another" => unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getppid(), libc::getppid(), libc::SIGCONT);
        },
        // SAFETY: as above.
        "own-by-another" => unsafe {
            libc::fcntl(a.as_raw_fd(), libc::F_SETOWN, 1);
        },
        // SAFETY: as above.
        "signal-of-choice" => unsafe {
            libc::fcntl(a.as_raw_fd(), F_SETSIG, libc::SIGKILL);
        },
        "socket" => drop(TcpListener::bind("127.0.0.1:0")),
        // SAFETY: it takes a number.
        "another-user-beside-a-directory" => unsafe {
            libc::syscall(libc::SYS_setuid, 65534);
        },
        "fork" | "exec" | "exec-beside-a-directory" => drop(Command::new("/bin/true").status()),
        "code" => {
            let flags = rustix::mm::MapFlags::PRIVATE;
            let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::EXEC;
            map(flags, protection);
        }
        "kill-another" => drop(rustix::process::kill_process(
            rustix::process::getppid().unwrap(),
            rustix::process::Signal::CONT,
        )),
        "move-another" => {
            let another = nix::unistd::getppid();
            let processors = nix::sched::sched_getaffinity(another).unwrap();
            let _ = nix::sched::sched_setaffinity(another, &processors);
        }
        other => panic!("{other}"),
    }
    ExitCode::SUCCESS
}

/// A directory of the host is all that there is of it.
fn directory() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d");
    std::fs::create_dir(&path).unwrap();
    std::fs::write(folder.path().join("secret"), b"secret").unwrap();
    let mut fs = HostDirectory::open(&path, &Options::default()).unwrap();
    let superuser = rustix::process::geteuid().is_root();
    let isolated = fs.isolate().is_ok();
    let landlocked = confine(Jail::Auto, &[fs.root()]).unwrap().landlocked;
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // The superuser's makes files for others.
    let (uid, gid) = if superuser { (4321, 4322) } else { own };
    let cx = Context { uid, gid, now: Timespec::default() };
    let name = |name: &'static str| Name::new(name.as_bytes()).unwrap();
    let (root, both) = (Ino::ROOT, OpenFlags::READ | OpenFlags::WRITE);
    let (file, handle) = fs.create(&cx, root, name("f"), 0o600, both).unwrap();
    assert_eq!((file.uid, file.gid), (uid, gid));
    assert_eq!(fs.write(&cx, file.ino, handle, 0, b"data").unwrap().len, 4);
    let set = SetAttr { mode: Some(0o640), size: Some(2), ..SetAttr::default() };
    let set = SetAttr { atime: Some(SetTime::Now), uid: Some(uid), ..set };
    assert_eq!(fs.setattr(&cx, file.ino, Some(handle), &set).unwrap().size, 2);
    fs.setattr(&cx, file.ino, None, &SetAttr { size: Some(1), ..SetAttr::default() }).unwrap();
    fs.fsync(&cx, file.ino, handle, true).unwrap();
    let locks = fs.outside_locks(file.ino, handle).unwrap().unwrap();
    for locks in [locks.for_both().unwrap(), locks] {
        for kind in [Some(LockKind::Shared), Some(LockKind::Exclusive), None] {
            locks.set(kind, 5, 9).unwrap();
            locks.set_whole(kind).unwrap();
        }
        assert_eq!(locks.test(LockKind::Exclusive, 0, u64::MAX), Ok(None));
    }
    fs.fallocate(&cx, file.ino, handle, 0, 4096, FallocateMode::empty()).unwrap();
    fs.setxattr(&cx, file.ino, b"user.a", b"1", XattrFlags::empty()).unwrap();
    let mut value = Vec::new();
    fs.getxattr(&cx, file.ino, b"user.a", &mut value).unwrap();
    fs.listxattr(&cx, file.ino, &mut value).unwrap();
    fs.removexattr(&cx, file.ino, b"user.a").unwrap();
    assert_eq!(value, b"1user.a\0");
    fs.release(&cx, file.ino, handle).unwrap();
    let (loose, handle) = fs.tmpfile(&cx, root, 0o600, both).unwrap();
    fs.link(&cx, loose.ino, root, name("loose")).unwrap();
    fs.release(&cx, loose.ino, handle).unwrap();
    let dir = fs.mkdir(&cx, root, name("sub"), 0o2750).unwrap();
    assert_eq!(dir.mode & 0o7777, 0o2750);
    fs.symlink(&cx, dir.ino, name("l"), b"../../secret").unwrap();
    fs.mknod(&cx, dir.ino, name("p"), 0o010_600, 0).unwrap();
    fs.rename(&cx, root, name("f"), dir.ino, name("g"), RenameFlags::empty()).unwrap();
    assert_eq!(fs.lookup(&cx, dir.ino, name("..")).unwrap().ino, root);
    let handle = fs.opendir(&cx, dir.ino).unwrap();
    let mut names = 0;
    fs.readdir(&cx, dir.ino, handle, 0, &mut |_| {
        names += 1;
        true
    })
    .unwrap();
    assert_eq!(names, 5);
    fs.fsyncdir(&cx, dir.ino, handle).unwrap();
    fs.releasedir(&cx, dir.ino, handle).unwrap();
    for entry in ["l", "p", "g"] {
        fs.unlink(&cx, dir.ino, name(entry)).unwrap();
    }
    fs.rmdir(&cx, root, name("sub")).unwrap();
    fs.statfs(&cx).unwrap();
    let sync = fs.begin_sync(&cx, false).unwrap().unwrap();
    sync.flush().1.unwrap();
    // And nothing else.
    let up = |path: &str| {
        let flags = rustix::fs::OFlags::RDONLY;
        rustix::fs::openat(fs.root(), path, flags, rustix::fs::Mode::empty())
    };
    if landlocked != Landlocked::No || isolated {
        assert!(up("../secret").is_err());
    }
    if landlocked != Landlocked::No {
        assert!(File::open("/etc/passwd").is_err());
        let elsewhere = folder.path().join("made");
        assert!(File::create(elsewhere).is_err());
    }
    if isolated {
        // Not even attributes.
        let flags = rustix::fs::AtFlags::empty();
        assert!(rustix::fs::statat(fs.root(), "../secret", flags).is_err());
    }
    ExitCode::SUCCESS
}

fn map(flags: rustix::mm::MapFlags, protection: rustix::mm::ProtFlags) {
    // SAFETY: a mapping of its own, of which nothing is used.
    let _ = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), 4096, protection, flags) };
}
