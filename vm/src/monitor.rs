//! The monitor of a guest's emulator, by which it is told what a guest's program cannot say: QEMU's
//! machine protocol (QMP), a line of JSON for each command and each answer.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_mins(1);
/// The most milliseconds for which a guest may stand still while the last of its memory goes.
const DOWN_MAX: u64 = 60_000;
/// Bytes a second, so that a guest has time to change memory that has gone.
const SLOW: u64 = 40 << 20;
/// The pause between two looks at what goes on by itself.
const PAUSE: Duration = Duration::from_millis(20);

/// A connection to the monitor of an emulator that runs.
pub struct Monitor {
    lines: BufReader<UnixStream>,
}

impl Monitor {
    /// The monitor at `socket`, which the emulator makes when it starts.
    ///
    /// # Errors
    /// When there is none within a minute, or it does not answer.
    pub fn open(socket: &Path) -> std::io::Result<Monitor> {
        let until = Instant::now() + PATIENCE;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => std::thread::sleep(PAUSE),
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut monitor = Monitor { lines: BufReader::new(stream) };
        // The greeting.
        monitor.line()?;
        monitor.ask("qmp_capabilities", &json!({}))?;
        Ok(monitor)
    }

    fn line(&mut self) -> std::io::Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }

    /// Has it execute `command`; what it returns.
    ///
    /// # Errors
    /// What it says against it, and when it has gone.
    pub fn ask(&mut self, command: &str, arguments: &Value) -> std::io::Result<Value> {
        let message = json!({"execute": command, "arguments": arguments});
        writeln!(self.lines.get_mut(), "{message}")?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                return Err(std::io::Error::other(format!("{command}: {error}")));
            }
            // What happens meanwhile comes as lines of its own.
            if let Some(returned) = answer.get_mut("return") {
                return Ok(returned.take());
            }
        }
    }

    /// Has the emulator that a guest comes to tell the other one whether it has taken it: both have
    /// to be told so. Without it a guest that is not taken is lost.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn answers(&mut self) -> std::io::Result<()> {
        let both = json!({"capabilities": [{"capability": "return-path", "state": true}]});
        self.ask("migrate-set-capabilities", &both).map(drop)
    }

    /// Moves the guest to the emulator that waits for it at `socket`, and returns when it runs
    /// there. While the guest runs here its memory is gone over at least `rounds` times, if it
    /// does so much with it; returns how often it was.
    ///
    /// # Errors
    /// When the guest stays here, with the reason, or the move takes longer than `bound`.
    pub fn migrate(&mut self, socket: &Path, rounds: u64, bound: Duration) -> std::io::Result<u64> {
        let until = Instant::now() + bound;
        // It goes on until nothing is left, which a guest that works prevents, or this is raised.
        let slow = json!({"downtime-limit": 0, "max-bandwidth": SLOW});
        self.ask("migrate-set-parameters", &slow)?;
        self.ask("migrate", &json!({"uri": format!("unix:{}", socket.display())}))?;
        let mut ends = false;
        loop {
            let state = self.ask("query-migrate", &json!({}))?;
            let done = state["ram"]["dirty-sync-count"].as_u64().unwrap_or(0);
            match state["status"].as_str() {
                Some("completed") => return Ok(done),
                Some("failed" | "cancelled") => {
                    return Err(std::io::Error::other(state.to_string()));
                }
                _ if Instant::now() > until => {
                    return Err(std::io::Error::other(format!("not within {bound:?}: {state}")));
                }
                _ if done >= rounds && !ends => {
                    let fast = json!({"downtime-limit": DOWN_MAX, "max-bandwidth": 0});
                    self.ask("migrate-set-parameters", &fast)?;
                    ends = true;
                }
                _ => std::thread::sleep(PAUSE),
            }
        }
    }
}
