//! Confinement: what is left to the server once it serves.
//!
//! It parses what clients send, so that it is made to have nothing worth taking over: besides the
//! volumes, its socket and its log, all of which it has open, it can reach
//!
//! - no file: Landlock refuses every path, and seccomp every call that takes one (but for openat(2)
//!   in /proc/self/fd, by which the memory of mapped files and of Views is opened anew, where there
//!   is Landlock). Where directories of the host are served there are those, by Landlock: the calls
//!   on files are allowed then, which for nothing outside succeed that opens, makes or removes, and
//!   the superuser's server has each directory as a mount of its own, above which there is nothing
//! - no network but its socket, no other process, no new program, no executable memory
//! - no capability, and none by way of set-user-ID programs; with directories of the host those
//!   over files, and to make them for others
//! - where it had the rights for it, no directory and no network that are the system's (`jail`)
//!
//! Nor can another process of its user look into its memory, which holds every client's files.
//!
//! A call that is not on the list ends the process: code that makes it is not ours, and the volumes
//! lose nothing by the end of a process (docs/RELIABILITY.md), which a service manager starts anew.
//! The exceptions are calls that the standard libraries try and can do without, among them those
//! that open files (traces of a panic, settings of the memory allocator): to them the kernel seems
//! not to have these calls.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as ArgLen, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use super::jail::{self, Jail};
use super::{pages, shares};
use crate::anew;
use crate::device::ioctls::SYS_CACHESTAT;

/// The newest version of Landlock whose rights are asked for; an older kernel gives those that it
/// has.
const LANDLOCK: ABI = ABI::V6;

/// Why the server could not be confined.
#[derive(Debug)]
pub enum ConfineError {
    /// It has threads already, which would not be.
    Threads,
    /// A step was refused.
    Refused(&'static str, io::Error),
    /// The kernel has no seccomp, or refused the filter.
    Filter(seccompiler::Error),
    /// Landlock is there, but failed.
    Landlock(landlock::RulesetError),
    /// There is no jail to be had, and it was required.
    Jail(io::Error),
}

impl fmt::Display for ConfineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfineError::Threads => f.write_str("the process has threads already"),
            ConfineError::Refused(what, error) => write!(f, "cannot {what}: {error}"),
            ConfineError::Filter(error) => {
                write!(f, "the seccomp filter could not be set: {error}")
            }
            ConfineError::Landlock(error) => write!(f, "Landlock failed: {error}"),
            ConfineError::Jail(error) => write!(
                f,
                "it cannot have a root directory and namespaces of its own, which --jail=require \
                 asks for: {error}; it takes the superuser's rights"
            ),
        }
    }
}

impl std::error::Error for ConfineError {}

/// How much of Landlock the kernel had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landlocked {
    /// All that was asked for.
    Fully,
    /// The part that an older version has: files, but not all of the rest.
    Partly,
    /// Nothing: the kernel has none, or it is off. seccomp alone keeps the server from files.
    No,
}

/// How far a process is confined.
#[derive(Debug)]
pub struct Confined {
    /// By Landlock.
    pub landlocked: Landlocked,
    /// In a jail; the error is why not.
    pub jailed: io::Result<()>,
}

