//! The table against a model that keeps, for every byte, who has it locked.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;

/// Bytes that the model tells apart; the last stands for all from there to the end.
const BYTES: usize = 12;
const FILES: u64 = 2;
const SESSIONS: u64 = 2;
const NUMBERS: u64 = 2;

#[derive(Clone, Debug)]
enum Op {
    Set { file: u64, owner: Owner, kind: Option<LockKind>, from: usize, to: usize, wait: bool },
    Test { file: u64, owner: Owner, kind: LockKind, from: usize, to: usize },
    Cancel { session: u64, nth: usize },
    Close { file: u64, owner: Owner },
    End { session: u64 },
}

fn owner() -> impl Strategy<Value = Owner> {
    (0..SESSIONS, 0..NUMBERS)
        .prop_map(|(session, number)| Owner { session: SessionId(session), number })
}

fn kind() -> impl Strategy<Value = LockKind> {
    prop_oneof![Just(LockKind::Shared), Just(LockKind::Exclusive)]
}

fn op() -> impl Strategy<Value = Op> {
    let bytes = || (0..BYTES, 0..BYTES).prop_map(|(a, b)| (a.min(b), a.max(b)));
    prop_oneof![
        12 => (0..FILES, owner(), proptest::option::weighted(0.7, kind()), bytes(), any::<bool>())
            .prop_map(|(file, owner, kind, (from, to), wait)| {
                Op::Set { file, owner, kind, from, to, wait }
            }),
        3 => (0..FILES, owner(), kind(), bytes())
            .prop_map(|(file, owner, kind, (from, to))| Op::Test { file, owner, kind, from, to }),
        2 => (0..SESSIONS, 0..4usize).prop_map(|(session, nth)| Op::Cancel { session, nth }),
        2 => (0..FILES, owner()).prop_map(|(file, owner)| Op::Close { file, owner }),
        1 => (0..SESSIONS).prop_map(|session| Op::End { session }),
    ]
}

/// All that these tests use.
fn sessions() -> impl Iterator<Item = SessionId> {
    (0..100).map(SessionId)
}

fn range(from: usize, to: usize) -> LockRange {
    let end = if to == BYTES - 1 { u64::MAX } else { to as u64 };
    LockRange { start: from as u64, end }
}

#[derive(Clone, Copy)]
struct Waiter {
    id: WaitId,
    file: u64,
    owner: Owner,
    kind: LockKind,
    from: usize,
    to: usize,
}

#[derive(Default)]
struct Model {
    /// The owners that have a byte of a file locked, and how.
    bytes: HashMap<(u64, usize), Vec<(Owner, LockKind)>>,
    waiting: Vec<Waiter>,
    outcomes: Vec<(WaitId, Result<()>)>,
}

impl Model {
    fn blockers(
        &self,
        file: u64,
        owner: Owner,
        kind: LockKind,
        from: usize,
        to: usize,
    ) -> Vec<Owner> {
        let mut out = Vec::new();
        for byte in from..=to {
            for &(other, held) in self.bytes.get(&(file, byte)).into_iter().flatten() {
                if other != owner && (held == LockKind::Exclusive || kind == LockKind::Exclusive) {
                    out.push(other);
                }
            }
        }
        out
    }

    fn put(&mut self, file: u64, owner: Owner, kind: Option<LockKind>, from: usize, to: usize) {
        for byte in from..=to {
            let of_byte = self.bytes.entry((file, byte)).or_default();
            of_byte.retain(|(other, _)| *other != owner);
            of_byte.extend(kind.map(|kind| (owner, kind)));
        }
        self.grant();
    }

    fn grant(&mut self) {
        while let Some(at) = self
            .waiting
            .iter()
            .position(|w| self.blockers(w.file, w.owner, w.kind, w.from, w.to).is_empty())
        {
            let w = self.waiting.remove(at);
            self.outcomes.push((w.id, Ok(())));
            for byte in w.from..=w.to {
                let of_byte = self.bytes.entry((w.file, byte)).or_default();
                of_byte.retain(|(other, _)| *other != w.owner);
                of_byte.push((w.owner, w.kind));
            }
        }
    }

    /// Whether `target` is reached from `from` along "waits for".
    fn reaches(&self, from: Owner, target: Owner, seen: &mut HashSet<Owner>) -> bool {
        from == target
            || seen.insert(from)
                && self.waiting.iter().filter(|w| w.owner == from).any(|w| {
                    let next = self.blockers(w.file, w.owner, w.kind, w.from, w.to);
                    next.into_iter().any(|next| self.reaches(next, target, seen))
                })
    }
}

