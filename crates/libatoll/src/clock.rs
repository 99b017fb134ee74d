//! The time of the host.

use atoll_posix::Clock;
use atoll_vfs::Timespec;

/// The host's clock, as coarse as its own file systems use it for timestamps (a few
/// milliseconds): reading it is a handful of loads, and no system call even in a sealed process.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostClock;

impl Clock for HostClock {
    #[inline]
    fn now(&self) -> Timespec {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a timespec to write to. The call cannot fail for this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) };
        Timespec { sec: now.tv_sec, nsec: now.tv_nsec as u32 }
    }
}
