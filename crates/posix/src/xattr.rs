//! Extended attributes.

use atoll_vfs::{Attr, Errno, FileSystem, FileType, Result, XATTR_SIZE_MAX, XattrFlags};

use crate::attributes::Target;
use crate::flags::AccessMode;
use crate::policy::Policy;
use crate::{Clock, Posix};

/// The longest name of an extended attribute, its namespace included, in bytes.
const XATTR_NAME_MAX: usize = 255;

/// Checks a name: a known namespace and something after it.
fn check_name(name: &[u8], attr: &Attr) -> Result<()> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX {
        return Err(Errno::ERANGE);
    }
    let namespaces: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let Some(namespace) = namespaces.iter().find(|n| name.starts_with(n)) else {
        return Err(Errno::EOPNOTSUPP);
    };
    if name.len() == namespace.len() {
        return Err(Errno::EINVAL);
    }
    // Only files and directories take user attributes (xattr(7)).
    let plain = matches!(attr.file_type(), FileType::Regular | FileType::Directory);
    if name.starts_with(b"user.") && !plain { Err(Errno::EPERM) } else { Ok(()) }
}

/// Hands `value` to the caller: its length if the buffer is empty, else the bytes.
fn deliver(value: &[u8], buf: &mut [u8]) -> Result<usize> {
    if !buf.is_empty() {
        buf.get_mut(..value.len()).ok_or(Errno::ERANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}

impl<F: FileSystem, C: Clock, P: Policy> Posix<F, C, P> {
    fn xattr_target(&mut self, target: Target<'_>) -> Result<Attr> {
        match target {
            Target::Descriptor(fd) => {
                self.table.get(fd)?.not_path_only()?;
                self.find_descriptor(fd)
            }
            Target::Path(dirfd, path, flags) => self.find(dirfd, path, flags),
        }
    }

    fn check_xattr(&mut self, attr: &Attr, mode: AccessMode) -> Result<()> {
        if P::CHECKS { self.policy.access(self.credentials, attr, mode) } else { Ok(()) }
    }

    /// The setxattr(2) family.
    ///
    /// # Errors
    /// Those of setxattr(2); `EOPNOTSUPP` outside `user.`, `trusted.` and `security.`.
    pub fn setxattr(
        &mut self,
        target: Target<'_>,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        if flags.contains(XattrFlags::CREATE | XattrFlags::REPLACE) {
            return Err(Errno::EINVAL);
        }
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        let attr = self.xattr_target(target)?;
        check_name(name, &attr)?;
        self.check_xattr(&attr, AccessMode::WRITE)?;
        let cx = self.context();
        self.fs.setxattr(&cx, attr.ino, name, value, flags)
    }

    /// The getxattr(2) family: the value's length, and the value if `buf` is not empty.
    ///
    /// # Errors
    /// Those of getxattr(2).
    pub fn getxattr(&mut self, target: Target<'_>, name: &[u8], buf: &mut [u8]) -> Result<usize> {
        let attr = self.xattr_target(target)?;
        match check_name(name, &attr) {
            // An inode that can have no attributes has none.
            Err(Errno::EPERM) => return Err(Errno::ENODATA),
            checked => checked?,
        }
        self.check_xattr(&attr, AccessMode::READ)?;
        let cx = self.reading();
        self.scratch.clear();
        self.fs.getxattr(&cx, attr.ino, name, &mut self.scratch)?;
        deliver(&self.scratch, buf)
    }

    /// The listxattr(2) family: all names, each with its NUL; the length alone if `buf` is empty.
    ///
    /// # Errors
    /// Those of listxattr(2).
    pub fn listxattr(&mut self, target: Target<'_>, buf: &mut [u8]) -> Result<usize> {
        let attr = self.xattr_target(target)?;
        let cx = self.reading();
        self.scratch.clear();
        self.fs.listxattr(&cx, attr.ino, &mut self.scratch)?;
        deliver(&self.scratch, buf)
    }

    /// The removexattr(2) family.
    ///
    /// # Errors
    /// Those of removexattr(2).
    pub fn removexattr(&mut self, target: Target<'_>, name: &[u8]) -> Result<()> {
        let attr = self.xattr_target(target)?;
        check_name(name, &attr)?;
        self.check_xattr(&attr, AccessMode::WRITE)?;
        let cx = self.context();
        self.fs.removexattr(&cx, attr.ino, name)
    }
}
