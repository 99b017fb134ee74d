//! The machine's memory by frames of 4 KiB. All of it is found at [`DIRECT`] and its physical
//! address, but for the 4 MiB in which the image lies.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;

use atoll_unikernel::PAGE;

/// Where physical memory is found.
pub const DIRECT: u64 = 0xffff_8000_0000_0000;
/// The image lies below, and what is there is never given out.
pub const FIRST: u64 = 0x40_0000;
/// The most pieces that memory may be in.
const PIECES: usize = 32;
/// Of so many frames one is kept for page tables.
const TABLES: u64 = 64;

/// Free memory.
struct Frames {
    /// Pieces that were never given out: from, to.
    pieces: [(u64, u64); PIECES],
    count: usize,
    /// The first of those that were given back, each of which names the next; 0 for none.
    returned: u64,
    /// All frames there are.
    total: u64,
    /// Those that are given out.
    used: u64,
    /// Those that are promised.
    promised: u64,
}

struct Cell(UnsafeCell<Frames>);
// SAFETY: there is one processor, and no interrupt while the image runs. A fault may come while a
// function below runs only if that function touches memory which is not there, and none does.
unsafe impl Sync for Cell {}

static FRAMES: Cell = Cell(UnsafeCell::new(Frames {
    pieces: [(0, 0); PIECES],
    count: 0,
    returned: 0,
    total: 0,
    used: 0,
    promised: 0,
}));

fn frames() -> &'static mut Frames {
    // SAFETY: the functions below call no other that asks for it while they have it.
    unsafe { &mut *FRAMES.0.get() }
}

/// Adds the memory from `start` to `end`, whole frames of it.
pub fn add(start: u64, end: u64) {
    let (start, end) = (start.max(FIRST).next_multiple_of(PAGE), end & !(PAGE - 1));
    let frames = frames();
    if start < end && frames.count < PIECES {
        frames.pieces[frames.count] = (start, end);
        frames.count += 1;
        frames.total += (end - start) / PAGE;
    }
}

/// Takes a frame, whose content is whatever it was.
pub fn take() -> Option<u64> {
    let frames = frames();
    let frame = match frames.returned {
        0 => {
            let pieces = frames.pieces.get_mut(..frames.count)?;
            let piece = pieces.iter_mut().find(|(from, to)| from < to)?;
            piece.0 += PAGE;
            piece.0 - PAGE
        }
        returned => {
            // SAFETY: a frame that was given back holds the number of the next.
            frames.returned = unsafe { *((DIRECT + returned) as *const u64) };
            returned
        }
    };
    frames.used += 1;
    Some(frame)
}

/// Takes `count` frames in a row.
pub fn take_row(count: u64) -> Option<u64> {
    let frames = frames();
    let len = count.checked_mul(PAGE)?;
    let pieces = frames.pieces.get_mut(..frames.count)?;
    let piece = pieces.iter_mut().find(|(from, to)| to - from >= len)?;
    piece.0 += len;
    frames.used += count;
    Some(piece.0 - len)
}

/// Takes a frame of zeros.
pub fn take_zeroed() -> Option<u64> {
    let frame = take()?;
    // SAFETY: nobody else has the frame.
    unsafe { core::ptr::write_bytes((DIRECT + frame) as *mut u8, 0, PAGE as usize) };
    Some(frame)
}

/// Gives a frame back.
///
/// # Safety
/// It was taken, and nothing reaches it any more.
pub unsafe fn give(frame: u64) {
    let frames = frames();
    // SAFETY: as the caller promises.
    unsafe { *((DIRECT + frame) as *mut u64) = frames.returned };
    frames.returned = frame;
    frames.used -= 1;
}

/// Promises `pages` frames for later. False: there are not so many.
pub fn promise(pages: u64) -> bool {
    let frames = frames();
    let most = frames.total - frames.total / TABLES;
    let fits = frames.promised.checked_add(pages).is_some_and(|promised| promised <= most);
    if fits {
        frames.promised += pages;
    }
    fits
}

/// Takes a promise back.
pub fn release(pages: u64) {
    let frames = frames();
    frames.promised = frames.promised.saturating_sub(pages);
}

/// Bytes of memory, and those that are not given out.
pub fn sizes() -> (u64, u64) {
    let frames = frames();
    (frames.total * PAGE, (frames.total - frames.used) * PAGE)
}
