//! docs/FORMAT.md against the code, both ways: every constant of `layout` and `key` is in a row of
//! a table, and every row is a constant, with the same value and type.

use std::collections::BTreeMap;

use atoll_fs::layout;

const DOCUMENT: &str = include_str!("../../../docs/FORMAT.md");
const LAYOUT: &str = include_str!("../src/layout.rs");
const KEY: &str = include_str!("../src/key.rs");

/// The constants of `layout` with their values, as the compiler sees them.
fn values() -> BTreeMap<String, u64> {
    macro_rules! values {
        ($($($part:ident)::+),* $(,)?) => {
            BTreeMap::from([$((
                stringify!($($part)::+).replace(' ', ""),
                layout::$($part)::+ as u64,
            )),*])
        };
    }
    values![
        VERSION,
        DIRECTORY_SIZE,
        RING_BLOCKS_MIN,
        RING_BLOCKS_DEFAULT_MAX,
        RING_BLOCKS_STORED,
        GROUP_AREA_MIN,
        BLOCK_COUNT_MAX,
        common::CHECKSUM,
        common::BLOCK,
        common::MAGIC,
        magic::SUPERBLOCK,
        magic::JOURNAL_HEADER,
        magic::JOURNAL_RECORD,
        magic::NODE,
        magic::MAP,
        magic::SUMMARY,
        superblock::VERSION,
        superblock::COMPATIBLE,
        superblock::READ_COMPATIBLE,
        superblock::INCOMPATIBLE,
        superblock::GENERATION,
        superblock::BLOCK_COUNT,
        superblock::RING_START,
        superblock::RING_BLOCKS,
        superblock::GROUP_START,
        superblock::HASH_KEY,
        superblock::UUID,
        superblock::LABEL,
        superblock::LABEL_LEN,
        superblock::CREATED,
        superblock::RESERVED,
        superblock::PROJECTS,
        journal_header::GENERATION,
        journal_header::INCARNATION,
        journal_header::TAIL,
        journal_header::SEQUENCE,
        journal_header::CHAIN,
        journal_header::STATE,
        journal_header::FLAGS,
        journal_header::BLOCK_COUNT,
        journal_header::UUID,
        journal_header::OWNER,
        journal_header::CLEAN,
        journal_header::FAILED,
        state::ROOT,
        state::HEIGHT,
        state::NEXT_INO,
        state::FREE_BLOCKS,
        state::INODES,
        state::GROUPS,
        state::LEN,
        record::MAGIC,
        record::FLAGS,
        record::LEN,
        record::SEQUENCE,
        record::CHECKSUM,
        record::COMMITTED,
        record::HEADER_LEN,
        record::HAS_STATE,
        record::MARK,
        record::FLUSHED,
        record::COVERS,
        record::COVERS_LEN,
        record::ECHO,
        record::CARRIES,
        record::HOME,
        record::ECHO_LEN,
        record::HOME_LEN,
        record::ENTRY_BLOCK,
        record::ENTRY_OFFSET,
        record::ENTRY_BYTES,
        record::ENTRY_LEN,
        record::INIT,
        record::DATA,
        record::BLOCK_MASK,
        map::GENERATION,
        map::BITS,
        map::GROUP_BLOCKS,
        map::GROUP_BLOCKS_MIN,
        summary::GENERATION,
        summary::BITS,
        summary::GROUPS,
        node::LEVEL,
        node::END,
        node::RESERVED,
        node::CELLS,
        node::CAPACITY,
        node::VALUE_MAX,
        node::HEIGHT_MAX,
        cell::LEN,
        cell::LIVE,
        cell::KEY_INO,
        cell::KEY_ITEM,
        cell::VALUE,
        inode::MODE,
        inode::NLINK,
        inode::UID,
        inode::GID,
        inode::RDEV,
        inode::PROJECT,
        inode::SIZE,
        inode::BLOCKS,
        inode::PARENT,
        inode::MTIME,
        inode::CTIME,
        inode::ATIME,
        inode::BTIME,
        inode::LEN,
        dirent::INO,
        dirent::TYPE,
        dirent::NAME,
        extent::START,
        extent::UNWRITTEN,
        extent::LEN,
        extent::VALUE_LEN,
        xattr::VALUE_LEN,
        xattr::NAME_LEN,
        xattr::NAME,
        project::ROOT,
        project::BYTES,
        project::INODES,
        project::FLAGS,
        project::LEN,
        project::COMPLETE,
    ]
}

