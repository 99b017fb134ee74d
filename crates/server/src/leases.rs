//! Who must hear of a change: Views, the kernels of mounts, observers. What they keep is lent to them until
//! they are told; an answer waits at the [`gate`] until the kernels that it depends on have heard. Nothing here
//! calls the volume.

pub mod caches;
pub mod gate;
pub(crate) mod needs;
pub mod observer;
pub(crate) mod view;
