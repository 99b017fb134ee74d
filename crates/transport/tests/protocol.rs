//! docs/PROTOCOL.md against the code, both ways: every constant of the layout is in a row of a
//! table, and every row is a constant with the same value.

use std::collections::BTreeMap;

use atoll_transport::channel::layout;

const DOCUMENT: &str = include_str!("../../../docs/PROTOCOL.md");
const LAYOUT: &str = include_str!("../src/channel/layout.rs");

/// The constants with their values, as the compiler sees them.
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
        LANES_MAX,
        SLOTS_MAX,
        AREA_MIN,
        AREA_MAX,
        MESSAGE_MIN,
        MESSAGE_MAX,
        WINDOW_MAX,
        TOTAL_MAX,
        header::MAGIC,
        header::VERSION,
        header::RING,
        header::LANES,
        header::SLOTS,
        header::AREA,
        header::WINDOW,
        header::TOTAL,
        header::STATUS,
        header::LEN,
        header::MAGIC_VALUE,
        header::VERSION_VALUE,
        header::RING_SPSC,
        header::AWAKE,
        header::ASLEEP,
        request::MARK,
        request::DATA,
        request::ROOM,
        request::MESSAGE,
        request::MESSAGE_FIRST,
        request::LEN,
        answer::MARK,
        answer::DATA_LEN,
        answer::MESSAGE,
        answer::MESSAGE_FIRST,
        answer::LEN,
        sleeper::LEN,
        sleeper::AWAKE,
        sleeper::ASLEEP,
    ]
}

/// The names of the public constants in the source.
fn declared() -> Vec<String> {
    let mut module = "";
    let mut names = Vec::new();
    for line in LAYOUT.lines() {
        if let Some(name) = line.strip_prefix("pub mod ") {
            module = name.trim_end_matches(" {");
        } else if line == "}" {
            module = "";
        } else if let Some(rest) = line.trim().strip_prefix("pub const ")
            && !rest.starts_with("fn ")
        {
            let name = rest.split(':').next().unwrap();
            let separator = if module.is_empty() { "" } else { "::" };
            names.push(format!("{module}{separator}{name}"));
        }
    }
    names.sort();
    names
}

/// The rows of the document that begin with a number: names and numbers.
fn documented() -> BTreeMap<String, u64> {
    let mut rows = BTreeMap::new();
    for line in DOCUMENT.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let number = match cells[0].strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => cells[0].parse(),
        };
        let Ok(number) = number else { continue };
        let name = cells.iter().find_map(|cell| cell.strip_prefix('`')?.strip_suffix('`'));
        let old = rows.insert(name.expect("a row names a constant").to_owned(), number);
        assert_eq!(old, None, "{line}");
    }
    rows
}

#[test]
fn every_constant_stands_in_the_document() {
    let values = values();
    let names: Vec<String> = values.keys().cloned().collect();
    assert_eq!(names, declared(), "the list in this test is the source's");
    assert_eq!(documented(), values);
}

/// Fields do not overlap: types in the document say how long they are.
#[test]
fn fields_lie_apart() {
    for table in DOCUMENT.split("| offset | type |").skip(1) {
        let mut end = 0;
        for line in table.lines().skip(2).take_while(|line| line.starts_with('|')) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let offset: usize = cells[0].parse().unwrap();
            let len = match cells[1] {
                "u32" => 4,
                "u64" => 8,
                bytes => bytes.strip_suffix(" bytes").unwrap().parse().unwrap(),
            };
            assert!(offset >= end && offset.is_multiple_of(len.min(8)), "{line}");
            end = offset + len;
        }
        let ends = [layout::header::STATUS + 4, layout::request::LEN, layout::answer::LEN];
        assert!(ends.contains(&end), "{end}");
    }
}
