//! A split virtqueue, as the driver sees it: VIRTIO 1.2, 2.7.
//!
//! The driver keeps its own copy of everything that it has written: which descriptors are free, how
//! chains go on, how much of each the device may write. The device can answer in any order. What
//! it writes are two things, the index of the used ring and its entries: the index is believed as
//! far as there are chains outstanding, an entry if it names one of those and says no more bytes
//! than it may write.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use atoll_transport::Memory;

use crate::platform::{Platform, Region};

/// The most entries of a queue (VIRTIO 1.2, 2.7).
pub const SIZE_MAX: u16 = 1 << 15;

// Flags of a descriptor, of the available ring and of the used ring.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

const DESCRIPTOR: usize = 16;
const USED_ENTRY: usize = 8;

/// A piece of memory that the device may use: a part of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    address: u64,
    len: usize,
}

impl Part {
    /// Memory that is shared for ever, or lent for as long as the chain is the device's.
    pub(crate) fn shared(address: u64, len: usize) -> Part {
        Part { address, len }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// How a queue is used, as device and driver have agreed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Entries: a power of two, at most [`SIZE_MAX`].
    pub size: u16,
    /// The most parts of a chain.
    pub parts_max: u16,
    /// Chains lie in tables of their own, one entry of the queue each (`VIRTIO_F_INDIRECT_DESC`).
    pub indirect: bool,
    /// The sides say with an index what they want to hear of next (`VIRTIO_F_EVENT_IDX`).
    pub event_index: bool,
}

/// Where the device finds the parts of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The table of descriptors (the Descriptor Area).
    pub descriptors: u64,
    /// The available ring (the Driver Area).
    pub available: u64,
    /// The used ring (the Device Area).
    pub used: u64,
}

/// Why a chain was not offered. Nothing has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferError {
    /// There is no room for it until the device has given one back.
    Full,
    /// It has no parts, more than the queue takes, or one that is too long.
    Shape,
    /// As [`Broken`].
    Broken,
}

/// The device broke the rules of the queue, now or earlier: nothing that it says counts any more,
/// and nothing of the queue's memory may be used for anything else until it has been reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// A chain that is the device's: the number of its first descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Head(u16);

impl Head {
    /// Its number, less than the queue's size.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A chain that the device has given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Which one.
    pub head: Head,
    /// How many bytes the device says it has written, at the beginning of what it may write; at
    /// most that much.
    pub written: usize,
}

/// Offsets within the queue's memory.
#[derive(Clone, Copy, Debug)]
struct Layout {
    available: usize,
    used: usize,
    tables: usize,
    len: usize,
}

impl Layout {
    /// That of a queue with these `options`, if they are those of one.
    fn of(options: &QueueOptions) -> Option<Layout> {
        let &QueueOptions { size, parts_max, indirect, .. } = options;
        let fits = indirect || parts_max <= size;
        let is_queue = size.is_power_of_two() && size <= SIZE_MAX && parts_max > 0 && fits;
        is_queue.then(|| Layout::new(options))
    }

    fn new(options: &QueueOptions) -> Layout {
        let size = usize::from(options.size);
        let available = DESCRIPTOR * size;
        let used = (available + 6 + 2 * size).next_multiple_of(64);
        let tables = (used + 6 + USED_ENTRY * size).next_multiple_of(64);
        let table = if options.indirect { DESCRIPTOR * usize::from(options.parts_max) } else { 0 };
        Layout { available, used, tables, len: (tables + table * size).next_multiple_of(4096) }
    }
}

/// What the driver remembers of one descriptor.
#[derive(Clone, Copy, Debug, Default)]
struct Shadow {
    /// The one behind it, in its chain or among those that are free.
    next: u16,
    /// It is the head of a chain that has so many descriptors.
    entries: u16,
    /// That chain is the device's.
    outstanding: bool,
    /// How many bytes of that chain the device may write.
    writable: usize,
}

/// A queue.
#[derive(Debug)]
pub struct Queue<M> {
    region: Region<M>,
    options: QueueOptions,
    layout: Layout,
    shadows: Vec<Shadow>,
    /// The first descriptor that is free, and how many are.
    free: u16,
    free_count: u16,
    /// The index of the available ring, and what it was when the device was last told.
    available: u16,
    told: u16,
    /// The index of the used ring as far as it was read.
    used: u16,
    outstanding: u16,
    broken: bool,
}

