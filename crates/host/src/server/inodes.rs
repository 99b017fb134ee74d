//! Which inodes a session may name.
