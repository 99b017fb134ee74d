//! The rights of a call's caller on what it names, and the privileges that its changes take from a
//! file.

use atoll_posix::AccessMode;
use atoll_vfs::{Attr, Errno, FileSystem, FileType, Ino, Name, OpenFlags, Result};

use crate::guarded::Guarded;
use crate::leases::observer::Change;
use crate::rights::privileges::drop_privileges;
use crate::session::call::Call;
use crate::session::concerns::MAKING;
use crate::session::own::Holds;

/// The rights on a file that opening it with `flags` needs.
pub(crate) fn open_mode(flags: OpenFlags) -> AccessMode {
    let mut mode = AccessMode::empty();
    mode.set(AccessMode::READ, flags.contains(OpenFlags::READ));
    mode.set(AccessMode::WRITE, flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNC));
    mode
}

impl<F: FileSystem> Call<'_, F> {
    /// The attributes of `dir` if the caller is judged by them, once they are found to allow what
    /// the verb asks of a directory.
    ///
    /// # Errors
    /// `EACCES`, `ENOTDIR`.
    #[inline]
    pub fn allowed(&mut self, dir: Ino) -> Result<Option<Attr>> {
        if self.caller.is_free() {
            return Ok(None);
        }
        let attr = self.state.fs.getattr(&self.cx, dir)?;
        if attr.file_type() != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        self.caller.access(&attr, self.rights)?;
        Ok(Some(attr))
    }

    /// Judges the making of `name` in `dir`, of which `above` are the attributes if the caller is
    /// judged by them. A name that exists is `EEXIST` also where none could be made.
    ///
    /// # Errors
    /// `EACCES`, `EEXIST`.
    pub fn may_make(&mut self, dir: Ino, name: Name<'_>, above: Option<&Attr>) -> Result<()> {
        if let Some(above) = above
            && let Err(error) = self.caller.access(above, MAKING)
        {
            let exists = self.state.peek(&self.cx, dir, name).is_ok();
            return Err(if exists { Errno::EEXIST } else { error });
        }
        Ok(())
    }

    /// Judges the removal of `name` from `dir`, as above. Returns the attributes of what it names,
    /// if the caller is judged by them or somebody must hear of changes.
    ///
    /// # Errors
    /// `EACCES`, `EPERM`, `ENOENT`.
    pub fn may_remove(
        &mut self,
        dir: Ino,
        name: Name<'_>,
        above: Option<&Attr>,
    ) -> Result<Option<Attr>> {
        let wanted = above.is_some() || self.state.observed() || self.own.holds != Holds::Nothing;
        if !wanted || name.is_dot_or_dot_dot() {
            return Ok(None);
        }
        let victim = self.state.peek(&self.cx, dir, name)?;
        self.state.involved.add(victim.ino);
        if let Some(above) = above {
            self.caller.remove(above, &victim)?;
        }
        Ok(Some(victim))
    }

    /// Takes from a file the privileges that a change of its content takes: set-ID bits and
    /// capabilities.
    pub fn drop_privileges(&mut self, ino: Ino) -> Result<()> {
        let Call { state, cx, caller, own, .. } = self;
        let Guarded { fs, plain, .. } = &mut **state;
        let in_group = |attr: &Attr| caller.in_group(attr);
        if drop_privileges(fs, plain, cx, ino, !caller.is_root(), in_group)? {
            state.tell(own.id, Change::Unexpected(ino));
        }
        Ok(())
    }
}