/// Whether a side that wants to hear of the entry `event` hears of those from `old` up to but not
/// including `new` (VIRTIO 1.2, 2.7.10): by distances, since indices begin anew at 0.
#[inline]
fn passed(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

impl<M: Memory> Queue<M> {
    /// Makes a queue in memory of `platform`'s. `None` where there is none, or `options` are not
    /// those of a queue.
    pub fn new<P: Platform<Memory = M>>(platform: &mut P, options: QueueOptions) -> Option<Self> {
        let layout = Layout::of(&options)?;
        let region = platform.share(layout.len)?;
        (region.len() >= layout.len).then(|| Queue::over(region, options, layout))
    }

    /// A queue in `region`, which is as long as `layout` says and all zero.
    fn over(region: Region<M>, options: QueueOptions, layout: Layout) -> Self {
        let QueueOptions { size, .. } = options;
        let mut shadows = vec![Shadow::default(); usize::from(size)];
        for (index, shadow) in shadows.iter_mut().enumerate() {
            shadow.next = (index + 1) as u16;
        }
        Queue {
            region,
            options,
            layout,
            shadows,
            free: 0,
            free_count: size,
            available: 0,
            told: 0,
            used: 0,
            outstanding: 0,
            broken: false,
        }
    }

    /// How many entries it has.
    pub fn size(&self) -> u16 {
        self.options.size
    }

    /// Where the device finds its parts.
    pub fn addresses(&self) -> Addresses {
        let base = self.region.address();
        Addresses {
            descriptors: base,
            available: base + self.layout.available as u64,
            used: base + self.layout.used as u64,
        }
    }

    /// How many chains are the device's.
    pub fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Whether the device has broken the rules.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    #[inline]
    fn memory(&self) -> &M {
        self.region.memory()
    }

    /// Writes a descriptor at `at`.
    #[inline]
    fn describe(&self, at: usize, part: Part, flags: u16, next: u16) {
        let memory = self.memory();
        memory.store64(at, part.address.to_le(), Relaxed);
        let rest = part.len as u64 & 0xffff_ffff | u64::from(flags) << 32 | u64::from(next) << 48;
        memory.store64(at + 8, rest.to_le(), Relaxed);
    }

    /// Offers the device a chain: what it may read, then what it may write. The device need not
    /// notice before it is [rung](Self::must_ring).
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn offer(&mut self, readable: &[Part], writable: &[Part]) -> Result<Head, OfferError> {
        if self.broken {
            return Err(OfferError::Broken);
        }
        let count = readable.len() + writable.len();
        let is_long = |part: &Part| u32::try_from(part.len).is_err();
        let all = readable.iter().chain(writable);
        if count == 0 || count > usize::from(self.options.parts_max) || all.clone().any(is_long) {
            return Err(OfferError::Shape);
        }
        let entries = if self.options.indirect { 1 } else { count as u16 };
        if entries > self.free_count {
            return Err(OfferError::Full);
        }
        let head = self.free;
        let flags_of = |number: usize| {
            let direction = if number < readable.len() { 0 } else { WRITE };
            direction | if number + 1 < count { NEXT } else { 0 }
        };
        if self.options.indirect {
            let table = self.layout.tables
                + DESCRIPTOR * usize::from(self.options.parts_max) * usize::from(head);
            for (number, part) in all.enumerate() {
                let at = table + DESCRIPTOR * number;
                self.describe(at, *part, flags_of(number), number as u16 + 1);
            }
            let whole = self.region.part(table, DESCRIPTOR * count);
            self.describe(DESCRIPTOR * usize::from(head), whole, INDIRECT, 0);
            self.free = self.shadows[usize::from(head)].next;
        } else {
            for (number, part) in all.enumerate() {
                let index = usize::from(self.free);
                let next = self.shadows[index].next;
                self.describe(DESCRIPTOR * index, *part, flags_of(number), next);
                self.free = next;
            }
        }
        self.free_count -= entries;
        let shadow = &mut self.shadows[usize::from(head)];
        (shadow.entries, shadow.outstanding) = (entries, true);
        shadow.writable = writable.iter().map(Part::len).sum();
        self.outstanding += 1;
        let entry = usize::from(self.available % self.options.size);
        let memory = self.memory();
        let available = self.layout.available;
        memory.store16(available + 4 + 2 * entry, head.to_le(), Relaxed);
        self.available = self.available.wrapping_add(1);
        // A device that sees the index sees the entry, the descriptors and what they point to.
        self.memory().store16(available + 2, self.available.to_le(), Release);
        Ok(Head(head))
    }

    /// Whether the device wants to be rung for what was offered since the last call.
    pub fn must_ring(&mut self) -> bool {
        // The device looks at the index after it has said that it wants to be rung.
        self.memory().fence();
        let told = core::mem::replace(&mut self.told, self.available);
        if told == self.available {
            return false;
        }
        let (memory, used) = (self.memory(), self.layout.used);
        if self.options.event_index {
            let at = used + 4 + USED_ENTRY * usize::from(self.options.size);
            passed(u16::from_le(memory.load16(at, Relaxed)), told, self.available)
        } else {
            u16::from_le(memory.load16(used, Relaxed)) & NO_NOTIFY == 0
        }
    }

    /// Takes a chain that the device has given back, in the order in which it did. `None` when
    /// there is none. Its descriptors are used again once it has been [freed](Self::free).
    ///
    /// # Errors
    /// [`Broken`] when the device says what cannot be.
    pub fn take(&mut self) -> Result<Option<Used>, Broken> {
        if self.broken {
            return Err(Broken);
        }
        let memory = self.memory();
        let base = self.layout.used;
        let index = u16::from_le(memory.load16(base + 2, Acquire));
        let ahead = index.wrapping_sub(self.used);
        if ahead == 0 {
            return Ok(None);
        }
        let at = base + 4 + USED_ENTRY * usize::from(self.used % self.options.size);
        let id = u32::from_le(memory.load32(at, Relaxed));
        let written = u32::from_le(memory.load32(at + 4, Relaxed)) as usize;
        let shadow = self.shadows.get(id as usize).copied().unwrap_or_default();
        if ahead > self.outstanding || !shadow.outstanding || written > shadow.writable {
            self.broken = true;
            return Err(Broken);
        }
        self.used = self.used.wrapping_add(1);
        self.shadows[id as usize].outstanding = false;
        self.outstanding -= 1;
        Ok(Some(Used { head: Head(id as u16), written }))
    }

    /// The descriptors of a chain that has been [taken](Self::take) are free again. One that was
    /// not, or has been freed, stays as it is.
    pub fn free(&mut self, head: Head) {
        let shadow = self.shadows[head.index()];
        if shadow.outstanding || shadow.entries == 0 {
            return;
        }
        let mut last = head.0;
        for _ in 1..shadow.entries {
            last = self.shadows[usize::from(last)].next;
        }
        self.shadows[usize::from(last)].next = self.free;
        self.shadows[head.index()].entries = 0;
        self.free = head.0;
        self.free_count += shadow.entries;
    }

    /// Says whether the driver wants to be interrupted when the next chain comes back. Returns
    /// whether one has come already, of which there may be no interrupt.
    pub fn want_interrupt(&mut self, wanted: bool) -> bool {
        let memory = self.memory();
        let available = self.layout.available;
        if self.options.event_index {
            let at = available + 4 + 2 * usize::from(self.options.size);
            // An index that lies behind is not passed for 65,535 entries.
            let event = if wanted { self.used } else { self.used.wrapping_sub(1) };
            memory.store16(at, event.to_le(), Relaxed);
        } else {
            let flags = if wanted { 0 } else { NO_INTERRUPT };
            memory.store16(available, flags.to_le(), Relaxed);
        }
        // The device looks at what is wanted after it has given a chain back.
        self.memory().fence();
        u16::from_le(memory.load16(self.layout.used + 2, Relaxed)) != self.used
    }

    /// Nothing is offered or taken any more.
    pub(crate) fn end(&mut self) {
        self.broken = true;
    }
}

#[cfg(test)]
mod chance;
#[cfg(test)]
mod orders;
#[cfg(test)]
mod tests;
