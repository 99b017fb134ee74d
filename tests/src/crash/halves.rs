//! Syncs in halves, with operations between them, and checkpoints in steps beside.

use atoll_vfs::*;

use super::steps::Steps;
use crate::rng::Rng;

/// How often a sync that is under way goes on after an operation, of a hundred times.
const GOES_ON: u64 = 50;

/// Where a sync in halves is.
enum Stage {
    Begun(PendingSync),
    Flushed(SyncId, Result<()>),
}

struct UnderWay {
    stage: Stage,
    /// How many operations had been made when it began.
    covers: usize,
    waits: u32,
}

/// The syncs in halves of one workload: at most one is under way.
pub struct Halves {
    rng: Rng,
    percent: u64,
    goes_on: u64,
    under_way: Option<UnderWay>,
    /// Where syncs are in halves, checkpoints are in steps.
    pub steps: Steps,
    /// Those that ended with operations since they began.
    pub ended: u64,
    /// Of these, those that waited twice.
    pub in_two_waits: u64,
}

impl Halves {
    /// Of the workload of `seed`, in which `percent` of a hundred syncs are made in halves.
    pub fn new(seed: u64, percent: u64) -> Halves {
        let rng = Rng::new(seed ^ u64::from_be_bytes(*b"in halve"));
        let steps = Steps::new(seed);
        Halves { rng, percent, goes_on: GOES_ON, under_way: None, steps, ended: 0, in_two_waits: 0 }
    }

    /// The same, where a sync goes on after `percent` of a hundred operations.
    pub fn going_on(self, percent: u64) -> Halves {
        Halves { goes_on: percent, ..self }
    }

    /// Whether the next sync is to begin here, instead of being made in one piece. While one is
    /// under way the file system makes another in one piece.
    pub fn takes_next(&mut self) -> bool {
        self.rng.chance(self.percent)
    }

    /// Begins a sync when `made` operations have been. Returns whether everything is durable
    /// already.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn begin(&mut self, fs: &mut impl FileSystem, made: usize) -> Result<bool> {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let Some(sync) = fs.begin_sync(&cx, self.rng.chance(40))? else { return Ok(true) };
        // This one covers a sync that was under way, which is forgotten or ended.
        self.under_way = Some(UnderWay { stage: Stage::Begun(sync), covers: made, waits: 1 });
        Ok(false)
    }

    /// Perhaps goes on with the sync that is under way, after the operations up to `made`. Returns
    /// how many operations are durable by it, if it has ended.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn go_on(&mut self, fs: &mut impl FileSystem, made: usize) -> Result<Option<usize>> {
        if self.percent > 0 {
            self.steps.go_on(fs)?;
        }
        if !self.rng.chance(self.goes_on) {
            return Ok(None);
        }
        let Some(UnderWay { stage, covers, waits }) = self.under_way.take() else {
            return Ok(None);
        };
        let (stage, waits) = match stage {
            Stage::Begun(sync) => {
                let (id, flushed) = sync.flush();
                (Stage::Flushed(id, flushed), waits)
            }
            Stage::Flushed(id, flushed) => match fs.end_sync(id, flushed)? {
                Some(more) => (Stage::Begun(more), waits + 1),
                None => {
                    self.ended += u64::from(made > covers);
                    self.in_two_waits += u64::from(made > covers && waits > 1);
                    return Ok(Some(covers));
                }
            },
        };
        self.under_way = Some(UnderWay { stage, covers, waits });
        Ok(None)
    }
}
