//! The ends: of a client, of the server's process, of the power, of the schedule.

use atoll_block::fault::Survival;
use atoll_block::{Addressable, FaultDevice};
use atoll_fs::{CheckOptions, Fs, MountOptions, check};
use atoll_vfs::Context;
use atoll_vfs::model::{Snapshot, snapshot};

use crate::call::Call;
use crate::disk::Disk;
use crate::plant::Plant;
use crate::seat::Pending;
use crate::world::{CACHE_BYTES, LIFE, NEXT_LIFE, Outcome, World, trace};

impl World {
    /// The session number `at` ends, with its client or because its mount is fenced; planted, it
    /// does not.
    pub(crate) fn stand_up(&mut self, at: usize, ends: bool) {
        let mut seat = self.seats.swap_remove(at);
        trace!(self, "session {} ends", seat.id.0);
        self.note(&[13, seat.id.0]);
        seat.line.hang_up();
        let own = |pending: &&Pending| pending.seat == seat.id;
        let own = self.pending.iter().filter(own);
        let unanswered = own.filter_map(Pending::number).collect();
        self.pending.retain(|pending| pending.seat != seat.id);
        self.due.retain(|(id, _)| self.pending.iter().any(|pending| pending.id == *id));
        self.locks.end(seat.id);
        let now = self.now();
        if let Some(mut kernel) = seat.kernel.take() {
            kernel.end(now, unanswered);
            self.ghosts.push(kernel);
        }
        if ends {
            // Its files, those included that it was not told of yet.
            seat.files.iter().for_each(|open| self.mirror.close(open));
            seat.place.revoke();
        } else {
            self.leaked.push(seat);
        }
    }

    /// The server's process ends at once, maybe within `flying`, and another begins.
    pub(crate) fn process_end(&mut self, flying: Option<(Context, Call)>) -> Outcome<()> {
        trace!(self, "the server's process ends");
        self.counts.process_ends += 1;
        self.counts.failures += u64::from(self.disk.has_failed());
        self.disk.device().note_flushers();
        let has_failed = self.disk.has_failed();
        self.forget_server();
        let device = FaultDevice::from_media(self.disk.take().into_media());
        sound(&device, LIFE)?;
        let lies = self.options.plant == Some(Plant::LyingFlush);
        self.disk = Disk::new(device, lies);
        let mut fs = mount(self.disk.clone(), LIFE)?;
        let is = walk(&mut fs)?;
        self.note(&[14, is.digest()]);
        if has_failed {
            // The volume remembers that a commit has failed, and believes what was durable and
            // nothing else.
            flying.iter().for_each(|(cx, call)| self.mirror.may_follow(cx, call));
            self.over = true;
            return self.mirror.power_loss(is).map_err(|error| {
                format!("after a flush that failed there is something else: {error}")
            });
        }
        let follows = self.mirror.process_end(flying, is).map_err(|error| {
            format!("after the end of the process there is something else: {error}")
        })?;
        self.over = !follows;
        if follows { self.begin_server(fs) } else { Ok(()) }
    }

    /// Nothing of the server's memory reaches the device any more.
    fn forget_server(&mut self) {
        {
            let mut device = self.disk.device();
            let events = device.events();
            device.faults.stop_after = Some(events);
        }
        self.jobs.clear();
        self.pending.clear();
        self.due.clear();
        self.seats.clear();
        self.leaked.clear();
        self.ghosts.clear();
        self.keeper = None;
        self.volume = None;
        self.locks = Default::default();
        drop(self.outbox.take());
    }

    /// The schedule ends: with the power, with the process, or in order.
    pub(crate) fn finish(&mut self) -> Outcome<()> {
        self.disk.device().faults.read_errors.clear();
        let way = self.rng.within(0..4);
        // A volume that cannot be made durable cannot be unmounted.
        let way = if self.disk.has_failed() { way.min(2) } else { way };
        match way {
            0 => self.process_end(None)?,
            1 | 2 => return self.power_loss(),
            _ => {}
        }
        if self.over { Ok(()) } else { self.unmount() }
    }

