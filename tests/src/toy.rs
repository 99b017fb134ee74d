//! A file system that is nothing but a log of calls, with bugs to order: the tests try the crash
//! harness itself on it.
//!
//! Every call that changes something is a record, chained to the one before by checksum, and is
//! done to a model in memory. Mounting does the calls of the log again: all that are valid if
//! nothing was lost, those before the last *mark* if something was. fsync flushes, writes a mark
//! and flushes that.

use atoll_block::{Addressable, BlockDevice, FaultDevice};
use atoll_vfs::model::ModelFs;
use atoll_vfs::*;

use crate::crash::CrashTarget;

/// The bug of a [`Toy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Nothing.
    None,
    /// A call returns before its record is stored; the next call stores it.
    AcknowledgesEarly,
    /// fsync writes its mark and flushes nothing.
    SyncsNothing,
    /// A record is believed whatever its content.
    NoChecksums,
    /// A record that is not valid is passed over, and those after it count.
    PassesOverGaps,
    /// Marks do not matter: after power loss every valid record counts, out of the log's order.
    Reorders,
    /// Recovery does not do renames again.
    ForgetsRenames,
    /// Recovered writes bring bytes of the write before with them.
    ShowsOtherBytes,
    /// Recovered writes end a byte early.
    CutsWrites,
    /// A check finds fault with a log that does not end with an unmount.
    ChecksBadly,
    /// Mounting cuts the last record off and writes it again.
    RecoveryTearsTheLog,
}

/// The crash target.
#[derive(Clone, Copy, Debug)]
pub struct Toy(pub Bug);

/// A mounted toy.
pub struct ToyFs {
    bug: Bug,
    model: ModelFs,
    device: FaultDevice,
    /// Where the next record goes.
    end: u64,
    chain: u64,
    unwritten: Option<Record>,
}

#[derive(Clone, Debug)]
struct Record {
    verb: Verb,
    numbers: Vec<u64>,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Mounted = 1,
    Mark,
    Setattr,
    Mknod,
    Mkdir,
    Symlink,
    Unlink,
    Rmdir,
    Rename,
    Link,
    Open,
    Create,
    Tmpfile,
    Write,
    Fallocate,
    Release,
    Setxattr,
    Removexattr,
}

const VERBS: [Verb; 18] = [
    Verb::Mounted,
    Verb::Mark,
    Verb::Setattr,
    Verb::Mknod,
    Verb::Mkdir,
    Verb::Symlink,
    Verb::Unlink,
    Verb::Rmdir,
    Verb::Rename,
    Verb::Link,
    Verb::Open,
    Verb::Create,
    Verb::Tmpfile,
    Verb::Write,
    Verb::Fallocate,
    Verb::Release,
    Verb::Setxattr,
    Verb::Removexattr,
];

/// Stands for the flags of a directory that is opened.
const DIRECTORY: u32 = u32::MAX;
const MAGIC: u64 = u64::from_le_bytes(*b"toy log\0");
/// Magic, chain, verb, count of numbers, count of bytes, checksum.
const HEADER: usize = 48;

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

impl Record {
    fn new(verb: Verb, cx: &Context, numbers: &[u64], bytes: &[&[u8]]) -> Record {
        let mut all = vec![
            u64::from(cx.uid),
            u64::from(cx.gid),
            cx.now.sec as u64,
            u64::from(cx.now.nsec),
            bytes.first().map_or(0, |first| first.len() as u64),
        ];
        all.extend_from_slice(numbers);
        Record { verb, numbers: all, bytes: bytes.concat() }
    }

    fn emit(&self, chain: u64) -> Vec<u8> {
        let mut body: Vec<u8> = Vec::new();
        self.numbers.iter().for_each(|number| body.extend(number.to_le_bytes()));
        body.extend(&self.bytes);
        let header =
            [MAGIC, chain, self.verb as u64, self.numbers.len() as u64, self.bytes.len() as u64];
        let mut record: Vec<u8> = header.into_iter().flat_map(u64::to_le_bytes).collect();
        let sum = checksum(&[&record[..], &body].concat());
        record.extend(sum.to_le_bytes());
        record.extend(body);
        record
    }

