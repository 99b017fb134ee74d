//! Atoll in a process of its own, for many programs, beside the file systems of the kernel.

use super::{Aim, Goal, RUNS, Unit, Workload};
use crate::subject::Subject;

const NS: Unit = Unit::Nanoseconds;

const fn gain(metric: &'static str, point: u64, peer: Subject, times: f64) -> Goal {
    Goal { metric, point, aim: Aim::Gain(peer, times) }
}

const NULL_CALL: &[(&str, Unit)] =
    &[("p50", NS), ("p99", NS), ("ping-pong", NS), ("processor", NS)];

const SCALING: &[(&str, Unit)] =
    &[("pwrite", NS), ("pwrite processor", NS), ("pread", NS), ("pread processor", NS)];

/// All workloads, in the order of the report.
pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "ring-throughput",
        title: "indices through a ring; one thread takes out what the others put in, one alone does both",
        axis: "threads",
        points: &[1, 2, 4, 8, 16],
        smoke: &[1, 4],
        metrics: &[("indices", Unit::Rate)],
        subjects: &[Subject::Spsc, Subject::Scq, Subject::Locked],
        goals: &[],
    },
    Workload {
        name: "ring-call",
        title: "a request that does nothing, through the rings alone; one thread answers the others",
        axis: "threads",
        points: &[2, 4, 8, 16],
        smoke: &[2, 16],
        metrics: &[("p50", NS), ("p99", NS), ("ping-pong", NS)],
        subjects: &[Subject::Spsc],
        goals: &[Goal { metric: "p50", point: 2, aim: Aim::Within("ping-pong", 3.0) }],
    },
    Workload {
        name: "null-call-polling",
        title: "a request that does nothing, both sides spinning",
        axis: "processors",
        // With one, each would spin until the other's turn came.
        points: &[2],
        smoke: &[2],
        metrics: NULL_CALL,
        subjects: &[Subject::AtollServer],
        goals: &[Goal { metric: "p50", point: 2, aim: Aim::Within("ping-pong", 3.0) }],
    },
    Workload {
        name: "null-call-blocking",
        title: "the same, both sides sleeping whenever there is nothing to do",
        axis: "processors",
        points: &[1, 2],
        smoke: &[2],
        metrics: NULL_CALL,
        subjects: &[Subject::AtollServer],
        goals: &[],
    },
    Workload {
        name: "operations",
        title: "single calls of one client, medians; 4 KiB of a file of 1 MiB",
        axis: "processors",
        points: &[1, 2],
        smoke: &[2],
        metrics: &[
            ("pwrite", NS),
            ("append", NS),
            ("pread", NS),
            ("fstat", NS),
            ("lseek", NS),
            ("open+close", NS),
            ("create", NS),
            ("unlink", NS),
            ("pwrite p99", NS),
            ("pread p99", NS),
            ("open+close p99", NS),
            ("create p99", NS),
            ("pwrite processor", NS),
            ("pread processor", NS),
            ("create processor", NS),
        ],
        subjects: &Subject::SERVED,
        goals: &[
            Goal { metric: "pwrite", point: 2, aim: Aim::Below(1000.0) },
            gain("pread", 2, Subject::Disk, 3.0),
            gain("fstat", 2, Subject::Disk, 10.0),
            gain("lseek", 2, Subject::Disk, 20.0),
            gain("open+close", 2, Subject::Disk, 2.0),
            gain("create", 2, Subject::Disk, 10.0),
            gain("unlink", 2, Subject::Disk, 3.0),
            gain("open+close", 2, Subject::Tmpfs, 1.0),
            gain("create", 2, Subject::Tmpfs, 1.0),
            gain("unlink", 2, Subject::Tmpfs, 1.0),
        ],
    },
    Workload {
        name: "threads",
        title: "4 KiB calls of the threads of one program, each on its file, time over all calls",
        axis: "threads",
        points: &[1, 2, 4, 8],
        smoke: &[2],
        metrics: SCALING,
        subjects: &Subject::SERVED,
        goals: &[],
    },
    Workload {
        name: "processes",
        title: "the same by programs of one thread each",
        axis: "processes",
        points: &[1, 2, 4, 8],
        smoke: &[2],
        metrics: SCALING,
        subjects: &Subject::SERVED,
        goals: &[],
    },
    Workload {
        name: "stops",
        title: "calls of one client, who makes and removes files, while another writes 64 KiB at a time",
        axis: "MB/s",
        points: &[100, 1000],
        smoke: &[100],
        metrics: &[
            ("name p50", NS),
            ("name p999", NS),
            ("name longest", Unit::Microseconds),
            ("names over 5 ms", Unit::Count),
            ("write p50", NS),
            ("write p999", NS),
            ("write longest", Unit::Microseconds),
            ("writes over 5 ms", Unit::Count),
            ("clock longest", Unit::Microseconds),
            ("written", Unit::Speed),
            ("names", Unit::Rate),
        ],
        subjects: &Subject::SERVED,
        goals: &[
            Goal { metric: "name longest", point: 1000, aim: Aim::Below(5000.0) },
            Goal { metric: "write longest", point: 1000, aim: Aim::Below(5000.0) },
        ],
    },
    Workload {
        name: "create-sync",
        title: "files created, 4 KiB written, fsync, close: each",
        axis: "files",
        points: &[1000],
        smoke: &[10],
        metrics: &[("each", Unit::Microseconds), ("processor", NS)],
        subjects: &[Subject::AtollServer, Subject::AtollPreload, Subject::AtollFuse, Subject::Disk],
        goals: &[gain("each", 1000, Subject::Disk, 1.8)],
    },
    Workload {
        name: "sizes",
        title: "one file of 16 MiB by calls of one size, overwritten, then read",
        axis: "bytes a call",
        points: &[4096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304],
        smoke: &[65_536],
        metrics: &[("write", Unit::Speed), ("read", Unit::Speed)],
        subjects: &Subject::SERVED,
        goals: &[],
    },
    Workload {
        name: "postmark",
        title: "PostMark, 500 transactions, the whole process",
        axis: "files",
        points: &[500, 1000, 10_000],
        smoke: &[500],
        metrics: RUNS,
        subjects: &Subject::SERVED,
        goals: &[
            gain("steady", 500, Subject::Tmpfs, 2.0),
            gain("steady", 1000, Subject::Tmpfs, 2.0),
            gain("steady", 10_000, Subject::Tmpfs, 2.0),
        ],
    },
    Workload {
        name: "postmark-large",
        title: "PostMark, 2,000 transactions on files of 64 KiB to 4 MiB, the whole process",
        axis: "files",
        points: &[100],
        smoke: &[10],
        metrics: RUNS,
        subjects: &Subject::SERVED,
        goals: &[gain("steady", 100, Subject::Tmpfs, 2.0)],
    },
    Workload {
        name: "nginx",
        title: "nginx with one worker, 4 connections kept alive",
        axis: "KiB a file",
        points: &[64, 1024, 4096],
        smoke: &[64],
        metrics: &[("requests", Unit::Rate)],
        subjects: &[
            Subject::AtollPreload,
            Subject::AtollFuse,
            Subject::AtollAlone,
            Subject::AtollReadOnly,
            Subject::Disk,
            Subject::Tmpfs,
        ],
        goals: &[
            gain("requests", 64, Subject::Disk, 1.0),
            gain("requests", 1024, Subject::Disk, 1.0),
            gain("requests", 4096, Subject::Disk, 1.0),
        ],
    },
];
