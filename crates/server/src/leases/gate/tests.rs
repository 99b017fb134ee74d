use super::*;
use crate::testing::{Noted, StillHost};

const INO: Ino = Ino(7);
const NOTICE: Notice = Notice { ino: 7, pages: true, grown: None, name: None, until: None };

/// A gate with a keeper, and its clock.
fn gate() -> (Arc<StillHost>, Gate) {
    let host = Arc::new(StillHost::default());
    let gate = Gate::new(Arc::<StillHost>::clone(&host));
    assert!(gate.keep(Arc::new(Noted::default())) && !gate.keep(Arc::new(Noted::default())));
    (host, gate)
}

fn mount(gate: &Gate) -> PortId {
    gate.begin(Arc::new(Noted::default()), None)
}

#[test]
fn answers_wait_for_what_was_told_before() {
    let (_, gate) = gate();
    let (a, b) = (mount(&gate), mount(&gate));
    assert!(gate.is_open() && gate.ticket(&Involved::default()).is_none());
    gate.tell(a, INO, NOTICE);
    gate.tell(b, INO, NOTICE);
    let (done, waiting) = std::sync::mpsc::channel();
    let ticket = gate.ticket(&Involved::default()).unwrap();
    gate.after(ticket, move || done.send(()).unwrap());
    // The answer does not wait for later notices.
    gate.tell(a, INO, NOTICE);
    assert_eq!(gate.next(a), Next::Tell(NOTICE));
    gate.told(a);
    assert!(waiting.try_recv().is_err());
    gate.end(b);
    waiting.try_recv().unwrap();
    assert!(!gate.is_open());
    gate.next(a);
    gate.told(a);
    assert!(gate.is_open());
    gate.end(a);
    assert_eq!(gate.next(a), Next::Over);
}

/// Calls on a few inodes, some of them changes with notices: each answer waits for the notices
/// of its own call and of all changes that it follows from, and for no others.
#[test]
fn answers_wait_for_what_they_go_by() {
    use std::collections::BTreeSet;
    let (_, gate) = gate();
    let ports = [mount(&gate), mount(&gate)];
    let (mut told, mut done) = ([0; 2], [0; 2]);
    // For each inode, the notices that a call which goes by it follows from.
    let mut follows: [BTreeSet<(usize, u64)>; 6] = Default::default();
    let mut seed = 1u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) % below
    };
    let mut waited = [0; 2];
    for _ in 0..20_000 {
        if random(2) == 0 {
            let port = random(2) as usize;
            if done[port] < told[port] {
                gate.next(ports[port]);
                gate.told(ports[port]);
                done[port] += 1;
            }
            continue;
        }
        let mut involved = Involved::default();
        let all = random(20) == 0;
        let inodes: BTreeSet<usize> = (0..=random(3)).map(|_| random(6) as usize).collect();
        inodes.iter().for_each(|&ino| involved.add(Ino(ino as u64)));
        if all {
            involved.add_all();
        }
        let mut sees: BTreeSet<_> = inodes.iter().flat_map(|&ino| follows[ino].clone()).collect();
        if all {
            sees = (0..2).flat_map(|port| (1..=told[port]).map(move |n| (port, n))).collect();
        }
        if random(2) == 0 {
            for &ino in &inodes {
                involved.change(Ino(ino as u64));
                for port in (0..2).filter(|_| random(8) == 0) {
                    gate.tell(ports[port], Ino(ino as u64), NOTICE);
                    told[port] += 1;
                    sees.insert((port, told[port]));
                }
            }
            inodes.iter().for_each(|&ino| follows[ino].extend(&sees));
        }
        let last = |port| sees.iter().filter(|need| need.0 == port).map(|need| need.1).max();
        let expected = [0, 1].map(|port| last(port).filter(|&last| last > done[port]));
        let ticket = gate.ticket(&involved).unwrap_or_default();
        let waits = [0, 1].map(|port| {
            let need = ticket.0.iter().find(|need| need.0 == ports[port]);
            need.map(|need| need.1).filter(|&need| need > done[port])
        });
        assert_eq!(waits, expected);
        waited[usize::from(waits != [None; 2])] += 1;
        let free = inodes.iter().all(|&ino| {
            assert_eq!(
                gate.is_free(Ino(ino as u64)),
                follows[ino].iter().all(|&(port, n)| n <= done[port])
            );
            gate.is_free(Ino(ino as u64))
        });
        assert!(all || free == (waits == [None; 2]));
    }
    assert!(waited.iter().all(|&times| times > 1000), "{waited:?}");
    ports.into_iter().for_each(|port| gate.end(port));
}

