//! How long a client's requests wait while strangers always have more to ask: several users, with
//! any number of connections each, at one carrier's share of its time. Requests go the whole way;
//! the time that they take is virtual, so that it is the same on every machine.

use std::cell::Cell;
use std::time::Duration;

use atoll_server::route::router::serve_next;
use atoll_server::route::share::{BATCH, QUANTUM, Served, Share, UNIT};
use atoll_tests::rng::Rng;
use atoll_vfs::wire::Request;
use atoll_vfs::wire::files::ReadIn;
use atoll_vfs::{Context, FileSystem, Handle, Ino, Name, OpenFlags, SetAttr, Timespec};

use crate::carrier::{Letter, Parcel};
use crate::codec::{Asker, Dialect};
use crate::measure::{empty, late_mounts};
use crate::plant::Plant;
use crate::seat::{Role, Seat};
use crate::world::{Outcome, Template, World};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
/// A moment.
const MOMENT: Duration = Duration::from_micros(1);
/// The time of a look at the clock.
const LOOK: Duration = Duration::from_nanos(250);
/// The moments that a request takes which moves nothing, one of these in a world.
const REQUEST: [u32; 3] = [4, 10, 25];
/// Bytes that are moved in a moment.
const MOVED: usize = 8 << 10;
/// The most bytes of a stranger's request.
const LARGEST: usize = 1 << 20;
/// A request takes the time of so many bytes for each that it moves: nobody looks at them.
const FOR_EACH: usize = 64;
/// The victim's requests.
const REQUESTS: u32 = 40;

/// How long all answers together may wait for the mounts of one user that never let go: until the
/// first is fenced, and for as long as its kernel is given to take its notices.
const LATE: Duration = Duration::from_millis(3100);

/// A client at the carrier.
struct Client {
    /// Its number in the world.
    seat: usize,
    /// The file that it reads.
    file: (Ino, Handle),
    /// Bytes whose time each of its requests takes.
    bytes: usize,
    /// When its oldest request came, or the next one comes.
    since: Duration,
}

/// The moments that it takes to move `bytes`.
fn moving(bytes: usize) -> u32 {
    (bytes / MOVED) as u32
}

/// Lets a victim and strangers ask, and judges how long the victim waited.
pub(crate) fn judge(template: &Template, rng: &mut Rng, plant: Option<Plant>) -> Outcome<()> {
    let mut world = empty(template)?;
    world.sit_down(Role::Root)?;
    let file = large_file(&world.seats[0])?;
    let request = rng.pick(&REQUEST);
    let cost = |bytes| MOMENT * (request + moving(bytes));
    let strangers = rng.within(1..4) as u32;
    let (mut share, mut users) = (Share::default(), 0);
    for user in 0..=strangers {
        let connections = if user == 0 { 1 } else { rng.within(1..25) };
        let bytes = if user == 0 { 0 } else { rng.pick(&[0, 4096, 64 << 10, LARGEST]) };
        users += 1;
        for _ in 0..connections {
            world.sit_down(Role::ReadOnly)?;
            let seat = world.seats.len() - 1;
            let opened =
                world.seats[seat].place.with(|session| session.open(&CX, file, OpenFlags::READ));
            let handle = opened.ok_or("no session")?.map_err(|error| error.to_string())?;
            let client = Client { seat, file: (file, handle), bytes, since: Duration::ZERO };
            let uid = match plant {
                Some(Plant::ConnectionsAsUsers) => seat as u32,
                _ => user,
            };
            share.begin(uid, client);
        }
    }
    world.take_letters(None)?;
    let victim = 1;
    let (now, mut longest, mut answered) = (Cell::new(Duration::ZERO), Duration::ZERO, 0);
    // In the first round the carrier does not know that there is anything to share.
    let mut known = None;
    let mut pauses: Vec<Duration> =
        (0..REQUESTS).map(|_| MOMENT * rng.within(0..300) as u32).collect();
    let by_requests = plant == Some(Plant::TurnsByRequests);
    let mut served = Ok(());
    while answered < REQUESTS && served.is_ok() {
        let serve = |client: &mut Client, most: u32| {
            let mut units = 0;
            while units < if by_requests { BATCH } else { most } {
                if client.since > now.get() || answered == REQUESTS {
                    break;
                }
                served = served.clone().and_then(|()| serve_one(&mut world, client));
                if served.is_err() {
                    return Served::Gone;
                }
                now.set(now.get() + cost(client.bytes));
                units += if by_requests { 1 } else { 1 + (client.bytes / UNIT) as u32 };
                if client.seat == victim {
                    answered += 1;
                    if known.is_some_and(|known| client.since >= known) {
                        longest = longest.max(now.get() - client.since);
                    }
                    client.since = now.get() + pauses.pop().unwrap_or_default();
                }
            }
            Served::Units(units)
        };
        // A look at the clock takes time, too.
        let clock = || {
            now.set(now.get() + LOOK);
            now.get()
        };
        if !share.round(clock, serve) {
            now.set(now.get() + MOMENT);
        }
        known.get_or_insert(now.get());
    }
    served?;
    // Each user has its time, and may have begun one request more.
    let most = (2 * QUANTUM + cost(LARGEST)) * users;
    if longest > most {
        let what = format!("one of {users} users waits {longest:?} for an answer");
        return Err(format!("{what}, at most {most:?} may be needed"));
    }
    Ok(())
}

/// Lets a user mount again and again and take no notice, and judges how long others waited.
pub(crate) fn judge_mounts(
    template: &Template,
    rng: &mut Rng,
    plant: Option<Plant>,
) -> Outcome<()> {
    let mounts = rng.within(1..5) as u32;
    let waited = late_mounts(template, mounts, plant)?;
    match waited <= LATE {
        true => Ok(()),
        false => Err(format!("answers wait {waited:?} for {mounts} mounts of a stranger")),
    }
}

/// A file that all may read, as long as the largest request, with nothing in it.
fn large_file(root: &Seat) -> Outcome<Ino> {
    let made = root.place.with(|session| {
        let name = Name::new(b"long")?;
        let (attr, handle) = session.create(&CX, Ino::ROOT, name, 0o644, OpenFlags::WRITE)?;
        let size = SetAttr { size: Some((LARGEST / FOR_EACH) as u64), ..SetAttr::default() };
        session.setattr(&CX, attr.ino, Some(handle), &size)?;
        Ok(attr.ino)
    });
    made.ok_or("no session")?.map_err(|error: atoll_vfs::Errno| error.to_string())
}

/// The server takes a request of `client` and answers it.
fn serve_one(world: &mut World, client: &Client) -> Outcome<()> {
    let (ino, handle) = client.file;
    let bytes = client.bytes / FOR_EACH;
    let args = ReadIn { fh: handle.0, size: bytes as u32, ..ReadIn::default() };
    let asker = Asker { dialect: Dialect::Client, uid: 0, id: 1 };
    let parcel: Parcel = asker.pack(ino, &Request::Read(args), bytes);
    let Seat { line, router, place, .. } = &mut world.seats[client.seat];
    line.push(parcel);
    serve_next(line, router, place).map_err(|ended| format!("{ended:?}"))?;
    match &world.outbox.take()[..] {
        [Letter::Answered { reply, .. }] if reply.data.len() == bytes => Ok(()),
        _ => Err("a read is not answered with what was asked for".into()),
    }
}
