//! A server's log. Clients can have much said in it, and whoever reads it can stop to: neither
//! floods it, nor has a thread that serves wait.
//!
//! Of one kind of message (a place of the program) about one user only some are said at a time,
//! then one that says how many were left out; and only some about all users together. Another
//! thread than those that serve writes them, and what it has no room for is counted.

use std::collections::HashMap;
use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use log::{Level, Record};

use crate::failure::Failure;

/// How long until what was left out is said, and as many may be said again.
const WINDOW: Duration = Duration::from_secs(10);
/// The most messages of one kind about one user in that time.
const ALIKE: u32 = 50;
/// The most messages about users in that time.
const MOST: u32 = 500;
/// The most messages that wait to be written.
const WAITING: usize = 128;
/// The most characters of one.
const LONGEST: usize = 2000;
/// How long what waits may take to be written when the server ends.
const END: Duration = Duration::from_secs(1);

/// The log of this process. When it is dropped, what waits is written, and what was left out said;
/// or that is given up after a second.
pub struct Log {
    shared: Arc<Shared>,
    /// Hangs up when the thread that writes has ended.
    written: Option<Receiver<()>>,
}

/// Begins a log on standard error: a line each, begun with the level; under systemd in its own way,
/// so that the journal has the level as well. Until [`Log::serve`] it waits for who reads it.
pub fn start(filter: &str) -> Result<Log, Failure> {
    let form = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => Form::Journal,
        None => Form::Terminal,
    };
    let shared = Arc::new(Shared { form, state: Mutex::default() });
    let filter = env_logger::Builder::new().parse_filters(filter).build();
    let most = filter.filter();
    log::set_boxed_logger(Box::new(Logger { filter, shared: Arc::clone(&shared) }))
        .map_err(Failure::new)?;
    log::set_max_level(most);
    Ok(Log { shared, written: None })
}

impl Log {
    /// From here on no thread but one that this starts waits for whoever reads the log. Panics are
    /// said in it too.
    pub fn serve(&mut self) -> std::io::Result<()> {
        let (sender, receiver) = sync_channel(WAITING);
        let (writes, written) = sync_channel::<()>(0);
        let shared = Arc::clone(&self.shared);
        let write = |line: &str| {
            // Nobody to tell is no reason to fail.
            let _ = std::io::stderr().write_all(line.as_bytes());
        };
        let thread = std::thread::Builder::new().name("log".to_owned());
        thread.spawn(move || {
            shared.write(&receiver, write);
            drop(writes);
        })?;
        self.written = Some(written);
        self.shared.lock().queue = Some(sender);
        let shared = Arc::clone(&self.shared);
        std::panic::set_hook(Box::new(move |info| shared.say_panic(info)));
        Ok(())
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // The thread ends when it has all.
        self.shared.lock().queue = None;
        if let Some(written) = self.written.take() {
            let _ = written.recv_timeout(END);
        }
    }
}

/// How a line shows its level.
#[derive(Clone, Copy, Debug)]
enum Form {
    Terminal,
    Journal,
}

impl Form {
    /// The line for `text`, of which clients may have chosen a part: it can begin no other line and
    /// gives terminals no commands.
    fn line(self, level: Level, text: &str) -> String {
        let begin = match self {
            // sd-daemon(3): the levels of syslog(3).
            Form::Journal => match level {
                Level::Error => "<3>".to_owned(),
                Level::Warn => "<4>".to_owned(),
                Level::Info => "<6>".to_owned(),
                Level::Debug | Level::Trace => "<7>".to_owned(),
            },
            Form::Terminal => format!("atoll: {}: ", level.as_str().to_lowercase()),
        };
        let plain = |c: char| if c.is_control() { ' ' } else { c };
        begin.chars().chain(text.chars().take(LONGEST).map(plain)).chain(['\n']).collect()
    }
}

