//! QEMU's storage daemon, the stock back end of vhost-user-blk, as a peer in tests.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::parts;

/// One that offers the disk in a file, at a socket that is bound for it and outlives it.
pub struct StorageDaemon {
    child: Child,
    listener: UnixListener,
    folder: TempDir,
    node: String,
    export: String,
}

impl StorageDaemon {
    /// Offers the raw image at `image`, whose unwritten data the host's page cache has.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn start(image: &Path) -> StorageDaemon {
        Self::with(image, "writable=on")
    }

    /// The same for looking only.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn read_only(image: &Path) -> StorageDaemon {
        Self::with(image, "writable=off")
    }

    fn with(image: &Path, how: &str) -> StorageDaemon {
        let folder = tempfile::Builder::new().prefix("atoll-vm-").tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join("s")).expect("a socket");
        let image = image.to_str().expect("a path in UTF-8");
        let node = format!("driver=file,node-name=disk,filename={image},discard=unmap,locking=off");
        let export =
            format!("type=vhost-user-blk,id=disk,node-name=disk,addr.type=fd,addr.str=0,{how}");
        let child = spawn(&listener, folder.path(), &node, &export);
        StorageDaemon { child, listener, folder, node, export }
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it, and has another take its place at the same socket.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.listener, self.folder.path(), &self.node, &self.export);
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it is reached.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// The disk where a volume is taken.
    pub fn place(&self) -> PathBuf {
        format!("vhost-user-blk:{}", self.socket().display()).into()
    }
}

fn spawn(listener: &UnixListener, folder: &Path, node: &str, export: &str) -> Child {
    let log = std::fs::File::create(folder.join("log")).expect("a file");
    // It is given a socket that is listened to: no guest can come too early.
    let listener = OwnedFd::from(listener.try_clone().expect("a descriptor"));
    Command::new(parts::program("setpriv", "util-linux"))
        .args(["--pdeathsig", "KILL"])
        .arg(parts::program("qemu-storage-daemon", "qemu-system-common"))
        .args(["--blockdev", node, "--export", export])
        .stdin(listener)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("it starts")
}

impl Drop for StorageDaemon {
    fn drop(&mut self) {
        self.kill();
    }
}
