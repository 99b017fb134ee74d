//! Where the memory of a mapped file has pages, without a lock of its inode.
//!
//! lseek(2) with SEEK_DATA takes the inode's lock. cachestat(2) takes none: it counts the pages of
//! a range that are there, and those that are swapped out as evicted. So what holds pages is found
//! by halves.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use atoll_server::host::PAGES_LEN;
use rustix::io::Errno;

use crate::device::ioctls::page_counts;

pub(super) const PAGE: u64 = 4096;
/// The first range that is looked at, and the last: one that is written back at once.
const NEAR: u64 = 64 << 10;
/// The longest: to count its pages takes some 200 us when all are there.
const FAR: u64 = 64 << 20;
/// How many ranges one search looks at.
const LOOKS: u32 = 512;

/// How many pages that `range` touches are there.
///
/// # Errors
/// Those of cachestat(2).
pub(super) fn pages(file: BorrowedFd<'_>, range: &Range<u64>) -> Result<u64, Errno> {
    if range.is_empty() {
        // The kernel takes no length for all.
        return Ok(0);
    }
    let [cached, _, _, evicted, _] = page_counts(file, range.start, range.end - range.start)?;
    Ok(cached + evicted)
}

/// An offset from `at` on before which there are no pages: nearly that of the first page, unless
/// the search for it is long. [`PAGES_LEN`] when there is none.
///
/// # Errors
/// Those of cachestat(2).
pub(super) fn next(file: BorrowedFd<'_>, mut at: u64) -> Result<u64, Errno> {
    let (mut len, mut found) = (NEAR, false);
    for _ in 0..LOOKS {
        if at >= PAGES_LEN {
            return Ok(PAGES_LEN);
        }
        let end = (at / NEAR * NEAR + len).min(PAGES_LEN);
        if pages(file, &(at..end))? == 0 {
            at = end;
            if !found {
                len = (len * 2).min(FAR);
            }
        } else if len == NEAR {
            return Ok(at);
        } else {
            found = true;
            len /= 2;
        }
    }
    Ok(at)
}

/// Where a part of `range`, which has some length, from its beginning ends that has no more than
/// `most` bytes of pages, unless it is as short as can be; and how many it has. The search looks at
/// no more pages than these and a few hundred microseconds' worth.
///
/// # Errors
/// Those of cachestat(2).
pub(super) fn reach(
    file: BorrowedFd<'_>,
    range: &Range<u64>,
    most: u64,
) -> Result<(u64, u64), Errno> {
    let (mut at, mut bytes) = (range.start, 0);
    let (mut len, mut found) = (NEAR, false);
    for _ in 0..LOOKS {
        if at >= range.end {
            break;
        }
        let end = (at / NEAR * NEAR + len).min(range.end);
        let there = pages(file, &(at..end))? * PAGE;
        if bytes + there <= most || len == NEAR && at == range.start {
            (at, bytes) = (end, bytes + there);
            if !found {
                len = (len * 2).min(FAR);
            }
        } else if len == NEAR {
            break;
        } else {
            found = true;
            len /= 2;
        }
    }
    Ok((at, bytes))
}

/// Calls `visit` for the parts of `range` that have pages, in order, to whole pages but at its
/// ends. Stops at the first error.
///
/// # Errors
/// Those of cachestat(2) and of `visit`.
pub(super) fn parts<E: From<Errno>>(
    file: BorrowedFd<'_>,
    range: Range<u64>,
    visit: &mut impl FnMut(Range<u64>) -> Result<(), E>,
) -> Result<(), E> {
    let there = pages(file, &range)?;
    let all = range.end.div_ceil(PAGE).saturating_sub(range.start / PAGE);
    if there == 0 {
        return Ok(());
    }
    // More than all: they came while they were counted.
    if there >= all {
        return visit(range);
    }
    let half = (range.start / PAGE + all / 2) * PAGE;
    parts(file, range.start..half, visit)?;
    parts(file, half..range.end, visit)
}
