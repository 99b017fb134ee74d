//! Tests of what a sealed process can still do, and that everything else ends it.
//!
//! Each case runs in a process of its own: this test program again, told by the environment. It has
//! a `main` of its own, since a seal holds for all threads, and one of the test harness's would end
//! the process with whatever it is just doing.
#![allow(missing_docs)]
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use atoll_block::{Addressable, BLOCK_SIZE, BlockDevice, BlockIndex};
use atoll_host::device::{Access, Create, HostDevice, OpenOptions, open};
use atoll_host::seal::{Permissions, SealError, exit, reserve_memory, seal};

const CASE: &str = "ATOLL_SEAL_CASE";
const DIRECT: Access = Access::Direct { cache_bytes: 100_000 };
const BLOCKS: u64 = 2000;

fn main() {
    let tests: &[(&str, fn())] = &[
        ("a_sealed_direct_volume_works", a_sealed_direct_volume_works),
        ("a_sealed_mapped_volume_works", a_sealed_mapped_volume_works),
        #[cfg(target_arch = "x86_64")]
        (
            "a_sealed_mapped_volume_survives_a_shrunk_image",
            a_sealed_mapped_volume_survives_a_shrunk_image,
        ),
        ("devices_that_call_more_are_refused", devices_that_call_more_are_refused),
        ("everything_else_kills_with_a_direct_volume", everything_else_kills_with_a_direct_volume),
        ("everything_else_kills_with_a_mapped_volume", everything_else_kills_with_a_mapped_volume),
        ("all_threads_are_sealed", all_threads_are_sealed),
    ];
    if std::env::var_os(CASE).is_some() {
        let wanted = std::env::args().nth(1).unwrap_or_default();
        tests.iter().filter(|(name, _)| *name == wanted).for_each(|(_, part)| part());
        return;
    }
    for (name, test) in tests {
        test();
        println!("test {name} ... ok");
    }
    println!("test result: ok. {} passed", tests.len());
}

fn make(path: &Path, access: Access, sealable: bool) -> HostDevice {
    let options = OpenOptions {
        access,
        sealable,
        create: Create::IfMissing,
        blocks: Some(BLOCKS),
        ..OpenOptions::default()
    };
    open(path, &options).unwrap()
}

/// Runs `test` of this program again, to take the part of the sealed process in `case`.
fn child(test: &str, case: &str, volume: &Path) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .arg(test)
        .env(CASE, case)
        .env("ATOLL_SEAL_VOLUME", volume)
        .output()
        .unwrap()
}

fn case() -> Option<(String, std::path::PathBuf)> {
    let volume = std::env::var_os("ATOLL_SEAL_VOLUME")?;
    Some((std::env::var(CASE).ok()?, volume.into()))
}

fn say(text: &str) {
    // SAFETY: the range is that of `text`.
    unsafe { libc::write(1, text.as_ptr().cast(), text.len()) };
}

/// Opens, reserves, seals, then uses the volume in every way there is.
fn use_sealed(path: &Path, access: Access) -> ! {
    let mut device = make(path, access, true);
    let permissions = Permissions::none().allow(&device).unwrap();
    reserve_memory(8 << 20).unwrap();
    seal(&permissions).unwrap();
    // From here on nothing may panic: that would print a trace, which opens files.
    let mut ok = true;
    for i in 0..BLOCKS {
        ok &= device.store(i * 4096 + 1000, &i.to_le_bytes()).is_ok();
        ok &= i % 7 > 0 || device.flush_range(BlockIndex(i / 2), 3).is_ok();
    }
    ok &= device.flush().is_ok();
    ok &= device.write(BlockIndex(50), &[9; 60 * BLOCK_SIZE]).is_ok();
    ok &= device.discard(BlockIndex(60), 10).is_ok();
    ok &= device.expect_commits(BlockIndex(1), 10).is_ok();
    ok &= device.flush().is_ok();
    // Allocations large and small come from the reserve.
    let mut blocks = Vec::with_capacity(50);
    for i in 0..50 {
        blocks.push(vec![i as u8; 100 * 1024]);
        let mut buf = [0; 8];
        ok &= device.load(i * 8192 + 1000, &mut buf).is_ok();
    }
    drop(blocks);
    let whole = vec![1u8; 7 << 20];
    ok &= whole[12345] == 1 && device.load(0, &mut [0; 5000]).is_ok();
    say(if ok { "sealed and well\n" } else { "a call failed\n" });
    exit(0)
}