/// Confines this process, which must have one thread; all later ones are confined with it. There is
/// no way back. The files in `directories` remain in reach.
///
/// # Errors
/// See [`ConfineError`]; the process may be confined in part and should end.
pub fn confine(jail: Jail, directories: &[BorrowedFd<'_>]) -> Result<Confined, ConfineError> {
    let threads = std::fs::read_dir("/proc/self/task")
        .map_err(|error| ConfineError::Refused("count the threads", error))?;
    if threads.count() != 1 {
        return Err(ConfineError::Threads);
    }
    // The memory of mapped files and of Views is opened anew through it.
    let descriptors = anew::descriptors().map(AsRawFd::as_raw_fd);
    // The server finds out how much clients may take while the system says what there is.
    shares::memory();
    shares::files_of_host();
    let jailed = match jail {
        Jail::Off => Err(io::Error::other("it is turned off")),
        Jail::Auto | Jail::Require => jail::enter().map_err(io::Error::from),
    };
    let jailed = match (jailed, jail) {
        (Err(error), Jail::Require) => return Err(ConfineError::Jail(error)),
        (jailed, _) => jailed,
    };
    drop_privileges_but(if directories.is_empty() { CapabilitySet::empty() } else { OVER_FILES })?;
    let landlocked = landlock_but(directories)?;
    // Without Landlock it would lead to every file.
    let descriptors = descriptors.filter(|_| landlocked != Landlocked::No);
    if directories.is_empty() {
        filter_calls(descriptors)?;
    } else {
        filter(Files::Directories)?;
    }
    Ok(Confined { landlocked, jailed })
}

/// No capabilities, no way to new ones, no core dumps, no look from outside.
///
/// # Errors
/// [`ConfineError::Refused`].
pub fn drop_privileges() -> Result<(), ConfineError> {
    drop_privileges_but(CapabilitySet::empty())
}

/// The capabilities of a server of directories of the host: as a user's files are in reach of that
/// user, all files of a directory are in reach of a server that has them.
const OVER_FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    // To make files as another user; the filter leaves nothing else that these allow.
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

/// As [`drop_privileges`], but for what there is of `kept`.
pub(super) fn drop_privileges_but(kept: CapabilitySet) -> Result<(), ConfineError> {
    let refused = |what| move |errno: rustix::io::Errno| ConfineError::Refused(what, errno.into());
    let had = rustix::thread::capabilities(None).map_err(refused("read its capabilities"))?;
    if had.effective.contains(CapabilitySet::SETPCAP) {
        for capability in CapabilitySet::all().iter() {
            match rustix::thread::remove_capability_from_bounding_set(capability) {
                // One that this kernel does not know.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(errno) => return Err(refused("drop its capabilities")(errno)),
            }
        }
    }
    match rustix::thread::clear_ambient_capability_set() {
        // A kernel without ambient capabilities.
        Ok(()) | Err(rustix::io::Errno::INVAL) => {}
        Err(errno) => return Err(refused("drop its capabilities")(errno)),
    }
    let left = CapabilitySets {
        effective: had.effective & kept,
        permitted: had.effective & kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, left).map_err(refused("drop its capabilities"))?;
    rustix::thread::set_no_new_privs(true).map_err(refused("forgo new privileges"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(refused("become undumpable"))
}

/// No file, port, foreign process or abstract socket that is not open already.
///
/// # Errors
/// [`ConfineError::Landlock`].
pub fn landlock() -> Result<Landlocked, ConfineError> {
    landlock_but(&[])
}

/// As [`landlock`], but for what lies in `directories`: no program is run there, and no block
/// device made.
fn landlock_but(directories: &[BorrowedFd<'_>]) -> Result<Landlocked, ConfineError> {
    let mut rights = AccessFs::from_all(LANDLOCK);
    rights.remove(AccessFs::Execute | AccessFs::MakeBlock | AccessFs::IoctlDev);
    let beneath = directories.iter().map(|fd| Ok(PathBeneath::new(*fd, rights)));
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(LANDLOCK)))
        .and_then(|rules| rules.scope(Scope::from_all(LANDLOCK)))
        .and_then(|rules| rules.create())
        .and_then(|rules| rules.add_rules(beneath))
        .and_then(|rules| rules.restrict_self())
        .map_err(ConfineError::Landlock)?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Landlocked::Fully,
        RulesetStatus::PartiallyEnforced => Landlocked::Partly,
        RulesetStatus::NotEnforced => Landlocked::No,
    })
}

/// Calls that need no look at their arguments.
const ALLOWED: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_mincore,
    // Threads, and the end.
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    // Signals.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Time, chance, identity.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_sysinfo,
    // Descriptors that are open.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    // What a front end has handed over is read and written without waiting.
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    SYS_CACHESTAT,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_flock,
    libc::SYS_close,
    libc::SYS_dup,
    // Waiting, and being woken.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    // Clients: their connections, and memory that is shared with them.
    libc::SYS_accept4,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_memfd_create,
    libc::SYS_ftruncate,
];

/// Calls on the files of a directory of the host. Landlock says which those are.
const ON_FILES: &[i64] = &[
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_statx,
    libc::SYS_newfstatat,
    libc::SYS_name_to_handle_at,
    libc::SYS_getdents64,
    libc::SYS_readlinkat,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_fchmodat,
    libc::SYS_fchmod,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_fsetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_syncfs,
    // To make them for others.
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_capget,
    libc::SYS_capset,
];

/// The commands of fcntl(2) for them: to lock them where their programs see it.
const ON_LOCKS: &[i32] = &[libc::F_OFD_GETLK, libc::F_OFD_SETLK];

/// The files that can be opened.
#[derive(Clone, Copy)]
enum Files {
    /// Those that are open, anew, through this directory, if there is one.
    Anew(Option<RawFd>),
    /// Those of directories of the host.
    Directories,
}

/// Calls that a library tries and can do without: they fail with ENOSYS.
const MISSING: &[i64] = &[
    // glibc then uses clone, whose flags can be looked at.
    libc::SYS_clone3,
    // A library opens files here for traces and settings.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    libc::SYS_openat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    libc::SYS_faccessat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_getcwd,
    libc::SYS_ioctl,
    libc::SYS_membarrier,
];

/// The commands of fcntl(2) that are used. Not F_SETOWN, by which a descriptor sends other
/// processes signals.
const FCNTL: &[i32] = &[
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_DUPFD_CLOEXEC,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
    libc::F_SETLEASE,
];

/// glibc names its mappings with this prctl(2).
const PR_SET_VMA: u64 = 0x5356_4d41;

type Filters = Result<[BpfProgram; 2], seccompiler::Error>;

