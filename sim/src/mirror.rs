//! The judge of what clients are told: a model that does every call in the order in which the
//! server does them, and what each answer that was given commits the volume to.
//!
//! The volume's lock puts all calls in one order, so each answer has to be the model's. A kernel
//! may show older data from its caches, as long as nobody was told of the changes since: each inode
//! has a *clock* that says up to which change of which inode a call that goes by it knows, and an
//! answer that is given raises the world's *floor* to what its call knew.

use std::collections::{BTreeMap, BTreeSet};

use atoll_tests::crash::State;
use atoll_tests::crash::judge::{self, History};
use atoll_tests::crash::verdicts::Found;
use atoll_vfs::model::{ModelFs, Snapshot};
use atoll_vfs::{Attr, Context, Errno, FileSystem, Ino, Name, OpenFlags, Result, Timespec};

use crate::call::{Answer, Call, Lax, Node, Side, agree, shown};
use crate::seat::Opened;

/// Up to which call of each inode something is known. Inodes are the model's.
pub type Clock = BTreeMap<Ino, u64>;

/// Raises `clock` to `other`.
pub fn join(clock: &mut Clock, other: &Clock) {
    for (&ino, &at) in other {
        let own = clock.entry(ino).or_insert(at);
        *own = at.max(*own);
    }
}

/// Something that changed the model.
#[derive(Clone, Copy, Debug)]
enum Effect {
    Call(Context, Call),
    /// The server's process ended: everything is closed.
    End,
}

/// The record of an inode.
#[derive(Default)]
struct Known {
    attr: Option<Attr>,
    /// The calls that changed its attributes, and its content.
    attributes: Vec<u64>,
    content: Vec<u64>,
    /// A call that goes by it knows this.
    follows: Clock,
    /// A client that sees its last change knows this.
    last: Clock,
}

/// The outcome of a call.
pub struct Judged {
    /// The model's answer.
    pub model: Result<Answer>,
    /// The knowledge that the answer gives its client.
    pub sees: Clock,
    /// The inodes whose attributes or content it changed.
    pub changed: Vec<Ino>,
}

/// The model and what was told of it.
pub struct Mirror {
    model: ModelFs,
    /// The model before the first effect.
    base: ModelFs,
    effects: Vec<Effect>,
    /// How many effects are durable for certain.
    synced: usize,
    /// Calls that were judged.
    calls: u64,
    known: BTreeMap<Ino, Known>,
    /// A client that sees the last change of a name knows this.
    names: BTreeMap<(Ino, u8), Clock>,
    floor: Clock,
    /// Inodes up to this one lived when a process ended: times that calls had set by themselves may
    /// be lost.
    lags_to: Ino,
    /// Of these, those whose times were all set since.
    timely: BTreeSet<Ino>,
    /// The last inode that was heard of.
    latest: Ino,
    /// Directories that were removed. One that a kernel still knows lives on for all: nobody can
    /// tell for how long.
    removed: BTreeSet<Ino>,
}

impl Mirror {
    /// Of a volume that was just made.
    pub fn new(model: ModelFs) -> Mirror {
        let base = model.clone();
        let (known, names, floor) = (BTreeMap::new(), BTreeMap::new(), Clock::new());
        let effects = Vec::new();
        Mirror {
            model,
            base,
            effects,
            synced: 0,
            calls: 0,
            known,
            names,
            floor,
            lags_to: Ino(0),
            timely: BTreeSet::new(),
            latest: Ino(3),
            removed: BTreeSet::new(),
        }
    }

    /// The number of the last call.
    pub fn now(&self) -> u64 {
        self.calls
    }

    /// How many effects there have been: what a sync that is asked for now covers.
    pub fn effects(&self) -> usize {
        self.effects.len()
    }

    /// A sync that covers this many effects has been answered.
    pub fn synced(&mut self, effects: usize) {
        self.synced = effects.max(self.synced);
    }

    /// An answer has been given to a client, which knows `sees` by it.
    pub fn told(&mut self, sees: &Clock) {
        join(&mut self.floor, sees);
    }

    fn target(&mut self, parent: Ino, name: u8) -> Option<Ino> {
        let name = [name];
        let name = Name::new(&name).ok()?;
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        self.model.lookup(&cx, parent, name).ok().map(|attr| attr.ino)
    }

    fn directories(&mut self, all: &BTreeSet<Ino>) -> Vec<Ino> {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let is_dir = |ino: &Ino| self.model.getattr(&cx, *ino).is_ok_and(|attr| attr.is_dir());
        all.iter().copied().filter(is_dir).collect()
    }

    fn involved(&mut self, call: &Call, all: &mut BTreeSet<Ino>) {
        all.extend(call.nodes().into_iter().flatten().map(|node| node.model));
        for (parent, name) in call.names().into_iter().flatten() {
            all.extend(self.target(parent.model, name));
        }
    }