fn expand(table: &LockTable) -> HashMap<(u64, usize), Vec<(Owner, LockKind)>> {
    let mut bytes: HashMap<(u64, usize), Vec<(Owner, LockKind)>> = HashMap::new();
    for ((ino, _), file) in &table.files {
        for held in sessions().flat_map(|session| file.held.of_session(session)) {
            for byte in 0..BYTES {
                if held.range.start <= byte as u64 && byte as u64 <= held.range.end {
                    bytes.entry((ino.0, byte)).or_default().push((held.owner, held.kind));
                }
            }
        }
    }
    bytes
}

fn sorted(
    bytes: &HashMap<(u64, usize), Vec<(Owner, LockKind)>>,
) -> Vec<((u64, usize), Vec<String>)> {
    let mut out: Vec<_> = bytes
        .iter()
        .filter(|(_, held)| !held.is_empty())
        .map(|(place, held)| {
            let mut held: Vec<String> = held.iter().map(|held| format!("{held:?}")).collect();
            held.sort();
            (*place, held)
        })
        .collect();
    out.sort();
    out
}

/// Checks that the table's own books are right.
fn check_books(table: &LockTable) {
    let mut counts: HashMap<SessionId, usize> = HashMap::new();
    let mut waits = 0;
    let mut files = BTreeSet::new();
    for (key, file) in &table.files {
        assert!(!file.held.is_empty() || !file.waiting.is_empty(), "an empty file is kept");
        let all: Vec<Held> =
            sessions().flat_map(|session| file.held.of_session(session)).copied().collect();
        files.extend(all.iter().map(|held| (held.owner.session, *key)));
        for held in &all {
            *counts.entry(held.owner.session).or_default() += 1;
            let twice = all.iter().filter(|other| {
                other.owner == held.owner
                    && (other.range.overlaps(held.range)
                        || other.kind == held.kind
                            && held.range.end.checked_add(1) == Some(other.range.start))
            });
            assert_eq!(twice.count(), 1, "an owner's locks overlap or could be one");
        }
        for kind in [LockKind::Shared, LockKind::Exclusive] {
            let waits =
                if kind == LockKind::Shared { &file.for_shared } else { &file.for_exclusive };
            let mut asking = BTreeSet::new();
            add_asking(waits, LockRange::ALL, &mut asking);
            let such = file.waiting.iter().filter(|(_, waiting)| waiting.ask.kind == kind);
            assert_eq!(asking, such.map(|(id, _)| *id).collect());
        }
        for (id, waiting) in &file.waiting {
            *counts.entry(waiting.ask.owner.session).or_default() += 1;
            assert!(table.waits.contains_key(id));
            assert!(table.waits_by.contains(&(waiting.ask.owner.session, *id)));
            waits += 1;
        }
    }
    assert_eq!(files, table.files_of);
    assert_eq!(counts, table.counts);
    assert_eq!(counts.values().sum::<usize>(), table.of_users.values().sum::<usize>());
    assert_eq!(waits, table.waits_by.len());
    assert_eq!(waits, table.waits.len());
    assert_eq!(waits, table.waits_of.values().map(BTreeSet::len).sum::<usize>());
}

type Outcomes = Arc<Mutex<Vec<(u64, Result<()>)>>>;

fn wake(outcomes: &Outcomes, number: u64) -> Wake {
    let outcomes = Arc::clone(outcomes);
    Box::new(move |outcome| outcomes.lock().unwrap().push((number, outcome)))
}

