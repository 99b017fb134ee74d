//! What Linux sends to `atoll serve`, and what that costs the host, beside the stock servers of
//! virtio-fs and QEMU's own for 9P: the same programs in a guest of each.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;

use atoll_vm::{Counts, Guest, Machine, Probes, Protocol, SystemCalls, Virtiofsd, programs};
use common::serving::Served;
use common::{TempDir, folder, volume};

/// Has everything of a file system forgotten that can be asked for again.
const FORGET: &str = "sync; echo 3 > /proc/sys/vm/drop_caches";
/// Waits for what is sent after a call has returned.
const SETTLE: &str = "usleep 300000";

/// A server of files, and how its guest is to use it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// `atoll serve` of a volume or of a directory, with the choice of caching.
    Atoll { of_volume: bool, cache: &'static str },
    /// `atoll serve` of a volume that the guest has alone, whose kernel may keep more of it back
    /// than Linux lets a file system of FUSE.
    Roomy,
    /// `atoll serve` of a volume, whose files the guest maps into a window, uncached otherwise.
    Window,
    /// virtiofsd in C, with the choice of caching.
    C(&'static str),
    /// virtiofsd in Rust, with the choice of caching.
    Rust(&'static str),
    /// QEMU's server of 9P.
    NineP,
}

/// All of them.
const KINDS: [Kind; 11] = [
    Kind::Atoll { of_volume: true, cache: "none" },
    Kind::Atoll { of_volume: true, cache: "alone" },
    Kind::Roomy,
    Kind::Window,
    Kind::Atoll { of_volume: false, cache: "none" },
    Kind::Atoll { of_volume: false, cache: "alone" },
    Kind::C("none"),
    Kind::C("auto"),
    Kind::Rust("never"),
    Kind::Rust("auto"),
    Kind::NineP,
];

impl Kind {
    fn name(self) -> String {
        match self {
            Kind::Atoll { of_volume: true, cache } => format!("Atoll, volume, {cache}"),
            Kind::Atoll { of_volume: false, cache } => format!("Atoll, directory, {cache}"),
            Kind::Roomy => "Atoll, volume, alone, max_ratio 100".to_owned(),
            Kind::Window => "Atoll, volume, none, dax".to_owned(),
            Kind::C(cache) => format!("virtiofsd (C), {cache}"),
            Kind::Rust(cache) => format!("virtiofsd (Rust), {cache}"),
            Kind::NineP => "9p".to_owned(),
        }
    }

    fn protocol(self) -> Protocol {
        match self {
            Kind::NineP => Protocol::NineP,
            _ => Protocol::Fuse,
        }
    }

    fn is_atoll(self) -> bool {
        matches!(self, Kind::Atoll { .. } | Kind::Roomy | Kind::Window)
    }

    fn is_stock(self) -> bool {
        matches!(self, Kind::C(_) | Kind::Rust(_))
    }
}

/// A server that runs.
enum Server {
    Atoll(Served),
    Stock(Virtiofsd, #[allow(dead_code, reason = "the folder that it serves")] TempDir),
    /// It is QEMU.
    NineP(#[allow(dead_code, reason = "the folder that it serves")] TempDir),
}

/// A guest that has mounted at /mnt, with the probes.
struct Subject {
    guest: Guest,
    probes: Probes,
    server: Server,
}

impl Subject {
    fn start(kind: Kind) -> Subject {
        let machine = Machine::new();
        let (server, machine) = match kind {
            Kind::Atoll { of_volume, cache } => {
                let dir = folder();
                volume(dir.path(), "a.vol", "128M");
                std::fs::create_dir(dir.path().join("host")).unwrap();
                let device = format!("g,tag=v,cache={cache}");
                let what = if of_volume { "a.vol" } else { "host" };
                let served = Served::again(dir, &[what, "--vhost-user", &device]);
                let machine = machine.virtiofs("v", &served.path().join("g"));
                (Server::Atoll(served), machine)
            }
            Kind::Roomy => {
                let dir = folder();
                volume(dir.path(), "a.vol", "128M");
                let served = Served::again(dir, &["a.vol", "--vhost-user", "g,tag=v,cache=alone"]);
                let machine = machine.virtiofs("v", &served.path().join("g"));
                (Server::Atoll(served), machine)
            }
            Kind::Window => {
                let dir = folder();
                volume(dir.path(), "a.vol", "128M");
                let served = Served::again(dir, &["a.vol", "--vhost-user", "g,tag=v,dax=64M"]);
                let machine = machine.virtiofs_with_window(&served.path().join("g"));
                (Server::Atoll(served), machine)
            }
            Kind::C(cache) => {
                let dir = folder();
                let server = Virtiofsd::start(dir.path(), &[&format!("cache={cache}")]);
                let machine = machine.virtiofs("v", &server.socket());
                (Server::Stock(server, dir), machine)
            }
            Kind::Rust(cache) => {
                let dir = folder();
                let program = Virtiofsd::rust_program().expect("ATOLL_VIRTIOFSD names it");
                let cache = format!("--cache={cache}");
                let server = Virtiofsd::start_rust(&program, dir.path(), &[&cache]);
                let machine = machine.virtiofs("v", &server.socket());
                (Server::Stock(server, dir), machine)
            }
            Kind::NineP => {
                let dir = folder();
                let machine = machine.ninep("v", dir.path());
                (Server::NineP(dir), machine)
            }
        };
        let image = Probes::modules(kind.protocol(), programs::image());
        let mut guest = Guest::boot(&machine, &image);
        let probes = Probes::set(&mut guest, kind.protocol());
        guest.ok(match kind {
            Kind::NineP => "mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 v /mnt",
            Kind::Window => "mount -t virtiofs -o dax=always v /mnt",
            Kind::Roomy => {
                "mount -t virtiofs v /mnt; \
                 for ratio in /sys/class/bdi/0:*/max_ratio; do echo 100 > $ratio; done"
            }
            _ => "mount -t virtiofs v /mnt",
        });
        Subject { guest, probes, server }
    }

    /// The process that serves.
    fn pid(&self) -> u32 {
        match &self.server {
            Server::Atoll(served) => served.child.id(),
            Server::Stock(server, _) => server.pid(),
            Server::NineP(_) => self.guest.pid(),
        }
    }

    /// What `workload` comes to.
    fn count(&mut self, workload: &Workload, with_calls: bool) -> Found {
        self.guest.ok(&format!("{}; {SETTLE}", workload.before));
        let before = self.probes.counts(&mut self.guest);
        let calls = with_calls.then(|| SystemCalls::begin(self.pid()));
        match &workload.work {
            Work::Script(script) => drop(self.guest.ok(script)),
            Work::PostMark(files) => programs::postmark(&mut self.guest, "/mnt/postmark", *files),
        }
        self.guest.ok(SETTLE);
        let calls = calls.map(SystemCalls::end);
        Found { counts: self.probes.counts(&mut self.guest).since(&before), calls }
    }
}

/// What a workload comes to.
struct Found {
    counts: Counts,
    /// System calls of the server, where they can be counted.
    calls: Option<u64>,
}

/// Work done in the guest.
enum Work {
    Script(String),
    PostMark(u32),
}

/// The kinds of things that are counted.
struct Workload {
    name: String,
    /// Work done before, and not counted.
    before: String,
    work: Work,
}

impl Workload {
    fn new(name: impl Into<String>, before: &str, script: impl Into<String>) -> Workload {
        let before = if before.is_empty() { "true" } else { before };
        Workload { name: name.into(), before: before.into(), work: Work::Script(script.into()) }
    }
}

/// How much is done.
struct Extent {
    /// Files of `ls -l`.
    many: u32,
    /// Files that are made, listed and removed.
    few: u32,
    /// Bytes of the file that is read and written.
    size: u32,
    postmark: Option<u32>,
}

/// All that is compared.
const WHOLE: Extent = Extent { many: 1000, few: 100, size: 4 << 20, postmark: Some(500) };
/// Little.
const SMALL: Extent = Extent { many: 50, few: 10, size: 256 << 10, postmark: None };

fn workloads(extent: &Extent) -> Vec<Workload> {
    let Extent { many, few, size, .. } = *extent;
    let make = format!("mkdir /mnt/many; passes create /mnt/many {many}; {FORGET}");
    let list = "ls -l /mnt/many > /tmp/list";
    let mut all = vec![
        Workload::new("nothing", "", "usleep 500000"),
        Workload::new(format!("ls -l of {many} files"), &make, list),
        // When what holds for a second does not any more.
        Workload::new(format!("ls -l of {many} files, again"), "usleep 1200000", list),
    ];
    for (order, buffer) in [("sequence", 4), ("sequence", 128), ("random", 4), ("random", 128)] {
        let file = format!("/mnt/{order}-{buffer}");
        let how = if order == "random" { ", random" } else { "" };
        for what in ["write", "write again", "read", "read again"] {
            let call = what.split(' ').next().unwrap_or_default();
            let name = format!("{what} {} KiB by {buffer}{how}", size >> 10);
            let before = if what == "read" { FORGET } else { "" };
            let script = format!("passes {call} {file} {size} {} {order}", buffer << 10);
            all.push(Workload::new(name, before, script));
        }
    }
    for what in ["create", "list", "remove"] {
        let before = match what {
            "create" => "mkdir /mnt/few",
            _ => "",
        };
        let script = format!("passes {what} /mnt/few {few}");
        all.push(Workload::new(format!("{what} {few} files"), before, script));
    }
    all.extend(extent.postmark.map(|files| Workload {
        name: format!("PostMark, {files} files"),
        before: FORGET.into(),
        work: Work::PostMark(files),
    }));
    all
}

/// What each workload comes to with a server.
fn compare(kind: Kind, extent: &Extent, with_calls: bool) -> Vec<Found> {
    let mut subject = Subject::start(kind);
    let found = workloads(extent).iter().map(|work| subject.count(work, with_calls)).collect();
    subject.guest.end();
    found
}

/// A table of one figure.
fn table(title: &str, names: &[String], all: &[(Kind, Vec<Found>)], of: impl Fn(&Found) -> String) {
    println!("\n**{title}**\n");
    let heads: Vec<String> = all.iter().map(|(kind, _)| kind.name()).collect();
    println!("| | {} |", heads.join(" | "));
    println!("|---|{}", "---:|".repeat(all.len()));
    for (at, name) in names.iter().enumerate() {
        let cells: Vec<String> = all.iter().map(|(_, found)| of(&found[at])).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
}

#[test]
fn a_guest_that_is_alone_sends_less_than_by_9p() {
    let [alone, ninep] = [Kind::Atoll { of_volume: true, cache: "alone" }, Kind::NineP]
        .map(|kind| compare(kind, &SMALL, false));
    for (at, work) in workloads(&SMALL).iter().enumerate().skip(1) {
        let [own, other] = [&alone[at], &ninep[at]].map(|found| found.counts.total().count);
        let kinds = alone[at].counts.kinds(Protocol::Fuse);
        assert!(own < other, "{}: {own} ({kinds}), 9p {other}", work.name);
        // What it has listed it need not ask for.
        let is_known = work.name.starts_with("ls") && work.name.ends_with("again");
        assert!(!is_known || own <= 4, "{}: {kinds}", work.name);
        // What it has written it keeps for a while.
        let is_kept = work.name.starts_with("write") && work.name.ends_with("by 4");
        assert!(!is_kept || own * 4 <= other, "{}: {kinds}, 9p {other}", work.name);
    }
}

#[test]
#[ignore = "prints what guests send, for docs/PERFORMANCE.md; several minutes"]
fn what_guests_send_and_what_it_costs() {
    let with_calls = SystemCalls::can_be_counted();
    if !with_calls {
        println!("perf cannot count system calls here: that column is empty");
    }
    let wanted = std::env::var("ATOLL_COMPARED").unwrap_or_default();
    let kinds = KINDS.into_iter().filter(|kind| {
        let is_there = !matches!(kind, Kind::Rust(_)) || Virtiofsd::rust_program().is_some();
        is_there && kind.name().contains(&wanted)
    });
    let all: Vec<(Kind, Vec<Found>)> =
        kinds.map(|kind| (kind, compare(kind, &WHOLE, with_calls))).collect();
    let names: Vec<String> = workloads(&WHOLE).into_iter().map(|work| work.name).collect();
    table("Messages", &names, &all, |found| found.counts.total().count.to_string());
    table("Bytes of messages, KiB there and back", &names, &all, |found| {
        let total = found.counts.total();
        format!("{} + {}", total.sent.div_ceil(1024), total.got.div_ceil(1024))
    });
    table("Wake-ups of the server and of the guest", &names, &all, |found| {
        format!("{} + {}", found.counts.kicks, found.counts.interrupts)
    });
    table(
        "System calls of the server; of QEMU, emulation included, for 9p",
        &names,
        &all,
        |found| found.calls.map_or("-".to_owned(), |calls| calls.to_string()),
    );
    println!("\n**Kinds of messages**\n");
    for (at, name) in names.iter().enumerate() {
        println!("- {name}");
        for (kind, found) in &all {
            println!("  - {}: {}", kind.name(), found[at].counts.kinds(kind.protocol()));
        }
    }
    goals(&names, &all);
}

/// Which goals are met.
fn goals(names: &[String], all: &[(Kind, Vec<Found>)]) {
    let count = |found: &Found| found.counts.total().count;
    let peer = |kind: &Kind| all.iter().find(|(other, _)| other == kind).map(|(_, found)| found);
    println!("\n**Goals**\n");
    for (kind, found) in all.iter().filter(|(kind, _)| kind.is_atoll()) {
        let mut missed = BTreeMap::new();
        if let Some(ninep) = peer(&Kind::NineP) {
            for (at, name) in names.iter().enumerate().skip(1) {
                let (own, other) = (count(&found[at]), count(&ninep[at]));
                if own >= other {
                    missed.insert(at, format!("{name}: {own}, 9p {other}"));
                }
            }
            let words: Vec<String> = missed.into_values().collect();
            println!("- {}: not fewer messages than 9p in: {}", kind.name(), words.join("; "));
        }
        for (stock, other) in all.iter().filter(|(stock, _)| stock.is_stock()) {
            let parts = [1, 2].map(|at| format!("{} of {}", count(&found[at]), count(&other[at])));
            println!(
                "- {}, ls -l beside {}: {}",
                kind.name(),
                stock.name(),
                parts.join(", again ")
            );
        }
    }
}
