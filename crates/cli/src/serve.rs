//! `atoll serve`: volumes for many programs at once.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use atoll_host::server::SPIN;
use atoll_host::server::bind::bind;
use atoll_host::server::confine::{self, Landlocked};
use atoll_host::server::listen::SocketServer;
use atoll_host::server::notify::Notify;
use atoll_host::server::rules::{Rule, Rules};
use rustix::process::Signal;

use crate::failure::{Failure, Outcome};
use crate::notes;
use crate::signals;
use crate::volume::{self, Access, Atime};

/// Serve volumes to many programs at once, until Ctrl-C or SIGTERM.
///
/// Programs reach a volume with `atoll run -v SOCKET/VOLUME:PATH` and
/// `atoll mount SOCKET/VOLUME DIRECTORY`; /VOLUME is not needed where only one is served. All see
/// each other's changes at once.
///
/// The superuser and the user who runs the server may do everything, others what --allow says. A
/// rule is WHO=ACCESS[,volume=NAME][,path=DIRECTORY]. WHO: uid:NUMBER, gid:NUMBER, user:NAME,
/// group:NAME or all. ACCESS: deny, ro or rw. With path= the client gets that directory as its
/// root. The first rule that fits decides.
///
/// It runs in the foreground, tells a service manager when it is ready (sd_notify), and once it is,
/// keeps access to nothing but the volumes and the socket. SIGHUP changes nothing. The socket's
/// file stays; the next server replaces it.
#[derive(clap::Args)]
pub struct Args {
    /// A volume, and its name for clients: without NAME= that of its file, without the extension;
    /// `:ro` after it for looking only.
    #[arg(required = true, value_name = "[NAME=]VOLUME[:ro]")]
    volumes: Vec<Source>,
    /// Where clients find the server.
    #[arg(long, value_name = "PATH", default_value = "atoll.sock")]
    socket: PathBuf,
    /// Let others in.
    #[arg(long, value_name = "RULE")]
    allow: Vec<Rule>,
    /// More rules, one a line, after those of --allow; # begins a comment.
    #[arg(long, value_name = "FILE")]
    allow_from: Option<PathBuf>,
    /// How long the thread of a volume, and that of each mount, looks for requests before it
    /// sleeps, in microseconds. More answers sooner what comes seldom, and uses more of a
    /// processor.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = SPIN.as_micros() as u64)]
    spin: u64,
    /// What reading does to the time of last access of files and directories. What programs read
    /// again and again without asking the server may be counted when they open it next.
    #[arg(long, value_name = "WHEN", env = "ATOLL_ATIME", default_value = "noatime")]
    atime: Atime,
    /// What is logged: error, warn, info, debug or trace; per module as in
    /// `info,atoll_host::server=debug`.
    #[arg(long, value_name = "LEVEL", env = "ATOLL_LOG", default_value = "info")]
    log_level: String,
}

/// A volume to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    name: String,
    path: PathBuf,
    access: Access,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        let (text, access) = match text.strip_suffix(":ro") {
            Some(text) => (text, Access::Read),
            None => (text, Access::Write),
        };
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if !name.contains('/') => (Some(name), path),
            _ => (None, text),
        };
        let stem = || Some(Path::new(path).file_stem()?.to_str()?.to_owned());
        let name = name.map(str::to_owned).or_else(stem).unwrap_or_default();
        if path.is_empty() || name.is_empty() || name.contains(['/', ':']) {
            return Err("it gives no name for clients; write NAME=VOLUME".to_owned());
        }
        Ok(Source { name, path: path.into(), access })
    }
}

