//! Atoll inside the program's own process, beside the file systems of the kernel.

use super::{Aim, Goal, RUNS, TOTAL, Unit, Workload};
use crate::subject::Subject;

const TIMES: &[(&str, Unit)] = &[
    ("cold", Unit::Microseconds),
    ("steady", Unit::Microseconds),
    ("overwrite", Unit::Microseconds),
];

const fn faster(metric: &'static str, point: u64, times: f64) -> Goal {
    Goal { metric, point, aim: Aim::Gain(Subject::Tmpfs, times) }
}

const fn flat(metric: &'static str) -> Goal {
    // Twice: more levels of a tree, and more misses of the processor's caches.
    Goal { metric, point: 1_000_000, aim: Aim::Flat(1_000, 2.0) }
}

const ON_DISK: &[Subject] = &[Subject::AtollMmap, Subject::AtollPread, Subject::Disk];

/// All workloads, in the order of the report.
pub const WORKLOADS: &[Workload] = &[
    Workload {
        name: "read-after-write",
        title: "1 MiB in shuffled chunks, each written and read back",
        axis: "bytes a chunk",
        points: &[64, 256, 1024, 4096, 16384, 65536],
        smoke: &[64, 65536],
        metrics: TIMES,
        subjects: &Subject::EMBEDDED,
        goals: &[
            faster("steady", 64, 30.0),
            faster("steady", 1024, 27.0),
            faster("steady", 4096, 8.0),
            faster("steady", 65536, 4.0),
        ],
    },
    Workload {
        name: "many-files",
        title: "files of 1 MiB by 4 KiB, all written, then all read",
        axis: "files",
        points: &[1, 10, 100],
        smoke: &[1, 3],
        metrics: &[
            ("cold", Unit::Microseconds),
            ("steady", Unit::Microseconds),
            ("overwrite", Unit::Microseconds),
            ("memory", Unit::KibiBytes),
        ],
        subjects: &Subject::EMBEDDED,
        goals: &[faster("cold", 100, 1.0), faster("steady", 100, 2.0)],
    },
    Workload {
        name: "small-memory",
        title: "100 files of 1 MiB by 4 KiB in a process of limited memory",
        axis: "MiB of memory",
        points: &[1, 2, 4, 8],
        smoke: &[8],
        metrics: TIMES,
        subjects: ON_DISK,
        goals: &[],
    },
    Workload {
        name: "readdir",
        title: "1,000 listings of a directory, inode numbers only",
        axis: "entries",
        points: &[10, 100, 1000],
        smoke: &[10, 1000],
        metrics: TOTAL,
        subjects: &Subject::EMBEDDED,
        goals: &[faster("total", 1000, 10.0)],
    },
    Workload {
        name: "lseek",
        title: "lseek on one file, all calls together",
        axis: "calls",
        points: &[1, 10, 100, 1000, 10_000, 100_000, 1_000_000],
        smoke: &[1, 1000],
        metrics: TOTAL,
        subjects: &Subject::EMBEDDED,
        goals: &[faster("total", 1_000_000, 30.0)],
    },
    Workload {
        name: "fstat",
        title: "fstat on one file, all calls together",
        axis: "calls",
        points: &[100, 1000, 10_000, 100_000, 1_000_000],
        smoke: &[100],
        metrics: TOTAL,
        subjects: &Subject::EMBEDDED,
        goals: &[faster("total", 1_000_000, 20.0)],
    },
    Workload {
        name: "sequential",
        title: "one file by 64 KiB",
        axis: "MiB",
        points: &[1024],
        smoke: &[4],
        metrics: &[
            ("cold", Unit::Speed),
            ("steady", Unit::Speed),
            ("overwrite", Unit::Speed),
            ("read", Unit::Speed),
        ],
        subjects: &Subject::EMBEDDED,
        goals: &[faster("cold", 1024, 1.0), faster("steady", 1024, 1.0)],
    },
    Workload {
        name: "one-directory",
        title: "files in one directory, each call with the close after it",
        axis: "files",
        points: &[1000, 10_000, 100_000, 1_000_000],
        smoke: &[1000],
        metrics: &[
            ("create", Unit::Microseconds),
            ("open", Unit::Microseconds),
            ("unlink", Unit::Microseconds),
        ],
        subjects: &Subject::EMBEDDED,
        goals: &[
            faster("create", 100_000, 5.0),
            faster("open", 100_000, 3.0),
            faster("unlink", 100_000, 4.0),
            flat("create"),
            flat("open"),
            flat("unlink"),
        ],
    },
    Workload {
        name: "postmark",
        title: "PostMark, 500 transactions, the whole process",
        axis: "files",
        points: &[500, 1000, 10_000, 100_000],
        smoke: &[500, 1000],
        metrics: RUNS,
        subjects: &Subject::EMBEDDED,
        goals: &[
            faster("steady", 500, 3.0),
            faster("steady", 1000, 3.0),
            faster("steady", 10_000, 3.0),
            faster("steady", 100_000, 3.0),
        ],
    },
    Workload {
        name: "gdbm",
        title: "gdbm (GDBM_NOMMAP), keys of 4 bytes stored, then fetched, no sync",
        axis: "keys",
        points: &[100, 1000, 10_000],
        smoke: &[100],
        metrics: &[
            ("cold", Unit::Microseconds),
            ("steady", Unit::Microseconds),
            ("store", Unit::Microseconds),
            ("fetch", Unit::Microseconds),
        ],
        subjects: &Subject::EMBEDDED,
        goals: &[faster("steady", 10_000, 6.0)],
    },
    Workload {
        name: "gdbm-mmap",
        title: "the same, the file mapped: for comparison, since the library maps no files",
        axis: "keys",
        points: &[100, 1000, 10_000],
        smoke: &[100],
        metrics: &[
            ("cold", Unit::Microseconds),
            ("steady", Unit::Microseconds),
            ("store", Unit::Microseconds),
            ("fetch", Unit::Microseconds),
        ],
        subjects: &[Subject::Disk, Subject::Tmpfs],
        goals: &[],
    },
    Workload {
        name: "sqlite",
        title: "SQLite, journal mode DELETE, autocommitted inserts, then a select, no sync",
        axis: "rows",
        points: &[1, 10, 100, 1000],
        smoke: &[10],
        metrics: &[
            ("cold", Unit::Microseconds),
            ("steady", Unit::Microseconds),
            ("insert", Unit::Microseconds),
            ("select", Unit::Microseconds),
        ],
        subjects: &Subject::EMBEDDED,
        goals: &[faster("steady", 1000, 6.0)],
    },
    Workload {
        name: "append-fsync",
        title: "one small append and fsync",
        axis: "bytes",
        points: &[100],
        smoke: &[100],
        metrics: &[("append", Unit::Microseconds)],
        subjects: ON_DISK,
        goals: &[Goal { metric: "append", point: 100, aim: Aim::Gain(Subject::Disk, 1.0) }],
    },
    Workload {
        name: "idle-memory",
        title: "resident memory of the library with an idle volume",
        axis: "MiB of volume",
        points: &[1024],
        smoke: &[1024],
        metrics: &[
            ("memory", Unit::KibiBytes),
            ("anonymous", Unit::KibiBytes),
            ("mapped", Unit::KibiBytes),
        ],
        subjects: &[Subject::AtollMmap, Subject::AtollPread],
        goals: &[Goal { metric: "memory", point: 1024, aim: Aim::Below(1024.0) }],
    },
];
