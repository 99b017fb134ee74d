//! A file system's device: VIRTIO 1.2, 5.11. A [`Transport`] of the file seam, whose messages are
//! FUSE's: of these the driver knows where the header ends, and which requests have no answer.
//!
//! Messages are copied, being short. Data is not, in a [call](Transport::call): it goes to and
//! from the caller's buffer, as a part of the chain, where the device can reach that. A request
//! that nobody waits for has its data copied, and little of it.
//!
//! A device may tell of changes (5.11.3): that queue is a thing of its own, [`Notices`], for who
//! takes them while the driver waits for an answer.

mod notices;

use alloc::vec;
use alloc::vec::Vec;

use atoll_transport::channel::Mapped;
use atoll_transport::{Lost, Memory, Received, SendError, Token, Transport};

use crate::device::{Device, DeviceError};
use crate::lent::{Call, CallError, Copies, call};
use crate::platform::{Platform, Region};
use crate::queue::{Head, OfferError, Part};
use crate::requests::{Requests, accept};
pub use notices::{Buffer, Notices, Taken};

/// The queue for requests that others must not hold up; the first one for all others, and where it
/// is if there is one for notices.
const HIGH: u16 = 0;
const REQUESTS: u16 = 1;
const REQUESTS_BEHIND: u16 = 2;
/// Entries of each queue.
const ENTRIES: u16 = 64;
/// The most parts of a chain: a header and arguments, data; an answer, and room for data.
const PARTS: u16 = 5;

/// The header of a request, and of an answer, in bytes.
const IN_HEADER: usize = 40;
const OUT_HEADER: usize = 16;
/// Requests that have no answer and go by the queue of high priority.
const FORGET: u32 = 2;
const BATCH_FORGET: u32 = 42;

/// How many requests there may be.
const SLOTS: usize = 16;
/// Each one's place in memory that is shared, and what is where in it: message and answer, data
/// and room for it.
const SLOT: usize = 4096;
const MESSAGE: usize = 0;
const ANSWER: usize = 1024;
const DATA: usize = 1536;
const ROOM: usize = 2816;
/// The most bytes of data of a request that is sent without waiting, and of its answer's.
const LITTLE: usize = 1280;
const _: () = assert!(ROOM + LITTLE == SLOT && DATA + LITTLE == ROOM);

/// Where the file system's name is in the configuration, and how long it is at most.
const TAG: usize = 0;
const TAG_LEN: usize = 36;

/// A request's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Free,
    /// It is the device's: by the queue of high priority or not, under this number, with so much
    /// room for data.
    Sent(bool, Head, usize),
}

/// A file system's device.
#[derive(Debug)]
pub struct VirtioFs<D, P: Platform> {
    device: D,
    platform: P,
    high: Requests<P::Memory>,
    requests: Requests<P::Memory>,
    places: Region<P::Memory>,
    copies: Copies<P::Memory>,
    slots: Vec<Slot>,
    tag: [u8; TAG_LEN],
    is_lost: bool,
}

/// A driver, and the queue for notices if there is one.
pub type WithNotices<D, P> = (VirtioFs<D, P>, Option<Notices<<P as Platform>::Memory>>);

