//! Every structure and number of the wire, and the tables of docs/PROTOCOL-FUSE.md, against
//! linux/fuse.h: the list of its names and values that stands beside this.

use std::collections::{BTreeMap, BTreeSet};

use atoll_vfs::model::ModelFs;
use atoll_vfs::server::{Caller, Identity};
use atoll_vfs::wire::fixed::Layout;
use atoll_vfs::wire::{Extensions, Fixed, REPLY_MAX};
use atoll_vfs::wire::{
    attributes, directory, files, header, locks, mappings, names, notices, opcode, session, xattrs,
};
use atoll_vfs::{Errno, Server, ServerOptions, Timespec};

/// `cargo xtask fuse-header` makes it.
const LIST: &str = include_str!("linux_fuse.txt");
const FUSE: &str = include_str!("../../../docs/PROTOCOL-FUSE.md");
const MESSAGES: &str = include_str!("../../../docs/PROTOCOL-MESSAGES.md");

/// Structures of linux/fuse.h that the codec has no use for.
const LEFT_OUT: [(&str, &str); 6] = [
    ("fuse_backing_map", "of an ioctl(2) of the device, for FUSE_PASSTHROUGH"),
    ("fuse_direntplus", "an EntryOut and a Dirent"),
    ("fuse_secctx", "of FUSE_SECURITY_CTX, which is not agreed to"),
    ("fuse_secctx_header", "of FUSE_SECURITY_CTX"),
    ("fuse_statfs_out", "nothing but a fuse_kstatfs"),
    ("fuse_supp_groups", "of FUSE_CREATE_SUPP_GROUP, which is not agreed to"),
];
/// Opcodes that say that a message is of another order of bytes.
const SWAPPED: &str = "BSWAP_RESERVED";

/// A structure: its length, and where its fields are, with their lengths.
#[derive(Default)]
struct Structure {
    size: usize,
    fields: Vec<(&'static str, usize, usize)>,
}

/// The structures of the list.
fn structures() -> BTreeMap<&'static str, Structure> {
    let mut known = BTreeMap::<_, Structure>::new();
    let mut last = "";
    for line in LIST.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let size = |word: &str| word.parse().expect("a number");
        match words[..] {
            ["struct", name, len] => {
                last = name;
                known.entry(name).or_default().size = size(len);
            }
            ["field", name, at, len] => {
                known.entry(last).or_default().fields.push((name, size(at), size(len)));
            }
            _ => {}
        }
    }
    known
}

/// The numbers of a kind: `init` (a bit), `opcode`, `notice` or `number`.
fn numbers(kind: &str) -> BTreeMap<&'static str, u64> {
    let of_kind = |line: &'static str| {
        let (name, value) = line.strip_prefix(kind)?.strip_prefix(' ')?.split_once(' ')?;
        Some((name, value.parse().expect("a number")))
    };
    LIST.lines().filter_map(of_kind).collect()
}

/// Fields that mean nothing, and whose names change when they come to mean something.
fn is_filler(name: &str) -> bool {
    let name = name.trim_start_matches('_');
    ["unused", "padding", "spare", "dummy", "reserved"]
        .iter()
        .any(|filler| name.starts_with(filler))
}

fn compare(ours: &Layout, theirs: &Structure) {
    let name = ours.c_name;
    // The form of SETXATTR without FUSE_SETXATTR_EXT ends earlier.
    if (name, ours.size) != ("fuse_setxattr_in", 8) {
        assert_eq!(ours.size, theirs.size, "the length of {name}");
    }
    let mut at = 0;
    let mut seen = BTreeSet::new();
    for (field, len) in ours.fields {
        // `type` is no name in Rust; the last unused words of INIT are Atoll's.
        let c_field = if *field == "kind" { "type" } else { field };
        let found = theirs.fields.iter().find(|(their, ..)| *their == c_field);
        match found {
            Some((_, offset, size)) if !is_filler(field) => {
                assert_eq!((at, *len), (*offset, *size), "{name}.{field}");
                seen.insert(c_field);
            }
            _ => {
                let inside = theirs.fields.iter().any(|(their, offset, size)| {
                    is_filler(their) && *offset <= at && at + len <= offset + size
                });
                assert!(inside, "{name}.{field} is something else in linux/fuse.h");
            }
        }
        at += len;
    }
    for (field, offset, _) in &theirs.fields {
        let counts = !is_filler(field) && *offset < ours.size;
        assert!(!counts || seen.contains(field), "{name}.{field} is missing");
    }
}

#[test]
fn layouts_are_those_of_linux() {
    let structures = structures();
    let all = [
        header::LAYOUTS,
        attributes::LAYOUTS,
        names::LAYOUTS,
        files::LAYOUTS,
        directory::LAYOUTS,
        xattrs::LAYOUTS,
        locks::LAYOUTS,
        mappings::LAYOUTS,
        notices::LAYOUTS,
        session::LAYOUTS,
    ];
    let mut seen: BTreeSet<&str> = LEFT_OUT.iter().map(|(name, _)| *name).collect();
    for ours in all.into_iter().flatten() {
        compare(ours, &structures[ours.c_name]);
        seen.insert(ours.c_name);
    }
    let missing: Vec<_> = structures.keys().filter(|name| !seen.contains(*name)).collect();
    assert!(missing.is_empty(), "structures that the codec does not have: {missing:?}");
}

