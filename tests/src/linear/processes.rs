//! Schedules of processes, some of which are killed: the test's own binary is run again for each
//! client. A client writes the beginning and the answer of each call to a pipe that all share, each
//! in one write; the order in the pipe is the clock: a call happened between its two lines.

use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::clients::Client;
use super::history::{Call, Mix, NAMES, Outcome, Page, Seen, script};
use super::run::LENGTH;
use crate::rng::Rng;

/// How a client's process learns what to do.
const TASK: &str = "ATOLL_SHARER";
/// The longest that a client waits, in nanoseconds, between two calls, and a killer before it
/// kills.
const PAUSE: u64 = 200_000;

/// The task of the processes of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The test function that calls [`play`].
    pub test: &'a str,
    /// The argument of its `make`: where the volume is.
    pub place: &'a str,
    /// The seed of scripts and kills.
    pub seed: u64,
    /// The numbers of the clients.
    pub clients: (usize, usize),
    /// Operations.
    pub mix: Mix,
    /// Errors that say that the server is gone: the outcome of such a call is unknown.
    pub lost: &'a [i32],
}

/// Waits some time within [`PAUSE`] without sleeping, which would take longer.
fn pause(rng: &mut Rng) {
    let (begin, time) = (Instant::now(), Duration::from_nanos(rng.within(0..PAUSE)));
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// A client's process: does its script on the client that `make` gives for the place in the plan
/// and its own number, once all others are ready. Does nothing when it is not run for that.
///
/// # Panics
/// Without a valid plan.
pub fn play<C: Client>(make: impl FnOnce(&str, usize) -> C) {
    let Ok(task) = std::env::var(TASK) else { return };
    let parts: Vec<&str> = task.splitn(6, ' ').collect();
    let [seed, client, names, truncate, list, place] = parts[..] else { panic!("{task}") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let mix = Mix { names: number(names), truncate: truncate == "true", list: list == "true" };
    let (seed, i) = (number(seed), number(client) as usize);
    let mut client = make(place, i);
    // One write(2): standard error is not buffered, and pipes do not divide lines.
    let say = |line: String| std::io::stderr().write_all(line.as_bytes()).expect("a pipe");
    say(format!("{i} ready\n"));
    let _ = std::io::stdin().read(&mut [0]);
    let mut rng = Rng::new(!seed << 8 | i as u64);
    for (k, op) in script(seed, i, LENGTH, &mix).into_iter().enumerate() {
        pause(&mut rng);
        say(format!("{i} {k} ?\n"));
        let outcome = client.call(&op);
        say(format!("{i} {k} {}\n", encode(&outcome)));
    }
}

/// Processes of a run, which end with it however it ends.
struct Processes(Vec<Child>);

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub struct Played {
    /// The history.
    pub calls: Vec<Call>,
    /// The time after it.
    pub end: u64,
    /// Clients that were killed before they had finished, and in the middle of a call.
    pub killed: (usize, usize),
}

/// When a process is killed: after so many lines, of this client or of any.
#[derive(Clone, Copy, Debug)]
struct Death {
    client: Option<usize>,
    lines: u64,
}

/// Runs the clients of `plan`. All but the first may be killed; or, with `kill_server`, none is,
/// and that is called at some time. `ready` is called when all are ready and none has begun. The
/// times begin after `from`.
///
/// # Panics
/// When a client does, or writes a line that cannot be parsed.
pub fn processes(
    plan: &Plan<'_>,
    from: u64,
    ready: impl FnOnce(),
    kill_server: Option<&mut dyn FnMut()>,
) -> Played {
    let mut rng = Rng::new(plan.seed << 16 | 0xdead);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let (gate, opener) = std::io::pipe().expect("a pipe");
    let (begin, end) = plan.clients;
    let Mix { names, truncate, list } = plan.mix;
    let mut all = Processes(Vec::new());
    for i in begin..end {
        let task = format!("{} {i} {names} {truncate} {list} {}", plan.seed, plan.place);
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", plan.test, "--nocapture", "--test-threads=1"])
            .env(TASK, task)
            .stdin(Stdio::from(gate.try_clone().expect("a descriptor")))
            .stdout(Stdio::null())
            .stderr(Stdio::from(writer.try_clone().expect("a descriptor")))
            .spawn()
            .expect("a process");
        all.0.push(child);
    }
    drop((gate, writer));
    let most = 2 * LENGTH as u64;
    let mut deaths: Vec<Death> = Vec::new();
    if kill_server.is_some() {
        deaths.push(Death { client: None, lines: rng.within(1..most * (end - begin) as u64) });
    } else {
        let dies = (begin + 1..end).filter(|_| rng.chance(60)).collect::<Vec<_>>();
        let death = |i| Death { client: Some(i), lines: rng.within(0..most * 3 / 4) };
        deaths.extend(dies.into_iter().map(death));
    }
    listen(plan, from, reader, opener, &mut all, (deaths, rng), ready, kill_server)
}

#[expect(clippy::too_many_arguments)]
fn listen(
    plan: &Plan<'_>,
    from: u64,
    reader: PipeReader,
    opener: impl Write,
    all: &mut Processes,
    (mut deaths, mut rng): (Vec<Death>, Rng),
    ready: impl FnOnce(),
    mut kill_server: Option<&mut dyn FnMut()>,
) -> Played {
    let (begin, end) = plan.clients;
    let scripts: Vec<_> = (begin..end).map(|i| script(plan.seed, i, LENGTH, &plan.mix)).collect();
    let mut opener = Some((opener, ready));
    let mut said = vec![0; end - begin];
    let mut waiting = end - begin;
    // Those that know that the server is gone.
    let mut lost = vec![false; end - begin];
    // Of each client, its last call in the history.
    let mut last: Vec<Option<usize>> = vec![None; end - begin];
    let mut played = Played { end: from, ..Played::default() };
    let mut killed = Vec::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8(line.expect("a pipe")).expect("text");
        played.end += 1;
        let parts: Vec<&str> = line.splitn(3, ' ').collect();
        let i = parts[0].parse().ok().filter(|i| (begin..end).contains(i));
        let Some(i) = i else { panic!("a client failed: {line}") };
        match parts[1..] {
            ["ready"] => {
                waiting -= 1;
                if waiting == 0
                    && let Some((opener, ready)) = opener.take()
                {
                    ready();
                    drop(opener);
                }
                continue;
            }
            _ if lost[i - begin] => continue,
            [k, "?"] => {
                let op = scripts[i - begin][k.parse::<usize>().expect("a number")];
                last[i - begin] = Some(played.calls.len());
                played.calls.push(Call { client: i, op, invoked: played.end, returned: None });
            }
            [_, outcome] => {
                let outcome = decode(outcome).unwrap_or_else(|| panic!("said: {line}"));
                let Some(at) = last[i - begin].take() else { panic!("said: {line}") };
                let server_gone = kill_server.is_some() && deaths.is_empty();
                if server_gone && matches!(outcome, Err(errno) if plan.lost.contains(&errno)) {
                    // Its later calls reach no server.
                    lost[i - begin] = true;
                    continue;
                }
                played.calls[at].returned = Some((played.end, outcome));
            }
            _ => panic!("said: {line}"),
        }
        said[i - begin] += 1;
        let total: u64 = said.iter().sum();
        let due = |death: &mut Death| {
            death.client.map_or(total, |client| said[client - begin]) > death.lines
        };
        for death in deaths.extract_if(.., due) {
            pause(&mut rng);
            match (death.client, &mut kill_server) {
                (Some(client), _) => {
                    all.0[client - begin].kill().expect("a child");
                    killed.push(client);
                }
                (None, Some(kill)) => kill(),
                (None, None) => {}
            }
        }
    }
    for (i, child) in (begin..end).zip(&mut all.0) {
        let status = child.wait().expect("a child");
        assert!(status.success() || killed.contains(&i), "client {i}: {status}");
    }
    let part_way = |i: &&usize| said[**i - begin] < 2 * LENGTH as u64;
    let in_call = |i: &&usize| last[**i - begin].is_some();
    played.killed = (killed.iter().filter(part_way).count(), killed.iter().filter(in_call).count());
    played.end += 1;
    played
}

/// An outcome in a line.
fn encode(outcome: &Outcome) -> String {
    let seen = match outcome {
        Ok(seen) => seen,
        Err(errno) => return format!("E {errno}"),
    };
    let show = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
    let page = seen.page.map(|page| match page {
        Page::Filled(byte) => u64::from(byte),
        Page::Absent => 256,
        Page::Torn => 257,
    });
    let mut values = vec![seen.ino, seen.nlink.map(u64::from), seen.size, seen.at, page];
    values.extend(seen.list.into_iter().flatten());
    values.into_iter().map(show).collect::<Vec<_>>().join(" ")
}

/// The outcome that a line stands for.
pub fn decode(text: &str) -> Option<Outcome> {
    if let Some(errno) = text.strip_prefix("E ") {
        return Some(Err(errno.parse().ok()?));
    }
    let value = |text: &str| match text {
        "-" => Some(None),
        text => text.parse::<u64>().ok().map(Some),
    };
    let values: Vec<Option<u64>> = text.split(' ').map(value).collect::<Option<_>>()?;
    let (&[ino, nlink, size, at, page], list) = values.split_first_chunk()?;
    let list: Option<[Option<u64>; NAMES]> =
        if list.is_empty() { None } else { Some(list.try_into().ok()?) };
    let page = page.map(|page| match page {
        256 => Page::Absent,
        257 => Page::Torn,
        byte => Page::Filled(byte as u8),
    });
    Some(Ok(Seen { ino, nlink: nlink.map(|nlink| nlink as u32), size, at, page, list }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_survive_the_pipe() {
        let full = Seen {
            ino: Some(u64::MAX),
            nlink: Some(2),
            size: Some(0),
            at: Some(7),
            page: Some(Page::Filled(255)),
            list: Some([None, Some(3), None, Some(4)]),
        };
        let torn = Seen { page: Some(Page::Torn), ..Seen::default() };
        let absent = Seen { page: Some(Page::Absent), ..Seen::default() };
        for outcome in [Ok(full), Ok(torn), Ok(absent), Ok(Seen::default()), Err(2)] {
            assert_eq!(decode(&encode(&outcome)), Some(outcome));
        }
        assert_eq!(decode("1 2"), None);
    }
}
