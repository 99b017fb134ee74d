//! A file system beside the model: the same operations, every answer compared.

use std::collections::{BTreeMap, BTreeSet};

use atoll_vfs::model::{ModelFs, file_content, snapshot};
use atoll_vfs::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::ops::{FILES, Op, Outcome, Profile, STREAMS, World, ops, seeded_ops};
use crate::rng::environment;
use crate::subject::Quirks;

/// The names that the listing of a stream still owes.
#[derive(Clone, Debug, Default)]
struct Listing {
    /// The names that have existed since it began, and the inode of each.
    throughout: BTreeMap<Vec<u8>, u32>,
    /// How often each name was listed.
    listed: BTreeMap<Vec<u8>, u32>,
}

/// A file system, the model, and what the operations' slots mean to each.
pub struct Differential<F> {
    /// The file system under test.
    pub fs: F,
    /// The state that it should have.
    pub model: ModelFs,
    quirks: Quirks,
    world: World,
    model_world: World,
    listings: [Option<Listing>; STREAMS as usize],
    steps: i64,
    last: Outcome,
    out_of_space: u64,
}

/// The state of a comparison beside the file system under test, to go on with it or a copy of it.
#[derive(Clone)]
pub struct Rest {
    /// The state that the file system should have.
    pub model: ModelFs,
    world: World,
    model_world: World,
    steps: i64,
    quirks: Quirks,
}

impl<F: FileSystem> Differential<F> {
    /// Compares `fs`, which is empty, with an empty model.
    pub fn new(fs: F, quirks: Quirks) -> Self {
        Self::with_model(fs, ModelFs::default(), quirks)
    }

    /// Compares `fs` with a model that is in the same state.
    pub fn with_model(fs: F, model: ModelFs, quirks: Quirks) -> Self {
        Differential {
            fs,
            model,
            quirks,
            world: World::new(quirks.caller_time),
            model_world: World::new(quirks.caller_time),
            listings: Default::default(),
            steps: 0,
            last: Outcome::Nothing,
            out_of_space: 0,
        }
    }

    /// As [`with_model`](Self::with_model), going on from the state that [`rest`](Self::rest) gave.
    pub fn going_on(fs: F, rest: Rest) -> Self {
        let Rest { model, world, model_world, steps, quirks } = rest;
        Differential { world, model_world, steps, ..Self::with_model(fs, model, quirks) }
    }

    /// Everything but the file system itself, after the end of everything that held handles.
    pub fn rest(self) -> (F, Rest) {
        let Differential { fs, model, quirks, mut world, mut model_world, steps, .. } = self;
        world.close_all();
        model_world.close_all();
        (fs, Rest { model: model.without_handles(), world, model_world, steps, quirks })
    }

    /// Replaces the file system by the one that `reopen` makes of it, after the end of everything
    /// that held handles.
    pub fn reopen(self, reopen: impl FnOnce(F) -> F) -> Self {
        let mut world = self.world;
        let mut model_world = self.model_world;
        world.close_all();
        model_world.close_all();
        let (fs, model) = (reopen(self.fs), self.model.without_handles());
        Differential { fs, model, world, model_world, listings: Default::default(), ..self }
    }

