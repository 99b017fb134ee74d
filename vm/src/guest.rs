//! A guest that runs: it is given scripts, and ends with its value.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::{Image, Machine, Monitor, parts};

/// How long a guest may take to boot: a hundred times what it does on an idle machine.
const BOOT: Duration = Duration::from_mins(5);
/// How long a script may run unless the test says more.
const SCRIPT: Duration = Duration::from_mins(5);
/// After so long without output of a guest that stands still there is no more.
const QUIET: Duration = Duration::from_millis(500);
/// The kernel's log, in the guest's folder.
const CONSOLE: &str = "console";
/// The output of QEMU, beside it.
const SAID: &str = "qemu";
/// The sockets of its monitor, and of where it waits for a guest that comes from another.
const MONITOR: &str = "monitor";
const ARRIVALS: &str = "arrivals";
/// How much of the kernel's log a failure shows.
const SHOWN: usize = 4000;

/// A virtual machine that runs Linux and waits for scripts.
pub struct Guest {
    emulator: Child,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    /// Output that came and has not been asked for yet.
    came: Vec<u8>,
    folder: TempDir,
}

/// A guest that has moved.
pub struct Moved {
    /// It, in the other emulator.
    pub guest: Guest,
    /// How often its memory was gone over.
    pub rounds: u64,
    /// What is left in the first emulator: there it stands still.
    pub left: Guest,
}

/// The outcome of a script.
#[derive(Debug)]
pub struct Ran {
    /// Its status, as the shell has it.
    pub status: i32,
    /// Its output, to standard output and standard error.
    pub output: String,
}

impl Guest {
    /// Starts `machine` with the files of `image` and waits until it takes scripts. It ends with
    /// its value, and with the thread that started it, however that ends.
    ///
    /// # Panics
    /// If it does not, within five minutes; the kernel's log is shown.
    #[track_caller]
    pub fn boot(machine: &Machine, image: &Image) -> Guest {
        let mut guest = Guest::start(machine, image);
        guest.until(b"\x01ready\n", BOOT, "booted");
        guest
    }

    /// Moves the guest to another emulator, of `machine`, whose devices have to be the same, with
    /// the same files of `image`, while the guest runs: its memory is gone over at least `rounds`
    /// times before it stands still, if it does so much with it.
    ///
    /// # Errors
    /// When it stays, with the reason: it is returned, and goes on.
    ///
    /// # Panics
    /// If its emulator ends, or the other one does not start.
    #[track_caller]
    pub fn move_to(
        mut self,
        machine: &Machine,
        image: &Image,
        rounds: u64,
    ) -> Result<Moved, (Guest, String)> {
        let waiting = machine.clone().option("-incoming", "defer");
        let mut there = Guest::start(&waiting, image);
        let arrivals = there.folder.path().join(ARRIVALS);
        let uri = json!({"uri": format!("unix:{}", arrivals.display())});
        let mut other = there.monitor();
        let waits = other.answers().and_then(|()| other.ask("migrate-incoming", &uri));
        waits.unwrap_or_else(|error| panic!("it does not wait: {error}{}", there.log()));
        let mut monitor = self.monitor();
        let moved = monitor.answers().and_then(|()| monitor.migrate(&arrivals, rounds, BOOT));
        match moved {
            Ok(rounds) => {
                // What it had said before it left.
                there.came = std::mem::take(&mut self.came);
                while let Ok(bytes) = self.output.recv_timeout(QUIET) {
                    there.came.extend(bytes);
                }
                Ok(Moved { guest: there, rounds, left: self })
            }
            Err(why) => {
                let why = format!("{why}{}{}", self.log(), there.log());
                Err((self, why))
            }
        }
    }

    /// The monitor of its emulator.
    ///
    /// # Panics
    /// If that has ended.
    #[track_caller]
    pub fn monitor(&self) -> Monitor {
        let monitor = Monitor::open(&self.folder.path().join(MONITOR));
        monitor.unwrap_or_else(|error| panic!("no monitor: {error}{}", self.log()))
    }

