//! Which crate may know which: the table of docs/ARCHITECTURE.md.

use serde_json::Value;

use super::Problem;
use super::tree::Tree;
use crate::steps::{Failure, cargo};

/// The layers, by folder, and the folders that each may know. A folder that is not in this list is
/// a program or a test, knows any layer and is known by none.
const LAYERS: [(&str, &[&str]); 11] = [
    ("crates/transport", &[]),
    ("crates/block", &[]),
    ("vm", &[]),
    ("crates/virtio", &["crates/transport", "crates/block"]),
    ("crates/vfs", &["crates/transport"]),
    ("crates/fs", &["crates/block", "crates/vfs"]),
    ("crates/posix", &["crates/vfs"]),
    (
        "unikernel",
        &[
            "crates/transport",
            "crates/block",
            "crates/vfs",
            "crates/fs",
            "crates/posix",
            "crates/virtio",
        ],
    ),
    ("crates/server", &["crates/vfs", "crates/posix"]),
    (
        "crates/host",
        &[
            "crates/transport",
            "crates/block",
            "crates/vfs",
            "crates/posix",
            "crates/server",
            "crates/virtio",
        ],
    ),
    (
        "crates/libatoll",
        &[
            "crates/transport",
            "crates/block",
            "crates/vfs",
            "crates/fs",
            "crates/posix",
            "crates/virtio",
            "crates/host",
        ],
    ),
];

/// The folders that may know any layer. Programs among themselves: only measurements, tests and
/// fuzz targets may drive one another's libraries.
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

/// Checks the directions of all dependencies, those of tests too, and of what cargo does not know:
/// the folders that build scripts and C name.
pub fn check(packages: &[Package], tree: &Tree) -> Vec<Problem> {
    let mut problems = directions(packages);
    for (folder, allowed) in LAYERS {
        let inside = format!("{folder}/");
        for (path, text) in tree.files().filter(|(path, _)| path.starts_with(&inside)) {
            if !(path.ends_with("/build.rs") || path.ends_with(".c") || path.ends_with(".h")) {
                continue;
            }
            for (index, line) in text.lines().enumerate() {
                for known in folders(path, line).filter(|known| *known != folder) {
                    if !allowed.contains(&known.as_str()) && tree.exists(&known) {
                        let message =
                            format!("{folder} may not know {known} (docs/ARCHITECTURE.md)");
                        problems.push(Problem::new(path, index + 1, message));
                    }
                }
            }
        }
    }
    problems
}

/// The folders of packages that the strings in `line` of the file `path` name, from its own on.
fn folders<'l>(path: &'l str, line: &'l str) -> impl Iterator<Item = String> + 'l {
    line.split('"').skip(1).step_by(2).filter_map(move |name| {
        let mut at: Vec<&str> = path.split('/').collect();
        at.pop();
        let below = name.trim_start_matches("../");
        let up = (name.len() - below.len()) / 3;
        if up == 0 || up > at.len() {
            return None;
        }
        at.truncate(at.len() - up);
        at.extend(below.split('/'));
        // All packages that are layers lie in one folder.
        (at.len() > 1).then(|| at[..2].join("/"))
    })
}

fn directions(packages: &[Package]) -> Vec<Problem> {
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
                    format!(
                        "{folder} may not know {known}, not even in its tests \
                         (docs/ARCHITECTURE.md)"
                    ),
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
    fn dependencies() {
        let good = [
            package("crates/block", &["crates/block"]),
            package("crates/fs", &["crates/block", "crates/vfs"]),
            package("crates/host", &["crates/server"]),
            package("tests", &["crates/fs", "crates/libatoll"]),
        ];
        assert_eq!(directions(&good), []);
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
            assert_eq!(directions(&[bad]).len(), 1);
        }
    }

    #[test]
    fn build_scripts_and_c() {
        let found = |path: &str, text: &str| {
            let fs = ("crates/fs/Cargo.toml", "");
            let host = ("crates/host/Cargo.toml", "");
            check(&[], &Tree::of(&[(path, text), fs, host])).len()
        };
        let links = "run(\"--manifest-path\", \"../host/Cargo.toml\");\n";
        assert_eq!(found("crates/vfs/build.rs", links), 1);
        assert_eq!(found("crates/host/build.rs", links), 0);
        assert_eq!(found("crates/server/c/a.c", "#include \"../../fs/src/a.h\"\n"), 1);
        assert_eq!(found("crates/libatoll/c/a.h", "#include \"../../host/src/a.h\"\n"), 0);
        assert_eq!(found("crates/libatoll/c/a.h", "#include \"a.h\"\n"), 0);
        assert_eq!(found("crates/libatoll/c/a.c", "raw(\"../../x\", \"/\", \"..\")\n"), 0);
    }

    #[test]
    fn unknown_crate() {
        assert_eq!(directions(&[package("crates/new", &[])]).len(), 1);
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
