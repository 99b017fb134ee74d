//! What is built into an image: a command line and a volume with the program, so that the image is
//! one file that boots without anything else.
//!
//! The image has a note (owner `Atoll`, type 1) with two words of eight bytes: the physical address
//! of the content and its length. Both are zero in an image that was not built upon. The content
//! is a segment of its own at [`ADDRESS`], where any loader of ELF files puts it:
//!
//! | bytes | content |
//! |---|---|
//! | 0-7 | length of the command line |
//! | 8-15 | length of the volume |
//! | 16- | the command line; zeros up to the next page |
//! | the rest | the volume |
//!
//! All words are little-endian.

use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;

use crate::PAGE;
use crate::elf::{self, ElfError};

/// The physical address of the content: the image itself lies below.
pub const ADDRESS: u64 = elf::START;
/// The longest command line.
pub const LINE_MAX: usize = 64 << 10;

/// Bytes of a program header, and of the content's own.
const ENTRY: usize = 56;
const HEAD: usize = 16;
// Kinds of segments.
const LOAD: u32 = 1;
const NOTE: u32 = 4;
/// The note: lengths of its owner's name and of its words, its type, the name.
const OWN: [u8; 20] = *b"\x06\0\0\0\x10\0\0\0\x01\0\0\0Atoll\0\0\0";

/// Why nothing can be built into a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// It is no image of this project.
    NoImage,
    /// Something has been built into it already.
    Already,
}

impl From<ElfError> for BuildError {
    fn from(_: ElfError) -> BuildError {
        BuildError::NoImage
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BuildError::NoImage => "not an image into which a program can be built",
            BuildError::Already => "a program has been built into it already",
        })
    }
}

impl core::error::Error for BuildError {}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// Where in the file `image` the two words of the note are, and where its program headers are.
fn note(image: &[u8]) -> Result<(usize, Range<usize>), BuildError> {
    let header = elf::header(image)?;
    let start = usize::try_from(header.table).map_err(|_| BuildError::NoImage)?;
    let table = start..start.saturating_add(header.count * ENTRY);
    let entries = image.get(table.clone()).ok_or(BuildError::NoImage)?;
    for entry in entries.chunks_exact(ENTRY).filter(|entry| half(entry, 0) == Some(NOTE)) {
        let (Some(offset), Some(len)) = (word(entry, 8), word(entry, 32)) else { continue };
        let (Ok(offset), Ok(len)) = (usize::try_from(offset), usize::try_from(len)) else {
            continue;
        };
        let notes = offset.checked_add(len).and_then(|end| image.get(offset..end));
        // The notes of an image are few and aligned by four bytes.
        let found = notes.and_then(|notes| {
            let at =
                notes.windows(OWN.len() + 16).step_by(4).position(|it| it.starts_with(&OWN))?;
            Some(offset + 4 * at + OWN.len())
        });
        if let Some(at) = found {
            return Ok((at, table));
        }
    }
    Err(BuildError::NoImage)
}

/// Whether something has been built into the file `image`.
pub fn is_in(image: &[u8]) -> bool {
    note(image).is_ok_and(|(at, _)| word(image, at) != Some(0))
}

/// What a file begins with that is `image` with content of `len` bytes: a multiple of the page.
/// The content follows.
///
/// # Errors
/// [`BuildError`].
pub fn front(image: &[u8], len: u64) -> Result<Vec<u8>, BuildError> {
    let (at, table) = note(image)?;
    if word(image, at) != Some(0) || word(image, at + 8) != Some(0) {
        return Err(BuildError::Already);
    }
    // Of a file that was cut off the loader would take what is appended for the missing part.
    let is_whole = |entry: &[u8]| {
        let end = word(entry, 8).zip(word(entry, 32)).and_then(|(at, len)| at.checked_add(len));
        half(entry, 0) != Some(LOAD) || end.is_some_and(|end| end <= image.len() as u64)
    };
    if !image[table.clone()].chunks_exact(ENTRY).all(is_whole) {
        return Err(BuildError::NoImage);
    }
    let count = u16::try_from(table.len() / ENTRY + 1).map_err(|_| BuildError::NoImage)?;
    let mut file = image.to_vec();
    file[at..at + 8].copy_from_slice(&ADDRESS.to_le_bytes());
    file[at + 8..at + 16].copy_from_slice(&len.to_le_bytes());
    // A new table, since the old one has no room.
    let words = |file: &mut Vec<u8>, words: &[u64]| {
        for word in words {
            file.extend_from_slice(&word.to_le_bytes());
        }
    };
    file.resize(file.len().next_multiple_of(8), 0);
    let begin = file.len() as u64;
    file.extend_from_slice(&image[table]);
    let end = begin + u64::from(count) * ENTRY as u64;
    let offset = end.next_multiple_of(PAGE);
    // Read and written.
    words(&mut file, &[u64::from(LOAD) | 6 << 32, offset, ADDRESS, ADDRESS, len, len, PAGE]);
    file.resize(offset as usize, 0);
    file[32..40].copy_from_slice(&begin.to_le_bytes());
    file[56..58].copy_from_slice(&count.to_le_bytes());
    Ok(file)
}

