//! Everything that must pass before a change lands.

use std::time::Duration;

use crate::steps::{Failure, Log, cargo, target_is_there};

/// The crates that need nothing of a host, built for a target that offers nothing.
const NO_STD: [&str; 6] =
    ["atoll-transport", "atoll-block", "atoll-vfs", "atoll-fs", "atoll-posix", "atoll-virtio"];
const BARE_TARGET: &str = crate::unikernel::TARGET;
/// How long building and running all tests may take: several times what it does on two processors.
const TESTS: Duration = Duration::from_mins(60);
/// Crates as others use them, with fewer features than the whole workspace gives them.
const ALONE: [&[&str]; 2] =
    [&["-p", "atoll-host", "--no-default-features"], &["-p", "atoll-block"]];

/// Runs all steps, the quick ones first, and stops at the first that fails.
pub fn run() -> Result<(), Failure> {
    let mut log = Log::default();
    log.step("format", || cargo(&["fmt", "--all", "--check"]).run())?;
    log.step("tidy", crate::tidy::run)?;
    log.step("C", crate::c::check)?;
    log.step("lints", || {
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]).run()?;
        ALONE.iter().try_for_each(|crate_alone| {
            cargo(&["clippy"]).args(*crate_alone).args(["--", "-D", "warnings"]).run()
        })
    })?;
    log.step("no_std", no_std)?;
    log.step("bare image", crate::unikernel::check)?;
    log.step("static program", || {
        target_is_there(crate::dist::MUSL)?;
        cargo(&["check", "--target", crate::dist::MUSL, "--package", "atoll-cli"]).run()
    })?;
    log.step("documentation", || {
        let doc = || cargo(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings");
        ALONE.iter().try_for_each(|crate_alone| doc().args(*crate_alone).run())?;
        // Last, so that this one stays in the target folder.
        doc().arg("--workspace").run()
    })?;
    // The fuzz targets' smoke runs are tests too: those of the crate `atoll-fuzz`.
    // All of them, whatever fails: one run is to say everything that is wrong.
    log.step("tests", || cargo(&["test", "--workspace", "--no-fail-fast"]).run_within(TESTS))?;
    log.step("benchmarks, smoke run", || {
        crate::bench(&["embedded".into(), "--smoke".into()])?;
        crate::bench(&["server".into(), "--smoke".into()])?;
        crate::bench(&["virtiofs".into(), "--smoke".into()])
    })?;
    log.summary();
    Ok(())
}

fn no_std() -> Result<(), Failure> {
    target_is_there(BARE_TARGET)?;
    let packages = NO_STD.iter().flat_map(|package| ["-p", package]);
    cargo(&["check", "--target", BARE_TARGET]).args(packages).run()
}
