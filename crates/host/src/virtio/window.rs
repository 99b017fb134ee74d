//! The window: memory of the guest's in which the front end shows it ranges of files, so that its
//! programs load and store what the host has (DAX).
//!
//! The guest's kernel asks for a range with SETUPMAPPING and gives it back with REMOVEMAPPING. For
//! each the device asks the front end ([`Channel`]), one after the other, and goes on: the
//! request has its answer when the front end has done it. Nobody waits for that but the guest.
//!
//! A front end acknowledges a mapping before its guest sees it: QEMU does so in the middle of the
//! change, and tells of the guest's new memory at its end. So the answer to SETUPMAPPING waits for
//! that too, or, with a front end that does not count the window as memory, for [`SETTLES`]; but
//! not with one that tells of all its memory at once, whose acknowledgement is all there is.
//!
//! Each range of a volume's file is memory of its own, which goes when neither the window nor
//! anybody else has it any more. So a guest reads and writes files of any length by its window,
//! though little of them is in memory: where that is full, a range waits until others have gone.
//!
//! A file is opened once for all its ranges, with the rights that the guest has: to be written
//! wherever the guest may, since the kernel later asks for a range to be written that it has been
//! shown, which then needs nothing more. Of a file that it may only read it is shown copies of its
//! own, since a front end (QEMU) maps nothing that it may not write; they are made anew when the
//! guest opens the file and it has changed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use atoll_server::session::ranges::Mappable;
use atoll_server::{MapToken, Session};
use atoll_transport::Memory;
use atoll_transport::channel::Mapped;
use atoll_vfs::filesystem::Object;
use atoll_vfs::wire::mappings::{FUSE_SETUPMAPPING_FLAG_WRITE, SetupmappingIn, Unmapped};
use atoll_vfs::{Attr, Context, Errno, FileSystem, Handle, Ino, Result, Timespec};

use super::channel::{Channel, Lost, Range, Source};
use super::queue::Chain;
use crate::directory::Piece;
use crate::errno::errno_of;
use crate::server::mapped_memory;
use crate::shm::{Doorbell, SharedMemory};

/// The bytes that Linux maps at once. There are no more ranges than the window has of these.
pub const RANGE: u64 = 2 << 20;
/// The longest window, in bytes. Each range is a region of the guest's memory, and QEMU has some
/// 500 of those.
pub const WINDOW_MAX: u64 = 512 << 20;
/// The unit of mappings.
const PAGE: u64 = 4096;
/// Bytes that are copied at once.
const FILLED: usize = 256 << 10;
/// The longest that a mapping which is acknowledged is waited for to be seen in the guest's memory.
const SETTLES: Duration = Duration::from_millis(50);
/// The longest that a range waits for room, which those make that have been given back: a front end
/// lets go of their memory some time after it has said so.
const ROOM_COMES: Duration = Duration::from_millis(500);
/// How soon it looks again at first.
const LOOKS_AGAIN: Duration = Duration::from_millis(1);

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct Due {
    pub queue: usize,
    pub chain: Chain,
    pub unique: u64,
}

/// A range that is shown, or is to be.
struct Shown {
    /// The question by which it came to be.
    number: u64,
    len: u64,
    ino: u64,
    /// Where it begins in the file.
    offset: u64,
    writable: bool,
    /// It is there for the guest.
    done: bool,
    kept: Kept,
}

/// What is kept as long as a range is shown.
enum Kept {
    /// The file's own memory, and what its file system wants kept.
    File { _object: Option<Object> },
    /// The memory of a mapped file, or of a piece of one, which this stands for.
    Memory(MapToken),
    /// A copy.
    Copy(SharedMemory),
}

/// A file with ranges.
struct Opened {
    handle: Handle,
    writable: bool,
    ranges: usize,
    /// Its attributes when it was copied last, if it is.
    seen: Option<Seen>,
}

/// What tells that a file has changed.
type Seen = (u64, Timespec, Timespec);

fn seen(attr: &Attr) -> Seen {
    (attr.size, attr.mtime, attr.ctime)
}

enum State {
    /// The kernels of mounts are waited for before it is asked.
    Waits(Arc<AtomicBool>),
    Asked,
    /// Acknowledged, and not seen in the guest's memory yet, until this time.
    Settles(Instant),
}

