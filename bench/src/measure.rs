//! All measurements of a run: workloads, points, rounds, subjects.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::child::{self, Order};
use crate::limit::Limit;
use crate::machine::{self, Machine, Noise, Watch};
use crate::record::{Broken, Record, Summary};
use crate::served::ServerProcess;
use crate::subject::{Places, Subject};
use crate::system;
use crate::table::Workload;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Extent {
    /// Only show that everything works.
    pub smoke: bool,
    /// How often each point is measured on each subject, in a new process each time.
    pub rounds: usize,
    /// The subjects that take part.
    pub subjects: Vec<Subject>,
}

/// The measurements at one point.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    /// The point.
    pub point: u64,
    /// Summaries by subject and metric.
    pub results: BTreeMap<Subject, BTreeMap<String, Summary>>,
    /// Why subjects have none.
    pub failures: BTreeMap<Subject, String>,
}

impl Point {
    /// The summary of `metric` for `subject`.
    pub fn summary(&self, subject: Subject, metric: &str) -> Option<&Summary> {
        self.results.get(&subject)?.get(metric)
    }
}

/// The measurements of one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The workload.
    #[serde(serialize_with = "name_and_title", flatten)]
    pub workload: &'static Workload,
    /// The machine meanwhile.
    pub noise: Noise,
    /// Its points.
    pub points: Vec<Point>,
}

fn name_and_title<S: serde::Serializer>(
    workload: &&'static Workload,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap;
    let mut map = serializer.serialize_map(Some(4))?;
    map.serialize_entry("name", workload.name)?;
    map.serialize_entry("title", workload.title)?;
    map.serialize_entry("axis", workload.axis)?;
    let units: BTreeMap<_, _> =
        workload.metrics.iter().map(|(name, unit)| (*name, unit.sign())).collect();
    map.serialize_entry("units", &units)?;
    map.end()
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Outcomes {
    /// The machine.
    pub machine: Machine,
    /// The file system of the disk.
    pub disk: &'static str,
    /// Whether this was a smoke run, whose numbers mean nothing.
    pub smoke: bool,
    /// The workloads.
    pub workloads: Vec<Outcome>,
}

impl Outcomes {
    /// The failures, one line each. A process killed for want of memory is a result where memory is
    /// what is measured, unless it is the least demanding point.
    pub fn failures(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for outcome in &self.workloads {
            for point in &outcome.points {
                for (subject, reason) in &point.failures {
                    if outcome.workload.name != "small-memory" || point.point >= 8 {
                        let name = outcome.workload.name;
                        lines.push(format!("{name} {} {subject}: {reason}", point.point));
                    }
                }
            }
        }
        lines
    }
}

/// Measures `workloads`, telling `progress` what is being done.
pub fn measure(
    workloads: &[&'static Workload],
    places: &Places,
    binaries: &Path,
    extent: &Extent,
    mut progress: impl FnMut(&str),
) -> Outcomes {
    let outcomes = workloads.iter().map(|workload| {
        let watch = Watch::begin();
        let points = if extent.smoke { workload.smoke } else { workload.points };
        let points = points
            .iter()
            .map(|&at| point(workload, at, places, binaries, extent, &mut progress))
            .collect();
        Outcome { workload, noise: watch.end(), points }
    });
    let workloads = outcomes.collect();
    let disk = places.disk_name();
    Outcomes { machine: Machine::this(), disk, smoke: extent.smoke, workloads }
}

/// How long the rounds of one point may take before fewer have to do.
const ENOUGH: Duration = Duration::from_secs(90);
/// The fewest rounds that a median is taken of, outside smoke runs.
const ROUNDS_MIN: usize = 3;

fn point(
    workload: &'static Workload,
    at: u64,
    places: &Places,
    binaries: &Path,
    extent: &Extent,
    progress: &mut impl FnMut(&str),
) -> Point {
    let mut records: BTreeMap<Subject, Record> = BTreeMap::new();
    let mut failures = BTreeMap::new();
    let mut subjects: Vec<Subject> =
        extent.subjects.iter().copied().filter(|s| workload.subjects.contains(s)).collect();
    let begin = Instant::now();
    for round in 0..extent.rounds {
        if round >= ROUNDS_MIN && begin.elapsed() > ENOUGH {
            break;
        }
        for &subject in &subjects {
            if failures.contains_key(&subject) {
                continue;
            }
            progress(&format!("{} {at}, round {}, {subject}", workload.name, round + 1));
            match once(workload, at, subject, places, binaries, extent.smoke) {
                Ok(record) => records.entry(subject).or_default().merge(record),
                Err(Broken(reason)) => {
                    failures.insert(subject, reason);
                }
            }
        }
        // No subject always follows the same one.
        if !subjects.is_empty() {
            subjects.rotate_left(1);
        }
    }
    let summaries = |record: Record| {
        let summary =
            |(metric, samples): (String, Vec<f64>)| Some((metric, Summary::of(&samples)?));
        record.0.into_iter().filter_map(summary).collect()
    };
    records.retain(|subject, _| !failures.contains_key(subject));
    let results = records.into_iter().map(|(subject, r)| (subject, summaries(r))).collect();
    Point { point: at, results, failures }
}

fn once(
    workload: &'static Workload,
    at: u64,
    subject: Subject,
    places: &Places,
    binaries: &Path,
    smoke: bool,
) -> Result<Record, Broken> {
    let folder = places.fresh(subject)?;
    let limit = match workload.name {
        "small-memory" => Some(Limit::new(at << 20).map_err(|error| {
            Broken(format!("a control group could not be made ({error}); run as root"))
        })?),
        _ => None,
    };
    let mut order = Order {
        subject,
        workload: workload.name.into(),
        point: at,
        smoke,
        folder: folder.path().into(),
        binaries: binaries.into(),
        group: limit.as_ref().map(|limit| limit.folder().into()),
        server: None,
        socket: None,
        number: None,
    };
    child::prepare(&order)?;
    let mut server = subject.is_served().then(|| ServerProcess::start(&order)).transpose()?;
    if let Some(server) = &server {
        order.server = Some(server.process());
        order.socket = Some(server.socket().into());
    }
    system::settle(&places.disk);
    if !smoke {
        // About what the largest of them write.
        machine::warm_memory(child::volume_bytes(workload.name, at, false) / 2);
    }
    let record = child::spawn(&order)?;
    if let Some(server) = server.take() {
        server.stop()?;
    }
    Ok(record)
}
