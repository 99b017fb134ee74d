//! The stock file servers for virtio-fs, which are peers: that in C, of the packages of QEMU, and
//! that in Rust.

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
        let source = format!("source={}", source.to_str().expect("a path in UTF-8"));
        let program = parts::helper("/usr/lib/qemu/virtiofsd", "qemu-system-common");
        let own = ["-f", "--fd=0", "-o", &source, "-o", "sandbox=chroot"];
        let options = options.iter().flat_map(|option| ["-o", option]);
        Self::with(&program, own.into_iter().chain(options))
    }

    /// The server that is written in Rust, of which Debian 12 has no package: where the variable
    /// ATOLL_VIRTIOFSD says that it lies, if it does.
    pub fn rust_program() -> Option<PathBuf> {
        std::env::var_os("ATOLL_VIRTIOFSD").map(PathBuf::from)
    }

    /// Serves `source` by each stock server that is here, one after the other, to `used`, which is
    /// also told its name.
    pub fn each(source: &Path, mut used: impl FnMut(&str, Virtiofsd)) {
        used("C", Self::start(source, &[]));
        match Self::rust_program() {
            Some(program) => used("Rust", Self::start_rust(&program, source, &[])),
            None => println!("not tried: the virtiofsd in Rust, which ATOLL_VIRTIOFSD would name"),
        }
    }

    /// Serves `source` by `program`, the server that is written in Rust, with more `options` in its
    /// own words.
    pub fn start_rust(program: &Path, source: &Path, options: &[&str]) -> Virtiofsd {
        let source = format!("--shared-dir={}", source.to_str().expect("a path in UTF-8"));
        let own = ["--fd=0", &source, "--sandbox=chroot"];
        Self::with(program, own.into_iter().chain(options.iter().copied()))
    }

    fn with<'a>(program: &Path, arguments: impl Iterator<Item = &'a str>) -> Virtiofsd {
        let folder = tempfile::Builder::new().prefix("atoll-vm-").tempdir().expect("a folder");
        // It is given a socket that is listened to: no guest can come too early.
        let listener = UnixListener::bind(folder.path().join("s")).expect("a socket");
        let log = std::fs::File::create(folder.path().join("log")).expect("a file");
        let child = Command::new(parts::program("setpriv", "util-linux"))
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(arguments)
            .stdin(OwnedFd::from(listener))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        Virtiofsd { child, folder }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
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
