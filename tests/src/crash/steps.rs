//! Checkpoints in steps, with operations between them.

use atoll_vfs::*;

use crate::rng::Rng;

/// The checkpoints in steps of one workload.
pub struct Steps {
    rng: Rng,
    /// After how many of a hundred operations steps are taken.
    percent: u64,
    /// The flush that the last step left to the caller.
    waits: Option<PendingSync>,
    /// The result of that flush.
    flushed: Option<(SyncId, Result<()>)>,
    /// The checkpoints that have ended.
    pub ended: u64,
}

impl Steps {
    /// Of the workload of `seed`: none, few or many.
    pub fn new(seed: u64) -> Steps {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"in steps"));
        let percent = rng.pick(&[0, 15, 60]);
        Steps { rng, percent, waits: None, flushed: None, ended: 0 }
    }

    /// Perhaps takes some steps after an operation. A sync that a step needs is left to the
    /// workload, or made here after a while.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn go_on(&mut self, fs: &mut impl FileSystem) -> Result<()> {
        if !self.rng.chance(self.percent) {
            return Ok(());
        }
        for _ in 0..1 + self.rng.within(0..4) {
            if let Some(waits) = self.waits.take() {
                self.flushed = Some(waits.flush());
                continue;
            }
            match fs.checkpoint_step(self.flushed.take())? {
                CheckpointStep::Idle => {
                    self.ended += 1;
                    return Ok(());
                }
                CheckpointStep::More => {}
                CheckpointStep::Sync => return self.sync(fs),
                CheckpointStep::Wait(flush) => {
                    self.waits = Some(flush);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn sync(&mut self, fs: &mut impl FileSystem) -> Result<()> {
        if !self.rng.chance(30) {
            return Ok(());
        }
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        match fs.syncfs(&cx) {
            // A full volume has no room for timestamps.
            Err(Errno::ENOSPC) => Ok(()),
            synced => synced,
        }
    }
}
