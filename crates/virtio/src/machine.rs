//! The machine that devices by registers are in, and what their transports have in common.

use core::ops::Range;

use crate::device::{DeviceError, features};
use crate::registers::Registers;

/// Bits of a device's status (VIRTIO 1.2, 2.1).
pub(crate) mod status {
    pub const ACKNOWLEDGE: u8 = 1;
    pub const DRIVER: u8 = 2;
    pub const DRIVER_OK: u8 = 4;
    pub const FEATURES_OK: u8 = 8;
    pub const NEEDS_RESET: u8 = 64;
}

/// How often the device's status is asked for while it is being reset.
const RESETS: u64 = 1 << 20;
/// How often a configuration is read again that changes meanwhile.
const GENERATIONS: usize = 64;
/// The device is looked after each time that so many turns have passed: that may be an exit of the
/// virtual machine.
const TURNS: u64 = 1 << 16;

/// The machine that a device is in.
pub trait Machine {
    /// How it reaches registers.
    type Registers: Registers;

    /// Makes the device's memory from `address` on reachable, as registers. `None` where it
    /// cannot.
    fn map(&mut self, address: u64, len: u64) -> Option<Self::Registers>;

    /// Passes a moment while the driver waits. `turn` counts from 0 for each answer. Returns
    /// whether to look again; else the processor [sleeps](Self::sleep), if the device interrupts.
    ///
    /// # Errors
    /// [`DeviceError::Lost`] when it has waited for too long.
    fn pause(&mut self, turn: u64) -> Result<bool, DeviceError>;

    /// Sleeps until an interrupt comes, which may have come already since the last sleep.
    ///
    /// # Errors
    /// As [`pause`](Self::pause).
    fn sleep(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// The address and the data of the message that interrupts this processor. `None` where the
    /// driver polls.
    fn message(&self) -> Option<(u64, u32)> {
        None
    }

    /// Whether the line of a device that sends no messages interrupts this processor. It is held
    /// until the driver has been woken, so that it is the machine's to mask until the next sleep.
    /// `false` where the driver polls.
    fn has_line(&self) -> bool {
        false
    }
}

/// Writes two words of which the first is the lower half.
pub(crate) fn write64<R: Registers>(registers: &R, at: usize, value: u64) {
    registers.write32(at, value as u32);
    registers.write32(at + 4, (value >> 32) as u32);
}

/// The features that a device offers: both words of the register `at`, of which the register
/// `select` shows one.
pub(crate) fn offered<R: Registers>(registers: &R, select: usize, at: usize) -> u64 {
    let word = |number: u32| {
        registers.write32(select, number);
        u64::from(registers.read32(at))
    };
    word(0) | word(1) << 32
}

/// Says in the same way which features the driver takes: those of a device that keeps to version 1.
///
/// # Errors
/// [`DeviceError::Unsupported`] for others.
pub(crate) fn take<R: Registers>(
    registers: &R,
    select: usize,
    at: usize,
    accepted: u64,
) -> Result<(), DeviceError> {
    if accepted & features::VERSION_1 == 0 {
        return Err(DeviceError::Unsupported);
    }
    for number in 0..2 {
        registers.write32(select, number);
        registers.write32(at, (accepted >> (32 * number)) as u32);
    }
    Ok(())
}

/// Waits until `status`, which the driver has set to 0, is. False: the device does not reset.
pub(crate) fn wait_for_reset<M: Machine>(machine: &mut M, status: impl Fn() -> u32) -> bool {
    for turn in 0..RESETS {
        if status() == 0 {
            return true;
        }
        if machine.pause(turn).is_err() {
            break;
        }
    }
    false
}

/// Looks now and then, by its `status`, whether there will be an answer.
pub(crate) fn look_after(turn: u64, status: impl Fn() -> u32) -> Result<(), DeviceError> {
    if turn % TURNS == TURNS - 1 {
        let now = status();
        // All ones: the device has gone.
        if now & u32::from(status::NEEDS_RESET) != 0 || now == 0 {
            return Err(DeviceError::Lost);
        }
    }
    Ok(())
}

/// Copies a device's configuration, the registers `at`, from `offset` on to `out`.
pub(crate) fn configuration<R: Registers>(
    registers: &R,
    at: Range<usize>,
    offset: usize,
    out: &mut [u8],
    generation: impl Fn() -> u32,
) -> Result<(), DeviceError> {
    if offset.checked_add(out.len()).is_none_or(|end| end > at.len()) {
        return Err(DeviceError::Unsupported);
    }
    for _ in 0..GENERATIONS {
        let before = generation();
        read(registers, at.start + offset, out);
        if generation() == before {
            return Ok(());
        }
    }
    Err(DeviceError::Broken)
}

/// Copies registers out, each field in its size where it stands at a multiple of that.
fn read<R: Registers>(registers: &R, at: usize, out: &mut [u8]) {
    let (mut at, mut rest) = (at, out);
    while !rest.is_empty() {
        let len = match rest.len() {
            4.. if at.is_multiple_of(4) => 4,
            2.. if at.is_multiple_of(2) => 2,
            _ => 1,
        };
        let (now, later) = rest.split_at_mut(len);
        match len {
            4 => now.copy_from_slice(&registers.read32(at).to_le_bytes()),
            2 => now.copy_from_slice(&registers.read16(at).to_le_bytes()),
            _ => now[0] = registers.read8(at),
        }
        (at, rest) = (at + len, later);
    }
}
