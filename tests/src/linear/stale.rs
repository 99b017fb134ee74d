//! A device that the checker has to find out: it answers some questions from a copy of its last
//! answer, although others change what they are about.

use std::collections::HashMap;

use atoll_transport::{Lost, Received, SendError, Token, Transport};
use atoll_vfs::wire::opcode::{FUSE_GETATTR, FUSE_LOOKUP, FUSE_READ};

/// Bytes of a message before and with its number.
const BEFORE: usize = 8;
const NUMBER: usize = 16;

/// An answer: message and data.
type Answer = (Vec<u8>, Vec<u8>);

/// A way to a server, past which some questions do not go.
pub struct Stale<T> {
    inner: T,
    /// The last answer to a question, by what it asks.
    copies: HashMap<Vec<u8>, Answer>,
    /// Questions under way whose answers are kept, by their tokens.
    asked: HashMap<u64, Vec<u8>>,
    /// Answers that are there without having been asked for.
    given: HashMap<u64, Answer>,
    count: u64,
}

impl<T: Transport> Stale<T> {
    /// By `inner`.
    pub fn new(inner: T) -> Stale<T> {
        let (copies, asked, given) = (HashMap::new(), HashMap::new(), HashMap::new());
        Stale { inner, copies, asked, given, count: 0 }
    }
}

/// What a message asks, whichever number it has; `None` if the answer is not kept.
fn question(message: &[u8]) -> Option<Vec<u8>> {
    let opcode = u32::from_ne_bytes(message.get(4..BEFORE)?.try_into().ok()?);
    let kept = [FUSE_LOOKUP, FUSE_GETATTR, FUSE_READ].contains(&opcode);
    kept.then(|| [&message[..BEFORE], &message[NUMBER..]].concat())
}

impl<T: Transport> Transport for Stale<T> {
    fn send(&mut self, message: &[u8], data: &[u8], room: usize) -> Result<Token, SendError> {
        let question = question(message);
        // Each second time: what it has kept is old, and not for ever.
        self.count += 1;
        let copy = question.as_ref().filter(|_| self.count.is_multiple_of(2));
        if let Some((answer, data)) = copy.and_then(|question| self.copies.get(question)) {
            let number = &message[BEFORE..NUMBER];
            let answer = [&answer[..BEFORE], number, &answer[NUMBER..]].concat();
            // No device has as many tokens.
            let token = u64::MAX - self.count;
            self.given.insert(token, (answer, data.clone()));
            return Ok(Token(token));
        }
        let token = self.inner.send(message, data, room)?;
        if let Some(question) = question {
            self.asked.insert(token.0, question);
        }
        Ok(token)
    }

    fn ready(&mut self, token: &Token) -> Result<bool, Lost> {
        Ok(self.given.contains_key(&token.0) || self.inner.ready(token)?)
    }

    fn wait(&mut self, token: &Token) -> Result<(), Lost> {
        if self.given.contains_key(&token.0) { Ok(()) } else { self.inner.wait(token) }
    }

    fn receive(
        &mut self,
        token: Token,
        message: &mut [u8],
        data: &mut [u8],
    ) -> Result<Received, Lost> {
        if let Some((answer, more)) = self.given.remove(&token.0) {
            return Ok(Received::copy((&answer, &more), message, data));
        }
        let question = self.asked.remove(&token.0);
        let received = self.inner.receive(token, message, data)?;
        if let Some(question) = question {
            let answer = (message[..received.message].to_vec(), data[..received.data].to_vec());
            self.copies.insert(question, answer);
        }
        Ok(received)
    }
}
