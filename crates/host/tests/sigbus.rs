//! The answer to SIGBUS in a mapping: an error for a volume; for everything else the same as
//! before.
//!
//! Cases that end a process, or need a file system of their own, run in a process of their own:
//! this test program again, told by the environment.
#![cfg(target_os = "linux")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use atoll_block::{Addressable, BLOCK_SIZE, BlockDevice, BlockError, BlockIndex};
use atoll_host::device::{Access, Create, HostDevice, OpenOptions, open};

const DIR: &str = "ATOLL_SIGBUS_DIR";

fn make(path: &Path, blocks: u64, access: Access, sealable: bool) -> HostDevice {
    let options = OpenOptions {
        access,
        sealable,
        create: Create::IfMissing,
        blocks: Some(blocks),
        ..OpenOptions::default()
    };
    open(path, &options).unwrap()
}

fn again(test: &str, dir: &Path, wrapper: Option<&str>) -> Output {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", test, "--nocapture", "--test-threads=1"];
    let mut command = match wrapper {
        None => Command::new(program),
        Some(script) => {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "--mount", "sh", "-ec"]);
            command.args([&format!("{script}\nexec \"$@\""), "sh"]).arg(program);
            command
        }
    };
    command.args(arguments).env(DIR, dir).output().unwrap()
}

fn dir() -> Option<PathBuf> {
    std::env::var_os(DIR).map(PathBuf::from)
}

/// Fills the file system of `dir` by stores to a sparse volume of `blocks`, larger than it.
fn fill(dir: &Path, blocks: u64, access: Access, sealable: bool) {
    let name = format!("{access:?}, sealable: {sealable}");
    let path = dir.join("volume");
    let mut device = make(&path, blocks, access, sealable);
    let data: Vec<u8> = (0..BLOCK_SIZE as u32).map(|i| (i % 251) as u8).collect();
    let full = (0..blocks).find_map(|block| {
        let at = block * 4096;
        match device.store(at, &data) {
            Ok(()) => None,
            Err(error) => Some((block, error)),
        }
    });
    let Some((full, error)) = full else {
        panic!("{name}: a volume larger than its disk was never full");
    };
    assert_eq!(error, BlockError::NoSpace, "{name}");
    assert!(full > 10, "{name}: full after {full} blocks");
    // Small stores, zeros and loads there.
    assert_eq!(device.store((blocks - 2) * 4096 + 7, &[1; 9]), Err(BlockError::NoSpace), "{name}");
    let mut buf = vec![1; BLOCK_SIZE];
    device.load((blocks - 1) * 4096, &mut buf).unwrap();
    assert!(buf.iter().all(|&b| b == 0), "{name}: a hole still reads as zeros");
    // The bytes stored are there, and can be stored anew.
    for block in 0..full {
        device.load(block * 4096, &mut buf).unwrap();
        assert_eq!(buf, data, "{name}: block {block} of {full}");
    }
    device.store(4096, &[2; 4096]).unwrap();
    if !sealable {
        device.discard(BlockIndex(2), 8).unwrap();
        device.store(full * 4096, &data).unwrap_or_else(|e| panic!("{name}: given back: {e}"));
    }
    device.flush().unwrap();
    drop(device);
    std::fs::remove_file(path).unwrap();
}

/// A host's full disk is ENOSPC: a tmpfs of 256 KiB, mounted in a namespace of our own.
#[test]
fn a_full_host_is_no_space() {
    if let Some(dir) = dir() {
        for sealable in [false, true] {
            fill(&dir, 1000, Access::Mapped, sealable);
            fill(&dir, 1000, Access::Direct { cache_bytes: 40_000 }, sealable);
        }
        println!("filled");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size=256k tmpfs '{}'", dir.path().display());
    if !again("none", dir.path(), Some(&mount)).status.success() {
        println!("skipped: user and mount namespaces are not permitted here");
        return;
    }
    let output = again("a_full_host_is_no_space", dir.path(), Some(&mount));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("filled"), "{output:?}");
}

