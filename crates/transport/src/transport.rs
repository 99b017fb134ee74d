//! The way from a client of a seam to its server, as the client needs it.

/// The other side is gone, or broke the protocol: nothing sent can be answered any more. Requests
/// that had been sent may have been done or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost;

/// Why a request was not sent. Nothing has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// As [`Lost`].
    Lost,
    /// As many requests as the transport holds are unanswered: wait for one.
    Full,
    /// The message, its data, or the room for the answer is larger than the transport carries.
    TooLarge,
}

impl From<Lost> for SendError {
    fn from(_: Lost) -> Self {
        SendError::Lost
    }
}

/// A request that was sent and whose answer has not been received.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// The lengths of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes of the message.
    pub message: usize,
    /// Bytes of the data that came with it.
    pub data: usize,
}

impl Received {
    /// Copies an answer that is kept to the front of a caller's buffers, as much as they have room
    /// for.
    pub fn copy(answer: (&[u8], &[u8]), message: &mut [u8], data: &mut [u8]) -> Received {
        let copy = |from: &[u8], to: &mut [u8]| {
            let len = from.len().min(to.len());
            to[..len].copy_from_slice(&from[..len]);
            len
        };
        Received { message: copy(answer.0, message), data: copy(answer.1, data) }
    }
}

/// A way to a server: requests go out, answers come back, in any order.
///
/// A request and an answer are each a *message*, which is small and is copied, and *data*, which
/// may be large and goes by way of memory that both sides see.
pub trait Transport {
    /// Sends `message` with `data`; the answer may bring at most `room` bytes of data. The place
    /// for the answer is reserved now, so that the server never waits for one.
    ///
    /// # Errors
    /// [`SendError`].
    fn send(&mut self, message: &[u8], data: &[u8], room: usize) -> Result<Token, SendError>;

    /// Whether the answer is there.
    ///
    /// # Errors
    /// [`Lost`].
    fn ready(&mut self, token: &Token) -> Result<bool, Lost>;

    /// Returns when the answer is there.
    ///
    /// # Errors
    /// [`Lost`].
    fn wait(&mut self, token: &Token) -> Result<(), Lost>;

    /// Waits for the answer and takes it: its message to the front of `message`, its data to the
    /// front of `data`, each cut to what fits. The token's place is free again, also after an
    /// error.
    ///
    /// # Errors
    /// [`Lost`].
    fn receive(
        &mut self,
        token: Token,
        message: &mut [u8],
        data: &mut [u8],
    ) -> Result<Received, Lost>;

    /// Sends `message` with `data` and takes the answer, its message to the front of `answer`, its
    /// data to the front of `room`, each cut to what fits: [`send`](Self::send) and
    /// [`receive`](Self::receive) in one. Until it returns the buffers are the transport's, so that
    /// one whose other side can reach them copies nothing; it may carry more data than `send`.
    ///
    /// # Errors
    /// [`SendError`]. After [`SendError::Lost`] the request may have been done, and `answer` and
    /// `room` hold anything; else nothing has happened.
    #[inline]
    fn call(
        &mut self,
        message: &[u8],
        data: &[u8],
        answer: &mut [u8],
        room: &mut [u8],
    ) -> Result<Received, SendError> {
        let token = self.send(message, data, room.len())?;
        Ok(self.receive(token, answer, room)?)
    }
}
