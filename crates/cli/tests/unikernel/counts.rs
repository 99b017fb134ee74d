//! The costs, counted in instructions by the emulator (`-icount shift=0`: the time-stamp counter
//! then counts them). The bounds are the goals.

use std::collections::BTreeMap;

use crate::common::folder;
use crate::image::{compile, image, on_each_machine, run, unikernel};

const COUNTED: [&str; 5] =
    ["--qemu-arg=-icount", "--qemu-arg=shift=0", "--report", "-v", "ram:/data"];

/// The number behind `before` in `text`.
#[track_caller]
fn number(text: &str, before: &str) -> u64 {
    let rest = text.split_once(before).unwrap_or_else(|| panic!("no `{before}`: {text}")).1;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn the_image_is_small() {
    let bytes = std::fs::metadata(image()).unwrap().len();
    assert!(bytes < 1 << 20, "{bytes} bytes");
    println!("image: {bytes} bytes");
}

#[test]
fn boot_and_calls_are_short() {
    on_each_machine(|| {
        let dir = folder();
        let program = compile(dir.path(), "counts");
        let ran = run(unikernel(COUNTED).arg(&program).arg("1000"), b"");
        assert!(ran.status.success(), "{ran:#?}");
        let costs: BTreeMap<&str, u64> = ran
            .output
            .lines()
            .filter_map(|line| line.rsplit_once(' '))
            .map(|(name, ticks)| (name, ticks.parse().expect("a number")))
            .collect();
        println!("{costs:#?}\n{}", ran.errors);
        assert!(costs["lseek"] < 100, "{costs:?}");
        assert!(costs["fstat"] < 300, "{costs:?}");
        assert!(costs["pread"] < 1500, "{costs:?}");
        // Flat in the number of calls: each takes what the first does, but for the loop around it.
        for calls in [1, 10, 100, 1000, 10_000, 100_000] {
            let all = costs[format!("lseek x {calls}").as_str()];
            assert!(all < calls * 100 + 20, "{calls} calls: {costs:?}");
        }
        assert!(number(&ran.errors, "to its first file ") < 5_000_000, "{}", ran.errors);
        assert!(ran.errors.contains("for anything else 0\n"), "{}", ran.errors);
    });
}
