//! Sealing: the process keeps the volumes that it has open, its standard output, and nothing else
//! of the host.
//!
//! A sealed process may call
//!
//! | call | where |
//! |---|---|
//! | pread64 | on the descriptors of the volumes |
//! | pwrite64 | on the descriptors of the volumes, beginning before their end |
//! | msync | with MS_SYNC, within the mappings of mapped volumes |
//! | write | on descriptors 1 and 2 |
//! | exit, exit_group | |
//!
//! Everything else ends it with SIGSYS: among other things whatever opens, maps, unmaps or protects
//! memory, grows the heap, makes a process or thread, or touches the network. There is no way back.
//!
//! The consequences for the program:
//! - Memory is reserved before: [`reserve_memory`]. An allocation that the reserve cannot serve
//!   ends the process.
//! - Its volumes are opened with [`OpenOptions::sealable`](crate::device::OpenOptions), which has
//!   them make only these calls, and are never dropped: closing and unmapping are forbidden.
//! - It ends by [`exit`], or C's `_exit`. `std::process::exit`, a return from Rust's `main`, and
//!   the end of a thread that Rust started unmap a signal stack.
//! - Time comes from the vDSO, which makes no call where the host's clock can be read from user
//!   space, as x86-64's TSC and kvm-clock can.
//! - Signals that have handlers end it when the handler returns, since rt_sigreturn is forbidden.
//!   (The handler with which mapped volumes survive SIGBUS does not return.)
#![allow(unsafe_code)]

use core::ops::Range;
use std::collections::BTreeMap;
use std::os::fd::RawFd;

use atoll_block::{BLOCK_SIZE, BlockDevice};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as ArgLen, SeccompCmpOp as Op, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use crate::device::HostDevice;

/// Why a process could not be sealed.
#[derive(Debug)]
#[non_exhaustive]
pub enum SealError {
    /// A device was opened without `sealable`: it would make calls that are forbidden afterwards.
    NotSealable,
    /// The kernel has no seccomp, or refused the filter.
    Filter(seccompiler::Error),
    /// This much memory could not be reserved.
    OutOfMemory {
        /// How much was asked for, in bytes.
        bytes: usize,
    },
}

impl core::fmt::Display for SealError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SealError::NotSealable => f.write_str("the volume was not opened for sealing"),
            SealError::Filter(error) => write!(f, "the seccomp filter could not be set: {error}"),
            SealError::OutOfMemory { bytes } => write!(f, "no memory to reserve {bytes} bytes"),
        }
    }
}

impl core::error::Error for SealError {}

/// The descriptors and mappings of its volumes that a sealed process keeps. They are taken from the
/// devices before these move into file systems.
#[derive(Clone, Debug, Default)]
pub struct Permissions {
    /// Descriptors, each with the length in bytes of its volume.
    files: Vec<(RawFd, u64)>,
    mappings: Vec<Range<usize>>,
}

impl Permissions {
    /// Nothing but output and exit.
    pub fn none() -> Self {
        Permissions::default()
    }

    /// Adds what `device` needs.
    ///
    /// # Errors
    /// [`SealError::NotSealable`].
    pub fn allow(mut self, device: &HostDevice) -> Result<Self, SealError> {
        let bytes = device.block_count() * BLOCK_SIZE as u64;
        match device {
            HostDevice::Mapped(mapped) if mapped.is_sealable() => {
                self.files.push((mapped.descriptor(), bytes));
                self.mappings.push(mapped.addresses());
            }
            HostDevice::Direct(cached) if cached.device().is_sealable() => {
                self.files.extend(cached.device().descriptors().into_iter().map(|fd| (fd, bytes)));
            }
            _ => return Err(SealError::NotSealable),
        }
        Ok(self)
    }

    fn filter(&self) -> Result<BpfProgram, seccompiler::Error> {
        let fd_is = |fd: RawFd| SeccompCondition::new(0, ArgLen::Dword, Op::Eq, fd as u64);
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        for &(fd, bytes) in &self.files {
            let within = SeccompCondition::new(3, ArgLen::Qword, Op::Lt, bytes)?;
            rules.entry(libc::SYS_pread64).or_default().push(SeccompRule::new(vec![fd_is(fd)?])?);
            let rule = SeccompRule::new(vec![fd_is(fd)?, within])?;
            rules.entry(libc::SYS_pwrite64).or_default().push(rule);
        }
        for mapping in &self.mappings {
            let length = mapping.end - mapping.start;
            let rule = SeccompRule::new(vec![
                SeccompCondition::new(0, ArgLen::Qword, Op::Ge, mapping.start as u64)?,
                SeccompCondition::new(0, ArgLen::Qword, Op::Lt, mapping.end as u64)?,
                SeccompCondition::new(1, ArgLen::Qword, Op::Le, length as u64)?,
                SeccompCondition::new(2, ArgLen::Dword, Op::Eq, libc::MS_SYNC as u64)?,
            ])?;
            rules.entry(libc::SYS_msync).or_default().push(rule);
        }
        for fd in [1, 2] {
            let rule = SeccompRule::new(vec![fd_is(fd)?])?;
            rules.entry(libc::SYS_write).or_default().push(rule);
        }
        rules.insert(libc::SYS_exit, Vec::new());
        rules.insert(libc::SYS_exit_group, Vec::new());
        let arch = std::env::consts::ARCH.try_into()?;
        let kill = SeccompAction::KillProcess;
        let filter = SeccompFilter::new(rules, kill, SeccompAction::Allow, arch)?;
        Ok(filter.try_into()?)
    }
}

/// Seals the process, all its threads, for ever.
///
/// # Errors
/// [`SealError::Filter`]; nothing has changed then, but that the process can gain no privileges by
/// execve (no_new_privs).
pub fn seal(permissions: &Permissions) -> Result<(), SealError> {
    let filter = permissions.filter().map_err(SealError::Filter)?;
    seccompiler::apply_filter_all_threads(&filter).map_err(SealError::Filter)
}

/// Ends the sealed process with exit status `status`. Rust's buffer of standard output is not
/// flushed.
pub fn exit(status: i32) -> ! {
    // SAFETY: no code of this process runs after it.
    unsafe { libc::_exit(status) }
}

/// Has the heap of the C library, which Rust uses too, keep `bytes` of free memory that can be
/// allocated without a system call, touched so that it is there, and never give any back.
///
/// It serves the thread that calls; so call it, and use the volumes, in the thread that began the
/// process, before there are others. Allocations take from it with the allocator's overhead (16
/// bytes each) and fragmentation. Only glibc's allocator has the settings for this; a program with
/// another allocator reserves by that one's means.
///
/// # Errors
/// [`SealError::OutOfMemory`].
pub fn reserve_memory(bytes: usize) -> Result<(), SealError> {
    #[cfg(target_env = "gnu")]
    // SAFETY: these change where malloc takes memory from, not what it has given out.
    unsafe {
        // Everything from the one heap that brk grows: no mappings of their own for large blocks,
        // no further heaps for threads, and no shrinking.
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
    let mut reserve: Vec<u8> = Vec::new();
    reserve.try_reserve_exact(bytes).map_err(|_| SealError::OutOfMemory { bytes })?;
    // Written, so that it is touched, and not optimised away. With its release it is the free end
    // of the heap, which no longer shrinks.
    reserve.resize(bytes, 1);
    core::hint::black_box(&mut reserve);
    Ok(())
}
