//! The order of events: each turn the seed chooses among all that could happen.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use atoll_tests::rng::Rng;

use crate::disk;
use crate::plant::Plant;
use crate::seat::{Pending, Stage, What};
use crate::world::{Counts, Options, Outcome, Template, World, trace};
use crate::{leaving, listings, quotas, removals, sharing, users};

/// The most turns that everything takes to come to rest when nobody asks for anything more.
const REST_MAX: u32 = 4000;
/// Of so many schedules one shows how users share the server's time.
const STRANGERS_EVERY: u64 = 10;
/// The most requests of a client that have no answer yet.
const SLOTS: usize = 3;
/// The same of a hostile one, which does not take its answers.
const HOSTILE_SLOTS: usize = 6;

/// The events that can happen next.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A client asks for something.
    Request(usize),
    /// The server takes a client's next request.
    Serve(usize),
    /// A client looks into its View.
    Look(usize),
    /// A signal comes for a program that waits for an answer.
    Interrupt(usize),
    /// An answer that is due is given.
    Answer(usize),
    /// A task's step, or the end of its flush.
    Job(usize),
    /// A kernel takes a notice, or its notifier looks for one.
    Notice(usize),
    /// The same for the kernel of a mount that has ended.
    GhostNotice(usize),
    /// The gate's keeper looks.
    Keeper,
    /// A mount sees that it is fenced.
    Fence(usize),
    /// Time passes.
    Time,
    /// The device begins to fail, or ends.
    Trouble,
    /// A kernel forgets an inode.
    Forget(usize),
    /// A client dies.
    Death(usize),
    /// A client connects.
    Arrival,
    /// The server's process ends.
    ProcessEnd,
}

/// The outcome of a schedule.
#[derive(Clone, Debug)]
pub struct Report {
    /// Everything that happened and was answered, as a number.
    pub digest: u64,
    /// How often each thing happened.
    pub counts: Counts,
    /// The first thing that went wrong.
    pub failure: Option<String>,
}

/// Runs the schedule of `seed`.
pub fn run(template: &Template, seed: u64, options: Options) -> Report {
    let mut digest = (0, Counts::default());
    let result = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(template, seed, options)?;
        let result = world.run();
        if result.is_ok() && seed.is_multiple_of(STRANGERS_EVERY) {
            let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"strangrs"));
            sharing::judge(template, &mut rng, options.plant)?;
            sharing::judge_mounts(template, &mut rng, options.plant)?;
            removals::judge(template, &mut rng, options.plant)?;
            listings::judge(template, &mut rng, options.plant)?;
            leaving::judge(template, &mut rng, options.plant)?;
            users::judge(template, &mut rng, options.plant)?;
            users::judge_locks(template, &mut rng, options.plant)?;
            quotas::judge(template, &mut rng, options.plant)?;
        }
        digest = (world.digest(), world.counts);
        // The parts of a world that failed are in any state, and dropping them may fail too.
        if result.is_err() {
            std::mem::forget(world)
        }
        result
    }));
    let failure = match result {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panic.downcast_ref::<&str>().copied());
            Some(format!("a panic: {}", text.unwrap_or("without words")))
        }
    };
    Report { digest: digest.0, counts: digest.1, failure }
}

impl World {
    fn run(&mut self) -> Outcome<()> {
        for _ in 0..self.options.turns {
            self.turn(true)?;
            if self.over {
                return Ok(());
            }
        }
        if self.rng.chance(70) {
            self.rest()?;
        }
        if self.over { Ok(()) } else { self.finish() }
    }

    /// Nobody asks for anything more: everybody is answered before long.
    fn rest(&mut self) -> Outcome<()> {
        trace!(self, "everything comes to rest");
        for turn in 0..REST_MAX {
            // A request for a lock waits for as long as another client likes.
            if self.pending.iter().all(|pending| self.may_wait(pending)) {
                self.counts.longest_rest = self.counts.longest_rest.max(turn.into());
                return Ok(());
            }
            self.turn(false)?;
        }
        let waits = self.pending.iter().filter(|pending| !self.may_wait(pending));
        let waits = waits.map(|Pending { id, seat, what, stage, .. }| {
            let what = match what {
                What::Call(made) => format!("{:?}", made.call),
                What::Sync(..) => "a sync".to_owned(),
                What::Lock(_) => "a lock".to_owned(),
                What::Flush(..) => "a flush".to_owned(),
                What::Raw(_) => "something".to_owned(),
            };
            format!("session {}: {what} ({id}), {stage:?}", seat.0)
        });
        Err(format!("somebody waits for ever: {}", waits.collect::<Vec<_>>().join("; ")))
    }

