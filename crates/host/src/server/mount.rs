//! A session whose requests come from the kernel: the client has mounted a FUSE file system and
//! hands over its device.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use atoll_vfs::FileSystem;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;

use super::control::{self, Answer};
use super::granted::session;
use super::porter::Porter;
use super::rules::Grant;
use crate::fuse::shared::{SharedMount, SharedOptions};
use atoll_server::Credentials;
use atoll_server::Session;
use atoll_server::revocable::Revocable;
use atoll_server::rights::accounts::Account;
use atoll_server::route::kernel::KernelOptions;
use atoll_server::{Identity, Volume};

/// How long the kernel's first request may take: it is there once the device is mounted.
const FIRST_REQUEST: Duration = Duration::from_secs(5);
/// The number of /dev/fuse: Linux assigns it (Documentation/admin-guide/devices.txt).
const DEVICE: (u32, u32) = (10, 229);

/// The parts by which a mount is served.
pub(super) struct Mount<F: FileSystem + Send> {
    pub volume: Arc<Volume<F>>,
    pub peer: Credentials,
    pub grant: Grant,
    pub account: Option<Arc<Account>>,
    pub single_owner: bool,
    pub device: OwnedFd,
    pub socket: Arc<OwnedFd>,
    pub place: Revocable<Session<F>>,
    pub porter: Porter,
    pub spin: Duration,
}

/// Whether `fd` is the device of FUSE and no other file that a client could have sent: reading
/// another could block for ever, or have effects.
pub(super) fn is_fuse(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == DEVICE
    })
}

impl<F: FileSystem + Send + 'static> Mount<F> {
    /// As whom the requests act. The kernel puts the true identity into each, but a user can be the
    /// kernel's master in a user namespace or a virtual machine's: only the superuser's word
    /// counts.
    fn identity(&self) -> Identity {
        let root = self.peer.uid == 0 && !self.single_owner;
        if root { Identity::Checked } else { Identity::Peer }
    }

    /// Begins the session, tells the client, and serves until nothing is mounted any more. The
    /// error is for the client.
    pub fn serve(self) -> Result<(), String> {
        let session =
            session(&self.volume, &self.peer, &self.grant, self.identity(), self.account.as_ref())?;
        drop(self.volume);
        if !self.place.begin(session) {
            return Err("its connection has ended".to_owned());
        }
        let mut first = [PollFd::new(&self.device, PollFlags::IN)];
        let wait = Timespec::try_from(FIRST_REQUEST).ok();
        if poll(&mut first, wait.as_ref()) != Ok(1) || first[0].revents() != PollFlags::IN {
            return Err("the device of FUSE is not mounted".to_owned());
        }
        let options = SharedOptions {
            kernel: KernelOptions {
                owner: self.single_owner.then_some((self.peer.uid, self.peer.gid)),
                ..KernelOptions::default()
            },
            spin: self.spin,
        };
        let (place, hang_up) = (self.place.clone(), Some(Arc::clone(&self.socket)));
        let mount = SharedMount::begin(place, self.device, hang_up, self.porter, &options)
            .map_err(|error| format!("FUSE failed: {error}"))?;
        let granted = Answer::Granted(self.grant.mode).encode();
        if control::send(&*self.socket, &granted, &[]).is_err() {
            // It has gone; the control thread sees it too.
            return Ok(());
        }
        if let Err(error) = mount.run() {
            log::warn!(user = self.peer.uid; "a mount of user {} failed: {error}", self.peer.uid);
        }
        // Its files are closed before the client is told that it has ended.
        self.place.revoke();
        // A client that has gone knows.
        let _ = control::send(&*self.socket, &Answer::Ended.encode(), &[]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_device_of_fuse() {
        for path in ["/dev/null", "/dev/zero", "/proc/self/stat", "/"] {
            assert!(!is_fuse(&std::fs::File::open(path).unwrap().into()), "{path}");
        }
        if let Ok(device) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
            assert!(is_fuse(&device.into()));
        }
    }
}
