//! Sessions whose state has been saved, to go on in another session, here or in another process.
//!
//! As long as the first is there both would use the same locks. So the state carries a secret, by
//! which its session is known here: what takes the state over here takes the locks from it, in one
//! step, and the first is told to end. Where nobody knows the secret the first was another
//! process's, or has ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::rights::identity::SessionId;

/// How many secrets are remembered of states that have been taken over.
const REMEMBERED: usize = 1024;

/// The secret of a saved state.
pub type Secret = [u8; 16];

/// A session that was saved.
#[derive(Clone, Debug)]
pub(crate) struct Departure {
    secret: Secret,
    pub session: SessionId,
    /// The user, who alone may take it over here.
    pub uid: u32,
    /// Set when it has gone on elsewhere.
    pub gone: Arc<AtomicBool>,
}

/// Those of a volume.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    saved: Vec<Departure>,
    /// Taken over, the oldest first.
    over: VecDeque<Secret>,
}

impl Departures {
    /// `session` of the user `uid` has been saved with `secret`; an earlier state of it is for
    /// nobody. Returns what says that it has gone on elsewhere.
    pub fn save(&mut self, secret: Secret, session: SessionId, uid: u32) -> Arc<AtomicBool> {
        self.end(session);
        let gone = Arc::<AtomicBool>::default();
        self.saved.push(Departure { secret, session, uid, gone: Arc::clone(&gone) });
        gone
    }

    /// `session` has ended.
    pub fn end(&mut self, session: SessionId) {
        self.saved.retain(|saved| saved.session != session);
    }

    /// The session that has been saved with `secret`, if it is still there.
    pub fn find(&self, secret: &Secret) -> Option<&Departure> {
        self.saved.iter().find(|saved| saved.secret == *secret)
    }

    /// Whether the state with `secret` has been taken over here.
    pub fn is_over(&self, secret: &Secret) -> bool {
        self.over.contains(secret)
    }

    /// The state with `secret` has been taken over.
    pub fn take_over(&mut self, secret: Secret) {
        self.saved.retain(|saved| saved.secret != secret);
        if self.over.len() >= REMEMBERED {
            self.over.pop_front();
        }
        self.over.push_back(secret);
    }
}
