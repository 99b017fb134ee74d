//! Public functions that nothing calls: they go, or become private.
//!
//! A function is called where its name stands as a word in product code. So a name that two
//! functions share hides one of them, and no alarm is false.

use std::collections::BTreeMap;

use super::Problem;
use super::tree::{Tree, code};

/// The crates whose interface is the project's own. That of the others is for programs, or POSIX's.
const OWN: [&str; 5] =
    ["crates/transport/", "crates/block/", "crates/vfs/", "crates/server/", "crates/host/"];

/// Files that are there for tests: models, faults, what tests look into.
const FOR_TESTS: [&str; 6] =
    ["/model/", "/model.rs", "/fault/", "/fault.rs", "/inline.rs", "/conformance.rs"];

/// Checks the crates of `tree`.
pub fn check(tree: &Tree) -> Vec<Problem> {
    let product: Vec<(&str, String)> = tree
        .with_suffix(".rs")
        .filter(|(path, _)| !is_test(path))
        .map(|(path, text)| (path, code(text)))
        .collect();
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, text) in &product {
        for word in words(text) {
            *uses.entry(word).or_default() += 1;
        }
    }
    let mut problems = Vec::new();
    for (path, text) in &product {
        let own = OWN.iter().any(|folder| path.starts_with(folder)) && path.contains("/src/");
        if !own || FOR_TESTS.iter().any(|part| path.contains(part)) {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            if let Some(name) = declared(line).filter(|name| uses[name] == 1) {
                let message = format!("nothing calls `{name}`: it goes, or becomes private");
                problems.push(Problem::new(path, at + 1, message));
            }
        }
    }
    problems
}

/// Whether `path` is compiled for tests and examples only.
fn is_test(path: &str) -> bool {
    let tests = ["tests/", "sim/", "fuzz/"];
    tests.iter().any(|folder| path.starts_with(folder))
        || ["/tests/", "/examples/"].iter().any(|folder| path.contains(folder))
        || ["/tests.rs", "/testing.rs"].iter().any(|file| path.ends_with(file))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// The name of the public function that `line` begins.
fn declared(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub ")?;
    let (before, after) = rest.split_once("fn ")?;
    let is_kind = |word: &str| matches!(word, "const" | "unsafe" | "async");
    before.split_whitespace().all(is_kind).then(|| words(after).next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Problem> {
        check(&Tree::of(files))
    }

    #[test]
    fn functions_that_nothing_calls() {
        let host = "crates/host/src/a.rs";
        let text = "fn f() {}\n    pub const unsafe fn called() {}\n";
        assert_eq!(found(&[(host, text)])[0].line, 2);
        for caller in ["crates/cli/src/b.rs", "bench/src/b.rs", "crates/host/src/b.rs"] {
            assert_eq!(found(&[(host, text), (caller, "called()")]), []);
        }
    }

    #[test]
    fn tests_and_comments_call_nothing() {
        let host = ("crates/host/src/a.rs", "pub fn called() {}\n");
        let test = "#[cfg(test)]\nmod tests { called() }";
        let in_tests = ("crates/host/tests/b.rs", "called()");
        for other in
            [("crates/host/src/b.rs", test), in_tests, ("crates/cli/src/b.rs", "// called")]
        {
            assert_eq!(found(&[host, other]).len(), 1);
        }
    }

    #[test]
    fn only_public_functions_of_own_crates() {
        for text in ["fn f() {}\n", "pub(crate) fn f() {}\n", "pub struct F;\n", "/// pub fn f()\n"]
        {
            assert_eq!(found(&[("crates/host/src/a.rs", text)]), []);
        }
        for path in ["crates/libatoll/src/a.rs", "crates/vfs/src/model.rs", "crates/vfs/tests/a.rs"]
        {
            assert_eq!(found(&[(path, "pub fn f() {}\n")]), []);
        }
    }
}
