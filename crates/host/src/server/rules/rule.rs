//! One rule of who may use a volume, as people write it.

use std::ffi::CString;
use std::fmt;
use std::path::{Path, PathBuf};

use atoll_server::Credentials;

use super::Mode;
use crate::process;

/// The clients that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Who {
    User(u32),
    Group(u32),
    All,
}

impl Who {
    /// Reads `uid:NUMBER`, `gid:NUMBER`, `user:NAME`, `group:NAME` or `all`. The error is in words.
    pub(super) fn parse(text: &str) -> Result<Who, String> {
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

    /// Whether `peer` is one of them.
    pub(super) fn fits(&self, peer: &Credentials) -> bool {
        match *self {
            Who::User(uid) => peer.uid == uid,
            Who::Group(gid) => peer.gid == gid || peer.groups.contains(&gid),
            Who::All => true,
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub(super) who: Who,
    /// `None` denies.
    pub(super) mode: Option<Mode>,
    pub(super) volume: Option<String>,
    /// Absolute, of plain components.
    pub(super) path: String,
    socket: Option<PathBuf>,
    quota: RuleQuota,
}

/// The most that everybody together may have below the directory of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleQuota {
    /// Bytes; `None` is no bound.
    pub bytes: Option<u64>,
    /// Inodes; `None` is no bound.
    pub inodes: Option<u64>,
}

impl Rule {
    /// The socket that the rule is about, if it is not about all.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The volume that the rule is about, if it is not about all.
    pub fn volume(&self) -> Option<&str> {
        self.volume.as_deref()
    }

    /// The quota of its directory, and the directory, if it gives one.
    pub fn quota(&self) -> Option<(&str, RuleQuota)> {
        (self.quota != RuleQuota::default()).then_some((&self.path, self.quota))
    }
}

/// The fault of a rule's text, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError(pub(super) String);

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
        let mut rule = Rule {
            who: Who::parse(who).map_err(wrong)?,
            mode,
            volume: None,
            path: "/".to_owned(),
            socket: None,
            quota: RuleQuota::default(),
        };
        for part in parts {
            match part.split_once('=') {
                Some(("volume", name)) if !name.is_empty() => rule.volume = Some(name.to_owned()),
                Some(("socket", path)) if !path.is_empty() => rule.socket = Some(path.into()),
                Some(("quota", size)) => {
                    let bytes = bytes(size);
                    rule.quota.bytes = Some(
                        bytes
                            .ok_or_else(|| wrong(format!("`{size}` is no size, as 64M or 10G")))?,
                    );
                }
                Some(("inodes", number)) => {
                    let inodes = number.parse();
                    rule.quota.inodes = Some(
                        inodes.map_err(|_| wrong(format!("`{number}` is no number of inodes")))?,
                    );
                }
                Some(("path", path)) if is_plain(path) => rule.path = path.to_owned(),
                Some(("path", path)) => {
                    return Err(wrong(format!(
                        "`{path}` is no directory from the root without . and .."
                    )));
                }
                _ => {
                    return Err(wrong(format!(
                        "`{part}` is none of volume=NAME, path=DIRECTORY, socket=PATH, quota=BYTES and \
                         inodes=NUMBER"
                    )));
                }
            }
        }
        Ok(rule)
    }
}

/// A number of bytes, with K, M, G or T for the powers of 1024.
fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.strip_suffix(['K', 'M', 'G', 'T']) {
        Some(number) => (number, 10 * (1 + "KMGT".find(&text[number.len()..])?)),
        None => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn is_plain(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(|rest| {
        rest.is_empty() || rest.split('/').all(|name| !matches!(name, "" | "." | ".."))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            "all=ro,socket=",
            "user:no-such-user=ro",
            "all=rw,quota=",
            "all=rw,quota=1X",
            "all=rw,quota=20000000T",
            "all=rw,inodes=1K",
        ] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_quota_is_of_bytes_and_inodes() {
        let rule: Rule = "uid:7=rw,path=/a,quota=10G,inodes=100".parse().unwrap();
        let quota = RuleQuota { bytes: Some(10 << 30), inodes: Some(100) };
        assert_eq!(rule.quota(), Some(("/a", quota)));
        assert_eq!("uid:7=rw,path=/a".parse::<Rule>().unwrap().quota(), None);
        let rule: Rule = "all=rw,quota=5".parse().unwrap();
        assert_eq!(rule.quota(), Some(("/", RuleQuota { bytes: Some(5), inodes: None })));
    }
}
