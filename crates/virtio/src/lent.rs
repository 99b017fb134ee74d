//! Buffers of a caller's that are the device's for one call.
//!
//! Here is the driver's unsafe code: a device writes where a descriptor points, whatever Rust's
//! types say. So a buffer is lent by a borrow that lasts until the chain has come back, or the
//! device was told to stop. A device that then does not stop may go on writing where the platform
//! cannot keep it from that ([`Platform::take_back`]): such a device, on such a machine, can write
//! to any memory at any time.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use atoll_transport::Memory;

use crate::device::{Device, DeviceError};
use crate::platform::{Platform, Region};
use crate::queue::{OfferError, Part};
use crate::requests::Requests;

/// Bytes of a caller's, and what the device does with them.
#[derive(Debug, PartialEq, Eq)]
pub struct Lent {
    at: NonNull<u8>,
    len: usize,
    written: bool,
}

impl Lent {
    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the device writes them; else it reads them.
    pub fn is_written(&self) -> bool {
        self.written
    }
}

/// A buffer that the device has.
#[derive(Debug)]
#[must_use]
pub struct Loan {
    lent: Lent,
    address: u64,
}

impl Loan {
    /// Has `platform` lend bytes that the device reads.
    ///
    /// # Safety
    /// The bytes stay as they are until the loan has been [ended](Self::end), which happens only
    /// after every chain with its [`part`](Self::part) has come back or the device has stopped.
    pub unsafe fn read<P: Platform>(platform: &mut P, bytes: &[u8]) -> Option<Loan> {
        let lent = Lent { at: NonNull::from(bytes).cast(), len: bytes.len(), written: false };
        let address = platform.lend(&lent)?;
        Some(Loan { lent, address })
    }

    /// Has `platform` lend bytes that the device writes.
    ///
    /// # Safety
    /// As [`read`](Self::read), and nobody else uses the bytes meanwhile.
    pub unsafe fn write<P: Platform>(platform: &mut P, bytes: &mut [u8]) -> Option<Loan> {
        let lent = Lent { len: bytes.len(), at: NonNull::from(bytes).cast(), written: true };
        let address = platform.lend(&lent)?;
        Some(Loan { lent, address })
    }

    /// The buffer as a part of a chain.
    pub fn part(&self) -> Part {
        Part::shared(self.address, self.lent.len)
    }

    /// The buffer is the caller's again.
    pub fn end<P: Platform>(self, platform: &mut P) {
        platform.take_back(&self.lent, self.address);
    }
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallError {
    /// Nothing has happened: there are as many requests as the queue holds.
    Full,
    /// Nothing has happened: there is no way for so many bytes.
    TooLarge,
    /// The device is stopped. It has carried the request out or not.
    Device(DeviceError),
}

/// A request with buffers of its caller's.
#[derive(Debug)]
pub struct Call<'a> {
    /// What the device reads first, in memory that is shared for ever.
    pub head: &'a [Part],
    /// What it reads then.
    pub data: &'a [u8],
    /// What it writes first, in memory that is shared for ever.
    pub answer: &'a [Part],
    /// What it writes then.
    pub room: &'a mut [u8],
    /// What it writes last, in memory that is shared for ever.
    pub tail: &'a [Part],
}

/// The most parts of a call that are the driver's own, of each kind.
pub const OWN_PARTS: usize = 2;
/// The most parts of a call.
pub const PARTS: usize = 3 * OWN_PARTS + 2;

/// A place through which bytes go that the device cannot reach, half of it for each direction.
#[derive(Debug)]
pub struct Copies<M> {
    region: Region<M>,
}

impl<M: atoll_transport::channel::Mapped> Copies<M> {
    /// A place for `len` bytes of data and as many of room.
    pub fn new<P: Platform<Memory = M>>(platform: &mut P, len: usize) -> Option<Self> {
        let len = len.checked_next_multiple_of(4096)?.checked_mul(2)?;
        Some(Copies { region: platform.share(len)? })
    }

    /// How many bytes fit each way.
    pub fn len(&self) -> usize {
        self.region.len() / 2
    }

