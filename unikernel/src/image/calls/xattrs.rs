//! Calls about extended attributes.

use atoll_posix::attributes::Target;
use atoll_posix::{AT_FDCWD, AtFlags};
use atoll_vfs::{Errno, XATTR_LIST_MAX, XATTR_SIZE_MAX, XattrFlags};

use super::{Answer, Error};
use crate::memory;
use crate::process::files;

fn followed(path: u64) -> Result<Target<'static>, Error> {
    Ok(Target::path(memory::string(path)?))
}

fn itself(path: u64) -> Result<Target<'static>, Error> {
    Ok(Target::Path(AT_FDCWD, memory::string(path)?, AtFlags::SYMLINK_NOFOLLOW))
}

fn set(target: Target<'_>, name: u64, value: u64, len: u64, flags: u32) -> Answer {
    if len > XATTR_SIZE_MAX as u64 {
        return Err(Errno::E2BIG.into());
    }
    let flags = XattrFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
    files().setxattr(target, memory::string(name)?, memory::bytes(value, len)?, flags)?;
    Ok(0)
}

fn get(target: Target<'_>, name: u64, to: u64, len: u64) -> Answer {
    let to = memory::bytes_mut(to, len.min(XATTR_SIZE_MAX as u64))?;
    Ok(files().getxattr(target, memory::string(name)?, to)? as i64)
}

fn list(target: Target<'_>, to: u64, len: u64) -> Answer {
    let to = memory::bytes_mut(to, len.min(XATTR_LIST_MAX as u64))?;
    Ok(files().listxattr(target, to)? as i64)
}

fn remove(target: Target<'_>, name: u64) -> Answer {
    files().removexattr(target, memory::string(name)?)?;
    Ok(0)
}

pub fn setxattr(path: u64, name: u64, value: u64, len: u64, flags: u32) -> Answer {
    set(followed(path)?, name, value, len, flags)
}

pub fn lsetxattr(path: u64, name: u64, value: u64, len: u64, flags: u32) -> Answer {
    set(itself(path)?, name, value, len, flags)
}

pub fn fsetxattr(fd: i32, name: u64, value: u64, len: u64, flags: u32) -> Answer {
    set(Target::Descriptor(fd), name, value, len, flags)
}

pub fn getxattr(path: u64, name: u64, to: u64, len: u64) -> Answer {
    get(followed(path)?, name, to, len)
}

pub fn lgetxattr(path: u64, name: u64, to: u64, len: u64) -> Answer {
    get(itself(path)?, name, to, len)
}

pub fn fgetxattr(fd: i32, name: u64, to: u64, len: u64) -> Answer {
    get(Target::Descriptor(fd), name, to, len)
}

pub fn listxattr(path: u64, to: u64, len: u64) -> Answer {
    list(followed(path)?, to, len)
}

pub fn llistxattr(path: u64, to: u64, len: u64) -> Answer {
    list(itself(path)?, to, len)
}

pub fn flistxattr(fd: i32, to: u64, len: u64) -> Answer {
    list(Target::Descriptor(fd), to, len)
}

pub fn removexattr(path: u64, name: u64) -> Answer {
    remove(followed(path)?, name)
}

pub fn lremovexattr(path: u64, name: u64) -> Answer {
    remove(itself(path)?, name)
}

pub fn fremovexattr(fd: i32, name: u64) -> Answer {
    remove(Target::Descriptor(fd), name)
}
