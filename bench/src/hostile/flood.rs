//! Requests on all slots of all lanes.

use std::path::Path;
use std::time::Duration;

use atoll_transport::channel::Config;
use atoll_transport::{Token, Transport};
use atoll_vfs::wire::Request;
use atoll_vfs::wire::files::{FallocateIn, FsyncIn, ReadIn};
use atoll_vfs::wire::header::InHeader;
use atoll_vfs::{Errno, FallocateMode, FileSystem, Handle, Ino, Name, OpenFlags};

use super::attacks::Scene;
use super::rings::{BIG, CX, MANY, Way, connect, failed};
use crate::record::Broken;

/// Finds the inode and the handle that requests are about.
type Opening<'a> = &'a dyn Fn(&mut Way) -> Result<(Ino, Handle), Errno>;

/// Many requests in flight, on all lanes of a connection.
struct Flood {
    /// Bytes of a lane's window.
    window: u64,
    lanes: Vec<(Way, Vec<Token>)>,
    unique: u64,
}

impl Flood {
    /// With windows of `bytes`, or of half as many again and again until the server agrees.
    fn connect(socket: &Path, lanes: u32, slots: u32, bytes: u64) -> Result<Flood, String> {
        let mut window = bytes.min((250 << 20) / u64::from(lanes)).next_multiple_of(4096);
        loop {
            let config = Config { lanes, slots, window, ..Config::default() };
            match connect(socket, &config) {
                Ok(mut ring) => {
                    let lanes = (0..lanes).filter_map(|_| Some((ring.client()?, Vec::new())));
                    let lanes = lanes.collect();
                    return Ok(Flood { window, lanes, unique: 1 });
                }
                Err(why) if window <= 64 << 10 => return Err(why),
                Err(_) => window = (window / 2).next_multiple_of(4096),
            }
        }
    }

    fn first(&mut self) -> Result<&mut Way, Broken> {
        self.lanes.first_mut().map(|lane| &mut lane.0).ok_or_else(|| Broken("no lane".into()))
    }

    /// Fills all slots with what `request` makes for the lane of a number, on `ino`, with this much
    /// room for the answer; takes what is answered. Returns how many were, or `None` when the
    /// session is over.
    fn push(
        &mut self,
        ino: Ino,
        room: usize,
        request: &dyn Fn(usize) -> Request<'static>,
    ) -> Option<usize> {
        let mut answered = 0;
        for (number, (way, tokens)) in self.lanes.iter_mut().enumerate() {
            let lane = way.transport();
            let mut waiting = Vec::new();
            for token in tokens.drain(..) {
                match lane.ready(&token).ok()? {
                    true => {
                        lane.receive(token, &mut [], &mut []).ok()?;
                        answered += 1;
                    }
                    false => waiting.push(token),
                }
            }
            *tokens = waiting;
            let mut message = [0; 512];
            // The window has room for one answer at a time of the largest.
            loop {
                self.unique += 2;
                let header = InHeader { unique: self.unique, nodeid: ino.0, ..InHeader::default() };
                let len = request(number).encode(&header, None, &mut message)?;
                match lane.send(&message[..len], &[], room) {
                    Ok(token) => tokens.push(token),
                    Err(_) => break,
                }
            }
        }
        Some(answered)
    }
}

/// Keeps all slots of `connections` busy with `request`, for which `open` finds inode and handle.
fn flood(
    scene: &Scene,
    (connections, lanes, slots): (u32, u32, u32),
    bytes: u64,
    open: Opening<'_>,
    request: &dyn Fn(Handle, u32, usize) -> Request<'static>,
) -> Result<(), Broken> {
    let mut floods = Vec::new();
    for number in 0..connections {
        match Flood::connect(&scene.socket, lanes, slots, bytes) {
            Ok(mut flood) => {
                let (ino, handle) = open(flood.first()?).map_err(failed)?;
                floods.push((flood, ino, handle));
            }
            Err(why) if number == 0 => return Err(Broken(why)),
            Err(why) => {
                scene.note(&format!("{number} of {connections} connections: {why}"));
                break;
            }
        }
    }
    scene.ready();
    let mut idle = 0;
    while idle < 20_000 {
        let mut answered = 0;
        for (flood, ino, handle) in &mut floods {
            let room = bytes.min(flood.window) as u32;
            match flood.push(*ino, room as usize, &|lane| request(*handle, room, lane)) {
                Some(some) => answered += some,
                None => return Err(Broken("the session was ended".into())),
            }
        }
        idle = if answered == 0 { idle + 1 } else { 0 };
        if answered == 0 {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
    Ok(())
}

/// Large reads on as many lanes as there may be.
pub fn reads(scene: &Scene) -> Result<(), Broken> {
    let open = |way: &mut Way| {
        let found = way.lookup(&CX, Ino::ROOT, Name::new(BIG.as_bytes())?)?;
        Ok((found.ino, way.open(&CX, found.ino, OpenFlags::READ)?))
    };
    flood(scene, (4, 64, 16), 16 << 20, &open, &|handle, size, _| {
        Request::Read(ReadIn { fh: handle.0, size, ..ReadIn::default() })
    })
}

/// Names that are not there, on all slots of all lanes.
pub fn lookups(scene: &Scene) -> Result<(), Broken> {
    let open = |_: &mut Way| Ok((Ino::ROOT, Handle(0)));
    const NAME: &[u8] = b"a name that is not there";
    let name = Name::new(NAME).map_err(failed)?;
    flood(scene, (4, 64, 16), 0, &open, &|_, _, _| Request::Lookup { name })
}

/// READDIRPLUS with as much room as there may be, on all lanes.
pub fn listings(scene: &Scene) -> Result<(), Broken> {
    let open = |way: &mut Way| {
        let found = way.lookup(&CX, Ino::ROOT, Name::new(MANY.as_bytes())?)?;
        Ok((found.ino, way.opendir(&CX, found.ino)?))
    };
    flood(scene, (4, 4, 1), 62 << 20, &open, &|handle, size, _| {
        Request::Readdirplus(ReadIn { fh: handle.0, size, ..ReadIn::default() })
    })
}

/// FSYNC on all slots, with writes between.
pub fn syncs(scene: &Scene) -> Result<(), Broken> {
    let own = format!("syncs{}", std::process::id());
    let open = |way: &mut Way| {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let (attr, handle) =
            way.create(&CX, Ino::ROOT, Name::new(own.as_bytes())?, 0o600, flags)?;
        Ok((attr.ino, handle))
    };
    flood(scene, (4, 64, 16), 0, &open, &|handle, _, lane| match lane % 8 {
        0 => {
            let args = FallocateIn {
                fh: handle.0,
                offset: 0,
                length: 1 << 20,
                mode: FallocateMode::ZERO_RANGE.bits(),
                padding: 0,
            };
            Request::Fallocate(args)
        }
        _ => Request::Fsync(FsyncIn { fh: handle.0, ..FsyncIn::default() }),
    })
}