    /// Carries out `op` on both.
    ///
    /// # Errors
    /// How the answers differ, for people.
    pub fn step(&mut self, op: &Op) -> std::result::Result<(), String> {
        if let Some(first) = self.model_world.before(op) {
            self.step(&first)?;
        }
        if !self.applies(op) {
            return Ok(());
        }
        self.steps += 1;
        let now = Timespec { sec: self.steps, nsec: 1 };
        let cx = Context { uid: 1, gid: 2, now };
        let answer = self.world.apply(&mut self.fs, &cx, op);
        self.last = answer.clone();
        let mut op = op.clone();
        match (&answer, &mut op) {
            (Outcome::Failed(Errno::ENOSPC), op) if op.may_need_space() => {
                // The file system under test is the smaller one, and has to stay as it was.
                self.out_of_space += 1;
                return Ok(());
            }
            (Outcome::Written(written), Op::Write { len, .. }) if written.len < *len as usize => {
                if written.len == 0 {
                    return Err(format!("{op:?}: wrote nothing and did not say why"));
                }
                *len = written.len as u32;
            }
            // As much as could be copied at once; of what is there, that is not nothing.
            (Outcome::Written(written), Op::Copy { len, .. }) if written.len > 0 => {
                if written.len as u64 > *len {
                    return Err(format!("{op:?}: copied {}", written.len));
                }
                *len = written.len as u64;
            }
            _ => {}
        }
        let wanted = self.model_world.apply(&mut self.model, &cx, &op);
        self.agree(&op, &answer, &wanted)?;
        self.follow_listings(&op, &answer)
    }

    /// The outcome of the last operation.
    pub fn last(&self) -> &Outcome {
        &self.last
    }

    /// How many operations found no space on the file system under test.
    pub fn out_of_space(&self) -> u64 {
        self.out_of_space
    }

    /// Whether both can be asked `op`, or a quirk stands against it.
    fn applies(&mut self, op: &Op) -> bool {
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let quirks = self.quirks;
        let model = &mut self.model;
        let world = &self.model_world;
        let mut attr = |node| model.getattr(&cx, world.node(node)).ok();
        let plain = |attr: Option<Attr>| {
            attr.is_none_or(|attr| {
                matches!(attr.file_type(), FileType::Regular | FileType::Directory)
            })
        };
        let fits = |end: u64| end <= quirks.file_size_max;
        match *op {
            Op::Setxattr { node, .. }
            | Op::Getxattr { node, .. }
            | Op::Listxattr { node }
            | Op::Removexattr { node, .. } => quirks.xattr_everywhere || plain(attr(node)),
            Op::Setattr { node, file, set } => {
                let is_link = attr(node).is_some_and(|attr| attr.file_type() == FileType::Symlink);
                (quirks.ownership || set.uid.is_none() && set.gid.is_none())
                    && (quirks.link_modes || set.mode.is_none() || file.is_some() || !is_link)
                    && set.size.is_none_or(fits)
            }
            Op::Link { node, .. } => quirks.relink || attr(node).is_none_or(|attr| attr.nlink > 0),
            Op::Write { offset, len, .. } => fits(offset + u64::from(len)),
            Op::Copy { to_offset, len, .. } => fits(to_offset + len),
            Op::Fallocate { offset, len, mode, .. } => {
                fits(offset + len)
                    && (quirks.zero_range || !mode.contains(FallocateMode::ZERO_RANGE))
            }
            Op::Mknod { mode, .. } => {
                quirks.devices || FileType::from_mode(mode) != Some(FileType::CharDevice)
            }
            _ => true,
        }
    }

    fn agree(
        &mut self,
        op: &Op,
        answer: &Outcome,
        wanted: &Outcome,
    ) -> std::result::Result<(), String> {
        let agreed = match (op, answer, wanted) {
            (Op::Readdir { .. }, Outcome::Stream(..), Outcome::Stream(..)) => true,
            (_, Outcome::Failed(error), Outcome::Failed(_)) => {
                self.model.admissible().contains(error)
            }
            (Op::Seek { file, offset, to }, _, _) if answer != wanted => {
                let found = match answer {
                    Outcome::Offset(at) => Ok(*at),
                    Outcome::Failed(error) => Err(*error),
                    _ => return Err(format!("{op:?}: {answer:?}, expected {wanted:?}")),
                };
                let ino = self.model_world.near(*file).map_or(Ino(0), |(ino, _, _)| ino);
                self.model.seek_admits(ino, *offset, *to, found)
            }
            _ => answer == wanted,
        };
        if agreed {
            return Ok(());
        }
        if let (Outcome::Bytes(is), Outcome::Bytes(wanted)) = (answer, wanted) {
            let at = is.iter().zip(wanted).position(|(a, b)| a != b);
            let (is, wanted) = (is.len(), wanted.len());
            return Err(format!("{op:?}: {is} bytes, expected {wanted}, first differ at {at:?}"));
        }
        let more = self.model.admissible();
        Err(format!("{op:?}: {answer:?}, expected {wanted:?} {more:?}"))
    }

