//! Words that no file may have: marks of unfinished work, the machine it was written on, where it
//! was discussed.

use super::Problem;
use super::tree::Tree;

/// Checks every text file.
pub fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in tree.files() {
        if path == "Cargo.lock" {
            lock_file(path, text, &mut problems);
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            if let Some(message) = line_problem(line) {
                problems.push(Problem::new(path, index + 1, message));
            }
        }
    }
    problems
}

fn line_problem(line: &str) -> Option<&'static str> {
    // In two pieces, so that this file keeps the rules too.
    let unfinished = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|halves| halves.concat());
    if words(line).any(|word| unfinished.iter().any(|u| u == word)) {
        return Some("unfinished: finish it, or say in the documents what is missing");
    }
    if ["work", "home", "root", "Users"].iter().any(|top| is_path_below(line, top)) {
        return Some("a path of one machine: name the place relative to the repository");
    }
    if names_registry(line) {
        return Some("the address of a package registry: name the package only");
    }
    if is_reference(line) {
        return Some("a reference to where it was discussed: give the reason itself");
    }
    None
}

/// The words of `line`.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Whether `line` names an absolute path below the top folder `top`.
fn is_path_below(line: &str, top: &str) -> bool {
    let path = format!("/{top}/");
    line.match_indices(&path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let is_name = |c: &char| c.is_alphanumeric() || "._-".contains(*c);
        let name = line[at + path.len()..].chars().take_while(is_name).count();
        // A longer path that merely has such a component, a variable or a URL before it is fine,
        // and so is an example, whose name is one letter.
        !before.is_some_and(|c| is_name(&c) || "})/".contains(c)) && name > 1
    })
}

fn names_registry(line: &str) -> bool {
    let hosts = [["crates", ".io"], ["pypi", ".org"], ["npmjs", ".com"], ["rsproxy", ".cn"]];
    let names_host = hosts.iter().any(|host| line.contains(&host.concat()));
    let is_address = ["://", "sparse+", "registry+"].iter().any(|mark| line.contains(mark));
    names_host && is_address
}

/// Whether `line` cites a numbered thread of a tracker.
fn is_reference(line: &str) -> bool {
    let line = line.to_lowercase();
    let words: Vec<&str> = line.split_whitespace().collect();
    words.windows(2).any(|pair| {
        let noun = pair[0].trim_start_matches(|c: char| !c.is_alphanumeric());
        let number = pair[1].trim_start_matches('#');
        ["issue", "issues", "session", "pr", "ticket", "bug"].contains(&noun)
            && number.starts_with(|c: char| c.is_ascii_digit())
            && number.trim_end_matches(|c: char| !c.is_alphanumeric()).parse::<u32>().is_ok()
    }) || words.iter().any(|word| {
        let word = word.trim_matches(|c: char| !c.is_alphanumeric() && c != '#');
        word.strip_prefix('#')
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    })
}

/// Every package of the lock file comes from the registry that all have, not from a mirror.
fn lock_file(path: &str, text: &str, problems: &mut Vec<Problem>) {
    let source =
        ["source = \"registry+https://github.com/rust-lang/crates", ".io-index\""].concat();
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("source = ") && line != source {
            problems.push(Problem::new(path, index + 1, "a package that is not from crates.io"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(pieces: &[&str]) -> bool {
        line_problem(&pieces.concat()).is_some()
    }

    #[test]
    fn unfinished() {
        assert!(broken(&["// TO", "DO: later"]));
        assert!(broken(&["FIX", "ME(someone)"]));
        assert!(!broken(&["a todo list"]));
    }

    #[test]
    fn machine_paths() {
        assert!(broken(&["see /ho", "me/me/file"]));
        assert!(broken(&["\"/ro", "ot/.cargo\""]));
        assert!(!broken(&["/ho", "me/u/file"]));
        assert!(!broken(&["/vol/ho", "me/xyz"]));
        assert!(!broken(&["$TMP/wo", "rk/xyz"]));
        assert!(!broken(&["target/wo", "rk/xyz"]));
    }

    #[test]
    fn registries() {
        assert!(broken(&["https://static.crates", ".io/x"]));
        assert!(!broken(&["a crate on crates", ".io"]));
    }

    #[test]
    fn references() {
        assert!(broken(&["as in iss", "ue 12"]));
        assert!(broken(&["(Iss", "ue #", "3)"]));
        assert!(broken(&["fixes #", "44."]));
        assert!(!broken(&["#[cfg(test)]"]));
        assert!(!broken(&["issue two flushes"]));
        assert!(!broken(&["#1f77b4"]));
    }

    #[test]
    fn mirrors() {
        let lock = |index: &str| {
            let text = format!("source = \"registry+https://{index}\"\n");
            check(&Tree::of(&[("Cargo.lock", &text)])).len()
        };
        assert_eq!(lock(&["github.com/rust-lang/crates", ".io-index"].concat()), 0);
        assert_eq!(lock("mirror.example/index"), 1);
    }

    #[test]
    fn lines_are_counted_from_one() {
        let text = ["fine\n// TO", "DO\n"].concat();
        let problems = check(&Tree::of(&[("a.md", &text)]));
        assert_eq!((problems[0].file.as_str(), problems[0].line), ("a.md", 2));
        assert_eq!(check(&Tree::of(&[("a.c", &text), ("a.h", &text)])).len(), 2);
    }
}