#[test]
fn numbers_are_those_of_linux() {
    let of = |kind: &str, ours: &[(&'static str, u64)]| {
        let theirs: BTreeMap<_, _> =
            numbers(kind).into_iter().filter(|(name, _)| name.starts_with("FUSE_")).collect();
        let ours: BTreeMap<_, _> = ours.iter().copied().collect();
        let theirs: BTreeMap<_, _> = theirs
            .into_iter()
            .filter(|(name, _)| !name.contains(SWAPPED))
            .map(|(name, value)| (name, if kind == "init" { 1 << value } else { value }))
            .collect();
        assert_eq!(ours, theirs, "{kind}");
    };
    // All of them, and no others.
    of("init", session::CONSTANTS);
    of("opcode", opcode::CONSTANTS);
    of("notice", notices::CONSTANTS);
    let others = numbers("number");
    let some = [attributes::CONSTANTS, files::CONSTANTS, mappings::CONSTANTS];
    let alone = [
        ("FUSE_KERNEL_VERSION", u64::from(session::MAJOR)),
        ("FUSE_KERNEL_MINOR_VERSION", session::MINOR.into()),
        ("FUSE_LK_FLOCK", locks::FUSE_LK_FLOCK.into()),
    ];
    for (name, value) in some.into_iter().flatten().chain(&alone) {
        assert_eq!(others.get(name), Some(value), "{name}");
    }
}

/// The rows of a document's tables: their cells.
fn rows(document: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    document
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|line| line.split('|').map(str::trim).collect())
}

/// The rows of the section `heading` whose first cell is a number: that and the name.
fn table(heading: &str) -> BTreeMap<String, u64> {
    let (_, section) = FUSE.split_once(heading).expect("the heading");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    rows(section)
        .filter_map(|cells| Some((format!("FUSE_{}", cells[1]), cells[0].parse().ok()?)))
        .collect()
}

/// The requests that the first column of a table of PROTOCOL-MESSAGES.md names.
fn carried_out() -> BTreeSet<String> {
    let (_, section) = MESSAGES.split_once("\n## Requests").expect("the heading");
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    rows(section)
        .flat_map(|cells| cells[0].split(", ").map(|name| format!("FUSE_{name}")))
        .collect()
}

#[test]
fn the_document_has_every_number() {
    let named = |kind| {
        let all = numbers(kind).into_iter().filter(|(name, _)| !name.contains(SWAPPED));
        all.map(|(name, value)| (name.to_owned(), value)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(table("## Bits of INIT"), named("init"));
    let notices: BTreeMap<_, _> = table("## Notifications")
        .into_iter()
        .map(|(name, value)| (name.replace("FUSE_", "FUSE_NOTIFY_"), value))
        .collect();
    assert_eq!(notices, named("notice"));
    let (refused, carried_out) = (table("## Requests that are not"), carried_out());
    for (name, value) in named("opcode") {
        let refused = refused.get(&name.replace("CUSE_", "FUSE_CUSE_"));
        assert!(refused.is_none_or(|number| *number == value), "{name} is {value}");
        assert!(
            refused.is_some() != carried_out.contains(&name),
            "{name} has its line in one of the two tables of requests"
        );
    }
}

#[test]
fn what_is_not_carried_out_is_enosys() {
    let caller = Caller { identity: Identity::FromHeader, now: Timespec::default() };
    let mut server = Server::new(ServerOptions::default());
    let (mut reply, mut room) = ([0; REPLY_MAX], [0; 4096]);
    let mut ask = |opcode: u64, body: &[u8]| {
        let len = header::InHeader::SIZE + body.len();
        let head = header::InHeader {
            len: len as u32,
            opcode: opcode as u32,
            nodeid: 1,
            ..header::InHeader::default()
        };
        let mut message = vec![0; len];
        head.store(&mut message);
        message[header::InHeader::SIZE..].copy_from_slice(body);
        let mut fs = ModelFs::default();
        let answer = server.serve(&mut fs, &caller, &message, &[], &mut reply, &mut room);
        let answered = answer.expect("a message").message > 0;
        answered.then(|| header::OutHeader::load(&reply).error)
    };
    let mut init = [0; session::InitIn::SIZE];
    session::InitIn::new(0, Extensions::empty()).store(&mut init);
    assert_eq!(ask(opcode::FUSE_INIT.into(), &init), Some(0));
    let refused = table("## Requests that are not");
    for (name, number) in numbers("opcode") {
        let arguments = if name == "FUSE_REMOVEMAPPING" { 4 } else { 64 };
        let answer = ask(number, &[0; 64][..arguments]);
        let is_refused = refused.contains_key(&name.replace("CUSE_", "FUSE_CUSE_"));
        match name {
            "FUSE_NOTIFY_REPLY" | "FUSE_FORGET" => assert_eq!(answer, None, "{name}"),
            _ if is_refused => assert_eq!(answer, Some(-Errno::ENOSYS.raw()), "{name}"),
            // Without arguments that mean anything: EINVAL, or nothing is done.
            _ => {}
        }
        if name == "FUSE_DESTROY" {
            assert_eq!(ask(opcode::FUSE_INIT.into(), &init), Some(0));
        }
    }
}
