//! The bare image: built for its own target, and put beside the programs of this checkout.

use std::path::{Path, PathBuf};

use crate::steps::{Failure, cargo, target_is_there};

/// The target of the image.
pub const TARGET: &str = "x86_64-unknown-none";
/// The name of its file.
pub const NAME: &str = "atoll-unikernel";
/// The largest that it may be, in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Builds the image in the folder `target`, with the compiler's flags `flags` as cargo takes them;
/// where it is.
pub fn build(target: &Path, flags: &str) -> Result<PathBuf, Failure> {
    target_is_there(TARGET)?;
    cargo(&["build", "--package", NAME, "--features", "image", "--bin", NAME])
        .args(["--profile", "image", "--target", TARGET, "--target-dir"])
        .arg(target)
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .run()?;
    let image = target.join(TARGET).join("image").join(NAME);
    let failed = |error: std::io::Error| Failure(format!("{}: {error}", image.display()));
    let bytes = std::fs::metadata(&image).map_err(failed)?.len();
    if bytes > BYTES_MAX {
        return Err(Failure(format!("{} has {bytes} bytes, at most {BYTES_MAX}", image.display())));
    }
    Ok(image)
}

/// Builds the image, and puts it beside the command of this checkout.
pub fn run() -> Result<(), Failure> {
    let image = build(&target(), "")?;
    for profile in ["debug", "release"].map(|profile| target().join(profile)) {
        let to = profile.join(NAME);
        std::fs::create_dir_all(&profile)
            .and_then(|()| std::fs::copy(&image, &to))
            .map_err(|error| Failure(format!("{}: {error}", to.display())))?;
        println!("{}", to.display());
    }
    Ok(())
}

/// Checks the image's sources for what the compiler and its lints find, and builds it.
pub fn check() -> Result<(), Failure> {
    target_is_there(TARGET)?;
    cargo(&["clippy", "--package", NAME, "--features", "image", "--target", TARGET])
        .args(["--", "-D", "warnings"])
        .run()?;
    build(&target(), "").map(drop)
}

/// Where cargo puts what it builds.
fn target() -> PathBuf {
    let named = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    crate::root().join(named.as_deref().unwrap_or(Path::new("target")))
}