/// An answer that waits for a mount of less patience than those before it is looked after in
/// time.
#[test]
fn the_keeper_hears_of_an_earlier_deadline() {
    let host = Arc::new(StillHost::default());
    let gate = Gate::new(Arc::<StillHost>::clone(&host));
    let bell = Arc::new(Noted::default());
    assert!(gate.keep(Arc::<Noted>::clone(&bell)));
    let trusted = mount(&gate);
    let other = gate.begin(Arc::new(Noted::default()), Some(Party::User(7)));
    gate.tell(trusted, INO, NOTICE);
    gate.tell(other, INO, NOTICE);
    let wakes = |port, cut| {
        gate.after_cut(Ticket(vec![(port, 1)]), cut, || {});
        bell.was_rung()
    };
    assert!(wakes(trusted, None), "the first");
    assert_eq!(gate.tend(), Some(Some(PATIENCE)));
    host.pass(Duration::from_millis(1));
    assert!(!wakes(trusted, None), "it is late after the first");
    assert!(wakes(other, None));
    assert_eq!(gate.tend(), Some(Some(UNTRUSTED)));
    host.pass(UNTRUSTED);
    assert_eq!(gate.tend(), Some(Some(PATIENCE - UNTRUSTED - Duration::from_millis(1))));
    assert!(gate.is_fenced(other) && !gate.is_fenced(trusted));
    assert!(wakes(trusted, Some(Cut { port: other, ino: 7 })), "it may be stuck soon");
    gate.end(trusted);
    gate.end(other);
}

/// However long it takes, an answer goes out when the mount has forgotten, or has ended.
#[test]
fn who_is_late_is_fenced() {
    for ends in [true, false] {
        let (host, gate) = gate();
        let (late, prompt) = (Arc::new(Noted::default()), Arc::new(Noted::default()));
        let (a, b) = (
            gate.begin(Arc::<Noted>::clone(&late), None),
            gate.begin(Arc::<Noted>::clone(&prompt), None),
        );
        gate.tell(a, INO, NOTICE);
        gate.tell(b, INO, NOTICE);
        gate.next(b);
        gate.told(b);
        let (done, waiting) = std::sync::mpsc::channel();
        gate.after(gate.ticket(&Involved::default()).unwrap(), move || done.send(()).unwrap());
        assert_eq!(gate.tend(), Some(Some(PATIENCE)));
        host.pass(PATIENCE - Duration::from_millis(1));
        assert_eq!(gate.tend(), Some(Some(Duration::from_millis(1))));
        assert!(!late.was_fenced());
        host.pass(Duration::from_millis(1));
        assert_eq!(gate.tend(), Some(None));
        assert!(late.was_fenced() && !prompt.was_fenced());
        assert!(gate.is_fenced(a) && !gate.is_fenced(b));
        host.pass(100 * PATIENCE);
        assert_eq!(gate.tend(), Some(None));
        assert!(waiting.try_recv().is_err(), "it may see old data");
        gate.tell(a, INO, NOTICE);
        gate.finish(a);
        for _ in 0..2 {
            assert_eq!(gate.next(a), Next::Tell(NOTICE));
            if ends {
                break;
            }
            gate.told(a);
        }
        if ends {
            assert!(!gate.is_open() && waiting.try_recv().is_err());
        } else {
            assert_eq!(gate.next(a), Next::Over);
        }
        gate.end(a);
        waiting.try_recv().unwrap();
        assert!(gate.is_open());
        gate.end(b);
        assert_eq!(gate.tend(), None, "nobody is left");
    }
}

