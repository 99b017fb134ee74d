//! The confinement of a broker and its children.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as ArgLen, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use crate::server::confine;

/// Leaves this process, and those that it forks, what a broker needs: no file, no new program, no
/// capability, and of calls those that are listed here. Others end the process.
///
/// # Errors
/// The kernel's refusal.
pub(super) fn confine() -> io::Result<()> {
    let other = |error: &dyn std::fmt::Display| io::Error::other(error.to_string());
    confine::drop_privileges().map_err(|error| other(&error))?;
    confine::landlock().map_err(|error| other(&error))?;
    let filter = filter().map_err(|error| other(&error))?;
    for filter in &filter {
        seccompiler::apply_filter(filter).map_err(|error| other(&error))?;
    }
    Ok(())
}

const ALLOWED: &[i64] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // Children, and the end.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    libc::SYS_wait4,
    libc::SYS_pidfd_open,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_futex,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_prlimit64,
    libc::SYS_getrandom,
    // Time.
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    libc::SYS_ppoll,
    // Descriptors.
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_fstat,
    // Of the memory of a ring, which greeters cut at its end.
    libc::SYS_ftruncate,
    libc::SYS_accept4,
    libc::SYS_socketpair,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
];

/// Calls that a library tries and can do without.
const MISSING: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_ioctl,
    libc::SYS_membarrier,
    libc::SYS_sched_getaffinity,
];

/// The commands of fcntl(2) that are used.
const FCNTL: &[i32] =
    &[libc::F_GETFD, libc::F_GETFL, libc::F_SETFL, libc::F_DUPFD_CLOEXEC, libc::F_GET_SEALS];

/// The kinds of namespaces, and what a thread would be made with.
const NO_PROCESS: i32 = libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_VM;

/// The two filters: of their verdicts the kernel takes the stricter.
fn filter() -> Result<[BpfProgram; 2], seccompiler::Error> {
    let only = |condition: Result<SeccompCondition, seccompiler::BackendError>| {
        SeccompRule::new(vec![condition?])
    };
    let is_clear = |argument, bits: i32| {
        SeccompCondition::new(argument, ArgLen::Dword, Op::MaskedEq(bits as u32 as u64), 0)
    };
    let calls = |calls: &[i64]| calls.iter().map(|call| (*call, Vec::new())).collect();
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls(ALLOWED);
    rules.extend(calls(MISSING));
    rules.insert(libc::SYS_mmap, vec![only(is_clear(2, libc::PROT_EXEC))?]);
    rules.insert(libc::SYS_mprotect, vec![only(is_clear(2, libc::PROT_EXEC))?]);
    rules.insert(libc::SYS_clone, vec![only(is_clear(0, NO_PROCESS))?]);
    let is = |argument, value: i32| {
        SeccompCondition::new(argument, ArgLen::Dword, Op::Eq, value as u32 as u64)
    };
    rules.insert(libc::SYS_prctl, vec![only(is(0, libc::PR_SET_PDEATHSIG))?]);
    let fcntl = FCNTL.iter().map(|&what| only(is(1, what)));
    rules.insert(libc::SYS_fcntl, fcntl.collect::<Result<_, _>>()?);
    let arch: seccompiler::TargetArch = std::env::consts::ARCH.try_into()?;
    let (kill, missing) = (SeccompAction::KillProcess, SeccompAction::Errno(libc::ENOSYS as u32));
    let allowed = SeccompFilter::new(rules, kill, SeccompAction::Allow, arch)?;
    let absent = SeccompFilter::new(calls(MISSING), SeccompAction::Allow, missing, arch)?;
    Ok([absent.try_into()?, allowed.try_into()?])
}
