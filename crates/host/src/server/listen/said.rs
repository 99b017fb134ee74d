//! What a client says in its session: that it wants a View, and nothing else.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use atoll_server::revocable::Revocable;
use atoll_server::{Credentials, Session};
use atoll_vfs::FileSystem;

use super::{By, Connected, Newcomer, Next};
use crate::control::{self, Answer, Mode, ViewAsk};
use crate::server::machine;
use crate::server::porter::{Porter, hang_up};

/// Deals with a message in a session.
pub(super) fn said<F: FileSystem + Send>(connected: &Connected<F>, message: &[u8]) -> Next {
    let Connected { client: Newcomer { socket, peer, porter, .. }, place, by, .. } = connected;
    if let (By::Worker(..), Some(ask)) = (by, ViewAsk::decode(message))
        && show(socket, place, porter, ask)
    {
        log::debug!("process {} has asked for a View", peer.pid);
        return Next::Stay;
    }
    let Credentials { pid, uid, .. } = peer;
    log::warn!(user = *uid; "process {pid} of user {uid} broke the protocol; its session ends");
    Next::End
}

/// Gives the client of a ring, whose session is in `place`, the View that it asks for. Returns
/// whether it may: one that has a View breaks the protocol. One that takes no answers is hung up.
fn show<F: FileSystem + Send>(
    socket: &Arc<OwnedFd>,
    place: &Revocable<Session<F>>,
    porter: &Porter,
    ViewAsk(most): ViewAsk,
) -> bool {
    let begun = place.with(|session| {
        let mode = if session.access().read_only { Mode::Read } else { Mode::Write };
        machine::open_view(session, most as usize).map(|memory| memory.map(|memory| (memory, mode)))
    });
    let (answer, memory) = match begun {
        Some(Ok(Some((memory, mode)))) => (Answer::Granted(mode), Some(memory)),
        Some(Err(error)) => (Answer::Refused(error.to_string()), None),
        Some(Ok(None)) | None => return false,
    };
    let socket = Arc::clone(socket);
    porter.run(move || {
        let handed: Vec<_> = memory.iter().map(AsFd::as_fd).collect();
        if control::send(&*socket, &answer.encode(), &handed).is_err() {
            // The control thread ends the session.
            hang_up(&socket);
        }
    });
    true
}
