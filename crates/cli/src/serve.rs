//! `atoll serve`: volumes for many programs at once.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use atoll_fs::Quota;
use atoll_host::server::SPIN;
use atoll_host::server::bind::bind;
use atoll_host::server::broker;
use atoll_host::server::confine::{self, Landlocked};
use atoll_host::server::guests::Guest;
use atoll_host::server::jail::Jail;
use atoll_host::server::listen::{Door, SocketServer};
use atoll_host::server::mounter;
use atoll_host::server::notify::{self, Notify};
use atoll_host::server::rules::{Limit, Rule, RuleError, Rules};
use atoll_vfs::{Context, Errno, FileSystem, Ino, Name, Timespec};
use rustix::process::Signal;

use crate::failure::{Failure, Outcome};
use crate::guests::{self, VhostUser};
use crate::logging;
use crate::notes;
use crate::served::{OfDirectory, Served, Squash};
use crate::signals;
use crate::size;
use crate::volume::{self, Access, Atime};

/// Serve volumes and directories to many programs at once, until Ctrl-C or SIGTERM.
///
/// Programs reach a volume with `atoll run -v SOCKET/VOLUME:PATH` and
/// `atoll mount SOCKET/VOLUME DIRECTORY`; /VOLUME is not needed where only one is served. All see
/// each other's changes at once.
///
/// What a client may do is what the first rule of --allow says that fits it, also of the superuser;
/// where none fits, the superuser and the user who runs the server may do everything, others
/// nothing. A rule is WHO=ACCESS[,volume=NAME][,path=DIRECTORY][,socket=PATH]. WHO: uid:NUMBER,
/// gid:NUMBER, user:NAME, group:NAME or all. ACCESS: deny, ro or rw. With path= the client gets
/// that directory as its root; with socket= the rule is for those who come by that socket. With
/// quota=BYTES and inodes=NUMBER everybody together may have no more below that directory.
///
/// A user may take so much of the server as --limit says, over all of its connections. A limit is
/// WHO,RESOURCE=NUMBER[,...] with connections=, memory= or open-files=, or with operations= or
/// bytes= in a second; WHO is as in a rule, for each of these users, or `together` for all users.
/// Of each resource the first limit that names it counts. The superuser and the server's own user
/// have no limit but those.
///
/// A directory is served as it is, and programs of the host may change it meanwhile. What clients
/// make there is theirs on the host if the superuser runs the server; otherwise, and with
/// all_squash, it is one user's (the server's, or anonuid's: 65534), and to each client its own.
/// File systems mounted in it are served with the option submounts only; no devices are made there.
///
/// It runs in the foreground, tells a service manager when it is ready (sd_notify), and once it is,
/// keeps access to nothing but the volumes and the socket. SIGHUP changes nothing. The socket's
/// file stays; the next server replaces it.
#[derive(clap::Args)]
pub struct Args {
    /// A volume or a directory, and its name for clients: without NAME= that of its file, without
    /// the extension. After it `:ro` for looking only; of a directory also `all_squash`, `anonuid=`
    /// and `anongid=`, as in `data:ro,all_squash,anonuid=1000`, and `submounts`.
    #[arg(required = true, value_name = "[NAME=]VOLUME[:OPTION,...]")]
    volumes: Vec<Source>,
    /// Where clients find the server; several, each with rules of its own.
    #[arg(long, value_name = "PATH", default_value = "atoll.sock")]
    socket: Vec<PathBuf>,
    /// Serve a volume to a virtual machine too: SOCKET is where its QEMU finds a virtio-fs device,
    /// VOLUME the name of the volume, if there are several; `:ro` after it for looking only. tag=
    /// is the name by which the guest mounts it, without it the volume's. A guest hears of no
    /// change that others make: with cache=none its kernel asks each time, with cache=SECONDS it
    /// keeps what it has learnt for as long, with cache=told until it is told, if its driver takes
    /// notices (Linux has none that does), with cache=alone for ever, and nobody else may use
    /// the volume. What a front end may do the rules say; its guest acts as the users that it
    /// names if the front end is the superuser's or with ids=guest, with ids=UID:GID as that user,
    /// with ids=GUEST:HOST:COUNT[+...] as those of the host that ranges of its users and groups
    /// stand for, else as the front end's. queues= is a number of request queues, for front ends
    /// that ask for it. With dax, or dax=SIZE, the guest maps files into a window of memory, of
    /// 256M or of SIZE, with QEMU 11.1: of a directory those themselves, which nobody may cut
    /// short then; with copies after it, copies.
    #[arg(long, value_name = "SOCKET[=VOLUME][,tag=NAME]...")]
    vhost_user: Vec<VhostUser>,
    /// Let others in.
    #[arg(long, value_name = "RULE")]
    allow: Vec<Rule>,
    /// More rules, one a line, after those of --allow, and limits, after the word `limit`; # begins
    /// a comment.
    #[arg(long, value_name = "FILE")]
    allow_from: Option<PathBuf>,
    /// Let a user, or all together, take no more of the server than this.
    #[arg(long, value_name = "LIMIT", value_parser = limit_from)]
    limit: Vec<Limit>,
    /// Let the superuser do only what a rule says, as all others.
    #[arg(long)]
    no_superuser: bool,
    /// How long the thread of a volume, and that of each mount, looks for requests before it
    /// sleeps, in microseconds. More answers sooner what comes seldom, and uses more of a
    /// processor.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = SPIN.as_micros() as u64)]
    spin: u64,
    /// What reading does to the time of last access of files and directories. What programs read
    /// again and again without asking the server may be counted when they open it next.
    #[arg(long, value_name = "WHEN", env = "ATOLL_ATIME", default_value = "noatime")]
    atime: Atime,
    /// Do not serve where the kernel has no Landlock, or an older one, and seccomp would have to do
    /// alone what that cannot.
    #[arg(long)]
    require_landlock: bool,
    /// Whether the server leaves the system's root directory and network for an empty place of its
    /// own before it serves: it takes the superuser's rights, which are dropped then.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    jail: JailWhen,
    /// What is logged: error, warn, info, debug or trace; per module as in
    /// `info,atoll_host::server=debug`.
    #[arg(long, value_name = "LEVEL", env = "ATOLL_LOG", default_value = "info")]
    log_level: String,
}

