//! Time: the real-time clock once, then the time-stamp counter, whose rate the hypervisor says or
//! is measured by the programmable interval timer. No call asks a device.
#![allow(clippy::cast_possible_truncation)]

use core::sync::atomic::{AtomicU64, Ordering};

use atoll_vfs::Timespec;

use crate::ports;

const NANOS: u64 = 1_000_000_000;

/// The counter at the start.
static START: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds since 1970 then.
static EPOCH: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds for a tick, as a fraction of 2^32.
static SCALE: AtomicU64 = AtomicU64::new(0);

/// Ticks of the interval timer in a second.
const TIMER_RATE: u64 = 1_193_182;
/// For how many of them the counter is watched: a quarter of a millisecond.
const WATCHED: u16 = 300;

/// Asks what has to be asked.
pub fn begin() {
    let rate = told_rate().unwrap_or_else(measured_rate).max(1_000_000);
    SCALE.store(((u128::from(NANOS) << 32) / u128::from(rate)) as u64, Ordering::Relaxed);
    EPOCH.store(real_time().saturating_mul(NANOS), Ordering::Relaxed);
    START.store(ports::tsc(), Ordering::Relaxed);
}

/// The rate of the counter, where the hypervisor says it (VMware's leaf, which KVM has too) or the
/// processor does.
fn told_rate() -> Option<u64> {
    if ports::cpuid(1)[2] & 1 << 31 != 0 && ports::cpuid(0x4000_0000)[0] >= 0x4000_0010 {
        let kilohertz = ports::cpuid(0x4000_0010)[0];
        if kilohertz > 0 {
            return Some(u64::from(kilohertz) * 1000);
        }
    }
    let leaf = (ports::cpuid(0)[0] >= 0x15).then(|| ports::cpuid(0x15))?;
    let [denominator, numerator, crystal, _] = leaf.map(u64::from);
    (denominator > 0 && numerator > 0 && crystal > 0).then(|| crystal * numerator / denominator)
}

/// The rate of the counter, watched while the interval timer's third counter goes down.
fn measured_rate() -> u64 {
    // Its gate open, its speaker off; mode 0, from 0xffff down.
    ports::write8(0x61, ports::read8(0x61) & !2 | 1);
    ports::write8(0x43, 0xb0);
    ports::write8(0x42, 0xff);
    ports::write8(0x42, 0xff);
    let count = || {
        ports::write8(0x43, 0x80);
        u16::from_le_bytes([ports::read8(0x42), ports::read8(0x42)])
    };
    let (first, begin) = (count(), ports::tsc());
    let mut gone;
    let mut tries = 0;
    loop {
        gone = first.wrapping_sub(count());
        tries += 1;
        // Without such a timer the loop ends all the same, and time goes as it may.
        if gone >= WATCHED || tries > 1_000_000 {
            break;
        }
    }
    (ports::tsc() - begin) * TIMER_RATE / u64::from(gone.max(1))
}

/// Seconds since 1970, from the real-time clock. Where there is none, time begins in 1970.
fn real_time() -> u64 {
    let read = |register: u8| {
        ports::write8(0x70, register);
        ports::read8(0x71)
    };
    let all = || [0, 2, 4, 7, 8, 9].map(read);
    // While it is being updated its registers are of two moments: the same twice is of one.
    let mut fields = all();
    // Ports without a device are all ones.
    if fields == [0xff; 6] {
        return 0;
    }
    for _ in 0..1000 {
        let again = all();
        if read(0x0a) & 0x80 == 0 && again == fields {
            break;
        }
        fields = again;
    }
    let mode = read(0x0b);
    let decimal = |byte: u8| if mode & 4 == 0 { byte / 16 * 10 + byte % 16 } else { byte };
    let [second, minute, hour, day, month, year] = fields;
    let afternoon = mode & 2 == 0 && hour & 0x80 != 0;
    let mut hours = u64::from(decimal(hour & 0x7f));
    if mode & 2 == 0 {
        hours = hours % 12 + if afternoon { 12 } else { 0 };
    }
    let days = days(2000 + u64::from(decimal(year)), decimal(month), decimal(day));
    ((days * 24 + hours) * 60 + u64::from(decimal(minute))) * 60 + u64::from(decimal(second))
}

/// Days from 1970 to a day of the Gregorian calendar.
fn days(year: u64, month: u8, day: u8) -> u64 {
    // Years begin in March, so that the day which some have comes last.
    let (month, year) = (u64::from(month), if month <= 2 { year - 1 } else { year });
    let months = (153 * ((month + 9) % 12) + 2) / 5;
    year * 365 + year / 4 - year / 100 + year / 400 + months + u64::from(day) - 1 - 719_468
}

/// Nanoseconds since the start.
pub fn monotonic() -> u64 {
    let ticks = ports::tsc().wrapping_sub(START.load(Ordering::Relaxed));
    ((u128::from(ticks) * u128::from(SCALE.load(Ordering::Relaxed))) >> 32) as u64
}

/// The time.
pub fn now() -> Timespec {
    of_nanos(EPOCH.load(Ordering::Relaxed) + monotonic())
}

/// Nanoseconds as a point in time.
pub fn of_nanos(nanos: u64) -> Timespec {
    Timespec { sec: (nanos / NANOS) as i64, nsec: (nanos % NANOS) as u32 }
}