fn works_sealed(test: &str, access: Access) {
    if let Some((_, volume)) = case() {
        use_sealed(&volume, access);
    }
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    let output = child(test, "use", &volume);
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("sealed and well"), "{output:?}");
    let mut device = make(&volume, DIRECT, false);
    for i in 0..BLOCKS {
        let mut buf = [0; 8];
        device.load(i * 4096 + 1000, &mut buf).unwrap();
        let want = match i {
            60..70 => [0; 8],
            50..110 => [9; 8],
            i => i.to_le_bytes(),
        };
        assert_eq!(buf, want, "block {i}");
    }
}

fn a_sealed_direct_volume_works() {
    works_sealed("a_sealed_direct_volume_works", DIRECT);
}

fn a_sealed_mapped_volume_works() {
    works_sealed("a_sealed_mapped_volume_works", Access::Mapped);
}

/// A sealed process survives SIGBUS although it may not return from a handler.
#[cfg(target_arch = "x86_64")]
fn a_sealed_mapped_volume_survives_a_shrunk_image() {
    if let Some((_, volume)) = case() {
        let mut device = make(&volume, Access::Mapped, true);
        let permissions = Permissions::none().allow(&device).unwrap();
        std::fs::OpenOptions::new().write(true).open(&volume).unwrap().set_len(4096).unwrap();
        seal(&permissions).unwrap();
        let mut buf = [0; 100];
        let failed = device.load(8000, &mut buf).is_err()
            && device.store(8000, &buf).is_err()
            && device.load(100, &mut buf).is_ok()
            && device.store(100, &buf).is_ok();
        say(if failed { "an error, and alive\n" } else { "no error\n" });
        exit(0);
    }
    let dir = tempfile::tempdir().unwrap();
    let test = "a_sealed_mapped_volume_survives_a_shrunk_image";
    let output = child(test, "shrunk", &dir.path().join("volume"));
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("an error, and alive"), "{output:?}");
}

fn devices_that_call_more_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (i, access) in [DIRECT, Access::Mapped].into_iter().enumerate() {
        let device = make(&dir.path().join(i.to_string()), access, false);
        assert!(matches!(Permissions::none().allow(&device), Err(SealError::NotSealable)));
    }
}

/// The arguments of forbidden calls.
struct Victim {
    /// The volume's descriptor.
    volume: i64,
    /// Another descriptor.
    other: i64,
    /// The path of a file.
    path: i64,
    /// A page of the heap.
    page: i64,
    /// A page of the volume's mapping, or 0.
    mapped: i64,
}

enum Attempt {
    /// A system call by number, with its arguments.
    Call(i64, fn(&Victim) -> [i64; 4]),
    /// Something that leads to one.
    Do(fn()),
}
use Attempt::{Call, Do};

