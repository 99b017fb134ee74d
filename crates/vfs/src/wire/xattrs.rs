//! Extended attributes.

use super::fixed::fixed;
use crate::errno::{Errno, Result};

fixed! {
    /// The arguments of SETXATTR without FUSE_SETXATTR_EXT, which Atoll does not agree to; the name
    /// and the value follow.
    SetxattrIn = "fuse_setxattr_in" 8 {
        size: u32,
        flags: u32,
    }
    /// The same with FUSE_SETXATTR_EXT.
    SetxattrExtIn = "fuse_setxattr_in" 16 {
        size: u32,
        flags: u32,
        setxattr_flags: u32,
        padding: u32,
    }
    /// The arguments of GETXATTR, where the name follows, and LISTXATTR.
    GetxattrIn = "fuse_getxattr_in" 8 {
        size: u32,
        padding: u32,
    }
    /// The answer to GETXATTR and LISTXATTR with size 0.
    GetxattrOut = "fuse_getxattr_out" 8 {
        size: u32,
        padding: u32,
    }
}

/// Checks that `name` can be sent as the name of an extended attribute.
///
/// # Errors
/// `ERANGE` for its length (1 to 255 bytes), `EINVAL` for a NUL in it.
pub fn xattr_name(name: &[u8]) -> Result<&[u8]> {
    if name.is_empty() || name.len() > 255 {
        return Err(Errno::ERANGE);
    }
    if name.contains(&0) {
        return Err(Errno::EINVAL);
    }
    Ok(name)
}
