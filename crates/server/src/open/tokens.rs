//! Open files that one session lends to others: a descriptor on a mount, which the same program
//! uses through a ring.
//!
//! A program with a descriptor of an open file can learn its *token* from the mount's session, 128
//! random bits, and *adopt* the file in another session by it: that gives a handle with the rights
//! of the original, and nothing more. A token is thus worth what a descriptor is, and can be
//! guessed as little. It ends with the original, and so does every handle that was adopted by it:
//! these keep nothing open, and an unlinked file goes when its last descriptor is closed. Pages
//! that the adopters' Views show by them are dropped before the closing call returns; hence each
//! file that is lent knows these Views.
//!
//! A session that has a directory of the volume as its root adopts only from sessions with the same
//! one: a descriptor from elsewhere gives it nothing.
//!
//! A session can also *offer* all that it has open to its owner's other sessions: they adopt a file
//! by inode and rights, without asking for a token. The mount of a volume that its owner alone uses
//! offers its files so to the owner's programs, which could open the volume itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use atoll_vfs::{Errno, Ino, OpenFlags, Result};

use crate::host::Host;
use crate::leases::view::ViewId;
use crate::open::handles::{Open, Origin};

/// The flags that say what an open file may be used for.
const RIGHTS: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

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
    token: Option<Token>,
    /// Others may adopt it by its inode.
    offered: bool,
    open: Open,
    /// The lender's root.
    top: Ino,
    /// The Views of sessions that have adopted it, and how often each has.
    viewers: Vec<(ViewId, usize)>,
}

/// The open files of a volume that others may adopt. There are at most as many as there are open
/// files.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    slots: Vec<Slot>,
    free: Vec<u32>,
    slot_of: HashMap<Token, u32>,
    /// The offered files, the latest last.
    offered: HashMap<Ino, Vec<u32>>,
}

impl Tokens {
    /// Gives `open`, of a session with the root `top`, a token, and returns its origin from now on.
    ///
    /// # Errors
    /// `EBADF` for a file that was adopted itself; `EIO` when the system has no random numbers.
    pub fn lend(&mut self, host: &dyn Host, open: &Open, top: Ino) -> Result<(Token, Origin)> {
        let slot = match open.origin {
            Origin::Adopted { .. } => return Err(Errno::EBADF),
            Origin::Lent(slot) => slot,
            Origin::Own => self.place(open, top),
        };
        let lent = self.slots[slot as usize].lent.as_mut().ok_or(Errno::EIO)?;
        let token = match lent.token {
            Some(token) => token,
            None => {
                let token = random(host)?;
                lent.token = Some(token);
                self.slot_of.insert(token, slot);
                token
            }
        };
        Ok((token, Origin::Lent(slot)))
    }

    /// Offers `open`, which was just opened, by its inode, and returns its origin from now on.
    pub fn offer(&mut self, open: &Open, top: Ino) -> Origin {
        let slot = self.place(open, top);
        if let Some(lent) = &mut self.slots[slot as usize].lent {
            lent.offered = true;
        }
        self.offered.entry(open.ino).or_default().push(slot);
        Origin::Lent(slot)
    }

