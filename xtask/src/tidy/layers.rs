//! Which crate may know which: the table of docs/ARCHITECTURE.md.

use serde_json::Value;

use super::Problem;
use crate::steps::{Failure, cargo};

/// The layers, by folder, and the folders that each may know. What is not in this list is a program
/// or a test, knows any layer and is known by none.
const LAYERS: [(&str, &[&str]); 10] = [
    ("crates/transport", &[]),
    ("crates/block", &["crates/transport"]),
    ("crates/vfs", &["crates/transport"]),
    ("crates/preload", &["crates/transport", "crates/vfs"]),
    ("crates/preload-backend", &["crates/transport", "crates/vfs", "crates/host"]),
    ("crates/fs", &["crates/block", "crates/vfs"]),
    ("crates/posix", &["crates/vfs"]),
    ("crates/server", &["crates/transport", "crates/vfs", "crates/posix"]),
    (
        "crates/host",
        &["crates/transport", "crates/block", "crates/vfs", "crates/posix", "crates/server"],
    ),
    (
        "crates/libatoll",
        &[
            "crates/transport",
            "crates/block",
            "crates/vfs",
            "crates/fs",
            "crates/posix",
            "crates/host",
        ],
    ),
];

/// What may know any layer. Programs among themselves: only measurements, tests and fuzz targets may
/// drive one another's libraries.
const PROGRAMS: [&str; 6] = ["crates/cli", "tests", "bench", "fuzz", "sim", "xtask"];

/// A package of the workspace, as cargo describes it.
#[derive(Debug, Default, PartialEq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its folder, relative to the root of the repository.
    pub folder: String,
    /// Its licence expression.
    pub license: String,
    /// The folders of the packages of this workspace that it depends on, in any way.
    pub inside: Vec<String>,
    /// The names of the packages from elsewhere that it depends on, in any way.
    pub outside: Vec<String>,
}

/// Asks cargo for the packages of the workspace.
pub fn packages() -> Result<Vec<Package>, Failure> {
    let text = cargo(&["metadata", "--format-version", "1", "--no-deps"]).output()?;
    let metadata: Value =
        serde_json::from_str(&text).map_err(|error| Failure(format!("cargo metadata: {error}")))?;
    Ok(read(&metadata))
}

fn read(metadata: &Value) -> Vec<Package> {
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let relative =
        |path: &str| path.strip_prefix(root).unwrap_or(path).trim_start_matches('/').to_owned();
    let package = |value: &Value| {
        let manifest = relative(value["manifest_path"].as_str().unwrap_or_default());
        let mut package = Package {
            name: value["name"].as_str().unwrap_or_default().into(),
            folder: manifest.trim_end_matches("Cargo.toml").trim_end_matches('/').into(),
            license: value["license"].as_str().unwrap_or_default().into(),
            ..Package::default()
        };
        for dependency in value["dependencies"].as_array().into_iter().flatten() {
            match dependency["path"].as_str() {
                Some(path) => package.inside.push(relative(path)),
                None => {
                    package.outside.push(dependency["name"].as_str().unwrap_or_default().into());
                }
            }
        }
        package
    };
    metadata["packages"].as_array().into_iter().flatten().map(package).collect()
}

/// Checks the directions of all dependencies, those of tests too.
pub fn check(packages: &[Package]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for package in packages {
        let manifest = format!("{}/Cargo.toml", package.folder);
        let folder = package.folder.as_str();
        let layer = LAYERS.iter().find(|(name, _)| *name == folder);
        if layer.is_none() && !PROGRAMS.contains(&folder) {
            problems.push(Problem::new(
                &manifest,
                0,
                "no layer: add it to docs/ARCHITECTURE.md and to the table of xtask's tidy",
            ));
            continue;
        }
        for known in &package.inside {
            // A crate's tests may ask for features of its own.
            if let Some((_, allowed)) = layer
                && known != folder
                && !allowed.contains(&known.as_str())
            {
                problems.push(Problem::new(
                    &manifest,
                    0,
                    format!("{folder} may not know {known}, not even in its tests (docs/ARCHITECTURE.md)"),
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &str, inside: &[&str]) -> Package {
        Package {
            folder: folder.into(),
            inside: inside.iter().map(|name| name.to_string()).collect(),
            ..Package::default()
        }
    }

    #[test]
    fn directions() {
        let good = [
            package("crates/block", &["crates/block"]),
            package("crates/fs", &["crates/block", "crates/vfs"]),
            package("crates/host", &["crates/server"]),
            package("tests", &["crates/fs", "crates/libatoll"]),
        ];
        assert_eq!(check(&good), []);
        for bad in [
            package("crates/block", &["crates/vfs"]),
            package("crates/vfs", &["crates/fs"]),
            package("crates/posix", &["crates/fs"]),
            package("crates/fs", &["crates/host"]),
            package("crates/host", &["crates/fs"]),
            package("crates/server", &["crates/host"]),
            package("crates/host", &["crates/libatoll"]),
            package("crates/libatoll", &["crates/cli"]),
        ] {
            assert_eq!(check(&[bad]).len(), 1);
        }
    }

    #[test]
    fn unknown_crate() {
        assert_eq!(check(&[package("crates/new", &[])]).len(), 1);
    }

    #[test]
    fn metadata() {
        let metadata = serde_json::json!({
            "workspace_root": "/r",
            "packages": [{
                "name": "atoll-fs", "manifest_path": "/r/crates/fs/Cargo.toml", "license": "MIT",
                "dependencies": [
                    {"name": "atoll-vfs", "path": "/r/crates/vfs"},
                    {"name": "libc", "kind": "dev"},
                ],
            }],
        });
        let expected = Package {
            name: "atoll-fs".into(),
            folder: "crates/fs".into(),
            license: "MIT".into(),
            inside: vec!["crates/vfs".into()],
            outside: vec!["libc".into()],
        };
        assert_eq!(read(&metadata), [expected]);
    }
}
