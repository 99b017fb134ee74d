//! A client that comes to a worker, and what is left of it when it goes.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use atoll_server::revocable::Revocable;
use atoll_server::rights::accounts::Account;
use atoll_server::{Credentials, Session};
use atoll_vfs::FileSystem;

use super::bells::ClientBell;
use super::porter::Porter;
use super::rules::Grant;
use crate::shm::SharedMemory;

/// A client that wants to be served through a ring in `memory`.
pub(super) struct Newcomer<F: FileSystem + Send> {
    pub peer: Credentials,
    pub grant: Grant,
    pub account: Option<Arc<Account>>,
    pub memory: OwnedFd,
    pub socket: Arc<OwnedFd>,
    pub place: Revocable<Session<F>>,
    pub view: bool,
    /// Whether its memory is used as it is.
    pub trusted: bool,
    /// Takes what is left of it when the worker has let go of it.
    pub remains: Sender<Remains>,
    /// Does what the client could make last.
    pub porter: Porter,
}

/// The memory and the bell of a client, as the worker has had them: to free its pages takes long,
/// and to watch its bell no more waits for those who go over all that watch it.
pub(super) type Remains = Box<dyn Send>;

/// A client's memory and bell. They go where its [`Remains`] are, whoever drops them.
pub(super) struct Kept {
    held: Option<(SharedMemory, ClientBell)>,
    to: Sender<Remains>,
}

impl Kept {
    pub(super) fn new(memory: SharedMemory, bell: ClientBell, to: &Sender<Remains>) -> Kept {
        Kept { held: Some((memory, bell)), to: to.clone() }
    }

    /// The bell, until this is dropped.
    pub(super) fn bell(&self) -> Option<&ClientBell> {
        self.held.as_ref().map(|(_, bell)| bell)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            // Where nobody takes it, it is freed here.
            let _ = self.to.send(Box::new(held));
        }
    }
}
