//! A queue of requests with its device: answers come in any order, and wait here for who asked.

use alloc::vec;
use alloc::vec::Vec;

use atoll_transport::channel::Mapped;

use crate::device::{Device, DeviceError, features};
use crate::platform::Platform;
use crate::queue::{Broken, Head, OfferError, Part, Queue, QueueOptions, Used};

/// After so many turns of a wait the device is rung again, whether it wants that or not, and each
/// time that there were twice as many. QEMU before 8.1 leaves out the barriers of a guest with one
/// emulated processor: where another process is the device, the driver may find that it is not to
/// ring while the device finds nothing and sleeps.
const AGAIN: u64 = 1 << 14;

/// The features of queues that the drivers make use of where they are offered.
pub const QUEUE_FEATURES: u64 = features::INDIRECT | features::EVENT_INDEX;

/// What has become of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It is not in use.
    Free,
    /// It is the device's.
    Sent,
    /// It has come back, with so many bytes.
    Answered(usize),
}

/// A queue that runs.
#[derive(Debug)]
pub struct Requests<M> {
    number: u16,
    queue: Queue<M>,
    states: Vec<State>,
    rung: u64,
}

impl<M: Mapped> Requests<M> {
    /// Makes queue `number` of `device`, which has settled on `agreed` features, with at most
    /// `most` entries and chains of at most `parts` parts.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub fn begin<D: Device, P: Platform<Memory = M>>(
        device: &mut D,
        platform: &mut P,
        number: u16,
        most: u16,
        parts: u16,
        agreed: u64,
    ) -> Result<Self, DeviceError> {
        let offered = device.queue_size(number);
        if offered == 0 {
            return Err(DeviceError::Unsupported);
        }
        // A device may offer a size that is no power of two only by mistake: the next lower one.
        let size = 1 << offered.min(most).clamp(1, crate::queue::SIZE_MAX).ilog2();
        let options = QueueOptions {
            size,
            parts_max: parts,
            indirect: agreed & features::INDIRECT != 0,
            event_index: agreed & features::EVENT_INDEX != 0,
        };
        if !options.indirect && parts > size {
            return Err(DeviceError::Unsupported);
        }
        let mut queue = Queue::new(platform, options).ok_or(DeviceError::NoMemory)?;
        queue.want_interrupt(false);
        device.start_queue(number, size, &queue.addresses())?;
        Ok(Requests { number, queue, states: vec![State::Free; usize::from(size)], rung: 0 })
    }

    /// How many entries it has.
    pub fn size(&self) -> u16 {
        self.queue.size()
    }

    /// How many requests have no answer yet.
    pub fn outstanding(&self) -> u16 {
        self.queue.outstanding()
    }

    /// How often the device was told of what was offered, as it wanted to be.
    pub fn rung(&self) -> u64 {
        self.rung
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn send<D: Device>(
        &mut self,
        device: &mut D,
        readable: &[Part],
        writable: &[Part],
    ) -> Result<Head, OfferError> {
        let head = self.offer(readable, writable)?;
        self.ring(device);
        Ok(head)
    }

    /// As [`send`](Self::send), of which the device hears with the next [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`OfferError`].
    pub fn offer(&mut self, readable: &[Part], writable: &[Part]) -> Result<Head, OfferError> {
        let head = self.queue.offer(readable, writable)?;
        self.states[head.index()] = State::Sent;
        Ok(head)
    }

    /// Tells the device of what was offered.
    pub fn ring<D: Device>(&mut self, device: &mut D) {
        if self.queue.must_ring() {
            self.rung += 1;
            device.ring(self.number);
        }
    }

    /// Takes all that has come back.
    fn collect(&mut self) -> Result<(), DeviceError> {
        // No more than were outstanding: the queue counts them.
        while let Some(Used { head, written }) =
            self.queue.take().map_err(|Broken| DeviceError::Broken)?
        {
            self.states[head.index()] = State::Answered(written);
        }
        Ok(())
    }

    /// The answer to this request, if it is there: how many bytes the device has written. It is
    /// asked for until it is there, once.
    ///
    /// # Errors
    /// [`DeviceError::Broken`].
    pub fn answer(&mut self, head: Head) -> Result<Option<usize>, DeviceError> {
        if self.states[head.index()] == State::Sent {
            self.collect()?;
        }
        match self.states[head.index()] {
            State::Answered(written) => {
                self.states[head.index()] = State::Free;
                self.queue.free(head);
                Ok(Some(written))
            }
            State::Sent => Ok(None),
            State::Free => Err(DeviceError::Broken),
        }
    }

    /// Whether the answer to this request is there, which [`answer`](Self::answer) then takes.
    ///
    /// # Errors
    /// [`DeviceError::Broken`].
    pub fn is_answered(&mut self, head: Head) -> Result<bool, DeviceError> {
        if self.states[head.index()] == State::Sent {
            self.collect()?;
        }
        Ok(self.states[head.index()] != State::Sent)
    }

    /// Waits for the answer, and takes it.
    ///
    /// # Errors
    /// As [`wait_for`](Self::wait_for).
    pub fn wait<D: Device>(&mut self, device: &mut D, head: Head) -> Result<usize, DeviceError> {
        self.wait_for(device, head)?;
        self.answer(head)?.ok_or(DeviceError::Broken)
    }

    /// Returns when the answer is there, which [`answer`](Self::answer) then takes.
    ///
    /// # Errors
    /// [`DeviceError`], after which the device may still write to what it was given.
    pub fn wait_for<D: Device>(&mut self, device: &mut D, head: Head) -> Result<(), DeviceError> {
        let mut turn = 0;
        while !self.is_answered(head)? {
            let mut passed = device.pause(self.number, turn);
            if passed == Ok(false) {
                // An answer that came before the device was told may come without an interrupt.
                if !self.queue.want_interrupt(true) {
                    passed = device.sleep(self.number).map(|()| false);
                }
                self.queue.want_interrupt(false);
            }
            if let Err(error) = passed {
                // What it had answered before counts.
                return if self.is_answered(head)? { Ok(()) } else { Err(error) };
            }
            turn += 1;
            if turn >= AGAIN && turn.is_power_of_two() {
                device.ring(self.number);
            }
        }
        Ok(())
    }

    /// Stops the device and uses the queue no more.
    pub fn end<D: Device>(&mut self, device: &mut D) {
        self.queue.end();
        device.stop();
    }
}

/// Resets `device` and settles on those of the features `wanted`, and of
/// [`QUEUE_FEATURES`], that it offers. Returns what was settled on.
///
/// # Errors
/// [`DeviceError`]; `Unsupported` for a device that does not keep to version 1.
pub fn settle<D: Device>(device: &mut D, wanted: u64) -> Result<u64, DeviceError> {
    let offered = device.begin()?;
    accept(device, offered, wanted)
}

/// The second half of [`settle`], with a device that has [begun](Device::begin) and offers
/// `offered`.
///
/// # Errors
/// As there.
pub fn accept<D: Device>(device: &mut D, offered: u64, wanted: u64) -> Result<u64, DeviceError> {
    let agreed = offered & (wanted | QUEUE_FEATURES | features::VERSION_1);
    if agreed & features::VERSION_1 == 0 {
        return Err(DeviceError::Unsupported);
    }
    device.accept(agreed)?;
    Ok(agreed)
}
