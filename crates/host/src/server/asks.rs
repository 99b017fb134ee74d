//! Programs that have mapped a file, and ask for its memory or for their stores to be durable.
//!
//! They come by connections of their own, which last for one answer. A token that the server gave
//! for the mapping shows that they may ask.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use atoll_server::Volume;
use atoll_server::rights::accounts::Charge;
use atoll_vfs::FileSystem;

use super::control::{self, Answer, Ask, Mode};
use super::machine::{self, now};
use super::porch::{Bounds, Places, Standing};
use super::porter::Porter;

/// The most programs that wait for stores to be durable.
const SYNCS: Bounds = [(64, 64), (8, 64), (8, 32)];
/// The most programs that have asked for a mapped file's memory and have not received it.
const ASKS: Bounds = [(256, 256), (64, 512), (16, 32)];

/// Those who wait for their answer, or have it and have not received it.
pub(super) struct Asks {
    syncs: Places,
    all: Places,
}

impl Default for Asks {
    fn default() -> Asks {
        Asks { syncs: Places::new(SYNCS), all: Places::new(ASKS) }
    }
}

impl Asks {
    /// Answers what somebody asks by a socket, of one of `volumes`. The caller keeps the returned
    /// charge until the answer has been received.
    pub(super) fn answer<F: FileSystem + Send + 'static>(
        &self,
        volumes: &[Arc<Volume<F>>],
        (socket, porter): (&Arc<OwnedFd>, &Porter),
        user: (Standing, u32),
        ask: Ask,
    ) -> Option<Charge> {
        let place = self.all.take(user.0, user.1);
        let answered = match &place {
            Ok(_) => self.try_to(volumes, (socket, porter), user, ask),
            Err(_) => Err("too many answers have not been received".to_owned()),
        };
        if let Err(why) = answered {
            // One that does not listen is not waited for.
            let socket = Arc::clone(socket);
            porter.run_if_idle(move || {
                let _ = control::send(&*socket, &Answer::Refused(why).encode(), &[]);
            });
        }
        place.ok()
    }

    fn try_to<F: FileSystem + Send + 'static>(
        &self,
        volumes: &[Arc<Volume<F>>],
        (socket, porter): (&Arc<OwnedFd>, &Porter),
        (standing, uid): (Standing, u32),
        ask: Ask,
    ) -> Result<(), String> {
        let (Ask::Memory(token) | Ask::Sync(token)) = ask;
        let volume = volumes.iter().find(|volume| volume.has_mapped(token));
        let volume = volume.ok_or("it is not mapped any more")?;
        let say = |error: &dyn std::fmt::Display| error.to_string();
        if let Ask::Memory(_) = ask {
            let (memory, writable) =
                machine::mapped_memory(volume, token).map_err(|error| say(&error))?;
            let mode = if writable { Mode::Write } else { Mode::Read };
            let (granted, socket) = (Answer::Granted(mode).encode(), Arc::clone(socket));
            porter.run(move || {
                if let Err(error) = control::send(&*socket, &granted, &[memory.as_fd()]) {
                    let refused = Answer::Refused(error.to_string());
                    let _ = control::send(&*socket, &refused.encode(), &[]);
                }
            });
            return Ok(());
        }
        // It waits for the device, as others must not.
        let turn = self.syncs.take(standing, uid);
        let turn = turn.map_err(|_| "too many wait already".to_owned())?;
        let (volume, socket) = (Arc::clone(volume), Arc::clone(socket));
        let sync = move || {
            let answer = match volume.sync_mapped(token, uid, now()) {
                Ok(()) => Answer::Granted(Mode::Write),
                Err(error) => Answer::Refused(error.to_string()),
            };
            drop(volume);
            let _ = control::send(&*socket, &answer.encode(), &[]);
            drop(turn);
        };
        let name = std::thread::Builder::new().name("msync".to_owned());
        name.spawn(sync).map(drop).map_err(|error| say(&error))
    }
}
