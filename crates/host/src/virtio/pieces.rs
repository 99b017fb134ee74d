//! The data of a request where it lies: the pieces of the guest's memory that its descriptors name,
//! as slices. Where it cannot be had so it is copied.
//!
//! Only for front ends that no limit binds: who has a guest's memory can hold up whoever touches
//! it, by punching holes into it, and data in its place is touched with the volume locked.
#![allow(unsafe_code)]

use atoll_transport::Shared;

use super::Broken;
use super::memory::GuestMemory;

/// Fewer bytes are copied as quickly.
pub(super) const WORTHWHILE: usize = 4096;
/// Pieces that are shorter than this on average are copied as quickly.
const PIECE: usize = 2048;

/// The parts of `places` after the first `skip` bytes, `len` bytes of them, or as many as there
/// are: addresses and lengths, none of which is 0. Beyond the last address there is no memory.
fn parts(places: &[(u64, u32)], mut skip: usize, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let mut left = len;
    places.iter().filter_map(move |&(addr, room)| {
        let before = skip.min(room as usize);
        let now = (room as usize - before).min(left);
        (skip, left) = (skip - before, left - now);
        (now > 0).then_some((addr.saturating_add(before as u64), now))
    })
}

/// Marks the pages of the `len` bytes in `places` after the first `skip`: they may have been
/// written.
pub(super) fn mark(
    memory: &GuestMemory,
    places: &[(u64, u32)],
    skip: usize,
    len: usize,
) -> Result<(), Broken> {
    parts(places, skip, len).try_for_each(|(addr, len)| memory.mark(addr, len as u64))
}

/// The pieces of memory in `places` after the first `skip` bytes, `len` bytes of them: addresses in
/// this process. `None` where one is not mapped in one piece, or they are worth nothing.
fn spans<'a>(
    memory: &'a GuestMemory,
    places: &[(u64, u32)],
    skip: usize,
    len: usize,
) -> Option<Vec<(Shared<'a>, usize, usize)>> {
    let mut spans = Vec::with_capacity(places.len());
    let mut left = len;
    for (addr, now) in parts(places, skip, len) {
        let (shared, at) = memory.mapped(addr, now as u64)?;
        spans.push((shared, at, now));
        left -= now;
    }
    (left == 0 && len >= WORTHWHILE && spans.len() <= len / PIECE + 2).then_some(spans)
}

/// The `len` bytes in `places` after the first `skip`, which the guest may change meanwhile: they
/// are to be copied, and nothing may be decided by them.
pub(super) fn data<'a>(
    memory: &'a GuestMemory,
    places: &[(u64, u32)],
    skip: usize,
    len: usize,
) -> Option<Vec<&'a [u8]>> {
    let spans = spans(memory, places, skip, len)?;
    // SAFETY: they are the data of a request, which carriers hand to code that copies it.
    Some(spans.into_iter().map(|(shared, at, len)| unsafe { shared.bytes(at, len) }).collect())
}

/// The same as a place to be filled.
#[allow(clippy::mut_from_ref)]
pub(super) fn room<'a>(
    memory: &'a GuestMemory,
    places: &[(u64, u32)],
    skip: usize,
    len: usize,
) -> Option<Vec<&'a mut [u8]>> {
    let spans = spans(memory, places, skip, len)?;
    // Two slices of the same bytes must not be: a guest can ask for that.
    let mut sorted: Vec<(usize, usize)> =
        spans.iter().map(|(shared, at, len)| (shared.address(*at), *len)).collect();
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        return None;
    }
    // SAFETY: they are a request's room, which is only written. Of these bytes there is no other
    // slice: none of this request as was just seen, and none of another, since the device's thread
    // serves one at a time.
    Some(spans.into_iter().map(|(shared, at, len)| unsafe { shared.bytes_mut(at, len) }).collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::memory::Place;
    use super::*;
    use crate::shm::SharedMemory;

    const LEN: u64 = 64 << 10;

    fn memory() -> GuestMemory {
        let mut memory = GuestMemory::default();
        for (at, sealed) in [(0, true), (1, true), (2, false)] {
            let file = match sealed {
                true => {
                    let file = SharedMemory::create("test", LEN as usize).unwrap();
                    file.as_fd().try_clone_to_owned().unwrap()
                }
                false => {
                    let flags = rustix::fs::MemfdFlags::CLOEXEC;
                    let file = rustix::fs::memfd_create("test", flags).unwrap();
                    rustix::fs::ftruncate(&file, LEN).unwrap();
                    file
                }
            };
            let place = Place { guest: at * LEN, user: (1 << 40) + at * LEN, len: LEN, at: 0 };
            memory.add(place, file).unwrap();
        }
        memory
    }

    #[test]
    fn pieces_are_the_bytes_of_the_places() {
        let memory = memory();
        let bytes: Vec<u8> = (0..3 * LEN as usize).map(|at| (at % 251) as u8).collect();
        memory.write(0, &bytes).unwrap();
        // In two regions, in any order, the first begun before.
        let places = [(100, 50), (LEN + 4096, 5000), (0, 0), (8192, 4096)];
        for (skip, len) in [(50, 9096), (0, 5000), (60, 9000), (49, 4096), (51, 4500)] {
            let part = |&(addr, len): &(u64, u32)| &bytes[addr as usize..][..len as usize];
            let wanted = &places.iter().map(part).collect::<Vec<_>>().concat()[skip..skip + len];
            assert_eq!(data(&memory, &places, skip, len).unwrap().concat(), wanted);
            for piece in room(&memory, &places, skip, len).unwrap() {
                piece.fill(7);
            }
            assert_eq!(data(&memory, &places, skip, len).unwrap().concat(), vec![7; len]);
            memory.write(0, &bytes).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_had_in_its_place() {
        let memory = memory();
        let none = |places: &[(u64, u32)], skip, len| {
            assert!(data(&memory, places, skip, len).is_none(), "{places:?}");
            assert!(room(&memory, places, skip, len).is_none(), "{places:?}");
        };
        none(&[(0, 8192)], 1, 8192);
        none(&[(0, 8192)], 0, 100);
        none(&[(LEN - 4096, 8192)], 0, 8192);
        none(&[(2 * LEN, 8192)], 0, 8192);
        none(&[(3 * LEN, 8192)], 0, 8192);
        none(&[(u64::MAX - 4096, 8192)], 0, 8192);
        none(&[(u64::MAX, 8192)], 4096, 4096);
        none(&[(0, 64); 128], 0, 8192);
        // The same bytes twice: only to be read.
        for twice in [[(0, 4096), (4095, 4096)], [(4096, 4096), (0, 4097)], [(0, 4096), (0, 4096)]]
        {
            let len = twice.iter().map(|place| place.1 as usize).sum();
            assert!(data(&memory, &twice, 0, len).is_some());
            assert!(room(&memory, &twice, 0, len).is_none(), "{twice:?}");
        }
    }
}
