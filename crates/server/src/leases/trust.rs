//! Trust that is withdrawn from users whose mounts do not forget.

use std::collections::HashMap;
use std::time::Duration;

/// How long trust in a user is withdrawn at first. Each time it is twice as long.
pub(crate) const WITHDRAWN: Duration = Duration::from_secs(600);
/// So many times, at most.
const DOUBLINGS: u32 = 7;

#[derive(Debug)]
struct Withdrawn {
    times: u32,
    until: Duration,
    /// From then on nothing is held against the user.
    forgotten: Duration,
}

/// The users whose mounts have lied, by the uptime of the host. A user who mounts again, or comes
/// through another connection, is the same user.
#[derive(Debug, Default)]
pub(crate) struct Trust(HashMap<u32, Withdrawn>);

impl Trust {
    /// Whether trust in the user is withdrawn at `now`.
    pub fn is_withdrawn(&self, uid: u32, now: Duration) -> bool {
        self.0.get(&uid).is_some_and(|withdrawn| now < withdrawn.until)
    }

    /// Withdraws it.
    pub fn withdraw(&mut self, uid: u32, now: Duration) {
        self.0.retain(|_, withdrawn| now < withdrawn.forgotten);
        let nothing = Withdrawn { times: 0, until: now, forgotten: now };
        let withdrawn = self.0.entry(uid).or_insert(nothing);
        if now < withdrawn.until {
            // Mounts from before: it is one lie.
            return;
        }
        let time = WITHDRAWN * (1 << withdrawn.times.min(DOUBLINGS));
        withdrawn.times += 1;
        withdrawn.until = now + time;
        withdrawn.forgotten = now + 4 * time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn each_lie_costs_twice_as_much() {
        let mut trust = Trust::default();
        let mut now = S;
        assert!(!trust.is_withdrawn(7, now));
        for times in 0..10 {
            trust.withdraw(7, now);
            let time = 600 * S * (1 << times.min(7));
            // More of the same does not make it longer.
            trust.withdraw(7, now + time - S);
            assert!(trust.is_withdrawn(7, now + time - S) && !trust.is_withdrawn(8, now));
            assert!(!trust.is_withdrawn(7, now + time));
            now += time;
        }
        // In the end it is forgotten.
        now += 4 * 600 * S * 128;
        trust.withdraw(8, now);
        assert_eq!(trust.0.len(), 1);
        trust.withdraw(7, now);
        assert!(!trust.is_withdrawn(7, now + 600 * S));
    }
}