impl<D: Device, P: Platform> VirtioFs<D, P> {
    /// Sets the file system `device` up. Data that the device cannot reach is copied through a
    /// place of `copied` bytes each way, at least 4096; more at a time is not carried.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn new(device: D, platform: P, copied: usize) -> Result<Self, DeviceError> {
        Ok(Self::set_up(device, platform, copied, false)?.0)
    }

    /// The same, and takes the queue for notices if the device has one.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_notices(
        device: D,
        platform: P,
        copied: usize,
    ) -> Result<WithNotices<D, P>, DeviceError> {
        Self::set_up(device, platform, copied, true)
    }

    fn set_up(
        mut device: D,
        mut platform: P,
        copied: usize,
        heeds: bool,
    ) -> Result<WithNotices<D, P>, DeviceError> {
        let offered = device.begin()?;
        let buffer = if heeds { notices::buffer(&mut device, offered) } else { None };
        let wanted = if buffer.is_some() { notices::FEATURE } else { 0 };
        let agreed = accept(&mut device, offered, wanted)?;
        let mut tag = [0; TAG_LEN];
        // A front end that is a process knows no name.
        let _ = device.configuration(TAG, &mut tag);
        let mut queue = |device: &mut D, number| {
            Requests::begin(device, &mut platform, number, ENTRIES, PARTS, agreed)
        };
        let first = if buffer.is_some() { REQUESTS_BEHIND } else { REQUESTS };
        let (high, requests) = (queue(&mut device, HIGH)?, queue(&mut device, first)?);
        let mut notices = match buffer {
            Some(len) => Some(Notices::begin(&mut device, &mut platform, agreed, len)?),
            None => None,
        };
        let places = platform.share(SLOTS * SLOT).ok_or(DeviceError::NoMemory)?;
        let copies = Copies::new(&mut platform, copied.max(4096)).ok_or(DeviceError::NoMemory)?;
        device.start()?;
        if let Some(notices) = &mut notices
            && notices.must_ring()
        {
            device.ring(notices.number());
        }
        let (slots, is_lost) = (vec![Slot::Free; SLOTS], false);
        let fs = VirtioFs { device, platform, high, requests, places, copies, slots, tag, is_lost };
        Ok((fs, notices))
    }

    /// The file system's name, as the device's configuration has it; nothing where there is none.
    pub fn tag(&self) -> &[u8] {
        let len = self.tag.iter().position(|&byte| byte == 0).unwrap_or(TAG_LEN);
        &self.tag[..len]
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// Stops the device, and gives back what it was made of.
    pub fn stop(mut self) -> (D, P) {
        self.lose();
        (self.device, self.platform)
    }

    /// Nothing is sent or answered any more.
    fn lose(&mut self) -> Lost {
        if !core::mem::replace(&mut self.is_lost, true) {
            self.high.end(&mut self.device);
            self.requests.end(&mut self.device);
        }
        Lost
    }

    fn queue(&mut self, high: bool) -> (&mut Requests<P::Memory>, &mut D) {
        let queue = if high { &mut self.high } else { &mut self.requests };
        (queue, &mut self.device)
    }

    /// A free place, with `message` in it.
    fn place(&mut self, message: &[u8]) -> Result<(usize, usize), SendError> {
        if self.is_lost {
            return Err(SendError::Lost);
        }
        if message.len() > ANSWER - MESSAGE || message.len() < IN_HEADER {
            return Err(SendError::TooLarge);
        }
        let free = self.slots.iter().position(|slot| *slot == Slot::Free);
        let slot = free.ok_or(SendError::Full)?;
        let base = slot * SLOT;
        self.places.memory().write(base + MESSAGE, message);
        Ok((slot, base))
    }

    /// The parts of a message, which is in its place: the header stands alone, since servers that
    /// avoid copies expect it so.
    fn message(&self, base: usize, len: usize) -> ([Part; 2], usize) {
        let header = self.places.part(base + MESSAGE, IN_HEADER);
        let rest = self.places.part(base + MESSAGE + IN_HEADER, len - IN_HEADER);
        ([header, rest], if len > IN_HEADER { 2 } else { 1 })
    }

    /// Copies an answer of `written` bytes, of which `first` are in their place, to `message`.
    /// Returns how many bytes of it and of data there are.
    fn answer(
        &mut self,
        base: usize,
        written: usize,
        first: usize,
        message: &mut [u8],
    ) -> (usize, usize) {
        let mut len = [0; 4];
        self.places.memory().read(base + ANSWER, &mut len);
        // Some servers say that they have written more than the answer has.
        let whole = written.min(u32::from_ne_bytes(len) as usize);
        let own = whole.min(first);
        let shown = own.min(message.len());
        self.places.memory().read(base + ANSWER, &mut message[..shown]);
        (shown, whole - own)
    }
}

