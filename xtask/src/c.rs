//! The C sources: compiled with every warning an error, followed by gcc's analyzer, read by
//! cppcheck.

use crate::steps::{Failure, program};

/// As the tests have it; optimised no further, since the analyzer would take
/// the rest of an inlined function for code of its own.
const WARNINGS: [&str; 5] = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"];
/// Where the headers are that programs include.
const INCLUDES: [&str; 4] = ["-I", "crates/libatoll/include", "-I", "crates/libatoll/sqlite"];
/// The first gcc whose analyzer this code was made to pass.
const ANALYZER: u32 = 12;

/// Checks all C sources; a fault in any of them is a failure.
pub fn check() -> Result<(), Failure> {
    let listed = program("git").args(["ls-files", "-co", "--exclude-standard", "--", "*.c"]);
    let listed = listed.output()?;
    let sources: Vec<&str> = listed.lines().collect();
    let version = program("gcc").arg("-dumpversion").output()?;
    let version = version.trim().split('.').next().and_then(|number| number.parse().ok());
    let is_analyzed = version.is_some_and(|version: u32| version >= ANALYZER);
    let mut failed = Vec::new();
    for source in &sources {
        let mut gcc = program("gcc").args(WARNINGS).args(INCLUDES);
        if is_analyzed {
            gcc = gcc.arg("-fanalyzer");
        }
        if gcc.args(["-S", "-o", "/dev/null", source]).run().is_err() {
            failed.push(*source);
        }
    }
    if !failed.is_empty() {
        return Err(Failure(format!("gcc: {}", failed.join(", "))));
    }
    program("cppcheck")
        .args(["--quiet", "--std=c11", "--language=c", "--error-exitcode=1", "--inline-suppr"])
        .args(["--enable=warning,performance,portability", "--suppress=missingIncludeSystem"])
        // The array of variable length that it recommends instead takes the same stack.
        .arg("--suppress=allocaCalled")
        .args(INCLUDES)
        .args(&sources)
        .run()
}
