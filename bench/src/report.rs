//! Results as text.

use std::fmt::Write;

use crate::goals::Verdict;
use crate::measure::{Outcome, Outcomes};
use crate::subject::Subject;
use crate::table::Unit;

/// How the tables are read.
const HEAD: &str = "\
Medians, and the distance between the quartiles in percent of the median. The last columns say
how many times better Atoll is than tmpfs, or than the disk where tmpfs takes no part, or a ring than
the one with a lock. Cold is the first run of a program, or the first pass of a workload, on a fresh
file system, volume and server; steady is a later one on the same.
* More than there are processors: the figure has the scheduler's part in it.
";

/// The report: tables, then the goals.
pub fn text(outcomes: &Outcomes, verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    let machine = &outcomes.machine;
    let _ = writeln!(
        out,
        "{}, {} processors, {} GiB of memory, Linux {}, disk with {}{}",
        machine.processor,
        machine.processors,
        machine.memory_gib,
        machine.kernel,
        outcomes.disk,
        match machine.halt_poll_ns {
            Some(0) => ", idle processors halt at once".into(),
            Some(time) => format!(", idle processors poll for {} us", time / 1000),
            None => String::new(),
        }
    );
    out.push_str(HEAD);
    if outcomes.smoke {
        out.push_str("A smoke run: the numbers mean nothing.\n");
    }
    for outcome in &outcomes.workloads {
        workload(&mut out, outcome, outcomes);
    }
    goals(&mut out, verdicts);
    let failures = outcomes.failures();
    if !failures.is_empty() {
        out.push_str("\nFailures\n");
        for line in failures {
            let _ = writeln!(out, "  {line}");
        }
    }
    out
}

fn workload(out: &mut String, outcome: &Outcome, outcomes: &Outcomes) {
    let workload = outcome.workload;
    let noise = outcome.noise;
    let _ = writeln!(out, "\n{}: {}", workload.name, workload.title);
    let ping_pong = match noise.ping_pong_ns {
        Some(time) => format!("cache line there and back {time:.0} ns, "),
        None => String::new(),
    };
    let _ =
        writeln!(out, "  ({ping_pong}stolen {:.1}%, load {:.1})", noise.steal * 100.0, noise.load);
    let taking_part = |subject: &&Subject| {
        let known = |point: &crate::measure::Point| {
            point.results.contains_key(subject) || point.failures.contains_key(subject)
        };
        outcome.points.iter().any(known)
    };
    let subjects: Vec<Subject> = workload.subjects.iter().filter(taking_part).copied().collect();
    let peer = [Subject::Tmpfs, Subject::Disk, Subject::Locked]
        .into_iter()
        .find(|peer| subjects.contains(peer));
    let processors = outcomes.machine.processors as u64;
    let crowded = |point: u64| {
        ["processors", "processes", "threads"].contains(&workload.axis) && point > processors
    };
    for &(metric, unit) in workload.metrics {
        let mut table = Table::default();
        let mut head = vec![format!("{metric}, {}", unit.sign()), workload.axis.to_owned()];
        let column = |subject: &Subject| match subject {
            Subject::Disk => outcomes.disk.to_owned(),
            other => other.key().to_owned(),
        };
        head.extend(subjects.iter().map(column));
        let rated: Vec<Subject> = match peer {
            Some(_) => subjects.iter().copied().filter(|s| s.is_atoll()).collect(),
            None => Vec::new(),
        };
        head.extend(rated.iter().map(|subject| subject.key().replace("atoll-", "x ")));
        table.0.push(head);
        for point in &outcome.points {
            let mark = if crowded(point.point) { "*" } else { "" };
            let mut row = vec![String::new(), format!("{mark}{}", grouped(point.point as f64))];
            for &subject in &subjects {
                row.push(match point.summary(subject, metric) {
                    Some(s) => format!("{} ±{:.0}%", number(s.median), s.spread() * 100.0),
                    None if point.failures.contains_key(&subject) => "failed".into(),
                    None => "-".into(),
                });
            }
            for &subject in &rated {
                let median = |subject| Some(point.summary(subject, metric)?.median);
                let gain = peer.and_then(median).zip(median(subject));
                row.push(match gain {
                    Some((theirs, ours)) if unit != Unit::KibiBytes => {
                        format!("{:.2}", unit.gain(ours, theirs))
                    }
                    _ => "-".into(),
                });
            }
            table.0.push(row);
        }
        table.write(out);
    }
}

fn goals(out: &mut String, verdicts: &[Verdict]) {
    if verdicts.is_empty() {
        return;
    }
    let met = verdicts.iter().filter(|verdict| verdict.pass).count();
    let _ = writeln!(out, "\nGoals: {met} of {} met", verdicts.len());
    for verdict in verdicts {
        let what = format!(
            "{} {}, {}, {}",
            verdict.workload,
            grouped(verdict.point as f64),
            verdict.metric,
            verdict.subject
        );
        let _ = writeln!(out, "  {what:<52} {}", verdict.words());
    }
}

/// Rows of cells; the first column is aligned to the left, the others to the right.
#[derive(Default)]
pub struct Table(pub Vec<Vec<String>>);

impl Table {
    /// Writes the rows, each column as wide as its widest cell.
    pub fn write(&self, out: &mut String) {
        let columns = self.0.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let lengths = self.0.iter().filter_map(|row| Some(row.get(column)?.chars().count()));
            lengths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.0 {
            let mut line = String::from("  ");
            for (index, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                let _ = if index == 0 {
                    write!(line, "{cell:<width$}")
                } else {
                    write!(line, "  {cell:>width$}")
                };
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
}

/// A number with three or more digits that matter.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => grouped(value.round()),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A whole number with its thousands set apart.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(number(0.123), "0.12");
        assert_eq!(number(12.34), "12.3");
        assert_eq!(number(1234567.8), "1,234,568");
        assert_eq!(grouped(-1000.0), "-1,000");
        assert_eq!(grouped(100.0), "100");
    }

    #[test]
    fn columns_are_aligned() {
        let mut out = String::new();
        Table(vec![vec!["a".into(), "bbb".into()], vec!["aa".into(), "1".into()]]).write(&mut out);
        assert_eq!(out, "  a   bbb\n  aa    1\n");
    }
}