/// The calls that are tried. That a call's arguments make no sense saves nobody: the filter answers
/// first.
const FORBIDDEN: &[(&str, Attempt)] = &[
    ("openat", Call(libc::SYS_openat, |v| [libc::AT_FDCWD as i64, v.path, 0, 0])),
    ("openat2", Call(libc::SYS_openat2, |v| [libc::AT_FDCWD as i64, v.path, v.page, 24])),
    ("close", Call(libc::SYS_close, |v| [v.other, 0, 0, 0])),
    ("read of the volume", Call(libc::SYS_read, |v| [v.volume, v.page, 8, 0])),
    ("read of input", Call(libc::SYS_read, |v| [0, v.page, 0, 0])),
    ("write to another file", Call(libc::SYS_write, |v| [v.other, v.page, 8, 0])),
    ("write to 3", Call(libc::SYS_write, |v| [3, v.page, 8, 0])),
    ("write to the volume", Call(libc::SYS_write, |v| [v.volume, v.page, 8, 0])),
    ("writev", Call(libc::SYS_writev, |v| [1, v.page, 0, 0])),
    ("pread64 elsewhere", Call(libc::SYS_pread64, |v| [v.other, v.page, 8, 0])),
    ("pread64 of input", Call(libc::SYS_pread64, |v| [0, v.page, 8, 0])),
    ("pwrite64 elsewhere", Call(libc::SYS_pwrite64, |v| [v.other, v.page, 8, 0])),
    ("pwrite64 to 1", Call(libc::SYS_pwrite64, |v| [1, v.page, 8, 0])),
    (
        "pwrite64 at the end",
        Call(libc::SYS_pwrite64, |v| [v.volume, v.page, 8, BLOCKS as i64 * 4096]),
    ),
    ("preadv", Call(libc::SYS_preadv, |v| [v.volume, v.page, 0, 0])),
    ("pwritev", Call(libc::SYS_pwritev, |v| [v.volume, v.page, 0, 0])),
    ("mmap", Call(libc::SYS_mmap, |_| [0, 4096, 1, 0x22])),
    ("munmap", Call(libc::SYS_munmap, |v| [v.mapped, 4096, 0, 0])),
    ("mremap", Call(libc::SYS_mremap, |v| [v.mapped, 4096, 8192, 1])),
    ("mprotect", Call(libc::SYS_mprotect, |v| [v.page, 4096, 5, 0])),
    ("pkey_mprotect", Call(libc::SYS_pkey_mprotect, |v| [v.page, 4096, 5, 0])),
    ("madvise", Call(libc::SYS_madvise, |v| [v.page, 4096, libc::MADV_NORMAL as i64, 0])),
    ("msync elsewhere", Call(libc::SYS_msync, |v| [v.page, 4096, libc::MS_SYNC as i64, 0])),
    ("msync otherwise", Call(libc::SYS_msync, |v| [v.mapped, 4096, libc::MS_ASYNC as i64, 0])),
    ("msync beyond", Call(libc::SYS_msync, |v| [v.mapped, 1 << 40, libc::MS_SYNC as i64, 0])),
    ("brk", Call(libc::SYS_brk, |_| [0; 4])),
    ("allocation beyond the reserve", Do(|| drop(std::hint::black_box(vec![1u8; 64 << 20])))),
    ("fsync", Call(libc::SYS_fsync, |v| [v.volume, 0, 0, 0])),
    ("fdatasync", Call(libc::SYS_fdatasync, |v| [v.volume, 0, 0, 0])),
    ("ftruncate", Call(libc::SYS_ftruncate, |v| [v.volume, 0, 0, 0])),
    ("fallocate", Call(libc::SYS_fallocate, |v| [v.volume, 0, 0, 4096])),
    ("lseek", Call(libc::SYS_lseek, |v| [v.volume, 0, 0, 0])),
    ("fstat", Call(libc::SYS_fstat, |v| [v.volume, v.page, 0, 0])),
    ("dup", Call(libc::SYS_dup, |v| [v.volume, 0, 0, 0])),
    ("dup3", Call(libc::SYS_dup3, |v| [v.volume, 1, 0, 0])),
    ("fcntl", Call(libc::SYS_fcntl, |v| [v.volume, libc::F_GETFL as i64, 0, 0])),
    ("ioctl", Call(libc::SYS_ioctl, |v| [1, libc::TIOCSTI as i64, v.path, 0])),
    ("sendfile", Call(libc::SYS_sendfile, |v| [1, v.volume, 0, 8])),
    ("socket", Call(libc::SYS_socket, |_| [libc::AF_INET as i64, libc::SOCK_STREAM as i64, 0, 0])),
    ("socketpair", Call(libc::SYS_socketpair, |v| [1, 1, 0, v.page])),
    ("pipe2", Call(libc::SYS_pipe2, |v| [v.page, 0, 0, 0])),
    ("fork", Call(libc::SYS_clone, |_| [libc::SIGCHLD as i64, 0, 0, 0])),
    ("clone3", Call(libc::SYS_clone3, |v| [v.page, 64, 0, 0])),
    ("thread", Do(|| drop(std::thread::Builder::new().spawn(|| {})))),
    ("execve", Call(libc::SYS_execve, |v| [v.path, 0, 0, 0])),
    ("execveat", Call(libc::SYS_execveat, |v| [libc::AT_FDCWD as i64, v.path, 0, 0])),
    ("kill", Call(libc::SYS_kill, |_| [1 << 30, 0, 0, 0])),
    ("tgkill", Call(libc::SYS_tgkill, |_| [1 << 30, 1 << 30, 0, 0])),
    ("ptrace", Call(libc::SYS_ptrace, |_| [0; 4])),
    ("process_vm_writev", Call(libc::SYS_process_vm_writev, |_| [1, 0, 0, 0])),
    ("prctl", Call(libc::SYS_prctl, |_| [libc::PR_GET_DUMPABLE as i64, 0, 0, 0])),
    ("seccomp", Call(libc::SYS_seccomp, |_| [0; 4])),
    ("setuid", Call(libc::SYS_setuid, |_| [0; 4])),
    ("unshare", Call(libc::SYS_unshare, |_| [libc::CLONE_NEWUSER as i64, 0, 0, 0])),
    ("mount", Call(libc::SYS_mount, |_| [0; 4])),
    ("unlinkat", Call(libc::SYS_unlinkat, |v| [-1, v.path, 0, 0])),
    ("memfd_create", Call(libc::SYS_memfd_create, |v| [v.path, 0, 0, 0])),
    ("io_uring_setup", Call(libc::SYS_io_uring_setup, |v| [4, v.page, 0, 0])),
    ("futex", Call(libc::SYS_futex, |v| [v.page, libc::FUTEX_WAKE as i64, 0, 0])),
    ("nanosleep", Call(libc::SYS_nanosleep, |v| [v.page, 0, 0, 0])),
    ("rt_sigaction", Call(libc::SYS_rt_sigaction, |_| [libc::SIGSYS as i64, 0, 0, 8])),
    ("rt_sigreturn", Call(libc::SYS_rt_sigreturn, |_| [0; 4])),
    ("getpid", Call(libc::SYS_getpid, |_| [0; 4])),
    ("no such call", Call(100_000, |_| [0; 4])),
    #[cfg(target_arch = "x86_64")]
    ("open", Call(libc::SYS_open, |v| [v.path, 0, 0, 0])),
    #[cfg(target_arch = "x86_64")]
    ("vfork", Call(libc::SYS_vfork, |_| [0; 4])),
    #[cfg(target_arch = "x86_64")]
    ("the x32 interface", Call(0x4000_0000 | libc::SYS_pread64, |v| [v.volume, v.page, 8, 0])),
    #[cfg(target_arch = "x86_64")]
    (
        "the i386 interface",
        Do(|| {
            // SAFETY: getpid by int 0x80 changes no memory. Its number is writev's in this
            // interface.
            unsafe { std::arch::asm!("int 0x80", inout("eax") 20 => _, options(nostack)) }
        }),
    ),
];

