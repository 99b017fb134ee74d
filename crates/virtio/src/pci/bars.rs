//! A function's ranges of memory: base address registers (PCI Local Bus 3.0, 6.2.5.1).

use super::space::{ConfigSpace, Function, command, words};
use crate::device::DeviceError;

/// How many registers a function has.
pub const BARS: usize = 6;

/// A range of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bar {
    /// Its first byte; 0 where nobody has given it a place.
    pub address: u64,
    /// Its length in bytes; 0 where there is none.
    pub len: u64,
    /// Whether it may lie above 4 GiB.
    pub is_wide: bool,
}

/// Addresses that nothing has yet, from which devices without any get theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    next: u64,
    end: u64,
}

impl Gap {
    /// The addresses from `begin` up to but not including `end`.
    pub fn new(begin: u64, end: u64) -> Gap {
        Gap { next: begin, end }
    }

    /// Takes `len` bytes, a power of two, at a multiple of it.
    fn take(&mut self, len: u64) -> Option<u64> {
        let begin = self.next.checked_next_multiple_of(len)?;
        let end = begin.checked_add(len).filter(|&end| end <= self.end)?;
        self.next = end;
        Some(begin).filter(|&begin| begin != 0)
    }
}

/// Reads where a function's memory is, and gives a place to what has none: from `low`, which lies
/// below 4 GiB, or, where it may lie above and `low` has no room, from `high`. Afterwards the
/// function answers at these addresses and may reach memory itself. Ports get no place.
///
/// # Errors
/// [`DeviceError::NoMemory`] when there is no room.
pub fn settle<C: ConfigSpace>(
    space: &mut C,
    function: Function,
    low: &mut Gap,
    high: &mut Gap,
) -> Result<[Bar; BARS], DeviceError> {
    let before = space.read(function, words::COMMAND) & command::OWN;
    // While a register is all ones the function must answer nowhere.
    let silent = before & !(command::MEMORY | command::IO);
    space.write(function, words::COMMAND, silent);
    let mut bars = [Bar::default(); BARS];
    let mut number = 0;
    while number < BARS {
        let at = words::BARS + 4 * number as u16;
        let bar = size(space, function, at, number);
        let wide = bar.is_wide;
        let placed = match bar {
            Bar { len: 0, .. } => bar,
            Bar { address: 0, len, .. } => {
                let address = low.take(len).or_else(|| high.take(len).filter(|_| wide));
                let address = address.ok_or(DeviceError::NoMemory)?;
                space.write(function, at, address as u32);
                if wide {
                    space.write(function, at + 4, (address >> 32) as u32);
                }
                Bar { address, ..bar }
            }
            Bar { .. } => bar,
        };
        bars[number] = placed;
        number += if wide { 2 } else { 1 };
    }
    let on = command::MEMORY | command::MASTER | command::NO_INTERRUPT;
    space.write(function, words::COMMAND, before | on);
    Ok(bars)
}

/// Which bits of the register at `at`, which is `was`, can be set.
fn probe<C: ConfigSpace>(space: &mut C, function: Function, at: u16, was: u32) -> u32 {
    space.write(function, at, u32::MAX);
    let ones = space.read(function, at);
    space.write(function, at, was);
    ones
}

/// Finds out how long the range of the register at `at` is.
fn size<C: ConfigSpace>(space: &mut C, function: Function, at: u16, number: usize) -> Bar {
    let low = space.read(function, at);
    // Ports.
    if low & 1 != 0 {
        return Bar::default();
    }
    let is_wide = low & 6 == 4 && number + 1 < BARS;
    let ones = u64::from(probe(space, function, at, low) & !0xf);
    let (above, high) = match is_wide {
        true => {
            let above = space.read(function, at + 4);
            (above, u64::from(probe(space, function, at + 4, above)) << 32)
        }
        // As if more bits could be set.
        false if ones != 0 => (0, u64::from(u32::MAX) << 32),
        false => (0, 0),
    };
    let len = (high | ones).wrapping_neg();
    let len = if len.is_power_of_two() { len } else { 0 };
    Bar { address: u64::from(above) << 32 | u64::from(low & !0xf), len, is_wide }
}
