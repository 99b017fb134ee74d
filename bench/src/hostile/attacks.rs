//! The table of what strangers do.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use rustix::process::Gid;

use super::stage::{NOBODY, STRANGER};
use super::{flood, mounts, rings};
use crate::record::Broken;

/// One attack.
pub struct Attack {
    /// Of the row.
    pub name: &'static str,
    /// Its description.
    pub title: &'static str,
    /// How many processes take part.
    pub processes: u32,
    who: Who,
    /// Goes on until the process ends.
    run: fn(&Scene) -> Result<(), Broken>,
}

/// The users that the processes are.
#[derive(Clone, Copy, PartialEq)]
enum Who {
    /// One who may read and write.
    Allowed,
    /// Of a user of its own each, for whom there is no rule.
    Nobody,
    /// As the first, in 65,536 groups.
    Member,
    /// As the first; mounts are made before it becomes that user.
    Mounts,
}

const fn attack(
    name: &'static str,
    title: &'static str,
    who: Who,
    run: fn(&Scene) -> Result<(), Broken>,
) -> Attack {
    Attack { name, title, processes: 1, who, run }
}

/// All of them.
pub const ATTACKS: &[Attack] = &[
    Attack { processes: 4, ..attack("nothing", "no call at all, only work", Who::Nobody, nothing) },
    attack("reads", "reads of megabytes on 256 lanes", Who::Allowed, flood::reads),
    attack("lookups", "names that are not there, 4,096 at a time", Who::Allowed, flood::lookups),
    attack(
        "listings",
        "READDIRPLUS with room for 62 MiB on 16 lanes",
        Who::Allowed,
        flood::listings,
    ),
    attack("syncs", "fsync and zeroing on all slots", Who::Allowed, flood::syncs),
    attack("holes", "holes in the ring's memory", Who::Allowed, rings::holes),
    attack("huge", "large files made, cut and removed", Who::Allowed, rings::huge),
    Attack {
        processes: 2,
        ..attack("mixed", "large calls of every kind, by two", Who::Allowed, rings::mixed)
    },
    attack("scattered", "files of 100,000 extents cut and removed", Who::Allowed, rings::scattered),
    attack("deep", "renames at the bottom of 5,000 directories", Who::Allowed, rings::deep),
    attack("groups", "sessions of a member of 65,536 groups", Who::Member, rings::groups),
    attack("sessions", "as many sessions as there may be, and more", Who::Allowed, rings::sessions),
    Attack {
        processes: 9,
        ..attack("silence", "connections of 9 users without a rule", Who::Nobody, rings::silence)
    },
    attack("greetings", "refused greetings without end", Who::Nobody, rings::greetings),
    attack(
        "watched",
        "a doorbell and sockets that are watched 20,000 times",
        Who::Allowed,
        rings::watched,
    ),
    attack("lingering", "sockets whose close waits, as descriptors", Who::Nobody, rings::lingering),
    attack(
        "close",
        "a file whose FLUSH nobody answers, as a descriptor",
        Who::Mounts,
        mounts::close,
    ),
    attack("mounted", "reads of four threads through a mount", Who::Mounts, mounts::reads),
    attack("locks", "10,000 locks, 50 that wait, one again and again", Who::Mounts, mounts::locks),
    attack(
        "forgets",
        "a mount that takes FORGETs and answers nothing",
        Who::Mounts,
        mounts::forgets,
    ),
];

/// What the machine alone does to a victim: the other attacks take processors too.
fn nothing(scene: &Scene) -> Result<(), Broken> {
    scene.ready();
    loop {
        std::hint::spin_loop();
    }
}

/// The order to take part in an attack.
#[derive(clap::Args)]
pub struct Part {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    user: u32,
    attack: String,
    /// Which of several this is.
    number: u32,
    #[arg(action = clap::ArgAction::Set)]
    smoke: bool,
}

/// The server as a stranger knows it.
pub struct Scene {
    /// Where the server listens.
    pub socket: PathBuf,
    /// The stranger's user.
    pub user: u32,
    /// As little as shows that it works.
    pub smoke: bool,
}

impl Scene {
    /// Says that it is at work.
    pub fn ready(&self) {
        self.note("ready");
    }

    /// Says something once it is at work; the first such line is kept.
    pub fn note(&self, text: &str) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}

impl Part {
    /// Attacks until its input ends. Its mounts go then.
    pub fn play(self) -> Result<(), Broken> {
        let found = ATTACKS.iter().find(|attack| attack.name == self.attack);
        let attack = found.ok_or_else(|| Broken(format!("no attack {}", self.attack)))?;
        let user = match attack.who {
            Who::Nobody => NOBODY + self.number,
            _ => STRANGER,
        };
        let _ = rustix::process::nice(10);
        let scene = Scene { socket: self.socket, user, smoke: self.smoke };
        let who = attack.who;
        // Linux keeps the user for each thread: this one takes the mounts down in the end.
        std::thread::spawn(move || {
            let groups: Vec<Gid> = match who {
                Who::Member => (0..65_536).map(|group| Gid::from_raw(100_000 + group)).collect(),
                _ => Vec::new(),
            };
            let rights = match who {
                Who::Mounts => Ok(()),
                _ => rings::become_member(user, &groups),
            };
            let result = rights.and_then(|()| (attack.run)(&scene));
            if let Err(Broken(why)) = result {
                scene.note(&format!("it ended: {why}"));
            }
        });
        let mut line = String::new();
        while std::io::stdin().lock().read_line(&mut line)? > 0 {}
        mounts::down();
        // Its threads may be in calls that end with this process.
        std::process::exit(0);
    }
}
