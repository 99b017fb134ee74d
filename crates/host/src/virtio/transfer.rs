//! The pipe by which a front end takes a device's state, or gives one. vhost-user, "Migrating
//! back-end state".
//!
//! The front end has the other end, and may leave it as it is: nothing here waits. What a state
//! takes of the server's memory meanwhile counts for the front end's user.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use atoll_server::rights::accounts::{Account, Charge, Resource};
use rustix::event::PollFlags;
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;

use super::now;
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
    /// Pays for the bytes, and as many again for what they are made of, or what is made of them.
    charge: Option<Charge>,
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
    fn new(
        pipe: OwnedFd,
        way: Way,
        account: Option<&Arc<Account>>,
    ) -> Result<Transfer, &'static str> {
        const NO_PIPE: &str = "a state goes by a pipe";
        let kind = fstat(&pipe).map(|stat| FileType::from_raw_mode(stat.st_mode));
        // Any other kind may block the thread.
        if !matches!(kind, Ok(FileType::Fifo | FileType::Socket)) {
            return Err(NO_PIPE);
        }
        now::never_waits(&pipe).map_err(|_| NO_PIPE)?;
        let bytes = match &way {
            Way::Out(state, _) => 2 * state.len() as u64,
            Way::In(_) => 0,
        };
        let charge = account.map(|account| account.charge(Resource::Memory, bytes)).transpose();
        let charge = charge.map_err(|_| "its user has no memory left for the state")?;
        Ok(Transfer { pipe, way, charge })
    }

    /// Gives `state`, at the cost of `account` if there is one.
    ///
    /// # Errors
    /// For a descriptor that is no pipe, and when the account has no room, in words for the log.
    pub fn give(
        pipe: OwnedFd,
        state: Vec<u8>,
        account: Option<&Arc<Account>>,
    ) -> Result<Transfer, &'static str> {
        Transfer::new(pipe, Way::Out(state, 0), account)
    }

    /// Takes a state, in the same way.
    ///
    /// # Errors
    /// As [`give`](Self::give).
    pub fn take(pipe: OwnedFd, account: Option<&Arc<Account>>) -> Result<Transfer, &'static str> {
        Transfer::new(pipe, Way::In(Vec::new()), account)
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
                    let moved = now::write(&self.pipe, &rest[..rest.len().min(PIECE)]);
                    moved.inspect(|len| *done += len)
                }
                Way::In(state) => {
                    let before = state.len();
                    let paid = self.charge.as_ref().map_or(u64::MAX, Charge::amount);
                    if 2 * ((before + PIECE) as u64) > paid
                        && let Some(charge) = &mut self.charge
                        && charge.grow(2 * PIECE as u64).is_err()
                    {
                        return Progress::Failed;
                    }
                    state.resize(before + PIECE, 0);
                    let moved = now::read(&self.pipe, &mut state[before..]);
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
    use atoll_server::rights::accounts::{Accounts, Shares};

    use super::*;

    #[test]
    fn bytes_go_and_come() {
        let state: Vec<u8> = (0..300_000u32).map(|at| at as u8).collect();
        let (reader, writer) = std::io::pipe().unwrap();
        let mut give = Transfer::give(writer.into(), state.clone(), None).unwrap();
        let mut take = Transfer::take(reader.into(), None).unwrap();
        assert_eq!(take.go_on(), Progress::Waits);
        while give.go_on() == Progress::Waits {
            assert_eq!(take.go_on(), Progress::Waits);
        }
        drop(give);
        assert_eq!(take.go_on(), Progress::Came(state));
    }

    /// A front end that has the flags of the pipe changed behind the device's back has nobody wait,
    /// where the kernel can be told so.
    #[test]
    fn flags_of_the_pipe_are_the_front_ends() {
        use std::sync::mpsc::channel;
        let kernel = rustix::system::uname();
        let mut version = kernel.release().to_str().unwrap_or_default().split('.');
        let mut number = || version.next().and_then(|part| part.parse::<u32>().ok());
        if (number(), number()) < (Some(6), Some(5)) {
            return;
        }
        let pairs: [(OwnedFd, OwnedFd); 2] = [
            std::io::pipe().map(|(out, into)| (out.into(), into.into())).unwrap(),
            std::os::unix::net::UnixStream::pair().map(|(a, b)| (a.into(), b.into())).unwrap(),
        ];
        for (reader, writer) in pairs {
            let theirs = [reader.try_clone().unwrap(), writer.try_clone().unwrap()];
            let mut take = Transfer::take(reader, None).unwrap();
            let mut give = Transfer::give(writer, vec![7; STATE_MAX], None).unwrap();
            for end in &theirs {
                rustix::fs::fcntl_setfl(end, rustix::fs::OFlags::empty()).unwrap();
            }
            let (tell, told) = channel();
            std::thread::spawn(move || tell.send((take.go_on(), give.go_on())).unwrap());
            let waits = told.recv_timeout(std::time::Duration::from_secs(60));
            assert_eq!(waits, Ok((Progress::Waits, Progress::Waits)));
        }
    }

    #[test]
    fn what_comes_to_nothing() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut give = Transfer::give(writer.into(), vec![1], None).unwrap();
        assert_eq!(give.go_on(), Progress::Failed);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(Transfer::take(file.into(), None).is_err());
        // One that never ends.
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut take = Transfer::take(reader.into(), None).unwrap();
        let piece = vec![0; PIECE];
        let ended = (0..2 * STATE_MAX / PIECE).any(|_| {
            std::io::Write::write_all(&mut writer, &piece).unwrap();
            take.go_on() == Progress::Failed
        });
        assert!(ended);
    }

    /// A state takes no more than its user may have, and nothing once it is over.
    #[test]
    fn states_are_paid_for() {
        let most = Shares { memory: 1 << 20, ..Shares::UNLIMITED };
        let account = Accounts::new(Shares::UNLIMITED).open(1, most);
        let has = || account.has(Resource::Memory);
        let pipe = || std::io::pipe().unwrap();
        let (_reader, writer) = pipe();
        let long = Transfer::give(writer.into(), vec![0; 1 << 20], Some(&account));
        assert!(long.is_err() && has() == 0);
        let (_reader, writer) = pipe();
        let give = Transfer::give(writer.into(), vec![0; 100_000], Some(&account)).unwrap();
        assert_eq!(has(), 200_000);
        drop(give);
        assert_eq!(has(), 0);
        // One that never ends.
        let (reader, mut writer) = pipe();
        let mut take = Transfer::take(reader.into(), Some(&account)).unwrap();
        let mut came = 0;
        while take.go_on() == Progress::Waits {
            std::io::Write::write_all(&mut writer, &[0; PIECE]).unwrap();
            came += PIECE as u64;
            assert!(has() >= came.min(1 << 19) && has() <= 1 << 20, "{came}: {}", has());
        }
        assert!((1 << 19..1 << 20).contains(&came), "{came}");
        drop(take);
        assert_eq!(has(), 0);
    }
}
