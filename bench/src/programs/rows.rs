//! The programs, in the order in which they are run, and what is aimed at.
//!
//! Scripts run in the directory of the column, with what [`super::fixture`] has made at `$FIXTURE`
//! and its numbers in the environment. A script that prepares makes what its program needs by
//! itself, so that each program can be run alone.

use super::column::Column;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Milliseconds.
    Milliseconds,
    /// Millions of bytes in a second.
    Speed,
    /// Requests in a second.
    Requests,
}

impl Unit {
    /// How it is written.
    pub fn sign(self) -> &'static str {
        match self {
            Unit::Milliseconds => "ms",
            Unit::Speed => "MB/s",
            Unit::Requests => "1/s",
        }
    }

    /// The best of `figures`.
    pub fn best(self, figures: &[f64]) -> Option<f64> {
        let better = |a: f64, b: f64| if self == Unit::Milliseconds { a.min(b) } else { a.max(b) };
        figures.iter().copied().reduce(better)
    }

    /// By how many times `figure` is worse than `other`.
    pub fn worse(self, figure: f64, other: f64) -> f64 {
        if self == Unit::Milliseconds { figure / other } else { other / figure }
    }
}

/// What is done and measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A script; its time is the figure.
    Timed(&'static str),
    /// A script that prints the figure.
    Prints(&'static str),
    /// nginx with one worker serves a file of so many KiB to wrk; requests in a second.
    Nginx(u64),
    /// `true` is run on a volume that no process has open; the time until it has ended.
    Launch,
}

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Aim {
    /// At most so many times as slow as this column in the same run.
    Times(f64, &'static str),
    /// At most this figure.
    Most(f64),
}

/// An aim of some columns.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The columns that are judged, where they are measured.
    pub columns: &'static [&'static str],
    /// The aim.
    pub aim: Aim,
}

/// A volume of one's own.
const OWN: &[&str] = &["run", "mount"];

const fn own(times: f64) -> Goal {
    Goal { columns: OWN, aim: Aim::Times(times, "ext4") }
}

const fn written_back(times: f64) -> Goal {
    Goal { columns: &["writeback"], aim: Aim::Times(times, "ext4") }
}

/// What file systems in other programs do not reach.
const PEER: Goal = Goal { columns: OWN, aim: Aim::Times(0.1, "fuse2fs") };

/// What holds for every row: sharing is to cost little.
pub const SHARED: Goal = Goal { columns: &["served"], aim: Aim::Times(1.2, "mount") };

/// A program.
#[derive(Debug)]
pub struct Row {
    /// Its name in the table.
    pub name: &'static str,
    /// What the figure counts.
    pub unit: Unit,
    /// The script that makes what the program needs.
    pub prepare: &'static str,
    /// What is measured.
    pub work: Work,
    /// A script that fails, or prints something else than in the other columns, where the program
    /// has not done what it should.
    pub check: &'static str,
    /// What is aimed at.
    pub goals: &'static [Goal],
}

impl Row {
    /// Whether it can be run on `column`.
    pub fn is_for(&self, column: &Column) -> bool {
        self.work != Work::Launch || column.launches
    }
}

/// What several scripts begin with.
pub const PREAMBLE: &str = r#"
cloned() { [ -d tree ] || git clone -q "file://$FIXTURE/origin" tree; }
unpacked() { [ -d "$1" ] || { mkdir "$1"; tar -xf "$FIXTURE/tree.tar" -C "$1"; }; }
as_packed() { tar -df "$FIXTURE/tree.tar" -C "$1"; }
blocks() { fio --name=blocks --filename=blocks --ioengine=psync --thread \
    --disk_util=0 --size="$MIB"m --invalidate=0 --verify=crc32c --output-format=terse --terse-version=3 "$@"; }
speed() { cut -d';' -f"$1" | awk '{ print $1 * 1024 / 1e6 }'; }
"#;

