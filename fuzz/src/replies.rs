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

/// Fills `place` with bytes that may be numbers, entries or nothing.
pub(crate) fn fill(script: &mut Script<'_>, place: &mut [u8]) {
    let kind = script.byte();
    for word in place.chunks_mut(8) {
        let value = match kind % 4 {
            0 => script.number(),
            1 => script.below(300),
            2 => 1 << script.below(64),
            _ => u64::from(script.byte()) << 32 | script.below(40),
        };
        word.copy_from_slice(&value.to_ne_bytes()[..word.len()]);
    }
}

/// A server that answers as a script says.
struct Hostile<'s> {
    script: Script<'s>,
    /// The header of the last request.
    asked: InHeader,
    /// How many more answers there are.
    patience: u32,
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
        fill(&mut self.script, &mut message[OutHeader::SIZE..]);
        fill(&mut self.script, &mut data[..got.data.min(4096)]);
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
    let mut caller = Caller::default();
    while !fs.transport().script.is_over() && fs.transport().patience > 0 {
        let choices = Choices::new(&mut fs.transport().script);
        caller.call(&mut fs, &choices);
    }
    fs.disconnect();
}

/// What a call is made of.
pub(crate) struct Choices {
    which: u8,
    flags: OpenFlags,
    len: usize,
    number: u64,
}

impl Choices {
    /// Takes them from a script.
    pub fn new(script: &mut Script<'_>) -> Choices {
        Choices {
            which: script.byte(),
            flags: OpenFlags::from_bits_truncate(script.byte().into()),
            len: script.below(9000) as usize,
            number: script.number(),
        }
    }
}

/// Makes calls, of which some are about what others have brought.
#[derive(Default)]
pub(crate) struct Caller {
    ino: Option<Ino>,
    open: Option<(Ino, Handle)>,
}

impl Caller {
    /// Takes note of attributes.
    ///
    /// # Panics
    /// When no inode has them.
    fn attr(&mut self, attr: &Attr) {
        assert!(attr.ino != Ino(0) && attr.atime.nsec < 1_000_000_000);
        assert!(FileType::from_mode(attr.mode).is_some());
        self.ino = Some(attr.ino);
    }

    /// Makes a call.
    ///
    /// # Panics
    /// When it returns a result that no file system may.
    pub fn call<F: FileSystem>(&mut self, fs: &mut F, choices: &Choices) {
        let &Choices { which, flags, len, number } = choices;
        let cx = Context { uid: 1, gid: 2, now: Timespec::default() };
        let ino = self.ino.filter(|_| number & 1 == 0).unwrap_or(Ino::ROOT);
        let open = self.open.filter(|_| number & 6 != 0).unwrap_or((ino, Handle(number)));
        let offset = [0, 0, number % 9000, u64::MAX - 5][(number >> 3) as usize % 4];
        let name = Name::new(b"name").expect("a name");
        let mut bytes = vec![b'v'; 3];
        let told = match which % 28 {
            0 => fs.lookup(&cx, ino, name),
            1 => fs.getattr(&cx, ino),
            2 => fs.setattr(&cx, ino, Some(open.1), &SetAttr::default()),
            4 => fs.mknod(&cx, ino, name, 0, 0),
            5 => fs.mkdir(&cx, ino, name, 0),
            6 => fs.symlink(&cx, ino, name, b"target"),
            9 => fs.link(&cx, ino, ino, name),
            12 => fs.create(&cx, ino, name, 0, flags).map(|(made, handle)| {
                self.open = Some((made.ino, handle));
                made
            }),
            13 => fs.tmpfile(&cx, ino, 0, flags).map(|(made, handle)| {
                self.open = Some((made.ino, handle));
                made
            }),
            _ => return self.tell(fs, which, (ino, open), (offset, len), flags, &mut bytes),
        };
        if let Ok(attr) = told {
            self.attr(&attr);
        }
    }

    /// Makes one of those calls that tell no attributes.
    fn tell<F: FileSystem>(
        &mut self,
        fs: &mut F,
        which: u8,
        (ino, (file, handle)): (Ino, (Ino, Handle)),
        (offset, len): (u64, usize),
        flags: OpenFlags,
        bytes: &mut Vec<u8>,
    ) {
        let cx = Context { uid: 1, gid: 2, now: Timespec::default() };
        let name = Name::new(b"name").expect("a name");
        match which % 28 {
            3 => {
                let _ = fs.readlink(&cx, ino, bytes);
                assert!(bytes.starts_with(b"vvv") && bytes.len() <= 3 + SYMLINK_MAX + 1);
            }
            7 => drop(fs.unlink(&cx, ino, name)),
            8 => drop(fs.rename(&cx, ino, name, ino, name, RenameFlags::empty())),
            10 | 11 => {
                if let Ok(handle) = fs.open(&cx, ino, flags) {
                    self.open = Some((ino, handle));
                }
            }
            14..=16 => {
                let mut place = vec![0; len];
                if let Ok(got) = fs.read(&cx, file, handle, offset, &mut place) {
                    assert!(got <= len);
                }
            }
            17..=19 => {
                if let Ok(written) = fs.write(&cx, file, handle, offset, &vec![1; len]) {
                    assert!(written.len <= len);
                }
            }
            20 => drop(fs.seek(&cx, file, handle, 0, SeekTo::Data)),
            21 => drop(fs.fsync(&cx, file, handle, true)),
            22 => {
                self.open = self.open.filter(|(_, kept)| *kept != handle);
                let _ = fs.release(&cx, file, handle);
            }
            23 => {
                let mut listed = 0;
                let _ = fs.readdir(&cx, file, handle, 0, &mut |entry| {
                    assert!(Name::new(entry.name).is_ok() && entry.cookie != 0);
                    assert!(entry.ino != Ino(0));
                    listed += 1;
                    listed < 1000
                });
            }
            24 => drop(fs.statfs(&cx)),
            25 => {
                let _ = fs.getxattr(&cx, ino, b"user.a", bytes);
                assert!(bytes.starts_with(b"vvv") && bytes.len() <= 3 + XATTR_SIZE_MAX);
            }
            26 => {
                let _ = fs.listxattr(&cx, ino, bytes);
                assert!(bytes.starts_with(b"vvv") && (bytes.len() == 3 || bytes.ends_with(&[0])));
            }
            _ => fs.forget(ino, 1),
        }
    }
}
