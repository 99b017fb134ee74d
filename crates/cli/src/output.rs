//! The output of commands: JSON for programs, dates and modes for people.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use atoll_vfs::{FileType, Timespec};
use serde::Serialize;

use crate::failure::Failure;

/// Prints `value` as JSON, on a line of its own.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::new)?;
    line(text.as_bytes())
}

/// Prints a line. A reader that has gone away wanted no more.
pub fn line(text: &[u8]) -> Result<(), Failure> {
    print(&[text, b"\n"].concat())
}

/// Prints lines, which end as such.
pub fn print(lines: &[u8]) -> Result<(), Failure> {
    let written = io::stdout().write_all(lines);
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::new("")),
        other => other.map_err(|error| Failure::new(format!("cannot write the output: {error}"))),
    }
}

/// `name` as text for programs: bytes that are no UTF-8 become `\xNN`, and a backslash becomes two,
/// so that no two names are one text.
pub fn text(name: &OsStr) -> String {
    escaped(name, |c| c == '\\')
}

/// `name` for people: what would steer a terminal becomes `\xNN`, as do bytes that are no UTF-8.
pub fn shown(name: &OsStr) -> String {
    escaped(name, char::is_control)
}

/// `name` for standard output: raw, unless a person looks.
pub fn to_print(name: &[u8]) -> Cow<'_, [u8]> {
    static PERSON: OnceLock<bool> = OnceLock::new();
    match PERSON.get_or_init(|| io::stdout().is_terminal()) {
        true => Cow::Owned(shown(OsStr::from_bytes(name)).into_bytes()),
        false => Cow::Borrowed(name),
    }
}

fn escaped(name: &OsStr, special: impl Fn(char) -> bool) -> String {
    let mut out = String::new();
    let escape = |out: &mut String, bytes: &[u8]| {
        bytes.iter().for_each(|byte| out.push_str(&format!("\\x{byte:02x}")));
    };
    for chunk in name.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' if special(c) => out.push_str("\\\\"),
                c if special(c) => escape(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
                c => out.push(c),
            }
        }
        escape(&mut out, chunk.invalid());
    }
    out
}

/// Type and permissions as ls(1) writes them.
pub fn mode(kind: FileType, mode: u32) -> String {
    let first = match kind {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
    };
    let mut out = String::from(first);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (bits & 1 != 0, mode & special != 0) {
            (true, false) => 'x',
            (false, false) => '-',
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
        });
    }
    out
}

/// The name of a type of file, for programs.
pub fn kind(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
    }
}

/// A time as `2026-11-21 02:18:05`, in UTC.
pub fn date(time: Timespec) -> String {
    let days = time.sec.div_euclid(86400);
    let second = time.sec.rem_euclid(86400);
    // Years that begin in March make the leap day the last of its year; eras of 400 years repeat.
    let shifted = days + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year, if month < 10 { month + 3 } else { month - 9 });
    let year = if month <= 2 { year + 1 } else { year };
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{date:02} {hour:02}:{minute:02}:{:02}", second % 60)
}

/// A UUID as usual.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(<[String]>::concat).join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (sec, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_795_227_485, "2026-11-21 02:18:05"),
            (-1, "1969-12-31 23:59:59"),
            (-2_203_891_200, "1900-03-01 00:00:00"),
        ] {
            assert_eq!(date(Timespec { sec, nsec: 0 }), text);
        }
        let _ = date(Timespec { sec: i64::MAX / 2, nsec: 0 });
    }

    #[test]
    fn modes_and_names() {
        assert_eq!(mode(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode(FileType::Regular, 0o6644), "-rwSr-Sr--");
        assert_eq!(mode(FileType::Symlink, 0o755), "lrwxr-xr-x");
        assert_eq!(text(OsStr::from_bytes(b"a\xff\xfeb\xc3\xa4")), "a\\xff\\xfeb\u{e4}");
        assert_ne!(text(OsStr::from_bytes(b"a\xff")), text(OsStr::from_bytes(b"a\\xff")));
        assert_eq!(shown(OsStr::from_bytes(b"a\x1b[2J\\\xff")), "a\\x1b[2J\\\\xff");
        assert_eq!(uuid(&[0xab; 16]), "abababab-abab-abab-abab-abababababab");
    }
}
