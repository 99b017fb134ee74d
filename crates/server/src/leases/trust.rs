//! Trust that is withdrawn from users whose mounts do not forget, and from virtual machines that do
//! not.

use std::collections::HashMap;
use std::time::Duration;

/// How long trust in a user is withdrawn at first. Each time it is twice as long.
pub(crate) const WITHDRAWN: Duration = Duration::from_secs(600);
/// So many times, at most.
const DOUBLINGS: u32 = 7;

/// Whose kernel it is that may lose trust.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// A user's, whichever mount.
    User(u32),
    /// A virtual machine's, whoever runs it: nobody answers for what its kernel does.
    Machine(u64),
}

#[derive(Debug)]
struct Withdrawn {
    times: u32,
    until: Duration,
    /// From then on nothing is held against the party.
    forgotten: Duration,
}

/// The parties whose kernels have lied, by the uptime of the host. A user who mounts again, or
/// comes through another connection, is the same user; a machine that is started anew is the same
/// machine.
#[derive(Debug, Default)]
pub(crate) struct Trust(HashMap<Party, Withdrawn>);

impl Trust {
    /// Whether trust in the party is withdrawn at `now`.
    pub fn is_withdrawn(&self, party: Party, now: Duration) -> bool {
        self.0.get(&party).is_some_and(|withdrawn| now < withdrawn.until)
    }

    /// Withdraws it.
    pub fn withdraw(&mut self, party: Party, now: Duration) {
        self.0.retain(|_, withdrawn| now < withdrawn.forgotten);
        let nothing = Withdrawn { times: 0, until: now, forgotten: now };
        let withdrawn = self.0.entry(party).or_insert(nothing);
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
    const SEVEN: Party = Party::User(7);
    /// Another, with the same number.
    const EIGHT: Party = Party::Machine(7);

    #[test]
    fn each_lie_costs_twice_as_much() {
        let mut trust = Trust::default();
        let mut now = S;
        assert!(!trust.is_withdrawn(SEVEN, now));
        for times in 0..10 {
            trust.withdraw(SEVEN, now);
            let time = 600 * S * (1 << times.min(7));
            // More of the same does not make it longer.
            trust.withdraw(SEVEN, now + time - S);
            assert!(trust.is_withdrawn(SEVEN, now + time - S) && !trust.is_withdrawn(EIGHT, now));
            assert!(!trust.is_withdrawn(SEVEN, now + time));
            now += time;
        }
        // In the end it is forgotten.
        now += 4 * 600 * S * 128;
        trust.withdraw(EIGHT, now);
        assert_eq!(trust.0.len(), 1);
        trust.withdraw(SEVEN, now);
        assert!(!trust.is_withdrawn(SEVEN, now + 600 * S));
    }
}