/// A question to the front end, and what is answered then.
struct Ask {
    /// The number of the range's beginning.
    number: u64,
    range: Range,
    /// `None`: it is to be shown no more.
    source: Option<Source>,
    state: State,
    /// How often the guest's memory had grown when it was asked.
    grown: u64,
    due: Option<Due>,
}

/// A range for which there is no room yet.
struct Want {
    due: Due,
    cx: Context,
    ino: u64,
    args: SetupmappingIn,
    /// When to look again, and how long after that.
    next: Instant,
    pause: Duration,
    until: Instant,
}

/// The window of a guest.
#[derive(Default)]
pub(super) struct Window {
    len: u64,
    /// Nothing is shown that others can cut short.
    copies: bool,
    channel: Option<Channel>,
    shown: BTreeMap<u64, Shown>,
    files: HashMap<u64, Opened>,
    asks: VecDeque<Ask>,
    asked: u64,
    wants: Vec<Want>,
    answers: Vec<(Due, Result<()>)>,
    /// How many ranges the guest has been shown.
    count: u64,
    /// Open files that have no range any more.
    idle: Vec<(Ino, Handle)>,
}

impl Window {
    /// A window of `len` bytes, 0 for none, that has `copies` of what others can cut short.
    pub fn new(len: u64, copies: bool) -> Window {
        Window { len, copies, ..Window::default() }
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.len > 0
    }

    /// The front end is asked by `channel` from now on.
    pub fn connect(&mut self, channel: Channel) {
        self.channel = Some(channel);
    }

