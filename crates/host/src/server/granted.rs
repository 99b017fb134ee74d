//! The session that a rule grants, by whatever way its client comes.

use std::path::PathBuf;
use std::sync::Arc;

use atoll_server::rights::accounts::Account;
use atoll_server::{Access, Credentials, Identity, KnownMost, Limits, Session, Volume};
use atoll_vfs::FileSystem;

use super::rules::{Grant, Mode};
use super::shares;

/// The most bytes that one read or write moves while others wait: what clients agree to.
pub(super) const TRANSFER: usize = 1 << 20;

/// Begins the session of `peer` that `grant` allows, on `account`. The error is for the client.
pub(super) fn session<F: FileSystem + Send>(
    volume: &Arc<Volume<F>>,
    peer: &Credentials,
    grant: &Grant,
    identity: Identity,
    account: Option<&Arc<Account>>,
) -> Result<Session<F>, String> {
    let mut limits = Limits { rates: grant.rates, transfer: TRANSFER, ..Limits::default() };
    if volume.is_foreign() {
        limits.open_files = limits.open_files.min(shares::files_of_host());
        limits.inodes = KnownMost::default().of_user;
    }
    let access = Access {
        identity,
        read_only: grant.mode == Mode::Read,
        subtree: (grant.path != "/").then(|| PathBuf::from(&grant.path)),
        account: account.map(Arc::clone),
        limits,
    };
    volume.session(peer.clone(), access).map_err(|error| {
        format!("the directory {} of the volume cannot be used: {error}", grant.path)
    })
}
