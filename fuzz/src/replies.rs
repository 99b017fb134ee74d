//! A client whose server is hostile: replies of any bytes, and replies that nearly are right.

use atoll_transport::{Lost, Received, SendError, Token, Transport};
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::session::{FLAGS2_ATOLL, InitOut, MAJOR, MINOR};
use atoll_vfs::wire::{Fixed, opcode};
use atoll_vfs::{
    Attr, Client, ClientOptions, Context, FileSystem, FileType, Handle, Ino, Name, OpenFlags,
    RenameFlags, SYMLINK_MAX, SeekTo, SetAttr, Timespec, XATTR_SIZE_MAX,
};

use crate::Script;

/// A server that answers as a script says.
struct Hostile<'s> {
    script: Script<'s>,
    /// The header of the last request.
    asked: InHeader,
    /// How many more answers there are.
    patience: u32,
}

impl Hostile<'_> {
    /// Fills `place` with bytes that may be numbers, entries or nothing.
    fn fill(&mut self, place: &mut [u8]) {
        let kind = self.script.byte();
        for word in place.chunks_mut(8) {
            let value = match kind % 4 {
                0 => self.script.number(),
                1 => self.script.below(300),
                2 => 1 << self.script.below(64),
                _ => u64::from(self.script.byte()) << 32 | self.script.below(40),
            };
            word.copy_from_slice(&value.to_ne_bytes()[..word.len()]);
        }
    }
}

impl Transport for Hostile<'_> {
    fn send(&mut self, message: &[u8], data: &[u8], _: usize) -> Result<Token, SendError> {
        self.asked = InHeader::load(message);
        assert_eq!(self.asked.len as usize, message.len() + data.len());
        self.patience = self.patience.saturating_sub(1);
        if self.patience == 0 {
            return Err(SendError::Lost);
        }
        match self.script.byte() {
            0 => Err(SendError::Lost),
            1 => Err(SendError::Full),
            2..6 => Err(SendError::TooLarge),
            _ => Ok(Token(self.asked.unique)),
        }
    }

    fn ready(&mut self, _: &Token) -> Result<bool, Lost> {
        Ok(true)
    }

    fn wait(&mut self, _: &Token) -> Result<(), Lost> {
        Ok(())
    }

    fn receive(&mut self, _: Token, message: &mut [u8], data: &mut [u8]) -> Result<Received, Lost> {
        let choice = self.script.byte();
        if choice == 0 {
            return Err(Lost);
        }
        let mut got = Received {
            message: message.len(),
            data: self.script.below(data.len() as u64 + 1) as usize,
        };
        if choice.is_multiple_of(4) {
            got.data = data.len();
        }
        self.fill(&mut message[OutHeader::SIZE..]);
        self.fill(&mut data[..got.data.min(4096)]);
        if self.asked.opcode == opcode::FUSE_INIT && choice > 16 {
            let mut answer = InitOut::load(&message[OutHeader::SIZE..]);
            (answer.major, answer.minor) = (MAJOR, MINOR);
            answer.flags |= 1 << 30;
            answer.flags2 |= FLAGS2_ATOLL;
            answer.store(&mut message[OutHeader::SIZE..]);
        }
        let mut header =
            OutHeader { len: (got.message + got.data) as u32, error: 0, unique: self.asked.unique };
        match choice {
            1 => header.len = self.script.number() as u32,
            2 => header.unique = self.script.number(),
            3 => header.error = self.script.number() as i32,
            4 => got.message = self.script.below(message.len() as u64 + 1) as usize,
            5..10 => {
                // An error as servers give them.
                header.error = -i32::from(self.script.byte());
                got = Received { message: OutHeader::SIZE, data: 0 };
                header.len = OutHeader::SIZE as u32;
            }
            10 => {
                // Lengths that no transport gives.
                got.message = self.script.number() as usize;
                got.data = self.script.number() as usize;
                header.len = got.message.wrapping_add(got.data) as u32;
            }
            _ => {}
        }
        header.store(message);
        Ok(got)
    }
}

