//! Locks against programs that are no clients, of a volume that others change too: a directory of
//! the host.
//!
//! The table keeps clients apart. Towards all others they are one: a file that clients have locked
//! is locked on the host too, byte by byte as the strongest of their locks, through one open file
//! of theirs. So a lock is granted when neither the table nor the host has one in its way, and what
//! a client lets go of is let go of on the host where no other client has it.
//!
//! Nobody says when a program of the host lets go. A request that waits for one is tried again and
//! again, by one task for the whole volume (`lock_retries`).

use std::sync::{Arc, OnceLock};

use atoll_vfs::{Errno, LockKind, OutsideLocks, Result};

use super::held::HeldLocks;
use super::{Ask, Family, LockRange};
use crate::host::Bell;

/// An open file through which a lock is asked for, where there are others.
pub(crate) type Through = Option<Arc<dyn OutsideLocks>>;

/// How many locks of one file and kind clients may have where they count outside: each change of
/// one looks at those that overlap it, and the host's kernel at all.
pub(super) const OUTSIDE_MAX: usize = 1024;
/// How many requests are tried again at a time.
pub(super) const RETRIES: usize = 256;

/// What the clients have of one kind of locks of one file outside.
#[derive(Default)]
pub(super) struct Outside(Through);

impl Outside {
    /// Takes what `ask` says, for which nothing is in the way of those `held` by clients.
    ///
    /// # Errors
    /// `EAGAIN`, `ENOLCK`, upon which all is as before.
    pub fn take(&mut self, held: &HeldLocks, ask: &Ask, through: &Through) -> Result<()> {
        let Some(through) = through else { return Ok(()) };
        if held.len() >= OUTSIDE_MAX {
            return Err(Errno::ENOLCK);
        }
        if ask.key.1 == Family::Flock {
            let own = self.0.as_ref().unwrap_or(through);
            own.set_whole(Some(ask.kind))?;
            self.0.get_or_insert_with(|| Arc::clone(through));
            return Ok(());
        }
        let fits = |own: &Arc<dyn OutsideLocks>| own.allows(ask.kind);
        let LockRange { start, end } = ask.range;
        if let Some(own) = self.0.as_ref().filter(|own| fits(own)) {
            return own.set(Some(ask.kind), start, end);
        }
        // One that may only write is of no use to those who read.
        let reads = through.allows(LockKind::Shared);
        let new = match (&self.0, reads && fits(through)) {
            (_, true) => Arc::clone(through),
            (None, false) => through.for_both().unwrap_or_else(|_| Arc::clone(through)),
            (Some(_), false) => through.for_both().map_err(|_| Errno::ENOLCK)?,
        };
        if !fits(&new) {
            return Err(Errno::ENOLCK);
        }
        // What the file has so far moves over. Shared locks of both are in nobody's way.
        if let Some(own) = &self.0 {
            if held.all().any(|held| held.kind == LockKind::Exclusive) {
                return Err(Errno::ENOLCK);
            }
            let moved = held.all().try_for_each(|held| {
                new.set(Some(LockKind::Shared), held.range.start, held.range.end)
            });
            if moved.is_err() {
                let _ = new.set(None, 0, u64::MAX);
                return Err(Errno::ENOLCK);
            }
            let _ = own.set(None, 0, u64::MAX);
            self.0 = Some(Arc::clone(&new));
        }
        new.set(Some(ask.kind), start, end)?;
        self.0 = Some(new);
        Ok(())
    }