fn run(ops: &[Op]) {
    let mut table = LockTable::default();
    let mut model = Model::default();
    let outcomes = Outcomes::default();
    for op in ops {
        match *op {
            Op::Set { file, owner, kind: Some(kind), from, to, wait } => {
                let ask = Ask {
                    key: (Ino(file), Family::Fcntl),
                    owner,
                    range: range(from, to),
                    kind,
                    pid: 7,
                    through: owner.number,
                };
                let blockers = model.blockers(file, owner, kind, from, to);
                if !wait {
                    let (result, wakes) = table.set(&ask, &None, 1000);
                    wakes.call();
                    if blockers.is_empty() {
                        assert_eq!(result, Ok(()));
                        model.put(file, owner, Some(kind), from, to);
                    } else {
                        assert_eq!(result, Err(Errno::EAGAIN));
                    }
                    continue;
                }
                // The table numbers waits in the order of asking.
                let number = table.next_wait;
                let (result, wakes) = table.set_or_wait(&ask, &None, 1000, wake(&outcomes, number));
                wakes.call();
                if blockers.is_empty() {
                    assert_eq!(result, Ok(Waited::Granted));
                    model.put(file, owner, Some(kind), from, to);
                } else if blockers.iter().any(|b| model.reaches(*b, owner, &mut HashSet::new())) {
                    assert_eq!(result, Err(Errno::EDEADLK));
                } else {
                    let id = WaitId(number);
                    assert_eq!(result, Ok(Waited::Queued(id)));
                    model.waiting.push(Waiter { id, file, owner, kind, from, to });
                }
            }
            Op::Set { file, owner, kind: None, from, to, .. } => {
                let key = (Ino(file), Family::Fcntl);
                let (result, wakes) = table.unset(key, owner, range(from, to), 1000);
                wakes.call();
                assert_eq!(result, Ok(()));
                model.put(file, owner, None, from, to);
            }
            Op::Test { file, owner, kind, from, to } => {
                let key = (Ino(file), Family::Fcntl);
                let ask = Ask { key, owner, range: range(from, to), kind, pid: 0, through: 0 };
                let blockers = model.blockers(file, owner, kind, from, to);
                match table.test(&ask) {
                    Some(holder) => {
                        assert!(!blockers.is_empty());
                        // The first, as F_GETLK has it.
                        let blocked =
                            |at: &usize| !model.blockers(file, owner, kind, *at, *at).is_empty();
                        let first = (from..=to).find(blocked).unwrap();
                        assert!(holder.range.overlaps(range(first, first)), "{holder:?}, {first}");
                    }
                    None => assert!(blockers.is_empty()),
                }
            }
            Op::Cancel { session, nth } => {
                let session = SessionId(session);
                let Some(waiter) = model.waiting.get(nth).copied() else { continue };
                table.cancel(session, waiter.id).call();
                if waiter.owner.session == session {
                    model.waiting.remove(nth);
                    model.outcomes.push((waiter.id, Err(Errno::EINTR)));
                }
            }
            // Each owner has an open file of its own, as that of an open file description.
            Op::Close { file, owner } => {
                let key = (Ino(file), Family::Fcntl);
                table.release(key, owner.session, owner.number).call();
                model.put(file, owner, None, 0, BYTES - 1);
            }
            Op::End { session } => {
                let session = SessionId(session);
                table.end(session).call();
                let (ended, rest) =
                    model.waiting.iter().copied().partition(|w| w.owner.session == session);
                model.waiting = rest;
                let ended: Vec<Waiter> = ended;
                model.outcomes.extend(ended.iter().map(|w| (w.id, Err(Errno::EINTR))));
                for held in model.bytes.values_mut() {
                    held.retain(|(owner, _)| owner.session != session);
                }
                model.grant();
            }
        }
        check_books(&table);
        assert_eq!(sorted(&expand(&table)), sorted(&model.bytes));
        // The model grants in another order of files when a session ends.
        let mut told = outcomes.lock().unwrap().clone();
        let mut expected: Vec<(u64, Result<()>)> =
            model.outcomes.iter().map(|(id, outcome)| (id.0, *outcome)).collect();
        told.sort_by_key(|(id, _)| *id);
        expected.sort_by_key(|(id, _)| *id);
        assert_eq!(told, expected);
    }
    for session in 0..SESSIONS {
        table.end(SessionId(session)).call();
    }
    assert!(table.files.is_empty() && table.counts.is_empty() && table.waits_of.is_empty());
    assert!(table.files_of.is_empty() && table.of_users.is_empty() && table.waits_by.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn like_a_model_of_every_byte(ops in proptest::collection::vec(op(), 1..60)) {
        run(&ops);
    }
}

fn ask(session: u64, family: Family, kind: LockKind, range: LockRange) -> Ask {
    let owner = Owner { session: SessionId(session), number: 1 };
    Ask { key: (Ino(5), family), owner, range, kind, pid: session as u32, through: 1 }
}

fn done<T>((result, wakes): (Result<T>, Wakes)) -> Result<T> {
    wakes.call();
    result
}

#[test]
fn the_table_is_bounded() {
    let mut table = LockTable::default();
    for i in 0..10 {
        let byte = LockRange { start: 2 * i, end: 2 * i };
        let ask = ask(1, Family::Fcntl, LockKind::Shared, byte);
        assert_eq!(done(table.set(&ask, &None, 10)), Ok(()));
    }
    let more = ask(1, Family::Fcntl, LockKind::Shared, LockRange { start: 100, end: 100 });
    assert_eq!(done(table.set(&more, &None, 10)), Err(Errno::ENOLCK));
    // A wait is an entry too.
    let other = ask(2, Family::Fcntl, LockKind::Exclusive, LockRange::ALL);
    let outcomes = Outcomes::default();
    assert_eq!(done(table.set_or_wait(&other, &None, 0, wake(&outcomes, 0))), Err(Errno::ENOLCK));
    // A request that makes the table smaller is never refused.
    let all = ask(1, Family::Fcntl, LockKind::Shared, LockRange::ALL);
    assert_eq!(done(table.set(&all, &None, 10)), Ok(()));
    assert_eq!(table.count(SessionId(1)), 1);
    check_books(&table);
}

#[test]
fn flock_converts_as_linux_does() {
    use LockKind::{Exclusive, Shared};
    let mut table = LockTable::default();
    let flock = |session, kind| ask(session, Family::Flock, kind, LockRange::ALL);
    assert_eq!(done(table.set(&flock(1, Shared), &None, 9)), Ok(()));
    assert_eq!(done(table.set(&flock(2, Shared), &None, 9)), Ok(()));
    // Both want to be alone. The first lets go of its shared lock and waits for the second.
    let outcomes = Outcomes::default();
    let first = done(table.set_or_wait(&flock(1, Exclusive), &None, 9, wake(&outcomes, 1)));
    assert!(matches!(first, Ok(Waited::Queued(_))));
    let second = done(table.set_or_wait(&flock(2, Exclusive), &None, 9, wake(&outcomes, 2)));
    assert!(matches!(second, Ok(Waited::Queued(_))));
    // The second let go as well, upon which the first was granted.
    assert_eq!(*outcomes.lock().unwrap(), [(1, Ok(()))]);
    table.end(SessionId(1)).call();
    assert_eq!(*outcomes.lock().unwrap(), [(1, Ok(())), (2, Ok(()))]);
    // fcntl(2) does not see them.
    let fcntl = ask(3, Family::Fcntl, Exclusive, LockRange::ALL);
    assert_eq!(done(table.set(&fcntl, &None, 9)), Ok(()));
}

/// Requests that a session's end lets in are granted by the order of files, whatever the table's
/// own order is.
#[test]
fn who_waited_for_a_session_is_told_in_order() {
    let mut table = LockTable::default();
    let outcomes = Outcomes::default();
    for ino in (1..=40).rev() {
        for session in [1, 2] {
            let ask = ask(session, Family::Fcntl, LockKind::Exclusive, LockRange::ALL);
            let ask = Ask { key: (Ino(ino), Family::Fcntl), ..ask };
            let waited = done(table.set_or_wait(&ask, &None, 99, wake(&outcomes, ino)));
            assert_eq!(waited == Ok(Waited::Granted), session == 1);
        }
    }
    table.end(SessionId(1)).call();
    let told: Vec<u64> = outcomes.lock().unwrap().iter().map(|(ino, _)| *ino).collect();
    assert_eq!(told, (1..=40).collect::<Vec<_>>());
}

/// The locks that a call looks at do not grow with those that others hold and wait for, on the same
/// file or not.
#[test]
fn others_do_not_make_a_call_cost_more() {
    const HELD: u64 = 4000;
    let mut table = LockTable::default();
    let outcomes = Outcomes::default();
    (2..=3).for_each(|session| table.begin(SessionId(session), 1000));
    let byte = |byte| LockRange { start: byte, end: byte };
    let mut costs = Vec::new();
    for crowded in [false, true] {
        if crowded {
            for i in 0..HELD {
                // Others hold bytes each for itself, some of them the same, and wait for the last.
                let mut ask = ask(2, Family::Fcntl, LockKind::Shared, byte(10 + 2 * i));
                ask.owner.number = i % 2000;
                assert_eq!(done(table.set(&ask, &None, usize::MAX)), Ok(()));
                let far = Ask { key: (Ino(6), Family::Fcntl), ..ask };
                assert_eq!(done(table.set(&far, &None, usize::MAX)), Ok(()));
            }
            let last = Ask {
                kind: LockKind::Exclusive,
                ..ask(3, Family::Fcntl, LockKind::Shared, byte(10))
            };
            for i in 0..HELD {
                let mut ask = last;
                ask.owner.number = i;
                let waited = done(table.set_or_wait(&ask, &None, usize::MAX, wake(&outcomes, i)));
                assert!(matches!(waited, Ok(Waited::Queued(_))));
            }
        }
        steps::take();
        let own = ask(1, Family::Fcntl, LockKind::Exclusive, byte(1));
        let mut cost = vec![];
        assert_eq!(done(table.set(&own, &None, 9)), Ok(()));
        cost.push(("set", steps::take()));
        let blocked = Ask { owner: Owner { session: SessionId(9), number: 1 }, ..own };
        let waited = done(table.set_or_wait(&blocked, &None, 9, wake(&outcomes, 9999)));
        assert!(matches!(waited, Ok(Waited::Queued(_))));
        cost.push(("wait", steps::take()));
        assert!(table.test(&Ask { kind: LockKind::Shared, ..blocked }).is_some());
        cost.push(("test", steps::take()));
        table.end(SessionId(9)).call();
        cost.push(("end", steps::take()));
        // Nothing of it is held.
        let other = byte(11);
        assert_eq!(done(table.unset(own.key, own.owner, other, 9)), Ok(()));
        cost.push(("unset nothing", steps::take()));
        table.release(own.key, SessionId(7), 1).call();
        cost.push(("close", steps::take()));
        table.release((Ino(99), Family::Fcntl), SessionId(1), 1).call();
        cost.push(("close another", steps::take()));
        costs.push(cost);
        table.end(SessionId(1)).call();
        steps::take();
    }
    for ((what, alone), (_, crowded)) in costs[0].iter().zip(&costs[1]) {
        assert!(*crowded <= alone + 20, "{what}: {alone}, among others {crowded}");
    }
    // The locks of a session cost that session.
    table.end(SessionId(2)).call();
    let ended = steps::take();
    assert!(ended < 30 * HELD, "{ended}");
    check_books(&table);
}

/// However many sessions a user has, all of them together have a bound.
#[test]
fn a_user_has_a_bound() {
    let mut table = LockTable::default();
    (1..=9).for_each(|session| table.begin(SessionId(session), 1000 + u32::from(session == 9)));
    let mut taken = 0;
    for session in 1..9 {
        for byte in 0..10 {
            let byte = LockRange { start: 2 * byte, end: 2 * byte };
            let ask = ask(session, Family::Fcntl, LockKind::Shared, byte);
            taken += usize::from(done(table.set(&ask, &None, 10)).is_ok());
        }
    }
    assert_eq!(taken, 10 * USER_SESSIONS);
    let more = ask(5, Family::Fcntl, LockKind::Shared, LockRange::ALL);
    let outcomes = Outcomes::default();
    assert_eq!(done(table.set_or_wait(&more, &None, 10, wake(&outcomes, 0))), Err(Errno::ENOLCK));
    let other = ask(9, Family::Fcntl, LockKind::Shared, LockRange::ALL);
    assert_eq!(done(table.set(&other, &None, 10)), Ok(()));
    table.end(SessionId(1)).call();
    assert_eq!(done(table.set(&more, &None, 10)), Ok(()));
    check_books(&table);
}

/// A session has each second byte exclusively and waits to share each with the next one, which
/// another has; a third waits before for `asked`, of which a fourth has a byte. The other lets go.
/// Returns the outcomes for the first and the third, and what that looked at.
fn conversions(count: u64, asked: LockRange) -> (Vec<Result<()>>, Vec<Result<()>>, u64) {
    use LockKind::{Exclusive, Shared};
    let byte = |byte| LockRange { start: byte, end: byte };
    let mut table = LockTable::default();
    let [converted, before] = [Outcomes::default(), Outcomes::default()];
    let held = [(2, 10), (3, 11)]
        .map(|(session, first)| (0..count).map(move |i| (session, first + 2 * i)));
    for (session, at) in held.into_iter().flatten().chain([(3, 900_000), (4, 800_000)]) {
        let ask = ask(session, Family::Fcntl, Exclusive, byte(at));
        assert_eq!(done(table.set(&ask, &None, usize::MAX)), Ok(()));
    }
    let mut wait = |session, number, range, outcomes: &Outcomes| {
        let mut ask = ask(session, Family::Fcntl, Shared, range);
        ask.owner.number = number;
        let waited = done(table.set_or_wait(&ask, &None, usize::MAX, wake(outcomes, number)));
        assert!(matches!(waited, Ok(Waited::Queued(_))));
    };
    (0..count).for_each(|number| wait(5, number, asked, &before));
    for i in 0..count {
        wait(2, 1, LockRange { start: 10 + 2 * i, end: 11 + 2 * i }, &converted);
    }
    steps::take();
    table.release((Ino(5), Family::Fcntl), SessionId(3), 1).call();
    let looked_at = steps::take();
    check_books(&table);
    assert!(before.lock().unwrap().is_empty());
    table.release((Ino(5), Family::Fcntl), SessionId(4), 1).call();
    table.end(SessionId(2)).call();
    check_books(&table);
    let [converted, before] = [converted, before]
        .map(|outcomes| outcomes.lock().unwrap().iter().map(|(_, outcome)| *outcome).collect());
    (converted, before, looked_at)
}

/// Each request that is granted lets in some of those that have waited for longer: only these are
/// looked at again.
#[test]
fn those_who_wait_are_not_looked_at_for_each_that_is_granted() {
    let count = 500;
    let (converted, before, looked_at) =
        conversions(count, LockRange { start: 800_000, end: 800_000 });
    assert_eq!(converted, vec![Ok(()); count as usize]);
    assert_eq!(before, vec![Ok(()); count as usize]);
    assert!(looked_at < 20 * count, "{looked_at}");
}

/// Where each would let in all of them, there is an end.
#[test]
fn what_one_lock_lets_in_is_bounded() {
    let count = 1000;
    let all = LockRange { start: 0, end: 800_000 };
    let (converted, before, looked_at) = conversions(count, all);
    assert_eq!(converted.len(), count as usize);
    let refused = converted.iter().filter(|outcome| **outcome == Err(Errno::ENOLCK)).count();
    assert!(refused > 0 && refused < converted.len(), "{refused}");
    assert_eq!(before, vec![Ok(()); count as usize], "nobody is forgotten");
    assert!(looked_at < 5 * LOOKS_MAX as u64, "{looked_at}");
}

/// An owner's own locks are in nobody's way that asks for it, and locks that end before what is
/// asked for in nobody's: however many there are, a request that waits is looked at in a few steps.
#[test]
fn a_request_that_still_waits_is_looked_at_in_a_few_steps() {
    use LockKind::{Exclusive, Shared};
    const COUNT: u64 = 1000;
    let byte = |byte| LockRange { start: byte, end: byte };
    for (own, asked) in [(Exclusive, Exclusive), (Exclusive, Shared), (Shared, Exclusive)] {
        for before in [true, false] {
            let mut table = LockTable::default();
            let outcomes = Outcomes::default();
            let mut set = |session, number, kind, range| {
                let mut ask = ask(session, Family::Fcntl, kind, range);
                ask.owner.number = number;
                assert_eq!(done(table.set(&ask, &None, usize::MAX)), Ok(()));
            };
            for i in 0..COUNT {
                // Two at a time follow each other, between those of others.
                set(2, 1, own, byte(1000 + 2 * i));
                if own == Shared {
                    // Long ones of many owners, just before what is asked for.
                    set(3, i, own, LockRange { start: 0, end: 600 + i % 3 });
                }
            }
            // What is in the way comes first, or last.
            set(4, 1, Exclusive, byte(if before { 700 } else { 1_000_000 }));
            set(5, 1, Exclusive, byte(1_000_001));
            for number in 0..COUNT {
                let mut ask =
                    ask(2, Family::Fcntl, asked, LockRange { start: 700, end: 1_100_000 });
                ask.through = number;
                let waited =
                    done(table.set_or_wait(&ask, &None, usize::MAX, wake(&outcomes, number)));
                assert!(matches!(waited, Ok(Waited::Queued(_))));
            }
            steps::take();
            let key = (Ino(5), Family::Fcntl);
            let owner = Owner { session: SessionId(5), number: 1 };
            assert_eq!(done(table.unset(key, owner, byte(1_000_001), 9)), Ok(()));
            let looked_at = steps::take();
            assert!(looked_at < 12 * COUNT, "{own:?} {asked:?} {before}: {looked_at}");
            let one = ask(2, Family::Fcntl, asked, LockRange { start: 700, end: 1_100_000 });
            assert!(table.test(&one).is_some());
            assert!(steps::take() < 12);
            assert!(outcomes.lock().unwrap().is_empty());
            check_books(&table);
            table.end(SessionId(4)).call();
            assert_eq!(outcomes.lock().unwrap().len(), COUNT as usize);
        }
    }
}
