//! Server, clients, kernels of mounts, device, crashes and power loss in one thread, from one seed.
//!
//! Read in this order: [`schedule`] chooses what happens next, [`world`] is all there is; [`seat`]
//! says who uses the volume, [`call`] what they ask and [`generate`] by which chance; `requests` is
//! how they ask, [`codec`] in which messages, [`carrier`] what brings these to the server's router
//! and `serve` how they are answered; [`views`] is what clients read without asking; `hostile` what
//! clients send that keep to no rule; [`kernel`] is what a mount's kernel remembers, [`jobs`] the
//! server's own work, [`machine`] and [`disk`] what is below; `ends` is how clients, processes and
//! the power go. The judges are [`mirror`] for answers, caches and what a crash leaves, [`rights`]
//! for permissions, [`locks`] for locks, the scheduler itself for progress, `sharing`, `removals`,
//! `listings` and `leaving` for how long strangers make others wait, and `users` and `quotas` for
//! how much a stranger has. [`plant`] has the defects that the judges must find; [`measure`] what
//! hostile clients cost others today; [`parallel`] runs many schedules.
#![forbid(unsafe_code)]

pub mod call;
pub mod carrier;
pub mod codec;
pub mod disk;
mod ends;
pub mod generate;
mod hostile;
pub mod jobs;
pub mod kernel;
mod leaving;
mod listings;
pub mod locks;
pub mod machine;
pub mod measure;
pub mod mirror;
pub mod parallel;
pub mod plant;
mod quotas;
mod removals;
mod requests;
pub mod rights;
pub mod schedule;
pub mod seat;
mod serve;
mod sharing;
mod users;
pub mod views;
pub mod world;
