//! A carrier as an example: requests over a UNIX stream socket. This is all that a new way to a
//! volume takes; the client's half, a [`Transport`], is below it. `tests/carrier.rs` runs the
//! contract of the file seam through it.
//!
//! ```text
//! request: message length u32 | data length u32 | room u32 | message | data
//! answer:  number of the request u64 | message length u32 | data length u32 | message | data
//! ```
//! in the machine's byte order. Answers come in any order.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_server::route::answer::fail;
use atoll_server::route::carrier::{Carrier, Held, Incoming};
use atoll_transport::{Lost, Received, SendError, Token, Transport};
use atoll_vfs::wire::REQUEST_MAX;
use atoll_vfs::{Result, Room};

/// The most data of one request or answer, in bytes.
pub const DATA_MAX: usize = 1 << 20;

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_ne_bytes(std::array::from_fn(|i| bytes[4 * at + i])) as usize
}

/// The number of the request in `message`, behind its length and opcode.
fn number(message: &[u8]) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| message[8 + i]))
}

// ---- the server's half ----

/// One client's socket.
pub struct Socket {
    requests: UnixStream,
    answers: Arc<Mutex<UnixStream>>,
    message: Vec<u8>,
    data: Vec<u8>,
    room: Vec<u8>,
}

impl Socket {
    /// The server waits one second for a client that does not take its answers.
    pub fn new(requests: UnixStream) -> io::Result<Socket> {
        let answers = requests.try_clone()?;
        answers.set_write_timeout(Some(Duration::from_secs(1)))?;
        let answers = Arc::new(Mutex::new(answers));
        Ok(Socket { requests, answers, message: vec![], data: vec![], room: vec![] })
    }
}

fn give(answers: &Mutex<UnixStream>, number: u64, message: &[u8], data: &[u8]) -> io::Result<()> {
    let lens = [message.len() as u32, data.len() as u32].map(u32::to_ne_bytes);
    let bytes = [&number.to_ne_bytes(), lens.as_flattened(), message, data].concat();
    answers.lock().unwrap_or_else(PoisonError::into_inner).write_all(&bytes)
}

impl Carrier for Socket {
    /// The number of the request.
    type Slot = u64;
    type Error = io::Error;

    fn take(&mut self) -> io::Result<Option<u64>> {
        let mut head = [0; 12];
        self.requests.read_exact(&mut head)?;
        let [message, data, room] = [0, 1, 2].map(|at| word(&head, at));
        let is_message = (16..=REQUEST_MAX).contains(&message);
        if !is_message || data > DATA_MAX || room > DATA_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.message.resize(message, 0);
        self.requests.read_exact(&mut self.message)?;
        self.data.resize(data, 0);
        self.requests.read_exact(&mut self.data)?;
        self.room.resize(room, 0);
        Ok(Some(number(&self.message)))
    }

    fn incoming(&mut self, _: &u64) -> Incoming<'_> {
        Incoming {
            message: &self.message,
            data: self.data[..].into(),
            room: Room::from(&mut self.room[..]),
        }
    }

    fn answer(&mut self, number: u64, message: &[u8], data: usize) -> io::Result<bool> {
        give(&self.answers, number, message, &self.room[..data]).map(|()| true)
    }

    fn hold(&mut self, number: u64, message: &[u8], data: usize) -> Box<dyn Held> {
        let (message, data) = (message.to_vec(), self.room[..data].to_vec());
        Box::new(Waiting { answers: Arc::clone(&self.answers), number, message, data })
    }
}

struct Waiting {
    answers: Arc<Mutex<UnixStream>>,
    number: u64,
    message: Vec<u8>,
    data: Vec<u8>,
}

impl Held for Waiting {
    fn release(mut self: Box<Self>, outcome: Result<()>) -> bool {
        if let Err(error) = outcome {
            fail(&mut self.message, error);
            self.data.clear();
        }
        give(&self.answers, self.number, &self.message, &self.data).is_ok()
    }
}

// ---- the client's half ----

/// The other end.
pub struct SocketTransport {
    socket: UnixStream,
    answers: HashMap<u64, (Vec<u8>, Vec<u8>)>,
}

impl SocketTransport {
    /// The client's end of a pair.
    pub fn new(socket: UnixStream) -> SocketTransport {
        SocketTransport { socket, answers: HashMap::new() }
    }

    fn take_answer(&mut self) -> io::Result<()> {
        let mut head = [0; 16];
        self.socket.read_exact(&mut head)?;
        let number = u64::from_ne_bytes(std::array::from_fn(|i| head[i]));
        let mut message = vec![0; word(&head, 2).min(REQUEST_MAX)];
        let mut data = vec![0; word(&head, 3).min(DATA_MAX)];
        self.socket.read_exact(&mut message)?;
        self.socket.read_exact(&mut data)?;
        self.answers.insert(number, (message, data));
        Ok(())
    }
}

impl Transport for SocketTransport {
    fn send(
        &mut self,
        message: &[u8],
        data: &[u8],
        room: usize,
    ) -> std::result::Result<Token, SendError> {
        if message.len() > REQUEST_MAX || data.len() > DATA_MAX || room > DATA_MAX {
            return Err(SendError::TooLarge);
        }
        let lens = [message.len(), data.len(), room].map(|len| (len as u32).to_ne_bytes());
        let bytes = [lens.as_flattened(), message, data].concat();
        self.socket.write_all(&bytes).map_err(|_| SendError::Lost)?;
        Ok(Token(number(message)))
    }

    fn ready(&mut self, token: &Token) -> std::result::Result<bool, Lost> {
        Ok(self.answers.contains_key(&token.0))
    }

    fn wait(&mut self, token: &Token) -> std::result::Result<(), Lost> {
        while !self.ready(token)? {
            self.take_answer().map_err(|_| Lost)?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        token: Token,
        message: &mut [u8],
        data: &mut [u8],
    ) -> std::result::Result<Received, Lost> {
        self.wait(&token)?;
        let (from, bytes) = self.answers.remove(&token.0).ok_or(Lost)?;
        Ok(Received::copy((&from, &bytes), message, data))
    }
}
