//! The way of a request from its carrier to its session, and of its answer back: [`carrier`] is the
//! seam to rings, devices and sockets, [`router`] answers what is not a verb, [`kernel`] what only
//! a kernel asks, `locks` both; an [`answer`] that has to `wait` is given when it may.

pub mod answer;
pub mod carrier;
pub mod kernel;
mod locks;
pub mod router;
pub mod share;
mod wait;
