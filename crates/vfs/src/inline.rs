//! A [`Transport`] to a file system in the same process: requests are carried out as they are sent,
//! by a [`Server`]. For tests of messages alone; there is no session, and no carrier.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use atoll_transport::{Lost, Received, SendError, Token, Transport};

use crate::filesystem::FileSystem;
use crate::server::{Caller, Identity, Reply, Server, ServerOptions};
use crate::types::Timespec;
use crate::wire::{REPLY_MAX, REQUEST_MAX};

/// The most requests whose answers wait to be received.
const OUTSTANDING: usize = 64;

/// A file system behind bytes.
///
/// Callers are whom they say they are; the time is what `clock` says, unless the client's counts.
#[derive(Debug)]
pub struct Inline<F, C> {
    /// The file system.
    pub fs: F,
    server: Server,
    clock: C,
    max_data: usize,
    answers: BTreeMap<u64, (Vec<u8>, Vec<u8>)>,
    next: u64,
}

impl<F: FileSystem, C: FnMut() -> Timespec> Inline<F, C> {
    /// Puts `fs` behind a server with `options`, on a transport that carries as much data as the
    /// server takes.
    pub fn new(fs: F, options: ServerOptions, clock: C) -> Self {
        Inline {
            fs,
            server: Server::new(options),
            clock,
            max_data: options.max_data as usize,
            answers: BTreeMap::new(),
            next: 0,
        }
    }

    /// The same with a transport that carries at most `max_data` bytes of data.
    pub fn narrow(self, max_data: usize) -> Self {
        Inline { max_data, ..self }
    }
}

impl<F: FileSystem, C: FnMut() -> Timespec> Transport for Inline<F, C> {
    fn send(&mut self, message: &[u8], data: &[u8], room: usize) -> Result<Token, SendError> {
        if message.len() > REQUEST_MAX || data.len() > self.max_data || room > self.max_data {
            return Err(SendError::TooLarge);
        }
        if self.answers.len() >= OUTSTANDING {
            return Err(SendError::Full);
        }
        let caller = Caller { identity: Identity::FromHeader, now: (self.clock)() };
        let (mut reply, mut place) = (vec![0; REPLY_MAX], vec![0; room]);
        let Reply { message, data } = self
            .server
            .serve(&mut self.fs, &caller, message, data, &mut reply, &mut place)
            .map_err(|_| SendError::Lost)?;
        reply.truncate(message);
        place.truncate(data);
        let token = self.next;
        self.next += 1;
        self.answers.insert(token, (reply, place));
        Ok(Token(token))
    }

    fn ready(&mut self, token: &Token) -> Result<bool, Lost> {
        Ok(self.answers.contains_key(&token.0))
    }

    fn wait(&mut self, token: &Token) -> Result<(), Lost> {
        if self.ready(token)? { Ok(()) } else { Err(Lost) }
    }

    fn receive(
        &mut self,
        token: Token,
        message: &mut [u8],
        data: &mut [u8],
    ) -> Result<Received, Lost> {
        let (reply, place) = self.answers.remove(&token.0).ok_or(Lost)?;
        Ok(Received::copy((&reply, &place), message, data))
    }
}