    /// The record at `at`, its length and checksum.
    fn parse(device: &mut FaultDevice, at: u64, check: bool) -> Option<(Record, u64, u64, u64)> {
        let mut header = [0; HEADER];
        device.load(at, &mut header).ok()?;
        let field = |i: usize| {
            u64::from_le_bytes(header[i * 8..i * 8 + 8].try_into().expect("eight bytes"))
        };
        let verb = *VERBS.iter().find(|&&verb| verb as u64 == field(2))?;
        let (numbers, bytes) = (field(3), field(4));
        if field(0) != MAGIC || numbers > 100 || bytes > 1 << 20 {
            return None;
        }
        let mut body = vec![0; (numbers * 8 + bytes) as usize];
        device.load(at + HEADER as u64, &mut body).ok()?;
        let sum = checksum(&[&header[..40], &body].concat());
        if check && sum != field(5) {
            return None;
        }
        let (numbers, bytes) = body.split_at(numbers as usize * 8);
        let numbers = numbers
            .chunks(8)
            .map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes")))
            .collect();
        let len = (HEADER + body.len()) as u64;
        Some((Record { verb, numbers, bytes: bytes.to_vec() }, len, field(1), field(5)))
    }

    /// Does the call again.
    fn redo(&self, fs: &mut ModelFs) -> Result<()> {
        let number = |i: usize| self.numbers.get(5 + i).copied().unwrap_or(0);
        let short = |i: usize| number(i) as u32;
        let now = Timespec { sec: self.numbers[2] as i64, nsec: self.numbers[3] as u32 };
        let cx = Context { uid: self.numbers[0] as u32, gid: self.numbers[1] as u32, now };
        let split = (self.numbers[4] as usize).min(self.bytes.len());
        let (first, second) = self.bytes.split_at(split);
        let ino = Ino(number(0));
        let open = OpenFlags::from_bits_retain(short(2));
        match self.verb {
            Verb::Mounted => *fs = fs.without_handles(),
            Verb::Mark => {}
            Verb::Setattr => {
                let given = number(1);
                let has = |i: u32| given >> i & 1 == 1;
                let time =
                    |i: usize| SetTime::To(Timespec { sec: number(i) as i64, nsec: short(i + 1) });
                let set = SetAttr {
                    mode: has(0).then(|| short(2)),
                    uid: has(1).then(|| short(3)),
                    gid: has(2).then(|| short(4)),
                    size: has(3).then(|| number(5)),
                    atime: has(4).then(|| time(6)),
                    mtime: has(5).then(|| time(8)),
                };
                fs.setattr(&cx, ino, None, &set)?;
            }
            Verb::Mknod => drop_ok(fs.mknod(&cx, ino, Name::new(first)?, short(1), short(2)))?,
            Verb::Mkdir => drop_ok(fs.mkdir(&cx, ino, Name::new(first)?, short(1)))?,
            Verb::Symlink => drop_ok(fs.symlink(&cx, ino, Name::new(first)?, second))?,
            Verb::Unlink => fs.unlink(&cx, ino, Name::new(first)?)?,
            Verb::Rmdir => fs.rmdir(&cx, ino, Name::new(first)?)?,
            Verb::Rename => {
                let flags = RenameFlags::from_bits_retain(short(2));
                let (from, to) = (Name::new(first)?, Name::new(second)?);
                fs.rename(&cx, ino, from, Ino(number(1)), to, flags)?;
            }
            Verb::Link => drop_ok(fs.link(&cx, ino, Ino(number(1)), Name::new(first)?))?,
            Verb::Open if short(1) == DIRECTORY => drop_ok(fs.opendir(&cx, ino))?,
            Verb::Open => drop_ok(fs.open(&cx, ino, OpenFlags::from_bits_retain(short(1))))?,
            Verb::Create => drop_ok(fs.create(&cx, ino, Name::new(first)?, short(1), open))?,
            Verb::Tmpfile => drop_ok(fs.tmpfile(&cx, ino, short(1), open))?,
            Verb::Write => drop_ok(fs.write(&cx, ino, Handle(number(1)), number(2), first))?,
            Verb::Fallocate => {
                let mode = FallocateMode::from_bits_retain(short(4));
                fs.fallocate(&cx, ino, Handle(number(1)), number(2), number(3), mode)?;
            }
            Verb::Release if number(2) == 1 => fs.releasedir(&cx, ino, Handle(number(1)))?,
            Verb::Release => fs.release(&cx, ino, Handle(number(1)))?,
            Verb::Setxattr => {
                let flags = XattrFlags::from_bits_retain(short(1));
                fs.setxattr(&cx, ino, first, second, flags)?;
            }
            Verb::Removexattr => fs.removexattr(&cx, ino, first)?,
        }
        Ok(())
    }
}