    /// Whether a request may wait at rest: one for a lock as long as another likes, one of a
    /// hostile client for ever.
    fn may_wait(&self, pending: &Pending) -> bool {
        let waits = matches!(pending.what, What::Lock(_)) && pending.stage == Stage::Held;
        waits || self.is_hostile(pending)
    }

    fn is_hostile(&self, pending: &Pending) -> bool {
        self.seats.iter().any(|seat| seat.id == pending.seat && seat.role.is_hostile())
    }

    /// All that could happen now, each with how likely it is.
    fn events(&self, asks: bool, events: &mut Vec<(Event, u64)>) {
        let now = self.now();
        let hostile_first = self.options.plant == Some(Plant::HostileFirst)
            && self.seats.iter().any(|seat| seat.role.is_hostile());
        for (at, seat) in self.seats.iter().enumerate() {
            let pending = self.pending.iter().filter(|pending| pending.seat == seat.id).count();
            // Hostile ones go on when all others are at rest.
            let most = if seat.role.is_hostile() { HOSTILE_SLOTS } else { SLOTS };
            if (asks || seat.role.is_hostile()) && pending < most {
                events.push((Event::Request(at), 30));
            }
            if !seat.line.is_empty() && (!hostile_first || seat.role.is_hostile()) {
                events.push((Event::Serve(at), 40));
            }
            if asks && seat.view.is_some() {
                events.push((Event::Look(at), 8));
            }
            if let Some(kernel) = &seat.kernel {
                if kernel.has_news(now) {
                    events.push((Event::Notice(at), 12));
                }
                if kernel.bell.is_fenced() {
                    events.push((Event::Fence(at), 10));
                }
                if asks {
                    events.extend([(Event::Forget(at), 2), (Event::Interrupt(at), 4)]);
                }
            }
            if asks {
                events.push((Event::Death(at), 1));
            }
        }
        let ghosts = self.ghosts.iter().enumerate().filter(|(_, ghost)| ghost.has_news(now));
        events.extend(ghosts.map(|(at, _)| (Event::GhostNotice(at), 12)));
        let taken = |id: &u64| {
            let pending = self.pending.iter().find(|pending| pending.id == *id);
            let seat =
                pending.and_then(|pending| self.seats.iter().find(|seat| seat.id == pending.seat));
            !seat.is_some_and(|seat| seat.takes_none)
        };
        let due = self.due.iter().enumerate().filter(|(_, (id, _))| taken(id));
        events.extend(due.map(|(at, _)| (Event::Answer(at), 25)));
        let jobs = self.jobs.iter().enumerate().filter(|(_, job)| job.is_ready(now));
        events.extend(jobs.map(|(at, _)| (Event::Job(at), 15)));
        if self.keeper.as_ref().is_some_and(|keeper| keeper.is_ready(now)) {
            events.push((Event::Keeper, 15));
        }
        if asks {
            events.extend([(Event::Time, 6), (Event::ProcessEnd, 1)]);
            if self.habits.trouble {
                events.push((Event::Trouble, 3));
            }
            if self.seats.len() < 5 {
                events.push((Event::Arrival, 3));
            }
        }
    }

    /// One thing happens.
    pub(crate) fn turn(&mut self, asks: bool) -> Outcome<()> {
        let mut events = Vec::with_capacity(16);
        self.events(asks, &mut events);
        let all: u64 = events.iter().map(|(_, weight)| weight).sum();
        if all == 0 {
            self.wait_for_time();
            return Ok(());
        }
        let mut at = self.rng.within(0..all);
        let event = events.iter().find(|(_, weight)| {
            let is_here = at < *weight;
            at = at.saturating_sub(*weight);
            is_here
        });
        let Some(&(event, _)) = event else { return Ok(()) };
        self.happen(event)?;
        self.take_letters(None)?;
        self.judge_locks()?;
        self.judge_kernels()
    }