    /// Does `call` in the model and compares; with `by_kernel` it is asked by a mount's kernel,
    /// which learns of no btime.
    ///
    /// # Errors
    /// How the answers differ.
    pub fn judge(
        &mut self,
        cx: &Context,
        call: &Call,
        served: &Result<Answer>,
        by_kernel: bool,
    ) -> std::result::Result<Judged, String> {
        self.calls += 1;
        let mut involved = BTreeSet::new();
        self.involved(call, &mut involved);
        let directories = self.directories(&involved);
        let model = call.ask(&mut self.model, cx, Side::Model);
        let admissible: Vec<Errno> = self.model.admissible().to_vec();
        for ino in directories {
            if self.model.getattr(cx, ino) == Err(Errno::ESTALE) {
                self.removed.insert(ino);
            }
        }
        if let Ok(Answer::Attr(attr) | Answer::Created(attr, _)) = &model {
            self.latest = self.latest.max(attr.ino);
        }
        let shown = match &model {
            Ok(Answer::Attr(attr) | Answer::Created(attr, _)) => attr.ino,
            _ => Ino(0),
        };
        if model.is_ok() && matches!(call, Call::Setattr { set, .. } if set.size.is_some()) {
            self.timely.insert(shown);
        }
        let lax = Lax { times: self.lags(shown), birth: by_kernel };
        let removed = |node: Node| self.removed.contains(&node.model);
        let lives = model == Err(Errno::ESTALE) && call.nodes().into_iter().flatten().any(removed);
        if !lives && !agree(served, &model, &admissible, lax) {
            return Err(format!("{call:?} was answered {served:?} where the model says {model:?}"));
        }
        if model.is_ok() && call.has_effect() {
            self.effects.push(Effect::Call(*cx, *call));
        }
        if model.is_err() {
            // An error says nothing of what a name stands for.
            involved = call.nodes().into_iter().flatten().map(|node| node.model).collect();
        } else {
            self.involved(call, &mut involved);
        }
        if let Ok(Answer::Attr(attr) | Answer::Created(attr, _)) = &model {
            involved.insert(attr.ino);
        }
        let rewrites = model.is_ok()
            && match call {
                Call::Write { len, .. } => *len > 0,
                Call::Fallocate { .. } => true,
                Call::Setattr { set, .. } => set.size.is_some(),
                Call::Open { flags, .. } | Call::Create { flags, .. } => {
                    flags.contains(OpenFlags::TRUNC)
                }
                _ => false,
            };
        let rewritten = match (&model, call) {
            _ if !rewrites => None,
            (Ok(Answer::Created(attr, _)), _) => Some(attr.ino),
            _ => call.nodes()[0].map(|node| node.model),
        };
        let judged = self.note(model, &involved, rewritten);
        self.timely.extend(rewritten.filter(|ino| judged.changed.contains(ino)));
        // A directory changes with the names in it.
        for (parent, name) in call.names().into_iter().flatten() {
            if judged.changed.contains(&parent.model) {
                self.timely.insert(parent.model);
                self.names.insert((parent.model, name), judged.sees.clone());
            }
        }
        Ok(judged)
    }

    /// A client is gone, and what it had open is closed.
    pub fn close(&mut self, open: &Opened) {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let file = open.file;
        let call = if open.is_dir { Call::Releasedir { file } } else { Call::Release { file } };
        // A file that was closed before stays so.
        if call.ask(&mut self.model, &cx, Side::Model).is_ok() {
            self.effects.push(Effect::Call(cx, call));
        }
        // A file without a name goes with the client that had it open.
        let attr = self.model.getattr(&cx, file.node.model).ok().map(|attr| shown(&attr));
        if let Some(known) = self.known.get_mut(&file.node.model) {
            known.attr = attr;
        }
    }

    /// Takes note of what the last call changed.
    fn note(
        &mut self,
        model: Result<Answer>,
        involved: &BTreeSet<Ino>,
        rewritten: Option<Ino>,
    ) -> Judged {
        let (now, mut sees, mut changed) = (self.calls, Clock::new(), Vec::new());
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        for &ino in involved {
            let attr = self.model.getattr(&cx, ino).ok().map(|attr| shown(&attr));
            let known = self.known.entry(ino).or_default();
            join(&mut sees, &known.follows);
            let is_changed = known.attr != attr && known.attr.is_some();
            if is_changed {
                known.attributes.push(now);
            }
            known.attr = attr;
            if rewritten == Some(ino) {
                known.content.push(now);
            }
            if is_changed || rewritten == Some(ino) {
                changed.push(ino);
            }
        }
        sees.extend(changed.iter().map(|&ino| (ino, now)));
        for ino in &changed {
            self.known.entry(*ino).or_default().last = sees.clone();
        }
        if !changed.is_empty() {
            for ino in involved {
                self.known.entry(*ino).or_default().follows = sees.clone();
            }
        }
        Judged { model, sees, changed }
    }

