//! Files that need each other: a reader can begin with neither, and a wall between them carries
//! nothing.
//!
//! A file needs what its paths name, by `crate`, `super` or `self`; its tests do not count, nor
//! does the root, which names all.

use std::collections::{BTreeMap, BTreeSet};

use super::Problem;
use super::tree::{Tree, code};

/// The crates in which no two files may need each other.
const FREE: [&str; 9] = [
    "crates/block",
    "crates/host",
    "crates/cli",
    "crates/transport",
    "crates/vfs",
    "crates/server",
    "crates/posix",
    "crates/libatoll",
    "xtask",
];

/// The names that the server may not use: it has no clock, thread or system call of its own.
const NO_MACHINE: [&str; 10] = [
    "std::thread",
    "std::net",
    "std::fs",
    "std::process",
    "std::os",
    "Instant",
    "SystemTime",
    "Condvar",
    "rustix::",
    "libc::",
];

type Needs = BTreeMap<String, BTreeSet<String>>;

/// Checks the crates of `tree`.
pub fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for folder in FREE {
        let source = format!("{folder}/src/");
        let files: BTreeMap<String, &str> = tree
            .with_suffix(".rs")
            .filter_map(|(path, text)| Some((module(path.strip_prefix(&source)?)?, text)))
            .collect();
        let needs = needs(&files);
        for circle in circles(&needs) {
            let message = format!("need each other: {}", circle.join(", "));
            problems.push(Problem::new(&format!("{folder}/src"), 0, message));
        }
    }
    for (path, text) in tree.with_suffix(".rs") {
        if path.starts_with("crates/server/src/") {
            for (at, line) in code(text).lines().enumerate() {
                if let Some(name) = NO_MACHINE.iter().find(|name| line.contains(*name)) {
                    let message = format!("{name}: that is the host's (host.rs)");
                    problems.push(Problem::new(path, at + 1, message));
                }
            }
        }
    }
    problems
}

/// The module of a file, by its path below `src`; none for the root.
fn module(path: &str) -> Option<String> {
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    (!matches!(path, "lib" | "main")).then(|| path.replace('/', "::"))
}

fn needs(files: &BTreeMap<String, &str>) -> Needs {
    let need = |(name, text): (&String, &&str)| {
        let mut needed = BTreeSet::new();
        for path in paths(&code(text)) {
            if let Some(other) = resolve(files, name, &path).filter(|other| other != name) {
                needed.insert(other);
            }
        }
        (name.clone(), needed)
    };
    files.iter().map(need).collect()
}

/// The file that `path`, as it stands in `name`, is about.
fn resolve(files: &BTreeMap<String, &str>, name: &str, path: &str) -> Option<String> {
    let mut at: Vec<&str> = Vec::new();
    let mut parts = path.split("::").peekable();
    if parts.peek() == Some(&"crate") {
        parts.next();
    } else {
        at.extend(name.split("::"));
        while let Some(part) = parts.next_if(|part| matches!(*part, "self" | "super")) {
            if part == "super" {
                at.pop();
            }
        }
    }
    let mut found = None;
    for part in parts {
        at.push(part);
        let module = at.join("::");
        if files.contains_key(&module) {
            found = Some(module);
        }
    }
    found
}

/// All paths in `code`, those in the braces of `use` one by one.
fn paths(code: &str) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    for (at, _) in code.match_indices("use ") {
        if let Some(end) = code[at..].find(';') {
            expand("", &code[at + 4..at + end], &mut paths);
        }
    }
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    for word in code.split(|c| !is_path(c)) {
        if ["crate::", "super::", "self::"].iter().any(|root| word.starts_with(root)) {
            paths.insert(word.trim_end_matches(':').to_owned());
        }
    }
    paths
}

fn expand(prefix: &str, tree: &str, paths: &mut BTreeSet<String>) {
    let tree = tree.trim();
    let Some((front, inner)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        paths.insert(format!("{prefix}{}", path.trim_end_matches("::self")));
        return;
    };
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                expand(&format!("{prefix}{front}"), &inner[from..at], paths);
                return;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                expand(&format!("{prefix}{front}"), &inner[from..at], paths);
                from = at + 1;
            }
            _ => {}
        }
    }
}

/// The sets of files of which each needs, by whatever way, all others of the set.
fn circles(needs: &Needs) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = needs
        .keys()
        .map(|from| {
            let mut seen = BTreeSet::new();
            let mut left: Vec<&String> = needs[from].iter().collect();
            while let Some(next) = left.pop() {
                if seen.insert(next) {
                    left.extend(needs.get(next).into_iter().flatten());
                }
            }
            (from, seen)
        })
        .collect();
    let mut circles = BTreeSet::new();
    for (from, seen) in &reached {
        let is_back = |other: &&&String| reached.get(**other).is_some_and(|s| s.contains(from));
        let circle: Vec<String> = seen.iter().filter(is_back).map(|name| (*name).clone()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), *text)).collect();
        circles(&needs(&files))
    }

    #[test]
    fn files_that_need_each_other() {
        let line = [("a", "use crate::b::B;"), ("b", "use crate::c::{d, e::F};"), ("c::e", "")];
        assert!(found(&line).is_empty());
        let one = [
            ("a", "use crate::b::{B,\n    C};"),
            ("b", "use crate::{c::d::D, x};"),
            ("c::d", "fn f() { super::super::a::f() }"),
            ("e", "use crate::a::A; // crate::e"),
        ];
        assert_eq!(found(&one), [["a", "b", "c::d"].map(str::to_owned).to_vec()]);
    }

    #[test]
    fn tests_and_comments_do_not_count() {
        let tests = "#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
        assert!(found(&[("a", "use crate::b::B;"), ("b", tests)]).is_empty());
        assert!(found(&[("a", "use crate::b::B;"), ("b", "// see crate::a::A\n")]).is_empty());
    }

    #[test]
    fn modules() {
        assert_eq!(module("a/b.rs").as_deref(), Some("a::b"));
        assert_eq!(module("a/mod.rs").as_deref(), Some("a"));
        assert_eq!(module("lib.rs"), None);
    }
}