    /// The names that a listing of the directory in a stream's slot would show now.
    fn model_names(&mut self, stream: u8) -> BTreeMap<Vec<u8>, u32> {
        let Some(at) = self.model_world.stream(stream) else { return BTreeMap::new() };
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let mut names = Vec::new();
        let listed = self.model.readdir(&cx, at.ino, at.handle, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.ino));
            true
        });
        debug_assert_eq!(listed, Ok(()), "the model's stream is open");
        names.into_iter().map(|(name, ino)| (name, self.model_world.id(ino))).collect()
    }

    /// Checks that a name which exists throughout a listing is listed exactly once, and that no
    /// name is listed which does not exist.
    fn follow_listings(&mut self, op: &Op, answer: &Outcome) -> std::result::Result<(), String> {
        for slot in 0..STREAMS {
            if self.model_world.stream(slot).is_none() {
                self.listings[slot as usize] = None;
                continue;
            }
            let names = self.model_names(slot);
            let begun = Listing { throughout: names.clone(), listed: BTreeMap::new() };
            let mut listing = self.listings[slot as usize].take().unwrap_or_else(|| begun.clone());
            listing.throughout.retain(|name, id| names.get(name) == Some(id));
            if let (Op::Readdir { stream, .. }, Outcome::Stream(entries, ended)) = (op, answer)
                && *stream == slot
            {
                for (name, id) in entries {
                    let dots = [b".".as_slice(), b".."];
                    if names.get(name) != Some(id) && !dots.contains(&name.as_slice()) {
                        let name = String::from_utf8_lossy(name);
                        return Err(format!("{op:?}: {name} is listed, but is not there"));
                    }
                    *listing.listed.entry(name.clone()).or_default() += 1;
                }
                if *ended && self.quirks.stable_cookies {
                    for name in listing.throughout.keys() {
                        let times = listing.listed.get(name).copied().unwrap_or(0);
                        if times != 1 {
                            let name = String::from_utf8_lossy(name);
                            return Err(format!("{op:?}: {name} was listed {times} times"));
                        }
                    }
                }
                if *ended {
                    listing = begun;
                }
            }
            self.listings[slot as usize] = Some(listing);
        }
        Ok(())
    }

    /// Compares everything that can be reached by names, and every file that is open for reading.
    ///
    /// # Errors
    /// The difference, for people.
    pub fn compare(&mut self) -> std::result::Result<(), String> {
        let is = snapshot(&mut self.fs).map_err(|error| error.to_string())?;
        let wanted = snapshot(&mut self.model).map_err(|error| format!("model: {error}"))?;
        let (is, wanted) = if self.quirks.caller_time {
            (is, wanted)
        } else {
            (is.without_times(), wanted.without_times())
        };
        let differences = is.differences(&wanted, 10);
        if !differences.is_empty() {
            return Err(differences.join("\n"));
        }
        for slot in 0..FILES {
            if let (Some((ino, handle, flags)), Some((model_ino, model_handle, _))) =
                (self.world.file(slot), self.model_world.file(slot))
                && flags.contains(OpenFlags::READ)
            {
                let is = file_content(&mut self.fs, ino, handle);
                let wanted = file_content(&mut self.model, model_ino, model_handle);
                if is != wanted {
                    return Err(format!("open file {slot} is {is:?}, expected {wanted:?}"));
                }
            }
        }
        Ok(())
    }

    /// Carries out all of `ops`, comparing everything from time to time and at the end.
    ///
    /// # Errors
    /// Which operation made a difference, and which difference.
    pub fn run(&mut self, ops: &[Op]) -> std::result::Result<(), String> {
        self.run_comparing(ops, 64)
    }

    /// As [`run`](Self::run), comparing everything after every `every` operations.
    ///
    /// # Errors
    /// Which operation made a difference, and which difference.
    pub fn run_comparing(&mut self, ops: &[Op], every: usize) -> std::result::Result<(), String> {
        for (i, op) in ops.iter().enumerate() {
            self.step(op).map_err(|error| format!("operation {i}: {error}"))?;
            if i % every == every - 1 {
                self.compare().map_err(|error| {
                    format!("after operation {i}, {op:?}, which came to {:?}: {error}", self.last)
                })?;
            }
        }
        self.compare().map_err(|error| format!("at the end: {error}"))
    }
}

