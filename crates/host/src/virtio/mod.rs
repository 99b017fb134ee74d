//! The virtio-fs device of a virtual machine: a vhost-user back end, whose front end (QEMU, or
//! another) hands over the guest's memory and the bells of its queues.
//!
//! [`device`] is the device, which serves one front end: its queues are a carrier
//! ([`Carrier`](atoll_server::route::carrier::Carrier)), what it brings is what a kernel asks for
//! ([`kernel`](atoll_server::route::kernel)). `carried` is a request while a device has it;
//! `back_end` is the protocol, `queue` a virtqueue, `memory` the guest's memory, `pieces` a
//! request's data in it, `dirty_log` where the pages are marked that were written; `inflight` the
//! record of requests that have no answer yet; `notices` what a guest is told of changes; [`pulse`]
//! whether its thread hangs; `window` the memory in which the guest is shown files, `channel` how
//! the front end is asked for it; `state` what goes with a guest that moves, `transfer` the pipe by
//! which it goes; `now` reads and writes that never wait, `overwrite` writes by which no file
//! grows.

mod back_end;
mod carried;
mod channel;
pub mod device;
mod dirty_log;
mod inflight;
mod memory;
mod notices;
mod now;
mod overwrite;
mod pieces;
pub mod pulse;
mod queue;
mod state;
mod transfer;
mod window;

/// The most entries of a queue.
const SIZE_MAX: u16 = 1024;

/// Why a guest is served no more, in words for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);