    /// Lets go of what clients have no more of `range`, now that they have what is `held`.
    pub fn settle(&mut self, family: Family, held: &HeldLocks, range: LockRange) {
        let Some(own) = &self.0 else { return };
        // Where the host fails to let go of some bytes, it does so with the last.
        if held.is_empty() {
            let _ = match family {
                Family::Fcntl => own.set(None, 0, u64::MAX),
                Family::Flock => own.set_whole(None),
            };
            self.0 = None;
            return;
        }
        if family == Family::Flock {
            return;
        }
        let mut next = Some(range.start);
        for held in held.within(range) {
            let Some(at) = next.filter(|at| *at <= range.end) else { return };
            let (start, end) = (held.range.start.max(at), held.range.end.min(range.end));
            if start > end {
                continue;
            }
            if start > at {
                let _ = own.set(None, at, start - 1);
            }
            if held.kind == LockKind::Shared {
                let _ = own.set(Some(LockKind::Shared), start, end);
            }
            next = held.range.end.checked_add(1);
        }
        if let Some(at) = next.filter(|at| *at <= range.end) {
            let _ = own.set(None, at, range.end);
        }
    }

    /// The kind and the bytes of a lock of others in the way of `ask`.
    pub fn test(&self, ask: &Ask, through: &Through) -> Result<Option<(LockKind, LockRange)>> {
        let Some(own) = self.0.as_ref().or(through.as_ref()) else { return Ok(None) };
        if ask.key.1 == Family::Flock {
            return Ok(None);
        }
        let found = own.test(ask.kind, ask.range.start, ask.range.end)?;
        Ok(found.map(|(kind, start, end)| (kind, LockRange { start, end })))
    }
}

/// The bell of the task that tries again.
#[derive(Default)]
pub(crate) struct Retries {
    pub bell: OnceLock<Arc<dyn Bell>>,
    pub closed: bool,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use atoll_vfs::Ino;
    use proptest::prelude::*;

    use super::super::{LockTable, Owner, Waited, Wake};
    use super::*;
    use crate::rights::identity::SessionId;

    /// Bytes that are told apart; the last stands for all from there to the end.
    const BYTES: usize = 10;
    const KEY: super::super::Key = (Ino(1), Family::Fcntl);
    const WHOLE: super::super::Key = (Ino(1), Family::Flock);
    /// A program that is no client.
    const PROGRAM: u32 = u32::MAX;

    type Bytes = [Option<LockKind>; BYTES];

    /// The host's locks of a file, by open file; those of flock(2) apart.
    #[derive(Default)]
    struct Machine {
        bytes: BTreeMap<u32, Bytes>,
        whole: BTreeMap<u32, LockKind>,
        opened: u32,
    }

    fn conflicts(one: Option<LockKind>, other: Option<LockKind>) -> bool {
        matches!((one, other), (Some(a), Some(b)) if (a, b) != (LockKind::Shared, LockKind::Shared))
    }

    impl Machine {
        fn set(&mut self, file: u32, kind: Option<LockKind>, from: usize, to: usize) -> Result<()> {
            let others = self.bytes.iter().filter(|(other, _)| **other != file);
            if others.flat_map(|(_, bytes)| &bytes[from..=to]).any(|had| conflicts(*had, kind)) {
                return Err(Errno::EAGAIN);
            }
            self.bytes.entry(file).or_default()[from..=to].fill(kind);
            Ok(())
        }

        fn set_whole(&mut self, file: u32, kind: Option<LockKind>) -> Result<()> {
            if self.whole.iter().any(|(other, had)| *other != file && conflicts(Some(*had), kind)) {
                return Err(Errno::EAGAIN);
            }
            match kind {
                Some(kind) => self.whole.insert(file, kind),
                None => self.whole.remove(&file),
            };
            Ok(())
        }
    }

    struct File {
        machine: Arc<Mutex<Machine>>,
        number: u32,
        rights: [bool; 2],
        opens: bool,
    }

    fn at(start: u64, end: u64) -> (usize, usize) {
        (start.min(BYTES as u64 - 1) as usize, end.min(BYTES as u64 - 1) as usize)
    }

    impl OutsideLocks for File {
        fn allows(&self, kind: LockKind) -> bool {
            self.rights[usize::from(kind == LockKind::Exclusive)]
        }

