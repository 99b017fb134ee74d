//! Servers of volumes, and the ways of programs to them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::atoll;
use crate::child::Order;
use crate::record::Broken;
use crate::subject::Subject;
use crate::system;

mod remote;

pub use remote::{Remote, null_call};

/// Where the volume is mounted for programs that reach it by system calls.
const MOUNT_POINT: &str = "/atoll";

/// The command `atoll`, in the profile of this program.
pub fn program() -> Result<PathBuf, Broken> {
    Ok(std::env::current_exe()?.with_file_name("atoll"))
}

/// A process that serves one volume. It is killed when the value goes.
pub struct ServerProcess {
    child: Child,
    socket: PathBuf,
}

impl ServerProcess {
    /// Serves the volume that was prepared for `order`.
    pub fn start(order: &Order) -> Result<ServerProcess, Broken> {
        let socket = order.folder.join("socket");
        let mut command = Command::new(program()?);
        command.arg("serve").arg("--socket").arg(&socket).args(spinning(&order.workload));
        command.arg(atoll::volume_in(&order.folder));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let one_processor = order.point == 1 && names_processors(&order.workload);
        // A thread of its own starts it, so that only it is bound to the processor.
        let start = move || {
            if one_processor {
                system::pin(system::processors()[0])?;
            }
            command.spawn()
        };
        let child = std::thread::spawn(start).join().map_err(|_| Broken("no server".into()))??;
        let mut server = ServerProcess { child, socket };
        let begin = Instant::now();
        while !server.socket.exists() {
            if let Some(status) = server.child.try_wait()? {
                return Err(Broken(format!("atoll serve: {status}")));
            }
            if begin.elapsed() > Duration::from_secs(20) {
                return Err(Broken("atoll serve does not listen".into()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    /// The number of its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends it, after which the volume is closed cleanly.
    pub fn stop(mut self) -> Result<(), Broken> {
        Command::new("kill").arg(self.child.id().to_string()).status()?;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(20) {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    return Ok(());
                }
                return Err(Broken(format!("atoll serve ended with {status}")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(Broken("atoll serve does not end".into()))
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the points of a workload say how many processors there are.
fn names_processors(workload: &str) -> bool {
    workload == "operations" || workload.starts_with("null-call")
}

/// How long the server spins before it sleeps.
fn spinning(workload: &str) -> &'static [&'static str] {
    match workload {
        "null-call-polling" => &["--spin", "1000000"],
        "null-call-blocking" => &["--spin", "0"],
        _ => &[],
    }
}

/// Copies what is at `from` into the root of the volume of `order`.
pub fn copy_in(order: &Order, from: &Path) -> Result<(), Broken> {
    let mut to = atoll::volume_in(&order.folder).into_os_string();
    to.push(":/");
    let status =
        Command::new(program()?).args(["cp", "-r", "--quiet"]).arg(from).arg(to).status()?;
    if status.success() { Ok(()) } else { Err(Broken(format!("atoll cp: {status}"))) }
}

/// `command`, in a place where the volume of `order` is mounted if the subject is reached by system
/// calls.
pub fn within_mount(order: &Order, command: Command) -> Result<Command, Broken> {
    if !order.subject.is_mounted() {
        return Ok(command);
    }
    let mut outer = Command::new(program()?);
    let volume = order.socket.clone().unwrap_or_else(|| atoll::volume_in(&order.folder));
    let mut attachment = volume.into_os_string();
    attachment.push(":");
    attachment.push(MOUNT_POINT);
    if order.subject == Subject::AtollReadOnly {
        attachment.push(":ro");
    }
    outer.args(["run", "--quiet"]);
    outer.arg("-v").arg(attachment).arg("--").arg(command.get_program()).args(command.get_args());
    outer.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(outer)
}

/// The folder that the process of `order` works in.
pub fn folder(order: &Order) -> PathBuf {
    if order.subject.is_mounted() { MOUNT_POINT.into() } else { order.folder.clone() }
}
