//! A release: all that users get, made from this checkout into one folder. From the same sources,
//! by the same toolchain, the same bytes come.
//!
//! Read in this order: [`stage`] is files as they will be installed, and archives of them;
//! [`contents`] is the files that go along with the program, [`licences`] the licences of others;
//! [`debian`] and [`image`] are two of the three forms, the third is a tarball; [`trial`] uses each
//! in an empty root directory.

mod contents;
mod debian;
mod image;
mod licences;
mod stage;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::dist::contents::{Layout, install};
use crate::dist::stage::{Stage, failed, gzip, read, sha256};
use crate::steps::{Failure, cargo, program, target_is_there};

/// The parts to make.
#[derive(Args)]
pub struct Arguments {
    /// The folder for what is made; target/dist if nothing is said
    #[arg(long)]
    out: Option<PathBuf>,
    /// Use each afterwards, in a root directory that has nothing else
    #[arg(long = "try")]
    tried: bool,
}

/// The programs' version, which all packages of the workspace share.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// For machines whose C library is known: those of the Debian package.
const GNU: &str = "x86_64-unknown-linux-gnu";
/// For all others: the program is static.
pub const MUSL: &str = "x86_64-unknown-linux-musl";

/// Makes the tarball, the Debian package and the image.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let target = crate::root().join("target");
    let out = arguments.out.clone().unwrap_or_else(|| target.join("dist"));
    let out = std::path::absolute(&out).map_err(|error| failed(&out, &error))?;
    fs::create_dir_all(&out).map_err(|error| failed(&out, &error))?;
    let changelog = crate::root().join("CHANGELOG.md");
    if !is_released(&String::from_utf8_lossy(&read(&changelog)?), VERSION) {
        return Err(Failure(format!("CHANGELOG.md has no heading `## [{VERSION}] - DATE`")));
    }
    let time = time()?;
    let work = target.join("dist-stage");
    Stage::new(&work)?;
    let stage = |name: &str| Stage::new(&work.join(name));
    let shared = build(GNU, &work)?;
    let alone = build(MUSL, &work)?;
    let bare = crate::unikernel::build(&target.join("dist-build"), &hiding()?)?;

    let name = format!("atoll-{VERSION}-x86_64-linux");
    let archive = out.join(format!("{name}.tar"));
    let tarball = stage("tarball")?;
    let licences = licences::of_others(MUSL)?;
    let layout =
        Layout { prefix: &name, installed: "/usr/local", zsh: "share/zsh/site-functions/_atoll" };
    install(&tarball, &alone, &bare, &layout)?;
    let place = format!("{name}/share/doc/atoll/LICENSES-OF-OTHERS");
    tarball.put(&place, licences.as_bytes(), 0o644)?;
    tarball.tar(&archive, time)?;
    gzip(&archive)?;
    let archive = archive.with_extension("tar.gz");

    let package = out.join(format!("atoll_{VERSION}_amd64.deb"));
    let programs = [&*shared, &bare];
    debian::make(&stage("debian")?, programs, &licences::of_others(GNU)?, VERSION, time, &package)?;

    let container = out.join(format!("atoll-{VERSION}-oci-amd64.tar"));
    let root = stage("root")?;
    root.put("usr/bin/atoll", &read(&alone)?, 0o755)?;
    for text in ["LICENSE-APACHE", "LICENSE-MIT"] {
        root.put(&format!("usr/share/doc/atoll/{text}"), &read(&crate::root().join(text))?, 0o644)?;
    }
    root.put("usr/share/doc/atoll/LICENSES-OF-OTHERS", licences.as_bytes(), 0o644)?;
    image::make(&stage("image")?, &root, VERSION, time, &container)?;

    if arguments.tried {
        trial::tarball(&stage("try-tarball")?, &archive, &name, VERSION)?;
        trial::debian(&stage("try-debian")?, &package, VERSION)?;
        trial::image(&stage("try-image")?, &container, VERSION)?;
        println!("all three were used in an empty root directory");
    }
    sums(&out, &[&archive, &package, &container])?;
    fs::remove_dir_all(&work).map_err(|error| failed(&work, &error))
}

/// Builds the program for `target` and returns where it is, in `work`: without the tables for
/// debuggers, which are most of it, but with the names that a panic shows.
fn build(target: &str, work: &Path) -> Result<PathBuf, Failure> {
    target_is_there(target)?;
    let folder = crate::root().join("target/dist-build");
    cargo(&["build", "--release", "--locked", "--package", "atoll-cli", "--target", target])
        .arg("--target-dir")
        .arg(&folder)
        .env("CARGO_ENCODED_RUSTFLAGS", &hiding()?)
        .run()?;
    let stripped = work.join(target);
    program("strip")
        .args(["--strip-debug", "-o"])
        .arg(&stripped)
        .arg(folder.join(target).join("release/atoll"))
        .run()?;
    Ok(stripped)
}

/// The compiler's flags, as cargo takes them, that keep the places of sources on this machine out
/// of the program: it would differ from machine to machine.
fn hiding() -> Result<String, Failure> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let registry = home.unwrap_or_default().join("registry/src");
    cargo(&["fetch", "--locked"]).run()?;
    let folders = fs::read_dir(&registry).map_err(|error| failed(&registry, &error))?;
    let mut flags: Vec<String> = folders
        .flatten()
        .map(|folder| format!("--remap-path-prefix={}=registry", folder.path().display()))
        .collect();
    flags.sort();
    Ok(flags.join("\x1f"))
}

/// When the sources were last changed, in seconds since 1970: SOURCE_DATE_EPOCH, or the last
/// commit.
fn time() -> Result<u64, Failure> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => program("git").args(["log", "-1", "--format=%ct"]).output()?,
    };
    text.trim()
        .parse()
        .map_err(|_| Failure(format!("`{}` is no time: set SOURCE_DATE_EPOCH", text.trim())))
}

/// Whether the changelog `text` has `version`, with a date.
fn is_released(text: &str, version: &str) -> bool {
    let begin = format!("## [{version}] - ");
    text.lines().any(|line| line.strip_prefix(&begin).is_some_and(|date| date.len() == 10))
}

/// Writes the sums of `files` to SHA256SUMS beside them, as `sha256sum --check` reads them, and
/// says them.
fn sums(out: &Path, files: &[&Path]) -> Result<(), Failure> {
    let mut text = String::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().display();
        text.push_str(&format!("{} *{name}\n", sha256(file)?));
    }
    print!("{text}");
    let path = out.join("SHA256SUMS");
    fs::write(&path, text).map_err(|error| failed(&path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_version_with_a_date_is_released() {
        let text = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-02\n";
        assert!(is_released(text, "0.1.0"));
        for version in ["0.1.1", "Unreleased", "1.0"] {
            assert!(!is_released(text, version), "{version}");
        }
    }
}
