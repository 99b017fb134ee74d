//! Damaged images never make a check, a repair, a dump or a mount take much more memory than the
//! image itself.
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use atoll_block::RamDevice;
use atoll_fs::testing::mutate;
use atoll_fs::{CheckOptions, DumpOptions, Fs, MountOptions, check, dump};
use common::*;

/// Counts what is allocated.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator with its arguments unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and `alloc` is the system's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most memory that `body` takes beyond what was taken before.
fn peak(body: impl FnOnce()) -> usize {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    body();
    PEAK.load(Relaxed) - before
}

struct Nowhere;

impl std::fmt::Write for Nowhere {
    fn write_str(&mut self, _: &str) -> std::fmt::Result {
        Ok(())
    }
}

// One test in this file: another in parallel would be counted too.
#[test]
fn memory_is_bounded_by_the_image() {
    let mut original = RamDevice::new(500);
    format_seeded(&mut original, 8);
    let mut fs = Fs::mount(original, &mount_options()).unwrap();
    work(&mut fs, &mut Rng::new(8), 700);
    let original = fs.device().clone();
    // The cache has a bound of its own, which is not tested here.
    let small_cache = MountOptions { cache_bytes: 1 << 20, ..mount_options() };
    let mut most = 0;
    for seed in 0..500 {
        let mut device = original.clone();
        mutate(device.bytes_mut(), seed);
        let unrepaired = device.clone();
        let options = CheckOptions { repair: true, incarnation: BOOT, now: CX.now };
        let taken = [
            peak(|| drop(check(&mut device, &CheckOptions { repair: false, ..options }))),
            peak(|| drop(check(&mut device, &options))),
            peak(|| _ = dump(&mut device, &DumpOptions::default(), &mut Nowhere)),
            peak(|| drop(Fs::mount(unrepaired, &small_cache))),
        ];
        most = most.max(taken.into_iter().max().unwrap());
        let image = device.bytes().len();
        assert!(taken.iter().all(|&t| t < 3 * image), "seed {seed}: {taken:?} of {image}");
    }
    println!("at most {most} bytes for images of {}", original.bytes().len());
}
