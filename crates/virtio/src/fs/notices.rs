//! The queue for notices: VIRTIO 1.2, 5.11.3 and 5.11.6.2.
//!
//! The driver offers empty buffers, the device puts one notice into each. That a buffer is offered
//! again says that what was in it has been done: so it is the taker of notices who offers it.

use alloc::vec;
use alloc::vec::Vec;

use atoll_transport::Lost;
use atoll_transport::channel::Mapped;

use super::TAG_LEN;
use crate::device::{Device, DeviceError, features};
use crate::platform::{Platform, Region};
use crate::queue::{Broken, Head, OfferError, Queue, QueueOptions};

/// The device has a queue for notices (VIRTIO_FS_F_NOTIFICATION).
pub(super) const FEATURE: u64 = 1;
/// The queue's number.
const NUMBER: u16 = 1;
/// Where the configuration has the least length of a buffer: behind the tag and the number of
/// queues.
const NOTIFY_BUF_SIZE: usize = TAG_LEN + 4;
/// The most bytes of a buffer: a device that wants more is taken for one without notices.
const BUFFER_MAX: usize = 4096;
/// The most buffers.
const BUFFERS: u16 = 16;
/// The most notices that are taken at once, in buffers.
const ROUNDS: usize = 2;

/// The length of a buffer, if the device has notices that this driver has room for.
pub(super) fn buffer<D: Device>(device: &mut D, offered: u64) -> Option<usize> {
    let mut len = [0; 4];
    if offered & FEATURE == 0 || device.configuration(NOTIFY_BUF_SIZE, &mut len).is_err() {
        return None;
    }
    let len = u32::from_le_bytes(len) as usize;
    // One that needs nothing is offered what a header and a name take.
    (len <= BUFFER_MAX).then_some(len.max(512).next_multiple_of(64))
}

/// A buffer whose notice was taken, and is to be [done](Notices::done).
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Buffer(usize);

/// What is to be done after notices were [taken](Notices::take_all).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Taken {
    /// The device wants to be rung.
    pub rings: bool,
    /// There may be more notices, of which there may be no interrupt.
    pub more: bool,
}

/// The queue for notices.
#[derive(Debug)]
pub struct Notices<M> {
    queue: Queue<M>,
    places: Region<M>,
    len: usize,
    /// By the number of a chain, which buffer that is.
    buffers: Vec<usize>,
    /// The device interrupts for the next notice.
    hears: bool,
}

impl<M: Mapped> Notices<M> {
    /// Makes the queue, with all its buffers on offer.
    pub(super) fn begin<D: Device, P: Platform<Memory = M>>(
        device: &mut D,
        platform: &mut P,
        agreed: u64,
        len: usize,
    ) -> Result<Self, DeviceError> {
        let offered = device.queue_size(NUMBER);
        if offered == 0 {
            return Err(DeviceError::Unsupported);
        }
        let size = 1 << offered.min(BUFFERS).ilog2();
        let options = QueueOptions {
            size,
            parts_max: 1,
            indirect: false,
            event_index: agreed & features::EVENT_INDEX != 0,
        };
        let mut queue = Queue::new(platform, options).ok_or(DeviceError::NoMemory)?;
        let count = usize::from(size);
        let places = platform.share(count * len).ok_or(DeviceError::NoMemory)?;
        queue.want_interrupt(true);
        device.start_queue(NUMBER, size, &queue.addresses())?;
        let mut notices = Notices { queue, places, len, buffers: vec![0; count], hears: true };
        for buffer in 0..count {
            notices.offer(buffer).map_err(|Lost| DeviceError::NoMemory)?;
        }
        Ok(notices)
    }

    /// The queue's number, by which a device has its bell.
    pub fn number(&self) -> u16 {
        NUMBER
    }

    /// How many buffers there are: no more notices come than that before one is done.
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    /// The length of a buffer, in bytes.
    pub fn buffer_len(&self) -> usize {
        self.len
    }

    fn offer(&mut self, buffer: usize) -> Result<(), Lost> {
        let place = self.places.part(buffer * self.len, self.len);
        match self.queue.offer(&[], &[place]) {
            Ok(head) => {
                self.buffers[head.index()] = buffer;
                Ok(())
            }
            // There is room for each: the queue counts what is the device's.
            Err(OfferError::Full | OfferError::Shape | OfferError::Broken) => Err(Lost),
        }
    }

    /// Takes the next notice, a message of FUSE's with its header, which is copied to `message`:
    /// the buffer that it came in, and its length. `None`: none has come.
    ///
    /// # Errors
    /// [`Lost`] when the device has broken the rules: nothing comes any more.
    ///
    /// # Panics
    /// When `message` is shorter than a [buffer](Self::buffer_len).
    pub fn next(&mut self, message: &mut [u8]) -> Result<Option<(Buffer, usize)>, Lost> {
        let Some(used) = self.queue.take().map_err(|Broken| Lost)? else { return Ok(None) };
        let head: Head = used.head;
        let buffer = self.buffers[head.index()];
        self.queue.free(head);
        // The queue has seen to it that no more is said to be written than there is room.
        self.places.memory().read(buffer * self.len, &mut message[..used.written]);
        Ok(Some((Buffer(buffer), used.written)))
    }

    /// Says that what came in `buffer` has been done. The device hears of it when it is rung, if
    /// [`must_ring`](Self::must_ring) says so.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub fn done(&mut self, buffer: Buffer) -> Result<(), Lost> {
        self.offer(buffer.0)
    }

    /// Takes the notices that have come, at most twice as many as there are buffers, since a device
    /// could send them without end: `act` does what each says, a message that was copied to
    /// `message`, and its buffer is offered again. Then the device interrupts for the next one.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    ///
    /// # Panics
    /// As there.
    pub fn take_all(
        &mut self,
        message: &mut [u8],
        mut act: impl FnMut(&[u8]),
    ) -> Result<Taken, Lost> {
        let (mut took, most) = (0, ROUNDS * self.buffers());
        while took < most {
            if let Some((buffer, len)) = self.next(message)? {
                act(&message[..len]);
                self.done(buffer)?;
                took += 1;
                self.hears = false;
            } else if self.hears || !self.want_interrupt() {
                self.hears = true;
                break;
            }
        }
        Ok(Taken { rings: took > 0 && self.must_ring(), more: took == most })
    }

    /// Whether the device wants to be rung for what has been done since the last call.
    pub fn must_ring(&mut self) -> bool {
        self.queue.must_ring()
    }

    /// Has the device interrupt for the next notice. Returns whether one has come already, of which
    /// it may not.
    pub fn want_interrupt(&mut self) -> bool {
        self.queue.want_interrupt(true)
    }
}

#[cfg(test)]
mod tests;
