//! The licences of code that is linked into the program: their texts go with every copy of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::steps::{Failure, cargo};

/// The package whose code is in the program.
const PROGRAM: &str = "atoll-cli";

/// The licences that no package of cargo's brings.
const BESIDE: &str = "\
The program also has parts of the standard library of Rust (Apache-2.0 OR MIT, The Rust Project
contributors). Where it is static, it has parts of the C library musl (MIT, Copyright 2005-2020 Rich
Felker, et al.) and of LLVM's libunwind (Apache-2.0 WITH LLVM-exception) as well.
";

/// A text that names every package from elsewhere, with the texts of its licences.
pub fn of_others(target: &str) -> Result<String, Failure> {
    let sources = sources()?;
    let tree = cargo(&["tree", "--locked", "--edges", "normal,no-proc-macro"])
        .args(["--prefix", "none", "--format", "{p}\t{l}", "--target", target])
        .args(["--package", PROGRAM]);
    let tree = tree.output()?;
    let used: BTreeSet<_> = tree.lines().filter_map(package).collect();
    let mut list = format!("{BESIDE}\nOf other packages it has code of:\n\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, version, licence) in used {
        list.push_str(&format!("{name} {version}: {licence}\n"));
        let Some(folder) = sources.get(&(name.clone(), version.clone())) else {
            return Err(Failure(format!("cargo does not say where {name} {version} lies")));
        };
        for text in texts_in(folder) {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    for (text, names) in texts {
        list.push_str(&format!("\n----- {} -----\n\n{}\n", names.join(", "), text.trim_end()));
    }
    Ok(list)
}

/// Name, version and licence of a package from elsewhere, by a line of `cargo tree`.
fn package(line: &str) -> Option<(String, String, String)> {
    let (package, licence) = line.split_once('\t')?;
    let mut words = package.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    // The place of a package of our own stands behind its version.
    if words.next().is_some_and(|word| word.starts_with("(/")) {
        return None;
    }
    // A star says that the line has been there before.
    let licence = licence.trim_end_matches(" (*)");
    Some((name.into(), version.into(), licence.into()))
}

/// Where the sources of each package lie, by name and version.
fn sources() -> Result<BTreeMap<(String, String), PathBuf>, Failure> {
    let text = cargo(&["metadata", "--format-version", "1", "--locked"]).output()?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|error| Failure(format!("cargo metadata: {error}")))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    Ok(packages
        .filter_map(|package| {
            let field = |name: &str| package[name].as_str().map(str::to_owned);
            let folder = PathBuf::from(field("manifest_path")?).parent()?.to_owned();
            Some(((field("name")?, field("version")?), folder))
        })
        .collect())
}

/// The texts of licences in a package, in the order of the files' names.
fn texts_in(folder: &Path) -> Vec<String> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let is_licence = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase());
        let begins = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"];
        name.is_some_and(|name| begins.iter().any(|begin| name.starts_with(begin)))
    };
    paths
        .iter()
        .filter(|path| is_licence(path))
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_our_own_are_not_those_of_others() {
        let found = |line| package(line).map(|(name, version, licence)| [name, version, licence]);
        let expected = ["libc", "0.2.1", "MIT OR Apache-2.0"].map(String::from);
        assert_eq!(found("libc v0.2.1\tMIT OR Apache-2.0").unwrap(), expected);
        assert_eq!(found("libc v0.2.1\tMIT OR Apache-2.0 (*)").unwrap(), expected);
        assert_eq!(found("atoll-fs v0.1.0 (/src/crates/fs)\tMIT"), None);
        assert_eq!(found(""), None);
    }
}