impl<D: Device, P: Platform> Transport for VirtioFs<D, P> {
    fn send(&mut self, message: &[u8], data: &[u8], room: usize) -> Result<Token, SendError> {
        if data.len() > LITTLE || room > LITTLE {
            return Err(SendError::TooLarge);
        }
        let (slot, base) = self.place(message)?;
        let opcode = message.get(4..8).and_then(|bytes| bytes.try_into().ok());
        let high = matches!(opcode.map(u32::from_ne_bytes), Some(FORGET | BATCH_FORGET));
        let (parts, count) = self.message(base, message.len());
        let mut readable = parts.to_vec();
        readable.truncate(count);
        if !data.is_empty() {
            self.places.memory().write(base + DATA, data);
            readable.push(self.places.part(base + DATA, data.len()));
        }
        let mut writable = Vec::new();
        if !high {
            let first = if room > 0 { OUT_HEADER } else { DATA - ANSWER };
            writable.push(self.places.part(base + ANSWER, first));
            if room > 0 {
                writable.push(self.places.part(base + ROOM, room));
            }
        }
        let (queue, device) = self.queue(high);
        match queue.send(device, &readable, &writable) {
            Ok(head) => {
                self.slots[slot] = Slot::Sent(high, head, room);
                Ok(Token(slot as u64))
            }
            Err(OfferError::Full) => Err(SendError::Full),
            Err(OfferError::Shape) => Err(SendError::TooLarge),
            Err(OfferError::Broken) => Err(self.lose().into()),
        }
    }

    fn call(
        &mut self,
        message: &[u8],
        data: &[u8],
        answer: &mut [u8],
        room: &mut [u8],
    ) -> Result<Received, SendError> {
        let (_, base) = self.place(message)?;
        let (parts, count) = self.message(base, message.len());
        let first = answer.len().clamp(OUT_HEADER, DATA - ANSWER);
        let first = if room.is_empty() { first } else { OUT_HEADER };
        let own = [self.places.part(base + ANSWER, first)];
        let request = Call { head: &parts[..count], data, answer: &own, room, tail: &[] };
        let (requests, copies) = (&mut self.requests, &self.copies);
        let written = call(requests, &mut self.device, &mut self.platform, copies, request);
        let written = written.map_err(|error| match error {
            CallError::Full => SendError::Full,
            CallError::TooLarge => SendError::TooLarge,
            CallError::Device(_) => self.lose().into(),
        })?;
        let (message, data) = self.answer(base, written, first, answer);
        Ok(Received { message, data })
    }

    fn ready(&mut self, token: &Token) -> Result<bool, Lost> {
        let Slot::Sent(high, head, _) = self.slots[token.0 as usize] else { return Err(Lost) };
        if self.is_lost {
            return Err(Lost);
        }
        self.queue(high).0.is_answered(head).map_err(|_| self.lose())
    }

    fn wait(&mut self, token: &Token) -> Result<(), Lost> {
        let Slot::Sent(high, head, _) = self.slots[token.0 as usize] else { return Err(Lost) };
        if self.is_lost {
            return Err(Lost);
        }
        let (queue, device) = self.queue(high);
        queue.wait_for(device, head).map_err(|_| self.lose())
    }

    fn receive(
        &mut self,
        token: Token,
        message: &mut [u8],
        data: &mut [u8],
    ) -> Result<Received, Lost> {
        let slot = token.0 as usize;
        let Slot::Sent(high, head, room) = self.slots[slot] else { return Err(Lost) };
        self.slots[slot] = Slot::Free;
        if self.is_lost {
            return Err(Lost);
        }
        let (queue, device) = self.queue(high);
        let written = queue.wait(device, head).map_err(|_| self.lose())?;
        let base = slot * SLOT;
        let first = if room > 0 { OUT_HEADER } else { DATA - ANSWER };
        let (own, more) = if high { (0, 0) } else { self.answer(base, written, first, message) };
        let more = more.min(room).min(data.len());
        self.places.memory().shared().read(base + ROOM, &mut data[..more]);
        Ok(Received { message: own, data: more })
    }
}

#[cfg(test)]
mod tests;