    fn place(&mut self, open: &Open, top: Ino) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u32
        });
        let lent = Lent { token: None, offered: false, open: *open, top, viewers: Vec::new() };
        self.slots[slot as usize].lent = Some(lent);
        slot
    }

    /// The open file of `token`, as somebody else's, for a session with the root `top`.
    ///
    /// # Errors
    /// `EBADF` when there is none, or it comes from outside of `top`.
    pub fn adopt(&self, token: Token, top: Ino) -> Result<Open> {
        let &slot = self.slot_of.get(&token).ok_or(Errno::EBADF)?;
        self.adopt_from(slot, top)
    }

    /// As [`adopt`](Self::adopt), for the latest offered file of `ino` that is open with these
    /// rights and no others.
    ///
    /// # Errors
    /// `EBADF` when there is none, or it comes from outside of `top`.
    pub fn adopt_offered(&self, ino: Ino, rights: OpenFlags, top: Ino) -> Result<Open> {
        let rights_of = |slot: u32| {
            let lent = self.slots[slot as usize].lent.as_ref();
            lent.and_then(|lent| lent.open.flags).map(|flags| flags & RIGHTS)
        };
        let mut offered = self.offered.get(&ino).into_iter().flatten().rev();
        let found = offered.find(|&&slot| rights_of(slot) == Some(rights & RIGHTS));
        self.adopt_from(*found.ok_or(Errno::EBADF)?, top)
    }

    fn adopt_from(&self, slot: u32, top: Ino) -> Result<Open> {
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

    /// Notes that `view` may show pages of `open`, an adopted file, until [`end`](Self::end).
    /// Returns whether it may: the original is open.
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

    /// Takes away the token of a file that is being closed. Returns the Views that showed it to
    /// sessions which had adopted it, and how often each of them had.
    #[must_use = "what these Views show is to be dropped"]
    pub fn end(&mut self, open: &Open) -> Vec<(ViewId, usize)> {
        let Origin::Lent(slot) = open.origin else { return Vec::new() };
        let place = &mut self.slots[slot as usize];
        let Some(Lent { token, offered, viewers, .. }) = place.lent.take() else {
            return Vec::new();
        };
        if let Some(token) = token {
            self.slot_of.remove(&token);
        }
        if offered && let Entry::Occupied(mut slots) = self.offered.entry(open.ino) {
            // Mostly one of the latest.
            if let Some(at) = slots.get().iter().rposition(|&other| other == slot) {
                slots.get_mut().remove(at);
            }
            if slots.get().is_empty() {
                slots.remove();
            }
        }
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

fn random(host: &dyn Host) -> Result<Token> {
    let mut bytes = [0; 16];
    host.random(&mut bytes)?;
    let (a, b) = bytes.split_at(8);
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    Ok(Token([word(a), word(b)]))
}

#[cfg(test)]
mod tests {
    use atoll_vfs::{Handle, Ino, OpenFlags};

    use super::*;
    use crate::testing::StillHost;

    #[test]
    fn a_token_lives_as_long_as_its_file() {
        let (host, mut tokens) = (StillHost::default(), Tokens::default());
        let mut open = Open {
            ino: Ino(7),
            handle: Handle(3),
            flags: Some(OpenFlags::READ),
            origin: Origin::Own,
        };
        let (token, origin) = tokens.lend(&host, &open, Ino::ROOT).unwrap();
        open.origin = origin;
        assert_eq!(tokens.lend(&host, &open, Ino::ROOT), Ok((token, origin)));
        let adopted = tokens.adopt(token, Ino::ROOT).unwrap();
        assert_eq!(
            (adopted.ino, adopted.handle, adopted.flags),
            (open.ino, open.handle, open.flags)
        );
        assert_eq!(tokens.check(&adopted), Ok(()));
        assert_eq!(tokens.lend(&host, &adopted, Ino::ROOT), Err(Errno::EBADF));
        for forged in [[0, 0], [token.0[0], token.0[1] ^ 1], [token.0[1], token.0[0]]] {
            assert_eq!(tokens.adopt(Token(forged), Ino::ROOT), Err(Errno::EBADF));
        }
        assert_eq!(tokens.end(&open), []);
        assert_eq!(tokens.check(&adopted), Err(Errno::EBADF));
        assert_eq!(tokens.adopt(token, Ino::ROOT), Err(Errno::EBADF));
        // The next in its place is another.
        open.origin = Origin::Own;
        let (next, origin) = tokens.lend(&host, &open, Ino::ROOT).unwrap();
        assert_ne!(next, token);
        assert_eq!(tokens.check(&adopted), Err(Errno::EBADF));
        open.origin = origin;
        assert_eq!(tokens.end(&open), []);
        assert!(tokens.slot_of.is_empty());
    }

    #[test]
    fn what_is_offered_is_found_by_inode_and_rights() {
        let (host, mut tokens) = (StillHost::default(), Tokens::default());
        let mut offer = |handle, flags| {
            let (ino, handle) = (Ino(7), Handle(handle));
            let mut open = Open { ino, handle, flags: Some(flags), origin: Origin::Own };
            open.origin = tokens.offer(&open, Ino::ROOT);
            open
        };
        let read = [offer(1, OpenFlags::READ), offer(2, OpenFlags::READ)];
        let write = offer(3, OpenFlags::WRITE | OpenFlags::APPEND);
        let found = |tokens: &Tokens, ino, flags| {
            tokens.adopt_offered(Ino(ino), flags, Ino::ROOT).map(|open| open.handle.0)
        };
        assert_eq!(found(&tokens, 7, OpenFlags::READ), Ok(2));
        assert_eq!(found(&tokens, 7, OpenFlags::WRITE), Ok(3));
        let none = Err(Errno::EBADF);
        assert_eq!(found(&tokens, 7, OpenFlags::READ | OpenFlags::WRITE), none);
        assert_eq!(found(&tokens, 7, OpenFlags::empty()), none);
        assert_eq!(found(&tokens, 8, OpenFlags::READ), none);
        assert_eq!(tokens.adopt_offered(Ino(7), OpenFlags::READ, Ino(9)), none.map(|_: u64| write));
        // A token is another way to the same.
        let (token, origin) = tokens.lend(&host, &read[1], Ino::ROOT).unwrap();
        assert_eq!(origin, read[1].origin);
        let adopted = tokens.adopt_offered(Ino(7), OpenFlags::READ, Ino::ROOT).unwrap();
        assert_eq!(tokens.adopt(token, Ino::ROOT), Ok(adopted));
        assert_eq!(tokens.end(&read[1]), []);
        assert_eq!(tokens.check(&adopted), Err(Errno::EBADF));
        assert_eq!(found(&tokens, 7, OpenFlags::READ), Ok(1));
        assert_eq!(tokens.end(&read[0]), []);
        assert_eq!(found(&tokens, 7, OpenFlags::READ), none);
        assert_eq!(tokens.end(&write), []);
        assert!(tokens.offered.is_empty() && tokens.slot_of.is_empty());
    }
}