fn attempt_sealed(path: &Path, access: Access, index: usize) -> ! {
    let device = make(path, access, true);
    let other = std::fs::File::options().read(true).write(true).open("/dev/zero").unwrap();
    let (volume, mapped) = match &device {
        HostDevice::Mapped(mapped) => (mapped.descriptor(), mapped.addresses().start),
        HostDevice::Direct(cached) => (cached.device().descriptors()[0], 0),
        HostDevice::Guest(_) => unreachable!("it is a file"),
    };
    let page = vec![0u8; 16384].leak();
    let victim = Victim {
        volume: volume.into(),
        other: other.into_raw_fd().into(),
        path: c"/dev/zero".as_ptr() as i64,
        page: page.as_ptr().addr().next_multiple_of(4096) as i64,
        mapped: mapped as i64,
    };
    let permissions = Permissions::none().allow(&device).unwrap();
    reserve_memory(1 << 20).unwrap();
    seal(&permissions).unwrap();
    say("sealed\n");
    match &FORBIDDEN[index].1 {
        Call(number, arguments) => {
            let [a, b, c, d] = arguments(&victim);
            // SAFETY: none of them comes back, or else the process ends here.
            unsafe { libc::syscall(*number, a, b, c, d, 0, 0) };
        }
        Do(act) => act(),
    }
    say("survived\n");
    exit(0)
}

fn kills(test: &str, access: Access) {
    if let Some((case, volume)) = case() {
        attempt_sealed(&volume, access, case.parse().unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    for (index, (name, _)) in FORBIDDEN.iter().enumerate() {
        let output = child(test, &index.to_string(), &volume);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("sealed\n"), "{name}: never sealed: {output:?}");
        assert!(!said.contains("survived"), "{name} was allowed");
        assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{name}: {output:?}");
    }
}

fn everything_else_kills_with_a_direct_volume() {
    kills("everything_else_kills_with_a_direct_volume", DIRECT);
}

fn everything_else_kills_with_a_mapped_volume() {
    kills("everything_else_kills_with_a_mapped_volume", Access::Mapped);
}

/// Threads that were there before are sealed too.
fn all_threads_are_sealed() {
    const TEST: &str = "all_threads_are_sealed";
    if let Some((_, volume)) = case() {
        let device = make(&volume, DIRECT, true);
        let file = std::fs::File::open("/dev/zero").unwrap();
        let fd = file.as_raw_fd();
        let go = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let gone = go.clone();
        std::thread::spawn(move || {
            while !gone.load(std::sync::atomic::Ordering::Acquire) {
                std::hint::spin_loop();
            }
            // SAFETY: no pointer is passed.
            unsafe { libc::fsync(fd) };
            say("survived\n");
            exit(0);
        });
        let permissions = Permissions::none().allow(&device).unwrap();
        seal(&permissions).unwrap();
        say("sealed\n");
        go.store(true, std::sync::atomic::Ordering::Release);
        loop {
            std::hint::spin_loop();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let output = child(TEST, "threads", &dir.path().join("volume"));
    assert_eq!(output.status.signal(), Some(libc::SIGSYS), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("sealed\n"), "{output:?}");
}
