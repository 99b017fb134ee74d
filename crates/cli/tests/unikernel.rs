//! Programs in the bare image, by `atoll unikernel run`: as they are on Linux, ended by faults, and
//! counted by instructions. The machine is emulated everywhere.
#![allow(missing_docs)]

mod common;

#[path = "unikernel/image.rs"]
mod image;

#[path = "unikernel/built.rs"]
mod built;
#[path = "unikernel/counts.rs"]
mod counts;
#[path = "unikernel/disks.rs"]
mod disks;
#[path = "unikernel/faults.rs"]
mod faults;
#[path = "unikernel/programs.rs"]
mod programs;
#[path = "unikernel/together.rs"]
mod together;
#[path = "unikernel/told.rs"]
mod told;
