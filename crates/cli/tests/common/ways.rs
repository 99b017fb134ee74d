//! The ways in which a program comes to a volume.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::unistd::geteuid;

use super::served::Served;
use super::{atoll, fsck, need, ok, volume};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `atoll run` with a volume of one's own.
    Run,
    /// The same, with a kernel that writes back.
    WrittenBack,
    /// Of a static program.
    Static,
    /// `atoll run` with a volume that is served.
    Served,
    /// `atoll mount SOCKET`.
    MountedSocket,
    /// `atoll mount FILE`.
    MountedFile,
}

/// All that this user can go.
pub fn all() -> Vec<Way> {
    use Way::*;
    let mut ways = vec![Run, WrittenBack, Static, Served];
    if geteuid().is_root() {
        ways.extend([MountedSocket, MountedFile]);
    } else {
        println!("skipped: mounting for all needs root");
    }
    ways
}

/// Mounts $2 at m with the options $3 for the command that follows.
pub const MOUNTED: &str = r#"
seconds=$1; volume=$2; options=$3; shift 3; mkdir -p m
"$0" mount -f $options "$volume" m 2> mounting & server=$!
for i in $(seq 600); do mountpoint -q m && break; sleep 0.05; done
mountpoint -q m || { cat mounting; exit 1; }
status=0; timeout -s KILL $seconds "$@" || status=$?
"$0" umount m; wait $server || status=$?
exit $status
"#;

/// A program of tests/c, and volumes for it.
pub struct Ways {
    served: Served,
    program: PathBuf,
    alone: PathBuf,
    seconds: String,
    options: Vec<String>,
}

impl Ways {
    /// Compiles `source`, which has a minute each time.
    pub fn new(source: &str) -> Ways {
        Ways::long(source, 60)
    }

    /// With so many seconds.
    pub fn long(source: &str, seconds: u64) -> Ways {
        Ways::serving(source, seconds, &[])
    }

    /// With `options` for whoever serves the volume.
    pub fn with(source: &str, options: &[&str]) -> Ways {
        Ways::serving(source, 60, options)
    }

    fn serving(source: &str, seconds: u64, options: &[&str]) -> Ways {
        let served = Served::with(options);
        volume(served.path(), "own.vol", "128M");
        let program = compile(source, served.path(), "usual", &[]);
        let alone = compile(source, served.path(), "static", &["-static"]);
        let options = options.iter().map(|&word| word.to_owned()).collect();
        Ways { served, program, alone, seconds: seconds.to_string(), options }
    }

    /// A folder beside the volumes.
    pub fn path(&self) -> &Path {
        self.served.path()
    }

    /// The output of the program, which must succeed. `{}` in `arguments` is the volume's
    /// directory.
    #[track_caller]
    pub fn run(&self, way: Way, arguments: &[&str]) -> String {
        self.run_with(way, &[], arguments)
    }

    /// The same, with more options of `atoll run` where it goes that way.
    #[track_caller]
    pub fn run_with(&self, way: Way, more: &[&str], arguments: &[&str]) -> String {
        let mounted = matches!(way, Way::MountedSocket | Way::MountedFile);
        let directory = if mounted { "m" } else { "/vol" };
        let program = if way == Way::Static { &self.alone } else { &self.program };
        let mut command;
        if mounted {
            need("unshare", "util-linux");
            let (volume, options) = match way {
                Way::MountedSocket => ("s", String::new()),
                _ => ("own.vol", self.options.join(" ")),
            };
            command = Command::new("unshare");
            command.args(["-m", "sh", "-ec", MOUNTED]).arg(env!("CARGO_BIN_EXE_atoll"));
            command.args([&self.seconds, volume, &options]);
        } else {
            let own = matches!(way, Way::Run | Way::WrittenBack | Way::Static);
            command = atoll();
            command.args(["run", "-q", "-v", if own { "own.vol:/vol" } else { "s:/vol" }]);
            if own {
                command.args(&self.options);
            }
            if way == Way::WrittenBack {
                command.args(["--cache", "writeback"]);
            }
            command.args(more).args(["--", "timeout", "-s", "KILL", &self.seconds]);
        }
        command.current_dir(self.path()).stdin(Stdio::null());
        command.arg(program).args(arguments.iter().map(|word| word.replace("{}", directory)));
        ok(&mut command)
    }

    /// The program in every way: it is to print `expected` first.
    #[track_caller]
    pub fn all(self, expected: &str, arguments: &[&str]) {
        for way in all() {
            let printed = self.run(way, arguments);
            assert!(printed.starts_with(expected), "{way:?}: {printed}");
        }
        self.end();
    }

    /// Checks both volumes.
    pub fn end(self) {
        fsck(&self.path().join("own.vol"));
        self.served.end();
    }
}

/// Compiles `source` of tests/c.
pub fn compile(source: &str, dir: &Path, name: &str, arguments: &[&str]) -> PathBuf {
    need("gcc", "gcc");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(source);
    let to = dir.join(name);
    ok(Command::new("gcc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .arg(&to)
        .arg(from)
        .args(arguments));
    to
}
