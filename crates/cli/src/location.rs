//! Places: files inside volumes as `VOLUME:/path`, files of the system as usual.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atoll_host::guest;

use crate::failure::Failure;

/// Where something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the volume of the first path, at the second, which begins with `/`.
    Volume(PathBuf, PathBuf),
    /// In the system's file tree.
    Host(PathBuf),
}

impl Location {
    /// Reads a place: what stands before the first `:/`, or before a colon at the end, is a volume;
    /// without one the whole is a path of the system.
    pub fn parse(text: &OsStr) -> Location {
        let bytes = text.as_bytes();
        // The colon behind these words separates nothing.
        let skip = guest::prefix(bytes).map_or(0, str::len);
        let found = bytes[skip..].windows(2).position(|pair| pair == b":/");
        match found.map(|at| skip + at) {
            Some(at) if at > skip => Location::Volume(
                PathBuf::from(OsStr::from_bytes(&bytes[..at])),
                PathBuf::from(OsStr::from_bytes(&bytes[at + 1..])),
            ),
            _ => match bytes.split_last() {
                _ if skip > 0 && bytes.len() == skip => Location::Host(PathBuf::from(text)),
                Some((b':', volume)) if !volume.is_empty() => {
                    Location::Volume(PathBuf::from(OsStr::from_bytes(volume)), "/".into())
                }
                // No file of the system is meant.
                _ if skip > 0 => Location::Volume(PathBuf::from(text), "/".into()),
                _ => Location::Host(PathBuf::from(text)),
            },
        }
    }

    /// The place at `path` in the same tree.
    pub fn at(&self, path: &Path) -> Location {
        match self {
            Location::Volume(volume, _) => Location::Volume(volume.clone(), path.to_owned()),
            Location::Host(_) => Location::Host(path.to_owned()),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Volume(volume, path) => write!(f, "{}:{}", volume.display(), path.display()),
            Location::Host(path) => path.display().fmt(f),
        }
    }
}

/// Reads a place that must be inside a volume; a volume alone is its root directory.
pub fn in_volume(text: &OsStr) -> Result<(PathBuf, PathBuf), Failure> {
    match Location::parse(text) {
        Location::Volume(volume, path) => Ok((volume, path)),
        Location::Host(path) if path.as_os_str().is_empty() => {
            Err(Failure::new("name a place in a volume as VOLUME:/path"))
        }
        Location::Host(volume) => Ok((volume, PathBuf::from("/"))),
    }
}

/// The argument of commands that work inside volumes.
pub type LocationArg = OsString;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let parse = |text: &str| Location::parse(OsStr::new(text));
        assert_eq!(parse("a.vol:/x/y"), Location::Volume("a.vol".into(), "/x/y".into()));
        assert_eq!(parse("/d/a.vol:/"), Location::Volume("/d/a.vol".into(), "/".into()));
        assert_eq!(parse("a.vol:/x:/y"), Location::Volume("a.vol".into(), "/x:/y".into()));
        assert_eq!(parse("plain/file"), Location::Host("plain/file".into()));
        assert_eq!(parse("a:b"), Location::Host("a:b".into()));
        assert_eq!(parse("a.vol:"), Location::Volume("a.vol".into(), "/".into()));
        assert_eq!(parse(":/x"), Location::Host(":/x".into()));
        assert_eq!(parse(":"), Location::Host(":".into()));
        let guest = |text: &str, socket: &str, path: &str| {
            assert_eq!(parse(text), Location::Volume(socket.into(), path.into()));
        };
        guest("vhost-user:/run/s:/x/y", "vhost-user:/run/s", "/x/y");
        guest("vhost-user:/run/s", "vhost-user:/run/s", "/");
        guest("vhost-user:s:", "vhost-user:s", "/");
        guest("vhost-user-blk:/run/s:/x", "vhost-user-blk:/run/s", "/x");
        guest("vhost-user-blk:/run/s", "vhost-user-blk:/run/s", "/");
        assert_eq!(parse("vhost-user:"), Location::Host("vhost-user:".into()));
        let volume = |text: &str| in_volume(OsStr::new(text)).ok();
        assert_eq!(volume("a.vol"), Some(("a.vol".into(), "/".into())));
        assert_eq!(volume("a.vol:"), Some(("a.vol".into(), "/".into())));
        assert_eq!(volume(""), None);
    }
}