    /// Whether none fit.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A buffer's way to the device.
enum Way {
    /// There is nothing.
    Empty,
    /// As it is.
    Lent(Loan),
    /// Through the place for copies.
    Copied(Part),
}

impl Way {
    fn part(&self) -> Option<Part> {
        match self {
            Way::Empty => None,
            Way::Lent(loan) => Some(loan.part()),
            Way::Copied(part) => Some(*part),
        }
    }

    fn end<P: Platform>(self, platform: &mut P) {
        if let Way::Lent(loan) = self {
            loan.end(platform);
        }
    }
}

/// Gathers parts in the order of a chain.
struct Parts {
    parts: [Part; PARTS],
    count: usize,
}

impl Parts {
    fn add(&mut self, parts: impl IntoIterator<Item = Part>) {
        for part in parts {
            self.parts[self.count] = part;
            self.count += 1;
        }
    }
}

/// Sends a request and waits for the answer: how many bytes the device says it has written. The
/// caller's buffers are the device's meanwhile where it can reach them, else their bytes are
/// copied through `copies`.
///
/// # Errors
/// [`CallError`]. After [`CallError::Device`] the device has been told to stop.
///
/// # Panics
/// When there are more than [`OWN_PARTS`] parts of a kind.
pub fn call<D: Device, P: Platform>(
    requests: &mut Requests<P::Memory>,
    device: &mut D,
    platform: &mut P,
    copies: &Copies<P::Memory>,
    call: Call<'_>,
) -> Result<usize, CallError> {
    let Call { head, data, answer, room, tail } = call;
    let most = [head, answer, tail].map(<[Part]>::len).into_iter().max();
    assert!(most.is_some_and(|most| most <= OWN_PARTS));
    // SAFETY: `data` and `room` are borrowed for this call, which ends both loans, and that only
    // after the chain was not offered, has come back, or the device was told to stop.
    let (data_loan, room_loan) = unsafe {
        let data = if data.is_empty() { None } else { Loan::read(platform, data) };
        let room = if room.is_empty() { None } else { Loan::write(platform, room) };
        (data, room)
    };
    let half = copies.len();
    let way = |loan: Option<Loan>, len: usize, at: usize| match loan {
        Some(loan) => Ok(Way::Lent(loan)),
        None if len == 0 => Ok(Way::Empty),
        None if len > half => Err(CallError::TooLarge),
        None => Ok(Way::Copied(copies.region.part(at, len))),
    };
    let (data_way, room_way) =
        match (way(data_loan, data.len(), 0), way(room_loan, room.len(), half)) {
            (Ok(data), Ok(room)) => (data, room),
            (data, room) => {
                for way in [data, room].into_iter().flatten() {
                    way.end(platform);
                }
                return Err(CallError::TooLarge);
            }
        };
    if matches!(data_way, Way::Copied(_)) {
        copies.region.memory().write(0, data);
    }
    let empty = Part::shared(0, 0);
    let mut parts = Parts { parts: [empty; PARTS], count: 0 };
    parts.add(head.iter().copied().chain(data_way.part()));
    let readable = parts.count;
    parts.add(answer.iter().copied().chain(room_way.part()).chain(tail.iter().copied()));
    let (readable, writable) = parts.parts[..parts.count].split_at(readable);
    let before: usize = answer.iter().map(Part::len).sum();
    let result = match requests.send(device, readable, writable) {
        Ok(head) => requests.wait(device, head).map_err(|error| {
            requests.end(device);
            CallError::Device(error)
        }),
        Err(OfferError::Full) => Err(CallError::Full),
        Err(OfferError::Shape) => Err(CallError::TooLarge),
        Err(OfferError::Broken) => Err(CallError::Device(DeviceError::Broken)),
    };
    if let (Ok(written), Way::Copied(_)) = (result, &room_way) {
        let come = written.saturating_sub(before).min(room.len());
        copies.region.memory().read(half, &mut room[..come]);
    }
    data_way.end(platform);
    room_way.end(platform);
    result
}
