//! Reports of damage found in volumes while they are used: printed at once, where the user of the
//! volume looks.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use atoll_fs::{Listener, MountNote};

/// Where it is said, by the whole process.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub enum Destination {
    /// Standard error.
    Streams,
    /// The process's log.
    Log,
    /// The system's log: nobody sees its streams.
    System,
}

static DESTINATION: AtomicU8 = AtomicU8::new(Destination::Streams as u8);

/// Says it there from now on.
pub fn go_to(destination: Destination) {
    DESTINATION.store(destination as u8, Ordering::Relaxed);
}

/// Says what is found in the volume at `path`. It is there for as long as the process, for which a
/// process opens few enough volumes.
pub fn listener(path: &Path) -> &'static dyn Listener {
    Box::leak(Box::new(Speaker { path: path.to_owned() }))
}

#[derive(Debug)]
struct Speaker {
    path: PathBuf,
}

impl Listener for Speaker {
    fn tell(&self, note: &MountNote) {
        let text = format!("{}: {note}", self.path.display());
        // Nobody to tell is no reason to fail.
        let destination = DESTINATION.load(Ordering::Relaxed);
        if destination == Destination::Log as u8 {
            log::warn!("{text}");
        } else if destination == Destination::System as u8 {
            let _ = to_system_log(&text);
        } else {
            say!("{text}");
        }
    }
}

/// Sends a warning to the daemon of syslog(3), without waiting for it.
fn to_system_log(text: &str) -> std::io::Result<()> {
    // Facility 3, daemons, and level 4, warnings (RFC 3164).
    let message = format!("<28>atoll[{}]: {text}", std::process::id());
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(message.as_bytes(), "/dev/log").map(drop)
}
