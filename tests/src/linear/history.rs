//! Operations on a small world, and the results that clients saw.
//!
//! The world: two directories that stay (the root and `d`), four names in each, and two files that
//! begin as the first two names of the root and that every client holds open, so that they live on
//! whatever happens to their names.

use crate::rng::Rng;

/// Directories.
pub const DIRS: usize = 2;
/// Names in each directory.
pub const NAMES: usize = 4;
/// Files that every client has open.
pub const FILES: usize = 2;
/// Pages that are written by position.
pub const PAGES: u64 = 3;

/// A directory and a name in it.
pub type Place = (usize, usize);

/// One call on the world. Files are those held open; places are names, whatever they stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Makes a regular file, fails if the name exists.
    Create(Place),
    /// Makes a directory, which stays empty.
    Mkdir(Place),
    /// Removes a file's name.
    Unlink(Place),
    /// Removes an empty directory.
    Rmdir(Place),
    /// Renames, replacing.
    Rename(Place, Place),
    /// Renames with NOREPLACE.
    RenameNew(Place, Place),
    /// Renames with EXCHANGE.
    Exchange(Place, Place),
    /// Gives an open file one more name.
    Link(usize, Place),
    /// Looks a name up.
    Lookup(Place),
    /// Lists a directory.
    List(usize),
    /// Size and links of an open file.
    Stat(usize),
    /// Reads a page of an open file.
    Read(usize, u64),
    /// Fills a page of an open file with a byte.
    Write(usize, u64, u8),
    /// Appends a page filled with a byte.
    Append(usize, u8),
    /// Cuts or extends an open file to a number of pages.
    Truncate(usize, u64),
}

/// A page as a read showed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Beyond the end of file.
    Absent,
    /// The same byte throughout.
    Filled(u8),
    /// Several bytes, or cut short: no state that an operation makes.
    Torn,
}

/// The answer of a call that succeeded; `None` for a part that this kind of client does not learn
/// in the call, or cannot learn in one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Inode number.
    pub ino: Option<u64>,
    /// Hard links.
    pub nlink: Option<u32>,
    /// Size, in pages.
    pub size: Option<u64>,
    /// The page that an append took.
    pub at: Option<u64>,
    /// Content of a page.
    pub page: Option<Page>,
    /// Inode numbers by name of a listed directory.
    pub list: Option<[Option<u64>; NAMES]>,
}

/// The result of a call: its answer, or the number of its error.
pub type Outcome = Result<Seen, i32>;

/// One call in a history.
#[derive(Clone, Debug)]
pub struct Call {
    /// Whose.
    pub client: usize,
    /// The operation.
    pub op: Op,
    /// When it began, on a clock that all clients share and that never says the same twice.
    pub invoked: u64,
    /// When it ended and how; `None` if the client died before: it happened later or never.
    pub returned: Option<(u64, Outcome)>,
}

/// Which operations a script is made of.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Percent of operations on names; the others are on data.
    pub names: u64,
    /// Whether files are truncated. Linux's own file systems do not make it atomic with reads.
    pub truncate: bool,
    /// Whether directories are listed, in one call.
    pub list: bool,
}

impl Mix {
    /// All operations.
    pub const ALL: Mix = Mix { names: 50, truncate: true, list: true };
    /// The operations that Linux's own file systems do atomically.
    pub const LINUX: Mix = Mix { names: 60, truncate: false, list: false };
}

/// The script of `client`: `len` operations. Bytes written differ between all writes of a run of
/// up to 6 clients with 40 operations.
pub fn script(seed: u64, client: usize, len: usize, mix: &Mix) -> Vec<Op> {
    assert!(client < 6 && len <= 40, "written bytes would repeat");
    let mut rng = Rng::new(seed << 8 | client as u64);
    (0..len).map(|i| operation(&mut rng, (1 + client * 40 + i) as u8, mix)).collect()
}

fn operation(rng: &mut Rng, byte: u8, mix: &Mix) -> Op {
    let place =
        |rng: &mut Rng| (rng.within(0..DIRS as u64) as usize, rng.within(0..NAMES as u64) as usize);
    let file = rng.within(0..FILES as u64) as usize;
    if rng.chance(mix.names) {
        let (a, b) = (place(rng), place(rng));
        match rng.within(0..20) {
            0..3 => Op::Create(a),
            3 => Op::Mkdir(a),
            4..6 => Op::Unlink(a),
            6 => Op::Rmdir(a),
            7..10 => Op::Rename(a, b),
            10 => Op::RenameNew(a, b),
            11 => Op::Exchange(a, b),
            12..14 => Op::Link(file, a),
            14..16 if mix.list => Op::List(a.0),
            16 => Op::Stat(file),
            _ => Op::Lookup(a),
        }
    } else {
        let page = rng.within(0..PAGES);
        match rng.within(0..10) {
            0..3 => Op::Write(file, page, byte),
            3..5 => Op::Append(file, byte),
            5 if mix.truncate => Op::Truncate(file, page),
            6 => Op::Stat(file),
            _ => Op::Read(file, page),
        }
    }
}

/// Looks at everything: the last operations of a client that lives to the end, alone.
pub fn inspection(mix: &Mix) -> Vec<Op> {
    let mut ops = Vec::new();
    for dir in 0..DIRS {
        ops.extend((0..NAMES).map(|name| Op::Lookup((dir, name))));
        if mix.list {
            ops.push(Op::List(dir));
        }
    }
    for file in 0..FILES {
        ops.push(Op::Stat(file));
        ops.extend((0..2 * PAGES).map(|page| Op::Read(file, page)));
    }
    ops
}
