//! The rules of who may use which volume, and how: the first rule that fits a client decides.
//!
//! A rule is a line of text: `WHO=ACCESS[,volume=NAME][,path=DIRECTORY][,socket=PATH]`.
//!
//! | part | is |
//! |---|---|
//! | WHO | `uid:NUMBER`, `gid:NUMBER` (one of its groups), `user:NAME`, `group:NAME`, or `all` |
//! | ACCESS | `deny`, `ro` or `rw` |
//! | `volume=` | the volume that the rule is about; without it all of them |
//! | `path=` | the directory of the volume that the client gets as its root; else the volume's |
//! | `socket=` | the socket by which the client came; without it any |
//! | `quota=`, `inodes=` | the most that all together may have below the directory |
//!
//! Behind the last rule stand two more that are never written: the superuser and the server's own
//! user may do everything, and nobody else anything. [`Rules::without_superuser`] leaves the
//! superuser's out.
//!
//! A peer for whose user or group the server's user namespace has no number may do nothing, and is
//! nobody that a rule names.

mod limit;
mod rule;

pub use super::control::Mode;
use atoll_server::Credentials;
use atoll_server::rights::accounts::Shares;
use atoll_server::rights::rates::Rates;
pub use limit::Limit;
pub use rule::{Rule, RuleError, RuleQuota};

use crate::unmapped::Unmapped;

/// The rights that the rules give one client of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The most that it may do.
    pub mode: Mode,
    /// Its root, as a directory of the volume from the root.
    pub path: String,
    /// The most that its user may ask for in a second.
    pub rates: Rates,
}

/// All rules of a server.
#[derive(Clone, Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    limits: Vec<Limit>,
    own: u32,
    /// Whether the superuser may do what no rule gives.
    superuser: bool,
    unmapped: Unmapped,
}

impl Rules {
    /// `rules`, the first first, of a server that runs as the user `own`.
    pub fn new(rules: Vec<Rule>, own: u32) -> Rules {
        Rules { rules, limits: Vec::new(), own, superuser: true, unmapped: Unmapped::read() }
    }

    /// These, where the superuser may do only what a rule gives, also of a server that is his own.
    pub fn without_superuser(self) -> Rules {
        Rules { superuser: false, ..self }
    }

    /// These, with `limits` of what users may take of the server: of each resource the first that
    /// fits and names it counts.
    pub fn with_limits(self, limits: Vec<Limit>) -> Rules {
        Rules { limits, ..self }
    }

    /// The shares of `peer` in the server, over all of its connections: as limits say, else as
    /// `usual`. `None` is as much as there is, for the superuser and the server's own user if no
    /// limit fits them.
    pub fn limits(&self, peer: &Credentials, usual: Shares) -> Option<Shares> {
        let fitting = self.limits.iter().filter(|limit| limit.fits(peer));
        match (self.is_trusted(peer), fitting.clone().next()) {
            (true, None) => None,
            (true, Some(_)) => Some(limit::shares(fitting, Shares::UNLIMITED)),
            (false, _) => Some(limit::shares(fitting, usual)),
        }
    }

    /// Whether a limit that was set is about `peer`, by which its requests are to be told apart.
    pub(super) fn is_limited(&self, peer: &Credentials) -> bool {
        self.limits.iter().any(|limit| limit.fits(peer))
    }

    /// Whether `peer` has any limit: one that has none takes as much as it likes.
    pub fn bind(&self, peer: &Credentials) -> bool {
        self.limits(peer, Shares::UNLIMITED).is_some()
    }

    /// The most that `peer` may ask for in a second: without a limit as much as there is.
    fn rates(&self, peer: &Credentials) -> Rates {
        limit::rates(self.limits.iter().filter(|limit| limit.fits(peer)))
    }

    /// The shares of all users together: as limits of `together` say, else as `usual`.
    pub fn total(&self, usual: Shares) -> Shares {
        limit::shares(self.limits.iter().filter(|limit| limit.is_of_all()), usual)
    }

    /// Whether anybody could get in besides the server's own user and the superuser, so that the
    /// socket must be open to all and the rules decide.
    pub fn admit_others(&self) -> bool {
        self.rules.iter().any(|rule| rule.mode.is_some())
    }

    /// Whether `peer` is the superuser or the server's own user, to whom everything is given that
    /// no rule is about.
    pub fn is_trusted(&self, peer: &Credentials) -> bool {
        self.knows(peer) && if peer.uid == 0 { self.superuser } else { peer.uid == self.own }
    }

    /// Whether the numbers of `peer`'s user and group are theirs alone.
    fn knows(&self, peer: &Credentials) -> bool {
        !self.unmapped.has_user(peer.uid) && !self.unmapped.has_group(peer.gid)
    }

    /// `peer` without the supplementary groups whose number may be any group's.
    pub(super) fn identify(&self, mut peer: Credentials) -> Credentials {
        if peer.groups.iter().any(|&gid| self.unmapped.has_group(gid)) {
            let groups = peer.groups.iter().copied();
            peer.groups = groups.filter(|&gid| !self.unmapped.has_group(gid)).collect();
        }
        peer
    }

    /// Why `peer` may use nothing, in words for it.
    pub(super) fn refusal(&self, peer: &Credentials) -> String {
        let Credentials { uid, gid, .. } = peer;
        if !self.knows(peer) {
            return format!(
                "the server's user namespace has no number for your user or group, only {uid}:{gid} \
                 for all such; run the server where it has"
            );
        }
        format!(
            "user {uid} may not use it; whoever runs the server can allow it with --allow uid:{uid}=rw"
        )
    }

