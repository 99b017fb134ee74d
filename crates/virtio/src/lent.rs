//! Buffers of a caller's that are the device's for one call.
//!
//! Here is the driver's unsafe code: a device writes where a descriptor points, whatever Rust's
//! types say. So a buffer is lent by a borrow that lasts until the chain has come back, or the
//! device was told to stop. A device that then does not stop may go on writing where the platform
//! cannot keep it from that ([`Platform::take_back`]): such a device, on such a machine, can write
//! to any memory at any time.
#![allow(unsafe_code)]

use core::ptr::NonNull;

use crate::device::{Device, DeviceError};
use crate::platform::{Platform, Region};
use crate::queue::{Head, OfferError, Part};
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
    /// Nothing has happened: there is no way for so many bytes, of one of them.
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

/// The most calls of a batch.
pub const BATCH_MAX: usize = 8;
/// The most parts of a call that are the driver's own, of each kind.
pub const OWN_PARTS: usize = 2;
/// The most parts of a call.
pub const PARTS: usize = 3 * OWN_PARTS + 2;

/// A place through which bytes go that the device cannot reach: for each call of a batch a part of
/// it, in which its data lies and behind that its room.
#[derive(Debug)]
pub struct Copies<M> {
    region: Region<M>,
    /// The parts, and the length of each.
    count: usize,
    each: usize,
}

impl<M: atoll_transport::channel::Mapped> Copies<M> {
    /// A place for one call at a time with `len` bytes of data and as many of room.
    pub fn new<P: Platform<Memory = M>>(platform: &mut P, len: usize) -> Option<Self> {
        Self::for_batches(platform, 1, len.checked_next_multiple_of(4096)?.checked_mul(2)?)
    }

    /// A place for batches of `count` calls, of which each has `each` bytes of data and room
    /// together.
    pub fn for_batches<P: Platform<Memory = M>>(
        platform: &mut P,
        count: usize,
        each: usize,
    ) -> Option<Self> {
        let each = each.checked_next_multiple_of(4096)?;
        Some(Copies { region: platform.share(each.checked_mul(count)?)?, count, each })
    }

    /// How many bytes of data and room together each call has.
    pub fn each(&self) -> usize {
        self.each
    }

    /// The places of the call `number` for so many bytes of data, and of room. `None` where they do
    /// not fit.
    fn places(&self, number: usize, [data, room]: [usize; 2]) -> Option<[usize; 2]> {
        if data == 0 && room == 0 {
            return Some([0, 0]);
        }
        let behind = data.checked_next_multiple_of(64)?;
        let fits = number < self.count && behind.checked_add(room)? <= self.each;
        fits.then_some([number * self.each, number * self.each + behind])
    }
}

/// A buffer's way to the device.
enum Way {
    /// There is nothing.
    Empty,
    /// As it is.
    Lent(Loan),
    /// Through the place for copies, at this offset.
    Copied(Part, usize),
}

