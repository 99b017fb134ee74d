//! Open files that one session lends to others: a descriptor on a mount, which the same program uses
//! through a ring.
//!
//! Whoever has a descriptor of an open file can learn its *token* from the mount's session, 128 random
//! bits, and *adopt* the file in another session by it: that gives a handle with the rights of the
//! original, and nothing more. A token is thus worth what a descriptor is, and can be guessed as little.
//! It ends with the original, and so does every handle that was adopted by it: they keep nothing
//! open, and what is unlinked goes when its last descriptor is closed. What the adopters' Views show
//! on their account is dropped before the closing call returns; hence each file that is lent knows
//! these Views.
//!
//! A session that has a directory of the volume as its root adopts only from sessions with the same one:
//! a descriptor from elsewhere gives it nothing.

use std::collections::HashMap;

use atoll_vfs::{Errno, Ino, Result};

use super::handles::{Open, Origin};
use super::view::ViewId;

/// Names an open file to other sessions of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub [u64; 2]);

#[derive(Debug, Default)]
struct Slot {
    /// How many files were lent from here before.
    turn: u32,
    lent: Option<Lent>,
}

#[derive(Debug)]
struct Lent {
    token: Token,
    open: Open,
    /// The lender's root.
    top: Ino,
    /// The Views of sessions that have adopted it, and how often each has.
    viewers: Vec<(ViewId, usize)>,
}

/// The open files of a volume that have tokens. There are at most as many as there are open files.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    slots: Vec<Slot>,
    free: Vec<u32>,
    slot_of: HashMap<Token, u32>,
}

impl Tokens {
    /// Gives `open`, of a session with the root `top`, a token, and says what its origin is from now on.
    ///
    /// # Errors
    /// `EBADF` for what was adopted itself; `EIO` when the system has no random numbers.
    pub fn lend(&mut self, open: &Open, top: Ino) -> Result<(Token, Origin)> {
        match open.origin {
            Origin::Adopted { .. } => return Err(Errno::EBADF),
            Origin::Lent(slot) => {
                let lent = self.slots[slot as usize].lent.as_ref().ok_or(Errno::EIO)?;
                return Ok((lent.token, open.origin));
            }
            Origin::Own => {}
        }
        let token = random()?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let viewers = Vec::new();
        self.slots[slot as usize].lent = Some(Lent { token, open: *open, top, viewers });
        self.slot_of.insert(token, slot);
        Ok((token, Origin::Lent(slot)))
    }

    /// The open file of `token`, as somebody else's, for a session with the root `top`.
    ///
    /// # Errors
    /// `EBADF` when there is none, or it comes from outside of `top`.
    pub fn adopt(&self, token: Token, top: Ino) -> Result<Open> {
        let &slot = self.slot_of.get(&token).ok_or(Errno::EBADF)?;
        let Slot { turn, lent } = &self.slots[slot as usize];
        let lent = lent.as_ref().ok_or(Errno::EBADF)?;
        if top != Ino::ROOT && top != lent.top {
            return Err(Errno::EBADF);
        }
        Ok(Open { origin: Origin::Adopted { slot, turn: *turn }, ..lent.open })
    }

    /// Whether `open` can still be used: its original is open.
    ///
    /// # Errors
    /// `EBADF` when it is not.
    #[inline]
    pub fn check(&self, open: &Open) -> Result<()> {
        match open.origin {
            Origin::Adopted { slot, turn } if self.slots[slot as usize].turn != turn => {
                Err(Errno::EBADF)
            }
            _ => Ok(()),
        }
    }

    /// The viewers of the file that `open` was adopted from, while that is open.
    fn viewers(&mut self, open: &Open) -> Option<&mut Vec<(ViewId, usize)>> {
        let Origin::Adopted { slot, turn } = open.origin else { return None };
        let place = &mut self.slots[slot as usize];
        if place.turn != turn { None } else { place.lent.as_mut().map(|lent| &mut lent.viewers) }
    }

