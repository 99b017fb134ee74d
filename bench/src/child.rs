//! One measurement: one workload at one point on one subject, in a process of its own.
//!
//! A process of its own makes the first pass cold, and one subject's heap, mappings and caches no
//! other's.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::atoll::{self, Atoll};
use crate::calls::Calls;
use crate::limit;
use crate::processor::Usage;
use crate::record::{Broken, Record};
use crate::resident::Resident;
use crate::served::{self, Remote};
use crate::subject::Subject;
use crate::system::{self, System};
use crate::table::SERVER;
use crate::workloads::programs::{self, Launch, When};
use crate::workloads::{
    Run, chunks, clients, directory, files, one_file, rings, sequential, stops, sync,
};

/// What the process is told to do.
#[derive(Clone, Debug, clap::Args)]
pub struct Order {
    /// The subject
    #[arg(long)]
    pub subject: Subject,
    /// The workload
    #[arg(long)]
    pub workload: String,
    /// The point
    #[arg(long)]
    pub point: u64,
    /// Only show that it works
    #[arg(long)]
    pub smoke: bool,
    /// A fresh folder, for system calls the file system under measurement, for Atoll its volume
    #[arg(long)]
    pub folder: PathBuf,
    /// Where the C programs are
    #[arg(long)]
    pub binaries: PathBuf,
    /// The control group to enter
    #[arg(long)]
    pub group: Option<PathBuf>,
    /// The process that serves the subject
    #[arg(long)]
    pub server: Option<u32>,
    /// The socket where it listens
    #[arg(long)]
    pub socket: Option<PathBuf>,
    /// Which of several processes this is
    #[arg(long)]
    pub number: Option<u64>,
}

/// Does what `order` says in this process.
pub fn obey(order: &Order) -> Result<Record, Broken> {
    if let Some(group) = &order.group {
        limit::enter(group)?;
    }
    let before = Resident::now()?;
    let mut run = Run { point: order.point, smoke: order.smoke, record: Record::default() };
    if order.workload == "nginx" {
        let launch = launch(order);
        if order.subject != Subject::AtollReadOnly {
            programs::site(&launch.folder, order.point)?;
        }
        programs::nginx(&launch, &mut run)?;
    } else if is_program(&order.workload) {
        program_runs(order, &mut run)?;
    } else if order.workload == "ring-throughput" {
        rings::throughput(order.subject, &mut run)?;
    } else if order.workload == "ring-call" {
        rings::calls(&mut run)?;
    } else if order.subject == Subject::AtollServer {
        let socket = order.socket.as_deref().ok_or_else(|| Broken("no socket".into()))?;
        if order.workload.starts_with("null-call") {
            let polling = order.workload == "null-call-polling";
            served::null_call(socket, polling, &mut run, &Usage::new(order.server))?;
        } else {
            of_clients(order, &|| Remote::attach(socket), &mut run)?;
        }
    } else if SERVER.workloads.iter().any(|workload| workload.name == order.workload) {
        std::env::set_current_dir(&order.folder)?;
        of_clients(order, &|| Ok(System), &mut run)?;
    } else if order.subject.is_atoll() {
        let bytes = volume_bytes(&order.workload, order.point, order.smoke);
        // A guest that may use little memory says so: a quarter for the cache.
        let cache = order.group.as_ref().map_or(0, |_| (order.point as usize) << 18);
        let mut volume = Atoll::mount(order.subject, &order.folder, bytes, cache)?;
        workload(&order.workload, &mut volume, &mut run, before)?;
        volume.unmount()?;
    } else {
        std::env::set_current_dir(&order.folder)?;
        workload(&order.workload, &mut System, &mut run, before)?;
    }
    Ok(run.record)
}

/// Runs a program: once on the fresh subject, then again and again on what the run before left.
fn program_runs(order: &Order, run: &mut Run) -> Result<(), Broken> {
    let launch = launch(order);
    let embedded = matches!(order.subject, Subject::AtollMmap | Subject::AtollPread);
    let once = |run: &mut Run, when| {
        match order.workload.as_str() {
            "postmark" => programs::postmark(&launch, run, when)?,
            "postmark-large" => programs::postmark_large(&launch, run, when)?,
            "gdbm" => programs::gdbm(&launch, run, when, true)?,
            "gdbm-mmap" => programs::gdbm(&launch, run, when, false)?,
            "sqlite" => programs::sqlite(&launch, run, when)?,
            "mapped" => programs::mapped(&launch, run, when)?,
            other => return Err(Broken(format!("no program {other}"))),
        }
        if embedded {
            // The file system that the program left must be whole; and the next one is not to
            // recover it, since nobody else finds a file system in need of that.
            Atoll::mount(order.subject, &order.folder, 0, 0)?.unmount()?;
        }
        Ok(())
    };
    once(run, When::Cold)?;
    // A volume in the program's memory has gone with it: there is no later run on the same.
    if order.subject == Subject::AtollRam {
        return Ok(());
    }
    run.steady(|run| once(run, When::Steady))
}

/// Runs a workload of clients, each of which has `attach` give it its calls.
fn of_clients<C: Calls>(
    order: &Order,
    attach: &(dyn Fn() -> Result<C, Broken> + Sync),
    run: &mut Run,
) -> Result<(), Broken> {
    let mut usage = Usage::new(order.server);
    match order.workload.as_str() {
        "operations" => {
            if run.point == 1 {
                system::pin(system::processors()[0])?;
            }
            clients::operations(&mut attach()?, run, &usage)
        }
        "threads" => clients::threads(attach, run, &usage),
        "processes" => match order.number {
            Some(number) => clients::process(&mut attach()?, run, number),
            None => {
                let start =
                    |number| Ok(command(order, Some(number))?.stdin(Stdio::piped()).spawn()?);
                clients::processes(&start, run, &mut usage)
            }
        },
        "create-sync" => clients::create_sync(&mut attach()?, run, &usage),
        "sizes" => clients::sizes(&mut attach()?, run),
        "stops" => stops::stops(attach, run),
        other => Err(Broken(format!("no workload {other}"))),
    }
}