/// What the content begins with that has the command line `line` and a volume of `volume` bytes: a
/// multiple of the page. The volume follows.
pub fn head(line: &str, volume: u64) -> Vec<u8> {
    let mut head = Vec::new();
    head.extend_from_slice(&(line.len() as u64).to_le_bytes());
    head.extend_from_slice(&volume.to_le_bytes());
    head.extend_from_slice(line.as_bytes());
    head.resize(head.len().next_multiple_of(PAGE as usize), 0);
    head
}

/// Where the command line and the volume are in the content of `len` bytes, which begins with
/// `head`. `None` where it is none.
pub fn parts(head: &[u8], len: u64) -> Option<(Range<usize>, Range<usize>)> {
    let line = usize::try_from(word(head, 0)?).ok().filter(|&line| line <= LINE_MAX)?;
    let begin = (HEAD + line).next_multiple_of(PAGE as usize);
    let volume = usize::try_from(word(head, 8)?).ok()?;
    let end = begin.checked_add(volume).filter(|&end| end as u64 == len)?;
    Some((HEAD..HEAD + line, begin..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// An image: a header, a table of two entries, two notes, some more.
    fn image() -> Vec<u8> {
        let mut file = vec![0; 64 + 2 * ENTRY];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[16] = 2;
        file[18] = 62;
        file[32] = 64;
        file[54] = 56;
        file[56] = 2;
        let (load, note) = (64, 64 + ENTRY);
        file[load] = LOAD as u8;
        file[note] = NOTE as u8;
        file[note + 8] = file.len() as u8;
        file[note + 32] = 20 + 36;
        file.extend_from_slice(b"\x04\0\0\0\x04\0\0\0\x12\0\0\0Xen\0abcd");
        file.extend_from_slice(&OWN);
        file.extend_from_slice(&[0; 16]);
        file.extend_from_slice(b"more");
        file
    }

    #[test]
    fn content_is_a_segment_of_its_own() {
        let plain = image();
        assert!(!is_in(&plain));
        let built = front(&plain, 12345).unwrap();
        assert!(is_in(&built) && built.len().is_multiple_of(PAGE as usize));
        // All but the note and where the table is stays.
        let same = |range: Range<usize>| assert_eq!(plain[range.clone()], built[range]);
        same(0..32);
        same(40..56);
        same(58..64 + 2 * ENTRY + 40);
        same(plain.len() - 4..plain.len());
        let header = elf::header(&built).unwrap();
        assert_eq!(header.count, 3);
        let table = &built[header.table as usize..][..3 * ENTRY];
        assert_eq!(table[..2 * ENTRY], plain[64..][..2 * ENTRY]);
        let own: Vec<u64> = table[2 * ENTRY..].chunks(8).filter_map(|it| word(it, 0)).collect();
        let offset = built.len() as u64;
        assert_eq!(own, [6 << 32 | 1, offset, ADDRESS, ADDRESS, 12345, 12345, PAGE]);
        let at = plain.len() - 4 - 16;
        assert_eq!((word(&built, at), word(&built, at + 8)), (Some(ADDRESS), Some(12345)));
        assert_eq!(front(&built, 1), Err(BuildError::Already));
    }

    #[test]
    fn files_that_are_no_images() {
        let plain = image();
        for len in 0..plain.len() - 4 {
            assert_eq!(front(&plain[..len], 1), Err(BuildError::NoImage), "{len}");
        }
        // Every byte of the headers and the notes, each with values that hurt.
        for at in 0..plain.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut file = plain.clone();
                file[at] = value;
                if let Ok(built) = front(&file, 1) {
                    assert!(is_in(&built), "{at} {value}");
                }
            }
        }
        let mut far = plain.clone();
        far[64 + ENTRY + 8..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(front(&far, 1), Err(BuildError::NoImage));
        let mut other = plain;
        let at = 64 + 2 * ENTRY + 20 + 12;
        other[at] = b'B';
        assert_eq!(front(&other, 1), Err(BuildError::NoImage));
    }

    #[test]
    fn images_that_are_cut_off() {
        let mut whole = image();
        let load = 64;
        whole[load + 8] = 10;
        whole[load + 32] = (whole.len() - 10) as u8;
        assert!(front(&whole, 1).is_ok());
        assert_eq!(front(&whole[..whole.len() - 1], 1), Err(BuildError::NoImage));
        for at in [8, 32] {
            let mut far = whole.clone();
            far[load + at..][..8].copy_from_slice(&u64::MAX.to_le_bytes());
            assert_eq!(front(&far, 1), Err(BuildError::NoImage), "{at}");
        }
    }

    #[test]
    fn content_is_read_as_it_is_written() {
        for (line, volume) in [("", 0), ("volume=/,built-in -- p", 8192), (&"x".repeat(4080), 1)] {
            let head = head(line, volume);
            let len = head.len() as u64 + volume;
            let (text, bytes) = parts(&head, len).unwrap();
            assert_eq!(&head[text], line.as_bytes());
            assert_eq!((bytes.start, bytes.len() as u64), (head.len(), volume));
            assert_eq!(parts(&head, len + 1), None);
            assert_eq!(parts(&head[..15], len), None);
        }
        for (at, value) in [(0, u64::MAX), (0, LINE_MAX as u64 + 1), (8, u64::MAX), (8, 1 << 63)] {
            let mut head = head("line", 4096);
            head[at..at + 8].copy_from_slice(&value.to_le_bytes());
            assert_eq!(parts(&head, 8192), None, "{at} {value:x}");
        }
    }
}
