//! The rules of who may use which volume, and how: the first rule that fits a client decides.
//!
//! A rule is a line of text: `WHO=ACCESS[,volume=NAME][,path=DIRECTORY]`.
//!
//! | part | is |
//! |---|---|
//! | WHO | `uid:NUMBER`, `gid:NUMBER` (one of its groups), `user:NAME`, `group:NAME`, or `all` |
//! | ACCESS | `deny`, `ro` or `rw` |
//! | `volume=` | the volume that the rule is about; without it all of them |
//! | `path=` | the directory of the volume that the client gets as its root; else the volume's |
//!
//! Behind the last rule stand two more that are never written: the superuser and the server's own
//! user may do everything, and nobody else anything.

use std::ffi::CString;
use std::fmt;

pub use super::control::Mode;
use atoll_server::Credentials;

use crate::process;

/// The clients that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    User(u32),
    Group(u32),
    All,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    who: Who,
    /// `None` denies.
    mode: Option<Mode>,
    volume: Option<String>,
    /// Absolute, of plain components.
    path: String,
}

/// The fault of a rule's text, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError(String);

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RuleError {}

impl std::str::FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Rule, RuleError> {
        let wrong = |what: String| {
            RuleError(format!("{what}; a rule is WHO=ACCESS, for example uid:1000=rw or all=ro"))
        };
        let (who, rest) =
            text.split_once('=').ok_or_else(|| wrong(format!("the rule `{text}` has no `=`")))?;
        let mut parts = rest.split(',');
        let mode = match parts.next() {
            Some("deny") => None,
            Some("ro") => Some(Mode::Read),
            Some("rw") => Some(Mode::Write),
            other => {
                return Err(wrong(format!(
                    "`{}` is no access: deny, ro or rw",
                    other.unwrap_or_default()
                )));
            }
        };
        let mut rule =
            Rule { who: who_from(who).map_err(wrong)?, mode, volume: None, path: "/".to_owned() };
        for part in parts {
            match part.split_once('=') {
                Some(("volume", name)) if !name.is_empty() => rule.volume = Some(name.to_owned()),
                Some(("path", path)) if is_plain(path) => rule.path = path.to_owned(),
                Some(("path", path)) => {
                    return Err(wrong(format!(
                        "`{path}` is no directory from the root without . and .."
                    )));
                }
                _ => {
                    return Err(wrong(format!(
                        "`{part}` is neither volume=NAME nor path=DIRECTORY"
                    )));
                }
            }
        }
        Ok(rule)
    }
}

fn who_from(text: &str) -> Result<Who, String> {
    let number = |text: &str| {
        text.parse::<u32>().map_err(|_| format!("`{text}` is no number of a user or group"))
    };
    match text.split_once(':') {
        None if text == "all" => Ok(Who::All),
        Some(("uid", text)) => number(text).map(Who::User),
        Some(("gid", text)) => number(text).map(Who::Group),
        Some((kind @ ("user" | "group"), name)) => {
            let text = CString::new(name).unwrap_or_default();
            let found = match kind {
                "user" => process::user(&text).map(Who::User),
                _ => process::group(&text).map(Who::Group),
            };
            found.ok_or_else(|| format!("there is no {kind} {name}"))
        }
        _ => Err(format!("`{text}` is nobody: uid:N, gid:N, user:NAME, group:NAME or all")),
    }
}

fn is_plain(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        rest.is_empty() || rest.split('/').all(|name| !matches!(name, "" | "." | ".."))
    })
}

/// The rights that the rules give one client of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The most that it may do.
    pub mode: Mode,
    /// Its root, as a directory of the volume from the root.
    pub path: String,
    /// The volume is its own. Its one mount may act as whoever it says, permissions having been
    /// checked, and alone changes names and takes locks: its kernel may remember the names, and
    /// keeps the locks.
    pub owns: bool,
    /// Nobody changes the volume while it is served, this client included.
    pub unchanging: bool,
}

/// All rules of a server.
#[derive(Clone, Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    own: u32,
    private: Option<Mode>,
}

impl Rules {
    /// `rules`, the first first, of a server that runs as the user `own`.
    pub fn new(rules: Vec<Rule>, own: u32) -> Rules {
        Rules { rules, own, private: None }
    }

    /// Those of a server that the user `own` has for volumes of his own and programs that he
    /// starts. The kernel is to check permissions on its mounts, which in a user namespace only it
    /// can. With [`Mode::Read`] the volumes are open for looking only, and locked against all who
    /// would change them.
    pub fn private(own: u32, mode: Mode) -> Rules {
        Rules { rules: Vec::new(), own, private: Some(mode) }
    }

    /// Whether anybody could get in besides the server's own user and the superuser, so that the
    /// socket must be open to all and the rules decide.
    pub fn admit_others(&self) -> bool {
        self.rules.iter().any(|rule| rule.mode.is_some())
    }

    /// Whether `peer` is the superuser or the server's own user.
    pub fn is_trusted(&self, peer: &Credentials) -> bool {
        peer.uid == 0 || peer.uid == self.own
    }

    /// What `peer` may do with the volume `name`; `None` is nothing.
    pub fn grant(&self, peer: &Credentials, name: &str) -> Option<Grant> {
        let fits = |rule: &&Rule| {
            rule.volume.as_deref().is_none_or(|volume| volume == name)
                && match rule.who {
                    Who::User(uid) => peer.uid == uid,
                    Who::Group(gid) => peer.gid == gid || peer.groups.contains(&gid),
                    Who::All => true,
                }
        };
        match self.rules.iter().find(fits) {
            Some(rule) => {
                let path = rule.path.clone();
                rule.mode.map(|mode| Grant { mode, path, owns: false, unchanging: false })
            }
            None if self.is_trusted(peer) => Some(Grant {
                mode: self.private.unwrap_or(Mode::Write),
                path: "/".to_owned(),
                owns: self.private.is_some(),
                unchanging: self.private == Some(Mode::Read),
            }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { pid: 1, uid, gid, groups: groups.to_vec() }
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
    fn a_private_volume_is_its_owners() {
        for (mode, unchanging) in [(Mode::Read, true), (Mode::Write, false)] {
            let rules = Rules::private(500, mode);
            let path = "/".to_owned();
            let grant = Some(Grant { mode, path, owns: true, unchanging });
            assert_eq!(rules.grant(&peer(500, 9, &[]), "a"), grant);
            assert_eq!(rules.grant(&peer(501, 500, &[]), "a"), None);
        }
    }

    #[test]
    fn what_is_no_rule_is_said() {
        for text in [
            "",
            "=",
            "uid:1",
            "uid:x=ro",
            "uid=ro",
            "all=rx",
            "all=",
            "who=ro",
            "all=ro,path=a",
            "all=ro,path=/a/../b",
            "all=ro,path=/a/",
            "all=ro,volume=",
            "all=ro,x=y",
            "user:no-such-user=ro",
        ] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
    }
}
