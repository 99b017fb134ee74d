//! A client's identity, its rights, and its limits. This module judges and changes nothing: it
//! knows no session and no volume.

pub mod accounts;
pub mod identity;
pub mod idmap;
pub mod limits;
pub mod permissions;
pub(crate) mod privileges;
pub mod rates;
