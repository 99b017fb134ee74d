//! Tests that span layers, as a library, so that every implementor of a seam runs the same ones.
//!
//! Read in this order: [`subject`] the file system under test and where it may differ,
//! [`conformance`] the demands of the [`FileSystem`](atoll_vfs::FileSystem) contract one by one,
//! [`ops`] random operations and [`differential`] their comparison with the model, [`hostdir`] a
//! Linux directory as a file system (which holds the model itself against Linux), [`by_calls`] one
//! by the system calls of any program, [`crash`] the crash contract, [`enumerate`] the same on
//! every short sequence of operations, [`damage`] the outcomes of damaged sectors, [`linear`]
//! several clients at once; [`fixtures`] are shared by many tests, [`served`] a volume with its
//! server, [`loopback`] a client and its session in one thread, [`unix_socket`] a carrier as an
//! example, [`guest`] a virtual machine that is a driver alone, [`window`] its memory for mapped
//! files.
#![forbid(unsafe_code)]

pub mod by_calls;
pub mod conformance;
pub mod crash;
pub mod damage;
pub mod differential;
pub mod enumerate;
pub mod fixtures;
pub mod guest;
pub mod guest_cache;
pub mod hostdir;
pub mod linear;
pub mod loopback;
pub mod ops;
pub mod rng;
pub mod served;
pub mod subject;
pub mod toy;
pub mod unix_socket;
pub mod window;

pub use subject::{Quirks, Subject};
