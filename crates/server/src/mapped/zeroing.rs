//! The memory of a mapped file beyond its end, made zeros in steps.
//!
//! A cut leaves in memory what was in the file, and clients store there what they like. A file gets
//! longer over zeros alone, so that this has to go before, and nobody is to wait for more than a
//! step of it. So a cut notes what it leaves, and has the volume's remover make it zeros: the
//! answer waits. A change by which the file gets longer goes once over what the file is to get, and
//! is made again when that is done. Nothing here is part of the file, which no call and no crash
//! finds half cut.

use std::ops::Range;

use atoll_vfs::{Context, Errno, FileSystem, Ino, Result};

use super::files::STEP;
use super::volume_context;
use crate::guarded::Guarded;

impl<F: FileSystem> Guarded<F> {
    /// Before a change makes `ino`, of `size` bytes, longer: where it is mapped all up to `end` is
    /// made zeros, but for what is stored meanwhile.
    ///
    /// # Errors
    /// `EAGAIN` where calls leave what takes long: the call is made again when enough
    /// [steps](Self::zero_step) have been made.
    pub(crate) fn before_growth(
        &mut self,
        cx: &Context,
        ino: Ino,
        size: u64,
        end: u64,
    ) -> Result<()> {
        let now = self.host.uptime();
        let Some(file) = self.mapped.files.get_mut(&ino).filter(|_| size < end) else {
            return Ok(());
        };
        let mut steps = file.beyond.sweep(size, end, now);
        while !file.beyond.is_done(end) {
            if self.removals.are_served() && !steps {
                self.mapped.first = Some(ino);
                return Err(Errno::EAGAIN);
            }
            steps = false;
            if let Err(error) = file.zero_step(size) {
                self.lose(cx, ino, error);
                return Ok(());
            }
        }
        Ok(())
    }

    /// A step of making zeros of what is beyond the end of `ino`. Returns whether it was the last;
    /// `None` where there is none to be made.
    pub(crate) fn zero_step(&mut self, ino: Ino) -> Option<bool> {
        let when = self.host.uptime();
        let own = volume_context(self.host.now());
        let Guarded { fs, mapped, .. } = self;
        let file = mapped.files.get_mut(&ino).filter(|file| file.beyond.first().is_some())?;
        let stepped = fs.getattr(&own, ino).and_then(|attr| file.zero_step(attr.size));
        file.beyond.stepped(when);
        Some(stepped.unwrap_or_else(|error| {
            self.lose(&own, ino, error);
            true
        }))
    }

    /// What a change has left beyond the end of a file is for the remover, if there is one.
    pub(crate) fn leave_beyond(&mut self) {
        if !self.removals.are_served()
            && let Some(ino) = self.mapped.left.take()
        {
            while self.zero_step(ino) == Some(false) {}
        }
    }

    /// Where a part of `range` of `ino` from its beginning ends that is made a hole at once.
    ///
    /// # Errors
    /// Those of the machine.
    pub(crate) fn hole_at_once(&self, ino: Ino, range: &Range<u64>) -> Result<u64> {
        match self.mapped.files.get(&ino) {
            Some(file) => file.at_once(range, STEP),
            None => Ok(range.end),
        }
    }