/// Serves.
pub fn run(args: &Args) -> Outcome {
    start_log(&args.log_level)?;
    notes::go_to(notes::Destination::Log);
    let cannot =
        |what: &str, error: &dyn std::fmt::Display| Failure::new(format!("cannot {what}: {error}"));
    let own = rustix::process::geteuid().as_raw();
    let mut rules = args.allow.clone();
    if let Some(path) = &args.allow_from {
        rules.extend(rules_of(path)?);
    }
    let rules = Rules::new(rules, own);
    for (at, source) in args.volumes.iter().enumerate() {
        if args.volumes[..at].iter().any(|other| other.name == source.name) {
            return Err(Failure::new(format!(
                "two volumes are named {}; give them other names with NAME=VOLUME",
                source.name
            )));
        }
    }
    // Before there are threads, all of which inherit it.
    let ends = signals::ending(&[Signal::INT]);
    let mut blocked = ends;
    blocked.add(Signal::HUP);
    blocked.block().map_err(|error| cannot("block signals", &error))?;
    let stop = ends.descriptor().map_err(|error| cannot("wait for signals", &error))?;
    let notify = Notify::connect(std::env::var_os("NOTIFY_SOCKET").as_deref())
        .map_err(|error| cannot("reach the service manager at NOTIFY_SOCKET", &error))?;
    raise_descriptor_limit();

    let mut paths = Vec::new();
    let mut volumes = Vec::new();
    let listener = (|| {
        for source in &args.volumes {
            let path = volume::absolute(&source.path)?;
            volumes.push((source.name.clone(), volume::open(&path, source.access)?));
            paths.push(path);
        }
        bind(&args.socket, rules.admit_others()).map_err(Failure::new)
    })();
    let listener = match listener {
        Ok(listener) => listener,
        Err(failure) => {
            for ((_, volume), path) in volumes.into_iter().zip(&paths) {
                volume::close(path, volume)?;
            }
            return Err(failure);
        }
    };
    let names = volumes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    log::info!("serving {names} at {}", args.socket.display());
    // While it can be asked for.
    let address = std::path::absolute(&args.socket);
    let landlocked = confine::confine().map_err(|error| cannot("confine the server", &error))?;
    match landlocked {
        Landlocked::Fully => log::debug!("confined by seccomp and Landlock"),
        Landlocked::Partly => {
            log::info!("the kernel's Landlock is an older one; seccomp does the rest")
        }
        Landlocked::No => {
            log::info!("the kernel has no Landlock; seccomp alone confines the server")
        }
    }

    let volumes = volumes
        .into_iter()
        .map(|(name, volume)| {
            let volume = atoll_host::server::volume(volume, name);
            volume
                .set_access_times(args.atime.into())
                .map_err(|error| cannot("start serving", &error))?;
            if let Ok(address) = &address {
                volume.set_address(address);
            }
            Ok(volume)
        })
        .collect::<Result<_, Failure>>()?;
    let server = SocketServer::new(listener, rules, volumes, Duration::from_micros(args.spin))
        .map_err(|error| cannot("start serving", &error))?;
    notify.ready(&format!("serving {names}"));
    let ended = server.run(stop.as_fd());
    notify.stopping();
    log::info!("shutting down");
    let mut outcome = Ok(0);
    for ((name, volume), path) in
        ended.map_err(|error| cannot("serve", &error))?.into_iter().zip(&paths)
    {
        let closed = match volume {
            Some(volume) => volume::close(path, volume),
            None => Err(Failure::new(format!(
                "{name} could not be closed after an internal error; what had been written is safe, and \
                 is taken up when it is opened again"
            ))),
        };
        match closed {
            Ok(()) => log::info!("closed {name}"),
            Err(failure) => {
                log::error!("{failure}");
                outcome = Err(failure);
            }
        }
    }
    outcome
}

/// The rules in the file at `path`.
fn rules_of(path: &Path) -> Result<Vec<Rule>, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    text.lines()
        .map(|line| line.split_once('#').map_or(line, |(rule, _)| rule).trim())
        .filter(|rule| !rule.is_empty())
        .map(|rule| rule.parse().map_err(|error| failed(&error)))
        .collect()
}

/// Messages go to standard error, a line each, begun with their level; under systemd in its own
/// way, so that the journal has the level as well.
fn start_log(filter: &str) -> Result<(), Failure> {
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    env_logger::Builder::new()
        .parse_filters(filter)
        .format(move |out, record| {
            if journal {
                // sd-daemon(3): the levels of syslog(3).
                let level = match record.level() {
                    log::Level::Error => 3,
                    log::Level::Warn => 4,
                    log::Level::Info => 6,
                    log::Level::Debug | log::Level::Trace => 7,
                };
                writeln!(out, "<{level}>{}", record.args())
            } else {
                writeln!(
                    out,
                    "atoll: {}: {}",
                    record.level().as_str().to_lowercase(),
                    record.args()
                )
            }
        })
        .try_init()
        .map_err(Failure::new)
}

/// A client takes up to three descriptors.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With less it serves fewer clients.
    let _ = setrlimit(Resource::Nofile, limit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_volumes() {
        let read = |text: &str| {
            text.parse::<Source>()
                .map(|source| (source.name, source.path.display().to_string(), source.access))
        };
        let expect =
            |name: &str, path: &str, access| Ok((name.to_owned(), path.to_owned(), access));
        assert_eq!(read("/a/data.vol"), expect("data", "/a/data.vol", Access::Write));
        assert_eq!(read("x=/a/data.vol:ro"), expect("x", "/a/data.vol", Access::Read));
        assert_eq!(read("/a=b/data"), expect("data", "/a=b/data", Access::Write));
        assert_eq!(read("./c=d.vol"), expect("c=d", "./c=d.vol", Access::Write));
        for wrong in ["", "x=", "=a", "/", "a:b=c", ":ro"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
