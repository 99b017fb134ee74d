//! The on-disk file system as a crash target.

use atoll_block::FaultDevice;
use atoll_block::fault::Discarded;
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};

use super::CrashTarget;
use super::removals::InSteps;

/// A volume, with a journal and caches of these sizes.
#[derive(Clone, Copy, Debug)]
pub struct Volume {
    /// The journal's, or `None` for the default.
    pub journal_blocks: Option<u64>,
    /// The cache's until the crash.
    pub cache_bytes: usize,
    /// The cache's from recovery on.
    pub recovery_cache_bytes: usize,
    /// Freed space is discarded, and has this content then.
    pub discards: Option<Discarded>,
    /// Long calls are made in steps.
    pub in_steps: bool,
}

impl Volume {
    /// One with much memory.
    pub const DEFAULT: Volume = Volume {
        journal_blocks: None,
        cache_bytes: 64 << 20,
        recovery_cache_bytes: 64 << 20,
        discards: None,
        in_steps: false,
    };

    fn mount_with(
        &self,
        cache_bytes: usize,
        mut device: FaultDevice,
        incarnation: [u8; 16],
    ) -> Result<InSteps<Fs<FaultDevice>>, String> {
        device.faults.discarded = self.discards.unwrap_or_default();
        let discard = self.discards.is_some();
        let options = MountOptions { incarnation, cache_bytes, discard, ..MountOptions::default() };
        let fs = Fs::mount(device, &options).map_err(|error| error.to_string())?;
        Ok(InSteps::new(fs, self.in_steps))
    }
}

impl CrashTarget for Volume {
    type Fs = InSteps<Fs<FaultDevice>>;

    fn format(&self, device: &mut FaultDevice) -> Result<(), String> {
        let journal_blocks = self.journal_blocks;
        let options = FormatOptions { journal_blocks, ..FormatOptions::default() };
        format(device, &options).map_err(|error| error.to_string())
    }

    fn mount(&self, device: FaultDevice, incarnation: [u8; 16]) -> Result<Self::Fs, String> {
        self.mount_with(self.cache_bytes, device, incarnation)
    }

    fn recover(&self, device: FaultDevice, incarnation: [u8; 16]) -> Result<Self::Fs, String> {
        self.mount_with(self.recovery_cache_bytes, device, incarnation)
    }

    fn device<'a>(&self, fs: &'a mut Self::Fs) -> &'a mut FaultDevice {
        fs.fs.device_mut()
    }

    fn unmount(&self, fs: Self::Fs) -> Result<FaultDevice, String> {
        fs.fs.unmount().map_err(|error| error.to_string())
    }

    fn removal_steps(&self, fs: &Self::Fs) -> u64 {
        fs.steps
    }

    fn check(&self, device: &mut FaultDevice, incarnation: [u8; 16]) -> Result<(), String> {
        let options = CheckOptions { incarnation, ..CheckOptions::default() };
        match check(device, &options) {
            Ok(report) if report.is_clean() => Ok(()),
            Ok(report) => Err(format!("{:#?}", report.findings)),
            Err(error) => Err(error.to_string()),
        }
    }
}
