//! The loopback: a client and what serves it in one thread. Its requests go the way that a ring's
//! go, by a carrier to router, session and volume, and its syncs to the volume's syncer, which
//! works while it waits.
//!
//! [`atoll_vfs::Inline`] is less: a codec with a file system behind it, for tests of messages
//! alone.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_server::Session;
use atoll_server::host::Bell;
use atoll_server::revocable::Revocable;
use atoll_server::route::answer::fail;
use atoll_server::route::carrier::{Carrier, Held, Incoming};
use atoll_server::route::router::{Router, serve_next};
use atoll_server::syncs::Syncer;
use atoll_server::task::{Step, Task};
use atoll_transport::{Lost, Received, SendError, Token, Transport};
use atoll_vfs::wire::REQUEST_MAX;
use atoll_vfs::{FileSystem, Room, ServerOptions};

/// The most requests whose answers wait to be received.
const OUTSTANDING: usize = 64;

/// A message and its data.
#[derive(Default)]
struct Letter {
    message: Vec<u8>,
    data: Vec<u8>,
}

/// The answers that have come, by token.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<HashMap<u64, Letter>>>);

impl Answers {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, Letter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server's half: the request that was sent last, if it was not taken yet.
#[derive(Default)]
struct Last {
    token: Option<u64>,
    request: Letter,
    room: Vec<u8>,
    answers: Answers,
}

impl Last {
    fn letter(&self, message: &[u8], data: usize) -> Letter {
        Letter { message: message.to_vec(), data: self.room[..data].to_vec() }
    }
}

impl Carrier for Last {
    type Slot = u64;
    type Error = Infallible;

    fn take(&mut self) -> Result<Option<u64>, Infallible> {
        Ok(self.token.take())
    }

    fn incoming(&mut self, _: &u64) -> Incoming<'_> {
        let Letter { message, data } = &self.request;
        Incoming { message, data: data[..].into(), room: Room::from(&mut self.room[..]) }
    }

    fn answer(&mut self, token: u64, message: &[u8], data: usize) -> Result<bool, Infallible> {
        self.answers.all().insert(token, self.letter(message, data));
        Ok(true)
    }

    fn hold(&mut self, token: u64, message: &[u8], data: usize) -> Box<dyn Held> {
        let letter = self.letter(message, data);
        Box::new(Waiting { token, letter, answers: self.answers.clone() })
    }
}

struct Waiting {
    token: u64,
    letter: Letter,
    answers: Answers,
}

impl Held for Waiting {
    fn release(mut self: Box<Self>, outcome: atoll_vfs::Result<()>) -> bool {
        if let Err(error) = outcome {
            fail(&mut self.letter.message, error);
            self.letter.data.clear();
        }
        self.answers.all().insert(self.token, self.letter);
        true
    }
}

/// Nobody has to be woken who is asked all the time.
struct Awake;

impl Bell for Awake {
    fn ring(&self) {}
}

/// The client's half, with what serves it.
pub struct Loopback<F: FileSystem + Send> {
    carrier: Last,
    router: Router,
    session: Revocable<Session<F>>,
    syncer: Syncer<F>,
    max_data: usize,
    next: u64,
}

impl<F: FileSystem + Send> Loopback<F> {
    /// Carries the requests of one client to `session`, whose volume has no syncer yet.
    pub fn new(session: Session<F>, options: ServerOptions) -> Self {
        let syncer = Syncer::new(session.volume(), Arc::new(Awake));
        let place = Revocable::default();
        place.begin(session);
        Loopback {
            carrier: Last::default(),
            router: Router::new(options),
            session: place,
            syncer,
            max_data: options.max_data as usize,
            next: 0,
        }
    }

    /// Has the syncer do all that there is.
    fn sync(&mut self) -> Result<(), Lost> {
        let mut flushed = None;
        loop {
            match self.syncer.step(flushed.take()) {
                Step::Flush(sync) => flushed = Some(sync.flush()),
                Step::Pause(_) => {}
                Step::Wait => return Ok(()),
                Step::Over => return Err(Lost),
            }
        }
    }
}

impl<F: FileSystem + Send> Transport for Loopback<F> {
    fn send(&mut self, message: &[u8], data: &[u8], room: usize) -> Result<Token, SendError> {
        if message.len() > REQUEST_MAX || data.len() > self.max_data || room > self.max_data {
            return Err(SendError::TooLarge);
        }
        if self.carrier.answers.all().len() >= OUTSTANDING {
            return Err(SendError::Full);
        }
        let token = self.next;
        self.next += 1;
        self.carrier.token = Some(token);
        self.carrier.request = Letter { message: message.to_vec(), data: data.to_vec() };
        self.carrier.room = vec![0; room];
        serve_next(&mut self.carrier, &mut self.router, &self.session)
            .map_err(|_| SendError::Lost)?;
        Ok(Token(token))
    }

    fn ready(&mut self, token: &Token) -> Result<bool, Lost> {
        Ok(self.carrier.answers.all().contains_key(&token.0))
    }

    fn wait(&mut self, token: &Token) -> Result<(), Lost> {
        if !self.ready(token)? {
            self.sync()?;
        }
        // Nobody else is there to give it.
        if self.ready(token)? { Ok(()) } else { Err(Lost) }
    }

    fn receive(
        &mut self,
        token: Token,
        message: &mut [u8],
        data: &mut [u8],
    ) -> Result<Received, Lost> {
        self.wait(&token)?;
        let letter = self.carrier.answers.all().remove(&token.0).ok_or(Lost)?;
        Ok(Received::copy((&letter.message, &letter.data), message, data))
    }
}
