//! The facts of linux/fuse.h that the codec is held against: versions, numbers, layouts. The list
//! is kept with the tests, so that they mean the same on every machine, however old its headers
//! are; it is made anew when Linux has a newer header.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;

use crate::root;
use crate::steps::Failure;

/// The list, for the tests of the codec.
const LIST: &str = "crates/vfs/tests/linux_fuse.txt";
const HEAD: &str = "\
# Names and values of Linux's include/uapi/linux/fuse.h. `cargo xtask fuse-header HEADER` makes this.
# Of CUSE and of the rings of io_uring there are the numbers alone: Atoll speaks neither.
";

/// Makes the list from the header at `path`.
pub fn run(path: &Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure(format!("{}: {error}", path.display())))?;
    let list = root().join(LIST);
    std::fs::write(&list, HEAD.to_owned() + &facts(&text))
        .map_err(|error| Failure(format!("{}: {error}", list.display())))
}

/// The part of the header that a number is in.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Init,
    Opcodes,
    Notices,
    Others,
}

/// The facts in a header, one a line.
fn facts(text: &str) -> String {
    let (mut out, mut part) = (String::new(), Part::Others);
    let mut sizes: HashMap<&str, usize> = HashMap::new();
    // The structure that is being read: its name, its length so far, its fields.
    let mut open: Option<(&str, usize, String)> = None;
    for line in text.lines() {
        part = match line.trim() {
            "* INIT request/reply flags" => Part::Init,
            "* CUSE INIT request/reply flags" | "};" => Part::Others,
            "enum fuse_opcode {" => Part::Opcodes,
            "enum fuse_notify_code {" => Part::Notices,
            _ => part,
        };
        let line = line.split("/*").next().unwrap_or("").trim();
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["struct", name, "{"] = words[..] {
            open = Some((name, 0, String::new()));
        } else if line == "};" {
            if let Some((name, size, fields)) = open.take() {
                sizes.insert(name, size);
                if name.starts_with("fuse_") && !name.starts_with("fuse_uring") {
                    let _ = write!(out, "struct {name} {size}\n{fields}");
                }
            }
        } else if let (Some((_, end, fields)), true) = (&mut open, line.ends_with(';')) {
            let Some((name, size)) = field(&words, &sizes) else { continue };
            let _ = writeln!(fields, "field {name} {end} {size}");
            *end += size;
        } else if let Some((name, value)) = number(line) {
            let _ = match part {
                Part::Init => writeln!(out, "init {name} {}", value.trailing_zeros()),
                Part::Opcodes => writeln!(out, "opcode {name} {value}"),
                Part::Notices => writeln!(out, "notice {name} {value}"),
                Part::Others => writeln!(out, "number {name} {value}"),
            };
        }
    }
    out
}

/// The name and the length of a field that is declared so. Those without a length of their own,
/// with which a structure ends, have none.
fn field<'t>(words: &[&'t str], sizes: &HashMap<&str, usize>) -> Option<(&'t str, usize)> {
    let (kind, name) = match words[..] {
        ["struct", kind, name] | [kind, name] => (kind, name.trim_end_matches(';')),
        _ => return None,
    };
    let one = match kind {
        "uint64_t" | "int64_t" => 8,
        "uint32_t" | "int32_t" => 4,
        "uint16_t" | "int16_t" => 2,
        "uint8_t" | "char" => 1,
        kind => *sizes.get(kind)?,
    };
    match name.split_once('[') {
        Some((name, count)) => {
            Some((name, one * count.trim_end_matches(']').parse::<usize>().ok()?))
        }
        None => Some((name, one)),
    }
}

/// The name and the value in `#define NAME VALUE` or `NAME = VALUE,`.
fn number(line: &str) -> Option<(&str, u64)> {
    let (name, text) = match line.strip_prefix("#define ") {
        Some(rest) => rest.split_once(char::is_whitespace)?,
        None => line.split_once('=')?,
    };
    let text = text.trim().trim_matches(|c| matches!(c, '(' | ')' | ','));
    let value = match text.split_once("<<") {
        Some((one, bit)) => {
            one.trim_end_matches(['U', 'L', 'u', 'l', ' ']).parse::<u64>().ok()?
                << bit.trim().parse::<u32>().ok()?
        }
        None => text.parse().ok()?,
    };
    Some((name.trim(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list is of a newer header than a machine's; but what the machine knows is in it.
    #[test]
    fn numbers_of_the_machine_are_in_the_list() {
        let Ok(text) = std::fs::read_to_string("/usr/include/linux/fuse.h") else { return };
        let list = std::fs::read_to_string(root().join(LIST)).expect("the list");
        for fact in facts(&text).lines() {
            let mut words = fact.split(' ');
            let kind = words.next();
            // A version grows, a code after the last one moves, filler comes to mean something.
            let moves = ["FUSE_KERNEL_MINOR_VERSION", "FUSE_NOTIFY_CODE_MAX"];
            if kind == Some("field") || words.next().is_some_and(|name| moves.contains(&name)) {
                continue;
            }
            assert!(list.lines().any(|line| line == fact), "{fact}");
        }
    }
}
