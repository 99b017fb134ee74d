//! The goals of a server under attack, and the table.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// The victim's figures. Milliseconds and megabytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
    pub throughput: f64,
}

/// The result of one attack.
#[derive(Debug, Default, Serialize)]
pub struct Row {
    pub attack: &'static str,
    /// The victim before the attack.
    pub alone: Option<Measured>,
    /// The victim under attack; `None` when it did not get to its end.
    pub under: Option<Measured>,
    /// The longest that a newcomer took to its first answer; `None` when it got none.
    pub newcomer_ms: Option<f64>,
    /// The most anonymous memory of the server, in MiB.
    pub memory_mib: f64,
    /// The most shared memory that it had mapped, in MiB.
    pub shared_mib: f64,
    /// Whether the server ended when it was told to.
    pub ends: bool,
    /// The words of all actors, such as how strangers were refused.
    pub notes: String,
    /// Why there is no figure.
    pub failure: Option<String>,
}

/// The most of what a newcomer may take, in milliseconds.
const NEWCOMER_MS: f64 = 100.0;
/// The most anonymous memory, in MiB.
const MEMORY_MIB: f64 = 256.0;

impl Row {
    /// The goals that are missed.
    pub fn missed(&self) -> Vec<&'static str> {
        let mut missed = Vec::new();
        match (&self.alone, &self.under) {
            (Some(alone), Some(under)) => {
                if under.p99 > 3.0 * alone.p99 + 1.0 {
                    missed.push("p99");
                }
                if under.throughput < alone.throughput / 2.0 {
                    missed.push("throughput");
                }
            }
            _ => missed.push("stopped"),
        }
        if self.newcomer_ms.is_none_or(|ms| ms > NEWCOMER_MS) {
            missed.push("newcomer");
        }
        if self.memory_mib > MEMORY_MIB {
            missed.push("memory");
        }
        if !self.ends {
            missed.push("does not end");
        }
        missed
    }

    fn verdict(&self) -> String {
        match (&self.failure, self.missed()) {
            (Some(why), _) => format!("failed: {why}"),
            (None, missed) if missed.is_empty() => "met".to_owned(),
            (None, missed) => format!("missed: {}", missed.join(", ")),
        }
    }
}

fn number(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

const HEAD: [&str; 13] = [
    "attack", "p50", "alone", "p99", "alone", "max", "alone", "MB/s", "alone", "newcomer",
    "own MiB", "shared", "goals",
];

fn cells(row: &Row) -> Vec<String> {
    let figure = |of: &Option<Measured>, field: fn(&Measured) -> f64| {
        of.as_ref().map_or("-".to_owned(), |measured| number(field(measured)))
    };
    let fields: [fn(&Measured) -> f64; 4] = [|m| m.p50, |m| m.p99, |m| m.max, |m| m.throughput];
    let mut cells = vec![row.attack.to_owned()];
    for field in fields {
        cells.extend([figure(&row.under, field), figure(&row.alone, field)]);
    }
    cells.push(row.newcomer_ms.map_or("never".to_owned(), number));
    cells.extend([number(row.memory_mib), number(row.shared_mib), row.verdict()]);
    cells
}

/// One row for the eyes of whoever waits.
pub fn line(row: &Row) -> String {
    let notes = if row.notes.is_empty() { String::new() } else { format!(" ({})", row.notes) };
    let cells = cells(row);
    let named = HEAD.iter().zip(&cells).skip(1);
    let text: Vec<String> = named.map(|(name, cell)| format!("{name} {cell}")).collect();
    text.join(", ") + &notes
}

/// The table.
pub fn text(rows: &[Row], smoke: bool) -> String {
    let mut out = String::from(
        "A victim's calls (write, read back, stat, name that is not there) one a millisecond, then as many\n\
         bytes as it can by four threads; under attack, beside itself alone on the same server before. Times\n\
         in milliseconds; a newcomer's is the longest to its first answer. Own memory of the server is\n\
         anonymous, shared that of rings and mapped files. Goals: p99 at most 3 times alone plus 1 ms, half\n\
         the throughput, a newcomer within 100 ms, 256 MiB of the server's own, and it ends when told to.\n",
    );
    if smoke {
        out.push_str("A smoke run: the numbers mean nothing.\n");
    }
    let mut table = vec![HEAD.map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(cells));
    let last = HEAD.len() - 1;
    let widths: Vec<usize> =
        (0..last).map(|at| table.iter().map(|row| row[at].len()).max().unwrap_or(0)).collect();
    for row in &table {
        let _ = write!(out, "\n{:<1$}", row[0], widths[0]);
        for (cell, width) in row[1..last].iter().zip(&widths[1..]) {
            let _ = write!(out, "  {cell:>width$}");
        }
        let _ = write!(out, "  {}", row[last]);
    }
    let notes = rows.iter().filter(|row| !row.notes.is_empty());
    for (at, row) in notes.enumerate() {
        out.push_str(if at == 0 { "\n\nWhat they say:\n" } else { "" });
        let _ = writeln!(out, "  {}: {}", row.attack, row.notes);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(under: Option<Measured>) -> Row {
        let alone = Measured { p50: 0.1, p99: 1.0, max: 2.0, throughput: 100.0 };
        Row { alone: Some(alone), under, newcomer_ms: Some(5.0), ends: true, ..Row::default() }
    }

    #[test]
    fn goals() {
        let good = Measured { p50: 0.2, p99: 4.0, max: 400.0, throughput: 50.0 };
        assert!(row(Some(good)).missed().is_empty());
        assert_eq!(row(Some(Measured { p99: 4.1, ..good })).missed(), ["p99"]);
        assert_eq!(row(Some(Measured { throughput: 49.0, ..good })).missed(), ["throughput"]);
        assert_eq!(row(None).missed(), ["stopped"]);
        assert_eq!(Row { newcomer_ms: None, ..row(Some(good)) }.missed(), ["newcomer"]);
        assert_eq!(Row { newcomer_ms: Some(101.0), ..row(Some(good)) }.missed(), ["newcomer"]);
        assert_eq!(Row { memory_mib: 257.0, ..row(Some(good)) }.missed(), ["memory"]);
        assert_eq!(Row { ends: false, ..row(Some(good)) }.missed(), ["does not end"]);
    }
}
