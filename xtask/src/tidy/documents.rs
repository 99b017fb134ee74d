//! Documents: links lead somewhere, licences are there, every dependency is explained.

use std::collections::BTreeSet;

use super::Problem;
use super::layers::Package;
use super::tree::Tree;

const LICENCES: [&str; 2] = ["LICENSE-APACHE", "LICENSE-MIT"];
const LICENCE: &str = "Apache-2.0 OR MIT";
const DEPENDENCIES: &str = "docs/DEPENDENCIES.md";

/// Checks the documents of `tree`, and that they agree with `packages`.
pub fn check(tree: &Tree, packages: &[Package]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in LICENCES {
        if tree.get(file).is_none_or(str::is_empty) {
            problems.push(Problem::new(file, 0, "the licence is missing"));
        }
    }
    for package in packages.iter().filter(|package| package.license != LICENCE) {
        let manifest = format!("{}/Cargo.toml", package.folder);
        problems.push(Problem::new(&manifest, 0, format!("the licence must be `{LICENCE}`")));
    }
    for (path, text) in tree.with_suffix(".md") {
        links(tree, path, text, &mut problems);
    }
    dependencies(tree, packages, &mut problems);
    problems
}

/// Every package from elsewhere has a line `- name: why`, and every such line a package.
fn dependencies(tree: &Tree, packages: &[Package], problems: &mut Vec<Problem>) {
    let text = tree.get(DEPENDENCIES).unwrap_or_default();
    let explained: BTreeSet<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("- ")?.split_once(": "))
        .filter(|(_, why)| !why.trim().is_empty())
        .map(|(name, _)| name.trim_matches('`'))
        .collect();
    let used: BTreeSet<&str> =
        packages.iter().flat_map(|package| &package.outside).map(String::as_str).collect();
    for name in used.difference(&explained) {
        problems.push(Problem::new(DEPENDENCIES, 0, format!("add a line `- {name}: why`")));
    }
    for name in explained.difference(&used) {
        problems.push(Problem::new(DEPENDENCIES, 0, format!("no package uses {name}")));
    }
}

/// Links of the Markdown document `path` to files lead to files, and those to headings to headings;
/// what it names as a file of the project is one.
fn links(tree: &Tree, path: &str, text: &str, problems: &mut Vec<Problem>) {
    for (line, name) in named(text) {
        if !tree.exists(name) {
            problems.push(Problem::new(path, line, format!("there is no {name}")));
        }
    }
    for (line, target) in targets(text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let file = if file.is_empty() { path.to_owned() } else { resolve(path, file) };
        if !tree.exists(&file) {
            problems.push(Problem::new(path, line, format!("the link to {target} leads nowhere")));
        } else if !anchor.is_empty()
            && file.ends_with(".md")
            && !headings(tree.get(&file).unwrap_or_default()).any(|heading| heading == anchor)
        {
            problems.push(Problem::new(path, line, format!("{file} has no heading #{anchor}")));
        }
    }
}

/// `target` seen from the folder of `path`.
fn resolve(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

/// The lines of a Markdown text outside code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        (!in_code && !line.starts_with("    ")).then_some((index + 1, line))
    })
}

/// The paths between back-ticks that lead into a folder of sources, with their lines.
fn named(text: &str) -> impl Iterator<Item = (usize, &str)> {
    const FOLDERS: [&str; 8] =
        ["bench/", "crates/", "docs/", "fuzz/", "sim/", "tests/", "unikernel/", "xtask/"];
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let is_path = move |name: &&str| {
        FOLDERS.iter().any(|folder| name.starts_with(folder)) && name.chars().all(plain)
    };
    let between = |(line, text): (usize, _)| {
        str::split(text, '`').skip(1).step_by(2).map(move |name| (line, name))
    };
    prose(text).flat_map(between).filter(move |(_, name)| is_path(name))
}

/// The targets of all inline links, with their lines.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        // Text between back-ticks is code; the rest keeps `](` even if a link's text is code.
        let text: String = line.split('`').step_by(2).collect();
        let mut rest = text.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, tail)) = after.split_once(')') else { break };
            found.push((number, target.split_whitespace().next().unwrap_or_default().to_owned()));
            rest = tail;
        }
    }
    found
}

/// The anchors of all headings, as forges make them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        line.trim_start_matches('#')
            .trim()
            .to_lowercase()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link_problems(files: &[(&str, &str)]) -> usize {
        let tree = Tree::of(files);
        let mut problems = Vec::new();
        for (path, text) in tree.with_suffix(".md") {
            links(&tree, path, text, &mut problems);
        }
        problems.len()
    }

    #[test]
    fn links_lead_somewhere() {
        let b = ("docs/B.md", "# On disk, twice\n");
        let good = "`docs/B.md` `docs/*.md` `B.md` [b](docs/B.md) [`b`](docs/B.md#on-disk-twice) \
                    [d](docs) [w](https://a.example/x)\n\
                    `[x](no)`\n```\n[x](no)\n```\n# A\n[a](#a)\n";
        assert_eq!(link_problems(&[("A.md", good), b]), 0);
        for bad in [
            "[c](docs/C.md)",
            "[b](docs/B.md#no)",
            "[`b`](B.md)",
            "[a](#b)",
            "[x](../B.md)",
            "`docs/C.md`",
        ] {
            assert_eq!(link_problems(&[("A.md", bad), b]), 1, "{bad}");
        }
        assert_eq!(link_problems(&[("docs/A.md", "[b](B.md) [r](../R.md)"), b, ("R.md", "")]), 0);
    }

    fn dependency_problems(lines: &str, used: &[&str]) -> usize {
        let outside = used.iter().map(|name| name.to_string()).collect();
        let package = Package { outside, ..Package::default() };
        let mut problems = Vec::new();
        let tree = Tree::of(&[(DEPENDENCIES, lines)]);
        dependencies(&tree, &[package], &mut problems);
        problems.len()
    }

    #[test]
    fn dependencies_are_explained() {
        assert_eq!(dependency_problems("- libc: system calls\n", &["libc"]), 0);
        assert_eq!(dependency_problems("", &["libc"]), 1);
        assert_eq!(dependency_problems("- libc: \n", &["libc"]), 1);
        assert_eq!(dependency_problems("- libc: x\n- old: y\n", &["libc"]), 1);
    }

    #[test]
    fn licences() {
        let tree = Tree::of(&[("LICENSE-MIT", "MIT"), ("LICENSE-APACHE", "Apache")]);
        let package = |license: &str| [Package { license: license.into(), ..Package::default() }];
        assert_eq!(check(&tree, &package(LICENCE)).len(), 0);
        assert_eq!(check(&tree, &package("GPL-3.0")).len(), 1);
        assert_eq!(check(&Tree::default(), &package(LICENCE)).len(), 2);
    }
}
