//! The pipe by which a front end takes a device's state, or gives one. vhost-user, "Migrating
//! back-end state".
//!
//! The front end has the other end, and may leave it as it is: nothing here waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::{Errno, read, write};

use super::state::STATE_MAX;

/// Bytes that are moved at a time.
const PIECE: usize = 64 << 10;

/// Whose bytes go.
#[derive(Debug)]
enum Way {
    /// So many bytes have gone of these.
    Out(Vec<u8>, usize),
    /// These have come.
    In(Vec<u8>),
}

/// A transfer under way.
#[derive(Debug)]
pub(super) struct Transfer {
    pipe: OwnedFd,
    way: Way,
}

/// How far it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The front end's turn.
    Waits,
    /// All has gone.
    Gone,
    /// All has come.
    Came(Vec<u8>),
    /// It comes to nothing.
    Failed,
}

impl Transfer {
    fn new(pipe: OwnedFd, way: Way) -> Option<Transfer> {
        let kind = FileType::from_raw_mode(fstat(&pipe).ok()?.st_mode);
        // Any other kind may block the thread.
        if !matches!(kind, FileType::Fifo | FileType::Socket) {
            return None;
        }
        let flags = fcntl_getfl(&pipe).ok()?;
        fcntl_setfl(&pipe, flags | OFlags::NONBLOCK).ok()?;
        Some(Transfer { pipe, way })
    }

    /// Gives `state`; `None` for a descriptor that is no pipe.
    pub fn give(pipe: OwnedFd, state: Vec<u8>) -> Option<Transfer> {
        Transfer::new(pipe, Way::Out(state, 0))
    }

    /// Takes a state.
    pub fn take(pipe: OwnedFd) -> Option<Transfer> {
        Transfer::new(pipe, Way::In(Vec::new()))
    }

    /// What has to be waited for.
    pub fn awaited(&self) -> (BorrowedFd<'_>, PollFlags) {
        let flags = match self.way {
            Way::Out(..) => PollFlags::OUT,
            Way::In(_) => PollFlags::IN,
        };
        (self.pipe.as_fd(), flags)
    }

    /// Moves what can be moved now.
    pub fn go_on(&mut self) -> Progress {
        loop {
            let moved = match &mut self.way {
                Way::Out(state, done) => {
                    let rest = &state[*done..];
                    if rest.is_empty() {
                        return Progress::Gone;
                    }
                    let moved = write(&self.pipe, &rest[..rest.len().min(PIECE)]);
                    moved.inspect(|len| *done += len)
                }
                Way::In(state) => {
                    let before = state.len();
                    state.resize(before + PIECE, 0);
                    let moved = read(&self.pipe, &mut state[before..]);
                    state.truncate(before + moved.unwrap_or(0));
                    if state.len() > STATE_MAX {
                        return Progress::Failed;
                    }
                    if moved == Ok(0) {
                        return Progress::Came(std::mem::take(state));
                    }
                    moved
                }
            };
            match moved {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Progress::Waits,
                Err(_) => return Progress::Failed,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_and_come() {
        let state: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
        let (reader, writer) = std::io::pipe().unwrap();
        let mut give = Transfer::give(writer.into(), state.clone()).unwrap();
        let mut take = Transfer::take(reader.into()).unwrap();
        assert_eq!(take.go_on(), Progress::Waits);
        while give.go_on() == Progress::Waits {
            assert_eq!(take.go_on(), Progress::Waits);
        }
        drop(give);
        assert_eq!(take.go_on(), Progress::Came(state));
    }

    #[test]
    fn what_comes_to_nothing() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(Transfer::give(writer.into(), vec![1]).unwrap().go_on(), Progress::Failed);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Transfer::take(file.into()).is_none());
        // One that never ends.
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut take = Transfer::take(reader.into()).unwrap();
        let piece = vec![0; PIECE];
        let ended = (0..2 * STATE_MAX / PIECE).any(|_| {
            std::io::Write::write_all(&mut writer, &piece).unwrap();
            take.go_on() == Progress::Failed
        });
        assert!(ended);
    }
}