fn drop_ok<T>(result: Result<T>) -> Result<()> {
    result.map(|_| ())
}

/// Nobody in particular, at no time.
const NOBODY: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };

/// The valid records and where the log ends after each.
fn read_log(device: &mut FaultDevice, bug: Bug) -> Vec<(Record, u64, u64)> {
    let (mut at, mut chain) = (0, MAGIC);
    let mut log = Vec::new();
    let mut valid = 0;
    // A gap is as long as a record can be.
    while at < valid + (32 << 10) {
        let record = Record::parse(device, at, bug != Bug::NoChecksums);
        match record {
            Some((record, len, previous, sum)) if previous == chain => {
                at += len;
                valid = at;
                chain = sum;
                log.push((record, at, chain));
            }
            Some((record, len, _, sum)) if bug == Bug::PassesOverGaps => {
                at += len;
                valid = at;
                chain = sum;
                log.push((record, at, chain));
            }
            _ if bug == Bug::PassesOverGaps => at += 1,
            _ => break,
        }
    }
    log
}

impl ToyFs {
    fn append(&mut self, record: &Record) -> Result<()> {
        let bytes = record.emit(self.chain);
        self.device.store(self.end, &bytes).map_err(|_| Errno::EIO)?;
        self.end += bytes.len() as u64;
        self.chain = u64::from_le_bytes(bytes[40..48].try_into().expect("eight bytes"));
        Ok(())
    }

    fn log(&mut self, verb: Verb, cx: &Context, numbers: &[u64], bytes: &[&[u8]]) -> Result<()> {
        let record = Record::new(verb, cx, numbers, bytes);
        if self.bug == Bug::AcknowledgesEarly {
            let late = self.unwritten.replace(record);
            return late.map_or(Ok(()), |late| self.append(&late));
        }
        self.append(&record)
    }

    fn sync(&mut self) -> Result<()> {
        if let Some(late) = self.unwritten.take() {
            self.append(&late)?;
        }
        let flushes = self.bug != Bug::SyncsNothing;
        if flushes {
            self.device.flush().map_err(|_| Errno::EIO)?;
        }
        self.append(&Record::new(Verb::Mark, &NOBODY, &[], &[]))?;
        if flushes {
            self.device.flush().map_err(|_| Errno::EIO)?;
        }
        Ok(())
    }
}

impl CrashTarget for Toy {
    type Fs = ToyFs;

    fn format(&self, device: &mut FaultDevice) -> std::result::Result<(), String> {
        let record = Record::new(Verb::Mark, &NOBODY, &[], &[]);
        device.store(0, &record.emit(MAGIC)).map_err(|error| error.to_string())?;
        device.flush().map_err(|error| error.to_string())
    }

