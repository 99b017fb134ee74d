//! Programs that know nothing of Atoll: gdbm, SQLite, PostMark, and one that maps a file.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use crate::record::Broken;

use super::{Pattern, Run, check};

/// Which run of a program is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The first on a fresh volume, file system and server.
    Cold,
    /// A later one on the same.
    Steady,
}

impl When {
    /// The metric of the whole run.
    fn metric(self) -> &'static str {
        match self {
            When::Cold => "cold",
            When::Steady => "steady",
        }
    }
}

/// How programs reach the file system under measurement.
pub struct Launch {
    /// The folder, as programs name it.
    pub folder: PathBuf,
    /// The environment that brings them there.
    pub environment: Vec<(String, String)>,
    /// Where the programs of this folder's `programs` were compiled to.
    pub binaries: PathBuf,
}

impl Launch {
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// The library through which programs reach a volume.
pub const PRELOAD: &str = "interposer.so";

/// Compiles the C programs and the library to be preloaded into the folder `binaries`. Atoll's C
/// library, in the profile of this program, stands where this program does.
pub fn compile(binaries: &Path) -> Result<(), Broken> {
    std::fs::create_dir_all(binaries)?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let programs = [("gdbm", "-lgdbm"), ("sqlite", "-lsqlite3"), ("mapped", "-lc")];
    for (name, library) in programs {
        let mut command = Command::new("cc");
        command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(binaries.join(name));
        command.arg(here.join("programs").join(format!("{name}.c"))).arg(library);
        run(command, &format!("{name}.c"))?;
    }
    let program = std::env::current_exe()?;
    let archive = program.with_file_name("libatoll.a");
    let library = here.with_file_name("crates").join("libatoll");
    let mut command = Command::new("cc");
    command
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(binaries.join(PRELOAD));
    command.arg("-I").arg(library.join("include"));
    command.arg(here.join("programs/interposer.c")).arg(archive);
    command.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
    run(command, "interposer.c")
}

fn run(mut command: Command, what: &str) -> Result<(), Broken> {
    let status = command.status().map_err(|error| Broken(format!("cc: {error}")))?;
    if !status.success() {
        return Err(Broken(format!(
            "{what} does not compile; run `cargo xtask setup`, and measure by `cargo xtask bench`"
        )));
    }
    Ok(())
}

/// The point is the number of keys: all stored, the database opened again, all fetched. With
/// `no_mmap`, gdbm does not map its file.
pub fn gdbm(launch: &Launch, run: &mut Run, when: When, no_mmap: bool) -> Result<(), Broken> {
    timed_by_itself(launch, run, when, "gdbm", if no_mmap { &["nommap"] } else { &[] })
}

/// The point is the number of inserts, each a transaction of its own; then all rows are selected.
pub fn sqlite(launch: &Launch, run: &mut Run, when: When) -> Result<(), Broken> {
    timed_by_itself(launch, run, when, "sqlite", &[])
}

/// The point is the length of a copy to and from a mapped file, in KiB.
pub fn mapped(launch: &Launch, run: &mut Run, when: When) -> Result<(), Broken> {
    timed_by_itself(launch, run, when, "mapped", &[])
}

/// Runs a program that removes its file if there is one, then prints its metrics, each with its
/// microseconds: `total` is the whole run, others are parts of it, of which the later runs' are
/// kept.
fn timed_by_itself(
    launch: &Launch,
    run: &mut Run,
    when: When,
    program: &str,
    options: &[&str],
) -> Result<(), Broken> {
    let mut command = launch.command(launch.binaries.join(program));
    command.arg(launch.folder.join("database")).arg(run.point.to_string()).args(options);
    let text = finished(command.output()?, program)?;
    for line in text.lines() {
        let (metric, time) = line.split_once(' ').unwrap_or((line, ""));
        let time = time.parse().map_err(|_| Broken(format!("{program} printed `{line}`")))?;
        match metric {
            "total" => run.record.add(when.metric(), time),
            part if when == When::Steady => run.record.add(part, time),
            _ => {}
        }
    }
    Ok(())
}

/// The output of a program that ended with success.
fn finished(output: Output, program: &str) -> Result<String, Broken> {
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(Broken(format!("{program}: {}, {}", output.status, errors.trim())));
    }
    String::from_utf8(output.stdout).map_err(|_| Broken(format!("{program}: output is not text")))
}

