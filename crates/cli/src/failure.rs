//! The message of a command that could not do its work, and the status that it ends with.

use std::fmt;

/// Something went wrong; the usual status.
pub const FAILED: u8 = 1;
/// The command line makes no sense (clap's status as well).
pub const USAGE: u8 = 2;
/// `fsck`: errors were found and are still there.
pub const FSCK_UNCORRECTED: u8 = 4;
/// `fsck`: the volume could not be checked.
pub const FSCK_OPERATIONAL: u8 = 8;
/// `fsck`: the command line makes no sense.
pub const FSCK_USAGE: u8 = 16;
/// `run`: Atoll itself failed, before or beside the command.
pub const RUN_FAILED: u8 = 125;
/// `run`: the command was found but could not be run.
pub const RUN_NOT_EXECUTABLE: u8 = 126;
/// `run`: the command was not found.
pub const RUN_NOT_FOUND: u8 = 127;

/// Why a command failed, in a sentence for the person who gave it.
#[derive(Debug)]
pub struct Failure {
    /// The error and its remedy; empty when the command has printed them already.
    pub message: String,
    /// The status to end with.
    pub status: u8,
}

impl Failure {
    /// A failure with the usual status.
    pub fn new(message: impl fmt::Display) -> Failure {
        Failure { message: message.to_string(), status: FAILED }
    }

    /// The same failure with another status.
    pub fn with_status(self, status: u8) -> Failure {
        Failure { status, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The end of a command: its status, or why it failed.
pub type Outcome = Result<u8, Failure>;