    fn mount(
        &self,
        mut device: FaultDevice,
        incarnation: [u8; 16],
    ) -> std::result::Result<ToyFs, String> {
        let bug = self.0;
        let mut log = read_log(&mut device, bug);
        let life = log.iter().rev().find(|(record, ..)| record.verb == Verb::Mounted);
        let same = life.is_some_and(|(record, ..)| record.bytes == incarnation);
        if !same && bug != Bug::Reorders {
            let mark = log.iter().rposition(|(record, ..)| record.verb == Verb::Mark);
            log.truncate(mark.ok_or("no toy")? + 1);
        }
        let &(_, end, chain) = log.last().ok_or("no toy")?;
        let mut records: Vec<Record> = log.into_iter().map(|(record, ..)| record).collect();
        let life = Record::new(Verb::Mounted, &NOBODY, &[], &[&incarnation]);
        records.push(life.clone());
        if bug == Bug::Reorders && !same && records.len() > 6 {
            let at = records.len() - 4;
            records.swap(at, at + 1);
        }
        let mut model = ModelFs::new(0o755, Timespec::default());
        let mut last = Vec::new();
        for mut record in records {
            if record.verb == Verb::Write && !record.bytes.is_empty() {
                let data = record.bytes.clone();
                match bug {
                    Bug::ShowsOtherBytes if !last.is_empty() => record.bytes[0] = last[0],
                    Bug::CutsWrites => drop(record.bytes.pop()),
                    _ => {}
                }
                last = data;
            }
            if record.verb == Verb::Rename && bug == Bug::ForgetsRenames {
                continue;
            }
            if let Err(error) = record.redo(&mut model)
                && bug == Bug::None
            {
                return Err(format!("{record:?}: {error}"));
            }
        }
        let mut fs = ToyFs { bug, model, device, end, chain, unwritten: None };
        if bug == Bug::RecoveryTearsTheLog {
            let at = fs.end - 8;
            let mut bytes = [0; 8];
            let device = &mut fs.device;
            let tear = device.load(at, &mut bytes).and_then(|()| device.store(at, &[0x55; 8]));
            tear.and_then(|()| device.store(at, &bytes)).map_err(|error| error.to_string())?;
        }
        fs.append(&life).map_err(|error| error.to_string())?;
        Ok(fs)
    }

    fn device<'a>(&self, fs: &'a mut ToyFs) -> &'a mut FaultDevice {
        &mut fs.device
    }

    fn unmount(&self, mut fs: ToyFs) -> std::result::Result<FaultDevice, String> {
        fs.sync().map_err(|error| error.to_string())?;
        Ok(fs.device)
    }

    fn check(&self, device: &mut FaultDevice, _: [u8; 16]) -> std::result::Result<(), String> {
        let log = read_log(device, self.0);
        let last = log.last().ok_or("no toy")?;
        if self.0 == Bug::ChecksBadly && last.0.verb != Verb::Mark {
            return Err("the log does not end with a mark".into());
        }
        Ok(())
    }
}

