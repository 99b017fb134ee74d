//! Sharing: several clients of one file system against a sequential model.
//!
//! Clients run random scripts at the same time. Their calls and answers, each with its time, are a
//! history; a history is right if some order of its operations, each within the time its call took,
//! is one that a single client could have seen (linearizability, Herlihy and Wing, 1990).
//!
//! Read in this order: [`history`] operations and their results, [`spec`] their meaning,
//! [`checker`] the search for an order, [`clients`] execute operations, [`run`] schedules of
//! threads and [`processes`] of processes, [`planted`] and [`stale`] defects that the checker has
//! to find.

pub mod checker;
pub mod clients;
pub mod history;
pub mod planted;
pub mod processes;
pub mod run;
pub mod spec;
pub mod stale;