/// The messages of one place of the program about one user.
type Kind = (Option<&'static str>, Option<u32>, Option<u64>);

/// How often it was said, and the first that was left out.
#[derive(Debug, Default)]
struct Said {
    times: u32,
    left_out: u64,
    example: String,
}

/// The messages of this window.
#[derive(Debug, Default)]
struct Limiter {
    kinds: HashMap<Kind, Said>,
    /// About users.
    all: u32,
    /// Of kinds that were not there yet when there was room for no more.
    others: u64,
    /// Messages that waited too long to be written.
    unwritten: u64,
    since: Option<Instant>,
}

impl Limiter {
    /// Whether `text` may be said.
    fn admit(&mut self, kind: Kind, now: Instant, text: &dyn std::fmt::Display) -> bool {
        self.since.get_or_insert(now);
        // Users are many, and what they have said must not hide what the server says of itself. Of
        // that there are as many kinds as places in the program.
        let (_, _, user) = kind;
        let full = user.is_some() && self.all >= MOST;
        if full && !self.kinds.contains_key(&kind) {
            self.others += 1;
            return false;
        }
        let said = self.kinds.entry(kind).or_default();
        if full || said.times >= ALIKE {
            if said.left_out == 0 {
                said.example = text.to_string();
            }
            said.left_out += 1;
            return false;
        }
        said.times += 1;
        self.all += u32::from(user.is_some());
        true
    }

    /// When the window ends.
    fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + WINDOW)
    }

    /// Begins another window, and returns what is to be said of this one.
    fn end(&mut self) -> Vec<String> {
        let ended = std::mem::take(self);
        let alike = ended.kinds.into_values().filter(|said| said.left_out > 0);
        let mut summary: Vec<String> = alike
            .map(|said| {
                format!("{} more messages were left out like: {}", said.left_out, said.example)
            })
            .collect();
        for (number, why) in [
            (ended.others, "there were too many of others"),
            (ended.unwritten, "the log was not written in time"),
        ] {
            if number > 0 {
                summary.push(format!("{number} messages were left out, {why}"));
            }
        }
        summary
    }
}

#[derive(Default)]
struct State {
    limiter: Limiter,
    /// To the thread that writes, once there is one.
    queue: Option<SyncSender<String>>,
}

struct Shared {
    form: Form,
    state: Mutex<State>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, level: Level, kind: Kind, text: &dyn std::fmt::Display) {
        let mut state = self.lock();
        let State { limiter, queue } = &mut *state;
        let Some(queue) = queue else {
            drop(state);
            let _ =
                std::io::stderr().write_all(self.form.line(level, &text.to_string()).as_bytes());
            return;
        };
        if limiter.admit(kind, Instant::now(), text)
            && queue.try_send(self.form.line(level, &text.to_string())).is_err()
        {
            limiter.unwritten += 1;
        }
    }

    /// Says that a thread has panicked, whatever the filter lets through.
    fn say_panic(&self, info: &PanicHookInfo<'_>) {
        let line = info.location().map(|at| at.line());
        self.say(Level::Error, (Some("panic"), line, None), info);
    }

    /// Writes what comes, until nothing more can.
    fn write(&self, queue: &Receiver<String>, mut write: impl FnMut(&str)) {
        let mut open = true;
        while open {
            let deadline = self.lock().limiter.deadline();
            let line = match deadline {
                // A line that begins a window comes here too.
                None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => queue.recv_timeout(at.saturating_duration_since(Instant::now())),
            };
            open = !matches!(line, Err(RecvTimeoutError::Disconnected));
            if let Ok(line) = line {
                write(&line);
            }
            if !open || deadline.is_some_and(|at| at <= Instant::now()) {
                let summary = self.lock().limiter.end();
                for text in summary {
                    write(&self.form.line(Level::Warn, &text));
                }
            }
        }
    }
}

struct Logger {
    filter: env_logger::Logger,
    shared: Arc<Shared>,
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        self.filter.enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if self.filter.matches(record) {
            let user = record.key_values().get("user".into()).and_then(|value| value.to_u64());
            let kind = (record.module_path_static(), record.line(), user);
            self.shared.say(record.level(), kind, record.args());
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(line: u32, user: u64) -> Kind {
        (Some("here"), Some(line), Some(user))
    }

    #[test]
    fn a_flood_is_counted_and_hides_nobody_else() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        let said = |limiter: &mut Limiter, kind| {
            (0..1000).filter(|_| limiter.admit(kind, now, &"x")).count()
        };
        assert_eq!(said(&mut limiter, kind(1, 7)), ALIKE as usize);
        assert_eq!(said(&mut limiter, kind(1, 8)), ALIKE as usize);
        assert_eq!(said(&mut limiter, kind(2, 7)), ALIKE as usize);
        let summary = limiter.end();
        assert_eq!(summary, vec!["950 more messages were left out like: x"; 3]);
        assert_eq!(limiter.deadline(), None);
        assert!(limiter.admit(kind(1, 7), now, &"x"));
        // Nor is there an end to users.
        for user in 0..100_000 {
            limiter.admit(kind(3, user), now, &"x");
        }
        assert!(limiter.kinds.len() <= MOST as usize);
        let summary = limiter.end();
        assert!(summary.iter().any(|text| text.contains("too many of others")), "{summary:?}");
    }

