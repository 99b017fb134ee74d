//! Real programs, unmodified, on each way to a file system: git, tar, make, SQLite and others.
//!
//! Read in this order: [`rows`] the programs and what is aimed at; [`mod@column`] the ways;
//! [`fixture`] what the programs work on; [`player`] the process that runs them where a column has
//! its files; [`requests`] what the kernel asks of a FUSE server meanwhile; [`report`] the table.
//!
//! A round starts every column on a new file system, and each row goes to one column after the
//! other, so that what the machine does meanwhile meets all of them.

mod column;
mod fixture;
mod player;
mod report;
mod requests;
mod rows;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::column::{COLUMNS, Column, Place, Seat};
use self::fixture::{Extent, Fixture};
pub use self::player::Part;
use self::requests::Counter;
use self::rows::{ROWS, Row, Work};
use crate::machine::{Machine, Noise, Watch};
use crate::record::Broken;
use crate::subject::Places;
use crate::system;
use crate::workloads::check;

/// Measures real programs on each way to a file system
#[derive(clap::Args)]
pub struct Options {
    /// Only show that every program works, on few files
    #[arg(long)]
    smoke: bool,
    /// Run the programs whose name contains this
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// List the programs and the columns
    #[arg(long)]
    list: bool,
    /// Measure these columns only
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    on: Vec<String>,
    /// How often each program is run on each column
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Count what the kernel asks of FUSE servers for each program, in a round of its own; as root
    #[arg(long)]
    requests: bool,
    /// Where the table goes, as text and JSON
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
    /// A folder on the disk to measure; also where volumes are
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    disk: PathBuf,
    /// A folder on a tmpfs
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
}

/// All that was measured.
#[derive(Debug, serde::Serialize)]
pub struct Found {
    machine: Machine,
    noise: Noise,
    smoke: bool,
    /// The columns, in the order of the table.
    columns: Vec<&'static str>,
    /// By row, then by column, a figure for each round.
    figures: BTreeMap<&'static str, BTreeMap<&'static str, Vec<f64>>>,
    /// By row and column, what others' file systems did wrong.
    wrong: BTreeMap<&'static str, BTreeMap<&'static str, String>>,
    /// By row, column and kind of request, how many there were.
    requests: BTreeMap<&'static str, BTreeMap<&'static str, BTreeMap<String, u64>>>,
}

/// Measures, and writes the table.
pub fn run(options: &Options) -> Result<(), Broken> {
    let filter = options.filter.as_deref().unwrap_or("");
    let rows: Vec<&Row> = ROWS.iter().filter(|row| row.name.contains(filter)).collect();
    if rows.is_empty() {
        return Err(Broken(format!("no program's name contains `{filter}`; --list lists them")));
    }
    if options.list {
        rows.iter().for_each(|row| println!("{:<24} {}", row.name, row.unit.sign()));
        COLUMNS.iter().for_each(|column| println!("{:<24} {}", column.name, column.title));
        return Ok(());
    }
    for directory in [&options.out, &options.disk] {
        std::fs::create_dir_all(directory)?;
    }
    let places =
        Places { disk: std::path::absolute(&options.disk)?, memory: options.memory.clone() };
    places.check().map_err(Broken)?;
    let columns = chosen(options, &places)?;
    let extent = if options.smoke { Extent::SMALL } else { Extent::WHOLE };
    let fixture = Fixture::make(&places.disk, extent)?;

    let watch = Watch::begin();
    let mut found = Found {
        machine: Machine::this(),
        noise: Noise::default(),
        smoke: options.smoke,
        columns: columns.iter().map(|column| column.name).collect(),
        figures: BTreeMap::new(),
        wrong: BTreeMap::new(),
        requests: BTreeMap::new(),
    };
    // What is counted is not measured: the kernel writes a line for each request.
    let rounds = if options.requests || options.smoke { 1 } else { options.rounds.max(1) };
    for number in 0..rounds {
        let count = options.requests.then(Counter::begin).transpose()?;
        let names = format!("round {}", number + 1);
        round(&names, &rows, &columns, &places, &fixture, count.as_ref(), &mut found)?;
    }
    found.noise = watch.end();

    let text = report::text(&found);
    println!("{text}");
    let name = if options.requests { "programs-requests" } else { "programs" };
    std::fs::write(options.out.join(format!("{name}.txt")), &text)?;
    let json = serde_json::to_string_pretty(&found).map_err(|error| Broken(error.to_string()))?;
    Ok(std::fs::write(options.out.join(format!("{name}.json")), json)?)
}