impl Way {
    fn part(&self) -> Option<Part> {
        match self {
            Way::Empty => None,
            Way::Lent(loan) => Some(loan.part()),
            Way::Copied(part, _) => Some(*part),
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
    let mut written = [0];
    call_all(requests, device, platform, copies, &mut [call], &mut written)?;
    Ok(written[0])
}

/// Sends all of `calls`, at most [`BATCH_MAX`], of which the device hears at once, and waits for
/// the answers: how many bytes the device says it has written for each. The device takes them in
/// any order. The callers' buffers are the device's meanwhile as in [`call`].
///
/// # Errors
/// [`CallError`], of all of them.
///
/// # Panics
/// When there are more calls, more than [`OWN_PARTS`] parts of a kind, or not as many places in
/// `written` as there are calls.
pub fn call_all<D: Device, P: Platform>(
    requests: &mut Requests<P::Memory>,
    device: &mut D,
    platform: &mut P,
    copies: &Copies<P::Memory>,
    calls: &mut [Call<'_>],
    written: &mut [usize],
) -> Result<(), CallError> {
    assert!(calls.len() <= BATCH_MAX && calls.len() == written.len());
    let mut under_way = [const { None }; BATCH_MAX];
    let mut ready = Ok(());
    for (number, call) in calls.iter_mut().enumerate() {
        // SAFETY: the buffers are borrowed for longer than this function runs, and what of them is
        // lent is not used before the loans are ended: below, after the chains were not offered,
        // have come back, or the device was told to stop.
        let loans = unsafe { lend(platform, call) };
        match ways(platform, copies, number, loans, call) {
            Some(ways) => under_way[number] = Some(ways),
            None => {
                ready = Err(CallError::TooLarge);
                break;
            }
        }
    }
    let result =
        ready.and_then(|()| exchange(requests, device, copies, calls, &under_way, written));
    for way in under_way.into_iter().flatten().flatten() {
        way.end(platform);
    }
    result
}

/// Lends the buffers of `call` that can be lent: its data and its room.
///
/// # Safety
/// As of [`Loan::read`] and [`Loan::write`].
unsafe fn lend<P: Platform>(platform: &mut P, call: &mut Call<'_>) -> [Option<Loan>; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let data = if call.data.is_empty() { None } else { Loan::read(platform, call.data) };
        let room = if call.room.is_empty() { None } else { Loan::write(platform, call.room) };
        [data, room]
    }
}

/// The ways of a call's buffers. `None`, and nothing is lent, where there is no room for copies.
fn ways<P: Platform>(
    platform: &mut P,
    copies: &Copies<P::Memory>,
    number: usize,
    loans: [Option<Loan>; 2],
    call: &Call<'_>,
) -> Option<[Way; 2]> {
    let copied = |loan: &Option<Loan>, len| if loan.is_some() { 0 } else { len };
    let lens = [copied(&loans[0], call.data.len()), copied(&loans[1], call.room.len())];
    let Some([data_at, room_at]) = copies.places(number, lens) else {
        loans.into_iter().flatten().for_each(|loan| loan.end(platform));
        return None;
    };
    let way = |loan, len, at| match loan {
        Some(loan) => Way::Lent(loan),
        None if len == 0 => Way::Empty,
        None => Way::Copied(copies.region.part(at, len), at),
    };
    let [data, room] = loans;
    Some([way(data, lens[0], data_at), way(room, lens[1], room_at)])
}

/// Offers all of `calls`, rings once, and waits for all.
fn exchange<D: Device, M: atoll_transport::channel::Mapped>(
    requests: &mut Requests<M>,
    device: &mut D,
    copies: &Copies<M>,
    calls: &mut [Call<'_>],
    under_way: &[Option<[Way; 2]>; BATCH_MAX],
    written: &mut [usize],
) -> Result<(), CallError> {
    let memory = copies.region.memory();
    let mut heads = [None; BATCH_MAX];
    for (number, (call, ways)) in calls.iter().zip(under_way.iter().flatten()).enumerate() {
        if let Way::Copied(_, at) = ways[0] {
            memory.write(at, call.data);
        }
        match offer(requests, call, ways) {
            Ok(head) => heads[number] = Some(head),
            Err(error) if number == 0 => {
                return Err(match error {
                    OfferError::Full => CallError::Full,
                    OfferError::Shape => CallError::TooLarge,
                    OfferError::Broken => CallError::Device(DeviceError::Broken),
                });
            }
            // What was offered cannot be taken back otherwise.
            Err(_) => {
                requests.end(device);
                return Err(CallError::Device(DeviceError::Broken));
            }
        }
    }
    requests.ring(device);
    for (head, written) in heads.into_iter().flatten().zip(written.iter_mut()) {
        *written = requests.wait(device, head).map_err(|error| {
            requests.end(device);
            CallError::Device(error)
        })?;
    }
    for (number, (call, ways)) in calls.iter_mut().zip(under_way.iter().flatten()).enumerate() {
        if let Way::Copied(_, at) = ways[1] {
            let before: usize = call.answer.iter().map(Part::len).sum();
            let come = written[number].saturating_sub(before).min(call.room.len());
            memory.read(at, &mut call.room[..come]);
        }
    }
    Ok(())
}

/// Offers the chain of `call`.
fn offer<M: atoll_transport::channel::Mapped>(
    requests: &mut Requests<M>,
    call: &Call<'_>,
    [data, room]: &[Way; 2],
) -> Result<Head, OfferError> {
    let Call { head, answer, tail, .. } = call;
    let most = [head, answer, tail].map(|parts| parts.len()).into_iter().max();
    assert!(most.is_some_and(|most| most <= OWN_PARTS));
    let mut parts = Parts { parts: [Part::shared(0, 0); PARTS], count: 0 };
    parts.add(head.iter().copied().chain(data.part()));
    let readable = parts.count;
    parts.add(answer.iter().copied().chain(room.part()).chain(tail.iter().copied()));
    let (readable, writable) = parts.parts[..parts.count].split_at(readable);
    requests.offer(readable, writable)
}