        fn for_both(&self) -> Result<Arc<dyn OutsideLocks>> {
            if !self.opens {
                return Err(Errno::EACCES);
            }
            Ok(file(&self.machine, [true, true], true))
        }

        fn set(&self, kind: Option<LockKind>, start: u64, end: u64) -> Result<()> {
            if kind.is_some_and(|kind| !self.allows(kind)) {
                return Err(Errno::EBADF);
            }
            let (from, to) = at(start, end);
            self.machine.lock().unwrap().set(self.number, kind, from, to)
        }

        fn test(
            &self,
            kind: LockKind,
            start: u64,
            end: u64,
        ) -> Result<Option<(LockKind, u64, u64)>> {
            let (from, to) = at(start, end);
            let machine = self.machine.lock().unwrap();
            let program = machine.bytes.get(&PROGRAM).copied().unwrap_or_default();
            let found = (from..=to).find(|at| conflicts(program[*at], Some(kind)));
            Ok(found.map(|at| (program[at].unwrap(), at as u64, at as u64)))
        }

        fn set_whole(&self, kind: Option<LockKind>) -> Result<()> {
            self.machine.lock().unwrap().set_whole(self.number, kind)
        }
    }

    fn file(
        machine: &Arc<Mutex<Machine>>,
        rights: [bool; 2],
        opens: bool,
    ) -> Arc<dyn OutsideLocks> {
        let number = {
            let mut machine = machine.lock().unwrap();
            machine.opened += 1;
            machine.opened
        };
        Arc::new(File { machine: Arc::clone(machine), number, rights, opens })
    }

    fn ask(owner: u64, kind: LockKind, from: usize, to: usize) -> Ask {
        let end = if to == BYTES - 1 { u64::MAX } else { to as u64 };
        let range = LockRange { start: from as u64, end };
        let owner = Owner { session: SessionId(owner), number: owner };
        Ask { key: KEY, owner, range, kind, pid: 1, through: 1 }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Set { owner: u64, kind: Option<LockKind>, from: usize, to: usize, wait: bool },
        Program { kind: Option<LockKind>, from: usize, to: usize },
        End { owner: u64 },
    }

    fn op() -> impl Strategy<Value = Op> {
        let kind =
            prop_oneof![Just(None), Just(Some(LockKind::Shared)), Just(Some(LockKind::Exclusive))];
        let bytes = || (0..BYTES, 0..BYTES).prop_map(|(a, b)| (a.min(b), a.max(b)));
        prop_oneof![
            8 => (0..3u64, kind.clone(), bytes(), any::<bool>())
                .prop_map(|(owner, kind, (from, to), wait)| Op::Set { owner, kind, from, to, wait }),
            3 => (kind, bytes()).prop_map(|(kind, (from, to))| Op::Program { kind, from, to }),
            1 => (0..3u64).prop_map(|owner| Op::End { owner }),
        ]
    }

    /// The strongest lock of any client of each byte.
    fn held(table: &LockTable) -> Bytes {
        let mut bytes = Bytes::default();
        let Some(file) = table.files.get(&KEY) else { return bytes };
        for held in file.held.all() {
            let (from, to) = at(held.range.start, held.range.end);
            for byte in &mut bytes[from..=to] {
                if *byte != Some(LockKind::Exclusive) {
                    *byte = Some(held.kind);
                }
            }
        }
        bytes
    }