impl FileSystem for ToyFs {
    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.model.lookup(cx, parent, name)
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        self.model.getattr(cx, ino)
    }

    fn setattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let attr = self.model.setattr(cx, ino, handle, set)?;
        let given = [
            set.mode.is_some(),
            set.uid.is_some(),
            set.gid.is_some(),
            set.size.is_some(),
            set.atime.is_some(),
            set.mtime.is_some(),
        ];
        let given = given.iter().enumerate().map(|(i, &is)| u64::from(is) << i).sum();
        let time = |set: Option<SetTime>| match set {
            Some(SetTime::To(time)) => time,
            _ => cx.now,
        };
        let (atime, mtime) = (time(set.atime), time(set.mtime));
        let numbers = [
            ino.0,
            given,
            set.mode.unwrap_or(0).into(),
            set.uid.unwrap_or(0).into(),
            set.gid.unwrap_or(0).into(),
            set.size.unwrap_or(0),
            atime.sec as u64,
            atime.nsec.into(),
            mtime.sec as u64,
            mtime.nsec.into(),
        ];
        self.log(Verb::Setattr, cx, &numbers, &[])?;
        Ok(attr)
    }

    fn readlink(&mut self, cx: &Context, ino: Ino, target: &mut Vec<u8>) -> Result<()> {
        self.model.readlink(cx, ino, target)
    }

    fn mknod(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        rdev: u32,
    ) -> Result<Attr> {
        let attr = self.model.mknod(cx, parent, name, mode, rdev)?;
        self.log(Verb::Mknod, cx, &[parent.0, mode.into(), rdev.into()], &[name.bytes()])?;
        Ok(attr)
    }

    fn mkdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>, mode: u32) -> Result<Attr> {
        let attr = self.model.mkdir(cx, parent, name, mode)?;
        self.log(Verb::Mkdir, cx, &[parent.0, mode.into()], &[name.bytes()])?;
        Ok(attr)
    }

    fn symlink(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        target: &[u8],
    ) -> Result<Attr> {
        let attr = self.model.symlink(cx, parent, name, target)?;
        self.log(Verb::Symlink, cx, &[parent.0], &[name.bytes(), target])?;
        Ok(attr)
    }

    fn unlink(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.model.unlink(cx, parent, name)?;
        self.log(Verb::Unlink, cx, &[parent.0], &[name.bytes()])
    }

    fn rmdir(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<()> {
        self.model.rmdir(cx, parent, name)?;
        self.log(Verb::Rmdir, cx, &[parent.0], &[name.bytes()])
    }

    fn rename(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.model.rename(cx, parent, name, new_parent, new_name, flags)?;
        let numbers = [parent.0, new_parent.0, flags.bits().into()];
        self.log(Verb::Rename, cx, &numbers, &[name.bytes(), new_name.bytes()])
    }

    fn link(
        &mut self,
        cx: &Context,
        ino: Ino,
        new_parent: Ino,
        new_name: Name<'_>,
    ) -> Result<Attr> {
        let attr = self.model.link(cx, ino, new_parent, new_name)?;
        self.log(Verb::Link, cx, &[ino.0, new_parent.0], &[new_name.bytes()])?;
        Ok(attr)
    }

    fn open(&mut self, cx: &Context, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let handle = self.model.open(cx, ino, flags)?;
        self.log(Verb::Open, cx, &[ino.0, flags.bits().into()], &[])?;
        Ok(handle)
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let made = self.model.create(cx, parent, name, mode, flags)?;
        let numbers = [parent.0, mode.into(), flags.bits().into()];
        self.log(Verb::Create, cx, &numbers, &[name.bytes()])?;
        Ok(made)
    }

    fn tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let made = self.model.tmpfile(cx, parent, mode, flags)?;
        self.log(Verb::Tmpfile, cx, &[parent.0, mode.into(), flags.bits().into()], &[])?;
        Ok(made)
    }

    fn read(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.model.read(cx, ino, handle, offset, buf)
    }

    fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<Written> {
        let written = self.model.write(cx, ino, handle, offset, data)?;
        self.log(Verb::Write, cx, &[ino.0, handle.0, offset], &[data])?;
        Ok(written)
    }

    fn fallocate(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.model.fallocate(cx, ino, handle, offset, len, mode)?;
        let numbers = [ino.0, handle.0, offset, len, mode.bits().into()];
        self.log(Verb::Fallocate, cx, &numbers, &[])
    }

    fn seek(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        self.model.seek(cx, ino, handle, offset, to)
    }

    fn fsync(&mut self, cx: &Context, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        self.model.fsync(cx, ino, handle, data_only)?;
        self.sync()
    }

    fn release(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.model.release(cx, ino, handle)?;
        self.log(Verb::Release, cx, &[ino.0, handle.0], &[])
    }

    // In the log too, because handles are numbered in the order of opening.
    fn opendir(&mut self, cx: &Context, ino: Ino) -> Result<Handle> {
        let handle = self.model.opendir(cx, ino)?;
        self.log(Verb::Open, cx, &[ino.0, u64::from(DIRECTORY)], &[])?;
        Ok(handle)
    }

    fn readdir(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.model.readdir(cx, ino, handle, cookie, emit)
    }

    fn releasedir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.model.releasedir(cx, ino, handle)?;
        self.log(Verb::Release, cx, &[ino.0, handle.0, 1], &[])
    }

    fn fsyncdir(&mut self, cx: &Context, ino: Ino, handle: Handle) -> Result<()> {
        self.model.fsyncdir(cx, ino, handle)?;
        self.sync()
    }

    fn syncfs(&mut self, _: &Context) -> Result<()> {
        self.sync()
    }

    fn statfs(&mut self, cx: &Context) -> Result<StatFs> {
        self.model.statfs(cx)
    }

    fn setxattr(
        &mut self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.model.setxattr(cx, ino, name, value, flags)?;
        self.log(Verb::Setxattr, cx, &[ino.0, flags.bits().into()], &[name, value])
    }

    fn getxattr(&mut self, cx: &Context, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        self.model.getxattr(cx, ino, name, value)
    }

    fn listxattr(&mut self, cx: &Context, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        self.model.listxattr(cx, ino, names)
    }

    fn removexattr(&mut self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.model.removexattr(cx, ino, name)?;
        self.log(Verb::Removexattr, cx, &[ino.0], &[name])
    }
}
