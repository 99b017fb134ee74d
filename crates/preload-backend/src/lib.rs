//! The interposer's backend (`crates/preload/c/backend.h`): carries calls on open files to the
//! server through a ring.
//!
//! [`interface`] is what C calls, `connection` a process's session with a server, [`servers`] says
//! how that is found, `repeats` when it is worth a View. `heap` and `lock` are there because this
//! runs inside programs that know nothing of it: in the middle of anything, in children that have
//! only one of their parent's threads.
//!
//! # What holds
//!
//! - Nothing of the program's is used but its address space: no malloc(3), no thread-local storage,
//!   no descriptor with a number that the program may expect.
//! - A child leaves its parent's session alone: its memory is not mapped there, its descriptors are
//!   closed first of all, and all that is allocated is forgotten.
//! - What a View answers is what the server would. It has nothing of a file whose last descriptor
//!   was closed.
//! - Whatever fails before a call has had an effect is answered with `BY_KERNEL`.
//! - A program's own buffer is read and written here, not in the kernel: one that is not mapped is
//!   SIGSEGV, as it would be in the C library's own functions, and not EFAULT.
#![deny(unsafe_code)]

mod connection;
mod heap;
pub mod interface;
mod lock;
mod repeats;
pub mod servers;
