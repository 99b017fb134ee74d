//! The process that runs programs where a column has its files: below `atoll run`, or beside it.
//!
//! It takes orders from its standard input, a line for each, and answers each with a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::fixture::{Extent, Fixture};
use super::rows::{PREAMBLE, ROWS, Row, Work};
use crate::record::{Broken, Record};
use crate::workloads::{Run, programs};

/// What is to be done with a row.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Step {
    Prepare,
    Work,
    Check,
}

/// An order: what is to be done with the row of this name.
#[derive(Serialize, Deserialize)]
struct Order(Step, String);

/// What came of it: a figure, and what the program printed.
#[derive(Default, Serialize, Deserialize)]
struct Answer {
    figure: f64,
    printed: String,
}

/// The process, seen from the one that measures.
pub struct Player {
    child: Child,
    /// Until it is stopped.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// The device of the files, and whether that is FUSE's.
    device: u64,
    is_fuse: bool,
}

impl Player {
    /// Starts it by the command `by`, in `directory`.
    pub fn start(
        by: Option<Command>,
        directory: &Path,
        fixture: &Fixture,
    ) -> Result<Player, Broken> {
        let own = std::env::current_exe()?;
        let mut command = match by {
            Some(mut by) => {
                by.arg(own);
                by
            }
            None => Command::new(own),
        };
        command.arg("play").arg("--fixture").arg(fixture.path()).arg(directory);
        if fixture.extent == Extent::SMALL {
            command.arg("--smoke");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (input, output) = pipes.ok_or_else(|| Broken("no pipes".into()))?;
        let (input, output) = (Some(input), BufReader::new(output));
        let mut player = Player { child, input, output, device: 0, is_fuse: false };
        (player.device, player.is_fuse) = player.hear()?;
        Ok(player)
    }

    fn hear<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T, Broken> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let heard = serde_json::from_str::<Result<T, String>>(&line);
        heard.map_err(|_| Broken(format!("it said `{}`", line.trim())))?.map_err(Broken)
    }

    fn ask(&mut self, step: Step, row: &Row) -> Result<Answer, Broken> {
        let order = serde_json::to_string(&Order(step, row.name.into()));
        let order = order.map_err(|error| Broken(error.to_string()))?;
        if let Some(input) = &mut self.input {
            writeln!(input, "{order}")?;
        }
        self.hear()
    }

    /// Makes what the program of `row` needs.
    pub fn prepare(&mut self, row: &Row) -> Result<(), Broken> {
        self.ask(Step::Prepare, row).map(drop)
    }

    /// Runs it, and returns the figure.
    pub fn work(&mut self, row: &Row) -> Result<f64, Broken> {
        self.ask(Step::Work, row).map(|answer| answer.figure)
    }

    /// What the check of it prints.
    pub fn check(&mut self, row: &Row) -> Result<String, Broken> {
        self.ask(Step::Check, row).map(|answer| answer.printed)
    }

    /// The number of the FUSE connection, if its files are behind one.
    pub fn connection(&self) -> Option<u64> {
        self.is_fuse.then_some(self.device)
    }

    /// Ends it.
    pub fn stop(&mut self) -> Result<(), Broken> {
        self.input = None;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(Broken(format!("it ended with {status}"))) }
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// The process itself.
#[derive(clap::Args)]
pub struct Part {
    #[arg(long)]
    smoke: bool,
    #[arg(long)]
    fixture: PathBuf,
    directory: PathBuf,
}

impl Part {
    /// Obeys until its standard input ends.
    pub fn play(&self) -> Result<(), Broken> {
        let say = |line: serde_json::Result<String>| -> Result<(), Broken> {
            let mut out = std::io::stdout();
            writeln!(out, "{}", line.map_err(|error| Broken(error.to_string()))?)?;
            Ok(out.flush()?)
        };
        std::env::set_current_dir(&self.directory)?;
        let device = std::fs::metadata(".")?.dev();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let minor = u64::from(rustix::fs::minor(device));
        let here = format!(" {}:{minor} ", rustix::fs::major(device));
        let is_fuse = mounts.lines().any(|line| line.contains(&here) && line.contains(" - fuse"));
        say(serde_json::to_string(&Ok::<_, String>((minor, is_fuse))))?;
        for line in std::io::stdin().lines() {
            let order = serde_json::from_str(&line?).map_err(|error| Broken(error.to_string()))?;
            let answer = self.obey(&order).map_err(|Broken(why)| why);
            say(serde_json::to_string(&answer))?;
        }
        Ok(())
    }

    fn obey(&self, Order(step, name): &Order) -> Result<Answer, Broken> {
        let row = ROWS.iter().find(|row| row.name == name);
        let row = row.ok_or_else(|| Broken(format!("there is no row `{name}`")))?;
        let mut answer = Answer::default();
        match (step, row.work) {
            (Step::Prepare, Work::Nginx(kib)) => {
                // Once for all rounds of this file system.
                if !Path::new(programs::SITE).exists() {
                    programs::site(Path::new("."), kib)?;
                }
            }
            (Step::Prepare, _) => drop(self.script(row.prepare)?),
            (Step::Check, _) => answer.printed = self.script(row.check)?,
            (Step::Work, Work::Timed(script)) => {
                let begin = Instant::now();
                self.script(script)?;
                answer.figure = begin.elapsed().as_secs_f64() * 1e3;
            }
            (Step::Work, Work::Prints(script)) => {
                let printed = self.script(script)?;
                let figure = printed.trim().parse();
                answer.figure = figure.map_err(|_| Broken(format!("it printed `{printed}`")))?;
            }
            (Step::Work, Work::Nginx(kib)) => {
                let launch = programs::Launch {
                    folder: std::env::current_dir()?,
                    environment: Vec::new(),
                    binaries: PathBuf::new(),
                };
                let mut run = Run { point: kib, smoke: self.smoke, record: Record::default() };
                programs::nginx(&launch, &mut run)?;
                answer.figure = run.record.0["requests"][0];
            }
            (Step::Work, Work::Launch) => return Err(Broken("run by whoever measures".into())),
        }
        Ok(answer)
    }

    /// Runs a script, which must succeed; returns what it printed.
    fn script(&self, script: &str) -> Result<String, Broken> {
        if script.is_empty() {
            return Ok(String::new());
        }
        let extent = if self.smoke { Extent::SMALL } else { Extent::WHOLE };
        // bash, since a pipe is to fail with any of its programs.
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c"]).arg(format!("{PREAMBLE}\n{script}"));
        command.envs(extent.environment()).env("FIXTURE", &self.fixture);
        let output = command.stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let tail: Vec<&str> = said.lines().rev().take(5).collect();
        Err(Broken(format!("`{script}`: {}; {}", output.status, tail.join("; "))))
    }
}
