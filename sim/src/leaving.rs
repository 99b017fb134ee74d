//! How long the end of a session holds others up: a client leaves that has many files open, and
//! another asks for something at the first change which that makes.
//!
//! That takes two threads, since one has the volume's lock while the other asks for it. They take
//! turns at fixed moments, and what comes of it is the same each time.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_block::FaultDevice;
use atoll_server::Volume;
use atoll_server::host::{Done, Host, Pages, ViewMemory};
use atoll_tests::rng::Rng;
use atoll_vfs::{Context, Errno, FileSystem, Ino, Name, OpenFlags, Result, Timespec};

use crate::disk::Disk;
use crate::ends::mount;
use crate::plant::Plant;
use crate::seat::Role;
use crate::world::{LIFE, Outcome, Template};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
/// One of so many open files has no name, so that others see it go when it is closed.
const EVERY: u64 = 16;
/// Files that may be closed before others have their turn.
const CLOSED: u64 = 64;

/// A machine whose threads wait for each other.
#[derive(Default)]
struct Threads {
    /// Told when a thread stands in line for the first time.
    in_line: Mutex<Option<Sender<()>>>,
}

impl Host for Threads {
    fn now(&self) -> Timespec {
        CX.now
    }

    fn uptime(&self) -> Duration {
        Duration::ZERO
    }

    fn random(&self, bytes: &mut [u8]) -> Result<()> {
        bytes.fill(7);
        Ok(())
    }

    fn wait(&self, begin: &mut dyn FnMut(Done)) {
        let (done, is_done) = channel();
        begin(Box::new(move || {
            let _ = done.send(());
        }));
        drop(self.in_line.lock().unwrap_or_else(PoisonError::into_inner).take());
        // Nobody who could call it is there any more: that is as good.
        let _ = is_done.recv();
    }

    fn pages(&self) -> Result<Box<dyn Pages>> {
        Err(Errno::ENOSYS)
    }

    fn view(&self, _: usize, _: bool) -> Result<Option<Box<dyn ViewMemory>>> {
        Ok(None)
    }
}

/// Has a client leave, and judges how many files were closed when another was answered.
pub(crate) fn judge(template: &Template, rng: &mut Rng, plant: Option<Plant>) -> Outcome<()> {
    let disk = Disk::new(FaultDevice::from_image(template.image.clone()), false);
    let host = Arc::new(Threads::default());
    let machine: Arc<dyn Host> = Arc::<Threads>::clone(&host);
    let volume = Volume::new(mount(disk.clone(), LIFE)?, "v", machine);
    let mut access = Role::Root.access();
    if plant == Some(Plant::WholeEnds) {
        access.limits.closed_at_once = usize::MAX;
    }
    let begun = |role: Role, access| {
        volume.session(role.peer(), access).map_err(|error| format!("a session: {error}"))
    };
    let mut leaving = begun(Role::Root, access)?;
    let mut other = begun(Role::User, Role::User.access())?;
    let files = 2 * CLOSED + rng.within(0..CLOSED);
    (|| {
        let (name, gone) = (Name::new(b"a")?, Name::new(b"gone")?);
        let ino = leaving.lookup(&CX, Ino::ROOT, name)?.ino;
        for at in 0..files {
            if at % EVERY == 0 {
                leaving.create(&CX, Ino::ROOT, gone, 0o600, OpenFlags::READ)?;
                leaving.unlink(&CX, Ino::ROOT, gone)?;
            } else {
                leaving.open(&CX, ino, OpenFlags::READ)?;
            }
        }
        Ok(())
    })()
    .map_err(|error: Errno| error.to_string())?;

    let inodes = |session: &mut atoll_server::Session<_>| {
        let all = session.statfs(&CX).map_err(|error| error.to_string())?;
        Ok::<u64, String>(all.files - all.files_free)
    };
    let before = inodes(&mut other)?;
    let (go, gone) = channel();
    let (standing, stands) = channel::<()>();
    *host.in_line.lock().unwrap_or_else(PoisonError::into_inner) = Some(standing);
    disk.watch(move || {
        // The other asks now, and this thread goes on when it stands in line.
        let _ = (go.send(()), stands.recv());
    });
    let after = std::thread::scope(|scope| {
        let other = &mut other;
        let asks = scope.spawn(move || match gone.recv() {
            Ok(()) => inodes(other),
            Err(_) => Err("nothing changes when files without names are closed".to_owned()),
        });
        drop(leaving);
        disk.watch(|| {});
        asks.join().unwrap_or_else(|_| Err("a panic".into()))
    })?;
    // The first of every sixteen, and one more where the first is not the first that is closed.
    let closed = before - after;
    match closed <= CLOSED / EVERY + 1 {
        true => Ok(()),
        false => {
            let what = format!("{closed} of {} files without names", files.div_ceil(EVERY));
            Err(format!("others wait until {what} are closed in one hold"))
        }
    }
}
