//! The layout of a connection's memory. docs/PROTOCOL.md describes every field.

use core::sync::atomic::Ordering::Relaxed;

use crate::memory::Memory;
use crate::ring::{self, LINE};

/// Offsets and values of the header, the first page.
pub mod header {
    /// `ATOLLRNG`, little-endian.
    pub const MAGIC: usize = 0;
    /// The version of the layout.
    pub const VERSION: usize = 8;
    /// The kind of the rings.
    pub const RING: usize = 12;
    /// The number of lanes.
    pub const LANES: usize = 24;
    /// Slots per lane.
    pub const SLOTS: usize = 28;
    /// Bytes of a slot's message area.
    pub const AREA: usize = 32;
    /// Bytes of a lane's data window.
    pub const WINDOW: usize = 40;
    /// Bytes of the memory.
    pub const TOTAL: usize = 48;
    /// Whether the server sleeps. On a cache line of its own.
    pub const STATUS: usize = 128;
    /// The length of the header.
    pub const LEN: usize = 4096;

    /// The value of [`MAGIC`].
    pub const MAGIC_VALUE: u64 = u64::from_le_bytes(*b"ATOLLRNG");
    /// The value of [`VERSION`].
    pub const VERSION_VALUE: u32 = 2;
    /// [`RING`]: that of [`ring`](crate::ring), the only one.
    pub const RING_SPSC: u32 = 1;
    /// [`STATUS`]: the server looks at the rings.
    pub const AWAKE: u32 = 0;
    /// [`STATUS`]: the server waits for the doorbell.
    pub const ASLEEP: u32 = 1;
}

/// Offsets within a request: the line that travels with the slot's index.
pub mod request {
    use crate::ring;

    /// The length of the message and the tag; the rest of the word is the ring's.
    pub const MARK: usize = 0;
    /// The request's data: offset in the low half, length in the high half.
    pub const DATA: usize = 8;
    /// The place for the answer's data, likewise.
    pub const ROOM: usize = 16;
    /// The first bytes of the message; the others stand in the slot's message area.
    pub const MESSAGE: usize = 24;
    /// How many bytes of a message stand here.
    pub const MESSAGE_FIRST: usize = LEN - MESSAGE;
    /// The length.
    pub const LEN: usize = ring::LINE;
}

/// Offsets within a slot's answer. Only the server writes it.
pub mod answer {
    use crate::ring;

    /// The length of the message and the tag of the request that is answered.
    pub const MARK: usize = 0;
    /// Bytes of the answer's data.
    pub const DATA_LEN: usize = 4;
    /// The first bytes of the message; the others stand in the slot's message area.
    pub const MESSAGE: usize = 8;
    /// How many bytes of a message stand here.
    pub const MESSAGE_FIRST: usize = LEN - MESSAGE;
    /// The length.
    pub const LEN: usize = ring::LINE;
}

/// Values of a slot's word among the sleepers. Only the client writes it.
pub mod sleeper {
    /// The length of the word.
    pub const LEN: usize = 4;
    /// Nobody sleeps.
    pub const AWAKE: u32 = 0;
    /// A thread of the client sleeps, or is about to, until [`answer::MARK`](super::answer::MARK)
    /// changes.
    pub const ASLEEP: u32 = 1;
}

/// The most lanes of a connection.
pub const LANES_MAX: u32 = 64;
/// The most slots of a lane.
pub const SLOTS_MAX: u32 = 64;
/// The smallest message area of a slot.
pub const AREA_MIN: u32 = 1024;
/// The largest.
pub const AREA_MAX: u32 = 8192;
/// The longest message that every connection carries.
pub const MESSAGE_MIN: usize = request::MESSAGE_FIRST + AREA_MIN as usize;
/// The longest message that any connection carries.
pub const MESSAGE_MAX: usize = request::MESSAGE_FIRST + AREA_MAX as usize;
/// The most bytes of a lane's data window.
pub const WINDOW_MAX: u64 = 1 << 30;
/// The most bytes of a connection's memory: offsets have 32 bits.
pub const TOTAL_MAX: u64 = (1 << 32) - PAGE;
const PAGE: u64 = 4096;
const CACHE_LINE: usize = 64;
const _: () = assert!(MESSAGE_MAX <= u16::MAX as usize, "a mark has 16 bits for a length");
const _: () = assert!(request::MESSAGE_FIRST <= answer::MESSAGE_FIRST);

/// A request's tag and the length of a message, as both sides write them. The tag grows by 1 with
/// each use of the slot, so that the answer to one is no answer to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub tag: u16,
    /// Of the message, in bytes.
    pub len: u16,
}

impl Mark {
    #[inline]
    pub fn pack(self) -> u32 {
        u32::from(self.tag) << 16 | u32::from(self.len)
    }

