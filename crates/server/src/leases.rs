//! The observers of changes: Views and the kernels of mounts (and mapped files, in `mapped`).
//! Kernels keep data by leases until these are invalidated; an answer waits at the [`gate`] until
//! the kernels that it depends on have taken their notices. Nothing here calls the volume.

pub mod caches;
pub mod gate;
pub(crate) mod needs;
pub(crate) mod observer;
pub(crate) mod trust;
pub(crate) mod view;
