//! Messages for the person who gave a command.

/// Writes a message, as format! makes it, to standard error. Where that cannot be written there is
/// nobody to tell, and the command goes on: the macros of the standard library would end it. Names
/// in it are what others have chosen; they begin no line and give a terminal no commands.
macro_rules! say {
    ($($message:tt)*) => {{
        use std::io::Write as _;
        let message = format!($($message)*);
        let shown = $crate::output::shown(message.as_ref());
        let _ = writeln!(std::io::stderr(), "atoll: {shown}");
    }};
}
