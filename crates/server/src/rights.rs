//! Who a client is, what it may do, and how much. Judges, and changes nothing: it knows no session
//! and no volume.

pub mod identity;
pub mod limits;
pub mod permissions;
pub(crate) mod privileges;
