//! How each call of a session begins and ends under the volume's lock.

use atoll_vfs::{Errno, FileSystem, Result};

use crate::volume::{Entered, Volume, Waits};

/// Refuses a change by a read-only session, and notes that something changes.
pub(crate) fn changing<'a, F: FileSystem + Send>(
    volume: &'a Volume<F>,
    read_only: bool,
    waits: Waits<'a>,
) -> Result<Entered<'a, F>> {
    if read_only {
        return Err(Errno::EROFS);
    }
    let mut state = volume.enter(waits)?;
    state.changed = true;
    Ok(state)
}

/// Takes the volume's lock, for a call that changes something if `changing`, and names what every
/// verb needs. A macro, since the lock borrows one field of the session while others change.
macro_rules! enter {
    ($self:ident, $cx:ident, $state:ident, $caller:ident, reading) => {
        let waits = if $self.waits { Waits::Here } else { Waits::Carrier(&$self.needs) };
        let mut guard = $self.volume.enter(waits)?;
        let $state: &mut Guarded<F> = &mut guard;
        let $cx = &$self.judge.context($cx);
        let $caller = $self.judge.caller($cx);
    };
    ($self:ident, $cx:ident, $state:ident, $caller:ident, changing) => {
        let waits = if $self.waits { Waits::Here } else { Waits::Carrier(&$self.needs) };
        let mut guard = changing(&$self.volume, $self.access.read_only, waits)?;
        let $state: &mut Guarded<F> = &mut guard;
        let $cx = &$self.judge.context($cx);
        let $caller = $self.judge.caller($cx);
    };
}

/// The volume's number of a directory in which a call works.
macro_rules! directory {
    ($self:ident, $cx:ident, $state:ident, $caller:ident, $ino:expr) => {{
        let dir = {
            let Guarded { fs, involved, moves, .. } = &mut *$state;
            $self.inodes.directory((fs, involved), $cx, &$caller, *moves, $ino)
        };
        forgotten!($self, $state);
        let dir = dir?;
        $state.involved.add(dir);
        dir
    }};
}

/// Drops from the session's View what it may not name any more, now that it was given something else.
macro_rules! forgotten {
    ($self:ident, $state:ident) => {
        while let Some(ino) = $self.inodes.forgotten() {
            $state.views.forgotten($self.view, ino);
        }
    };
}

/// Takes note of what the client, if it is a kernel, is given to remember.
macro_rules! lend {
    ($self:ident, entry $ino:expr, $lend:expr) => {
        if let Some(cache) = &$self.cache {
            $self.lent = Some(Lent { ino: $ino, entry: true, valid: cache.given($ino, $lend) });
        }
    };
    ($self:ident, attributes $ino:expr) => {
        if let Some(cache) = &$self.cache {
            $self.lent = Some(Lent { ino: $ino, entry: false, valid: cache.shown($ino) });
        }
    };
}

pub(crate) use {directory, enter, forgotten, lend};