/// The columns that were asked for, or all that this user and this machine have.
fn chosen(options: &Options, places: &Places) -> Result<Vec<&'static Column>, Broken> {
    if let Some(name) = options.on.iter().find(|name| COLUMNS.iter().all(|c| c.name != **name)) {
        return Err(Broken(format!("there is no column `{name}`; --list lists them")));
    }
    let mut columns = Vec::new();
    for column in &COLUMNS {
        let asked = options.on.iter().any(|name| name == column.name);
        match (column.lacks)(places) {
            Some(why) if asked => return Err(Broken(format!("{}: {why}", column.name))),
            Some(why) => eprintln!("without {}: {why}", column.name),
            None if asked || options.on.is_empty() => columns.push(column),
            None => {}
        }
    }
    Ok(columns)
}

/// Runs each of `rows` on each of `columns`, once.
fn round(
    name: &str,
    rows: &[&'static Row],
    columns: &[&'static Column],
    places: &Places,
    fixture: &Fixture,
    counter: Option<&Counter>,
    found: &mut Found,
) -> Result<(), Broken> {
    let place = Place { places, fixture };
    let start = |column: &&'static Column| {
        column.start(&place).map_err(|Broken(why)| Broken(format!("{}: {why}", column.name)))
    };
    let mut seats = columns.iter().map(start).collect::<Result<Vec<Seat>, Broken>>()?;
    for row in rows {
        // What the check prints is the same everywhere.
        let mut printed: Option<String> = None;
        // No column always follows the same one.
        seats.rotate_left(1);
        for seat in &mut seats {
            if !row.is_for(seat.column) {
                continue;
            }
            eprintln!("{name}, {}, {}", row.name, seat.column.name);
            let failed = |Broken(why)| Broken(format!("{}, {}: {why}", row.name, seat.column.name));
            let figure = match once(row, seat, &places.disk, counter, &mut printed) {
                Err(Broken(why)) if seat.column.peer => {
                    found.wrong.entry(row.name).or_default().insert(seat.column.name, why);
                    continue;
                }
                outcome => outcome.map_err(failed)?,
            };
            let of_row = found.figures.entry(row.name).or_default();
            of_row.entry(seat.column.name).or_default().push(figure.value);
            if let Some(requests) = figure.requests {
                found.requests.entry(row.name).or_default().insert(seat.column.name, requests);
            }
        }
    }
    seats.into_iter().try_for_each(Seat::stop)
}

/// What one run of a program gave.
struct Figure {
    value: f64,
    requests: Option<BTreeMap<String, u64>>,
}

fn once(
    row: &Row,
    seat: &mut Seat,
    disk: &Path,
    counter: Option<&Counter>,
    printed: &mut Option<String>,
) -> Result<Figure, Broken> {
    if row.work == Work::Launch {
        return Ok(Figure { value: seat.launch()?, requests: None });
    }
    seat.player.prepare(row)?;
    // What was written before is not to be paid for now.
    system::settle(disk);
    let count = counter.zip(seat.player.connection());
    count.map(|(counter, connection)| counter.start(connection)).transpose()?;
    let value = seat.player.work(row)?;
    let requests = count.map(|(counter, _)| counter.stop()).transpose()?;
    let said = seat.player.check(row)?;
    let expected = printed.get_or_insert_with(|| said.clone());
    check(said.as_bytes(), expected.as_bytes(), "what the check printed")?;
    Ok(Figure { value, requests })
}