    /// What can be read when the front end has answered.
    pub fn heard(&self) -> Option<BorrowedFd<'_>> {
        let asked = self.asks.front().is_some_and(|ask| matches!(ask.state, State::Asked));
        self.channel.as_ref().filter(|_| asked).map(AsFd::as_fd)
    }

    /// When to look again, if nothing is heard until then.
    pub fn settles(&self) -> Option<Instant> {
        let settles = self.asks.front().and_then(|ask| match ask.state {
            State::Settles(until) => Some(until),
            _ => None,
        });
        settles.into_iter().chain(self.wants.iter().map(|want| want.next)).min()
    }

    /// SETUPMAPPING: shows a range of the file `ino` to the guest.
    pub fn show<F: FileSystem + Send>(
        &mut self,
        due: Due,
        (cx, ino, args): (&Context, u64, &SetupmappingIn),
        session: &mut Session<F>,
        bell: &Doorbell,
    ) {
        let now = Instant::now();
        let (cx, args, until) = (*cx, *args, now + ROOM_COMES);
        self.try_to_show(
            Want { due, cx, ino, args, next: now, pause: LOOKS_AGAIN, until },
            session,
            bell,
        );
    }

    /// Whether there are ranges for which there was no room.
    pub fn wants_room(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Shows the ranges for which there was no room, if there is some now.
    pub fn show_more<F: FileSystem + Send>(&mut self, session: &mut Session<F>, bell: &Doorbell) {
        let now = Instant::now();
        let due: Vec<Want> = self.wants.extract_if(.., |want| want.next <= now).collect();
        due.into_iter().for_each(|want| self.try_to_show(want, session, bell));
    }

    fn try_to_show<F: FileSystem + Send>(
        &mut self,
        mut want: Want,
        session: &mut Session<F>,
        bell: &Doorbell,
    ) {
        match self.begin((&want.cx, want.ino, &want.args), session, bell) {
            Ok(Some(ask)) => self.asks.push_back(Ask { due: Some(want.due), ..ask }),
            Ok(None) => self.answers.push((want.due, Ok(()))),
            Err(Errno::ENOMEM) if want.next < want.until => {
                want.next = Instant::now() + want.pause;
                want.pause *= 2;
                self.wants.push(want);
            }
            Err(error) => self.answers.push((want.due, Err(error))),
        }
    }

    /// What to ask for it; `None` when it is shown already.
    fn begin<F: FileSystem + Send>(
        &mut self,
        (cx, ino, args): (&Context, u64, &SetupmappingIn),
        session: &mut Session<F>,
        bell: &Doorbell,
    ) -> Result<Option<Ask>> {
        let SetupmappingIn { foffset: offset, len, flags, moffset: at, .. } = *args;
        let whole = |bytes: u64| bytes.is_multiple_of(PAGE);
        let end = at.checked_add(len).filter(|end| *end <= self.len);
        let end = end.filter(|_| len > 0 && [at, len, offset].into_iter().all(whole));
        let (Some(end), Some(_)) = (end, offset.checked_add(len)) else {
            return Err(Errno::EINVAL);
        };
        let writes = flags & FUSE_SETUPMAPPING_FLAG_WRITE != 0;
        if let Some((start, shown)) = self.shown.range(..end).next_back()
            && start + shown.len > at
        {
            let same = (*start, shown.len, shown.ino, shown.offset) == (at, len, ino, offset);
            return match shown {
                _ if !same => Err(Errno::EINVAL),
                shown if writes && !shown.writable => Err(Errno::EACCES),
                shown if !shown.done => Err(Errno::EBUSY),
                _ => Ok(None),
            };
        }
        if self.shown.len() as u64 >= self.len / RANGE {
            return Err(Errno::ENOSPC);
        }
        if self.channel.is_none() {
            return Err(Errno::EIO);
        }
        let (handle, writable) = match self.files.get(&ino) {
            Some(file) => (file.handle, file.writable),
            None => {
                let (handle, writable) = session.open_ranges(cx, Ino(ino))?;
                self.files.insert(ino, Opened { handle, writable, ranges: 0, seen: None });
                (handle, writable)
            }
        };
        let source = match (writes, writable) {
            (true, false) => Err(Errno::EACCES),
            (_, true) => self.of_file(cx, (Ino(ino), handle), (offset, len), session),
            (false, false) => self.copy(cx, Ino(ino), (offset, len), session),
        };
        let (source, kept) = match source {
            Ok(source) => source,
            Err(error) => {
                self.close_idle(ino);
                return Err(error);
            }
        };
        let may_go = Arc::new(AtomicBool::new(false));
        let (goes, bell) = (Arc::clone(&may_go), bell.clone());
        session.after_needs(move || {
            goes.store(true, Ordering::Release);
            bell.ring();
        });
        if let Some(file) = self.files.get_mut(&ino) {
            file.ranges += 1;
        }
        self.asked += 1;
        let number = self.asked;
        let shown = Shown { number, len, ino, offset, writable, done: false, kept };
        self.shown.insert(at, shown);
        let (range, state) = (Range { at, len }, State::Waits(may_go));
        Ok(Some(Ask { number, range, source: Some(source), state, grown: 0, due: None }))
    }

    /// A range of a file that the guest may write.
    fn of_file<F: FileSystem + Send>(
        &self,
        cx: &Context,
        (ino, handle): (Ino, Handle),
        (offset, len): (u64, u64),
        session: &mut Session<F>,
    ) -> Result<(Source, Kept)> {
        let map = |session: &mut Session<F>| match session.map_range(
            cx,
            ino,
            handle,
            (offset, len),
            self.copies,
        )? {
            Mappable::Memory(token) => {
                let (file, writable) = mapped_memory(session.volume(), token)?;
                Ok((Source { file, offset, writable }, Kept::Memory(token)))
            }
            Mappable::Object(object) => {
                let piece = object.downcast::<Piece>().map_err(|_| Errno::ENOSYS)?;
                let Piece { file, offset, kept } = *piece;
                let kept = Kept::File { _object: kept };
                Ok((Source { file, offset, writable: true }, kept))
            }
        };
        match map(session) {
            // What the guest has given back may be in memory yet.
            Err(Errno::ENOMEM) if session.make_room(cx) => map(session),
            // It went, for one who needs room, before it was had.
            Err(Errno::ESTALE) => map(session),
            mapped => mapped,
        }
    }

    /// Whether what is shown of `ino` is its content no more, so that stores there are lost.
    pub fn is_lost<F: FileSystem + Send>(&self, ino: u64, session: &Session<F>) -> bool {
        let of_file = self.shown.values().filter(|shown| shown.ino == ino);
        let mut tokens = of_file
            .filter_map(|shown| match shown.kept {
                Kept::Memory(token) => Some(token),
                _ => None,
            })
            .peekable();
        tokens.peek().is_some() && !session.volume().are_mapped(tokens)
    }

    /// A copy of a range of a file that the guest may read.
    fn copy<F: FileSystem + Send>(
        &mut self,
        cx: &Context,
        ino: Ino,
        (offset, len): (u64, u64),
        session: &mut Session<F>,
    ) -> Result<(Source, Kept)> {
        if len > RANGE {
            return Err(Errno::EINVAL);
        }
        // The others of the file are as old as this, then.
        self.refresh(cx, ino.0, session);
        let file = self.files.get_mut(&ino.0).ok_or(Errno::EIO)?;
        file.seen = Some(seen(&session.getattr(cx, ino)?));
        let memory = SharedMemory::create("atoll-shown", len as usize).map_err(errno_of)?;
        fill(cx, (ino, file.handle, offset), session, &memory)?;
        let file = memory.as_fd().try_clone_to_owned().map_err(errno_of)?;
        Ok((Source { file, offset: 0, writable: false }, Kept::Copy(memory)))
    }

    /// Makes the copies of `ino` anew, if it has changed since they were made.
    pub fn refresh<F: FileSystem + Send>(
        &mut self,
        cx: &Context,
        ino: u64,
        session: &mut Session<F>,
    ) {
        let Some(file) = self.files.get_mut(&ino).filter(|file| file.seen.is_some()) else {
            return;
        };
        let now = session.getattr(cx, Ino(ino)).ok().map(|attr| seen(&attr));
        if now.is_none() || now == file.seen {
            return;
        }
        file.seen = now;
        let handle = file.handle;
        for shown in self.shown.values().filter(|shown| shown.ino == ino) {
            if let Kept::Copy(memory) = &shown.kept {
                // One that cannot be read stays as it was.
                let _ = fill(cx, (Ino(ino), handle, shown.offset), session, memory);
            }
        }
    }

    /// REMOVEMAPPING: shows these ranges no more.
    pub fn hide(&mut self, due: Due, ranges: &Unmapped<'_>) {
        let mut wanted: Vec<Range> = Vec::new();
        for one in ranges.iter().take(self.shown.len() + 1) {
            let range = Range { at: one.moffset, len: one.len };
            let there = self.shown.get(&range.at);
            if !there.is_some_and(|shown| shown.done && shown.len == range.len)
                || wanted.contains(&range)
            {
                return self.answers.push((due, Err(Errno::EINVAL)));
            }
            wanted.push(range);
        }
        let Some(last) = wanted.pop() else { return self.answers.push((due, Ok(()))) };
        wanted.into_iter().for_each(|range| self.ask_to_hide(range, None));
        self.ask_to_hide(last, Some(due));
    }

    fn ask_to_hide(&mut self, range: Range, due: Option<Due>) {
        let mut number = 0;
        if let Some(shown) = self.shown.get_mut(&range.at) {
            shown.done = false;
            number = shown.number;
        }
        let state = State::Waits(Arc::new(AtomicBool::new(true)));
        self.asks.push_back(Ask { number, range, source: None, state, grown: 0, due });
    }

    /// The range that a question is about, if it is still the guest's.
    fn subject(&mut self, ask: &Ask) -> Option<&mut Shown> {
        self.shown.get_mut(&ask.range.at).filter(|shown| shown.number == ask.number)
    }

    /// The guest's session has ended. Where its device was `stopped` the front end shows nothing of
    /// it any more; else it is asked to.
    pub fn forget(&mut self, stopped: bool) {
        if self.count > 0 {
            log::info!("ranges of files were shown: {}", std::mem::take(&mut self.count));
        }
        self.answers.clear();
        self.wants.clear();
        self.files.clear();
        self.idle.clear();
        let shown = std::mem::take(&mut self.shown);
        // Ranges that the front end has heard of, and was not asked to hide.
        let mut rest = Vec::new();
        if !stopped {
            let out = |ask: &&Ask| ask.source.is_none() || matches!(ask.state, State::Waits(_));
            let out: Vec<u64> = self.asks.iter().filter(out).map(|ask| ask.number).collect();
            let left = shown.into_iter().filter(|(_, shown)| !out.contains(&shown.number));
            rest.extend(left.map(|(at, shown)| Range { at, len: shown.len }));
        }
        self.asks.iter_mut().for_each(|ask| ask.due = None);
        let goes_on =
            |ask: &Ask| !matches!(ask.state, State::Waits(_)) || ask.source.is_none() && !stopped;
        self.asks.retain(goes_on);
        rest.into_iter().for_each(|range| self.ask_to_hide(range, None));
    }

    /// Goes on as far as it can. `grown` is how often the guest's memory has grown; `None` of a
    /// front end that tells of all its memory at once, of which the window can be no part. Returns
    /// whether something was done.
    pub fn turn(&mut self, grown: Option<u64>) -> bool {
        let mut any = false;
        while let Some(ask) = self.asks.front_mut() {
            let done = match &ask.state {
                State::Waits(may_go) if !may_go.load(Ordering::Acquire) => return any,
                State::Waits(_) => {
                    let asked = match &mut self.channel {
                        Some(channel) => channel.ask(ask.range, ask.source.as_ref()),
                        None => Err(Lost),
                    };
                    (ask.state, ask.grown) = (State::Asked, grown.unwrap_or(0));
                    asked.map(|()| None)
                }
                State::Asked => match self.channel.as_mut().map_or(Err(Lost), Channel::answer) {
                    Ok(None) => return any,
                    Ok(Some(true)) if ask.source.is_some() && grown.is_some() => {
                        // The front end has a descriptor of its own.
                        ask.state = State::Settles(Instant::now() + SETTLES);
                        Ok(None)
                    }
                    answered => answered,
                },
                State::Settles(until) if Some(ask.grown) == grown && Instant::now() < *until => {
                    return any;
                }
                State::Settles(_) => Ok(Some(true)),
            };
            any = true;
            let done = match done {
                Ok(None) => continue,
                Ok(Some(true)) => Ok(()),
                Ok(Some(false)) => Err(Errno::EIO),
                Err(Lost) => {
                    if self.channel.take().is_some() {
                        log::warn!("a front end shows its guest no files any more");
                    }
                    Err(Errno::EIO)
                }
            };
            let Some(ask) = self.asks.pop_front() else { return any };
            self.end(ask, done);
        }
        any
    }

    fn end(&mut self, ask: Ask, done: Result<()>) {
        if let Some(shown) = self.subject(&ask) {
            shown.done = done.is_ok() && ask.source.is_some();
            let (ino, done) = (shown.ino, shown.done);
            self.count += u64::from(done);
            // One that is not shown as it should be is not shown.
            if !done {
                self.shown.remove(&ask.range.at);
                if let Some(file) = self.files.get_mut(&ino) {
                    file.ranges -= 1;
                }
                self.close_idle(ino);
            }
        }
        if let Some(due) = ask.due {
            self.answers.push((due, done));
        }
    }

    fn close_idle(&mut self, ino: u64) {
        if self.files.get(&ino).is_some_and(|file| file.ranges == 0)
            && let Some(file) = self.files.remove(&ino)
        {
            self.idle.push((Ino(ino), file.handle));
        }
    }

    /// The next request that has its answer, of those whose queue `runs`.
    pub fn answered(&mut self, runs: impl Fn(&Due) -> bool) -> Option<(Due, Result<()>)> {
        let at = self.answers.iter().position(|(due, _)| runs(due))?;
        Some(self.answers.remove(at))
    }

    /// Answers a request with an error.
    pub fn refuse(&mut self, due: Due, error: Errno) {
        self.answers.push((due, Err(error)));
    }

    /// Nobody wants the answers to what `gone` picks.
    pub fn drop_answers(&mut self, gone: impl Fn(&Due) -> bool) {
        self.answers.retain(|(due, _)| !gone(due));
        self.wants.retain(|want| !gone(&want.due));
    }

    /// Files that are to be closed.
    pub fn take_idle(&mut self) -> Vec<(Ino, Handle)> {
        std::mem::take(&mut self.idle)
    }
}

/// Reads a file from `offset` on into `memory`; behind its end there are zeros.
fn fill<F: FileSystem + Send>(
    cx: &Context,
    (ino, handle, offset): (Ino, Handle, u64),
    session: &mut Session<F>,
    memory: &SharedMemory,
) -> Result<()> {
    let mut buffer = vec![0; memory.len().min(FILLED)];
    let mut at = 0;
    let mut ended = false;
    while at < memory.len() {
        let part = memory.len().min(at + FILLED) - at;
        let mut done = 0;
        while done < part && !ended {
            let from = offset + (at + done) as u64;
            let read = session.read(cx, ino, handle, from, &mut buffer[done..part])?;
            ended = read == 0;
            done += read;
        }
        buffer[done..part].fill(0);
        memory.shared().write(at, &buffer[..part]);
        at += part;
    }
    Ok(())
}
