//! The parts that only a host has: files and disks as block devices, memory maps, confinement, FUSE
//! mounts, namespaces.
//!
//! [`client`] is how programs find a server, by the messages of [`control`], where descriptors are
//! passed; [`shm`] is memory shared with another process, `spin` how both sides look for each
//! other's words before they sleep. Unsafe code is denied here but in the modules that say why they
//! need it.
#![cfg_attr(
    feature = "server",
    doc = "
With the feature `server`: [`device`] gives a volume's storage as a block device; [`seal`] confines a
process to it. [`directory`] is a directory of the host as a file system. [`memory`] says how much a cache may take, `medium` who waits for a medium. [`fuse`] serves a file system to the kernel;
[`namespace`] gives a program a private view of the file tree; [`process`] splits this process in two.
[`server`] serves volumes to many programs, [`virtio`] to virtual machines; [`guest`] has a program be one, without a machine; [`expected`] is whose server a client trusts."
)]
#![deny(unsafe_code)]

#[cfg(feature = "server")]
mod anew;
pub mod client;
pub mod control;
#[cfg(feature = "server")]
pub mod device;
#[cfg(all(feature = "server", target_os = "linux"))]
pub mod directory;
#[cfg(feature = "server")]
mod errno;
#[cfg(feature = "server")]
pub mod expected;
#[cfg(feature = "server")]
pub mod fuse;
#[cfg(feature = "server")]
pub mod guest;
#[cfg(feature = "server")]
mod medium;
#[cfg(feature = "server")]
pub mod memory;
#[cfg(feature = "server")]
pub mod namespace;
#[cfg(feature = "server")]
pub mod process;
#[cfg(all(
    feature = "server",
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]
pub mod seal;
#[cfg(feature = "server")]
pub mod server;
#[cfg(target_os = "linux")]
pub mod shm;
#[cfg(target_os = "linux")]
mod spin;
#[cfg(feature = "server")]
mod unmapped;
#[cfg(feature = "server")]
pub mod virtio;
