//! A recorded workload and the model's state after each of its operations.

use std::collections::BTreeMap;
use std::rc::Rc;

use atoll_block::FaultDevice;
use atoll_block::fault::Recording;
use atoll_vfs::model::{FileContent, ModelFs, Snapshot, snapshot};
use atoll_vfs::*;

use super::halves::Halves;
use super::verdicts::Found;
use super::{Crash, CrashTarget, Plan, judge};
use crate::differential::Differential;
use crate::ops::{Op, Outcome, seeded_ops};
use crate::subject::Quirks;

/// The content that the file system should have after an operation.
#[derive(Clone, Debug)]
pub struct State {
    /// Everything that has a name, without the times that may lag behind.
    pub tree: Snapshot,
    /// The same without the bytes of files.
    pub metadata: Snapshot,
    /// The inode behind each path.
    pub inodes: BTreeMap<Vec<u8>, Ino>,
    /// The content of every regular file, with or without a name.
    pub contents: BTreeMap<Ino, Rc<FileContent>>,
}

impl State {
    /// The state of `model`. Parts that are as in `before` are shared with it.
    ///
    /// # Panics
    /// On a model that contradicts itself.
    pub fn of(model: &ModelFs, before: Option<&State>) -> State {
        let mut model = model.clone();
        let tree = snapshot(&mut model).expect("the model is consistent");
        let tree = judge::without_lag(tree);
        let metadata = judge::metadata(&tree);
        let inodes = tree.nodes.keys().map(|path| (path.clone(), resolve(&mut model, path)));
        let inodes = inodes.collect();
        let mut contents = BTreeMap::new();
        for (ino, content) in model.contents() {
            let shared = before.and_then(|before| before.contents.get(&ino));
            let content = match shared {
                Some(same) if **same == content => same.clone(),
                _ => Rc::new(content),
            };
            contents.insert(ino, content);
        }
        State { tree, metadata, inodes, contents }
    }
}

fn resolve(model: &mut ModelFs, path: &[u8]) -> Ino {
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let mut ino = Ino::ROOT;
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        let name = Name::new(part).expect("a snapshot's names are valid");
        ino = model.lookup(&cx, ino, name).expect("the snapshot is of this model").ino;
    }
    ino
}

/// A workload that was run once and recorded.
pub struct Workload {
    /// The operations.
    pub ops: Vec<Op>,
    /// The events of the device from the first mount to the last unmount.
    pub recording: Recording,
    /// The state before the first operation, and after each.
    pub states: Vec<State>,
    /// How many operations found no space.
    pub out_of_space: u64,
    /// Its syncs in halves.
    pub halves: Halves,
    /// The steps in which it freed what long calls had left.
    pub removal_steps: u64,
    /// For each operation how many events had happened when it returned.
    ends: Vec<usize>,
    /// For each state the last one not after it that was synced.
    synced: Vec<usize>,
}

impl Workload {
    /// Formats, mounts, runs the operations of `seed`, unmounts.
    ///
    /// # Errors
    /// A difference to the model, without any crash.
    pub fn run<T: CrashTarget>(
        target: &T,
        plan: &Plan,
        seed: u64,
        life: [u8; 16],
    ) -> std::result::Result<Workload, String> {
        let mut device = FaultDevice::new(plan.blocks);
        target.format(&mut device)?;
        target.check(&mut device, life)?;
        let ops = seeded_ops(seed, plan.operations, &plan.profile);
        let model = ModelFs::new(0o755, Timespec::default());
        let pair = |fs| Differential::with_model(fs, model, Quirks::default());
        Self::of(target, device, pair, ops, Halves::new(seed, plan.halves), life)
    }

