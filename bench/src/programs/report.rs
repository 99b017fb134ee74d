//! The table, and which goals are missed.

use std::fmt::Write;

use super::Found;
use super::rows::{Aim, Goal, ROWS, Row, SHARED};
use crate::record::Summary;
use crate::report::Table;

const HEAD: &str = "\
Real programs. The best of the rounds, and in brackets the median; a figure with ! misses a goal, which stands below.
Each round has new file systems; rows go to one column after the other, and what each program made is checked.
";

/// The report.
pub fn text(found: &Found) -> String {
    let mut out = String::new();
    let (machine, noise) = (&found.machine, found.noise);
    let _ = writeln!(
        out,
        "{}, {} processors, {} GiB of memory, Linux {}; stolen {:.1}%, load {:.1}",
        machine.processor,
        machine.processors,
        machine.memory_gib,
        machine.kernel,
        noise.steal * 100.0,
        noise.load,
    );
    out.push_str(HEAD);
    if found.smoke {
        out.push_str("A smoke run: the numbers mean nothing.\n");
    }
    let mut table = Table::default();
    table.0.push(head("", found));
    let mut misses = Vec::new();
    for row in ROWS.iter().filter(|row| found.figures.contains_key(row.name)) {
        let mut line = vec![format!("{}, {}", row.name, row.unit.sign())];
        for column in &found.columns {
            let before = misses.len();
            misses.extend(missed(found, row, column));
            let mark = if misses.len() > before { "!" } else { "" };
            let best = found.best(row, column);
            let figures = &found.figures[row.name];
            let median = figures.get(column).and_then(|figures| Summary::of(figures));
            line.push(match best.zip(median) {
                Some((best, of)) if of.samples > 1 => {
                    format!("{mark}{} ({})", short(best), short(of.median))
                }
                Some((best, _)) => format!("{mark}{}", short(best)),
                None => "-".into(),
            });
        }
        table.0.push(line);
    }
    table.write(&mut out);
    if !misses.is_empty() {
        out.push_str("\nGoals that are missed\n");
        misses.iter().for_each(|miss| out.push_str(miss));
    }
    for (row, columns) in &found.wrong {
        for (column, why) in columns {
            let _ = writeln!(out, "\n{row} went wrong on {column}: {why}");
        }
    }
    if !found.requests.is_empty() {
        requests(&mut out, found);
    }
    out
}

fn head(first: &str, found: &Found) -> Vec<String> {
    [first].iter().chain(&found.columns).map(|name| name.to_string()).collect()
}

/// A figure in as many digits as mean something.
fn short(figure: f64) -> String {
    if figure < 10.0 { format!("{figure:.1}") } else { format!("{figure:.0}") }
}

/// The goals that `row` misses in `column`, a line each. The numbers of a smoke run mean nothing.
fn missed(found: &Found, row: &Row, column: &str) -> Vec<String> {
    let goals = row.goals.iter().chain([&SHARED]).filter(|goal| goal.columns.contains(&column));
    let miss = |goal: &Goal| {
        let best = found.best(row, column)?;
        let (reached, most, of) = match goal.aim {
            Aim::Times(most, other) => {
                let other_best = found.best(row, other)?;
                (row.unit.worse(best, other_best), most, format!("times as slow as {other}"))
            }
            Aim::Most(most) => (best, most, row.unit.sign().into()),
        };
        let line = format!("  {}, {column}: {reached:.2}, at most {most} {of}\n", row.name);
        (reached > most && !found.smoke).then_some(line)
    };
    goals.filter_map(miss).collect()
}

/// What was asked of FUSE servers: all, and the most frequent kinds.
fn requests(out: &mut String, found: &Found) {
    out.push_str("\nRequests of FUSE\n");
    for row in ROWS {
        for (column, kinds) in found.requests.get(row.name).into_iter().flatten() {
            let mut kinds: Vec<(&String, &u64)> = kinds.iter().collect();
            kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
            let all: u64 = kinds.iter().map(|(_, count)| **count).sum();
            let most: Vec<_> =
                kinds.iter().take(8).map(|(kind, count)| format!("{kind} {count}")).collect();
            let _ = writeln!(out, "  {:<28}{column:<9}{all:>8}: {}", row.name, most.join(", "));
        }
    }
}

impl Found {
    fn best(&self, row: &Row, column: &str) -> Option<f64> {
        row.unit.best(self.figures.get(row.name)?.get(column)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Machine, Noise};
    use std::collections::BTreeMap;

    #[test]
    fn misses_are_marked() {
        let figures = [("ext4", 100.0), ("run", 240.0), ("mount", 260.0), ("served", 320.0)];
        let of = |(column, figure): (&'static str, f64)| (column, vec![figure * 2.0, figure]);
        let mut found = Found {
            machine: Machine::this(),
            noise: Noise::default(),
            smoke: false,
            columns: figures.iter().map(|(column, _)| *column).collect(),
            figures: BTreeMap::from([("tar -x", figures.into_iter().map(of).collect())]),
            wrong: BTreeMap::new(),
            requests: BTreeMap::new(),
        };
        let said = text(&found);
        assert!(said.contains(" 240 (360)"), "{said}");
        assert!(said.contains("!260 (390)") && said.contains("!320"), "{said}");
        assert!(said.contains("tar -x, mount: 2.60, at most 2.5 times as slow as ext4"), "{said}");
        assert!(
            said.contains("tar -x, served: 1.23, at most 1.2 times as slow as mount"),
            "{said}"
        );
        assert!(!said.contains("tar -x, run"), "{said}");
        found.smoke = true;
        assert!(!text(&found).contains("missed\n"), "a smoke run judges");
    }
}
