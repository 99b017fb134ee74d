//! What was measured as a table, and the goals.

use std::fmt::Write as _;

use super::daemon::Kind;
use super::{Found, Sample};
use crate::machine::{Machine, Noise};

const HEAD: &str = "\
Microseconds for one operation, medians of the rounds; in brackets the daemon's processor time,
looks for the next request included. One request at a time, data checked after every read, each
daemon's first operations left out. A sync waits for the disk, and is judged with nothing.
";

fn median(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The times of an operation on a daemon.
fn times(samples: &[Sample]) -> [f64; 2] {
    [median(samples, |sample| sample.0), median(samples, |sample| sample.1)]
}

/// The report.
pub fn text(kinds: &[Kind], found: &Found, noise: &Noise, smoke: bool) -> String {
    let machine = Machine::this();
    let mut text = format!(
        "{}, {} processors, {} GiB of memory, Linux {}; load {:.1}, {:.1} % of processor time \
         stolen\n{HEAD}",
        machine.processor,
        machine.processors,
        machine.memory_gib,
        machine.kernel,
        noise.load,
        100.0 * noise.steal
    );
    if smoke {
        text.push_str("A smoke run: the numbers mean nothing.\n");
    }
    let _ = write!(text, "\n{:<30}", "");
    kinds.iter().for_each(|kind| _ = write!(text, "{:>22}", kind.name()));
    for ((_, name), samples) in found {
        let _ = write!(text, "\n{name:<30}");
        for kind in kinds {
            let cell = samples.get(kind).map_or_else(String::new, |samples| {
                let [time, processor] = times(samples).map(|ns| ns / 1000.0);
                format!("{time:.1} ({processor:.1})")
            });
            let _ = write!(text, "{cell:>22}");
        }
    }
    text.push('\n');
    if !smoke {
        goals(&mut text, kinds, found);
    }
    text
}

/// The goals: each kind of Atoll ahead of the better stock daemon at every operation.
fn goals(text: &mut String, kinds: &[Kind], found: &Found) {
    for kind in kinds.iter().filter(|kind| kind.is_atoll()) {
        for (at, what) in ["time", "processor time"].into_iter().enumerate() {
            let mut missed = Vec::new();
            let mut judged = 0;
            for ((_, name), samples) in found.iter().filter(|((_, name), _)| judges(name)) {
                let of = |kind: &Kind| samples.get(kind).map(|samples| times(samples)[at]);
                let stock = kinds.iter().filter(|kind| !kind.is_atoll()).filter_map(of);
                let best = stock.fold(f64::INFINITY, f64::min);
                let Some(own) = of(kind).filter(|_| best.is_finite()) else { continue };
                judged += 1;
                if own > best {
                    missed.push(format!("{name} {:.2}", own / best));
                }
            }
            let met = judged - missed.len();
            let who = kind.name();
            let _ = writeln!(text, "\n{who}, {what}: ahead of both in {met} of {judged}");
            if !missed.is_empty() {
                let _ = writeln!(text, "  MISS, times the better one's: {}", missed.join(", "));
            }
        }
    }
}

/// Whether an operation is judged.
fn judges(name: &str) -> bool {
    !name.starts_with("fsync")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_judged_by_the_better_stock_daemon() {
        let mut found = Found::new();
        let samples = |time: f64| vec![(time, 1.0), (time, 1.0), (100.0 * time, 5.0)];
        let rust = Kind::Rust("virtiofsd".into());
        for (at, (name, own)) in
            [("read", 9.0), ("write", 11.0), ("fsync", 99.0)].into_iter().enumerate()
        {
            let of = [(Kind::AtollVolume, own), (Kind::C, 10.0), (rust.clone(), 20.0)];
            let of = of.map(|(kind, time)| (kind, samples(time)));
            found.insert((at, name.to_owned()), of.into_iter().collect());
        }
        let mut text = String::new();
        goals(&mut text, &[Kind::AtollVolume, Kind::C, rust], &found);
        assert!(text.contains("volume, time: ahead of both in 1 of 2"), "{text}");
        assert!(text.contains("better one's: write 1.10\n"), "{text}");
        assert!(text.contains("processor time: ahead of both in 2 of 2"), "{text}");
    }
}
