//! Memory for two sides that are threads of one process, and a client that waits by yielding.
#![allow(dead_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use atoll_transport::channel::WaitStrategy;
use atoll_transport::{Lost, Memory, Shared};

/// Zeroed bytes that begin on a page.
pub struct Pages {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: only reached as `Shared`.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub fn new(len: usize) -> Self {
        let layout = Layout::from_size_align(len.max(64), 4096).unwrap();
        // SAFETY: not empty.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        Pages { base, layout }
    }

    pub fn shared(&self) -> Shared<'_> {
        // SAFETY: as long as `self` lives; reached in no other way.
        unsafe { Shared::new(self.base, self.layout.size()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: from `new`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Yields; never sleeps. Gives up after many rounds, so that a test fails rather than hangs.
#[derive(Clone, Debug, Default)]
pub struct Yielding {
    /// Rounds after which to sleep.
    pub spins: u32,
    /// How often the doorbell was rung.
    pub rung: Arc<AtomicU32>,
    pub parked: u32,
}

impl<M: Memory> WaitStrategy<M> for Yielding {
    fn spin(&mut self, round: u32) -> bool {
        std::thread::yield_now();
        round < self.spins
    }

    fn park(&mut self, _: &M, _: usize, _: u32) -> Result<(), Lost> {
        self.parked += 1;
        std::thread::yield_now();
        if self.parked > 50_000_000 { Err(Lost) } else { Ok(()) }
    }

    fn ring(&mut self) {
        self.rung.fetch_add(1, Ordering::Relaxed);
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
