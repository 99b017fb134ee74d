//! The measurements: the suites, their workloads with points and metrics, and what Atoll aims at.

mod embedded;
mod server;

use crate::subject::Subject;

/// The unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Microseconds,
    /// 10^6 bytes each second.
    Speed,
    /// 1,024 bytes.
    KibiBytes,
    /// Nanoseconds.
    Nanoseconds,
    /// Requests or indices each second.
    Rate,
    /// How many.
    Count,
}

impl Unit {
    /// The unit's sign.
    pub fn sign(self) -> &'static str {
        match self {
            Unit::Microseconds => "us",
            Unit::Speed => "MB/s",
            Unit::KibiBytes => "KiB",
            Unit::Nanoseconds => "ns",
            Unit::Rate => "/s",
            Unit::Count => "",
        }
    }

    /// How many times better `ours` is than `theirs`.
    pub fn gain(self, ours: f64, theirs: f64) -> f64 {
        match self {
            Unit::Speed | Unit::Rate => ours / theirs,
            Unit::Microseconds | Unit::KibiBytes | Unit::Nanoseconds | Unit::Count => theirs / ours,
        }
    }
}

/// An aim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// To be this many times better than the peer.
    Gain(Subject, f64),
    /// To stay below this value.
    Below(f64),
    /// To grow at most by this factor from this smaller point on.
    Flat(u64, f64),
    /// To be at most this many times the value of another metric of the same measurement.
    Within(&'static str, f64),
}

/// A goal: an aim for a metric at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    /// The metric.
    pub metric: &'static str,
    /// The point.
    pub point: u64,
    /// The aim.
    pub aim: Aim,
}

/// One workload.
#[derive(Debug)]
pub struct Workload {
    /// Its name on the command line and in JSON.
    pub name: &'static str,
    /// Its description, for the table's head.
    pub title: &'static str,
    /// The quantity that varies from point to point.
    pub axis: &'static str,
    /// The points.
    pub points: &'static [u64],
    /// The points of a smoke run.
    pub smoke: &'static [u64],
    /// The metrics and their units.
    pub metrics: &'static [(&'static str, Unit)],
    /// The subjects that take part.
    pub subjects: &'static [Subject],
    /// The goals that Atoll aims at.
    pub goals: &'static [Goal],
}

/// Workloads that are measured by one command, and whose goals they are.
#[derive(Debug)]
pub struct Suite {
    /// Its name: that of the command, and of the files with the results.
    pub name: &'static str,
    /// Its workloads, in the order of the report.
    pub workloads: &'static [Workload],
    /// The subject whose figures are held against the goals.
    pub judged: Subject,
    /// The one whose memory is judged as well.
    pub judged_for_memory: Option<Subject>,
}

/// Atoll inside the program's own process.
pub const EMBEDDED: Suite = Suite {
    name: "embedded",
    workloads: embedded::WORKLOADS,
    judged: Subject::AtollMmap,
    judged_for_memory: Some(Subject::AtollPread),
};

/// Atoll in a process of its own, for many programs.
pub const SERVER: Suite = Suite {
    name: "server",
    workloads: server::WORKLOADS,
    judged: Subject::AtollServer,
    judged_for_memory: None,
};

impl Suite {
    /// The subject whose figures for `workload` are held against its goals: where the usual one
    /// takes no part, the first.
    pub fn judges(&self, workload: &Workload) -> Subject {
        if workload.subjects.contains(&self.judged) { self.judged } else { workload.subjects[0] }
    }
}

/// Runs of a program: the first on a fresh file system, and later ones on the same.
const RUNS: &[(&str, Unit)] = &[("cold", Unit::Microseconds), ("steady", Unit::Microseconds)];

const TOTAL: &[(&str, Unit)] = &[("total", Unit::Microseconds)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_name_what_is_measured() {
        for workload in EMBEDDED.workloads.iter().chain(SERVER.workloads) {
            for goal in workload.goals {
                assert!(workload.points.contains(&goal.point), "{goal:?}");
                assert!(workload.metrics.iter().any(|(name, _)| *name == goal.metric), "{goal:?}");
                match goal.aim {
                    Aim::Gain(peer, _) => assert!(workload.subjects.contains(&peer), "{goal:?}"),
                    Aim::Flat(from, _) => assert!(workload.points.contains(&from), "{goal:?}"),
                    Aim::Below(_) => {}
                    Aim::Within(other, _) => {
                        assert!(
                            workload.metrics.iter().any(|(name, _)| *name == other),
                            "{goal:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn gains() {
        assert_eq!(Unit::Microseconds.gain(10.0, 30.0), 3.0);
        assert_eq!(Unit::Speed.gain(30.0, 10.0), 3.0);
    }
}
