//! Registers of a device, which lie in memory.
#![allow(unsafe_code)]

use core::ptr::NonNull;

/// Registers of a device: each access happens, once, in its size and in order. Offsets are checked
/// by who uses them and are multiples of the size; values are in the machine's order of bytes.
pub trait Registers {
    /// Reads a byte.
    fn read8(&self, at: usize) -> u8;
    /// Reads two.
    fn read16(&self, at: usize) -> u16;
    /// Reads four.
    fn read32(&self, at: usize) -> u32;
    /// Writes a byte.
    fn write8(&self, at: usize, value: u8);
    /// Writes two.
    fn write16(&self, at: usize, value: u16);
    /// Writes four.
    fn write32(&self, at: usize, value: u32);
}

/// Registers that lie in memory. Clones are the same registers.
#[derive(Clone, Debug)]
pub struct Mmio {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an address; the accesses are the device's to order.
unsafe impl Send for Mmio {}

impl Mmio {
    /// The `len` bytes of registers at `base`.
    ///
    /// # Safety
    /// They are mapped, as memory of a device is, for as long as this or a clone of it lives, and
    /// nothing else is there.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Mmio {
        Mmio { base, len }
    }

    /// The address of the register at `at`, of type `T`.
    #[inline]
    fn at<T>(&self, at: usize) -> *mut T {
        let size = size_of::<T>();
        let place = self.base.addr().get().wrapping_add(at);
        let is_inside = at.checked_add(size).is_some_and(|end| end <= self.len);
        assert!(place.is_multiple_of(size) && is_inside);
        // SAFETY: inside.
        unsafe { self.base.as_ptr().add(at).cast() }
    }
}

impl Registers for Mmio {
    #[inline]
    fn read8(&self, at: usize) -> u8 {
        // SAFETY: mapped and aligned.
        unsafe { self.at::<u8>(at).read_volatile() }
    }

    #[inline]
    fn read16(&self, at: usize) -> u16 {
        // SAFETY: as above.
        u16::from_le(unsafe { self.at::<u16>(at).read_volatile() })
    }

    #[inline]
    fn read32(&self, at: usize) -> u32 {
        // SAFETY: as above.
        u32::from_le(unsafe { self.at::<u32>(at).read_volatile() })
    }

    #[inline]
    fn write8(&self, at: usize, value: u8) {
        // SAFETY: as above.
        unsafe { self.at::<u8>(at).write_volatile(value) }
    }

    #[inline]
    fn write16(&self, at: usize, value: u16) {
        // SAFETY: as above.
        unsafe { self.at::<u16>(at).write_volatile(value.to_le()) }
    }

    #[inline]
    fn write32(&self, at: usize, value: u32) {
        // SAFETY: as above.
        unsafe { self.at::<u32>(at).write_volatile(value.to_le()) }
    }
}