    /// Notes that `view` may show what `open`, an adopted file, lets it, until [`end`](Self::end) says
    /// otherwise. Returns whether that is so: the original is open.
    pub fn shown(&mut self, open: &Open, view: ViewId) -> bool {
        let Some(viewers) = self.viewers(open) else { return false };
        // At the most one for each session.
        match viewers.iter_mut().find(|(viewer, _)| *viewer == view) {
            Some((_, count)) => *count += 1,
            None => viewers.push((view, 1)),
        }
        true
    }

    /// Takes one [`shown`](Self::shown) back. Returns whether it counted until now.
    pub fn hidden(&mut self, open: &Open, view: ViewId) -> bool {
        let Some(viewers) = self.viewers(open) else { return false };
        let Some(at) = viewers.iter().position(|&(viewer, _)| viewer == view) else { return false };
        viewers[at].1 -= 1;
        if viewers[at].1 == 0 {
            viewers.swap_remove(at);
        }
        true
    }

    /// Takes the token of a file that is being closed away. Returns the Views that showed it to sessions
    /// which had adopted it, and how often each of them had.
    #[must_use = "what these Views show is to be dropped"]
    pub fn end(&mut self, open: &Open) -> Vec<(ViewId, usize)> {
        let Origin::Lent(slot) = open.origin else { return Vec::new() };
        let place = &mut self.slots[slot as usize];
        let Some(Lent { token, viewers, .. }) = place.lent.take() else { return Vec::new() };
        self.slot_of.remove(&token);
        // A place whose turns are used up is not used again.
        if let Some(next) = place.turn.checked_add(1) {
            place.turn = next;
            if next != u32::MAX {
                self.free.push(slot);
            }
        }
        viewers
    }
}

fn random() -> Result<Token> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    if got != Ok(bytes.len()) {
        return Err(Errno::EIO);
    }
    let (a, b) = bytes.split_at(8);
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    Ok(Token([word(a), word(b)]))
}

#[cfg(test)]
mod tests {
    use atoll_vfs::{Handle, Ino, OpenFlags};

    use super::*;

    #[test]
    fn a_token_lives_as_long_as_its_file() {
        let mut tokens = Tokens::default();
        let mut open = Open {
            ino: Ino(7),
            handle: Handle(3),
            flags: Some(OpenFlags::READ),
            origin: Origin::Own,
        };
        let (token, origin) = tokens.lend(&open, Ino::ROOT).unwrap();
        open.origin = origin;
        assert_eq!(tokens.lend(&open, Ino::ROOT), Ok((token, origin)));
        let adopted = tokens.adopt(token, Ino::ROOT).unwrap();
        assert_eq!(
            (adopted.ino, adopted.handle, adopted.flags),
            (open.ino, open.handle, open.flags)
        );
        assert_eq!(tokens.check(&adopted), Ok(()));
        assert_eq!(tokens.lend(&adopted, Ino::ROOT), Err(Errno::EBADF));
        for forged in [[0, 0], [token.0[0], token.0[1] ^ 1], [token.0[1], token.0[0]]] {
            assert_eq!(tokens.adopt(Token(forged), Ino::ROOT), Err(Errno::EBADF));
        }
        assert_eq!(tokens.end(&open), []);
        assert_eq!(tokens.check(&adopted), Err(Errno::EBADF));
        assert_eq!(tokens.adopt(token, Ino::ROOT), Err(Errno::EBADF));
        // The next in its place is another.
        open.origin = Origin::Own;
        let (next, origin) = tokens.lend(&open, Ino::ROOT).unwrap();
        assert_ne!(next, token);
        assert_eq!(tokens.check(&adopted), Err(Errno::EBADF));
        open.origin = origin;
        assert_eq!(tokens.end(&open), []);
        assert!(tokens.slot_of.is_empty());
    }
}
