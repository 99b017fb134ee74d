//! Who must hear of a change: Views and the kernels of mounts (and mapped files, in `mapped`). What
//! they keep is lent to them until they are told; an answer waits at the [`gate`] until the kernels
//! that it depends on have heard. Nothing here calls the volume.

pub mod caches;
pub mod gate;
pub(crate) mod needs;
pub(crate) mod observer;
pub(crate) mod view;
