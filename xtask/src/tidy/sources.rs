//! The rules for every source file.

use super::Problem;
use super::tree::Tree;

/// A file holds one idea and fits a sitting.
const LINES_MAX: usize = 800;

/// A line of C, and a comment of Rust, is as long as rustfmt makes a line of Rust.
const COLUMNS_MAX: usize = 100;

/// Crates that run anywhere: no host, no unsafe code at all.
const NO_STD: [&str; 4] = ["crates/block", "crates/vfs", "crates/fs", "crates/posix"];

/// Checks the sources of `tree`.
pub fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for folder in NO_STD {
        let root = format!("{folder}/src/lib.rs");
        let text = tree.get(&root).unwrap_or_default();
        for attribute in ["#![no_std]", "#![forbid(unsafe_code)]"] {
            if !text.lines().any(|line| line == attribute) {
                problems.push(Problem::new(&root, 0, format!("must say {attribute}")));
            }
        }
    }
    for (path, text) in tree.with_suffix(".rs") {
        source(path, text, &mut problems);
    }
    for (path, text) in [".c", ".h"].into_iter().flat_map(|suffix| tree.with_suffix(suffix)) {
        c_source(path, text, &mut problems);
    }
    problems
}

/// The rules for every language.
fn common(path: &str, text: &str, problems: &mut Vec<Problem>) {
    let lines = text.lines().count();
    if lines > LINES_MAX {
        let message = format!("{lines} lines, at most {LINES_MAX}: split it by ideas");
        problems.push(Problem::new(path, 0, message));
    }
    let file = path.rsplit('/').next().unwrap_or(path);
    let name = file.split('.').next().unwrap_or(file);
    if !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
        problems.push(Problem::new(path, 0, "file names are snake_case"));
    }
}

fn c_source(path: &str, text: &str, problems: &mut Vec<Problem>) {
    common(path, text, problems);
    if !["/* ", "// "].iter().any(|comment| text.starts_with(comment)) {
        problems.push(Problem::new(
            path,
            1,
            "must begin with a comment that says what the file is",
        ));
    }
    columns(path, text, |_| true, problems);
}

/// The lines `of` a file that are too long.
fn columns(path: &str, text: &str, of: impl Fn(&str) -> bool, problems: &mut Vec<Problem>) {
    for (index, line) in text.lines().enumerate().filter(|(_, line)| of(line)) {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            let message = format!("{columns} columns, at most {COLUMNS_MAX}");
            problems.push(Problem::new(path, index + 1, message));
        }
    }
}

fn source(path: &str, text: &str, problems: &mut Vec<Problem>) {
    common(path, text, problems);
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    columns(path, text, is_comment, problems);
    if !text.starts_with("//!") && !path.ends_with("/tests.rs") {
        problems.push(Problem::new(path, 1, "must begin with `//!` and what the file is"));
    }
    // Roots of std crates say where unsafe code is; the modules that have it allow it by name.
    let is_root = matches!(path.rsplit('/').next(), Some("lib.rs" | "main.rs"))
        && path.split('/').rev().nth(1) == Some("src");
    let denied = ["#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"];
    if is_root && !text.lines().any(|line| denied.contains(&line)) {
        let message =
            "must say #![deny(unsafe_code)], the modules that need it #![allow(unsafe_code)]";
        problems.push(Problem::new(path, 0, message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "//! A.\n#![no_std]\n#![forbid(unsafe_code)]\n";

    /// The problems of a good tree with `path` replaced or added.
    fn with(path: &str, text: &str) -> Vec<Problem> {
        let mut files: Vec<(String, &str)> =
            NO_STD.iter().map(|folder| (format!("{folder}/src/lib.rs"), ROOT)).collect();
        files.retain(|(name, _)| name != path);
        files.push((path.into(), text));
        let files: Vec<_> = files.iter().map(|(name, text)| (name.as_str(), *text)).collect();
        check(&Tree::of(&files))
    }

    #[test]
    fn good() {
        assert_eq!(with("crates/fs/src/tree.rs", "//! The tree.\n"), []);
        assert_eq!(with("crates/host/src/lib.rs", "//! A.\n#![deny(unsafe_code)]\n"), []);
    }

    #[test]
    fn unsafe_code() {
        assert_eq!(with("crates/fs/src/lib.rs", "//! A.\n#![no_std]\n").len(), 2);
        assert_eq!(with("crates/fs/src/lib.rs", "//! A.\n#![forbid(unsafe_code)]\n").len(), 1);
        assert_eq!(with("crates/host/src/lib.rs", "//! A.\n").len(), 1);
        // The attribute in a comment is none.
        assert_eq!(with("crates/host/src/lib.rs", "//! #![deny(unsafe_code)]\n").len(), 1);
    }

    #[test]
    fn one_idea() {
        let longest = "//! A.\n".repeat(LINES_MAX);
        assert_eq!(with("crates/fs/src/a.rs", &longest), []);
        assert_eq!(with("crates/fs/src/a.rs", &(longest + "\n")).len(), 1);
        assert_eq!(with("crates/fs/src/a.rs", "fn f() {}\n").len(), 1);
        assert_eq!(with("crates/fs/src/BTree.rs", "//! A.\n").len(), 1);
    }

    #[test]
    fn c_keeps_the_same_rules() {
        let longest = format!("/* A. */\n{}", "x\n".repeat(LINES_MAX - 1));
        assert_eq!(with("crates/a/c/a.c", &longest), []);
        assert_eq!(with("crates/a/c/a.h", &(longest + "x\n")).len(), 1);
        assert_eq!(with("crates/a/c/a.h", "#pragma once\n").len(), 1);
        assert_eq!(with("crates/a/c/aB.c", "// A.\n").len(), 1);
        let widest = format!("/* A. */\n{}", "ü".repeat(COLUMNS_MAX));
        assert_eq!(with("crates/a/c/a.c", &widest), []);
        assert_eq!(with("crates/a/c/a.c", &(widest + "x"))[0].line, 2);
    }

    #[test]
    fn wide_comments() {
        let widest = format!("//! {}\n", "ü".repeat(COLUMNS_MAX - 4));
        assert_eq!(with("crates/host/src/a.rs", &widest), []);
        let wider = format!("//! A.\n// {}\n", "ü".repeat(COLUMNS_MAX - 2));
        assert_eq!(with("crates/host/src/a.rs", &wider)[0].line, 2);
    }
}
