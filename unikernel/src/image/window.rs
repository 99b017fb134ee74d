//! The window of a file system's device: memory in which it shows ranges of files.
//!
//! What is shown there is the file itself, in the host's page cache. What is not shown is nothing:
//! only who has asked for a range may touch it, and that is `atoll_vfs`'s table of ranges.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use atoll_transport::Shared;
use atoll_vfs::windowed;
use atoll_virtio::device::Window;

use crate::paging;

/// The most bytes of a window that are used: the page tables for them are 256 KiB.
const LEN_MAX: u64 = 64 << 30;

/// A window, as the image reaches it.
#[derive(Debug)]
pub struct Shown(Shared<'static>);

impl Shown {
    /// Maps a device's window. `None`: it cannot be, or nothing would have room in it.
    pub fn map(window: Window) -> Option<Shown> {
        let len = window.len.min(LEN_MAX);
        // SAFETY: the device's memory, in which nothing is but what it shows.
        let (at, len) = unsafe { paging::map_window(window.address, len) }?;
        let at = NonNull::new(at as *mut u8)?;
        // SAFETY: mapped for ever, and no reference is made to what is there.
        Some(Shown(unsafe { Shared::new(at, len as usize) }))
    }
}

impl Shown {
    /// Where byte `at` is in physical memory.
    pub fn physical(&self, at: u64) -> Option<u64> {
        let is_inside = self.0.contains(at as usize, 1);
        is_inside.then(|| paging::physical(self.0.base() as u64 + at)).flatten()
    }
}

impl windowed::Window for Shown {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn copy_out(&self, at: u64, out: &mut [u8]) -> bool {
        let is_inside = self.0.contains(at as usize, out.len());
        if is_inside {
            self.0.read(at as usize, out);
        }
        is_inside
    }

    fn copy_in(&self, at: u64, data: &[u8]) -> bool {
        let is_inside = self.0.contains(at as usize, data.len());
        if is_inside {
            self.0.write(at as usize, data);
        }
        is_inside
    }
}
