//! A server fed with requests that a hostile client may send: any bytes, and bytes that nearly are
//! requests.

use atoll_vfs::model::ModelFs;
use atoll_vfs::server::{Caller, Identity, Reply};
use atoll_vfs::wire::files::{CopyFileRangeIn, CreateIn, FallocateIn, OpenIn, ReadIn, WriteIn};
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::session::InitIn;
use atoll_vfs::wire::{Extensions, Fixed, Message, REPLY_MAX, Request, opcode};
use atoll_vfs::{Server, ServerOptions, Timespec};

use crate::Script;

/// The room for a reply's data, in bytes.
const ROOM: usize = 8192;
/// The longest range that a request may have allocated, in bytes: the model does that block by
/// block.
const ALLOCATED_MAX: u64 = 1 << 20;

/// Carries out requests until the script is over.
///
/// # Panics
/// When a reply is not one, or reaches where it must not.
pub fn run(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut fs = ModelFs::default();
    let extensions = Extensions::from_bits_truncate(script.byte().into());
    let mut server = Server::new(ServerOptions { max_data: ROOM as u32, extensions, valid: 0 });
    let caller =
        Caller { identity: Identity::Attested { uid: 1, gid: 2 }, now: Timespec::default() };
    let mut unique = 0;
    // The inode and the handle that were opened last.
    let mut known = (1, 0);
    let mut message = Vec::new();
    // Mostly after INIT, without which nothing else happens.
    let mut late = script.byte().is_multiple_of(8);
    while !script.is_over() {
        unique += 1;
        if server.agreed().is_none() && !late {
            let offer = InitIn::new(script.number(), Extensions::all());
            message.clear();
            message.resize(InHeader::SIZE + InitIn::SIZE, 0);
            offer.store(&mut message[InHeader::SIZE..]);
            seal(&mut message, opcode::FUSE_INIT, unique, 0, 0);
            send(&mut server, &mut fs, &caller, &message, &[], unique);
        }
        late &= !script.byte().is_multiple_of(8);
        let data = vec![script.byte(); script.below(600) as usize];
        request(&mut script, &mut message, data.len(), unique, known);
        let data =
            if script.byte().is_multiple_of(16) { &data[..data.len() / 2] } else { &data[..] };
        known = send(&mut server, &mut fs, &caller, &message, data, unique).unwrap_or(known);
    }
}

/// Writes a header that fits, with an opcode and an inode.
pub(crate) fn seal(message: &mut [u8], opcode: u32, unique: u64, nodeid: u64, data: usize) {
    let len = (message.len() + data) as u32;
    InHeader { len, opcode, unique, nodeid, ..InHeader::default() }.store(message);
}

/// A number that a request may mean something with.
pub(crate) fn number(script: &mut Script<'_>) -> u64 {
    match script.byte() % 8 {
        0 => u64::MAX,
        1 => 1 << script.below(64),
        2 => script.number(),
        _ => script.below(8),
    }
}

