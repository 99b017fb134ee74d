//! A server fed with requests that a hostile client may send: any bytes, and bytes that nearly are
//! requests.

use atoll_vfs::model::ModelFs;
use atoll_vfs::server::{Caller, Identity, Reply};
use atoll_vfs::wire::files::{CreateIn, FallocateIn, OpenIn, ReadIn, WriteIn};
use atoll_vfs::wire::header::{InHeader, OutHeader};
use atoll_vfs::wire::session::InitIn;
use atoll_vfs::wire::{Extensions, Fixed, Message, REPLY_MAX, Request, opcode};
use atoll_vfs::{Server, ServerOptions, Timespec};

use crate::Script;

/// The room for a reply's data, in bytes.
const ROOM: usize = 8192;
/// The longest range that a request may have allocated, in bytes: the model does that block by block.
const ALLOCATED_MAX: u64 = 1 << 20;

/// Carries out requests until the script is over.
///
/// # Panics
/// When a reply is not one, or reaches where it must not.
pub fn run(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut fs = ModelFs::default();
    let extensions = Extensions::from_bits_truncate(script.byte().into());
    let mut server = Server::new(ServerOptions { max_data: ROOM as u32, extensions });
    let caller =
        Caller { identity: Identity::Attested { uid: 1, gid: 2 }, now: Timespec::default() };
    let mut unique = 0;
    let mut message = Vec::new();
    // Mostly after INIT, without which nothing else happens.
    if !script.byte().is_multiple_of(8) {
        let offer = InitIn::new(script.number(), Extensions::all());
        message.resize(InHeader::SIZE + InitIn::SIZE, 0);
        offer.store(&mut message[InHeader::SIZE..]);
        seal(&mut message, opcode::FUSE_INIT, 1, 0, 0);
        send(&mut server, &mut fs, &caller, &message, &[], 1);
    }
    while !script.is_over() {
        unique += 1;
        let data = vec![script.byte(); script.below(600) as usize];
        request(&mut script, &mut message, data.len(), unique);
        let data =
            if script.byte().is_multiple_of(16) { &data[..data.len() / 2] } else { &data[..] };
        send(&mut server, &mut fs, &caller, &message, data, unique);
    }
}

/// Writes a header that fits, with an opcode and an inode.
fn seal(message: &mut [u8], opcode: u32, unique: u64, nodeid: u64, data: usize) {
    let len = (message.len() + data) as u32;
    InHeader { len, opcode, unique, nodeid, ..InHeader::default() }.store(message);
}

/// A number that a request may mean something with.
fn number(script: &mut Script<'_>) -> u64 {
    match script.byte() % 8 {
        0 => u64::MAX,
        1 => 1 << script.below(64),
        2 => script.number(),
        _ => script.below(8),
    }
}

/// Puts a request together that is nearly one.
fn request(script: &mut Script<'_>, message: &mut Vec<u8>, data: usize, unique: u64) {
    message.clear();
    message.resize(InHeader::SIZE, 0);
    let (_, opcode) = *script.pick(opcode::CONSTANTS);
    let mut opcode = opcode as u32;
    // Arguments: numbers of eight bytes, as many as there are; then names.
    let arguments = script.below(13);
    for _ in 0..arguments {
        let value = number(script);
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
            let offset = number(script);
            WriteIn { fh: number(script), offset, size, ..WriteIn::default() }.store(&mut args);
            place(message, &args);
        }
        opcode::FUSE_READ | opcode::FUSE_READDIR | opcode::FUSE_READDIRPLUS => {
            let mut args = [0; ReadIn::SIZE];
            let (fh, offset) = (number(script), number(script));
            let size = script.below(ROOM as u64 + 10) as u32;
            ReadIn { fh, offset, size, ..ReadIn::default() }.store(&mut args);
            place(message, &args);
        }
        opcode::FUSE_FALLOCATE => {
            let mut args = [0; FallocateIn::SIZE];
            let (offset, length) = (number(script), number(script));
            let (fh, mode) = (number(script), script.byte().into());
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
        opcode::FUSE_MKDIR | opcode::FUSE_LINK | opcode::FUSE_GETXATTR => {
            message.truncate(InHeader::SIZE + body.min(8));
        }
        opcode::FUSE_MKNOD | opcode::FUSE_RENAME2 => {
            message.truncate(InHeader::SIZE + body.min(16));
        }
        _ => {}
    }
    for _ in 0..script.byte() % 3 {
        let names: [&[u8]; 8] = [b"a", b"b", b"c", b"..", b".", b"", b"x/y", &[b'n'; 300]];
        let name: &[u8] = names[script.byte() as usize % names.len()];
        message.extend_from_slice(name);
        message.push(0);
    }
    if script.byte().is_multiple_of(16) {
        opcode = script.number() as u32;
    }
    let nodeid = if script.byte().is_multiple_of(2) { 1 } else { number(script) };
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

fn send(
    server: &mut Server,
    fs: &mut ModelFs,
    caller: &Caller,
    message: &[u8],
    data: &[u8],
    unique: u64,
) {
    const GUARD: u8 = 0xa5;
    if let Ok(Message { request: Ok(Request::Fallocate(args)), .. }) =
        Message::decode(message, data)
        && args.length > ALLOCATED_MAX
    {
        return;
    }
    let (mut reply, mut room) = (vec![GUARD; REPLY_MAX + 8], vec![GUARD; ROOM]);
    let place = &mut reply[..REPLY_MAX];
    let Ok(Reply { message: len, data }) =
        server.serve(fs, caller, message, data, place, &mut room)
    else {
        return;
    };
    if len == 0 {
        assert_eq!(data, 0, "data without a message");
        return;
    }
    let header = OutHeader::load(&reply);
    assert_eq!(header.len as usize, len + data, "the reply's length");
    assert!(header.error <= 0 && header.error > -4096, "the reply's error number");
    assert!(header.error == 0 || len == OutHeader::SIZE && data == 0, "an error with an answer");
    // Damage may have changed the number; then it is that of the message.
    let sent = InHeader::load(message).unique;
    assert!(header.unique == unique || header.unique == sent, "another request was answered");
    assert!(reply[len..].iter().all(|&byte| byte == GUARD), "bytes after the reply");
}
