//! Whose the files are: the clients' users as the host's, or all one user's.

use std::marker::PhantomData;

use atoll_vfs::{Attr, Context, Errno, Result, SetAttr};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::calls::{set_fs_group, set_fs_user};

/// Whose the files are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// As on the host: what a client makes is its user's there.
    Kept,
    /// A client's new files are this user's and group's on the host, and whatever is theirs there
    /// is, for each client, its own. Nothing can be given to others.
    Squashed {
        /// The user.
        uid: u32,
        /// The group.
        gid: u32,
    },
}

/// The rights without which a thread cannot make files for others.
const NEEDED: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID);

impl Owners {
    /// Those that this process can have: as on the host with the superuser's rights, otherwise
    /// everything is its own user's.
    pub fn of_process() -> Owners {
        let mine = capabilities(None).is_ok_and(|had| had.effective.contains(NEEDED));
        if mine {
            return Owners::Kept;
        }
        Owners::Squashed {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    /// Has this thread make files for the caller until what it returns is dropped.
    ///
    /// # Errors
    /// `EPERM` when it may not; `EINVAL` for a number that is none.
    pub(super) fn make_as(self, cx: &Context) -> Result<MakesAs> {
        let (uid, gid) = match self {
            Owners::Kept => (cx.uid, cx.gid),
            Owners::Squashed { uid, gid } => (uid, gid),
        };
        MakesAs::new(uid, gid)
    }

    /// The owner and group of what the caller makes in the directory with the attributes `above`.
    pub(super) fn of_new(self, cx: &Context, above: &Attr) -> (u32, u32) {
        let (uid, gid) = match self {
            Owners::Kept => (cx.uid, cx.gid),
            Owners::Squashed { uid, gid } => (uid, gid),
        };
        (uid, if above.mode & 0o2000 == 0 { gid } else { above.gid })
    }

    /// Has this thread remove names of the caller's from a sticky directory until what it returns
    /// is dropped: the host judges once more, by what the name is when it goes. What was judged
    /// before may be another's by then. Where all files are one user's there is nothing to judge.
    ///
    /// # Errors
    /// As [`make_as`](Self::make_as).
    pub(super) fn remove_as(self, cx: &Context) -> Result<Option<MakesAs>> {
        match self {
            Owners::Kept if cx.uid != 0 => MakesAs::without_ownership(cx.uid, cx.gid).map(Some),
            Owners::Kept | Owners::Squashed { .. } => Ok(None),
        }
    }

    /// The attributes of a file as the caller sees them.
    pub(super) fn shown(self, cx: &Context, mut attr: Attr) -> Attr {
        if let Owners::Squashed { uid, gid } = self {
            if attr.uid == uid {
                attr.uid = cx.uid;
            }
            if attr.gid == gid {
                attr.gid = cx.gid;
            }
        }
        attr
    }

    /// The owner and group that the host's file is to get; `None` for one that it keeps.
    ///
    /// # Errors
    /// `EPERM` for what cannot be given away; `EINVAL` for a number that is none.
    pub(super) fn to_set(
        self,
        cx: &Context,
        old: &Attr,
        set: &SetAttr,
    ) -> Result<(Option<u32>, Option<u32>)> {
        // For the host's call it says that the owner stays.
        if [set.uid, set.gid].contains(&Some(u32::MAX)) {
            return Err(Errno::EINVAL);
        }
        match self {
            Owners::Kept => Ok((set.uid, set.gid)),
            Owners::Squashed { .. } => {
                let old = self.shown(cx, *old);
                let same = |asked: Option<u32>, is| asked.is_none_or(|asked| asked == is);
                if same(set.uid, old.uid) && same(set.gid, old.gid) {
                    Ok((None, None))
                } else {
                    Err(Errno::EPERM)
                }
            }
        }
    }
}

/// This thread makes files for another until this is dropped.
pub(super) struct MakesAs {
    /// The thread's own, if they were changed, with what rights it had.
    own: Option<((u32, u32), CapabilitySets)>,
    /// It is about one thread.
    _thread: PhantomData<*const ()>,
}

impl MakesAs {
    fn new(uid: u32, gid: u32) -> Result<MakesAs> {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if own == (uid, gid) {
            return Ok(MakesAs { own: None, _thread: PhantomData });
        }
        if uid == u32::MAX || gid == u32::MAX {
            return Err(Errno::EINVAL);
        }
        let had = capabilities(None).map_err(super::errno)?;
        // From here on dropped, and so undone.
        let makes = MakesAs { own: Some((own, had)), _thread: PhantomData };
        if !set_fs_group(gid) || !set_fs_user(uid) {
            return Err(Errno::EPERM);
        }
        // The kernel takes rights over files from a thread that becomes an ordinary user there. The
        // session has judged the caller by all of its groups, which this thread has not.
        restore(&had);
        Ok(makes)
    }

    /// The same, and without the right to do with the files of others what their owners may.
    fn without_ownership(uid: u32, gid: u32) -> Result<MakesAs> {
        let had = capabilities(None).map_err(super::errno)?;
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut left = had;
        left.effective.remove(CapabilitySet::FOWNER);
        let mut makes = MakesAs::new(uid, gid)?;
        // Also where it has become nobody else.
        makes.own = Some((own, had));
        set_capabilities(None, left).map_err(super::errno)?;
        Ok(makes)
    }
}

impl Drop for MakesAs {
    fn drop(&mut self) {
        if let Some(((uid, gid), had)) = &self.own {
            let back = set_fs_user(*uid) & set_fs_group(*gid);
            assert!(back, "a thread can always be itself again");
            restore(had);
        }
    }
}

/// Gives this thread the effective capabilities that it `had`.
fn restore(had: &CapabilitySets) {
    // Without them the kernel refuses more, and never allows more.
    let _ = set_capabilities(None, *had);
}
