//! A server of one volume for the lifetime of one command, in the process that owns the volume.

use std::fmt;
use std::io::{self, PipeWriter};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use atoll_host::client::Address;
use atoll_host::server::SPIN;
use atoll_host::server::bind::bind;
use atoll_host::server::listen::{Door, SocketServer};
use atoll_host::server::rules::{Mode, Rules};
use atoll_vfs::AccessTimes;

use crate::failure::Failure;
use crate::served::{OfDirectory, Served};
use crate::volume;

type Ended = io::Result<Vec<(String, Option<Served>)>>;

/// The server. Its socket is this user's alone, and goes with it.
pub struct PrivateServer {
    path: PathBuf,
    place: Address,
    /// Closed to end it.
    stop: PipeWriter,
    thread: JoinHandle<Ended>,
}

impl PrivateServer {
    /// Opens the volume at `path` and serves it: this process's server `number`. The socket is not
    /// below one of `hidden`.
    pub fn start(
        path: &Path,
        access: volume::Access,
        access_times: AccessTimes,
        number: usize,
        hidden: &[&Path],
    ) -> Result<PrivateServer, Failure> {
        let cannot = |error: &dyn fmt::Display| {
            Failure::new(format!("cannot serve {}: {error}", path.display()))
        };
        let volume = Served::open(path, access, OfDirectory::default())?;
        let name = format!("run-{}-{number}", std::process::id());
        let bound = atoll_preload::in_directory(hidden, |dir| {
            let socket = dir.join(&name);
            bind(&socket, false).map(|fd| (socket, fd)).map_err(io::Error::other)
        });
        let (socket, listener) = match bound {
            Ok(bound) => bound,
            Err(error) => {
                volume.close(path)?;
                return Err(cannot(&error));
            }
        };
        let place = Address { socket, volume: String::new() };
        let own = rustix::process::geteuid().as_raw();
        let served = volume.share("volume").map_err(|error| cannot(&error))?;
        served.set_address(&place.socket);
        // From here on a failure leaves the volume as a crash would: nothing acknowledged is lost.
        served.set_access_times(access_times).map_err(|error| cannot(&error))?;
        let mode = match access {
            volume::Access::Read => Mode::Read,
            volume::Access::Write => Mode::Write,
        };
        let door = Door { listener, rules: Rules::private(own, mode), address: None };
        // Its clients are programs that this process has started: no broker.
        let server = SocketServer::new(vec![door], None, vec![served], SPIN)
            .map_err(|error| cannot(&error))?;
        let (stopped, stop) = io::pipe().map_err(|error| cannot(&error))?;
        let thread = std::thread::spawn(move || server.run(stopped.as_fd()));
        Ok(PrivateServer { path: path.to_owned(), place, stop, thread })
    }

    /// Where it is.
    pub fn place(&self) -> &Address {
        &self.place
    }

    /// Ends it and closes the volume.
    pub fn end(self) -> Result<(), Failure> {
        let PrivateServer { path, place, stop, thread } = self;
        drop(stop);
        let ended = thread.join();
        // The next process of this number would replace a socket that is left.
        let _ = std::fs::remove_file(&place.socket);
        let volume = match ended {
            Ok(Ok(mut volumes)) => volumes.pop().and_then(|(_, volume)| volume),
            _ => None,
        };
        match volume {
            Some(volume) => volume.close(&path),
            None => Err(Failure::new(format!(
                "serving {} ended early by an internal error; what had been written before is safe, and is \
                 taken up when the volume is opened again",
                path.display()
            ))),
        }
    }
}