/// All programs.
pub const ROWS: &[Row] = &[
    Row {
        name: "git clone",
        unit: Unit::Milliseconds,
        prepare: "rm -rf tree",
        work: Work::Timed(r#"git clone -q "file://$FIXTURE/origin" tree"#),
        check: r#"diff -r -x .git "$FIXTURE/origin" tree; git -C tree rev-parse HEAD"#,
        goals: &[own(0.85)],
    },
    Row {
        name: "git status, second",
        unit: Unit::Milliseconds,
        prepare: "cloned; git -C tree status --porcelain",
        work: Work::Timed("git -C tree status --porcelain > status"),
        check: "cat status",
        goals: &[Goal { columns: OWN, aim: Aim::Times(1.5, "tmpfs") }],
    },
    Row {
        name: "find",
        unit: Unit::Milliseconds,
        prepare: "cloned; find tree > found",
        work: Work::Timed("find tree > found"),
        check: "grep -v ^tree/.git found | LC_ALL=C sort | cksum",
        goals: &[own(1.2)],
    },
    Row {
        name: "grep -r",
        unit: Unit::Milliseconds,
        prepare: "cloned; ! grep -r 'what is not there' tree",
        work: Work::Timed("! grep -r 'what is not there' tree"),
        check: "grep -rh --exclude-dir=.git 'fn f1_' tree | LC_ALL=C sort | cksum",
        goals: &[own(1.2)],
    },
    Row {
        name: "tar -c",
        unit: Unit::Milliseconds,
        prepare: "cloned; tar -c tree | cat > /dev/null",
        work: Work::Timed("tar -c tree | cat > /dev/null"),
        check: "tar -c --exclude=.git --sort=name --mtime=@0 tree | cksum",
        goals: &[own(1.2)],
    },
    Row {
        name: "tar -x",
        unit: Unit::Milliseconds,
        prepare: "rm -rf unpacked; mkdir unpacked",
        work: Work::Timed(r#"tar -xf "$FIXTURE/tree.tar" -C unpacked"#),
        check: "as_packed unpacked",
        goals: &[own(2.5), written_back(1.5), PEER],
    },
    Row {
        name: "cp -a",
        unit: Unit::Milliseconds,
        prepare: "unpacked unpacked; rm -rf copy",
        work: Work::Timed("cp -a unpacked copy"),
        check: "as_packed copy",
        goals: &[own(2.5), written_back(1.5), PEER],
    },
    Row {
        name: "rm -rf",
        unit: Unit::Milliseconds,
        prepare: "unpacked copy",
        work: Work::Timed("rm -rf copy"),
        check: "! [ -e copy ]",
        goals: &[own(1.5), PEER],
    },
    Row {
        name: "make -j2",
        unit: Unit::Milliseconds,
        prepare: r#"rm -rf project; cp -r "$FIXTURE/project" project"#,
        work: Work::Timed("make -s -j2 -C project"),
        check: "./project/program",
        goals: &[own(0.9)],
    },
    Row {
        name: "SQLite WAL",
        unit: Unit::Milliseconds,
        prepare: "rm -f rows.db*",
        work: Work::Timed(
            r#"sqlite3 -batch rows.db "PRAGMA journal_mode = WAL;
            CREATE TABLE t (id INTEGER PRIMARY KEY, s TEXT, f REAL);
            INSERT INTO t WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < $ROWS)
                SELECT n, 'row ' || (n * 7919 % 1000003), n / 3.0 FROM c;
            CREATE INDEX i ON t (s);" > mode"#,
        ),
        check: r#"cat mode; sqlite3 rows.db "PRAGMA integrity_check; SELECT count(*), sum(length(s)), max(s) FROM t""#,
        goals: &[own(1.5)],
    },
    Row {
        name: "sqlite3, a row each",
        unit: Unit::Milliseconds,
        prepare: r#"rm -f each.db*; sqlite3 each.db "PRAGMA journal_mode = WAL; CREATE TABLE t (n)""#,
        work: Work::Timed(
            r#"for n in $(seq "$PROCESSES"); do sqlite3 each.db "INSERT INTO t VALUES ($n)"; done"#,
        ),
        check: r#"sqlite3 each.db "PRAGMA integrity_check; SELECT count(*), sum(n) FROM t""#,
        goals: &[own(1.5)],
    },
    Row {
        name: "dbench, 4 clients",
        unit: Unit::Speed,
        prepare: "",
        work: Work::Prints(
            // It takes a semaphore whose number is 0, as the first one's is, for none, and goes on.
            r#"dbench -D . -t "$LONG" 4 > dbench.log
            if grep -v 'barrier semaphore' dbench.log | grep -iE 'fail|error' >&2; then exit 1; fi
            awk '/^Throughput/ { print $2 }' dbench.log"#,
        ),
        check: "",
        goals: &[own(2.0), written_back(1.0)],
    },
    Row {
        name: "fio, random writes of 4 KiB",
        unit: Unit::Speed,
        prepare: "rm -f blocks; blocks --rw=write --bs=1m --do_verify=0",
        work: Work::Prints("blocks --rw=randwrite --bs=4k --do_verify=0 | speed 48"),
        check: "blocks --rw=randwrite --bs=4k --verify_only > /dev/null",
        goals: &[],
    },
    Row {
        name: "fio, random reads of 4 KiB",
        unit: Unit::Speed,
        prepare: "rm -f blocks; blocks --rw=write --bs=4k --do_verify=0; cat blocks > /dev/null",
        work: Work::Prints("blocks --rw=randread --bs=4k | speed 7"),
        check: "",
        goals: &[],
    },
    Row {
        name: "fio, writes of 1 MiB",
        unit: Unit::Speed,
        prepare: "rm -f blocks",
        work: Work::Prints("blocks --rw=write --bs=1m --do_verify=0 | speed 48"),
        check: "blocks --rw=write --bs=1m --verify_only > /dev/null",
        goals: &[],
    },
    Row {
        name: "fio, reads of 1 MiB",
        unit: Unit::Speed,
        prepare: "rm -f blocks; blocks --rw=write --bs=1m --do_verify=0; cat blocks > /dev/null",
        work: Work::Prints("blocks --rw=read --bs=1m | speed 7"),
        check: "",
        goals: &[],
    },
    Row {
        name: "nginx, a file of 64 KiB",
        unit: Unit::Requests,
        prepare: "",
        work: Work::Nginx(64),
        check: "",
        goals: &[own(1.0)],
    },
    Row {
        name: "run of true",
        unit: Unit::Milliseconds,
        prepare: "",
        work: Work::Launch,
        check: "",
        goals: &[Goal { columns: &["run"], aim: Aim::Most(10.0) }],
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::column::COLUMNS;

    #[test]
    fn goals_name_what_is_measured() {
        let is_column = |name: &str| COLUMNS.iter().any(|column| column.name == name);
        for goal in ROWS.iter().flat_map(|row| row.goals).chain([&SHARED]) {
            assert!(goal.columns.iter().all(|name| is_column(name)), "{goal:?}");
            if let Aim::Times(_, than) = goal.aim {
                assert!(is_column(than), "{goal:?}");
            }
        }
    }

    #[test]
    fn better_and_worse() {
        assert_eq!(Unit::Milliseconds.best(&[3.0, 2.0, 4.0]), Some(2.0));
        assert_eq!(Unit::Speed.best(&[3.0, 2.0, 4.0]), Some(4.0));
        assert_eq!(Unit::Milliseconds.worse(30.0, 10.0), 3.0);
        assert_eq!(Unit::Requests.worse(10.0, 30.0), 3.0);
        assert_eq!(Unit::Speed.best(&[]), None);
    }
}
