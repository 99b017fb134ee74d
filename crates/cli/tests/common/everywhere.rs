//! The places where unmodified programs have files of Atoll's, by the kernel's way.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::unistd::geteuid;

use super::ways::MOUNTED;
use super::{atoll, folder, fsck, need, ok, served, serving, volume};

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// `atoll run` with a volume of its own.
    Run,
    /// `atoll mount FILE`.
    Mount,
    /// `atoll mount` of a volume that is served.
    ServedVolume,
    /// `atoll mount` of a directory of the host that is served.
    ServedDirectory,
}

impl Place {
    /// All that this user can use.
    pub fn all() -> &'static [Place] {
        use Place::*;
        if geteuid().is_root() {
            return &[Run, Mount, ServedVolume, ServedDirectory];
        }
        println!("skipped: mounting for all needs root");
        &[Run]
    }
}

/// All places, each with files of its own.
pub struct Everywhere {
    volume: served::Served,
    directory: serving::Served,
}

impl Everywhere {
    #[allow(clippy::new_without_default, reason = "it starts servers")]
    pub fn new() -> Everywhere {
        let served = served::Served::new();
        volume(served.path(), "own.vol", "512M");
        let dir = folder();
        std::fs::create_dir(dir.path().join("share")).unwrap();
        let directory = serving::Served::again(dir, &["share"]);
        Everywhere { volume: served, directory }
    }

    /// A folder of the host, in which scripts have `$HOST`.
    pub fn host(&self) -> &Path {
        self.volume.path()
    }

    /// A command that runs what its next arguments say at `place`, killed after `seconds`, and the
    /// directory there.
    pub fn command(&self, place: Place, seconds: u64) -> (Command, &'static str) {
        let seconds = seconds.to_string();
        if place == Place::Run {
            let mut command = atoll();
            command.current_dir(self.host()).args(["run", "-q", "-v", "own.vol:/vol"]);
            command.args(["--", "timeout", "-s", "KILL", &seconds]);
            return (command, "/vol");
        }
        need("unshare", "util-linux");
        let (folder, what) = match place {
            Place::ServedDirectory => (self.directory.path(), "s"),
            Place::ServedVolume => (self.host(), "s"),
            _ => (self.host(), "own.vol"),
        };
        let mut command = Command::new("unshare");
        command.current_dir(folder).args(["-m", "sh", "-ec", MOUNTED]);
        command.arg(env!("CARGO_BIN_EXE_atoll")).args([&seconds, what, ""]);
        (command, "m")
    }

    /// What the script prints at `place`, where its working directory is new; it has a minute.
    #[track_caller]
    pub fn script(&self, place: Place, text: &str) -> String {
        let (mut command, directory) = self.command(place, 60);
        command.args(["bash", "-euo", "pipefail", "-c"]);
        command.arg(format!("cd {directory}; cd \"$(mktemp -d work.XXXXXX)\"\n{text}"));
        command.env("HOST", self.host()).env("LC_ALL", "C").stdin(Stdio::null());
        ok(&mut command)
    }

    /// Runs the script at all places; it is to print `expected` at each.
    #[track_caller]
    pub fn all(self, text: &str, expected: &str) {
        for &place in Place::all() {
            assert_eq!(self.script(place, text).trim_end(), expected, "{place:?}");
        }
        self.end();
    }

    /// Checks that the servers have stayed well, and the volumes.
    pub fn end(self) {
        fsck(&self.host().join("own.vol"));
        self.volume.end();
        self.directory.ended();
    }
}
