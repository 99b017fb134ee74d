//! The system calls, by Linux's numbers for x86-64. What a call returns below 0 is an error's
//! number.
//!
//! Read in this order: this table; [`files`] data of open files, [`names`] paths and attributes,
//! [`xattrs`]; [`space`] memory; [`task`] everything that a process has besides.
#![allow(unsafe_code)]

mod files;
mod names;
mod space;
mod task;
mod xattrs;

use core::sync::atomic::{AtomicU64, Ordering};

use atoll_vfs::Errno;

use crate::serial;

/// Why a call failed: errno's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i32);

impl Error {
    /// EFAULT: a wrong address.
    pub const FAULT: Error = Error(14);
    /// ENOMEM.
    pub const NO_MEMORY: Error = Error(Errno::ENOMEM.raw());
    /// ENAMETOOLONG.
    pub const NAME_TOO_LONG: Error = Error(Errno::ENAMETOOLONG.raw());
    /// ESRCH: no such process.
    pub const NO_PROCESS: Error = Error(3);
    /// ECHILD: no child.
    pub const NO_CHILD: Error = Error(10);
}

impl From<Errno> for Error {
    #[inline]
    fn from(errno: Errno) -> Error {
        Error(errno.raw())
    }
}

/// What a call returns.
pub type Answer = Result<i64, Error>;

#[inline]
fn raw(answer: Answer) -> i64 {
    match answer {
        Ok(value) => value,
        Err(Error(number)) => -i64::from(number),
    }
}

/// A function of the table: the arguments are the call's.
type Function = unsafe extern "C" fn();

/// The table, which the way in reads.
#[repr(transparent)]
pub struct Table([Function; COUNT]);

/// Numbers from here on are unknown.
pub const COUNT: usize = 464;

macro_rules! table {
    ($($number:literal $module:ident $call:ident($($argument:ident: $type:ty),*);)*) => {
        mod thunks {
            $(
                #[allow(unused_unsafe)]
                pub extern "C" fn $call($($argument: u64),*) -> i64 {
                    super::raw(super::$module::$call($($argument as $type),*))
                }
            )*
        }

        /// The calls by their numbers.
        pub static TABLE: Table = {
            let mut table: [Function; COUNT] = [
                // SAFETY: called by the way in alone, with all that its true type asks for.
                unsafe { core::mem::transmute::<*const (), Function>(unknown as *const ()) };
                COUNT
            ];
            // SAFETY: as above.
            $(table[$number] = unsafe {
                core::mem::transmute::<*const (), Function>(thunks::$call as *const ())
            };)*
            Table(table)
        };
    };
}