    /// Whether what a kernel learned of `ino` by the call number `learned` may still be shown. Of
    /// the calls `flying`, its own mount's, it has no answer yet.
    ///
    /// # Errors
    /// The change that was told of in the meantime.
    pub fn may_show(
        &self,
        ino: Ino,
        learned: u64,
        content: bool,
        flying: &[u64],
    ) -> std::result::Result<(), String> {
        let (Some(known), Some(&floor)) = (self.known.get(&ino), self.floor.get(&ino)) else {
            return Ok(());
        };
        // Nobody reaches an inode that is gone: names are asked for.
        if known.attr.is_none() {
            return Ok(());
        }
        let changes = if content { &known.content } else { &known.attributes };
        let what = if content { "the content" } else { "attributes" };
        let untrue = |change: u64| change > learned && change <= floor && !flying.contains(&change);
        match changes.iter().find(|&&change| untrue(change)) {
            Some(change) => Err(format!(
                "a kernel shows {what} of inode {ino} as of call {learned}, \
                 though call {change} has changed that and somebody was told"
            )),
            None => Ok(()),
        }
    }

    /// Whether times of `ino` may be older than the model's.
    pub fn lags(&self, ino: Ino) -> bool {
        ino <= self.lags_to && !self.timely.contains(&ino)
    }

    /// A client has seen how `ino` is now, without having asked.
    pub fn told_of(&mut self, ino: Ino) {
        if let Some(known) = self.known.get(&ino) {
            join(&mut self.floor, &known.last);
        }
    }

    /// A client has seen what a name stands for now, and nothing else of its directory.
    pub fn told_of_name(&mut self, parent: Ino, name: u8) {
        if let Some(last) = self.names.get(&(parent, name)) {
            join(&mut self.floor, last);
        }
    }

    /// The inode that the model has under a name.
    ///
    /// # Errors
    /// The verb's.
    pub fn lookup(&mut self, parent: Node, name: u8) -> Result<Ino> {
        let name = [name];
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        self.model.lookup(&cx, parent.model, Name::new(&name)?).map(|attr| attr.ino)
    }

    /// Whether a file begins with `bytes`, and they are all of it if they are fewer than asked for.
    pub fn has_content(&self, node: Node, bytes: &[u8]) -> bool {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        // The numbers of the model's own handles are to stay what they are.
        let mut model = self.model.clone();
        let Ok(handle) = model.open(&cx, node.model, OpenFlags::READ) else {
            return bytes.is_empty();
        };
        let mut own = vec![0; bytes.len()];
        let read = model.read(&cx, node.model, handle, 0, &mut own);
        read == Ok(bytes.len()) && own == bytes
    }

    /// The model's type and mode of a node.
    pub fn attr(&mut self, node: Node) -> Option<Attr> {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        self.model.getattr(&cx, node.model).ok()
    }

    /// The server's process ended, maybe within `flying`, a call that was not answered. `is` is
    /// what its next process finds. Returns whether the model can follow: it has no idea of a call
    /// that was done in part.
    ///
    /// # Errors
    /// How that differs from what must be.
    pub fn process_end(
        &mut self,
        flying: Option<(Context, Call)>,
        is: Snapshot,
    ) -> std::result::Result<bool, String> {
        let is = judge::without_lag(is);
        let mut models = vec![self.model.without_handles()];
        if let Some((cx, call)) = &flying {
            let mut after = self.model.clone();
            if call.ask(&mut after, cx, Side::Model).is_ok() {
                models.push(after.without_handles());
            }
        }
        let states: Vec<State> = models.iter().map(|model| State::of(model, None)).collect();
        let has_parts = |_: usize| flying.is_some_and(|(_, call)| call.has_parts());
        judge::process_crash(History { states: &states, has_parts: &has_parts }, 0, &is)?;
        let Some(at) = states.iter().position(|state| state.tree == is) else { return Ok(false) };
        if let (1, Some((cx, call))) = (at, flying) {
            self.effects.push(Effect::Call(cx, call));
        }
        self.model = models.swap_remove(at);
        self.effects.push(Effect::End);
        self.known.clear();
        self.names.clear();
        self.floor.clear();
        self.lags_to = self.latest;
        self.timely.clear();
        Ok(true)
    }

    /// `call` may have had an effect, as the last of all.
    pub fn may_follow(&mut self, cx: &Context, call: &Call) {
        self.effects.push(Effect::Call(*cx, *call));
    }

    /// The power was lost, and `is` is what the next mount finds.
    ///
    /// # Errors
    /// How that differs from what must be.
    pub fn power_loss(&self, is: Snapshot) -> std::result::Result<(), String> {
        let mut model = self.base.clone();
        let mut states = Vec::new();
        for at in 0..=self.effects.len() {
            if at >= self.synced {
                states.push(State::of(&model, states.last()));
            }
            match self.effects.get(at) {
                Some(Effect::Call(cx, call)) => drop(call.ask(&mut model, cx, Side::Model)),
                Some(Effect::End) => model = model.without_handles(),
                None => {}
            }
        }
        let has_parts = |at: usize| match self.effects.get(self.synced + at) {
            Some(Effect::Call(_, call)) => call.has_parts(),
            _ => false,
        };
        let history = History { states: &states, has_parts: &has_parts };
        judge::power_loss(history, 0, states.len() - 1, &Found::new(is))
    }
}
