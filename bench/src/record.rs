//! The record of one measurement.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Why a workload ended early, in words for people.
#[derive(Debug)]
pub struct Broken(pub String);

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Broken(error.to_string())
    }
}

/// Samples by metric, in the metric's unit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record(pub BTreeMap<String, Vec<f64>>);

impl Record {
    /// Adds a sample.
    pub fn add(&mut self, metric: &str, value: f64) {
        self.0.entry(metric.to_owned()).or_default().push(value);
    }

    /// Runs `work` and adds the microseconds that it took, divided by `calls`.
    pub fn time<T>(
        &mut self,
        metric: &str,
        calls: u64,
        work: impl FnOnce() -> Result<T, Broken>,
    ) -> Result<T, Broken> {
        let begin = Instant::now();
        let result = work()?;
        self.add(metric, begin.elapsed().as_secs_f64() * 1e6 / calls as f64);
        Ok(result)
    }

    /// Adds the samples of `other`.
    pub fn merge(&mut self, other: Record) {
        for (metric, samples) in other.0 {
            self.0.entry(metric).or_default().extend(samples);
        }
    }
}

/// The median, and how far samples spread around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle sample.
    pub median: f64,
    /// The sample below which a quarter lies.
    pub quarter: f64,
    /// The sample below which three quarters lie.
    pub three_quarters: f64,
    /// How many samples there are.
    pub samples: usize,
}

impl Summary {
    /// The summary of `samples`, or `None` if there are none.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let position = part * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
            low + (high - low) * position.fract()
        };
        (!sorted.is_empty()).then(|| Summary {
            median: at(0.5),
            quarter: at(0.25),
            three_quarters: at(0.75),
            samples: sorted.len(),
        })
    }

    /// The distance between the quartiles as a part of the median.
    pub fn spread(&self) -> f64 {
        if self.median == 0.0 { 0.0 } else { (self.three_quarters - self.quarter) / self.median }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Summary::of(&[]), None);
        let one = Summary::of(&[7.0]).unwrap();
        assert_eq!((one.median, one.spread()), (7.0, 0.0));
        let four = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((four.quarter, four.median, four.three_quarters), (1.75, 2.5, 3.25));
        assert_eq!(four.samples, 4);
    }

    #[test]
    fn merged() {
        let mut record = Record::default();
        record.add("cold", 1.0);
        let mut other = Record::default();
        other.add("cold", 2.0);
        other.add("steady", 3.0);
        record.merge(other);
        assert_eq!(record.0["cold"], [1.0, 2.0]);
        assert_eq!(record.0["steady"], [3.0]);
    }
}