/// The names of the public constants in the source of `layout`, and the type that the comment of an
/// offset begins with.
fn declared() -> BTreeMap<String, Option<String>> {
    let mut found = BTreeMap::new();
    let (mut module, mut comment) = (None, Vec::new());
    for line in LAYOUT.lines() {
        let indented = line.starts_with("    ");
        let text = line.trim();
        if let Some(name) = line.strip_prefix("pub mod ") {
            module = Some(name.trim_end_matches(" {").to_owned());
        } else if line == "}" {
            module = None;
        } else if let Some(doc) = text.strip_prefix("///") {
            comment.push(doc.trim().to_owned());
            continue;
        } else if let Some(rest) = text.strip_prefix("pub const ")
            && !rest.starts_with("fn ")
            && indented == module.is_some()
        {
            let name = rest.split(':').next().unwrap();
            let path = module.iter().map(String::as_str).chain([name]).collect::<Vec<_>>();
            found.insert(path.join("::"), type_of(&comment.join(" ")));
        }
        comment.clear();
    }
    found
}

/// The type at the front of a comment: `` `u32`: `` and the like.
fn type_of(comment: &str) -> Option<String> {
    let (types, _) = comment.split_once(':').filter(|(t, _)| t.starts_with('`'))?;
    Some(match types.replace('`', "").as_str() {
        "i64, u32" => "time".into(),
        other => other.into(),
    })
}

/// The kinds and numbers of `key`, which are plain in its source.
fn keys() -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let kinds = KEY.split("pub enum Kind {").nth(1).unwrap().split('}').next().unwrap();
    for line in kinds.lines().filter(|l| !l.contains("///")) {
        if let Some((name, value)) = line.trim().trim_end_matches(',').split_once(" = ") {
            found.insert(format!("Kind::{name}"), value.parse().unwrap());
        }
    }
    for line in KEY.lines() {
        if let Some(rest) = line.strip_prefix("pub const ")
            && let Some((name, value)) = rest.trim_end_matches(';').split_once(" = ")
        {
            let name = name.split(':').next().unwrap();
            let value = match value {
                "(1 << OFFSET_BITS) - 1" => (1 << 56) - 1,
                number => number.parse().unwrap(),
            };
            found.insert(name.into(), value);
        }
    }
    assert!(KEY.contains("const OFFSET_BITS: u32 = 56;"));
    found
}

/// A row of a table of the document.
#[derive(Debug)]
struct Row {
    value: u64,
    /// For offsets.
    kind: Option<String>,
}

fn number(text: &str) -> u64 {
    if let Some(ascii) = text.strip_prefix('"') {
        let bytes = ascii.trim_end_matches('"').bytes();
        return bytes.rev().fold(0, |v, b| v << 8 | u64::from(b));
    }
    if let Some(power) = text.strip_prefix("2^") {
        let (power, less) = power.split_once('-').unwrap_or((power, "0"));
        return (1 << power.parse::<u32>().unwrap()) - less.parse::<u64>().unwrap();
    }
    text.parse().unwrap_or_else(|_| panic!("{text} is no number"))
}

fn rows() -> BTreeMap<String, Row> {
    let mut found = BTreeMap::new();
    let mut offsets = false;
    for line in DOCUMENT.lines().filter(|l| l.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells[..] {
            ["offset", "type", "name", "meaning"] => offsets = true,
            ["value", "type", "name", "meaning"] => offsets = false,
            ["---", ..] => {}
            [value, kind, name, meaning] => {
                assert!(!meaning.is_empty(), "{line}");
                let kind = Some(kind.to_owned()).filter(|_| offsets);
                let row = Row { value: number(value), kind };
                let old = found.insert(name.trim_matches('`').to_owned(), row);
                assert!(old.is_none(), "twice in the document: {line}");
            }
            _ => panic!("not a row of four cells: {line}"),
        }
    }
    found
}

#[test]
fn the_list_of_constants_is_complete() {
    let (values, declared) = (values(), declared());
    let listed: Vec<&String> = values.keys().collect();
    let in_source: Vec<&String> = declared.keys().collect();
    assert_eq!(listed, in_source);
    assert!(listed.len() > 80);
}

#[test]
fn the_document_says_what_the_code_does() {
    let mut constants = values();
    constants.extend(keys());
    let rows = rows();
    for (name, value) in &constants {
        let row = rows.get(name).unwrap_or_else(|| panic!("{name} is not in the document"));
        assert_eq!(row.value, *value, "{name}");
    }
    for name in rows.keys() {
        assert!(constants.contains_key(name), "the document has {name}, the code has not");
    }
}

#[test]
fn the_document_gives_the_types() {
    let declared = declared();
    for (name, row) in rows() {
        let Some(kind) = row.kind else { continue };
        // A field that runs to the end, or is a structure, has no type in its comment.
        let open_ended = ["bits", "cells", "bytes", "state"].contains(&kind.as_str());
        match &declared[&name] {
            Some(in_code) => assert_eq!(*in_code, kind, "{name}"),
            None => assert!(open_ended, "{name} is said to be a {kind}"),
        }
    }
}
