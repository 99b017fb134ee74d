//! A volume that one mount has for itself: how `atoll run` and `atoll mount` serve and close it.

use std::os::fd::OwnedFd;
use std::path::Path;

use atoll_host::server::sole::{Ended, SoleOptions, SoleServer};

use crate::failure::Failure;
use crate::served::{self, Served};

/// What the kernel keeps of what programs write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Cache {
    /// Nothing: a write that has returned survives whatever is killed.
    #[default]
    Writethrough,
    /// All, until it is synced or some seconds old: what is not synced is lost with the server.
    Writeback,
}

impl Cache {
    /// Whether what is at `volume` may be written back, as this asks. If a server has it
    /// (`served`), or others change it too, it may not.
    pub fn writes_back(self, volume: &Path, served: bool) -> Result<bool, Failure> {
        let why = match self {
            Cache::Writethrough => return Ok(false),
            Cache::Writeback if served => {
                "is a server's, whose other clients have to see each write"
            }
            Cache::Writeback if served::is_foreign(volume) => "is one that others change too",
            Cache::Writeback => return Ok(true),
        };
        let volume = volume.display();
        Err(Failure::new(format!(
            "--cache writeback is for volumes of one's own, and {volume} {why}"
        )))
    }
}

/// Has `fs`, which was opened at `path`, ready to be served on `device`, which is mounted.
pub fn start(
    fs: Served,
    device: OwnedFd,
    options: &SoleOptions,
    path: &Path,
) -> Result<SoleServer<Served>, Failure> {
    // A failure leaves the volume as a crash would: nothing acknowledged is lost.
    let cannot = |error: &dyn std::fmt::Display| {
        Failure::new(format!("cannot mount {}: {error}", path.display()))
    };
    let shared = fs.share("volume").map_err(|error| cannot(&error))?;
    SoleServer::start(shared, device, options).map_err(|error| cannot(&error))
}

/// Closes what was served, if it can be trusted, and says what went wrong.
pub fn close(Ended { fs, error }: Ended<Served>, path: &Path) -> Result<(), Failure> {
    let Some(fs) = fs else {
        return Err(Failure::new(format!(
            "serving {} ended early by an internal error; what had been written before is safe, and is taken up \
             when the volume is opened again",
            path.display()
        )));
    };
    fs.close(path)?;
    match error {
        None => Ok(()),
        Some(error) => Err(Failure::new(format!("serving {} failed: {error}", path.display()))),
    }
}
