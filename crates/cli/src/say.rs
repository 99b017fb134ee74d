//! Messages for the person who gave a command.

/// Writes a message, as format! makes it, to standard error. Where that cannot be written there is
/// nobody to tell, and the command goes on: the macros of the standard library would end it.
macro_rules! say {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "atoll: {}", format_args!($($message)*));
    }};
}
