//! How long a file is, and for how long that counts.

use core::time::Duration;

use crate::types::{Attr, Timespec};

/// Set-ID bits.
const SET_ID: u32 = 0o6000;
/// The unit of [`Attr::blocks`], in bytes.
const SECTOR: u64 = 512;

/// What counts of a file's attributes for other calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub length: Length,
    /// From when on, and how long.
    pub from: Duration,
    pub valid: Duration,
}

/// What a call has to know of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length {
    pub size: u64,
    /// A write may find no space, or has to take a set-ID bit.
    pub is_plain: bool,
}

impl Length {
    pub fn of(attr: &Attr) -> Length {
        let has_holes = attr.blocks.saturating_mul(SECTOR) < attr.size;
        Length { size: attr.size, is_plain: !has_holes && attr.mode & SET_ID == 0 }
    }
}

impl Kept {
    pub fn counts(&self, now: Duration) -> bool {
        // The clock may have been set.
        now.checked_sub(self.from).is_some_and(|passed| passed < self.valid)
    }
}

/// A time of callers' as that of a clock.
pub(super) fn clock(time: Timespec) -> Duration {
    Duration::new(u64::try_from(time.sec).unwrap_or(0), time.nsec.min(999_999_999))
}
