//! The stock file server for virtio-fs, in C, of the packages of QEMU: a peer.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::parts;

/// A server of a folder for one guest, which ends with its value.
pub struct Virtiofsd {
    child: Child,
    folder: TempDir,
}

impl Virtiofsd {
    /// Serves `source`, with more `options` in its own words.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn start(source: &Path, options: &[&str]) -> Virtiofsd {
        let folder = tempfile::Builder::new().prefix("atoll-vm-").tempdir().expect("a folder");
        // It is given a socket that is listened to: no guest can come too early.
        let listener = UnixListener::bind(folder.path().join("s")).expect("a socket");
        let log = std::fs::File::create(folder.path().join("log")).expect("a file");
        let source = source.to_str().expect("a path in UTF-8");
        let child = Command::new(parts::program("setpriv", "util-linux"))
            .args(["--pdeathsig", "KILL"])
            .arg(parts::helper("/usr/lib/qemu/virtiofsd", "qemu-system-common"))
            .args(["-f", "--fd=0", "-o", &format!("source={source}"), "-o", "sandbox=chroot"])
            .args(options.iter().flat_map(|option| ["-o", option]))
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        Virtiofsd { child, folder }
    }

    /// Where it is reached.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// How many requests of each kind came, by the names that FUSE has for them, if it was started
    /// with the option `log_level=debug`.
    pub fn requests(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in self.log().lines() {
            let Some((_, kind)) = line.split_once("opcode: ") else { continue };
            let kind = kind.split(' ').next().unwrap_or_default();
            *counts.entry(kind.to_owned()).or_default() += 1;
        }
        counts
    }

    /// Its log.
    pub fn log(&self) -> String {
        let log = std::fs::read(self.folder.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }
}

impl Drop for Virtiofsd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
