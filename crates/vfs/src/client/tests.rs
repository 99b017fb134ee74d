//! A server that lies in its numbers.

use atoll_transport::{Lost, Received, SendError, Token, Transport};

use super::*;
use crate::wire::header::OutHeader;
use crate::wire::session::{InitIn, InitOut};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
const INIT: [u8; 4] = 26u32.to_ne_bytes();

/// Answers every request by the same body.
#[derive(Debug, Default)]
struct Liar {
    body: Vec<u8>,
}

impl Transport for Liar {
    fn send(&mut self, _: &[u8], _: &[u8], _: usize) -> core::result::Result<Token, SendError> {
        Err(SendError::Lost)
    }

    fn ready(&mut self, _: &Token) -> core::result::Result<bool, Lost> {
        Err(Lost)
    }

    fn wait(&mut self, _: &Token) -> core::result::Result<(), Lost> {
        Err(Lost)
    }

    fn receive(
        &mut self,
        _: Token,
        _: &mut [u8],
        _: &mut [u8],
    ) -> core::result::Result<Received, Lost> {
        Err(Lost)
    }

    fn call(
        &mut self,
        message: &[u8],
        _: &[u8],
        answer: &mut [u8],
        _: &mut [u8],
    ) -> core::result::Result<Received, SendError> {
        let mut body = self.body.clone();
        if message[4..8] == INIT {
            let InitIn { major, minor, flags, flags2, atoll, .. } =
                InitIn::new(0, Extensions::APPEND);
            let agreed = InitOut { major, minor, flags, flags2, atoll, ..InitOut::default() };
            body = stored(&agreed);
        }
        let unique = u64::from_ne_bytes(message[8..16].try_into().unwrap());
        let len = OutHeader::SIZE + body.len();
        OutHeader { len: len as u32, error: 0, unique }.store(answer);
        answer[OutHeader::SIZE..len].copy_from_slice(&body);
        Ok(Received { message: len, data: 0 })
    }
}

fn stored<T: Fixed>(value: &T) -> Vec<u8> {
    let mut bytes = alloc::vec![0; T::SIZE];
    value.store(&mut bytes);
    bytes
}

fn says(body: Vec<u8>) -> Client<Liar> {
    let mut client = Client::connect(Liar::default(), ClientOptions::default()).unwrap();
    client.transport().body = body;
    client
}

#[test]
fn no_data_is_written_where_no_file_has_any() {
    for (offset, outcome) in [
        (7, Ok(Written { len: 4, offset: 7 })),
        (FILE_SIZE_MAX - 4, Ok(Written { len: 4, offset: FILE_SIZE_MAX - 4 })),
        (FILE_SIZE_MAX - 3, Err(Errno::EIO)),
        (u64::MAX - 3, Err(Errno::EIO)),
        (u64::MAX, Err(Errno::EIO)),
    ] {
        let mut body = stored(&WriteOut { size: 4, padding: 0 });
        body.extend(stored(&offset));
        let mut client = says(body);
        assert_eq!(client.write(&CX, Ino(7), Handle(1), 7, b"text"), outcome);
        assert_eq!(client.append_to(&CX, Ino(7), Handle(1), b"text"), outcome);
    }
}

#[test]
fn no_file_is_longer_than_any() {
    for (size, blocks, is_one) in [
        (FILE_SIZE_MAX, FILE_SIZE_MAX / 512, true),
        (FILE_SIZE_MAX + 1, 0, false),
        (u64::MAX, 0, false),
        (0, FILE_SIZE_MAX / 512 + 1, false),
        (0, u64::MAX, false),
    ] {
        let mut said = AttrOut::default();
        (said.attr.mode, said.attr.size, said.attr.blocks) = (0o100_600, size, blocks);
        let attr = says(stored(&said)).getattr(&CX, Ino(7));
        let outcome = attr.map(|attr| (attr.size, attr.blocks));
        assert_eq!(outcome, if is_one { Ok((size, blocks)) } else { Err(Errno::EIO) });
    }
}

/// A program that goes from data to data comes to the end.
#[test]
fn data_lies_behind_where_it_is_looked_for() {
    for (found, outcome) in [
        (10, Ok(10)),
        (FILE_SIZE_MAX, Ok(FILE_SIZE_MAX)),
        (9, Err(Errno::EIO)),
        (0, Err(Errno::EIO)),
        (FILE_SIZE_MAX + 1, Err(Errno::EIO)),
    ] {
        for to in [SeekTo::Data, SeekTo::Hole] {
            let mut client = says(stored(&LseekOut { offset: found }));
            assert_eq!(client.seek(&CX, Ino(7), Handle(1), 10, to), outcome);
        }
    }
}