/// Leaves out of `ops` those that are not needed for `fails` to stay true, in a bounded number of
/// tries.
pub fn minimised(ops: &[Op], mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut kept = ops.to_vec();
    let mut piece = kept.len().div_ceil(2).max(1);
    let mut tries = 0;
    loop {
        let mut at = 0;
        let mut left_out = false;
        while at < kept.len() && tries < 3000 {
            tries += 1;
            let mut fewer = kept.clone();
            fewer.drain(at..(at + piece).min(kept.len()));
            if fails(&fewer) {
                kept = fewer;
                left_out = true;
            } else {
                at += piece;
            }
        }
        if piece == 1 && !left_out || tries >= 3000 {
            return kept;
        }
        piece = (piece / 2).max(1);
    }
}

/// Says how to run the seed again, as the last line of a failure.
pub fn replay(seed: u64, test: &str) -> String {
    format!("replay with: ATOLL_SEED={seed} cargo test -p atoll-tests {test}")
}

/// The seeds to run: the one in `ATOLL_SEED`, or as many as `ATOLL_SEEDS` or `count` says.
pub fn seeds(count: u64) -> Vec<u64> {
    match environment("ATOLL_SEED") {
        Some(seed) => vec![seed],
        None => (0..environment("ATOLL_SEEDS").unwrap_or(count)).collect(),
    }
}

/// Runs `count` seeds of `len` operations each against the model. `test` names the test for the
/// command that replays a failure; `make` gives an empty file system.
///
/// # Panics
/// On a difference, with the shortest list of operations found that makes it.
pub fn differential_seeds<F: FileSystem>(
    test: &str,
    count: u64,
    len: usize,
    profile: &Profile,
    mut make: impl FnMut() -> (F, Quirks),
) {
    for seed in seeds(count) {
        let ops = seeded_ops(seed, len, profile);
        let mut run = |ops: &[Op], every| {
            let (fs, quirks) = make();
            Differential::new(fs, quirks).run_comparing(ops, every)
        };
        if let Err(error) = run(&ops, 64) {
            let short = minimised(&ops, |ops| run(ops, 64).is_err());
            let again = run(&short, 1).err();
            panic!("seed {seed}: {error}\nshortest: {again:?}\n{short:#?}\n{}", replay(seed, test));
        }
    }
}

/// As [`differential_seeds`], with proptest making and shrinking the operations.
///
/// # Panics
/// On a difference.
pub fn differential_proptest<F: FileSystem>(
    test: &str,
    cases: u32,
    len: usize,
    profile: Profile,
    make: impl Fn() -> (F, Quirks),
) {
    let seed = environment("ATOLL_SEED").unwrap_or(1);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let result = TestRunner::new_with_rng(config, rng).run(&ops(len, profile), |ops| {
        let (fs, quirks) = make();
        Differential::new(fs, quirks).run(&ops).map_err(TestCaseError::fail)
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(reason, ops)) => {
            panic!("{reason}\n{ops:#?}\n{}", replay(seed, test))
        }
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

/// The kinds of operations in a list, for a test that they all come up.
pub fn kinds(ops: &[Op]) -> BTreeSet<String> {
    let kind = |op: &Op| format!("{op:?}").split(' ').next().unwrap_or_default().to_string();
    ops.iter().map(kind).collect()
}
