//! One request and its reply.

use atoll_transport::{SendError, Token, Transport};

use super::{Client, DATA_MIN, FORGETS, UNREAD};
use crate::errno::{Errno, Result};
use crate::lent::Lent;
use crate::types::{Context, Ino, Timespec};
use crate::wire::header::{InHeader, OutHeader};
use crate::wire::names::{ForgetOne, Forgets};
use crate::wire::{Extensions, Fixed, Request};

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The server said so, or it is lost.
    With(Errno),
    /// The transport does not carry so much data. Nothing was sent.
    TooLarge,
}

impl From<Errno> for Failed {
    fn from(error: Errno) -> Self {
        Failed::With(error)
    }
}

impl From<Failed> for Errno {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::With(error) => error,
            Failed::TooLarge => Errno::EIO,
        }
    }
}

/// The error that a server means by error number `raw`, which is not 0.
pub(super) fn error(raw: i32) -> Errno {
    match raw.checked_neg().and_then(Errno::from_raw) {
        // The seam has no such error: a file system cannot do it, or can.
        Some(Errno::ENOSYS) => Errno::EOPNOTSUPP,
        Some(error) => error,
        None => Errno::EIO,
    }
}

impl<T: Transport> Client<T> {
    /// Sends `request` and takes the answer: exactly `body` bytes after the header, to be read by
    /// [`body`](Self::body), and data at the front of `place`, whose length is returned.
    #[inline]
    pub(super) fn try_call(
        &mut self,
        cx: &Context,
        ino: Ino,
        request: &Request<'_>,
        body: usize,
        place: &mut [u8],
    ) -> core::result::Result<usize, Failed> {
        let len = self.encode(cx, ino, request)?;
        let data = request.data().one().ok_or(Errno::EINVAL)?;
        let message = &mut self.reply[..OutHeader::SIZE + body];
        let got = match self.transport.call(&self.request[..len], data, message, place) {
            Ok(got) => got,
            Err(SendError::TooLarge) => return Err(Failed::TooLarge),
            Err(SendError::Full) if !self.unread.is_empty() => {
                self.read_answers(0)?;
                return self.try_call(cx, ino, request, body, place);
            }
            // There is room, if there is a server.
            Err(SendError::Lost | SendError::Full) => return Err(Errno::EIO.into()),
        };
        let message = &self.reply[..OutHeader::SIZE + body];
        if !request.is_answered() {
            return Ok(0);
        }
        let message = message.get(..got.message).ok_or(Errno::EIO)?;
        let (header, rest) = OutHeader::get(message).ok_or(Errno::EIO)?;
        let whole = got.message.checked_add(got.data);
        if header.unique != self.unique
            || got.data > place.len()
            || whole != Some(header.len as usize)
        {
            return Err(Errno::EIO.into());
        }
        if header.error != 0 {
            return Err(error(header.error).into());
        }
        if rest.len() != body {
            return Err(Errno::EIO.into());
        }
        Ok(got.data)
    }

    /// Makes the next message of `request`: its length. Answers that nobody needs are taken first.
    #[inline]
    fn encode(
        &mut self,
        cx: &Context,
        ino: Ino,
        request: &Request<'_>,
    ) -> core::result::Result<usize, Failed> {
        if !self.unread.is_empty() {
            self.read_answers(UNREAD - 1)?;
        }
        self.unique = self.unique.wrapping_add(2);
        self.lent = Lent::default();
        let header = InHeader {
            unique: self.unique,
            nodeid: ino.0,
            uid: cx.uid,
            gid: cx.gid,
            ..InHeader::default()
        };
        let time = self.agreed.contains(Extensions::TIME).then_some(cx.now);
        Ok(request.encode(&header, time, &mut self.request).ok_or(Errno::EINVAL)?)
    }

    /// Sends `request`, whose answer may bring at most `room` bytes of data.
    #[inline]
    pub(super) fn send(
        &mut self,
        cx: &Context,
        ino: Ino,
        request: &Request<'_>,
        room: usize,
    ) -> core::result::Result<Token, Failed> {
        let len = self.encode(cx, ino, request)?;
        let data = request.data().one().ok_or(Errno::EINVAL)?;
        match self.transport.send(&self.request[..len], data, room) {
            Ok(token) => Ok(token),
            Err(SendError::TooLarge) => Err(Failed::TooLarge),
            Err(SendError::Full) if !self.unread.is_empty() => {
                self.read_answers(0)?;
                self.send(cx, ino, request, room)
            }
            // There is room, if there is a server.
            Err(SendError::Lost | SendError::Full) => Err(Errno::EIO.into()),
        }
    }

    /// Sends `request`, whose answer nobody needs. The server does it before what is sent later.
    pub(super) fn send_only(
        &mut self,
        cx: &Context,
        ino: Ino,
        request: &Request<'_>,
    ) -> Result<()> {
        let token = self.send(cx, ino, request, 0)?;
        self.unread.push_back(token);
        Ok(())
    }

    /// Takes the answers that nobody needs, as far as they are there, and waits for them while
    /// there are more than `most`.
    pub(super) fn read_answers(&mut self, most: usize) -> Result<()> {
        while let Some(token) = self.unread.front() {
            if self.unread.len() <= most && !self.transport.ready(token).map_err(|_| Errno::EIO)? {
                break;
            }
            if let Some(token) = self.unread.pop_front() {
                let mut message = [0; OutHeader::SIZE];
                self.transport.receive(token, &mut message, &mut []).map_err(|_| Errno::EIO)?;
            }
        }
        Ok(())
    }

    /// As [`try_call`](Self::try_call), where a transport that does not carry it is an error like
    /// any other.
    #[inline]
    pub(super) fn call(
        &mut self,
        cx: &Context,
        ino: Ino,
        request: &Request<'_>,
        body: usize,
        place: &mut [u8],
    ) -> Result<usize> {
        Ok(self.try_call(cx, ino, request, body, place)?)
    }

    /// Sends what is answered by nothing but success or an error.
    pub(super) fn simple(&mut self, cx: &Context, ino: Ino, request: &Request<'_>) -> Result<()> {
        self.call(cx, ino, request, 0, &mut []).map(drop)
    }

    /// The answer of the last call, without its header.
    #[inline]
    pub(super) fn body(&self) -> &[u8] {
        &self.reply[OutHeader::SIZE..]
    }

    /// Learns that the transport does not carry `tried` bytes of data. Returns whether less can be
    /// tried.
    pub(super) fn narrower(&mut self, tried: usize) -> bool {
        let less = (tried / 2).max(DATA_MIN);
        let can = less < tried;
        if can {
            self.max_data = less;
        }
        can
    }

    /// Takes note that `count` references to `ino` are dropped.
    pub(super) fn forget_later(&mut self, ino: Ino, count: u64) {
        let mut one = [0; ForgetOne::SIZE];
        ForgetOne { nodeid: ino.0, nlookup: count }.store(&mut one);
        self.forgets.extend_from_slice(&one);
        if self.forgets.len() >= FORGETS * ForgetOne::SIZE {
            self.forget_now();
        }
    }

    /// Tells the server what is forgotten. A server that is lost holds nothing any more.
    pub(super) fn forget_now(&mut self) {
        let mut gathered = core::mem::take(&mut self.forgets);
        if let Some(ones) = Forgets::new(&gathered)
            && ones.count() > 0
        {
            let nobody = Context { uid: 0, gid: 0, now: Timespec::default() };
            let _ = self.send_only(&nobody, Ino(0), &Request::BatchForget(ones));
        }
        gathered.clear();
        self.forgets = gathered;
    }
}