    pub(crate) fn happen(&mut self, event: Event) -> Outcome<()> {
        let now = self.now();
        match event {
            Event::Request(at) => self.request(at),
            Event::Serve(at) => return self.serve(at),
            Event::Look(at) => return self.look(at),
            Event::Interrupt(at) => self.interrupt(at),
            Event::Answer(at) => {
                let (id, outcome) = self.due.swap_remove(at);
                self.answer(id, outcome);
            }
            Event::Job(at) => {
                trace!(self, "{} goes on", self.jobs[at].name());
                let swallows = self.options.plant == Some(Plant::SwallowedError);
                if !self.jobs[at].turn(now, swallows) && !swallows {
                    trace!(self, "a flush has failed");
                    self.disk.lose();
                }
                self.counts.checkpoint_steps += u64::from(at == 1);
                self.note(&[2, at as u64]);
            }
            Event::Notice(at) => {
                trace!(self, "the kernel of session {} is told", self.seats[at].id.0);
                self.seats[at].kernel.iter_mut().for_each(|kernel| kernel.turn(now));
                self.counts.notices += 1;
                self.note(&[3, at as u64]);
            }
            Event::GhostNotice(at) => {
                trace!(self, "the kernel of a mount that has ended is told");
                self.ghosts[at].turn(now);
                self.ghosts.retain(|ghost| !ghost.over);
                self.counts.notices += 1;
                self.note(&[4, at as u64]);
            }
            Event::Keeper => {
                trace!(self, "the gate's keeper looks");
                self.keeper.iter_mut().for_each(|keeper| keeper.turn(now));
                self.keeper = self.keeper.take().filter(|keeper| !keeper.is_over());
                self.note(&[5]);
            }
            Event::Time => {
                let micros = self.rng.pick(&[20, 1000, 50_000, 200_000, 1_100_000, 4_000_000]);
                trace!(self, "{micros} microseconds pass");
                self.machine.pass(Duration::from_micros(micros));
                self.note(&[6, micros]);
            }
            Event::Fence(at) => {
                self.counts.fences += 1;
                self.stand_up(at, true);
            }
            Event::Death(at) => {
                self.counts.deaths += 1;
                self.stand_up(at, self.options.plant != Some(Plant::LeakedSession));
            }
            Event::Trouble => self.trouble(),
            Event::Forget(at) => self.forget(at),
            Event::Arrival => return self.arrive(),
            Event::ProcessEnd => return self.process_end(None),
        }
        Ok(())
    }

    /// The next flush of the device fails, or some blocks cannot be read, until they can.
    fn trouble(&mut self) {
        let rng = &mut self.rng;
        let (of_flush, blocks) = (rng.chance(50), rng.within(1..4));
        let bad: Vec<u64> = (0..blocks).map(|_| rng.within(0..disk::BLOCKS)).collect();
        let mut device = self.disk.device();
        let faults = &mut device.faults;
        match of_flush {
            true => (faults.flush_errors, faults.flusher_errors) = (1, 1),
            false if faults.read_errors.is_empty() => faults.read_errors.extend(&bad),
            false => faults.read_errors.clear(),
        }
        drop(device);
        trace!(self, "the device fails: flush {of_flush}, blocks {bad:?}");
        self.note(&[20, of_flush.into(), blocks]);
    }

    /// Nothing can happen before it is later: lets that time pass.
    fn wait_for_time(&mut self) {
        let now = self.now();
        let jobs = self.jobs.iter().filter_map(|job| job.until());
        let keeper = self.keeper.iter().filter_map(|keeper| keeper.until());
        let kernels = self.seats.iter().filter_map(|seat| seat.kernel.as_ref());
        let kernels = kernels.chain(&self.ghosts).filter_map(|kernel| kernel.until());
        let next = jobs.chain(keeper).chain(kernels).filter(|&until| until > now).min();
        let pass = next.map_or(Duration::from_secs(1), |until| until - now);
        trace!(self, "nothing happens for {pass:?}");
        self.machine.pass(pass.max(Duration::from_micros(1)));
        self.note(&[7, pass.as_micros() as u64]);
    }

    /// Judges that what kernels show without asking is not older than what anybody was told.
    fn judge_kernels(&mut self) -> Outcome<()> {
        let seats =
            self.seats.iter().filter_map(|seat| Some((seat.kernel.as_ref()?, Some(seat.id))));
        let ghosts = self.ghosts.iter().map(|ghost| (ghost, None));
        for (kernel, seat) in seats.chain(ghosts) {
            let own = self.pending.iter().filter(|pending| Some(pending.seat) == seat);
            // Nobody has been told of answers that are held: all wait for the same, but for syncs.
            let own = own.filter(|pending| pending.stage == Stage::Due || pending.syncs());
            let mut flying = kernel.unanswered.clone();
            flying.extend(own.filter_map(Pending::number));
            for (ino, learned, content) in kernel.shows() {
                self.counts.shown += 1;
                self.mirror.may_show(ino, learned, content, &flying)?;
            }
        }
        Ok(())
    }

    /// Judges that each request that waits for a lock has another's in the way.
    pub(crate) fn judge_locks(&self) -> Outcome<()> {
        for pending in &self.pending {
            if let What::Lock(asked) = &pending.what
                && pending.stage == Stage::Held
                && !self.locks.is_blocked(asked)
            {
                return Err(format!("somebody waits for ever, with nothing in the way: {asked:?}"));
            }
        }
        Ok(())
    }
}
