//! The carrier of one client's requests: the third of the server, after the ring's lane and the
//! FUSE device. Requests lie in it until the world comes to them. News of their answers is put into
//! an [`Outbox`] in the order in which it happens; from there the world gives the answers in any
//! other.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_server::route::carrier::{Carrier, Held, Incoming};
use atoll_vfs::{Result, Room};

/// A request on its way.
pub struct Parcel {
    /// The world's number of it.
    pub id: u64,
    /// Its message.
    pub message: Vec<u8>,
    /// Its data, where that comes apart.
    pub data: Vec<u8>,
    /// Bytes of data that its answer may bring.
    pub room: usize,
}

/// News of the answer to a request.
pub enum Letter {
    /// The answer is there; an empty message says that none is due.
    Answered {
        /// The number of the request.
        id: u64,
        /// The answer.
        reply: Reply,
    },
    /// The answer is there, and waits.
    Held {
        /// The number of the request.
        id: u64,
        /// The answer if all goes well.
        reply: Reply,
    },
    /// The answer waits no more.
    Released {
        /// The number of the request.
        id: u64,
        /// The outcome of the wait.
        outcome: Result<()>,
    },
}

/// The bytes of an answer.
#[derive(Debug, Default)]
pub struct Reply {
    /// The message.
    pub message: Vec<u8>,
    /// The data.
    pub data: Vec<u8>,
}

/// The news of all clients' requests, in the order in which it happened.
#[derive(Clone, Default)]
pub struct Outbox(Arc<Mutex<Vec<Letter>>>);

impl Outbox {
    fn put(&self, letter: Letter) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(letter);
    }

    /// Takes everything.
    pub fn take(&self) -> Vec<Letter> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How one client's requests are carried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// It is a FUSE device: requests to forget wait apart, and those to interrupt come first.
    pub is_device: bool,
    /// Planted: answers that wait for kernels are given at once.
    pub is_hasty: bool,
}

/// The way of one client's requests.
pub struct Line {
    manner: Manner,
    interrupts: VecDeque<Parcel>,
    requests: VecDeque<Parcel>,
    forgets: VecDeque<Parcel>,
    /// The next to forget comes before the next request.
    forgets_first: bool,
    current: Option<Parcel>,
    room: Vec<u8>,
    outbox: Outbox,
    /// Somebody is at the other end.
    is_up: Arc<AtomicBool>,
    /// The answer of [`Carrier::is_alone`] for the request that is taken next.
    pub is_alone: bool,
    /// A lock or a sync is asked for just now: its answer waits for others than kernels.
    pub waits_for_others: bool,
}

impl Line {
    /// A line with nothing in it.
    pub fn new(outbox: &Outbox, manner: Manner) -> Line {
        Line {
            manner,
            interrupts: VecDeque::new(),
            requests: VecDeque::new(),
            forgets: VecDeque::new(),
            forgets_first: false,
            current: None,
            room: Vec::new(),
            outbox: outbox.clone(),
            is_up: Arc::new(AtomicBool::new(true)),
            is_alone: false,
            waits_for_others: false,
        }
    }

    /// A request comes.
    pub fn push(&mut self, parcel: Parcel) {
        self.requests.push_back(parcel);
    }

    /// A request comes that a device gives before all others.
    pub fn push_interrupt(&mut self, parcel: Parcel) {
        self.interrupts.push_back(parcel);
    }

    /// A request comes that a device gives when it likes.
    pub fn push_forget(&mut self, parcel: Parcel) {
        match self.manner.is_device {
            true => self.forgets.push_back(parcel),
            false => self.push(parcel),
        }
    }

    /// Chooses the request to be taken next: one to forget, if there is one and `forgets_first`, or
    /// the next other. Returns its number.
    pub fn choose(&mut self, forgets_first: bool) -> Option<u64> {
        self.forgets_first = forgets_first || self.requests.is_empty();
        self.next().front().map(|parcel| parcel.id)
    }

    /// The queue that the next request is taken from.
    fn next(&mut self) -> &mut VecDeque<Parcel> {
        if !self.interrupts.is_empty() {
            &mut self.interrupts
        } else if self.forgets_first && !self.forgets.is_empty() {
            &mut self.forgets
        } else {
            &mut self.requests
        }
    }

    /// How many requests wait to be taken.
    pub fn len(&self) -> usize {
        self.interrupts.len() + self.requests.len() + self.forgets.len()
    }

    /// Whether nothing waits to be taken.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there are requests to forget among others.
    pub fn has_forgets(&self) -> bool {
        !self.forgets.is_empty()
    }

    /// The other end is gone.
    pub fn hang_up(&mut self) {
        self.is_up.store(false, Ordering::Relaxed);
        self.interrupts.clear();
        self.requests.clear();
        self.forgets.clear();
    }

    /// Gives the memory for answers' data back.
    pub fn empty_room(&mut self) {
        self.room = Vec::new();
    }

    fn reply(&self, message: &[u8], data: usize) -> Reply {
        Reply { message: message.to_vec(), data: self.room[..data].to_vec() }
    }
}

impl Carrier for Line {
    type Slot = u64;
    type Error = std::convert::Infallible;

    fn take(&mut self) -> std::result::Result<Option<u64>, Self::Error> {
        let Some(parcel) = self.next().pop_front() else { return Ok(None) };
        // No answer may show what another has left in the room.
        self.room.clear();
        self.room.resize(parcel.room, 0xa5);
        let id = parcel.id;
        self.current = Some(parcel);
        Ok(Some(id))
    }

    fn incoming(&mut self, _: &u64) -> Incoming<'_> {
        let (message, data) = match &self.current {
            Some(parcel) => (&parcel.message[..], &parcel.data[..]),
            None => Default::default(),
        };
        Incoming { message, data: data.into(), room: Room::from(&mut self.room[..]) }
    }

    fn is_alone(&self) -> bool {
        self.is_alone
    }

    fn answer(
        &mut self,
        id: u64,
        message: &[u8],
        data: usize,
    ) -> std::result::Result<bool, Self::Error> {
        let reply = self.reply(message, data);
        self.outbox.put(Letter::Answered { id, reply });
        Ok(self.is_up.load(Ordering::Relaxed))
    }

    fn hold(&mut self, id: u64, message: &[u8], data: usize) -> Box<dyn Held> {
        let reply = self.reply(message, data);
        let is_hasty = self.manner.is_hasty && !self.waits_for_others;
        let (outbox, is_up) = (self.outbox.clone(), Arc::clone(&self.is_up));
        outbox.put(match is_hasty {
            true => Letter::Answered { id, reply },
            false => Letter::Held { id, reply },
        });
        Box::new(Waiting { id, outbox: (!is_hasty).then_some(outbox), is_up })
    }
}

/// An answer that waits.
struct Waiting {
    id: u64,
    /// `None` if the answer was given already.
    outbox: Option<Outbox>,
    is_up: Arc<AtomicBool>,
}

impl Held for Waiting {
    fn release(self: Box<Self>, outcome: Result<()>) -> bool {
        if let Some(outbox) = &self.outbox {
            outbox.put(Letter::Released { id: self.id, outcome });
        }
        self.is_up.load(Ordering::Relaxed)
    }
}
