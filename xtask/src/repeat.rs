//! The tests again and again beside a load: which of them fail now and then.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::steps::{Failure, cargo};

/// Runs all tests `times` times, with `arguments` of `cargo test`, beside `load` threads that do
/// nothing but take a processor each; says which tests failed, and how often.
pub fn run(times: u32, load: usize, arguments: &[String]) -> Result<(), Failure> {
    cargo(&["test"]).args(chosen(arguments)).arg("--no-run").args(arguments).run()?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..load {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = repeat(times, arguments);
        over.store(true, Ordering::Relaxed);
        result
    })
}

fn repeat(times: u32, arguments: &[String]) -> Result<(), Failure> {
    let mut failures: BTreeMap<String, u32> = BTreeMap::new();
    let mut bad = 0;
    for time in 1..=times {
        let (said, passed) = cargo(&["test"])
            .args(chosen(arguments))
            .arg("--no-fail-fast")
            .args(arguments)
            .said()?;
        eprintln!("{time} of {times}: {}", if passed { "passed" } else { "failed" });
        if passed {
            continue;
        }
        bad += 1;
        print!("{said}");
        for test in failed(&said) {
            *failures.entry(test).or_default() += 1;
        }
    }
    for (test, count) in &failures {
        eprintln!("{count:>4} of {times}  {test}");
    }
    if bad == 0 { Ok(()) } else { Err(Failure(format!("{bad} of {times} runs failed"))) }
}

/// The arguments that have all packages tested, unless `arguments` name some.
fn chosen(arguments: &[String]) -> &'static [&'static str] {
    let names = |argument: &String| argument.starts_with("-p") || argument.starts_with("--package");
    let options = arguments.iter().take_while(|argument| *argument != "--");
    if options.into_iter().any(names) { &[] } else { &["--workspace"] }
}

/// The tests that failed by what a run of `cargo test` wrote.
fn failed(said: &str) -> Vec<String> {
    let name = |line: &str| {
        let name = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
        Some(name.to_owned())
    };
    said.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_tested() {
        let of = |arguments: &[&str]| {
            chosen(&arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["--test", "run", "--", "-p"]), ["--workspace"]);
        assert!(of(&["-p", "atoll-fs"]).is_empty() && of(&["--package=atoll-fs"]).is_empty());
    }

    #[test]
    fn who_failed() {
        let said = "test a::b ... ok\ntest a::c ... FAILED\ntest d - e (line 3) ... FAILED\n";
        assert_eq!(failed(said), ["a::c", "d - e (line 3)"]);
    }
}