    fn lose(&mut self, cx: &Context, ino: Ino, error: Errno) {
        log::error!("inode {} is not mapped any more, there is no memory: {error}", ino.0);
        self.end_mapping(cx, ino);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{FallocateMode, Handle, Name, OpenFlags, Rest, SetAttr, Timespec};
    use proptest::prelude::*;

    use super::*;
    use crate::removals::Remover;
    use crate::task::{Step, Task};
    use crate::testing::Noted;
    use crate::{Access, Credentials, Session, Volume};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
    /// One byte of each cell has content: the memory of these tests is slow.
    const CELL: u64 = 128 << 10;
    const CELLS: u64 = 64;
    const HOLE: FallocateMode = FallocateMode::PUNCH_HOLE.union(FallocateMode::KEEP_SIZE);

    struct World {
        volume: Arc<Volume<ModelFs>>,
        remover: Remover<ModelFs>,
        session: Session<ModelFs>,
        file: (Ino, Handle),
    }

    impl World {
        /// A file of no bytes, mapped, which a session that waits for nothing has open.
        fn new() -> World {
            let volume = crate::testing::volume();
            let remover = Remover::new(&volume, Arc::new(Noted::default()));
            let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
            let name = Name::new(b"f").unwrap();
            let (attr, handle) = session.create(&CX, Ino::ROOT, name, 0o600, RW).unwrap();
            let token = session.map(&CX, attr.ino, handle, 0, CELLS * CELL).unwrap().token;
            volume.mapped_memory(token, |_, _| Ok(())).unwrap();
            session.carried();
            World { volume, remover, session, file: (attr.ino, handle) }
        }

        /// Makes a call as a carrier does that takes it back while it cannot be made, or is made in
        /// part. Returns how many turns it took, and whether it left something.
        fn call<T>(
            &mut self,
            mut act: impl FnMut(&mut Session<ModelFs>, Ino, Handle) -> Result<T>,
        ) -> (u32, bool) {
            let (mut rest, mut turns) = (None, 0);
            loop {
                turns += 1;
                assert!(turns < 1000, "it comes to no end");
                self.session.begins(rest, true);
                let made = act(&mut self.session, self.file.0, self.file.1);
                if self.session.take_left().is_some() {
                    assert!(made.is_ok());
                    return (turns, true);
                }
                rest = self.session.left.take();
                match rest {
                    None => {
                        assert!(made.is_ok(), "{:?}", made.err());
                        return (turns, false);
                    }
                    Some(Rest::After(_)) => assert_eq!(made.err(), Some(Errno::EAGAIN)),
                    Some(_) => assert!(made.is_ok()),
                }
            }
        }

        fn resize(&mut self, size: u64) -> (u32, bool) {
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.call(|session, ino, _| session.setattr(&CX, ino, None, &set))
        }

        fn write(&mut self, at: u64, byte: u8) -> (u32, bool) {
            self.call(|session, ino, handle| session.write(&CX, ino, handle, at, &[byte]))
        }

        fn store(&self, at: u64, byte: u8) {
            let state = self.volume.lock().unwrap();
            state.mapped.files[&self.file.0]
                .whole
                .as_ref()
                .unwrap()
                .pages
                .write(at, &[byte])
                .unwrap();
        }

        fn memory(&self, at: u64) -> u8 {
            let mut byte = [0];
            let state = self.volume.lock().unwrap();
            state.mapped.files[&self.file.0]
                .whole
                .as_ref()
                .unwrap()
                .pages
                .read(at, &mut byte)
                .unwrap();
            byte[0]
        }

        fn read(&mut self, at: u64) -> Option<u8> {
            let mut byte = [0];
            let (ino, handle) = self.file;
            (self.session.read(&CX, ino, handle, at, &mut byte).unwrap() == 1).then_some(byte[0])
        }

        /// All steps that are left. Returns how many.
        fn end_removals(&mut self) -> u32 {
            let mut steps = 0;
            while matches!(self.remover.step(None), Step::Pause(_)) {
                steps += 1;
            }
            steps
        }
    }

    /// A call makes no more zeros than a step does, and leaves the rest; nobody finds old bytes in
    /// the file, or loses new ones.
    #[test]
    fn cuts_growth_and_holes_are_made_in_steps() {
        let mut world = World::new();
        let (end, whole) = (CELLS * CELL, (CELLS * CELL / STEP) as u32);
        let fill = |world: &World| (0..CELLS).for_each(|cell| world.store(cell * CELL, 7));
        let count =
            |world: &World| (0..CELLS).filter(|cell| world.memory(cell * CELL) != 0).count() as u64;
        assert_eq!(world.resize(end), (1, false), "nothing was stored");
        fill(&world);
        assert_eq!(world.resize(0), (1, true));
        assert_eq!(count(&world), (end - STEP) / CELL);
        // What is written meanwhile stays; what makes the file longer over the rest waits.
        assert_eq!(world.write(5, 9), (1, false));
        world.store(7, 8);
        let (turns, left) = world.write(end - 1, 3);
        assert!(turns > 1 && !left, "{turns}");
        assert_eq!((count(&world), world.memory(end - 1)), (0, 3));
        assert_eq!([5, 7, end - 1].map(|at| world.read(at)), [Some(9), Some(0), Some(3)]);
        world.end_removals();
        assert_eq!([5, end - 1].map(|at| world.memory(at)), [9, 3]);
        // Nobody asks for more of it: the remover does it.
        fill(&world);
        world.resize(0);
        world.resize(0);
        assert!(world.end_removals() + 2 >= whole);
        assert_eq!(count(&world), 0);
        // Growth over what clients have stored where no file was.
        fill(&world);
        let (turns, _) = world.resize(end);
        assert_eq!((turns, count(&world)), (whole / 2 + 1, 0), "two steps a turn");
        fill(&world);
        let made =
            world.call(|session, ino, handle| session.fallocate(&CX, ino, handle, 0, end, HOLE));
        assert_eq!((made, count(&world)), ((whole, false), 0));
        let zeros = FallocateMode::ZERO_RANGE;
        world.resize(0);
        world.end_removals();
        fill(&world);
        let (turns, _) =
            world.call(|session, ino, handle| session.fallocate(&CX, ino, handle, 0, end, zeros));
        assert!(turns >= whole, "{turns}");
        assert_eq!((count(&world), world.read(end - 1)), (0, Some(0)));
        // So do those who open it to be empty.
        fill(&world);
        let cuts = RW | OpenFlags::TRUNC;
        assert_eq!(world.call(|session, ino, _| session.open(&CX, ino, cuts)), (1, true));
        assert_eq!(count(&world), (end - STEP) / CELL);
    }

    /// Without a remover a call does all.
    #[test]
    fn where_nothing_is_left_all_is_done() {
        let mut world = World::new();
        let volume = crate::testing::volume();
        world.session = volume.session(Credentials::default(), Access::default()).unwrap();
        let name = Name::new(b"g").unwrap();
        let (attr, handle) = world.session.create(&CX, Ino::ROOT, name, 0o600, RW).unwrap();
        world.session.map(&CX, attr.ino, handle, 0, CELLS * CELL).unwrap();
        world.volume = volume;
        world.file = (attr.ino, handle);
        for _ in 0..2 {
            (0..CELLS).for_each(|cell| world.store(cell * CELL, 7));
            assert_eq!(world.resize(CELLS * CELL), (1, false));
            assert!((0..CELLS).all(|cell| world.memory(cell * CELL) == 0));
            (0..CELLS).for_each(|cell| world.store(cell * CELL, 7));
            assert_eq!(world.resize(0), (1, false));
            assert!((0..CELLS).all(|cell| world.memory(cell * CELL) == 0));
        }
    }

    #[derive(Clone, Debug)]
    enum Op {
        Store(u64),
        Write(u64),
        Resize(u64),
        Hole(u64, u64),
        Zeros(u64, u64),
        Steps(u32),
        Map(u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        let cell = || 0..CELLS;
        prop_oneof![
            6 => cell().prop_map(Op::Store),
            2 => cell().prop_map(Op::Write),
            3 => cell().prop_map(Op::Resize),
            1 => (cell(), cell()).prop_map(|(a, b)| Op::Hole(a.min(b), a.max(b))),
            1 => (cell(), cell()).prop_map(|(a, b)| Op::Zeros(a.min(b), a.max(b))),
            3 => (1..4u32).prop_map(Op::Steps),
            1 => cell().prop_map(Op::Map),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        /// Against an array, with any number of steps between the calls.
        #[test]
        fn any_mixture_is_as_with_an_array(ops in proptest::collection::vec(op(), 1..80)) {
            let mut world = World::new();
            let mut model: Vec<u8> = Vec::new();
            for (op, byte) in ops.iter().zip(1..) {
                match *op {
                    Op::Store(cell) => {
                        world.store(cell * CELL, byte);
                        model.iter_mut().skip(cell as usize).take(1).for_each(|had| *had = byte);
                    }
                    Op::Write(cell) => {
                        world.write(cell * CELL, byte);
                        model.resize(model.len().max(cell as usize + 1), 0);
                        model[cell as usize] = byte;
                    }
                    Op::Resize(cells) => {
                        world.resize((cells * CELL).saturating_sub(5));
                        model.resize(cells as usize, 0);
                    }
                    Op::Hole(from, to) => {
                        if from < to {
                            let (at, len) = (from * CELL, (to - from) * CELL);
                            world.call(|session, ino, handle| {
                                session.fallocate(&CX, ino, handle, at, len, HOLE)
                            });
                            let cells = model.iter_mut().take(to as usize).skip(from as usize);
                            cells.for_each(|had| *had = 0);
                        }
                    }
                    Op::Zeros(from, to) => {
                        if from < to {
                            let (at, len) = (from * CELL, (to - from) * CELL);
                            world.call(|session, ino, handle| {
                                let zeros = FallocateMode::ZERO_RANGE;
                                session.fallocate(&CX, ino, handle, at, len, zeros)
                            });
                            model.resize(model.len().max(to as usize), 0);
                            model[from as usize..to as usize].fill(0);
                        }
                    }
                    Op::Steps(steps) => (0..steps).for_each(|_| drop(world.remover.step(None))),
                    Op::Map(cells) => {
                        let (ino, handle) = world.file;
                        world.session.map(&CX, ino, handle, cells * CELL, CELL).unwrap();
                    }
                }
                for cell in 0..CELLS {
                    let had = model.get(cell as usize).copied();
                    prop_assert_eq!(world.read(cell * CELL), had, "{:?} cell {}", op, cell);
                    let there = had.is_none_or(|had| world.memory(cell * CELL) == had);
                    prop_assert!(there, "{:?} cell {}", op, cell);
                }
            }
            world.end_removals();
            world.volume.write_back(CX.now).unwrap();
            for (cell, had) in (0..).zip(&model) {
                prop_assert_eq!(world.read(cell * CELL), Some(*had));
            }
        }
    }
}