/// A page of a file beyond its end, mapped by someone else.
fn foreign_page(dir: &Path) -> *const u8 {
    use std::os::fd::AsRawFd;
    let file = std::fs::File::create_new(dir.join("foreign")).unwrap();
    file.set_len(0).unwrap();
    let file = std::fs::File::open(dir.join("foreign")).unwrap();
    // SAFETY: a new mapping, of an empty file, at an address of the kernel's choice.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    page.cast()
}

/// Touches a foreign page beyond its file's end, with a mapped volume open that has just survived
/// the same.
fn touch_foreign(dir: &Path) {
    let path = dir.join("volume");
    let mut device = make(&path, 10, Access::Mapped, false);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(device.load(5, &mut [0; 10]), Err(BlockError::Io));
    let page = foreign_page(dir);
    // SAFETY: none, on purpose: the access is answered by SIGBUS.
    unsafe { page.read_volatile() };
}

#[test]
fn a_foreign_sigbus_still_ends_the_process() {
    if let Some(dir) = dir() {
        touch_foreign(&dir);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = again("a_foreign_sigbus_still_ends_the_process", dir.path(), None);
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

#[test]
fn a_sigbus_that_is_sent_still_ends_the_process() {
    if let Some(dir) = dir() {
        // Rust's own handler, of stack overflows, would take the first for itself.
        install(libc::SIG_DFL, 0);
        let _device = make(&dir.join("volume"), 10, Access::Mapped, false);
        // SAFETY: a signal to this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
        std::thread::sleep(std::time::Duration::from_secs(5));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = again("a_sigbus_that_is_sent_still_ends_the_process", dir.path(), None);
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

/// Installs `handler` with `flags` before any volume is open.
fn install(handler: usize, flags: i32) {
    // SAFETY: a valid structure, and a handler of the kind that the flags say.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn an_earlier_handler_is_called() {
    extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel's information, passed on; and _exit, which a handler may call.
        unsafe { libc::_exit(40 + signal - libc::SIGBUS + (*info).si_code) }
    }
    if let Some(dir) = dir() {
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handler;
        install(handler as usize, libc::SA_SIGINFO);
        touch_foreign(&dir);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = again("an_earlier_handler_is_called", dir.path(), None);
    assert_eq!(output.status.code(), Some(40 + libc::BUS_ADRERR), "{output:?}");
}

#[test]
fn an_earlier_plain_handler_is_called() {
    extern "C" fn handler(signal: i32) {
        // SAFETY: a handler may call _exit.
        unsafe { libc::_exit(50 + signal - libc::SIGBUS) }
    }
    if let Some(dir) = dir() {
        let handler: extern "C" fn(i32) = handler;
        install(handler as usize, 0);
        touch_foreign(&dir);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = again("an_earlier_plain_handler_is_called", dir.path(), None);
    assert_eq!(output.status.code(), Some(50), "{output:?}");
}

/// Threads whose volumes fail and work in turn do not disturb each other's copies or registers.
#[test]
fn faults_in_many_threads_stay_apart() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let path = dir.path().join(thread.to_string());
            scope.spawn(move || {
                let mut device = make(&path, 64, Access::Mapped, false);
                device.store(0, &[thread as u8 + 1; 4096]).unwrap();
                let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(4096).unwrap();
                let (mut failed, mut sum) = (0u64, 0.5f64);
                for i in 0..20_000u64 {
                    let at = 4000 + i % 200;
                    let mut buf = [0; 64];
                    match device.load(at, &mut buf) {
                        Ok(()) => assert!(buf.iter().all(|&b| u64::from(b) == thread + 1)),
                        Err(error) => {
                            assert_eq!(error, BlockError::Io);
                            failed += 1;
                        }
                    }
                    sum += i as f64 * 0.5;
                }
                // Of each 200 offsets the first 33 fit.
                assert_eq!((failed, sum), (100 * 167, 0.5 + 0.5 * (19_999.0 * 20_000.0 / 2.0)));
            });
        }
    });
}