    fn power_loss(&mut self) -> Outcome<()> {
        let survival = match self.rng.within(0..4) {
            0 => Survival::None,
            _ => Survival::Seed(self.rng.number()),
        };
        trace!(self, "the power is lost: {survival:?}");
        self.counts.power_losses += 1;
        self.counts.failures += u64::from(self.disk.has_failed());
        let image = {
            let mut device = self.disk.device();
            device.note_flushers();
            device.power_loss(survival)
        };
        self.forget_server();
        let device = FaultDevice::from_image(image);
        sound(&device, NEXT_LIFE)?;
        let is = walk(&mut mount(device, NEXT_LIFE)?)?;
        self.note(&[15, is.digest()]);
        self.mirror
            .power_loss(is)
            .map_err(|error| format!("after power loss there is something else: {error}"))
    }

    /// Everybody leaves, and the volume is unmounted.
    fn unmount(&mut self) -> Outcome<()> {
        trace!(self, "everybody leaves");
        while !self.seats.is_empty() {
            self.stand_up(0, true);
            self.take_letters(None)?;
            self.judge_locks()?;
        }
        for seat in std::mem::take(&mut self.leaked) {
            seat.files.iter().for_each(|open| self.mirror.close(open));
        }
        let Some(volume) = self.volume.take() else { return Ok(()) };
        volume.close_checkpoints();
        volume.close_removals();
        volume.close_syncs();
        for _ in 0..1000 {
            let now = self.now();
            for job in self.jobs.iter_mut().filter(|job| job.is_ready(now)) {
                if !job.turn(now, false) {
                    self.disk.lose();
                }
            }
            if self.jobs.iter().all(|job| job.is_over()) {
                break;
            }
            self.machine.pass(std::time::Duration::from_millis(1));
        }
        if let Some(job) = self.jobs.iter().find(|job| !job.is_over()) {
            return Err(format!("somebody waits for ever: the {} does not end", job.name()));
        }
        self.jobs.clear();
        // Answers that wait for kernels of mounts hold the volume no more than a carrier would.
        self.ghosts.iter().for_each(|ghost| ghost.cache.give_up());
        self.ghosts.clear();
        let fs = volume.into_inner().map_err(|_| "somebody still holds the volume".to_string())?;
        let fs = fs.ok_or("the file system panicked")?;
        self.judge_accounts()?;
        let unmounted = fs.unmount();
        if self.disk.has_failed() {
            // Nothing more is written home, whatever unmounting says.
            return self.power_loss();
        }
        unmounted.map_err(|error| format!("unmounting: {error}"))?;
        let device = FaultDevice::from_media(self.disk.take().into_media());
        sound(&device, NEXT_LIFE)?;
        let is = walk(&mut mount(device, NEXT_LIFE)?)?;
        self.note(&[16, is.digest()]);
        self.mirror
            .process_end(None, is)
            .map(drop)
            .map_err(|error| format!("after the unmount there is something else: {error}"))
    }
}

/// The process of `world` ends, or its power if `power`: what is there is sound, and mounts.
pub(crate) fn sound_after(world: &World, power: bool) -> Outcome<()> {
    let (image, life) = {
        let mut device = world.disk.device();
        device.note_flushers();
        match power {
            true => (device.power_loss(Survival::None), NEXT_LIFE),
            false => (device.process_crash(), LIFE),
        }
    };
    let device = FaultDevice::from_image(image);
    sound(&device, life)?;
    walk(&mut mount(device, life)?).map(drop)
}

/// A check finds nothing to repair.
pub(crate) fn sound(device: &FaultDevice, incarnation: [u8; 16]) -> Outcome<()> {
    let options = CheckOptions { incarnation, ..CheckOptions::default() };
    let current = device.media().current();
    let mut device = match device.media().has_given_up() {
        true => device.clone(),
        // Nothing but the content counts, which is cheaper to copy.
        false => FaultDevice::from_image(current.clone()),
    };
    match check(&mut device, &options) {
        Ok(report) if report.is_clean() => Ok(()),
        Ok(report) => Err(format!("the check finds {:#?}", report.findings)),
        Err(error) => Err(format!("the check fails: {error}")),
    }
}

/// Mounts the volume on `device`.
///
/// # Errors
/// It cannot be mounted.
pub fn mount<M: Addressable>(device: M, incarnation: [u8; 16]) -> Outcome<Fs<M>> {
    let options = MountOptions { incarnation, cache_bytes: CACHE_BYTES, ..MountOptions::default() };
    Fs::mount(device, &options).map_err(|error| format!("the volume cannot be mounted: {error}"))
}

/// All that is in a volume.
fn walk<M: Addressable>(fs: &mut Fs<M>) -> Outcome<Snapshot> {
    snapshot(fs).map_err(|error| format!("the volume cannot be walked: {error}"))
}
