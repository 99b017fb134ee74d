//! An archive in the format "newc", from which the kernel makes a guest's first file system
//! (Documentation/driver-api/early-userspace/buffer-format.rst).

/// A regular file.
const FILE: u32 = 0o100_000;
/// A directory.
const DIRECTORY: u32 = 0o040_000;
/// A symbolic link.
const LINK: u32 = 0o120_000;
/// A character device.
const CHARACTERS: u32 = 0o020_000;

/// An archive that grows.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    /// The next inode number: each file has one of its own, so that none are hard links.
    next: u32,
}

impl Archive {
    /// Adds a regular file.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.entry(path, FILE | permissions, (0, 0), content);
    }

    /// Adds a directory; its parent must be there.
    pub fn directory(&mut self, path: &str) {
        self.entry(path, DIRECTORY | 0o755, (0, 0), b"");
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// Adds a character device.
    pub fn device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, CHARACTERS | 0o600, (major, minor), b"");
    }

    /// The bytes of the whole.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), b"");
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        let size = u32::try_from(content.len()).expect("a file of less than 4 GiB");
        let name = u32::try_from(path.len() + 1).expect("a short path");
        self.next += 1;
        let (major, minor) = device;
        // Inode, mode, owner, group, links, time, size, the device it is on, the device it is, the
        // length of the name, a checksum that this format has not.
        let fields = [self.next, mode, 0, 0, 1, 0, size, 0, 0, major, minor, name, 0];
        self.bytes.extend(b"070701");
        self.bytes.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
        self.bytes.extend(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_header_a_name_and_a_content_each_aligned() {
        let mut archive = Archive::default();
        archive.file("a", 0o644, b"hello");
        let bytes = archive.bytes.clone();
        let header = "070701\
                      00000001000081a4000000000000000000000001000000000000000500000000\
                      00000000000000000000000000000002";
        assert!(bytes.starts_with(header.as_bytes()));
        assert_eq!(&bytes[110..], b"a\0hello\0\0\0");
        let end = archive.finish();
        assert_eq!(end.len() % 4, 0);
        assert!(end.windows(11).any(|name| name == b"TRAILER!!!\0"));
    }
}