    #[test]
    fn users_hide_nothing_about_the_server() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        let server = |line| (Some("here"), Some(line), None);
        let said = |limiter: &mut Limiter, kind| {
            (0..1000).filter(|_| limiter.admit(kind, now, &"x")).count()
        };
        // Messages about the server take no room from them either.
        for line in 0..100 {
            assert_eq!(said(&mut limiter, server(line)), ALIKE as usize);
        }
        let users: usize = (0..100).map(|user| said(&mut limiter, kind(1, user))).sum();
        assert_eq!(users, MOST as usize);
        assert_eq!(said(&mut limiter, server(100)), ALIKE as usize);
        assert_eq!(said(&mut limiter, server(0)), 0);
    }

    /// Also where the filter lets nothing through, as here, where there is none.
    #[test]
    fn panics_are_said() {
        let (sender, queue) = sync_channel(WAITING);
        let state = State { limiter: Limiter::default(), queue: Some(sender) };
        let shared = Arc::new(Shared { form: Form::Terminal, state: Mutex::new(state) });
        let filter = env_logger::Builder::new().parse_filters("off").build();
        let logger = Logger { filter, shared: Arc::clone(&shared) };
        let error = Record::builder().level(Level::Error).args(format_args!("x")).build();
        log::Log::log(&logger, &error);
        let usual = Arc::new(std::panic::take_hook());
        let (others, says) = (Arc::clone(&usual), Arc::clone(&shared));
        std::panic::set_hook(Box::new(move |info| {
            others(info);
            says.say_panic(info);
        }));
        std::panic::catch_unwind(|| panic!("it broke")).unwrap_err();
        std::panic::set_hook(Box::new(move |info| usual(info)));
        shared.lock().queue = None;
        let mut lines = Vec::new();
        shared.write(&queue, |line| lines.push(line.to_owned()));
        assert!(lines.iter().any(|line| line.contains("error") && line.contains("it broke")));
        assert!(!lines.contains(&"atoll: error: x\n".to_owned()));
    }

    #[test]
    fn what_waits_is_written_when_the_log_is_dropped() {
        let (sender, queue) = sync_channel(WAITING);
        let (writes, written) = sync_channel::<()>(0);
        let state = State { limiter: Limiter::default(), queue: Some(sender) };
        let shared = Arc::new(Shared { form: Form::Terminal, state: Mutex::new(state) });
        let log = Log { shared: Arc::clone(&shared), written: Some(written) };
        shared.say(Level::Info, kind(1, 1), &"last");
        let (ended, all) = sync_channel(1);
        std::thread::spawn(move || {
            let mut lines = Vec::new();
            shared.write(&queue, |line| lines.push(line.to_owned()));
            drop(writes);
            ended.send(lines)
        });
        drop(log);
        let lines = all.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(lines, ["atoll: info: last\n"]);
    }

    #[test]
    fn what_is_not_written_in_time_is_counted() {
        let (sender, queue) = sync_channel(WAITING);
        let state = State { limiter: Limiter::default(), queue: Some(sender) };
        let shared = Shared { form: Form::Terminal, state: Mutex::new(state) };
        for user in 0..200 {
            shared.say(Level::Warn, kind(1, user), &format!("{user}\nsays\x1b"));
        }
        shared.lock().queue = None;
        let mut lines = Vec::new();
        shared.write(&queue, |line| lines.push(line.to_owned()));
        assert_eq!(lines.len(), WAITING + 1);
        assert_eq!(lines[0], "atoll: warn: 0 says \n");
        let unwritten = "atoll: warn: 72 messages were left out, the log was not written in time\n";
        assert_eq!(lines[WAITING], unwritten);
    }
}