    /// Starts `machine` with the files of `image`, and does not wait.
    fn start(machine: &Machine, image: &Image) -> Guest {
        let folder = tempfile::Builder::new().prefix("atoll-vm-").tempdir().expect("a folder");
        let archive = folder.path().join("image.cpio");
        std::fs::write(&archive, image.archive(&machine.modules())).expect("the guest's files");
        let console = folder.path().join(CONSOLE);
        let said = std::fs::File::create(folder.path().join(SAID)).expect("a file");
        let mut emulator = Command::new(parts::program("setpriv", "util-linux"))
            .args(["--pdeathsig", "KILL"])
            .args(machine.command(&archive, &console))
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", folder.path().join(MONITOR).display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(said)
            .spawn()
            .expect("QEMU starts");
        let input = emulator.stdin.take().expect("a pipe");
        let mut pipe = emulator.stdout.take().expect("a pipe");
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                if sender.send(buffer[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        Guest { emulator, input, output, came: Vec::new(), folder }
    }

    /// Runs `script` in a shell, which stops at the first command that fails.
    ///
    /// # Panics
    /// If the guest ends or the script takes more than five minutes.
    #[track_caller]
    pub fn run(&mut self, script: &str) -> Ran {
        self.run_within(SCRIPT, script)
    }

    /// The same, with another bound.
    ///
    /// # Panics
    /// If the guest ends or the script takes longer.
    #[track_caller]
    pub fn run_within(&mut self, bound: Duration, script: &str) -> Ran {
        let message = format!("{}\n{script}", script.len());
        self.input.write_all(message.as_bytes()).expect("the guest is there");
        let output = self.until(b"\x01end ", bound, script);
        let status = self.until(b"\n", bound, script);
        let status = String::from_utf8_lossy(&status).parse().expect("a status");
        Ran { status, output: String::from_utf8_lossy(&output).into_owned() }
    }

    /// Runs `script`, which must succeed; returns what it printed.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn ok(&mut self, script: &str) -> String {
        let ran = self.run(script);
        assert_eq!(ran.status, 0, "{script}\n--- printed\n{}{}", ran.output, self.log());
        ran.output
    }

    /// Begins `script`, which takes lines from /dev/ttyS1 and answers there: [`say`](Self::say),
    /// [`line`](Self::line), and in the end [`ended`](Self::ended).
    ///
    /// # Panics
    /// If the guest has ended.
    #[track_caller]
    pub fn begin(&mut self, script: &str) {
        self.write(&format!("{}\n{script}", script.len()));
    }

    /// Says a line to the script that has begun.
    ///
    /// # Panics
    /// If the guest has ended.
    #[track_caller]
    pub fn say(&mut self, line: &str) {
        self.write(&format!("{line}\n"));
    }

    /// The next line of that script.
    ///
    /// # Panics
    /// If the guest ends or none comes.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let line = self.until(b"\n", SCRIPT, "a line");
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Waits for the end of that script; its status.
    ///
    /// # Panics
    /// If the guest ends or it does not.
    #[track_caller]
    pub fn ended(&mut self) -> i32 {
        self.until(b"\x01end ", SCRIPT, "its end");
        let status = self.until(b"\n", SCRIPT, "its end");
        String::from_utf8_lossy(&status).parse().expect("a status")
    }

    #[track_caller]
    fn write(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).expect("the guest is there");
    }

    /// Has the guest shut down, and waits until it has.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn end(mut self) {
        // It answers no more.
        let script = "sync; umount -a || true; poweroff -f";
        let message = format!("{}\n{script}", script.len());
        self.input.write_all(message.as_bytes()).expect("the guest is there");
        let end = Instant::now() + BOOT;
        loop {
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.came.extend(bytes),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("the guest does not end{}", self.log()),
            }
        }
        let status = self.emulator.wait().expect("QEMU was started");
        assert!(status.success(), "QEMU ended with {status}{}", self.log());
    }

    /// Ends the guest at once, as if its power failed.
    pub fn kill(self) {
        drop(self);
    }

    /// The emulator's process.
    pub fn pid(&self) -> u32 {
        self.emulator.id()
    }

    /// The guest's output before `mark`.
    #[track_caller]
    fn until(&mut self, mark: &[u8], bound: Duration, what: &str) -> Vec<u8> {
        let end = Instant::now() + bound;
        loop {
            let at = self.came.windows(mark.len()).position(|window| window == mark);
            if let Some(at) = at {
                let mut before: Vec<u8> = self.came.drain(..at + mark.len()).collect();
                before.truncate(at);
                return before;
            }
            match self.output.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.came.extend(bytes),
                Err(error) => {
                    let why = match error {
                        RecvTimeoutError::Timeout => format!("{bound:?} have passed"),
                        RecvTimeoutError::Disconnected => "QEMU has ended".into(),
                    };
                    let came = String::from_utf8_lossy(&self.came);
                    panic!("{what}: {why}\n--- printed\n{came}{}", self.log());
                }
            }
        }
    }

    /// The end of the kernel's log, and of what QEMU said.
    pub fn log(&self) -> String {
        let end = |name: &str| {
            let log = std::fs::read(self.folder.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&log[log.len().saturating_sub(SHOWN)..]).into_owned()
        };
        format!("\n--- the guest's console\n{}\n--- QEMU\n{}", end(CONSOLE), end(SAID))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}