    #[inline]
    pub fn unpack(word: u32) -> Mark {
        Mark { tag: (word >> 16) as u16, len: word as u16 }
    }
}

/// A range of a connection's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Span {
    /// As a word of a slot.
    pub(super) fn pack(self) -> u64 {
        (self.len as u64) << 32 | self.offset as u64
    }

    /// The place in `word`, if it lies in a memory of `total` bytes. An empty one lies anywhere.
    pub(super) fn unpack(word: u64, total: usize) -> Option<Span> {
        let (offset, len) = (word as u32 as usize, (word >> 32) as usize);
        match len {
            0 => Some(Span::default()),
            _ if offset.checked_add(len)? <= total => Some(Span { offset, len }),
            _ => None,
        }
    }

    /// Whether both have a byte in common.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.len > 0
            && other.len > 0
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }
}

/// The sizes of a connection, which its client chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// From 1 to [`LANES_MAX`].
    pub lanes: u32,
    /// Slots per lane, which is requests in flight: a power of two, at most [`SLOTS_MAX`].
    pub slots: u32,
    /// Bytes of a slot's message area: a multiple of 64, from [`AREA_MIN`] to [`AREA_MAX`].
    pub area: u32,
    /// Bytes of a lane's data window: a multiple of 4096, at most [`WINDOW_MAX`], or none.
    pub window: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { lanes: 1, slots: 16, area: AREA_MIN, window: 1 << 20 }
    }
}

/// The bytes of the sleepers' words of a lane, a multiple of [`LINE`] as all before it are.
const fn sleepers_len(slots: u32) -> usize {
    (slots as usize * sleeper::LEN).next_multiple_of(LINE)
}

/// Where everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    config: Config,
    lane_len: usize,
    total: usize,
}

impl Layout {
    /// The layout for `config`; none when a size is not as its field demands, or the whole is
    /// larger than [`TOTAL_MAX`].
    pub fn new(config: &Config) -> Option<Layout> {
        let Config { lanes, slots, area, window } = *config;
        let sound = (1..=LANES_MAX).contains(&lanes)
            && slots.is_power_of_two()
            && slots <= SLOTS_MAX
            && (AREA_MIN..=AREA_MAX).contains(&area)
            && area.is_multiple_of(64)
            && window <= WINDOW_MAX
            && window.is_multiple_of(PAGE);
        if !sound {
            return None;
        }
        // No sum or product of such sizes overflows 64 bits.
        let slot = answer::LEN as u64 + u64::from(area);
        let fixed = (ring::bytes(slots) + sleepers_len(slots)) as u64 + u64::from(slots) * slot;
        let lane_len = fixed.next_multiple_of(PAGE) + window;
        let total = header::LEN as u64 + u64::from(lanes) * lane_len;
        if total > TOTAL_MAX {
            return None;
        }
        let (lane_len, total) = (usize::try_from(lane_len).ok()?, usize::try_from(total).ok()?);
        Some(Layout { config: *config, lane_len, total })
    }

    /// The sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of the memory.
    pub fn total(&self) -> usize {
        self.total
    }

    /// The longest message.
    #[inline]
    pub fn message_max(&self) -> usize {
        request::MESSAGE_FIRST + self.config.area as usize
    }

    #[inline]
    fn lane(&self, lane: u32) -> usize {
        debug_assert!(lane < self.config.lanes);
        header::LEN + lane as usize * self.lane_len
    }

    /// The ring of `lane`.
    pub fn ring(&self, lane: u32) -> usize {
        self.lane(lane)
    }

    /// The answer of `slot` of `lane`. Answers stand together, so that they do not compete for the
    /// same lines of a processor's cache.
    #[inline]
    pub fn answer(&self, lane: u32, slot: u32) -> usize {
        debug_assert!(slot < self.config.slots);
        self.lane(lane) + ring::bytes(self.config.slots) + slot as usize * answer::LEN
    }

    /// The word of `slot` of `lane` that says whether a thread sleeps until its answer comes. They
    /// stand apart from what changes with each request: the server has them in its cache while
    /// nobody sleeps.
    #[inline]
    pub fn sleeper(&self, lane: u32, slot: u32) -> usize {
        let answers = self.config.slots as usize * answer::LEN;
        self.answer(lane, 0) + answers + slot as usize * sleeper::LEN
    }

    /// The message area of `slot` of `lane`.
    #[inline]
    pub fn area(&self, lane: u32, slot: u32) -> usize {
        self.sleeper(lane, 0)
            + sleepers_len(self.config.slots)
            + slot as usize * self.config.area as usize
    }