/// A user's mounts that lie, one after the other, make an answer wait once; other users' mounts
/// are as they were.
#[test]
fn who_lies_is_not_waited_for_again() {
    let (host, gate) = gate();
    let ports =
        [7, 7, 7, 8].map(|uid| gate.begin(Arc::new(Noted::default()), Some(Party::User(uid))));
    let honest = mount(&gate);
    // An answer waits for the mount at `port`, which never forgets; returns for how long.
    let wait = |port: PortId| {
        gate.tell(port, INO, NOTICE);
        gate.after(gate.ticket(&Involved::default()).unwrap(), || {});
        let mut waited = Duration::ZERO;
        while !gate.is_fenced(port) {
            let next = gate.tend().unwrap().unwrap();
            host.pass(next);
            waited += next;
            gate.tend();
        }
        gate.end(port);
        waited
    };
    assert!(ports.iter().chain([&honest]).all(|&port| gate.lends(port)));
    assert_eq!(wait(ports[0]), UNTRUSTED);
    assert!(!gate.lends(ports[1]) && gate.lends(ports[3]) && gate.lends(honest));
    assert_eq!(wait(ports[1]), DISTRUSTED, "it had a lease before");
    assert_eq!(wait(ports[3]), UNTRUSTED, "another user");
    host.pass(crate::leases::trust::WITHDRAWN);
    assert!(gate.lends(ports[2]));
    assert_eq!(wait(honest), PATIENCE);
    let again = mount(&gate);
    assert!(gate.lends(again), "a trusted user stays so");
    gate.end(again);
    gate.end(ports[2]);
}

struct Machine;

impl Bell for Machine {
    fn ring(&self) {}
}

impl Mount for Machine {
    fn fence(&self) {}

    fn machine(&self) -> Option<u64> {
        Some(7)
    }
}

/// A virtual machine cannot be made to forget: when it is fenced nobody waits for it any more,
/// also if nothing is ever heard of it again.
#[test]
fn a_machine_that_is_fenced_is_let_go() {
    let (host, gate) = gate();
    let begin = || gate.begin(Arc::new(Machine), Some(Party::Machine(7)));
    let (machine, same) = (begin(), begin());
    let user = gate.begin(Arc::new(Noted::default()), Some(Party::User(7)));
    for told in 0..3 {
        gate.tell(machine, INO, NOTICE);
        if told < 2 {
            assert_eq!(gate.next(machine), Next::Tell(NOTICE));
        }
    }
    assert_eq!(gate.behind(machine), 3);
    gate.told(machine);
    assert_eq!(gate.behind(machine), 2);
    let (done, waiting) = std::sync::mpsc::channel();
    gate.after(gate.ticket(&Involved::default()).unwrap(), move || done.send(()).unwrap());
    assert_eq!(gate.tend(), Some(Some(UNTRUSTED)));
    assert!(waiting.try_recv().is_err());
    host.pass(UNTRUSTED);
    assert_eq!(gate.tend(), Some(None));
    waiting.try_recv().unwrap();
    assert!(gate.is_open() && gate.is_fenced(machine));
    assert_eq!(gate.next(machine), Next::Over);
    assert!(!gate.lends(same) && gate.lends(user), "a user of the same number is another");
    gate.end(same);
    gate.end(user);
}

/// Of two mounts that cut one file, and write nothing back before, the older cut is answered.
#[test]
fn cuts_that_wait_for_each_other() {
    let (host, gate) = gate();
    let mount = Arc::new(Noted::default());
    let ports = [0, 1].map(|_| gate.begin(Arc::<Noted>::clone(&mount), None));
    let (done, waiting) = std::sync::mpsc::channel();
    for (i, port) in ports.into_iter().enumerate() {
        gate.tell(ports[1 - i], INO, NOTICE);
        let ticket = Ticket(vec![(ports[1 - i], 1)]);
        let done = done.clone();
        let cut = Some(Cut { port, ino: NOTICE.ino });
        gate.after_cut(ticket, cut, move || done.send(i).unwrap());
        host.pass(Duration::from_millis(1));
    }
    for port in ports {
        gate.next(port);
    }
    host.pass(STUCK - Duration::from_millis(3));
    gate.tend();
    assert!(waiting.try_recv().is_err(), "that early they may only be slow");
    host.pass(Duration::from_millis(1));
    gate.tend();
    assert_eq!(waiting.try_recv(), Ok(0));
    gate.tend();
    assert!(waiting.try_recv().is_err(), "the other goes on");
    gate.told(ports[0]);
    assert_eq!(waiting.try_recv(), Ok(1));
    assert!(!mount.was_fenced(), "both could go on");
}
