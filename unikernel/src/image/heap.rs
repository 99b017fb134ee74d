//! The image's heap: small blocks from dlmalloc's algorithm, large ones as pages of their own.
//! Pages get memory when they are first touched (`traps`), and are zeros then, so that a large
//! volume in memory costs what is used of it.
#![allow(unsafe_code)]

use alloc::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ops::Range;
use core::ptr::null_mut;

use atoll_unikernel::PAGE;
use dlmalloc::Dlmalloc;

use crate::{frames, paging};

/// Where small blocks lie.
const SMALL: u64 = 0xffff_a000_0000_0000;
/// Where large blocks lie, each at a multiple of [`STRIDE`]; addresses are never used twice.
const LARGE: u64 = 0xffff_b000_0000_0000;
/// Where the heap ends.
const END: u64 = 0xffff_c000_0000_0000;
/// A block of so many bytes has pages of its own.
const LARGE_BYTES: usize = 256 << 10;
/// What a page table is for.
const STRIDE: u64 = 2 << 20;

/// The allocator, and where its addresses end.
struct State {
    blocks: Dlmalloc<Pages>,
    large_end: u64,
}

/// The heap of the image.
pub struct Heap(UnsafeCell<State>);

// SAFETY: there is one processor, no interrupt while the image runs, and a fault within allocates
// nothing.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap(UnsafeCell::new(State {
    blocks: Dlmalloc::new_with_allocator(Pages(UnsafeCell::new(SMALL))),
    large_end: LARGE,
}));

/// Whether a page of the heap is at `address`.
pub fn holds(address: u64) -> bool {
    (SMALL..END).contains(&address)
}

fn large_pages(layout: &Layout) -> Option<u64> {
    (layout.size() >= LARGE_BYTES && layout.align() as u64 <= PAGE)
        .then(|| (layout.size() as u64).div_ceil(PAGE))
}

impl State {
    fn large(&mut self, pages: u64) -> *mut u8 {
        let at = self.large_end;
        let end = at.checked_add(pages * PAGE).filter(|end| *end < END - 2 * STRIDE);
        match end {
            Some(end) if frames::promise(pages) => {
                // One page at least stays free behind each block, and faults.
                self.large_end = (end + PAGE).next_multiple_of(STRIDE);
                at as *mut u8
            }
            _ => null_mut(),
        }
    }
}

// SAFETY: what is given out is in use nowhere else: dlmalloc's, or addresses never used before.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: no other reference to the state exists.
        let state = unsafe { &mut *self.0.get() };
        match large_pages(&layout) {
            Some(pages) => state.large(pages),
            // SAFETY: a size and an alignment of a layout.
            None => unsafe { state.blocks.malloc(layout.size(), layout.align()) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        let block = unsafe { self.alloc(layout) };
        if !block.is_null() && large_pages(&layout).is_none() {
            // SAFETY: it was just given out.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: no other reference to the state exists.
        let state = unsafe { &mut *self.0.get() };
        match large_pages(&layout) {
            Some(pages) => {
                let pages_of =
                    |count: u64| -> Range<u64> { block as u64..block as u64 + count * PAGE };
                // SAFETY: the caller has given the block up.
                unsafe { paging::unmap(pages_of(pages)) };
                // SAFETY: its addresses are not used again.
                unsafe { paging::forget(pages_of(pages)) };
                frames::release(pages);
            }
            // SAFETY: allocated above with this layout.
            None => unsafe { state.blocks.free(block, layout.size(), layout.align()) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's size is one of a layout.
        let wanted = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if large_pages(&layout).is_none() && large_pages(&wanted).is_none() {
            // SAFETY: no other reference to the state exists; allocated above with this layout.
            return unsafe {
                (*self.0.get()).blocks.realloc(block, layout.size(), layout.align(), size)
            };
        }
        // SAFETY: the caller's block, as long as its layout says; the new one is as long as asked.
        unsafe {
            let new = self.alloc(wanted);
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }
}

/// Where small blocks get their memory: addresses one after the other.
struct Pages(UnsafeCell<u64>);

// SAFETY: there is one processor.
unsafe impl Send for Pages {}

// SAFETY: what is given out are addresses never used before.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // SAFETY: no other reference to it exists.
        let end = unsafe { &mut *self.0.get() };
        let at = *end;
        let pages = (size as u64).div_ceil(PAGE);
        if pages > (LARGE - at) / PAGE || !frames::promise(pages) {
            return (null_mut(), 0, 0);
        }
        *end += pages * PAGE;
        (at as *mut u8, (pages * PAGE) as usize, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        PAGE as usize
    }
}
