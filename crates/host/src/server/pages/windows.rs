//! The memory of a mapped file as this process has it mapped, in windows, to write it.
//!
//! Stores into a mapping take no lock of the inode. write(2) does, and holds it while it brings in
//! the pages that it is to write: a client can make that last for ever.
//!
//! Windows that are used are kept. The pages that they show count as this process's memory too, so
//! that a window goes when it has not been used for a while.

use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::stored::{self, PAGE};
use crate::device::mapping::Mapping;

/// Bytes of a window.
const WINDOW: u64 = 64 << 20;
/// The most windows of a file. All of what a session may map by default fits in.
const WINDOWS: usize = 16;

#[derive(Debug)]
struct Window {
    index: u64,
    mapping: Mapping,
    /// Since it was last asked for.
    used: bool,
}

/// The windows of a file, each at the place that its number gives it.
#[derive(Debug, Default)]
pub(super) struct Windows([Option<Window>; WINDOWS]);

impl Windows {
    /// Copies `from` to `at`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn write(&mut self, file: BorrowedFd<'_>, at: u64, from: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < from.len() {
            let (mapping, within, room) = self.window(file, at + done as u64)?;
            let now = &from[done..from.len().min(done + room)];
            mapping.provide(within, now)?;
            done += now.len();
        }
        Ok(())
    }

    /// Makes the pages of `range` zeros, of which no more than `most` bytes may be there.
    ///
    /// # Errors
    /// `ENOMEM`; those of cachestat(2).
    pub fn zero(
        &mut self,
        file: BorrowedFd<'_>,
        range: Range<u64>,
        most: u64,
    ) -> Result<(), Errno> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        if stored::pages(file, &range)?.saturating_mul(PAGE) > most {
            return Err(Errno::NOMEM);
        }
        stored::parts(file, range, &mut |part| {
            let mut at = part.start;
            while at < part.end {
                let (mapping, within, room) = self.window(file, at)?;
                let len = (part.end - at).min(room as u64).min(ZEROS.len() as u64);
                mapping.replace(within, &ZEROS[..len as usize])?;
                at += len;
            }
            Ok(())
        })
    }

    /// Ends a window that has not been used since this was last called: one, so that it takes no
    /// time. Returns whether there was one.
    pub fn rest(&mut self) -> bool {
        let idle = |window: &Option<Window>| window.as_ref().is_some_and(|window| !window.used);
        let gone = self.0.iter_mut().find(|place| idle(place)).and_then(Option::take);
        self.0.iter_mut().flatten().for_each(|window| window.used = false);
        gone.is_some()
    }

    /// The window of `at`, where it is within, and how many bytes there are from there.
    fn window(
        &mut self,
        file: BorrowedFd<'_>,
        at: u64,
    ) -> Result<(&mut Mapping, usize, usize), Errno> {
        let index = at / WINDOW;
        let place = &mut self.0[(index % WINDOWS as u64) as usize];
        let window = match place.take() {
            Some(window) if window.index == index => window,
            // Another's is unmapped first.
            other => {
                drop(other);
                let mapping = Mapping::part(file, index * WINDOW, WINDOW as usize)
                    .map_err(|_| Errno::NOMEM)?;
                Window { index, mapping, used: true }
            }
        };
        let window = place.insert(window);
        window.used = true;
        let within = (at % WINDOW) as usize;
        Ok((&mut window.mapping, within, WINDOW as usize - within))
    }
}
