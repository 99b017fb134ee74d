//! What requests work on: the file system and what is known of its files in use.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use atoll_vfs::{Attr, Context, Errno, FileSystem, Handle, Ino, Name, Result};
use fuser::INodeNo;

use super::adapter::MAX_WRITE;
use atoll_server::rights::privileges::{Plain, drop_privileges};

/// The most that one copy_file_range(2) moves before it returns, so that others get their turn.
const COPY_MAX: u64 = 16 << 20;

/// An open file or directory of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Open {
    File(Handle),
    Directory(Handle),
}

/// What requests work on.
pub(super) struct State<F> {
    pub(super) fs: F,
    /// Every handle that the kernel has not released. It forgets to when a mount goes down.
    pub(super) open: HashMap<Open, Ino>,
    /// Regular files without set-user-ID, set-group-ID and capabilities: a write need not look.
    pub(super) plain: Plain,
    /// Where reads are gathered; grows to the largest request.
    pub(super) buffer: Vec<u8>,
    /// Whether anything has changed since everything was last durable.
    pub(super) changed: bool,
    /// Whether reading sets times of last access.
    pub(super) relatime: bool,
    /// What was opened with O_NOATIME, if so, for requests that do not say it themselves.
    pub(super) without_trace: HashSet<Open>,
    /// The way to tell the kernel of changes that it does not know of.
    pub(super) notifier: Option<fuser::Notifier>,
}

/// The lock's content. A request that panicked has ended the session, and what is left to do then
/// is to take the file system out.
pub(super) fn lock<F>(state: &Mutex<State<F>>) -> MutexGuard<'_, State<F>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: FileSystem> State<F> {
    pub(super) fn new(fs: F) -> Self {
        State {
            fs,
            open: HashMap::new(),
            plain: Plain::default(),
            buffer: Vec::new(),
            changed: false,
            relatime: false,
            without_trace: HashSet::new(),
            notifier: None,
        }
    }

    /// Takes note of a handle that the kernel is about to get, opened with `flags` of open(2).
    pub(super) fn opened(&mut self, handle: Open, ino: Ino, flags: i32) {
        self.open.insert(handle, ino);
        if self.relatime && flags & libc::O_NOATIME != 0 {
            self.without_trace.insert(handle);
        }
    }

    /// Takes note that the kernel has it no more.
    pub(super) fn released(&mut self, handle: Open) {
        self.open.remove(&handle);
        if self.relatime {
            self.without_trace.remove(&handle);
        }
    }

    /// Finds `name` in `parent`; `.` also of what is no directory, since the kernel so finds the inode of a
    /// file handle.
    pub(super) fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        match self.fs.lookup(cx, parent, name) {
            Err(Errno::ENOTDIR) if name.bytes() == b"." => self.fs.getattr(cx, parent),
            found => found,
        }
    }

    /// `ino` was read: sets its time of last access, if that is due.
    pub(super) fn accessed(&mut self, cx: &Context, ino: Ino) {
        if self.relatime && self.fs.accessed(cx, ino) {
            self.changed = true;
            self.forget_attributes(ino);
        }
    }

    /// The directory `ino` was listed by `handle`, or is about to be.
    pub(super) fn listed(&mut self, cx: &Context, ino: Ino, handle: Handle) {
        if !self.without_trace.contains(&Open::Directory(handle)) {
            self.accessed(cx, ino);
        }
    }

    /// Whether the next read of `ino` sets its time of last access, and so has to come here.
    pub(super) fn access_is_due(&mut self, cx: &Context, ino: Ino) -> bool {
        self.relatime && self.fs.getattr(cx, ino).is_ok_and(|attr| attr.access_is_due(cx.now))
    }

    /// Has the kernel forget the attributes of `ino`, which have changed in a way that it does not know of.
    fn forget_attributes(&self, ino: Ino) {
        if let Some(notifier) = &self.notifier {
            // It may be gone already, with its inode.
            let _ = notifier.inval_inode(INodeNo(ino.0), -1, 0);
        }
    }

    /// Takes the capabilities of a regular file whose content or owner changes, and with
    /// `set_ids` also its set-user-ID and set-group-ID bits.
    pub(super) fn drop_privileges(&mut self, cx: &Context, ino: Ino, set_ids: bool) -> Result<()> {
        let State { fs, plain, .. } = self;
        if drop_privileges(fs, plain, cx, ino, set_ids, |_| true)? {
            self.forget_attributes(ino);
        }
        Ok(())
    }

    /// Copies `len` bytes from one open file to another, as many as one request should. Returns how
    /// many.
    pub(super) fn copy(
        &mut self,
        cx: &Context,
        from: (Ino, Handle, u64),
        to: (Ino, Handle, u64),
        len: u64,
    ) -> Result<usize> {
        let len = len.min(COPY_MAX) as usize;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(buffer.len().max(MAX_WRITE as usize), 0);
        let mut done = 0;
        let result = loop {
            let piece = (len - done).min(MAX_WRITE as usize);
            if piece == 0 {
                break Ok(done);
            }
            let got = match self.fs.read(
                cx,
                from.0,
                from.1,
                from.2 + done as u64,
                &mut buffer[..piece],
            ) {
                Ok(0) => break Ok(done),
                Ok(got) => got,
                Err(error) => break Err(error),
            };
            match self.fs.write(cx, to.0, to.1, to.2 + done as u64, &buffer[..got]) {
                Ok(written) if written.len < got => break Ok(done + written.len),
                Ok(_) => done += got,
                Err(error) => break Err(error),
            }
        };
        self.buffer = buffer;
        if done > 0 && !self.without_trace.contains(&Open::File(from.1)) {
            self.accessed(cx, from.0);
        }
        // What was copied before an error counts, as with write(2).
        if done > 0 { Ok(result.unwrap_or(done)) } else { result }
    }
}
