//! Calls about the process itself: identity, time, signals, limits, the console.

use atoll_unikernel::abi;
use atoll_vfs::Errno;

use super::{Answer, Error};
use crate::memory::{self, STACK_BYTES};
use crate::process::{DESCRIPTORS, files};
use crate::{clock, end, frames, ports, random, told};

/// The one process, which is the first.
const PID: i64 = 1;
const NANOS: u64 = 1_000_000_000;
/// Bytes of a set of signals.
const SIGNALS: u64 = 8;
/// The most descriptors that poll(2) is asked about.
const POLLED_MAX: u64 = 1024;

pub fn exit(status: u32) -> Answer {
    end::exit(status as u8)
}

pub fn exit_group(status: u32) -> Answer {
    end::exit(status as u8)
}

pub fn getpid() -> Answer {
    Ok(PID)
}

pub fn gettid() -> Answer {
    Ok(PID)
}

pub fn set_tid_address() -> Answer {
    Ok(PID)
}

pub fn getppid() -> Answer {
    Ok(0)
}

pub fn getpgrp() -> Answer {
    Ok(PID)
}

pub fn getpgid() -> Answer {
    Ok(PID)
}

pub fn setpgid() -> Answer {
    Ok(0)
}

pub fn getsid() -> Answer {
    Ok(PID)
}

pub fn setsid() -> Answer {
    Ok(PID)
}

pub fn getuid() -> Answer {
    Ok(0)
}

pub fn geteuid() -> Answer {
    Ok(0)
}

pub fn getgid() -> Answer {
    Ok(0)
}

pub fn getegid() -> Answer {
    Ok(0)
}

pub fn getgroups() -> Answer {
    Ok(0)
}

pub fn setgroups() -> Answer {
    Ok(0)
}

/// The superuser stays what it is: nobody else is here to be protected from.
fn set_id(id: u32) -> Answer {
    if id == 0 { Ok(0) } else { Err(Errno::EPERM.into()) }
}

pub fn setuid(id: u32) -> Answer {
    set_id(id)
}

pub fn setgid(id: u32) -> Answer {
    set_id(id)
}

pub fn sched_yield() -> Answer {
    Ok(0)
}

pub fn readahead() -> Answer {
    Ok(0)
}

pub fn sched_getaffinity(_pid: i32, len: u64, to: u64) -> Answer {
    if len < 8 {
        return Err(Errno::EINVAL.into());
    }
    memory::put(to, &1_u64.to_le_bytes())?;
    Ok(8)
}

pub fn futex(word: u64, operation: u32, value: u32) -> Answer {
    // FUTEX_WAIT would be for ever: there is no other thread to wake this one.
    if operation & 0x7f == 0 && u32::from_le_bytes(memory::array(word)?) != value {
        return Err(Errno::EAGAIN.into());
    }
    Ok(0)
}

/// There is no other thread that would look at the list.
pub fn set_robust_list() -> Answer {
    Ok(0)
}

/// clone(2): there is no room for another thread, which is what the C library and its callers are
/// ready for; they may do the work in the one that there is. A process of its own is another thing.
pub fn clone(flags: u64) -> Answer {
    const VM: u64 = 0x100;
    Err(if flags & VM != 0 { Errno::EAGAIN } else { Errno::ENOSYS }.into())
}

/// Restartable sequences: every C library asks, and does without.
pub fn rseq() -> Answer {
    Err(Errno::ENOSYS.into())
}

pub fn prctl(operation: u32) -> Answer {
    // PR_SET_NAME: nobody asks for it.
    if operation == 15 { Ok(0) } else { Err(Errno::EINVAL.into()) }
}

// ---- signals ----

/// Nothing sends signals but the program to itself: handlers are taken, and never called.
pub fn rt_sigaction(signal: u32, action: u64, old: u64, size: u64) -> Answer {
    if size != SIGNALS || signal == 0 || signal > 64 {
        return Err(Errno::EINVAL.into());
    }
    if action != 0 {
        memory::bytes(action, 32)?;
    }
    if old != 0 {
        memory::bytes_mut(old, 32)?.fill(0);
    }
    Ok(0)
}

