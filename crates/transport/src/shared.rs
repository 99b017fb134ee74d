//! Memory that the other side reads and writes at the same time.
//!
//! Nothing in it is trusted: words are read once, by atomic loads, and checked; bytes are copied
//! out before anything looks at them.
#![allow(unsafe_code)]

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// A range of shared memory, by base and length. Offsets are checked against the length; nothing in
/// the memory is.
#[derive(Clone, Copy, Debug)]
pub struct Shared<'a> {
    base: NonNull<u8>,
    len: usize,
    mapped: PhantomData<&'a AtomicU64>,
}

// SAFETY: all access is by atomics or by copies that expect the bytes to change.
unsafe impl Send for Shared<'_> {}
// SAFETY: as above.
unsafe impl Sync for Shared<'_> {}

impl<'a> Shared<'a> {
    /// The `len` bytes at `base`.
    ///
    /// # Safety
    /// They stay mapped for `'a`, readable, and writable if anything is written through this value;
    /// nothing in this process takes a reference to them that forbids others to change them.
    ///
    /// # Panics
    /// Unless `base` is a multiple of 64.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        assert!(base.as_ptr().addr().is_multiple_of(64), "shared memory begins on a cache line");
        Shared { base, len, mapped: PhantomData }
    }

    /// Memory that only this process has, for tests: there is no other side but who holds copies of
    /// this.
    ///
    /// # Panics
    /// Unless it begins on a multiple of 64.
    pub fn from_slice(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        let base = NonNull::from(bytes).cast();
        // SAFETY: borrowed for as long, and from everybody else.
        unsafe { Shared::new(base, len) }
    }

    /// The length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    #[inline]
    pub const fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The `len` bytes from `offset`, if they lie inside and begin on a cache line.
    #[inline]
    pub fn part(&self, offset: usize, len: usize) -> Option<Shared<'a>> {
        if !offset.is_multiple_of(64) || !self.contains(offset, len) {
            return None;
        }
        // SAFETY: inside.
        let base = unsafe { self.base.add(offset) };
        Some(Shared { base, len, mapped: PhantomData })
    }

    /// Whether the `len` bytes from `offset` lie inside.
    #[inline]
    pub fn contains(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// The 16-bit word at `offset`.
    ///
    /// # Panics
    /// As [`u32`](Self::u32), for 2.
    #[inline]
    pub fn u16(&self, offset: usize) -> &'a AtomicU16 {
        assert!(offset.is_multiple_of(2) && self.contains(offset, 2));
        // SAFETY: inside and aligned, since the base is; atomics may change under a shared
        // reference.
        unsafe { self.base.add(offset).cast::<AtomicU16>().as_ref() }
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Panics
    /// When it is not inside or `offset` no multiple of 4: offsets come from this side's layout,
    /// never from the memory.
    #[inline]
    pub fn u32(&self, offset: usize) -> &'a AtomicU32 {
        assert!(offset.is_multiple_of(4) && self.contains(offset, 4));
        // SAFETY: inside and aligned, since the base is; atomics may change under a shared
        // reference.
        unsafe { self.base.add(offset).cast::<AtomicU32>().as_ref() }
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Panics
    /// As [`u32`](Self::u32), for 8.
    #[inline]
    pub fn u64(&self, offset: usize) -> &'a AtomicU64 {
        assert!(offset.is_multiple_of(8) && self.contains(offset, 8));
        // SAFETY: as above.
        unsafe { self.base.add(offset).cast::<AtomicU64>().as_ref() }
    }

    /// The `count` 64-bit words from `offset`. A side whose mapping cannot be written may only load
    /// them, relaxed or acquiring.
    ///
    /// # Panics
    /// As [`u64`](Self::u64), for all of them.
    #[inline]
    pub fn words(&self, offset: usize, count: usize) -> &'a [AtomicU64] {
        let len = count.checked_mul(8).filter(|&len| self.contains(offset, len));
        assert!(offset.is_multiple_of(8) && len.is_some());
        // SAFETY: inside and aligned, since the base is; atomics may change under a shared
        // reference.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).cast().as_ptr(), count) }
    }

    /// The address of the byte at `offset`, for comparing it with others.
    pub fn address(&self, offset: usize) -> usize {
        self.base.as_ptr().addr().wrapping_add(offset)
    }

    /// Copies the bytes at `offset` to `out`. Bytes that another side writes meanwhile arrive torn.
    ///
    /// # Panics
    /// When they are not inside.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(self.contains(offset, out.len()));
        // SAFETY: inside. `out` is this process's own, so that the ranges do not overlap. The
        // source may change during the copy, which yields some bytes, old or new.
        unsafe {
            self.base.add(offset).as_ptr().copy_to_nonoverlapping(out.as_mut_ptr(), out.len());
        }
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// When it does not fit inside.
    #[inline]
    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(self.contains(offset, data.len()));
        // SAFETY: inside; `data` is this process's own.
        unsafe {
            self.base.add(offset).as_ptr().copy_from_nonoverlapping(data.as_ptr(), data.len());
        }
    }

    /// The bytes at `offset` as a slice, for handing large data to code that copies it on without
    /// looking at it.
    ///
    /// # Safety
    /// The callee copies, and decides nothing by the bytes' values: another process may be changing
    /// them.
    ///
    /// # Panics
    /// When they are not inside.
    #[inline]
    pub unsafe fn bytes(&self, offset: usize, len: usize) -> &'a [u8] {
        assert!(self.contains(offset, len));
        // SAFETY: inside; the caller promises the rest.
        unsafe { core::slice::from_raw_parts(self.base.add(offset).as_ptr(), len) }
    }

    /// As [`bytes`](Self::bytes), to be filled.
    ///
    /// # Safety
    /// As there; and no other slice of these bytes exists in this process.
    ///
    /// # Panics
    /// When they are not inside.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes_mut(&self, offset: usize, len: usize) -> &'a mut [u8] {
        assert!(self.contains(offset, len));
        // SAFETY: inside; the caller promises the rest.
        unsafe { core::slice::from_raw_parts_mut(self.base.add(offset).as_ptr(), len) }
    }
}