    /// The grant of `peer` for the volume `name`; `None` is nothing.
    pub fn grant(&self, peer: &Credentials, name: &str) -> Option<Grant> {
        if !self.knows(peer) {
            return None;
        }
        let fits = |rule: &&Rule| {
            rule.volume.as_deref().is_none_or(|volume| volume == name) && rule.who.fits(peer)
        };
        let rates = self.rates(peer);
        match self.rules.iter().find(fits) {
            Some(rule) => {
                let path = rule.path.clone();
                rule.mode.map(|mode| Grant { mode, path, rates })
            }
            None if self.is_trusted(peer) => {
                Some(Grant { mode: Mode::Write, path: "/".to_owned(), rates })
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { pid: 1, uid, gid, groups: groups.into() }
    }

    fn rules(texts: &[&str]) -> Rules {
        Rules::new(texts.iter().map(|text| text.parse().unwrap()).collect(), 500)
    }

    #[test]
    fn the_first_that_fits_decides() {
        let rules = rules(&[
            "uid:7=deny",
            "gid:100=ro,volume=a",
            "uid:8=rw,path=/home/8",
            "user:root=ro,volume=b",
        ]);
        let grant = |peer: &Credentials, name: &str| {
            rules.grant(peer, name).map(|grant| (grant.mode, grant.path))
        };
        let root = |mode| Some((mode, "/".to_owned()));
        assert_eq!(grant(&peer(7, 100, &[]), "a"), None);
        assert_eq!(grant(&peer(9, 100, &[]), "a"), root(Mode::Read));
        assert_eq!(grant(&peer(9, 1, &[5, 100]), "a"), root(Mode::Read));
        assert_eq!(grant(&peer(9, 100, &[]), "b"), None);
        assert_eq!(grant(&peer(8, 1, &[]), "b"), Some((Mode::Write, "/home/8".to_owned())));
        assert_eq!(grant(&peer(500, 1, &[]), "b"), root(Mode::Write));
        assert_eq!(grant(&peer(0, 0, &[]), "a"), root(Mode::Write));
        assert_eq!(grant(&peer(0, 0, &[]), "b"), root(Mode::Read));
        assert!(rules.admit_others());
    }

    #[test]
    fn without_rules_only_the_own_user_and_root() {
        let rules = rules(&[]);
        assert!(rules.grant(&peer(0, 0, &[]), "a").is_some());
        assert!(rules.grant(&peer(500, 9, &[]), "a").is_some());
        assert!(rules.grant(&peer(501, 500, &[500, 0]), "a").is_none());
        assert!(!rules.admit_others());
    }

    #[test]
    fn one_who_may_be_anybody_is_nobody() {
        let mut rules = rules(&["uid:65534=rw", "gid:65534=rw", "uid:7=ro", "gid:9=rw", "all=ro"]);
        let nobody = peer(65534, 9, &[]);
        rules.own = 65534;
        rules.unmapped = Unmapped::default();
        assert!(rules.is_trusted(&nobody), "where all have their number it is one like others");
        rules.unmapped = Unmapped::both(65534);
        assert!(!rules.is_trusted(&nobody));
        assert_eq!(rules.grant(&nobody, "a"), None);
        assert_eq!(rules.grant(&peer(7, 65534, &[]), "a"), None);
        assert!(rules.refusal(&nobody).contains("namespace"));
        let known = rules.identify(peer(7, 8, &[65534, 5]));
        assert_eq!(*known.groups, [5]);
        assert_eq!(rules.grant(&known, "a").unwrap().mode, Mode::Read);
        let root = peer(0, 0, &[]);
        assert!(rules.is_trusted(&root) && rules.grant(&root, "a").is_some());
    }

    #[test]
    fn the_superuser_can_be_one_like_others() {
        let strict = rules(&["uid:7=rw", "uid:0=ro,volume=a"]).without_superuser();
        let root = peer(0, 0, &[]);
        assert!(!strict.is_trusted(&root));
        assert_eq!(strict.grant(&root, "a").unwrap().mode, Mode::Read);
        assert_eq!(strict.grant(&root, "b"), None);
        assert!(strict.grant(&peer(500, 9, &[]), "b").is_some(), "the own user is still its own");
    }

    #[test]
    fn of_each_resource_the_first_limit_that_names_it_counts() {
        let size = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        let limits = [
            "uid:7,connections=3",
            "gid:100,connections=5,memory=1000",
            "all,open-files=9,memory=2000,operations=50/s",
            "together,memory=5000",
        ];
        let limits = limits.map(|text| Limit::parse(text, size).unwrap()).to_vec();
        let rules = rules(&[]).with_limits(limits);
        let usual = Shares { connections: 64, ..Shares::UNLIMITED };
        let of = |peer: &Credentials| rules.limits(peer, usual).unwrap();
        assert_eq!(of(&peer(7, 100, &[])), Shares { connections: 3, memory: 1000, open_files: 9 });
        assert_eq!(of(&peer(7, 1, &[])), Shares { connections: 3, memory: 2000, open_files: 9 });
        assert_eq!(of(&peer(8, 1, &[])), Shares { connections: 64, memory: 2000, open_files: 9 });
        // All are all.
        let root = Shares { connections: u64::MAX, memory: 2000, open_files: 9 };
        assert_eq!(of(&peer(0, 0, &[])), root);
        let rates = Rates { operations: Some(50), bytes: None };
        assert_eq!(rules.grant(&peer(500, 1, &[]), "a").unwrap().rates, rates);
        assert_eq!(rules.total(usual), Shares { memory: 5000, ..usual });
        let without = Rules::new(Vec::new(), 500);
        assert_eq!(without.limits(&peer(8, 1, &[]), usual), Some(usual));
        assert_eq!(without.limits(&peer(500, 1, &[]), usual), None);
    }
}