    fn run(ops: &[Op]) {
        let machine = Arc::<Mutex<Machine>>::default();
        let mut table = LockTable::default();
        // One has it open for reading, one for writing; both can be opened for both.
        let rights = [[true, true], [true, false], [false, true]];
        let files = rights.map(|rights| Some(file(&machine, rights, true)));
        let granted = Arc::<Mutex<Vec<u64>>>::default();
        for op in ops {
            match *op {
                Op::Set { owner, kind: Some(kind), from, to, wait } => {
                    let through = &files[owner as usize];
                    if !through.as_ref().unwrap().allows(kind) {
                        continue;
                    }
                    let ask = ask(owner, kind, from, to);
                    let program =
                        machine.lock().unwrap().bytes.get(&PROGRAM).copied().unwrap_or_default();
                    let free = table.test(&ask).is_none()
                        && !program[from..=to].iter().any(|had| conflicts(*had, Some(kind)));
                    let seen = table.get(&ask, through).unwrap();
                    assert_eq!(seen.is_none(), free, "{seen:?}");
                    if wait {
                        let told = Arc::clone(&granted);
                        let wake: Wake = Box::new(move |outcome| {
                            if outcome == Ok(()) {
                                told.lock().unwrap().push(owner);
                            }
                        });
                        let (result, wakes) = table.set_or_wait(&ask, through, 100, wake);
                        wakes.call();
                        assert!(result != Ok(Waited::Granted) || free);
                        assert!(!free || result == Ok(Waited::Granted), "{result:?}");
                    } else {
                        let (result, wakes) = table.set(&ask, through, 100);
                        wakes.call();
                        assert_eq!(result, if free { Ok(()) } else { Err(Errno::EAGAIN) });
                    }
                }
                Op::Set { owner, kind: None, from, to, .. } => {
                    let ask = ask(owner, LockKind::Shared, from, to);
                    let (result, wakes) = table.unset(KEY, ask.owner, ask.range, 100);
                    wakes.call();
                    assert_eq!(result, Ok(()));
                }
                Op::Program { kind, from, to } => {
                    let clients = held(&table);
                    let free = !clients[from..=to].iter().any(|had| conflicts(*had, kind));
                    let result = machine.lock().unwrap().set(PROGRAM, kind, from, to);
                    assert_eq!(result.is_ok(), free);
                }
                Op::End { owner } => table.end(SessionId(owner)).call(),
            }
            let (wakes, more) = table.retry();
            wakes.call();
            assert_eq!(more, !table.outside.is_empty());
            // What clients hold is what the host has, in one open file or, while it moves, in none.
            let mut ours = Bytes::default();
            for (_, bytes) in
                machine.lock().unwrap().bytes.iter().filter(|(file, _)| **file != PROGRAM)
            {
                for (all, byte) in ours.iter_mut().zip(bytes) {
                    assert!(all.is_none() || byte.is_none(), "two have it");
                    *all = all.or(*byte);
                }
            }
            assert_eq!(ours, held(&table));
            // Nobody waits for nothing.
            let program = machine.lock().unwrap().bytes.get(&PROGRAM).copied().unwrap_or_default();
            let waiting = table.files.get(&KEY).into_iter().flat_map(|file| file.waiting.values());
            for waiting in waiting {
                let (from, to) = at(waiting.ask.range.start, waiting.ask.range.end);
                let kind = Some(waiting.ask.kind);
                assert!(
                    table.test(&waiting.ask).is_some()
                        || program[from..=to].iter().any(|had| conflicts(*had, kind))
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn the_host_has_what_clients_hold(ops in proptest::collection::vec(op(), 1..40)) {
            run(&ops);
        }
    }

    fn done<T>((result, wakes): (Result<T>, super::super::Wakes)) -> Result<T> {
        wakes.call();
        result
    }

    #[test]
    fn whole_files_are_locked_against_programs() {
        use LockKind::{Exclusive, Shared};
        let machine = Arc::<Mutex<Machine>>::default();
        let mut table = LockTable::default();
        let through = Some(file(&machine, [true, false], false));
        let whole = |owner, kind| Ask { key: WHOLE, ..ask(owner, kind, 0, BYTES - 1) };
        let program = |kind| machine.lock().unwrap().set_whole(PROGRAM, kind);
        assert_eq!(done(table.set(&whole(1, Shared), &through, 9)), Ok(()));
        assert_eq!(done(table.set(&whole(2, Shared), &through, 9)), Ok(()));
        assert_eq!(program(Some(Exclusive)), Err(Errno::EAGAIN));
        assert_eq!(program(Some(Shared)), Ok(()));
        table.release(WHOLE, SessionId(1), 1).call();
        assert_eq!(program(Some(Exclusive)), Err(Errno::EAGAIN));
        // To convert it lets go of what it had, as on Linux.
        assert_eq!(done(table.set(&whole(2, Exclusive), &through, 9)), Err(Errno::EAGAIN));
        assert_eq!(program(Some(Exclusive)), Ok(()));
        let told = Arc::<Mutex<Option<Result<()>>>>::default();
        let outcome = Arc::clone(&told);
        let wake: Wake = Box::new(move |how| *outcome.lock().unwrap() = Some(how));
        let waits = done(table.set_or_wait(&whole(2, Exclusive), &through, 9, wake));
        assert!(matches!(waits, Ok(Waited::Queued(_))));
        let (wakes, more) = table.retry();
        wakes.call();
        assert!(more && told.lock().unwrap().is_none());
        program(None).unwrap();
        let (wakes, more) = table.retry();
        wakes.call();
        assert!(!more && *told.lock().unwrap() == Some(Ok(())));
        assert_eq!(program(Some(Shared)), Err(Errno::EAGAIN));
        table.end(SessionId(2)).call();
        assert_eq!(program(Some(Exclusive)), Ok(()));
        assert!(table.files.is_empty() && machine.lock().unwrap().whole.len() == 1);
    }

    /// A file that cannot be opened for more than its clients have it.
    #[test]
    fn a_file_that_can_only_be_read_or_written() {
        use LockKind::{Exclusive, Shared};
        let machine = Arc::<Mutex<Machine>>::default();
        let mut table = LockTable::default();
        let reads = Some(file(&machine, [true, false], false));
        let writes = Some(file(&machine, [false, true], false));
        let both = Some(file(&machine, [true, true], false));
        assert_eq!(done(table.set(&ask(1, Shared, 0, 3), &reads, 9)), Ok(()));
        assert_eq!(done(table.set(&ask(2, Exclusive, 5, 6), &writes, 9)), Err(Errno::ENOLCK));
        // One that has it open for both takes what there is along.
        assert_eq!(done(table.set(&ask(3, Exclusive, 5, 6), &both, 9)), Ok(()));
        assert_eq!(done(table.set(&ask(2, Exclusive, 7, 7), &writes, 9)), Ok(()));
        assert!(machine.lock().unwrap().set(PROGRAM, Some(Exclusive), 3, 3).is_err());
        (1..=3).for_each(|session| table.end(SessionId(session)).call());
        assert_eq!(done(table.set(&ask(2, Exclusive, 7, 7), &writes, 9)), Ok(()));
        assert_eq!(done(table.set(&ask(1, Shared, 0, 3), &reads, 9)), Err(Errno::ENOLCK));
        table.end(SessionId(2)).call();
        machine.lock().unwrap().set(PROGRAM, Some(Exclusive), 0, BYTES - 1).unwrap();
    }

    #[test]
    fn locks_of_a_file_that_count_outside_are_bounded() {
        let machine = Arc::<Mutex<Machine>>::default();
        let mut table = LockTable::default();
        let through = Some(file(&machine, [true, true], true));
        let far = |i: u64| {
            let range = LockRange { start: 2 * i, end: 2 * i };
            Ask { range, ..ask(1, LockKind::Shared, 0, 0) }
        };
        for i in 0..OUTSIDE_MAX as u64 {
            assert_eq!(done(table.set(&far(i), &through, usize::MAX)), Ok(()));
        }
        let more = far(OUTSIDE_MAX as u64);
        assert_eq!(done(table.set(&more, &through, usize::MAX)), Err(Errno::ENOLCK));
        assert_eq!(done(table.unset(KEY, more.owner, far(0).range, usize::MAX)), Ok(()));
        assert_eq!(done(table.set(&more, &through, usize::MAX)), Ok(()));
    }
}