/// Whether the server goes to an empty place.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum JailWhen {
    /// Where it may.
    Auto,
    /// Or it does not serve.
    Require,
    /// No.
    Off,
}

impl From<JailWhen> for Jail {
    fn from(when: JailWhen) -> Jail {
        match when {
            JailWhen::Auto => Jail::Auto,
            JailWhen::Require => Jail::Require,
            JailWhen::Off => Jail::Off,
        }
    }
}

/// A volume to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    name: String,
    path: PathBuf,
    access: Access,
    how: OfDirectory,
}

/// Reads the options behind a volume, as in exports(5); `None` when they are none.
fn options_of(text: &str) -> Option<(Access, OfDirectory)> {
    let (mut access, mut squash, mut anonymous) = (Access::Write, None, Squash::default());
    let mut submounts = false;
    for option in text.split(',') {
        match option.split_once('=') {
            None if option == "ro" => access = Access::Read,
            None if option == "all_squash" => squash = Some(()),
            None if option == "submounts" => submounts = true,
            Some(("anonuid", uid)) => anonymous.uid = Some(uid.parse().ok()?),
            Some(("anongid", gid)) => anonymous.gid = Some(gid.parse().ok()?),
            _ => return None,
        }
    }
    let named = anonymous != Squash::default();
    let squash = (squash.is_some() || named).then_some(anonymous);
    Some((access, OfDirectory { squash, submounts }))
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Source, String> {
        let options = text
            .rsplit_once(':')
            .and_then(|(text, options)| options_of(options).map(|options| (text, options)));
        let (text, (access, how)) =
            options.unwrap_or((text, (Access::Write, OfDirectory::default())));
        let (name, path) = match text.split_once('=') {
            Some((name, path)) if !name.contains('/') => (Some(name), path),
            _ => (None, text),
        };
        let stem = || Some(Path::new(path).file_stem()?.to_str()?.to_owned());
        let name = name.map(str::to_owned).or_else(stem).unwrap_or_default();
        if path.is_empty() || name.is_empty() || name.contains(['/', ':']) {
            return Err("it gives no name for clients; write NAME=VOLUME".to_owned());
        }
        Ok(Source { name, path: path.into(), access, how })
    }
}

