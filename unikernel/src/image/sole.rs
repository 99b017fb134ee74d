//! State that exists once, in a machine that does one thing at a time.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// A value that is set once, before it is used.
pub struct Sole<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: there is one processor, and no interrupt while the image runs, so nothing is shared
// between threads; the callers of `get` answer for calls within calls.
unsafe impl<T> Sync for Sole<T> {}

impl<T> Sole<T> {
    /// Not set yet.
    pub const fn new() -> Self {
        Sole(UnsafeCell::new(MaybeUninit::uninit()))
    }

    /// Sets it.
    ///
    /// # Safety
    /// Nothing holds a reference that [`get`](Self::get) gave.
    pub unsafe fn set(&self, value: T) {
        // SAFETY: as the caller promises.
        unsafe { (*self.0.get()).write(value) };
    }

    /// The value.
    ///
    /// # Safety
    /// It has been set, and no other reference to it is used while this one is.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self) -> &mut T {
        // SAFETY: as the caller promises.
        unsafe { (*self.0.get()).assume_init_mut() }
    }
}