table! {
    0 files read(fd: i32, to: u64, len: u64);
    1 files write(fd: i32, from: u64, len: u64);
    2 names open(path: u64, flags: u32, mode: u32);
    3 files close(fd: i32);
    4 names stat(path: u64, to: u64);
    5 names fstat(fd: i32, to: u64);
    6 names lstat(path: u64, to: u64);
    7 task poll(list: u64, count: u64);
    8 files lseek(fd: i32, offset: i64, whence: u32);
    9 space mmap(at: u64, len: u64, protection: u32, flags: u32, fd: i32, offset: u64);
    10 space mprotect(at: u64, len: u64, protection: u32);
    11 space munmap(at: u64, len: u64);
    12 space brk(to: u64);
    13 task rt_sigaction(signal: u32, action: u64, old: u64, size: u64);
    14 task rt_sigprocmask(how: u32, set: u64, old: u64, size: u64);
    16 task ioctl(fd: i32, request: u32, argument: u64);
    17 files pread64(fd: i32, to: u64, len: u64, offset: i64);
    18 files pwrite64(fd: i32, from: u64, len: u64, offset: i64);
    19 files readv(fd: i32, list: u64, count: u64);
    20 files writev(fd: i32, list: u64, count: u64);
    21 names access(path: u64, mode: u32);
    24 task sched_yield();
    25 space mremap(at: u64, len: u64, new: u64, flags: u32, to: u64);
    26 space msync(at: u64, len: u64, flags: u32);
    28 space madvise(at: u64, len: u64, advice: u32);
    32 files dup(fd: i32);
    33 files dup2(fd: i32, to: i32);
    35 task nanosleep(time: u64, left: u64);
    39 task getpid();
    40 files sendfile(to: i32, from: i32, offset: u64, len: u64);
    56 task clone(flags: u64);
    60 task exit(status: u32);
    61 task wait4();
    62 task kill(pid: i32, signal: u32);
    63 task uname(to: u64);
    72 files fcntl(fd: i32, command: u32, argument: u64);
    73 files flock(fd: i32, operation: u32);
    74 files fsync(fd: i32);
    75 files fdatasync(fd: i32);
    76 names truncate(path: u64, length: i64);
    77 files ftruncate(fd: i32, length: i64);
    79 names getcwd(to: u64, len: u64);
    80 names chdir(path: u64);
    81 names fchdir(fd: i32);
    82 names rename(old: u64, new: u64);
    83 names mkdir(path: u64, mode: u32);
    84 names rmdir(path: u64);
    85 names creat(path: u64, mode: u32);
    86 names link(old: u64, new: u64);
    87 names unlink(path: u64);
    88 names symlink(target: u64, path: u64);
    89 names readlink(path: u64, to: u64, len: u64);
    90 names chmod(path: u64, mode: u32);
    91 names fchmod(fd: i32, mode: u32);
    92 names chown(path: u64, uid: u32, gid: u32);
    93 names fchown(fd: i32, uid: u32, gid: u32);
    94 names lchown(path: u64, uid: u32, gid: u32);
    95 names umask(mask: u32);
    96 task gettimeofday(to: u64);
    97 task getrlimit(resource: u32, to: u64);
    98 task getrusage(who: u32, to: u64);
    99 task sysinfo(to: u64);
    100 task times(to: u64);
    102 task getuid();
    104 task getgid();
    105 task setuid(id: u32);
    106 task setgid(id: u32);
    107 task geteuid();
    108 task getegid();
    109 task setpgid();
    110 task getppid();
    111 task getpgrp();
    112 task setsid();
    115 task getgroups();
    116 task setgroups();
    121 task getpgid();
    124 task getsid();
    131 task sigaltstack(new: u64, old: u64);
    133 names mknod(path: u64, mode: u32, device: u32);
    137 names statfs(path: u64, to: u64);
    138 names fstatfs(fd: i32, to: u64);
    157 task prctl(operation: u32);
    158 task arch_prctl(code: u32, address: u64);
    160 task setrlimit();
    162 files sync();
    186 task gettid();
    187 task readahead();
    188 xattrs setxattr(path: u64, name: u64, value: u64, len: u64, flags: u32);
    189 xattrs lsetxattr(path: u64, name: u64, value: u64, len: u64, flags: u32);
    190 xattrs fsetxattr(fd: i32, name: u64, value: u64, len: u64, flags: u32);
    191 xattrs getxattr(path: u64, name: u64, to: u64, len: u64);
    192 xattrs lgetxattr(path: u64, name: u64, to: u64, len: u64);
    193 xattrs fgetxattr(fd: i32, name: u64, to: u64, len: u64);
    194 xattrs listxattr(path: u64, to: u64, len: u64);
    195 xattrs llistxattr(path: u64, to: u64, len: u64);
    196 xattrs flistxattr(fd: i32, to: u64, len: u64);
    197 xattrs removexattr(path: u64, name: u64);
    198 xattrs lremovexattr(path: u64, name: u64);
    199 xattrs fremovexattr(fd: i32, name: u64);
    200 task tkill(tid: i32, signal: u32);
    201 task time(to: u64);
    202 task futex(word: u64, operation: u32, value: u32);
    204 task sched_getaffinity(pid: i32, len: u64, to: u64);
    217 files getdents64(fd: i32, to: u64, len: u64);
    218 task set_tid_address();
    221 files fadvise64(fd: i32);
    228 task clock_gettime(clock: u32, to: u64);
    229 task clock_getres(clock: u32, to: u64);
    230 task clock_nanosleep(clock: u32, flags: u32, time: u64, left: u64);
    231 task exit_group(status: u32);
    234 task tgkill(pid: i32, tid: i32, signal: u32);
    257 names openat(dirfd: i32, path: u64, flags: u32, mode: u32);
    258 names mkdirat(dirfd: i32, path: u64, mode: u32);
    259 names mknodat(dirfd: i32, path: u64, mode: u32, device: u32);
    260 names fchownat(dirfd: i32, path: u64, uid: u32, gid: u32, flags: u32);
    262 names newfstatat(dirfd: i32, path: u64, to: u64, flags: u32);
    263 names unlinkat(dirfd: i32, path: u64, flags: u32);
    264 names renameat(old_dir: i32, old: u64, new_dir: i32, new: u64);
    265 names linkat(old_dir: i32, old: u64, new_dir: i32, new: u64, flags: u32);
    266 names symlinkat(target: u64, dirfd: i32, path: u64);
    267 names readlinkat(dirfd: i32, path: u64, to: u64, len: u64);
    268 names fchmodat(dirfd: i32, path: u64, mode: u32);
    269 names faccessat(dirfd: i32, path: u64, mode: u32);
    271 task ppoll(list: u64, count: u64);
    273 task set_robust_list();
    277 files sync_file_range(fd: i32);
    280 names utimensat(dirfd: i32, path: u64, times: u64, flags: u32);
    285 files fallocate(fd: i32, mode: u32, offset: i64, len: i64);
    292 files dup3(fd: i32, to: i32, flags: u32);
    295 files preadv(fd: i32, list: u64, count: u64, offset: i64);
    296 files pwritev(fd: i32, list: u64, count: u64, offset: i64);
    302 task prlimit64(pid: i32, resource: u32, new: u64, old: u64);
    306 files syncfs(fd: i32);
    316 names renameat2(old_dir: i32, old: u64, new_dir: i32, new: u64, flags: u32);
    318 task getrandom(to: u64, len: u64);
    326 files copy_file_range(from: i32, from_at: u64, to: i32, to_at: u64, len: u64);
    332 names statx(dirfd: i32, path: u64, flags: u32, mask: u32, to: u64);
    334 task rseq();
    439 names faccessat2(dirfd: i32, path: u64, mode: u32, flags: u32);
}

/// The numbers that were named already, a bit each; those beyond share the last.
static NAMED: [AtomicU64; COUNT / 64 + 1] = [const { AtomicU64::new(0) }; COUNT / 64 + 1];

/// A call that nobody answers: named once.
pub extern "C" fn unknown(_: u64, _: u64, _: u64, _: u64, _: u64, _: u64, number: u64) -> i64 {
    let index = (number as usize).min(COUNT);
    let (word, bit) = (&NAMED[index / 64], 1 << (index % 64));
    let before = word.load(Ordering::Relaxed);
    if before & bit == 0 {
        word.store(before | bit, Ordering::Relaxed);
        serial::say(format_args!("system call {number} is not known here"));
    }
    raw(Err(Errno::ENOSYS.into()))
}
