//! What was measured as a table, and the goals.

use std::fmt::Write as _;

use super::daemon::Kind;
use super::{Found, Sample};
use crate::machine::{Machine, Noise};
use crate::report::Table;

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
pub fn times(samples: &[Sample]) -> [f64; 2] {
    [median(samples, |sample| sample.0), median(samples, |sample| sample.1)]
}

/// The report on the daemons by one driver.
pub fn text(kinds: &[Kind], found: &Found, noise: &Noise, smoke: bool) -> String {
    let mut text = head(noise, HEAD, smoke);
    table(&mut text, kinds, found, |samples| {
        let [time, processor] = times(samples).map(|ns| ns / 1000.0);
        format!("{time:.1} ({processor:.1})")
    });
    if !smoke {
        goals(&mut text, kinds, found, &STOCK);
    }
    text
}

/// The machine, how quiet it was, and how the table is read.
pub fn head(noise: &Noise, words: &str, smoke: bool) -> String {
    let machine = Machine::this();
    let mut text = format!(
        "{}, {} processors, {} GiB of memory, Linux {}; load {:.1}, {:.1} % of processor time \
         stolen\n{words}",
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
    text
}

/// A row for each operation, and in each kind's column what `cell` makes of its samples.
pub fn table(text: &mut String, kinds: &[Kind], found: &Found, cell: fn(&[Sample]) -> String) {
    let names = kinds.iter().map(|kind| kind.name().to_owned());
    let mut table = Table(vec![[String::new()].into_iter().chain(names).collect()]);
    for ((_, name), samples) in found {
        let of = |kind| samples.get(kind).map_or_else(String::new, |samples| cell(samples));
        let row = [name.clone()].into_iter().chain(kinds.iter().map(of));
        table.0.push(row.collect());
    }
    text.push('\n');
    table.write(text);
}

/// A goal of each kind of Atoll: to be ahead of the best of some others.
pub struct Goal {
    /// These others,
    pub rivals: fn(&Kind) -> bool,
    /// and what they are called.
    pub whom: &'static str,
    /// Whether it is about the daemon's processor time, and not about time.
    pub processor: bool,
    /// Which operations are judged.
    pub judges: fn(&str) -> bool,
}

/// Ahead of the stock daemons at every operation, in time and in processor time.
pub const STOCK: [Goal; 2] = [
    Goal { rivals: Kind::is_stock, whom: "both", processor: false, judges },
    Goal { rivals: Kind::is_stock, whom: "both", processor: true, judges },
];

/// Judges each kind of Atoll by `aims`.
pub fn goals(text: &mut String, kinds: &[Kind], found: &Found, aims: &[Goal]) {
    for kind in kinds.iter().filter(|kind| kind.is_atoll()) {
        for aim in aims {
            let mut missed = Vec::new();
            let mut judged = 0;
            for ((_, name), samples) in found.iter().filter(|((_, name), _)| (aim.judges)(name)) {
                let at = usize::from(aim.processor);
                let of = |kind: &Kind| samples.get(kind).map(|samples| times(samples)[at]);
                // `min` takes the other one where one is no number.
                let rivals = kinds.iter().filter(|kind| (aim.rivals)(kind)).filter_map(of);
                let best = rivals.fold(f64::INFINITY, f64::min);
                let measured = |own: &f64| own.is_finite() && best.is_finite();
                let Some(own) = of(kind).filter(measured) else { continue };
                judged += 1;
                if own > best {
                    missed.push(format!("{name} {:.2}", own / best));
                }
            }
            if judged == 0 {
                continue;
            }
            let met = judged - missed.len();
            let (who, whom) = (kind.name(), aim.whom);
            let what = if aim.processor { "processor time" } else { "time" };
            let _ = writeln!(text, "\n{who}, {what}: ahead of {whom} in {met} of {judged}");
            if !missed.is_empty() {
                let _ = writeln!(text, "  MISS, times the best of them: {}", missed.join(", "));
            }
        }
    }
}

/// Whether an operation is judged.
pub fn judges(name: &str) -> bool {
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
            let others = [(Kind::C, 10.0), (rust.clone(), 20.0), (Kind::Native, 1.0)];
            let of = others.into_iter().chain([(Kind::AtollVolume, own)]);
            let of = of.map(|(kind, time)| (kind, samples(time)));
            found.insert((at, name.to_owned()), of.into_iter().collect());
        }
        let mut text = String::new();
        goals(&mut text, &[Kind::AtollVolume, Kind::C, rust, Kind::Native], &found, &STOCK);
        assert!(text.contains("volume, time: ahead of both in 1 of 2"), "{text}");
        assert!(text.contains("best of them: write 1.10\n"), "{text}");
        assert!(text.contains("processor time: ahead of both in 2 of 2"), "{text}");
    }
}
