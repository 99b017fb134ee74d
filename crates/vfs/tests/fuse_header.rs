//! Every structure and number of the wire against linux/fuse.h of the machine.

use std::collections::HashMap;

use atoll_vfs::wire::fixed::Layout;
use atoll_vfs::wire::{
    attributes, directory, files, header, locks, names, opcode, session, xattrs,
};

/// Where a field is: offset and length in bytes.
type Fields = Vec<(String, usize, usize)>;

/// The structures in `text`, each with its length and fields.
fn structures(text: &str) -> HashMap<String, (usize, Fields)> {
    let mut known: HashMap<String, (usize, Fields)> = HashMap::new();
    let mut open: Option<(String, usize, Fields)> = None;
    for line in text.lines() {
        let line = line.split("/*").next().unwrap_or("").trim();
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["struct", name, "{"] = words[..] {
            open = Some((name.to_owned(), 0, Vec::new()));
        } else if line == "};" {
            if let Some((name, size, fields)) = open.take() {
                known.insert(name, (size, fields));
            }
        } else if let (Some((_, size, fields)), true) = (&mut open, line.ends_with(';')) {
            let (kind, name) = match words[..] {
                ["struct", kind, name] => (kind, name),
                [kind, name] => (kind, name),
                _ => continue,
            };
            let one = match kind {
                "uint64_t" | "int64_t" => 8,
                "uint32_t" | "int32_t" => 4,
                "uint16_t" | "int16_t" => 2,
                "uint8_t" | "char" => 1,
                kind => known.get(kind).map_or(0, |(size, _)| *size),
            };
            let name = name.trim_end_matches(';');
            let (name, count) = match name.split_once('[') {
                Some((name, count)) => (name, count.trim_end_matches(']').parse().unwrap_or(0)),
                None => (name, 1),
            };
            fields.push((name.to_owned(), *size, one * count));
            *size += one * count;
        }
    }
    known
}

/// The value of a number in C: decimal, hexadecimal or a shifted bit.
fn value(text: &str) -> Option<u64> {
    let text = text.trim_matches(|c| matches!(c, '(' | ')' | ',')).replace("ULL", "");
    if let Some((one, bit)) = text.split_once("<<") {
        return Some(one.trim().parse::<u64>().ok()? << bit.trim().parse::<u32>().ok()?);
    }
    text.trim().parse().ok()
}

/// The numbers in `text`: `#define NAME value` and `NAME = value,`.
fn numbers(text: &str) -> HashMap<String, u64> {
    let mut known = HashMap::new();
    for line in text.lines() {
        let line = line.split("/*").next().unwrap_or("").trim();
        let found = match line.strip_prefix("#define ") {
            Some(rest) => rest.split_once(|c: char| c.is_whitespace()),
            None => line.split_once('='),
        };
        if let Some((name, text)) = found
            && let Some(value) = value(text.trim())
        {
            known.insert(name.trim().to_owned(), value);
        }
    }
    known
}

/// Fields that mean nothing, and whose names change when they come to mean something.
fn is_filler(name: &str) -> bool {
    ["unused", "padding", "spare", "dummy", "reserved", "__reserved"]
        .iter()
        .any(|filler| name.starts_with(filler))
}

fn compare(ours: &Layout, theirs: &(usize, Fields)) {
    let (size, fields) = theirs;
    let name = ours.c_name;
    // The form of SETXATTR before FUSE_SETXATTR_EXT, to which Atoll does not agree.
    if name == "fuse_setxattr_in" {
        assert_eq!(ours.size, 8);
    } else {
        assert_eq!(ours.size, *size, "the length of {name}");
    }
    let mut at = 0;
    for (field, len) in ours.fields {
        // `type` is no name in Rust; the last unused words of INIT are Atoll's.
        let c_field = if *field == "kind" { "type" } else { field };
        let theirs = fields.iter().find(|(theirs, ..)| theirs == c_field);
        match theirs {
            Some((_, offset, size)) if !is_filler(field) => {
                assert_eq!((at, *len), (*offset, *size), "{name}.{field}");
            }
            _ => {
                let inside = fields.iter().any(|(theirs, offset, size)| {
                    is_filler(theirs) && *offset <= at && at + len <= offset + size
                });
                let newer = *field == "unused" && name == "fuse_init_out";
                assert!(inside || newer, "{name}.{field} is something else in linux/fuse.h");
            }
        }
        at += len;
    }
    for (field, offset, size) in fields
        .iter()
        .filter(|(field, offset, _)| !is_filler(field) && *offset < ours.size && field != "name")
    {
        let mut at = 0;
        let found = ours.fields.iter().any(|(own, len)| {
            let here = at == *offset && len == size;
            at += len;
            let own = if *own == "kind" { "type" } else { own };
            // A field that became meaningful in a newer header than Atoll knows is 0 here.
            here && (own == field || is_filler(own))
        });
        assert!(found, "{name}.{field} is missing");
    }
}

#[test]
fn layouts_and_numbers_are_those_of_linux() {
    // Of linux-libc-dev, without which no C library's headers are installed.
    let text = std::fs::read_to_string("/usr/include/linux/fuse.h")
        .expect("linux/fuse.h is installed with the C compiler's headers");
    let structures = structures(&text);
    let all = [
        header::LAYOUTS,
        attributes::LAYOUTS,
        names::LAYOUTS,
        files::LAYOUTS,
        directory::LAYOUTS,
        xattrs::LAYOUTS,
        locks::LAYOUTS,
        session::LAYOUTS,
    ];
    let mut compared = 0;
    for ours in all.into_iter().flatten() {
        match structures.get(ours.c_name) {
            Some(theirs) => {
                compare(ours, theirs);
                compared += 1;
            }
            // Of FUSE 7.39.
            None => assert_eq!(ours.c_name, "fuse_sx_time"),
        }
    }
    assert!(compared >= 40, "only {compared} structures were found");
    let numbers = numbers(&text);
    for (name, value) in
        [opcode::CONSTANTS, attributes::CONSTANTS, session::CONSTANTS].into_iter().flatten()
    {
        assert_eq!(numbers.get(*name), Some(value), "{name}");
    }
    let others = [
        ("FUSE_KERNEL_VERSION", u64::from(session::MAJOR)),
        ("FUSE_FSYNC_FDATASYNC", files::FUSE_FSYNC_FDATASYNC.into()),
        ("FUSE_LK_FLOCK", locks::FUSE_LK_FLOCK.into()),
    ];
    for (name, value) in others {
        assert_eq!(numbers.get(name), Some(&value), "{name}");
    }
}