    /// Mounts `device`, runs `ops` on the pair with the model that `pair` makes of it, unmounts.
    ///
    /// # Errors
    /// A difference to the model, without any crash.
    pub fn of<T: CrashTarget>(
        target: &T,
        mut device: FaultDevice,
        pair: impl FnOnce(T::Fs) -> Differential<T::Fs>,
        ops: Vec<Op>,
        mut halves: Halves,
        life: [u8; 16],
    ) -> std::result::Result<Workload, String> {
        device.start_recording();
        let base = device.events();
        let mut pair = pair(target.mount(device, life)?);
        let mut states = vec![State::of(&pair.model, None)];
        let (mut ends, mut synced) = (Vec::new(), vec![0]);
        for (i, op) in ops.iter().enumerate() {
            let sync = if op.syncs() && halves.takes_next() {
                match halves.begin(&mut pair.fs, i + 1) {
                    Err(Errno::ENOSPC) => false,
                    begun => begun.map_err(|error| format!("operation {i}, in halves: {error}"))?,
                }
            } else {
                pair.step(op).map_err(|error| format!("operation {i}, no crash: {error}"))?;
                op.syncs() && *pair.last() == Outcome::Done
            };
            states.push(State::of(&pair.model, states.last()));
            let ended = halves.go_on(&mut pair.fs, i + 1);
            let ended = ended.map_err(|error| format!("after operation {i}: {error}"))?;
            let device = target.device(&mut pair.fs);
            device.note_flushers();
            // It ended before the next operation begins.
            ends.push((device.events() - base) as usize);
            let now = if sync { i + 1 } else { ended.unwrap_or(0) };
            synced.push(now.max(synced[i]));
        }
        pair.compare().map_err(|error| format!("at the end, no crash: {error}"))?;
        let out_of_space = pair.out_of_space();
        let removal_steps = target.removal_steps(&pair.fs);
        let mut device = target.unmount(pair.fs)?;
        let recording = device.take_recording().ok_or("the device was replaced")?;
        target.check(&mut device, life)?;
        Ok(Workload { ops, recording, states, out_of_space, halves, removal_steps, ends, synced })
    }

    /// How many events had happened when the last operation returned.
    pub fn worked(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// How many events had happened when the last operation returned before `event`.
    pub fn returned_before(&self, event: usize) -> usize {
        self.returned(event).checked_sub(1).map_or(0, |operation| self.ends[operation])
    }

    /// How many operations had returned when `event` events had happened.
    fn returned(&self, event: usize) -> usize {
        self.ends.partition_point(|&end| end <= event)
    }

    /// Whether the state found after `crash`, before or within the event number `event`, is
    /// allowed.
    ///
    /// # Errors
    /// Why not.
    pub fn accepts(
        &self,
        event: usize,
        crash: Crash,
        is: &Found,
    ) -> std::result::Result<(), String> {
        let returned = self.returned(event);
        let in_flight = (returned + 1).min(self.states.len() - 1);
        let has_parts = |operation: usize| self.ops[operation].has_parts();
        let history = judge::History { states: &self.states, has_parts: &has_parts };
        match crash {
            Crash::Process => judge::process_crash(history, returned, &is.tree),
            Crash::Power(_) => judge::power_loss(history, self.synced[returned], in_flight, is),
        }
    }

    /// Says what was going on, for people.
    pub fn describe(&self, event: usize, where_: &str, crash: Crash, error: &str) -> String {
        let returned = self.returned(event);
        let synced = self.synced[returned];
        let events = self.recording.events();
        let what = match events.get(event) {
            None => "the end".into(),
            Some(event) => {
                let mut text = format!("{event:?}");
                text.truncate(60);
                text
            }
        };
        let from = synced.saturating_sub(1);
        let recent: Vec<String> = (from..(returned + 1).min(self.ops.len()))
            .map(|i| {
                let state = if i < returned { "returned" } else { "in flight" };
                format!("  {i}: {:?} ({state})", self.ops[i])
            })
            .collect();
        format!(
            "{crash:?} {where_} event {event} of {}, {what}\n\
             {returned} operations had returned, {synced} of them before the last sync ended:\n\
             {}\n{error}",
            events.len(),
            recent.join("\n"),
        )
    }
}