pub fn rt_sigprocmask(_how: u32, _set: u64, old: u64, size: u64) -> Answer {
    if size != SIGNALS {
        return Err(Errno::EINVAL.into());
    }
    if old != 0 {
        memory::put(old, &[0; SIGNALS as usize])?;
    }
    Ok(0)
}

pub fn sigaltstack(_new: u64, old: u64) -> Answer {
    if old != 0 {
        // SS_DISABLE.
        let mut none = [0; 24];
        none[8] = 2;
        memory::put(old, &none)?;
    }
    Ok(0)
}

/// A signal that the program sends to itself ends it, as it would without a handler.
fn signal(pid: i32, signal: u32) -> Answer {
    match signal {
        _ if !(-1..=1).contains(&pid) => Err(Error::NO_PROCESS),
        0 => Ok(0),
        1..=64 => {
            // SIGCHLD, SIGCONT, SIGURG and SIGWINCH are ignored.
            if [17, 18, 23, 28].contains(&signal) { Ok(0) } else { end::exit(128 + signal as u8) }
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

pub fn kill(pid: i32, number: u32) -> Answer {
    signal(pid, number)
}

pub fn tkill(tid: i32, number: u32) -> Answer {
    signal(tid, number)
}

pub fn tgkill(_pid: i32, tid: i32, number: u32) -> Answer {
    signal(tid, number)
}

pub fn wait4() -> Answer {
    Err(Error::NO_CHILD)
}

// ---- time ----

/// The time of a clock in nanoseconds.
fn nanos(number: u32) -> Result<u64, Error> {
    match number {
        // The real time, and its coarse form.
        0 | 5 | 11 => {
            let now = clock::now();
            Ok(now.sec as u64 * NANOS + u64::from(now.nsec))
        }
        // Since the start: of this machine, of the process, of its thread.
        1 | 2 | 3 | 4 | 6 | 7 => Ok(clock::monotonic()),
        _ => Err(Errno::EINVAL.into()),
    }
}

pub fn clock_gettime(number: u32, to: u64) -> Answer {
    memory::put(to, &abi::timespec(clock::of_nanos(nanos(number)?)))?;
    Ok(0)
}

pub fn clock_getres(number: u32, to: u64) -> Answer {
    nanos(number)?;
    if to != 0 {
        memory::put(to, &abi::timespec(clock::of_nanos(1)))?;
    }
    Ok(0)
}

pub fn gettimeofday(to: u64) -> Answer {
    if to != 0 {
        let now = clock::now();
        let mut out = abi::timespec(now);
        out[8..].copy_from_slice(&u64::from(now.nsec / 1000).to_le_bytes());
        memory::put(to, &out)?;
    }
    Ok(0)
}

pub fn time(to: u64) -> Answer {
    let now = clock::now().sec;
    if to != 0 {
        memory::put(to, &now.to_le_bytes())?;
    }
    Ok(now)
}

pub fn times(to: u64) -> Answer {
    let ticks = (clock::monotonic() / (NANOS / 100)) as i64;
    if to != 0 {
        let mut out = [0; 32];
        out[..8].copy_from_slice(&ticks.to_le_bytes());
        memory::put(to, &out)?;
    }
    Ok(ticks)
}

pub fn nanosleep(time: u64, _left: u64) -> Answer {
    let (sec, nsec) = abi::read_timespec(&memory::array(time)?);
    if sec < 0 || !(0..NANOS as i64).contains(&nsec) {
        return Err(Errno::EINVAL.into());
    }
    let more = (sec as u64).saturating_mul(NANOS).saturating_add(nsec as u64);
    wait_until(clock::monotonic().saturating_add(more))
}

pub fn clock_nanosleep(number: u32, flags: u32, time: u64, left: u64) -> Answer {
    // TIMER_ABSTIME.
    if flags & 1 == 0 {
        return nanosleep(time, left);
    }
    let (sec, nsec) = abi::read_timespec(&memory::array(time)?);
    if sec < 0 || !(0..NANOS as i64).contains(&nsec) {
        return Err(Errno::EINVAL.into());
    }
    let until = (sec as u64).saturating_mul(NANOS).saturating_add(nsec as u64);
    let more = until.saturating_sub(nanos(number)?);
    wait_until(clock::monotonic().saturating_add(more))
}

fn wait_until(moment: u64) -> Answer {
    while clock::monotonic() < moment {
        told::take_all();
        ports::pause();
    }
    Ok(0)
}

pub fn getrusage(_who: u32, to: u64) -> Answer {
    let used = clock::monotonic();
    let out = memory::bytes_mut(to, 144)?;
    out.fill(0);
    out[..8].copy_from_slice(&(used / NANOS).to_le_bytes());
    out[8..16].copy_from_slice(&(used % NANOS / 1000).to_le_bytes());
    Ok(0)
}

// ---- the system ----

pub fn uname(to: u64) -> Answer {
    memory::put(to, &abi::utsname())?;
    Ok(0)
}

pub fn sysinfo(to: u64) -> Answer {
    let (memory, free) = frames::sizes();
    memory::put(to, &abi::sysinfo(clock::monotonic() / NANOS, memory, free))?;
    Ok(0)
}

pub fn getrandom(to: u64, len: u64) -> Answer {
    let to = memory::bytes_mut(to, len.min(1 << 20))?;
    random::fill(to)?;
    Ok(to.len() as i64)
}

pub fn getrlimit(resource: u32, to: u64) -> Answer {
    prlimit64(0, resource, 0, to)
}

/// A limit that is set is not: what there is is there.
pub fn setrlimit() -> Answer {
    Ok(0)
}

pub fn prlimit64(_pid: i32, resource: u32, new: u64, old: u64) -> Answer {
    let limit = match resource {
        // RLIMIT_STACK, RLIMIT_NPROC, RLIMIT_NOFILE.
        3 => STACK_BYTES,
        6 => 1,
        7 => DESCRIPTORS as u64,
        0..16 => u64::MAX,
        _ => return Err(Errno::EINVAL.into()),
    };
    if new != 0 {
        memory::bytes(new, 16)?;
    }
    if old != 0 {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&limit.to_le_bytes());
        out[8..].copy_from_slice(&limit.to_le_bytes());
        memory::put(old, &out)?;
    }
    Ok(0)
}

pub fn arch_prctl(code: u32, address: u64) -> Answer {
    let register = match code {
        0x1001 | 0x1004 => ports::GS_BASE,
        0x1002 | 0x1003 => ports::FS_BASE,
        _ => return Err(Errno::EINVAL.into()),
    };
    match code {
        0x1001 | 0x1002 if address < atoll_unikernel::elf::END => {
            ports::set_base(register, address);
        }
        0x1001 | 0x1002 => return Err(Errno::EPERM.into()),
        _ => memory::put(address, &ports::read_msr(register).to_le_bytes())?,
    }
    Ok(0)
}

pub fn ioctl(fd: i32, request: u32, argument: u64) -> Answer {
    files().status_flags(fd)?;
    match request {
        // FIONREAD: nobody knows what will come.
        0x541b => memory::put(argument, &0_u32.to_le_bytes())?,
        // FIOCLEX and FIONCLEX.
        0x5451 => files().set_descriptor_flags(fd, true)?,
        0x5450 => files().set_descriptor_flags(fd, false)?,
        // No stream is a terminal's: what is on the other side of the line is not known.
        _ => return Err(Errno::ENOTTY.into()),
    }
    Ok(0)
}

/// poll(2): files are always ready, and so are the streams, since a read of them waits.
pub fn poll(list: u64, count: u64) -> Answer {
    if count > POLLED_MAX {
        return Err(Errno::EINVAL.into());
    }
    let mut ready = 0;
    for entry in memory::bytes_mut(list, count * 8)?.chunks_exact_mut(8) {
        let fd = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let wanted = u16::from_le_bytes([entry[4], entry[5]]);
        let found = match fd {
            ..0 => 0,
            // POLLNVAL.
            _ if files().status_flags(fd).is_err() => 0x20,
            // POLLIN and POLLOUT, and what is the same for files.
            _ => wanted & 0x145,
        };
        entry[6..8].copy_from_slice(&found.to_le_bytes());
        ready += i64::from(found != 0);
    }
    Ok(ready)
}

pub fn ppoll(list: u64, count: u64) -> Answer {
    poll(list, count)
}