/// The two filters: of their verdicts the kernel takes the stricter.
fn filters(files: Files) -> Filters {
    let (descriptors, on_files, on_locks) = match files {
        Files::Anew(descriptors) => (descriptors, &[][..], &[][..]),
        Files::Directories => (None, ON_FILES, ON_LOCKS),
    };
    let is_clear = |argument, bits: i32| {
        SeccompCondition::new(argument, ArgLen::Dword, Op::MaskedEq(bits as u64), 0)
    };
    let is_set = |argument, bits: i32| {
        SeccompCondition::new(argument, ArgLen::Dword, Op::MaskedEq(bits as u64), bits as u64)
    };
    let only = |condition: Result<SeccompCondition, seccompiler::BackendError>| {
        SeccompRule::new(vec![condition?])
    };
    let is = |argument, value: u64| SeccompCondition::new(argument, ArgLen::Dword, Op::Eq, value);
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in ALLOWED.iter().chain(MISSING) {
        rules.insert(*call, Vec::new());
    }
    rules.insert(libc::SYS_mmap, vec![only(is_clear(2, libc::PROT_EXEC))?]);
    rules.insert(libc::SYS_mprotect, vec![only(is_clear(2, libc::PROT_EXEC))?]);
    rules.insert(libc::SYS_clone, vec![only(is_set(0, libc::CLONE_THREAD | libc::CLONE_VM))?]);
    rules.insert(
        libc::SYS_prctl,
        vec![only(is(0, libc::PR_SET_NAME as u64))?, only(is(0, PR_SET_VMA))?],
    );
    // abort(3), and a panic that ends the process.
    rules.insert(libc::SYS_tgkill, vec![only(is(0, u64::from(std::process::id())))?]);
    // Memory of its own, where a page may be missing.
    rules.insert(libc::SYS_process_vm_writev, vec![only(is(0, u64::from(std::process::id())))?]);
    let fcntl = FCNTL.iter().chain(on_locks).map(|&what| only(is(1, what as u64)));
    let mut fcntl = fcntl.collect::<Result<Vec<_>, _>>()?;
    // The signal of a lease's end, which does nothing.
    let harmless = is(2, libc::SIGURG as u64)?;
    fcntl.push(SeccompRule::new(vec![is(1, pages::F_SETSIG as u64)?, harmless])?);
    rules.insert(libc::SYS_fcntl, fcntl);
    // A worker moves itself, and nobody else.
    rules.insert(libc::SYS_sched_setaffinity, vec![only(is(0, 0))?]);
    // By which the mounter answers.
    rules.insert(libc::SYS_socketpair, vec![only(is(0, libc::AF_UNIX as u64))?]);
    rules.insert(libc::SYS_fchmod, vec![only(is(1, 0o600))?]);
    // How long its files may be: its own limits are read, and none is set.
    let sets_none = SeccompCondition::new(2, ArgLen::Qword, Op::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(vec![is(0, 0)?, sets_none])?]);
    rules.extend(on_files.iter().map(|call| (*call, Vec::new())));
    if let Some(directory) = descriptors {
        let mut openat =
            vec![only(SeccompCondition::new(0, ArgLen::Dword, Op::Ne, directory as u32 as u64))?];
        for flags in anew::REOPEN {
            openat.push(only(is(2, u64::from(flags.bits())))?);
        }
        rules.insert(libc::SYS_openat, openat);
    }
    let arch: seccompiler::TargetArch = std::env::consts::ARCH.try_into()?;
    let (kill, missing) = (SeccompAction::KillProcess, SeccompAction::Errno(libc::ENOSYS as u32));
    let allowed = SeccompFilter::new(rules, kill, SeccompAction::Allow, arch)?;
    let absent = MISSING.iter().filter(|call| !on_files.contains(call));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        absent.map(|call| (*call, Vec::new())).collect();
    if let Some(directory) = descriptors {
        let elsewhere = SeccompCondition::new(0, ArgLen::Dword, Op::Ne, directory as u32 as u64);
        rules.insert(libc::SYS_openat, vec![only(elsewhere)?]);
    }
    let absent = SeccompFilter::new(rules, SeccompAction::Allow, missing, arch)?;
    Ok([absent.try_into()?, allowed.try_into()?])
}

/// Leaves the calls that the server makes; with `descriptors`, a directory that is open, also
/// openat(2) in it.
///
/// # Errors
/// [`ConfineError::Filter`].
pub fn filter_calls(descriptors: Option<RawFd>) -> Result<(), ConfineError> {
    filter(Files::Anew(descriptors))
}

fn filter(files: Files) -> Result<(), ConfineError> {
    // Before one of them is in force: making them takes calls too.
    let filters = filters(files).map_err(ConfineError::Filter)?;
    // The last one keeps further ones from being set.
    for filter in &filters {
        seccompiler::apply_filter_all_threads(filter).map_err(ConfineError::Filter)?;
    }
    Ok(())
}
