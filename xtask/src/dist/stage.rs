//! Files as they will be installed, in a folder, and archives of them that are the same wherever
//! and whenever they are made.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::steps::{Failure, program};

/// A folder that stands for the root directory of a machine.
pub struct Stage {
    root: PathBuf,
}

impl Stage {
    /// An empty one at `root`; what is there is removed.
    pub fn new(root: &Path) -> Result<Self, Failure> {
        match fs::remove_dir_all(root) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(root, &error));
            }
            _ => {}
        }
        fs::create_dir_all(root).map_err(|error| failed(root, &error))?;
        set_mode(root, 0o755)?;
        Ok(Stage { root: root.into() })
    }

    /// Where it lies on this machine.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Puts a file into it, with the folders that lead there.
    pub fn put(&self, name: &str, content: &[u8], mode: u32) -> Result<(), Failure> {
        let path = self.root.join(name);
        let folders = path.ancestors().skip(1).take_while(|folder| *folder != self.root);
        let mut folders: Vec<&Path> = folders.collect();
        folders.reverse();
        for folder in folders {
            if !folder.is_dir() {
                fs::create_dir(folder).map_err(|error| failed(folder, &error))?;
                // The builder's umask must not show.
                set_mode(folder, 0o755)?;
            }
        }
        fs::write(&path, content).map_err(|error| failed(&path, &error))?;
        set_mode(&path, mode)
    }

    /// Makes a tar archive of everything in it, in the order of the names, owned by the superuser
    /// and last changed at `time`.
    pub fn tar(&self, archive: &Path, time: u64) -> Result<(), Failure> {
        let entries = fs::read_dir(&self.root).map_err(|error| failed(&self.root, &error))?;
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        program("tar")
            .args(["--create", "--format=ustar", "--sort=name", "--numeric-owner"])
            .args(["--owner=0", "--group=0", &format!("--mtime=@{time}"), "--file"])
            .arg(archive)
            .arg("--directory")
            .arg(&self.root)
            .args(names)
            .run()
    }
}

/// Compresses `file` to `file`.gz, with nothing in it that depends on when.
pub fn gzip(file: &Path) -> Result<(), Failure> {
    program("gzip").args(["--force", "--no-name", "-9"]).arg(file).run()
}

/// The SHA-256 of `file`, in hexadecimal digits.
pub fn sha256(file: &Path) -> Result<String, Failure> {
    let line = program("sha256sum").arg("--binary").arg(file).output()?;
    match line.split_whitespace().next() {
        Some(digits) if digits.len() == 64 => Ok(digits.into()),
        _ => Err(Failure(format!("sha256sum said `{line}`"))),
    }
}

/// The content of `path`.
pub fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| failed(path, &error))
}

/// Why nothing came of `path`.
pub fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure(format!("{}: {error}", path.display()))
}

fn set_mode(path: &Path, mode: u32) -> Result<(), Failure> {
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(path, mode).map_err(|error| failed(path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of an archive of the same files, put in the order `names` at different times.
    fn archive(folder: &Path, names: [&str; 3]) -> Vec<u8> {
        let stage = Stage::new(&folder.join("stage")).unwrap();
        for name in names {
            stage.put(name, name.as_bytes(), 0o644).unwrap();
        }
        let later =
            std::time::SystemTime::now() + std::time::Duration::from_secs(names[0].len() as u64);
        fs::File::open(stage.root().join(names[0])).unwrap().set_modified(later).unwrap();
        let to = folder.join("a.tar");
        stage.tar(&to, 1_000_000_000).unwrap();
        gzip(&to).unwrap();
        read(&folder.join("a.tar.gz")).unwrap()
    }

    #[test]
    fn the_same_files_make_the_same_archive() {
        let folder = std::env::temp_dir().join(format!("xtask-stage-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let one = archive(&folder, ["usr/bin/b", "usr/bin/a", "etc/c"]);
        let other = archive(&folder, ["etc/c", "usr/bin/a", "usr/bin/b"]);
        let different = archive(&folder, ["etc/c", "usr/bin/a", "usr/bin/d"]);
        fs::remove_dir_all(&folder).unwrap();
        assert!(one == other);
        assert!(one != different);
    }
}
