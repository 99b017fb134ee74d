//! Open files that one session lends to others: a descriptor on a mount, which the same program uses
//! through a ring.
//!
//! Whoever has a descriptor of an open file can learn its *token* from the mount's session, 128 random
//! bits, and *adopt* the file in another session by it: that gives a handle with the rights of the
//! original, and nothing more. A token is thus worth what a descriptor is, and can be guessed as little.
//! It ends with the original, and so does every handle that was adopted by it: they keep nothing
//! open, and what is unlinked goes when its last descriptor is closed.

use std::collections::HashMap;

use atoll_vfs::{Errno, Result};

use super::handles::{Open, Origin};

/// Names an open file to other sessions of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub [u64; 2]);

#[derive(Debug, Default)]
struct Slot {
    /// How many files were lent from here before.
    turn: u32,
    lent: Option<(Token, Open)>,
}

/// The open files of a volume that have tokens. There are at most as many as there are open files.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    slots: Vec<Slot>,
    free: Vec<u32>,
    slot_of: HashMap<Token, u32>,
}

impl Tokens {
    /// Gives `open` a token, and says what its origin is from now on.
    ///
    /// # Errors
    /// `EBADF` for what was adopted itself; `EIO` when the system has no random numbers.
    pub fn lend(&mut self, open: &Open) -> Result<(Token, Origin)> {
        match open.origin {
            Origin::Adopted { .. } => return Err(Errno::EBADF),
            Origin::Lent(slot) => {
                let lent = self.slots[slot as usize].lent.as_ref().ok_or(Errno::EIO)?;
                return Ok((lent.0, open.origin));
            }
            Origin::Own => {}
        }
        let token = random()?;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        self.slots[slot as usize].lent = Some((token, *open));
        self.slot_of.insert(token, slot);
        Ok((token, Origin::Lent(slot)))
    }

    /// The open file of `token`, as somebody else's.
    ///
    /// # Errors
    /// `EBADF` when there is none.
    pub fn adopt(&self, token: Token) -> Result<Open> {
        let &slot = self.slot_of.get(&token).ok_or(Errno::EBADF)?;
        let Slot { turn, lent } = &self.slots[slot as usize];
        let (_, open) = lent.as_ref().ok_or(Errno::EBADF)?;
        Ok(Open { origin: Origin::Adopted { slot, turn: *turn }, ..*open })
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

    /// Takes the token of a file that is being closed away.
    pub fn end(&mut self, open: &Open) {
        let Origin::Lent(slot) = open.origin else { return };
        let place = &mut self.slots[slot as usize];
        let Some((token, _)) = place.lent.take() else { return };
        self.slot_of.remove(&token);
        // A place whose turns are used up is not used again.
        if let Some(next) = place.turn.checked_add(1) {
            place.turn = next;
            if next != u32::MAX {
                self.free.push(slot);
            }
        }
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
        let (token, origin) = tokens.lend(&open).unwrap();
        open.origin = origin;
        assert_eq!(tokens.lend(&open), Ok((token, origin)));
        let adopted = tokens.adopt(token).unwrap();
        assert_eq!(
            (adopted.ino, adopted.handle, adopted.flags),
            (open.ino, open.handle, open.flags)
        );
        assert_eq!(tokens.check(&adopted), Ok(()));
        assert_eq!(tokens.lend(&adopted), Err(Errno::EBADF));
        for forged in [[0, 0], [token.0[0], token.0[1] ^ 1], [token.0[1], token.0[0]]] {
            assert_eq!(tokens.adopt(Token(forged)), Err(Errno::EBADF));
        }
        tokens.end(&open);
        assert_eq!(tokens.check(&adopted), Err(Errno::EBADF));
        assert_eq!(tokens.adopt(token), Err(Errno::EBADF));
        // The next in its place is another.
        open.origin = Origin::Own;
        let (next, origin) = tokens.lend(&open).unwrap();
        assert_ne!(next, token);
        assert_eq!(tokens.check(&adopted), Err(Errno::EBADF));
        open.origin = origin;
        tokens.end(&open);
        assert!(tokens.slot_of.is_empty());
    }
}
