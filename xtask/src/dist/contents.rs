//! The files that users get besides the program: manual pages, completions, the unit for systemd,
//! documents, licences; and where each of them goes.

use std::fs;
use std::path::Path;

use crate::dist::stage::{Stage, failed, gzip, read};
use crate::steps::{Failure, program};

/// Folders that differ between the forms of a release.
pub struct Layout<'a> {
    /// The folder that has `bin` and `share`, seen from the stage.
    pub prefix: &'a str,
    /// The same folder once it is installed.
    pub installed: &'a str,
    /// Where zsh looks for completions, below `prefix`.
    pub zsh: &'a str,
}

/// Documents that go along: all that the README leads to.
const DOCUMENTS: [&str; 18] = [
    "README.md",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "docs/ARCHITECTURE.md",
    "docs/FORMAT.md",
    "docs/GLOSSARY.md",
    "docs/LIMITS.md",
    "docs/OWN-UNIKERNEL.md",
    "docs/PERFORMANCE.md",
    "docs/PROTOCOL-FUSE.md",
    "docs/PROTOCOL-MESSAGES.md",
    "docs/PROTOCOL.md",
    "docs/RELEASING.md",
    "docs/RELIABILITY.md",
    "docs/UNIKERNEL.md",
    "docs/benchmarks/embedded.txt",
    "docs/benchmarks/server.txt",
];

/// The place of the program in the unit of the source.
const UNIT_PROGRAM: &str = "/usr/bin/atoll";

/// Puts the program `binary` with the image `bare`, and all that goes with them, into `stage`.
pub fn install(stage: &Stage, binary: &Path, bare: &Path, layout: &Layout) -> Result<(), Failure> {
    let Layout { prefix, installed, zsh } = layout;
    stage.put(&format!("{prefix}/bin/atoll"), &read(binary)?, 0o755)?;
    let file = |name: &str, content: &[u8]| stage.put(&format!("{prefix}/{name}"), content, 0o644);

    // `atoll unikernel run` looks for it from where the program is.
    file(&format!("lib/atoll/{}", crate::unikernel::NAME), &read(bare)?)?;

    let pages = stage.root().with_extension("man");
    run(binary).arg("man").arg(&pages).run()?;
    for page in fs::read_dir(&pages).map_err(|error| failed(&pages, &error))?.flatten() {
        gzip(&page.path())?;
        let name = format!("{}.gz", page.file_name().display());
        file(&format!("share/man/man1/{name}"), &read(&pages.join(&name))?)?;
    }
    fs::remove_dir_all(&pages).map_err(|error| failed(&pages, &error))?;

    for (shell, to) in [
        ("bash", "share/bash-completion/completions/atoll"),
        ("zsh", zsh),
        ("fish", "share/fish/vendor_completions.d/atoll.fish"),
    ] {
        file(to, run(binary).args(["completions", shell]).output()?.as_bytes())?;
    }

    let unit = crate::root().join("dist/atoll@.service");
    let text = String::from_utf8_lossy(&read(&unit)?).into_owned();
    if !text.contains(UNIT_PROGRAM) {
        return Err(Failure(format!("{} does not run {UNIT_PROGRAM}", unit.display())));
    }
    let text = text.replace(UNIT_PROGRAM, &format!("{installed}/bin/atoll"));
    file("lib/systemd/system/atoll@.service", text.as_bytes())?;

    for name in DOCUMENTS {
        file(&format!("share/doc/atoll/{name}"), &read(&crate::root().join(name))?)?;
    }
    Ok(())
}

/// The program, which was built for this machine.
fn run(binary: &Path) -> crate::steps::Step {
    program(&binary.display().to_string())
}
