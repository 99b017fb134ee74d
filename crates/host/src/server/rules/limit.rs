//! One limit of what users may take of the server, as people write it.

use atoll_server::Credentials;
use atoll_server::rights::accounts::Shares;
use atoll_server::rights::rates::Rates;

use super::rule::{RuleError, Who};

/// A line of text: `WHO,RESOURCE=NUMBER[,RESOURCE=NUMBER...]`.
///
/// | part | is |
/// |---|---|
/// | WHO | as in a rule, for what each of these users may have; `together`: what all users may |
/// | `connections=` | connections |
/// | `memory=` | bytes of the server's memory |
/// | `open-files=` | open files and directories |
/// | `operations=` | requests in a second, of each user; `/s` may follow |
/// | `bytes=` | bytes of their data in a second, of each user; `/s` may follow |
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// `None` for all users together.
    who: Option<Who>,
    connections: Option<u64>,
    memory: Option<u64>,
    open_files: Option<u64>,
    rates: Rates,
}

impl Limit {
    /// Reads one; `size` reads sizes as people write them.
    ///
    /// # Errors
    /// The fault in it, in words.
    pub fn parse(
        text: &str,
        size: impl Fn(&str) -> Result<u64, String>,
    ) -> Result<Limit, RuleError> {
        let wrong = |what: String| {
            RuleError(format!(
                "{what}; a limit is WHO,RESOURCE=NUMBER, for example uid:1000,connections=8,memory=64M"
            ))
        };
        let mut parts = text.split(',');
        let who = match parts.next().unwrap_or_default() {
            "together" => None,
            who => Some(Who::parse(who).map_err(wrong)?),
        };
        let mut limit = Limit {
            who,
            connections: None,
            memory: None,
            open_files: None,
            rates: Rates::default(),
        };
        let mut any = false;
        for part in parts {
            let (resource, number) = part.split_once('=').unwrap_or((part, ""));
            let count = |number: &str| {
                let wrong = |_| wrong(format!("`{number}` is no number of {resource}"));
                number.parse::<u64>().map_err(wrong)
            };
            let in_a_second = number.strip_suffix("/s").unwrap_or(number);
            match resource {
                "connections" => limit.connections = Some(count(number)?),
                "memory" => limit.memory = Some(size(number).map_err(wrong)?),
                "open-files" => limit.open_files = Some(count(number)?),
                "operations" | "bytes" if limit.who.is_none() => {
                    return Err(wrong(format!("{resource} in a second are of each user")));
                }
                "operations" => limit.rates.operations = Some(count(in_a_second)?),
                "bytes" => limit.rates.bytes = Some(size(in_a_second).map_err(wrong)?),
                _ => {
                    return Err(wrong(format!(
                        "`{resource}` is none of connections, memory, open-files, operations and bytes"
                    )));
                }
            }
            any = true;
        }
        if any { Ok(limit) } else { Err(wrong(format!("the limit `{text}` limits nothing"))) }
    }

    /// Whether it is about what `peer` may have.
    pub(super) fn fits(&self, peer: &Credentials) -> bool {
        self.who.as_ref().is_some_and(|who| who.fits(peer))
    }

    /// Whether it is about what all users may have together.
    pub(super) fn is_of_all(&self) -> bool {
        self.who.is_none()
    }
}

/// The shares that `limits` leave, of each resource by the first that names it; else as in `usual`.
pub(super) fn shares<'l>(limits: impl Iterator<Item = &'l Limit> + Clone, usual: Shares) -> Shares {
    let first = |of: fn(&Limit) -> Option<u64>, usual| limits.clone().find_map(of).unwrap_or(usual);
    Shares {
        connections: first(|limit| limit.connections, usual.connections),
        memory: first(|limit| limit.memory, usual.memory),
        open_files: first(|limit| limit.open_files, usual.open_files),
    }
}

/// The rates that `limits` leave, each as the first says that names it.
pub(super) fn rates<'l>(limits: impl Iterator<Item = &'l Limit> + Clone) -> Rates {
    let first = |of: fn(&Rates) -> Option<u64>| limits.clone().find_map(|limit| of(&limit.rates));
    Rates { operations: first(|rates| rates.operations), bytes: first(|rates| rates.bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_limit_is_said() {
        let size = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        for text in [
            "",
            "all",
            "all,",
            "uid:x,memory=1",
            "all,memory=x",
            "all,connections=1K",
            "all,connections",
            "all,colour=1",
            "all=1",
            "all,operations=1K/s",
            "together,operations=1/s",
        ] {
            assert!(Limit::parse(text, size).is_err(), "{text}");
        }
        Limit::parse("together,connections=1,memory=2,open-files=3", size).unwrap();
        let limit = Limit::parse("uid:7,operations=100,bytes=9/s", size).unwrap();
        assert_eq!(limit.rates, Rates { operations: Some(100), bytes: Some(9) });
    }
}