/// Calls everything until the script is over.
///
/// # Panics
/// When the client returns a result that no file system may.
pub fn run(bytes: &[u8]) {
    let script = Script::new(bytes);
    let server = Hostile { script, asked: InHeader::default(), patience: 2000 };
    let Ok(mut fs) = Client::connect(server, ClientOptions::default()) else { return };
    while !fs.transport().script.is_over() && fs.transport().patience > 0 {
        call(&mut fs);
    }
    fs.disconnect();
}

fn call(fs: &mut Client<Hostile<'_>>) {
    let cx = Context { uid: 1, gid: 2, now: Timespec::default() };
    let (ino, handle) = (Ino::ROOT, Handle(fs.transport().script.number()));
    let name = Name::new(b"name").expect("a name");
    let flags = OpenFlags::from_bits_truncate(fs.transport().script.byte().into());
    let len = fs.transport().script.below(3000) as usize;
    let which = fs.transport().script.byte();
    let mut bytes = vec![b'v'; 3];
    let attr = |attr: Attr| {
        assert!(attr.ino != Ino(0) && attr.atime.nsec < 1_000_000_000);
        assert!(FileType::from_mode(attr.mode).is_some());
    };
    match which % 28 {
        0 => fs.lookup(&cx, ino, name).map(attr).unwrap_or(()),
        1 => fs.getattr(&cx, ino).map(attr).unwrap_or(()),
        2 => fs.setattr(&cx, ino, Some(handle), &SetAttr::default()).map(attr).unwrap_or(()),
        3 => {
            let _ = fs.readlink(&cx, ino, &mut bytes);
            assert!(bytes.starts_with(b"vvv") && bytes.len() <= 3 + SYMLINK_MAX + 1);
        }
        4 => fs.mknod(&cx, ino, name, 0, 0).map(attr).unwrap_or(()),
        5 => fs.mkdir(&cx, ino, name, 0).map(attr).unwrap_or(()),
        6 => fs.symlink(&cx, ino, name, b"target").map(attr).unwrap_or(()),
        7 => drop(fs.unlink(&cx, ino, name)),
        8 => drop(fs.rename(&cx, ino, name, ino, name, RenameFlags::empty())),
        9 => fs.link(&cx, ino, ino, name).map(attr).unwrap_or(()),
        10 | 11 => drop(fs.open(&cx, ino, flags)),
        12 => fs.create(&cx, ino, name, 0, flags).map(|(made, _)| attr(made)).unwrap_or(()),
        13 => fs.tmpfile(&cx, ino, 0, flags).map(|(made, _)| attr(made)).unwrap_or(()),
        14..=16 => {
            let mut place = vec![0; len];
            for offset in [0, u64::MAX - 5] {
                if let Ok(got) = fs.read(&cx, ino, handle, offset, &mut place) {
                    assert!(got <= len);
                }
            }
        }
        17..=19 => {
            if let Ok(written) = fs.write(&cx, ino, handle, 0, &vec![1; len]) {
                assert!(written.len <= len);
            }
        }
        20 => drop(fs.seek(&cx, ino, handle, 0, SeekTo::Data)),
        21 => drop(fs.fsync(&cx, ino, handle, true)),
        22 => drop(fs.release(&cx, ino, handle)),
        23 => {
            let mut listed = 0;
            let _ = fs.readdir(&cx, ino, handle, 0, &mut |entry| {
                assert!(Name::new(entry.name).is_ok() && entry.cookie != 0 && entry.ino != Ino(0));
                listed += 1;
                listed < 1000
            });
        }
        24 => drop(fs.statfs(&cx)),
        25 => {
            let _ = fs.getxattr(&cx, ino, b"user.a", &mut bytes);
            assert!(bytes.starts_with(b"vvv") && bytes.len() <= 3 + XATTR_SIZE_MAX);
        }
        26 => {
            let _ = fs.listxattr(&cx, ino, &mut bytes);
            assert!(bytes.starts_with(b"vvv") && (bytes.len() == 3 || bytes.ends_with(&[0])));
        }
        _ => fs.forget(ino, 1),
    }
}