/// Puts a request together that is nearly one.
pub(crate) fn request(
    script: &mut Script<'_>,
    message: &mut Vec<u8>,
    data: usize,
    unique: u64,
    known: (u64, u64),
) {
    message.clear();
    message.resize(InHeader::SIZE, 0);
    let (_, opcode) = *script.pick(opcode::CONSTANTS);
    let mut opcode = opcode as u32;
    // Arguments: numbers of eight bytes, as many as there are; then names.
    let arguments = script.below(13);
    let open = script.byte().is_multiple_of(2);
    for i in 0..arguments {
        let value = if i == 0 && open { known.1 } else { number(script) };
        message.extend_from_slice(&value.to_ne_bytes());
    }
    let body = message.len() - InHeader::SIZE;
    let place = |message: &mut Vec<u8>, bytes: &[u8]| {
        message.truncate(InHeader::SIZE);
        message.extend_from_slice(bytes);
    };
    let size = data as u32;
    match opcode {
        opcode::FUSE_WRITE => {
            let mut args = [0; WriteIn::SIZE];
            let (fh, offset) = (if open { known.1 } else { number(script) }, number(script));
            WriteIn { fh, offset, size, ..WriteIn::default() }.store(&mut args);
            place(message, &args);
        }
        opcode::FUSE_READ | opcode::FUSE_READDIR | opcode::FUSE_READDIRPLUS => {
            let mut args = [0; ReadIn::SIZE];
            let (fh, offset) = (if open { known.1 } else { number(script) }, number(script));
            let size = script.below(ROOM as u64 + 10) as u32;
            ReadIn { fh, offset, size, ..ReadIn::default() }.store(&mut args);
            place(message, &args);
        }
        opcode::FUSE_COPY_FILE_RANGE | opcode::FUSE_COPY_FILE_RANGE_64 => {
            let mut args = [0; CopyFileRangeIn::SIZE];
            CopyFileRangeIn {
                fh_in: known.1,
                off_in: number(script),
                nodeid_out: if open { known.0 } else { number(script) },
                fh_out: if open { known.1 } else { number(script) },
                off_out: number(script),
                len: number(script),
                flags: if script.byte().is_multiple_of(16) { number(script) } else { 0 },
            }
            .store(&mut args);
            place(message, &args);
        }
        opcode::FUSE_FALLOCATE => {
            let mut args = [0; FallocateIn::SIZE];
            let (offset, length) = (number(script), number(script));
            let fh = if open { known.1 } else { number(script) };
            let mode = script.byte().into();
            FallocateIn { fh, offset, length, mode, padding: 0 }.store(&mut args);
            place(message, &args);
        }
        opcode::FUSE_SETXATTR => place(message, &[size.to_ne_bytes(), [0; 4]].concat()),
        opcode::FUSE_CREATE | opcode::FUSE_TMPFILE => {
            let mut args = [0; CreateIn::SIZE];
            let flags = script.byte() as u32 | u32::from(script.byte()) << 8;
            CreateIn { flags, mode: 0o644, ..CreateIn::default() }.store(&mut args);
            place(message, &args);
        }
        opcode::FUSE_OPEN => {
            let mut args = [0; OpenIn::SIZE];
            let flags = script.byte() as u32 | u32::from(script.byte()) << 8;
            OpenIn { flags, open_flags: 0 }.store(&mut args);
            place(message, &args);
        }
        opcode::FUSE_LOOKUP
        | opcode::FUSE_UNLINK
        | opcode::FUSE_RMDIR
        | opcode::FUSE_SYMLINK
        | opcode::FUSE_REMOVEXATTR => message.truncate(InHeader::SIZE),
        opcode::FUSE_MKDIR | opcode::FUSE_RENAME | opcode::FUSE_LINK | opcode::FUSE_GETXATTR => {
            message.truncate(InHeader::SIZE + body.min(8));
        }
        opcode::FUSE_MKNOD | opcode::FUSE_RENAME2 => {
            message.truncate(InHeader::SIZE + body.min(16));
        }
        _ => {}
    }
    for _ in 0..[1, 1, 2, 2, 2, 2, 2, 0][script.byte() as usize % 8] {
        let names: [&[u8]; 8] = [b"a", b"b", b"c", b"..", b".", b"", b"x/y", &[b'n'; 300]];
        let choice = script.byte() as usize;
        let few = if choice.is_multiple_of(8) { names.len() } else { 2 };
        message.extend_from_slice(names[choice / 8 % few]);
        message.push(0);
    }
    if script.byte().is_multiple_of(16) {
        opcode = script.number() as u32;
    }
    let nodeid = match script.byte() % 4 {
        _ if open => known.0,
        0 => number(script),
        _ => 1,
    };
    seal(message, opcode, unique, nodeid, data);
    // Damage, after which lengths may say anything.
    if script.byte().is_multiple_of(8) {
        let at = script.below(InHeader::SIZE as u64) as usize;
        message[at] = script.byte();
    }
    if script.byte().is_multiple_of(16) {
        let len = script.below(message.len() as u64 + 1) as usize;
        message.truncate(len);
    }
}

/// Has the request carried out and looks at the reply. Returns the inode and the handle that it
/// opened.
fn send(
    server: &mut Server,
    fs: &mut ModelFs,
    caller: &Caller,
    message: &[u8],
    data: &[u8],
    unique: u64,
) -> Option<(u64, u64)> {
    const GUARD: u8 = 0xa5;
    if let Ok(Message { request: Ok(Request::Fallocate(args)), .. }) =
        Message::decode(message, data)
        && args.length > ALLOCATED_MAX
    {
        return None;
    }
    let (mut reply, mut room) = (vec![GUARD; REPLY_MAX + 8], vec![GUARD; ROOM]);
    let place = &mut reply[..REPLY_MAX];
    let Ok(Reply { message: len, data }) =
        server.serve(fs, caller, message, data, place, &mut room)
    else {
        return None;
    };
    if len == 0 {
        assert_eq!(data, 0, "data without a message");
        return None;
    }
    let header = OutHeader::load(&reply);
    assert_eq!(header.len as usize, len + data, "the reply's length");
    assert!(header.error <= 0 && header.error > -4096, "the reply's error number");
    assert!(header.error == 0 || len == OutHeader::SIZE && data == 0, "an error with an answer");
    // Damage may have changed the number; then it is that of the message.
    let sent = InHeader::load(message).unique;
    assert!(header.unique == unique || header.unique == sent, "another request was answered");
    assert!(reply[len..].iter().all(|&byte| byte == GUARD), "bytes after the reply");
    let opcode = InHeader::load(message).opcode;
    let opened = header.error == 0 && [opcode::FUSE_CREATE, opcode::FUSE_TMPFILE].contains(&opcode);
    // The inode first, the handle in the last sixteen bytes.
    opened.then(|| (u64::load(&reply[OutHeader::SIZE..]), u64::load(&reply[len - 16..])))
}
