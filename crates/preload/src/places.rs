//! Directories for what programs under `atoll run` need and nobody else may change.
//!
//! In /tmp any user may take any name first. So a name that all know is only a first try: where it
//! is another's, a directory with a name of chance is made, and found again by its owner, which
//! nobody can forge.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where every user may make directories.
const SHARED: [&str; 3] = ["/tmp", "/dev/shm", "/var/tmp"];
/// Others may use what they know the name of. They cannot open the directory, and so not lock it.
const MODE: u32 = 0o711;

/// Does `act` in the first directory where it succeeds of those that this user has for what
/// programs under `atoll run` need and nobody else can change: in /run for the superuser, else in
/// the user's runtime directory, or in /tmp. One below one of `hidden` will not do.
///
/// # Errors
/// Why none of these directories would do: the last one's reason.
pub fn in_directory<T>(hidden: &[&Path], act: impl FnMut(&Path) -> io::Result<T>) -> io::Result<T> {
    let uid = rustix::process::geteuid().as_raw();
    let named = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    first(uid, &own_bases(uid, named), &SHARED.map(Path::new), hidden, act)
}

/// Where only the user `uid` may make directories, each once: most sessions name the usual one.
fn own_bases(uid: u32, named: Option<PathBuf>) -> Vec<PathBuf> {
    let usual = PathBuf::from(format!("/run/user/{uid}"));
    let named = named.filter(|named| *named != usual);
    let run = (uid == 0).then(|| PathBuf::from("/run"));
    run.into_iter().chain(named).chain([usual]).collect()
}

/// Of the directories of the user `uid` in those that are his `own`, and then in those that are
/// `shared`.
fn first<T>(
    uid: u32,
    own: &[PathBuf],
    shared: &[&Path],
    hidden: &[&Path],
    mut act: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let mut failed = io::Error::other("no directory would do");
    let mut attempt = |dir: &Path| {
        if !loadable(dir) || hidden.iter().any(|hidden| dir.starts_with(hidden)) {
            return None;
        }
        match make_own(dir, uid).and_then(|()| act(dir)) {
            Ok(done) => Some(done),
            Err(error) => {
                failed = error;
                None
            }
        }
    };
    let name = format!("atoll-{uid}");
    let known = own.iter().map(|base| base.join("atoll"));
    for dir in known.chain(shared.iter().map(|base| base.join(&name))) {
        if let Some(done) = attempt(&dir) {
            return Ok(done);
        }
    }
    // All of these names are somebody else's, or their file systems will not do.
    for base in shared {
        let chosen = chosen_before(base, uid).chain([base.join(chosen_name(uid))]);
        for dir in chosen {
            if let Some(done) = attempt(&dir) {
                return Ok(done);
            }
        }
    }
    Err(failed)
}

/// A name that nobody can have foreseen.
fn chosen_name(uid: u32) -> OsString {
    // Its keys are of the system's randomness.
    let chance = RandomState::new().hash_one(uid);
    format!("atoll-{uid}.{chance:016x}").into()
}

/// The directories that the user has made in `base` under such names.
fn chosen_before(base: &Path, uid: u32) -> impl Iterator<Item = PathBuf> {
    let prefix = format!("atoll-{uid}.");
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let path = entry.path();
        let chosen = entry.file_name().as_bytes().starts_with(prefix.as_bytes());
        (chosen && is_own(&path, uid).is_ok()).then_some(path)
    })
}

/// Whether the dynamic linker can read the name: blanks and colons separate names.
fn loadable(dir: &Path) -> bool {
    let name = dir.as_os_str().as_bytes();
    dir.is_absolute() && !name.iter().any(|b| b.is_ascii_whitespace() || b":$".contains(b))
}

/// Makes a directory that is there already, or is not, this user's own.
fn make_own(dir: &Path, uid: u32) -> io::Result<()> {
    let base = dir.parent().unwrap_or(dir);
    let mode = fs::metadata(base)?.mode();
    // Else whoever may write there could put another in its place.
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(refused(base, "can be changed by others"));
    }
    match DirBuilder::new().mode(MODE).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    is_own(dir, uid)?;
    // One of before, and one that the umask made private.
    fs::set_permissions(dir, Permissions::from_mode(MODE))
}

fn is_own(dir: &Path, uid: u32) -> io::Result<()> {
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        return Err(refused(dir, "can be changed by others"));
    }
    Ok(())
}

pub(crate) fn refused(dir: &Path, why: &str) -> io::Error {
    io::Error::other(format!("{} {why}", dir.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(dir: &Path, mode: u32) {
        fs::set_permissions(dir, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn names_that_the_dynamic_linker_reads() {
        assert!(loadable(Path::new("/run/a")));
        for unfit in ["run", "/a b", "/a:b", "/$LIB"] {
            assert!(!loadable(Path::new(unfit)), "{unfit}");
        }
    }

    #[test]
    fn each_place_is_tried_once() {
        let bases = |uid, named: &str| own_bases(uid, Some(named.into()));
        assert_eq!(bases(7, "/run/user/7/"), [PathBuf::from("/run/user/7")]);
        assert_eq!(bases(7, "/own"), ["/own", "/run/user/7"].map(PathBuf::from));
        assert_eq!(own_bases(0, None), ["/run", "/run/user/0"].map(PathBuf::from));
    }

    #[test]
    fn only_a_directory_that_nobody_else_can_change_is_used() {
        let uid = rustix::process::geteuid().as_raw();
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("dir");
        make_own(&dir, uid).unwrap();
        mode(&dir, 0o755);
        make_own(&dir, uid).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o711, "nobody else can lock it");
        mode(&dir, 0o777);
        make_own(&dir, uid).unwrap_err();
        mode(&dir, 0o711);
        make_own(&dir, uid + 1).unwrap_err();
        let link = folder.path().join("link");
        symlink(folder.path(), &link).unwrap();
        make_own(&link, uid).unwrap_err();
        // Others may write beside it only where the sticky bit protects it.
        mode(folder.path(), 0o777);
        make_own(&dir, uid).unwrap_err();
        mode(folder.path(), 0o1777);
        make_own(&dir, uid).unwrap();
    }

    #[test]
    fn a_name_that_is_taken_stops_nobody() {
        let uid = rustix::process::geteuid().as_raw();
        let folder = tempfile::tempdir().unwrap();
        let bases = [folder.path()];
        let named = folder.path().join(format!("atoll-{uid}"));
        let find = |hidden: &[&Path]| {
            first(uid, &[], &bases, hidden, |dir| {
                fs::write(dir.join("written"), "")?;
                Ok(dir.to_owned())
            })
        };
        // By a file, by a directory of others, and by a link to where they like.
        fs::write(&named, "").unwrap();
        let other = find(&[]).unwrap();
        assert_ne!(other, named);
        fs::remove_file(&named).unwrap();
        fs::create_dir(&named).unwrap();
        mode(&named, 0o777);
        assert_eq!(find(&[]).unwrap(), other, "it is found again");
        // Nor is another's directory taken for one of before.
        mode(&other, 0o777);
        let third = find(&[]).unwrap();
        assert!(third != other && third != named);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
        find(&[folder.path()]).unwrap_err();
    }
}
