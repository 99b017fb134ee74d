//! Tests of the View.
extern crate std;

use core::ptr::NonNull;
use std::boxed::Box;
use std::vec::Vec;

use super::layout::*;
use super::*;
use crate::Shared;

#[repr(align(4096))]
#[derive(Clone, Copy)]
struct Aligned(#[allow(dead_code)] [u8; PAGE]);

/// Zeroed memory that lives as long as the tests.
#[allow(unsafe_code)]
pub fn memory(len: usize) -> Shared<'static> {
    let pages = std::vec![Aligned([0; PAGE]); len.div_ceil(PAGE)].leak();
    // SAFETY: leaked, and used by nothing else.
    unsafe { Shared::new(NonNull::from(pages).cast(), len) }
}

fn pair(size: Size) -> (ViewWriter<'static>, ViewReader<'static>) {
    let memory = memory(size.bytes());
    let hints = Some(self::memory(size.hint_bytes()));
    let writer = ViewWriter::new(memory, size, hints).unwrap();
    (writer, ViewReader::new(memory, hints).unwrap())
}

const SMALL: Size = Size { generations: 8, attrs: 8, entries: 8, long_entries: 8, pages: 16 };

fn sized(size: u64) -> Attributes {
    Attributes { size, ..Attributes::default() }
}

#[test]
fn smoke() {
    let (mut w, r) = pair(SMALL);
    assert_eq!(r.attr(5), None);
    w.put_attr(5, &sized(5000));
    assert_eq!(r.attr(5), Some(sized(5000)));
    let mut buf = [0u8; 8192];
    assert_eq!(r.read(5, 0, &mut buf), None);
    w.put_page(5, 0, &[7; 4096]);
    w.put_page(5, 1, &[8; 904]);
    assert_eq!(r.read(5, 0, &mut buf), Some(5000));
    assert_eq!(buf[..5000], [[7u8; 4096].as_slice(), &[8; 904]].concat()[..]);
    assert_eq!(r.lookup(1, b"name"), None);
    w.put_entry(1, b"name", 5);
    w.put_missing(1, b"other");
    assert_eq!(r.lookup(1, b"name"), Some(Entry::Found(5)));
    assert_eq!(r.lookup(1, b"other"), Some(Entry::Missing));
    assert_eq!(r.lookup_attr(1, b"name"), Some(Some((5, sized(5000)))));
    w.drop_entries(1);
    assert_eq!(r.lookup(1, b"name"), None);
}
