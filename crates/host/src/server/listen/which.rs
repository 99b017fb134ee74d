//! Which volume a client means.

use std::sync::Arc;

use atoll_server::{Credentials, Volume};
use atoll_vfs::FileSystem;

use crate::server::rules::Rules;

/// The volume of that name, or the only one.
pub(super) fn volume<'v, F: FileSystem + Send>(
    volumes: &'v [Arc<Volume<F>>],
    rules: &Rules,
    peer: &Credentials,
    name: &str,
) -> Result<(usize, &'v Arc<Volume<F>>), String> {
    if !volumes.iter().any(|volume| rules.grant(peer, volume.name()).is_some()) {
        return Err(rules.refusal(peer));
    }
    if let Some(volume) = volumes.iter().enumerate().find(|(_, volume)| volume.name() == name) {
        return Ok(volume);
    }
    // A client that may not use a volume does not learn of it.
    let names: Vec<&str> = volumes
        .iter()
        .map(|volume| volume.name())
        .filter(|name| rules.grant(peer, name).is_some())
        .collect();
    match volumes {
        [only] if name.is_empty() => Ok((0, only)),
        _ if name.is_empty() => {
            Err(format!("it serves several volumes, name one of them: {}", names.join(", ")))
        }
        _ => Err(format!("it serves no volume {name}, but: {}", names.join(", "))),
    }
}