    /// The message of the request in `line`, for `slot` of `lane`.
    #[inline]
    pub(super) fn request_message(&self, line: usize, lane: u32, slot: u32) -> MessagePlace {
        MessagePlace {
            first: line + request::MESSAGE,
            near: CACHE_LINE - request::MESSAGE,
            first_len: request::MESSAGE_FIRST,
            rest: self.area(lane, slot),
        }
    }

    /// The message of the answer in `slot` of `lane`.
    #[inline]
    pub(super) fn answer_message(&self, lane: u32, slot: u32) -> MessagePlace {
        MessagePlace {
            first: self.answer(lane, slot) + answer::MESSAGE,
            near: CACHE_LINE - answer::MESSAGE,
            first_len: answer::MESSAGE_FIRST,
            rest: self.area(lane, slot),
        }
    }

    /// The data window of `lane`.
    pub fn window(&self, lane: u32) -> Span {
        let len = self.config.window as usize;
        Span { offset: self.lane(lane) + self.lane_len - len, len }
    }

    /// Writes the header and makes all rings empty: nobody else uses the memory yet.
    pub(super) fn format<M: Memory>(&self, memory: &M) {
        let Config { lanes, slots, area, window } = self.config;
        memory.store64(header::MAGIC, header::MAGIC_VALUE, Relaxed);
        memory.store32(header::VERSION, header::VERSION_VALUE, Relaxed);
        memory.store32(header::RING, header::RING_SPSC, Relaxed);
        memory.store32(header::LANES, lanes, Relaxed);
        memory.store32(header::SLOTS, slots, Relaxed);
        memory.store32(header::AREA, area, Relaxed);
        memory.store64(header::WINDOW, window, Relaxed);
        memory.store64(header::TOTAL, self.total as u64, Relaxed);
        memory.store32(header::STATUS, header::AWAKE, Relaxed);
        for lane in 0..lanes {
            ring::format(memory, self.ring(lane), slots);
        }
    }

    /// Reads the header of a memory that a peer made: each field once, then checked.
    pub(super) fn read<M: Memory>(memory: &M) -> Result<Layout, AttachError> {
        if memory.len() < header::LEN
            || memory.load64(header::MAGIC, Relaxed) != header::MAGIC_VALUE
        {
            return Err(AttachError::Broken);
        }
        // The meaning of the other fields depends on it.
        let version = memory.load32(header::VERSION, Relaxed);
        if version != header::VERSION_VALUE {
            return Err(AttachError::Version(version));
        }
        if memory.load32(header::RING, Relaxed) != header::RING_SPSC {
            return Err(AttachError::Broken);
        }
        let config = Config {
            lanes: memory.load32(header::LANES, Relaxed),
            slots: memory.load32(header::SLOTS, Relaxed),
            area: memory.load32(header::AREA, Relaxed),
            window: memory.load64(header::WINDOW, Relaxed),
        };
        let total = memory.load64(header::TOTAL, Relaxed);
        Layout::new(&config)
            .filter(|layout| layout.total as u64 == total && layout.total == memory.len())
            .ok_or(AttachError::Broken)
    }
}

/// Why a server does not attach to a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// The header makes no sense, or asks for more than is allowed.
    Broken,
    /// It is of this version, not of [`header::VERSION_VALUE`].
    Version(u32),
}

impl core::fmt::Display for AttachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AttachError::Broken => f.write_str("the memory has no header that makes sense"),
            AttachError::Version(version) => write!(
                f,
                "the memory has version {version} of the rings' protocol, this server speaks version {}",
                header::VERSION_VALUE
            ),
        }
    }
}

impl core::error::Error for AttachError {}

/// Where the bytes of a message are.
#[derive(Clone, Copy)]
pub(super) struct MessagePlace {
    /// The place of the first ones, behind the word that the other side waits for and on its cache
    /// line, how many there may be on this and on the next line, and the place of all others. All
    /// are multiples of 8.
    first: usize,
    near: usize,
    first_len: usize,
    rest: usize,
}

impl MessagePlace {
    /// Writes `message`. The line that the other side is looking at comes last, so that it is not
    /// taken away and has to be fetched back while others are written.
    #[inline]
    pub fn write<M: Memory>(self, memory: &M, message: &[u8]) {
        let (first, rest) = message.split_at(message.len().min(self.first_len));
        memory.write_message(self.rest, rest);
        let (near, far) = first.split_at(first.len().min(self.near));
        memory.write_message(self.first + self.near, far);
        memory.write_message(self.first, near);
    }

    /// Reads the message to the front of `out`, which is as long as it.
    #[inline]
    pub fn read<M: Memory>(self, memory: &M, out: &mut [u8]) {
        let (first, rest) = out.split_at_mut(out.len().min(self.first_len));
        memory.read_message(self.first, first);
        memory.read_message(self.rest, rest);
    }
}