/// How large a volume the workload gets at `point`.
pub fn volume_bytes(workload: &str, point: u64, smoke: bool) -> u64 {
    const MIB: u64 = 1 << 20;
    match (workload, point) {
        // The size that the demand names.
        ("idle-memory", mib) => mib * MIB,
        _ if smoke => 256 * MIB,
        // Room for a file of 1 GiB and its predecessor, whose blocks are free only once the removal
        // is committed; and for a million files.
        // And for some 200 files of up to 4 MiB, which grow.
        ("sequential" | "postmark-large" | "stops", _)
        | ("one-directory" | "postmark", 50_000..) => 4096 * MIB,
        _ => 512 * MIB,
    }
}

/// Whether the workload is a program of its own.
fn is_program(workload: &str) -> bool {
    ["postmark", "postmark-large", "nginx", "gdbm", "gdbm-mmap", "sqlite", "mapped"]
        .contains(&workload)
}

/// How programs reach the subject: by system calls as they are, on a volume through the library
/// that is loaded before the C library.
fn launch(order: &Order) -> Launch {
    let binaries = order.binaries.clone();
    let mode = match order.subject {
        Subject::AtollMmap => "mapped",
        Subject::AtollPread => "pread",
        Subject::AtollRam => "ram",
        // The library is told the socket instead of a volume's file.
        Subject::AtollServer => "mapped",
        _ => {
            return Launch { folder: order.folder.clone(), environment: Vec::new(), binaries };
        }
    };
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let environment = [
        ("LD_PRELOAD", text(binaries.join(programs::PRELOAD))),
        (
            "ATOLL_VOLUME",
            text(order.socket.clone().unwrap_or_else(|| atoll::volume_in(&order.folder))),
        ),
        ("ATOLL_PREFIX", "/atoll".into()),
        ("ATOLL_MODE", mode.into()),
        // No sync on any side, that of unmounting included.
        ("ATOLL_LEAVE", "1".into()),
        ("ATOLL_BYTES", volume_bytes(&order.workload, order.point, order.smoke).to_string()),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value)).into();
    Launch { folder: "/atoll".into(), environment, binaries }
}

/// Runs the workload `name` by `calls`. `before` is what was resident before the subject was there.
fn workload<C: Calls>(
    name: &str,
    calls: &mut C,
    run: &mut Run,
    before: Resident,
) -> Result<(), Broken> {
    match name {
        "read-after-write" => chunks::read_after_write(calls, run),
        "many-files" => files::many_files(calls, run, before),
        "small-memory" => files::small_memory(calls, run),
        "readdir" => directory::readdir(calls, run),
        "one-directory" => directory::one_directory(calls, run),
        "lseek" => one_file::lseek(calls, run),
        "fstat" => one_file::fstat(calls, run),
        "sequential" => sequential::sequential(calls, run),
        "append-fsync" => sync::append_fsync(calls, run),
        "idle-memory" => {
            let added = Resident::now()?.since(before);
            run.record.add("memory", added.total());
            run.record.add("anonymous", added.anonymous);
            run.record.add("mapped", added.mapped);
            Ok(())
        }
        other => Err(Broken(format!("no workload {other}"))),
    }
}

/// The process that obeys `order`, number `number` of several.
fn command(order: &Order, number: Option<u64>) -> Result<Command, Broken> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["child", "--subject", order.subject.key(), "--workload", &order.workload]);
    command.arg("--point").arg(order.point.to_string());
    command.arg("--folder").arg(served::folder(order)).arg("--binaries").arg(&order.binaries);
    if order.smoke {
        command.arg("--smoke");
    }
    if let Some(group) = &order.group {
        command.arg("--group").arg(group);
    }
    if let Some(server) = order.server {
        command.arg("--server").arg(server.to_string());
    }
    if let Some(socket) = &order.socket {
        command.arg("--socket").arg(socket);
    }
    if let Some(number) = number.or(order.number) {
        command.arg("--number").arg(number.to_string());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(command)
}

/// Has a new process obey `order`, and reads its record.
pub fn spawn(order: &Order) -> Result<Record, Broken> {
    let mut command = served::within_mount(order, command(order, None)?)?;
    let mut child = command.spawn()?;
    // The record is a line or two: it fits the pipe, so that waiting before reading cannot hang.
    let patience = Duration::from_secs(if order.smoke { 120 } else { 900 });
    let begin = Instant::now();
    loop {
        if child.try_wait()?.is_some() {
            break;
        }
        if begin.elapsed() > patience {
            child.kill()?;
            child.wait()?;
            return Err(Broken(format!("no end after {} s", patience.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(Broken(format!("{} {}", output.status, errors.trim()).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| Broken(error.to_string()))
}

/// Prepares the fresh folder of `order`: makes the volume, so that the process is measured without
/// the making of it, with what is only read there.
pub fn prepare(order: &Order) -> Result<(), Broken> {
    if order.subject.is_volume() {
        let bytes = volume_bytes(&order.workload, order.point, order.smoke);
        atoll::make(&order.folder, bytes)?;
    }
    if order.workload == "nginx" && order.subject == Subject::AtollReadOnly {
        let site = tempfile::tempdir()?;
        programs::site(site.path(), order.point)?;
        served::copy_in(order, &site.path().join(programs::SITE))?;
    }
    Ok(())
}