/// Serves.
pub fn run(args: &Args) -> Outcome {
    // Dropped last, it has all written.
    let mut log = logging::start(&args.log_level)?;
    notes::go_to(notes::Destination::Log);
    let cannot =
        |what: &str, error: &dyn std::fmt::Display| Failure::new(format!("cannot {what}: {error}"));
    let own = rustix::process::geteuid().as_raw();
    let (mut rules, mut limits) = (args.allow.clone(), args.limit.clone());
    if let Some(path) = &args.allow_from {
        let (more_rules, more_limits) = rules_of(path)?;
        rules.extend(more_rules);
        limits.extend(more_limits);
    }
    let all = rules.clone();
    let guests = args.vhost_user.iter().map(|guest| &guest.socket);
    let sockets: Vec<&PathBuf> = args.socket.iter().chain(guests).collect();
    let rules = rules_by_socket(&sockets, &rules)?.into_iter().map(|rules| {
        let rules = Rules::new(rules, own).with_limits(limits.clone());
        if args.no_superuser { rules.without_superuser() } else { rules }
    });
    let mut rules: Vec<Rules> = rules.collect();
    // Front ends do not come by the broker.
    let guest_rules = rules.split_off(args.socket.len());
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
    // Before there is anything that it must not have.
    let mounter = match mounter::start() {
        Ok(mounter) => Some(mounter),
        Err(error) => {
            log::debug!("clients mount by themselves: {error}");
            None
        }
    };
    let served = args.volumes.iter().map(|source| source.name.clone()).collect();
    let broker = broker::start(rules.clone(), served)
        .map_err(|error| cannot("start the process that receives from clients", &error))?;

    let spin = Duration::from_micros(args.spin);
    let mut paths = Vec::new();
    let mut volumes = Vec::new();
    let doors = (|| {
        for source in &args.volumes {
            let path = volume::absolute(&source.path)?;
            volumes.push((source.name.clone(), Served::open(&path, source.access, source.how)?));
            paths.push(path);
        }
        for (name, volume) in &mut volumes {
            set_quotas(name, volume, &all)?;
        }
        let bind = |(path, rules): (&PathBuf, &Rules)| {
            let listener = bind(path, rules.admit_others()).map_err(Failure::new)?;
            Ok(Door { listener, rules: rules.clone() })
        };
        let doors = args.socket.iter().zip(&rules).map(bind);
        let doors = doors.collect::<Result<Vec<Door>, Failure>>()?;
        let names: Vec<&str> = args.volumes.iter().map(|source| source.name.as_str()).collect();
        let bind = |(guest, rules): (&VhostUser, &Rules)| guest.bind(rules, &names, spin);
        let guests = args.vhost_user.iter().zip(&guest_rules).map(bind);
        Ok((doors, guests.collect::<Result<Vec<Guest>, Failure>>()?))
    })();
    let (doors, guests) = match doors {
        Ok(bound) => bound,
        Err(failure) => return Err(give_up(volumes, &paths, failure)),
    };
    let names = volumes.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let sockets = args.socket.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    log::info!("serving {names} at {}", sockets.join(", "));
    let socket = args.socket.first().and_then(|path| std::path::absolute(path).ok());
    let how_to = args.vhost_user.iter().zip(&guests).enumerate().map(|(number, (at, guest))| {
        let socket = std::path::absolute(&at.socket).unwrap_or_else(|_| at.socket.clone());
        guests::how_to(number, &socket, &guest.device.tag, guest.device.window > 0)
    });
    let how_to: Vec<String> = how_to.collect();
    for (_, served) in &mut volumes {
        served.serve_strangers();
        served.isolate();
    }
    let directories: Vec<_> = volumes.iter().filter_map(|(_, served)| served.directory()).collect();
    let confined = match confine::confine(args.jail.into(), &directories) {
        Ok(confined) => confined,
        Err(error) => {
            return Err(give_up(volumes, &paths, cannot("confine the server", &error)));
        }
    };
    if let Err(error) = &confined.jailed {
        log::debug!("the server has no root directory and namespaces of its own: {error}");
    }
    if args.require_landlock && confined.landlocked != Landlocked::Fully {
        let failure = Failure::new(
            "the kernel has no Landlock, or an older one, and --require-landlock asks for all of it",
        );
        return Err(give_up(volumes, &paths, failure));
    }
    match confined.landlocked {
        Landlocked::Fully => log::debug!("confined by seccomp and Landlock"),
        Landlocked::Partly => {
            log::info!("the kernel's Landlock is an older one; seccomp does the rest")
        }
        Landlocked::No => {
            log::info!("the kernel has no Landlock; seccomp alone confines the server")
        }
    }

    if let Err(error) = log.serve() {
        return Err(give_up(volumes, &paths, cannot("write a log", &error)));
    }
    let volumes = volumes
        .into_iter()
        .map(|(name, volume)| {
            let volume = volume.share(name).map_err(|error| cannot("start serving", &error))?;
            volume
                .set_access_times(args.atime.into())
                .map_err(|error| cannot("start serving", &error))?;
            Ok(volume)
        })
        .collect::<Result<_, Failure>>()?;
    let mut server = SocketServer::new(doors, Some(broker), volumes, spin)
        .map_err(|error| cannot("start serving", &error))?;
    if let Some(mounter) = mounter {
        server.share_mounts(mounter, &socket.unwrap_or_default());
    }
    for (guest, how_to) in guests.into_iter().zip(how_to) {
        server.attach(guest).map_err(|error| cannot("serve a virtual machine", &error))?;
        log::info!("{how_to}");
    }
    let variable = |name| std::env::var_os(name);
    let (usec, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
    if let Some(every) = notify::watched(usec.as_deref(), pid.as_deref()) {
        let notify = notify.clone();
        server.watch(every, move || notify.alive());
    }
    notify.ready(&format!("serving {names}"));
    let ended = server.run(stop.as_fd());
    notify.stopping();
    log::info!("shutting down");
    let mut outcome = Ok(0);
    for ((name, volume), path) in
        ended.map_err(|error| cannot("serve", &error))?.into_iter().zip(&paths)
    {
        let closed = match volume {
            Some(volume) => volume.close(path),
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

/// Closes all of `volumes`, though one cannot be, and returns why they are not served.
fn give_up(volumes: Vec<(String, Served)>, paths: &[PathBuf], why: Failure) -> Failure {
    for ((_, volume), path) in volumes.into_iter().zip(paths) {
        if let Err(failure) = volume.close(path) {
            log::error!("{failure}");
        }
    }
    why
}

/// The rules and limits in the file at `path`.
fn rules_of(path: &Path) -> Result<(Vec<Rule>, Vec<Limit>), Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let (mut rules, mut limits) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        if let Some(limit) = line.strip_prefix("limit ") {
            limits.push(limit_from(limit.trim()).map_err(|error| failed(&error))?);
        } else if !line.is_empty() {
            rules.push(line.parse().map_err(|error| failed(&error))?);
        }
    }
    Ok((rules, limits))
}

/// Gives the directories of the volume `name` the quotas that `rules` say, and others none.
fn set_quotas(name: &str, served: &mut Served, rules: &[Rule]) -> Result<(), Failure> {
    let about = |rule: &&Rule| rule.volume().is_none_or(|its| its == name);
    let volume = match served {
        Served::Volume(volume) => volume,
        Served::Directory(_) | Served::Guest(_)
            if rules.iter().filter(about).any(|rule| rule.quota().is_some()) =>
        {
            return Err(Failure::new(format!(
                "{name} is a directory of the host or another's file system, which has no quotas here: give the rule a volume= that is \
                 no directory, or have the host limit it"
            )));
        }
        Served::Directory(_) | Served::Guest(_) => return Ok(()),
    };
    let mut quotas: Vec<(Ino, Quota)> = Vec::new();
    for (path, quota) in rules.iter().filter(about).filter_map(Rule::quota) {
        let failed = |error: Errno| {
            Failure::new(format!(
                "the directory {path} of {name} cannot have a quota: {error}; it has to be there before the \
                 server starts"
            ))
        };
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let mut dir = Ino::ROOT;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let found = Name::new(part.as_bytes()).and_then(|part| volume.lookup(&cx, dir, part));
            dir = found.map_err(failed)?.ino;
        }
        let quota = Quota { bytes: quota.bytes, inodes: quota.inodes };
        match quotas.iter().find(|(other, _)| *other == dir) {
            Some((_, same)) if *same == quota => {}
            Some(_) => {
                return Err(Failure::new(format!("two rules give {path} of {name} other quotas")));
            }
            None => quotas.push((dir, quota)),
        }
    }
    volume.set_quotas(&quotas).map_err(|error| match Errno::from(error) {
        Errno::EINVAL => Failure::new(format!(
            "directories of {name} with quotas lie within each other; give a quota to one of them"
        )),
        error => Failure::new(format!("cannot set the quotas of {name}: {error}")),
    })
}

fn limit_from(text: &str) -> Result<Limit, RuleError> {
    Limit::parse(text, size::parse)
}

/// The rules for each of `sockets`.
fn rules_by_socket(sockets: &[&PathBuf], rules: &[Rule]) -> Result<Vec<Vec<Rule>>, Failure> {
    for (at, socket) in sockets.iter().enumerate() {
        if sockets[..at].contains(socket) {
            return Err(Failure::new(format!("the socket {} is given twice", socket.display())));
        }
    }
    for socket in rules.iter().filter_map(Rule::socket) {
        if !sockets.iter().any(|known| *known == socket) {
            return Err(Failure::new(format!(
                "a rule is about the socket {}, which neither --socket nor --vhost-user names so",
                socket.display()
            )));
        }
    }
    let of = |socket: &&PathBuf| {
        let fits = |rule: &&Rule| rule.socket().is_none_or(|its| its == *socket);
        rules.iter().filter(fits).cloned().collect()
    };
    Ok(sockets.iter().map(of).collect())
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
    use crate::volume::CreateOptions;

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
        let how = |text: &str| text.parse::<Source>().unwrap().how;
        let squash = |text: &str| how(text).squash;
        assert_eq!(["d:ro", "d:ro,submounts"].map(|text| how(text).submounts), [false, true]);
        assert_eq!(squash("d:ro"), None);
        assert_eq!(squash("d:ro,all_squash"), Some(Squash::default()));
        let named = Some(Squash { uid: Some(7), gid: Some(8) });
        assert_eq!(squash("x=/d:anonuid=7,anongid=8"), named);
        assert!(read("d:rx").is_err() && read("d:anonuid=x").is_err());
        for wrong in ["", "x=", "=a", "/", "a:b=c", ":ro"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    /// Also behind one that cannot be closed.
    #[test]
    fn all_volumes_are_closed_when_they_are_not_served() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["cut", "whole"].map(|name| folder.path().join(name));
        let options = CreateOptions { size: Some(16 << 20), ..CreateOptions::default() };
        let open = |path: &PathBuf| {
            ("v".to_owned(), Served::Volume(volume::create(path, &options).unwrap()))
        };
        let volumes = paths.iter().map(open).collect();
        let cut = std::fs::File::options().write(true).open(&paths[0]).unwrap();
        cut.set_len(0).unwrap();
        assert_eq!(give_up(volumes, &paths, Failure::new("why")).message, "why");
        let mut device = volume::open_device(&paths[1], Access::Read).unwrap();
        let report = atoll_fs::check(&mut device, &atoll_fs::CheckOptions::default()).unwrap();
        assert!(report.clean_unmount && report.is_clean());
    }
}
