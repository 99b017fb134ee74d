//! A program's own way to a served volume: POSIX over a client of the server's rings.

use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use atoll_host::client::Connection;
use atoll_posix::{Clock, OFlags, Options, Posix, Whence};
use atoll_vfs::{Errno, Timespec};

use crate::calls::{Calls, Stat};
use crate::machine;
use crate::processor::Usage;
use crate::record::Broken;
use crate::workloads::Run;

/// The clock of the machine.
struct HostClock;

impl Clock for HostClock {
    fn now(&mut self) -> Timespec {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timespec { sec: now.as_secs() as i64, nsec: now.subsec_nanos() }
    }
}

fn error(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.raw())
}