/// The counts that PostMark reports, which follow from its configuration and its seed.
#[derive(Debug, PartialEq)]
struct Counts {
    created: u64,
    created_alone: u64,
    created_in_transactions: u64,
    read: u64,
    appended: u64,
    deleted: u64,
    deleted_alone: u64,
    deleted_in_transactions: u64,
}

/// The counts of a run with `files` files and 500 transactions.
fn golden(files: u64) -> Option<Counts> {
    let (alone, mixed, read, appended, deleted_alone, deleted_mixed) = match files {
        500 => (500, 264, 243, 257, 528, 236),
        1000 => (1000, 248, 255, 245, 996, 252),
        10_000 => (10_000, 256, 247, 253, 10_012, 244),
        100_000 => (100_000, 238, 246, 254, 99_976, 262),
        _ => return None,
    };
    Some(Counts {
        created: alone + mixed,
        created_alone: alone,
        created_in_transactions: mixed,
        read,
        appended,
        deleted: deleted_alone + deleted_mixed,
        deleted_alone,
        deleted_in_transactions: deleted_mixed,
    })
}

/// The point is the number of files; 500 transactions, files of 500 to 10,000 bytes, blocks of 512
/// bytes, the C library's buffering with 500 files and none with more. Measured is the time of the
/// whole process in microseconds: PostMark's own clock counts seconds.
pub fn postmark(launch: &Launch, run: &mut Run, when: When) -> Result<(), Broken> {
    let commands = format!(
        "set location {}\nset number {}\nset size 500 10000\nset transactions 500\n\
         set read 512\nset write 512\nset buffering {}\nrun\nquit\n",
        launch.folder.display(),
        run.point,
        run.point == 500,
    );
    let text = run_postmark(launch, run, when, &commands)?;
    let counts = counts(&text).ok_or_else(|| Broken(format!("postmark did not finish: {text}")))?;
    match golden(run.point) {
        Some(golden) if golden == counts => Ok(()),
        golden => Err(Broken(format!("postmark counted {counts:?}, not {golden:?}"))),
    }
}

