//! The goals that Atoll aims at, and by how much they are met or missed.

use serde::Serialize;

use crate::measure::{Outcome, Outcomes};
use crate::subject::Subject;
use crate::table::{Aim, Goal, Suite, Unit};

/// A goal beside what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The workload.
    pub workload: &'static str,
    /// The metric.
    pub metric: &'static str,
    /// The point.
    pub point: u64,
    /// The subject.
    pub subject: Subject,
    /// The aim.
    pub aim: String,
    /// The result, in the same terms.
    pub reached: String,
    /// Whether it was met.
    pub pass: bool,
    /// How far the goal was missed, as a part of it; 0 when met.
    pub missed_by: f64,
}

impl Verdict {
    /// The verdict in a few words.
    pub fn words(&self) -> String {
        if self.pass {
            format!("PASS {} ({})", self.reached, self.aim)
        } else {
            format!("MISS {} ({}) by {:.0}%", self.reached, self.aim, self.missed_by * 100.0)
        }
    }
}

/// The verdicts on all goals of `suite` that were measured.
pub fn verdicts(suite: &Suite, outcomes: &Outcomes) -> Vec<Verdict> {
    if outcomes.smoke {
        return Vec::new();
    }
    let mut verdicts = Vec::new();
    for outcome in &outcomes.workloads {
        for goal in outcome.workload.goals {
            verdicts.extend(verdict(outcome, goal, suite.judges(outcome.workload), outcomes.disk));
            if let (Aim::Below(_), Some(also)) = (goal.aim, suite.judged_for_memory) {
                verdicts.extend(verdict(outcome, goal, also, outcomes.disk));
            }
        }
    }
    verdicts
}

fn verdict(outcome: &Outcome, goal: &Goal, subject: Subject, disk: &str) -> Option<Verdict> {
    let unit = outcome.workload.metrics.iter().find(|(name, _)| *name == goal.metric)?.1;
    let median = |point: u64, subject: Subject, metric: &str| {
        let point = outcome.points.iter().find(|measured| measured.point == point)?;
        Some(point.summary(subject, metric)?.median)
    };
    let ours = median(goal.point, subject, goal.metric)?;
    let theirs = match goal.aim {
        Aim::Gain(peer, _) => median(goal.point, peer, goal.metric)?,
        Aim::Flat(from, _) => median(from, subject, goal.metric)?,
        Aim::Within(other, _) => median(goal.point, subject, other)?,
        Aim::Below(_) => 0.0,
    };
    let (aim, reached, pass, missed_by) = judge(goal.aim, unit, ours, theirs, disk);
    let (workload, metric, point) = (outcome.workload.name, goal.metric, goal.point);
    Some(Verdict { workload, metric, point, subject, aim, reached, pass, missed_by })
}

fn judge(aim: Aim, unit: Unit, ours: f64, theirs: f64, disk: &str) -> (String, String, bool, f64) {
    match aim {
        Aim::Gain(peer, goal) => {
            let peer = if peer == Subject::Disk { disk } else { peer.key() };
            let gain = unit.gain(ours, theirs);
            let aim = format!("{goal}x of {peer}");
            (aim, format!("{gain:.2}x"), gain >= goal, (1.0 - gain / goal).max(0.0))
        }
        Aim::Below(limit) => {
            let aim = format!("below {limit} {}", unit.sign());
            (aim, format!("{ours:.0} {}", unit.sign()), ours < limit, (ours / limit - 1.0).max(0.0))
        }
        Aim::Within(other, limit) => {
            let times = ours / theirs;
            let aim = format!("at most {limit}x the {other}");
            (aim, format!("{times:.2}x"), times <= limit, (times / limit - 1.0).max(0.0))
        }
        Aim::Flat(from, limit) => {
            let growth = ours / theirs;
            let aim = format!("grows at most {limit}x from {from} on");
            (aim, format!("{growth:.2}x"), growth <= limit, (growth / limit - 1.0).max(0.0))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judged() {
        let gain = Aim::Gain(Subject::Tmpfs, 8.0);
        assert_eq!(
            judge(gain, Unit::Microseconds, 10.0, 80.0, "ext4"),
            ("8x of tmpfs".into(), "8.00x".into(), true, 0.0)
        );
        let (_, reached, pass, missed) = judge(gain, Unit::Microseconds, 10.0, 60.0, "ext4");
        assert_eq!((reached.as_str(), pass, missed), ("6.00x", false, 0.25));
        assert!(judge(Aim::Gain(Subject::Disk, 1.0), Unit::Speed, 2.0, 1.0, "ext4").2);
        assert!(!judge(Aim::Below(1024.0), Unit::KibiBytes, 1024.0, 0.0, "ext4").2);
        assert!(judge(Aim::Flat(1000, 2.0), Unit::Microseconds, 1.9, 1.0, "ext4").2);
        assert!(!judge(Aim::Flat(1000, 2.0), Unit::Microseconds, 2.1, 1.0, "ext4").2);
    }
}