/// Has PostMark obey `commands`, and records the time of the whole process.
fn run_postmark(
    launch: &Launch,
    run: &mut Run,
    when: When,
    commands: &str,
) -> Result<String, Broken> {
    let mut command = launch.command("postmark");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begin = Instant::now();
    let mut child = command.spawn().map_err(|error| Broken(format!("postmark: {error}")))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(commands.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    run.record.add(when.metric(), begin.elapsed().as_secs_f64() * 1e6);
    finished(output, "postmark")
}

/// The point is the number of files, of 64 KiB to 4 MiB; 2,000 transactions, 20 in a smoke run,
/// blocks of 64 KiB.
pub fn postmark_large(launch: &Launch, run: &mut Run, when: When) -> Result<(), Broken> {
    let transactions = if run.smoke { 20 } else { 2000 };
    let commands = format!(
        "set location {}\nset number {}\nset size 65536 4194304\nset transactions {transactions}\n\
         set read 65536\nset write 65536\nset buffering false\nrun\nquit\n",
        launch.folder.display(),
        run.point,
    );
    let text = run_postmark(launch, run, when, &commands)?;
    // Which files are chosen follows from the seed, so that a run that finished did the same.
    match counts(&text) {
        Some(counts) if counts.read + counts.appended == transactions => Ok(()),
        counts => Err(Broken(format!("postmark counted {counts:?}"))),
    }
}

/// The folder of what nginx serves.
pub const SITE: &str = "site";

/// The content of the file that nginx serves.
fn served(kib: u64) -> Vec<u8> {
    let bytes = kib as usize * 1024;
    Pattern::new(bytes).slice(1, bytes).to_vec()
}

/// Makes what nginx is to serve, a file of `kib` KiB in the folder [`SITE`] of `folder`.
pub fn site(folder: &Path, kib: u64) -> Result<(), Broken> {
    let site = folder.join(SITE);
    std::fs::create_dir(&site)?;
    Ok(std::fs::write(site.join("file"), served(kib))?)
}

/// nginx with one worker serves the file of [`site`] to `wrk`, on this machine.
pub fn nginx(launch: &Launch, run: &mut Run) -> Result<(), Broken> {
    let content = served(run.point);
    let site = launch.folder.join(SITE);
    // Its own files are on the disk, whatever is measured.
    let own = tempfile::tempdir()?;
    let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let configuration = own.path().join("nginx.conf");
    std::fs::write(
        &configuration,
        format!(
            "daemon off; master_process off; worker_processes 1; pid {own}/pid;\n\
             error_log {own}/error.log crit;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; sendfile on; keepalive_requests 1000000;\n\
             client_body_temp_path {own}/b; proxy_temp_path {own}/p; fastcgi_temp_path {own}/f;\n\
             uwsgi_temp_path {own}/u; scgi_temp_path {own}/s;\n\
             server {{ listen {address}; root {site}; }} }}\n",
            own = own.path().display(),
            site = site.display(),
        ),
    )?;
    let mut command = launch.command("nginx");
    command.arg("-c").arg(&configuration).arg("-p").arg(own.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut nginx = command.spawn().map_err(|error| Broken(format!("nginx: {error}")))?;
    let result = load(address, &content, run);
    nginx.kill()?;
    nginx.wait()?;
    result
}

/// Checks what the server at `address` serves, then loads it.
fn load(address: std::net::SocketAddr, content: &[u8], run: &mut Run) -> Result<(), Broken> {
    let begin = Instant::now();
    let mut stream = loop {
        match std::net::TcpStream::connect(address) {
            Ok(stream) => break stream,
            Err(error) if begin.elapsed().as_secs() > 10 => {
                return Err(Broken(format!("nginx does not listen: {error}")));
            }
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    stream.write_all(b"GET /file HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let body = answer.windows(4).position(|window| window == b"\r\n\r\n").map_or(0, |at| at + 4);
    check(&answer[body..], content, "what nginx served")?;

    let seconds = if run.smoke { "1s" } else { "2s" };
    let mut command = Command::new("wrk");
    command.args(["-t1", "-c4", "-d", seconds]).arg(format!("http://{address}/file"));
    let text = finished(command.output().map_err(|e| Broken(format!("wrk: {e}")))?, "wrk")?;
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        return Err(Broken(format!("wrk saw errors: {text}")));
    }
    let rate =
        text.split_once("Requests/sec:").and_then(|(_, rest)| rest.split_whitespace().next());
    let rate = rate.and_then(|rate| rate.parse().ok());
    run.record.add("requests", rate.ok_or_else(|| Broken(format!("wrk printed {text}")))?);
    Ok(())
}

/// The counts in the report of PostMark.
fn counts(report: &str) -> Option<Counts> {
    let after = |text: &str, words: &str| -> Option<u64> {
        text.split_once(words)?.1.split_whitespace().next()?.parse().ok()
    };
    let before = |words: &str| -> Option<u64> {
        report.split_once(words)?.0.split_whitespace().next_back()?.parse().ok()
    };
    let (creation, deletion) = report.split_once("Deletion alone:")?;
    Some(Counts {
        created: before(" created")?,
        created_alone: after(creation, "Creation alone:")?,
        created_in_transactions: after(creation, "Mixed with transactions:")?,
        read: before(" read (")?,
        appended: before(" appended")?,
        deleted: before(" deleted")?,
        deleted_alone: deletion.split_whitespace().next()?.parse().ok()?,
        deleted_in_transactions: after(deletion, "Mixed with transactions:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "Time:\n\t1 seconds total\n\nFiles:\n\t764 created (764 per second)\n\
        \t\tCreation alone: 500 files (500 per second)\n\
        \t\tMixed with transactions: 264 files (264 per second)\n\
        \t243 read (243 per second)\n\t257 appended (257 per second)\n\
        \t764 deleted (764 per second)\n\t\tDeletion alone: 528 files (528 per second)\n\
        \t\tMixed with transactions: 236 files (236 per second)\n";

    #[test]
    fn report_is_read() {
        assert_eq!(counts(REPORT), golden(500));
        assert_eq!(counts("Error: cannot open\n"), None);
    }

    #[test]
    fn other_counts_are_seen() {
        for (right, wrong) in [("243 read", "242 read"), ("236 files", "235 files")] {
            assert_ne!(counts(&REPORT.replace(right, wrong)), golden(500));
        }
    }
}
