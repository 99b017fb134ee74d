//! Strangers at a server: every attack against a victim, beside the victim alone, in one run.
//!
//! Read in this order: [`attacks`] the table of what strangers do; [`rings`], [`flood`] and
//! [`mounts`] how; [`victim`] the calls that are measured; [`stage`] a server with its users;
//! [`report`] what comes out, and the goals.
//!
//! Each attack meets a server of its own: the victim is measured alone there, then under attack.
//! Strangers run at a low priority: the share of the processors that their own work takes is the
//! scheduler's affair, not the server's.

mod attacks;
mod flood;
mod mounts;
mod report;
mod rings;
mod stage;
mod victim;

use std::path::PathBuf;
use std::time::Duration;

use crate::record::Broken;
use attacks::{ATTACKS, Attack};
use report::Row;
use stage::{Peak, STRANGER, Stage, VICTIM};

pub use attacks::Part;
pub use victim::Visit;

/// How a run goes.
#[derive(clap::Args)]
pub struct Options {
    /// Only show that every attack works, half a second each
    #[arg(long)]
    smoke: bool,
    /// Run the attacks whose name contains this; several with commas between
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    filter: Vec<String>,
    /// List the attacks
    #[arg(long)]
    list: bool,
    /// Seconds that the victim is measured, alone and under attack
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Another `atoll` than the one beside this program
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Where the volumes are
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
    /// Where the table and JSON go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
}

/// Runs the attacks.
pub fn run(options: &Options) -> Result<(), Broken> {
    let wanted = |attack: &&Attack| {
        options.filter.is_empty() || options.filter.iter().any(|part| attack.name.contains(&**part))
    };
    let chosen: Vec<&Attack> = ATTACKS.iter().filter(wanted).collect();
    if chosen.is_empty() {
        return Err(Broken("no attack's name contains that; --list lists them".into()));
    }
    if options.list {
        for attack in chosen {
            println!("{:<14} {}", attack.name, attack.title);
        }
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() {
        let why =
            "the attacks need root: server, victim and strangers are processes of other users";
        return Err(Broken(why.into()));
    }
    std::fs::create_dir_all(&options.out)?;
    let mut rows = Vec::new();
    for attack in chosen {
        eprintln!("{}: {}", attack.name, attack.title);
        let row = row(attack, options);
        eprintln!("  {}", report::line(&row));
        rows.push(row);
    }
    let text = report::text(&rows, options.smoke);
    println!("{text}");
    std::fs::write(options.out.join("hostile.txt"), &text)?;
    let json = serde_json::to_string_pretty(&rows).map_err(|error| Broken(error.to_string()))?;
    std::fs::write(options.out.join("hostile.json"), json)?;
    match rows.iter().filter(|row| row.failure.is_some()).count() {
        0 => Ok(()),
        failures => Err(Broken(format!("{failures} attacks could not be measured"))),
    }
}

/// Measures the victim alone and under `attack`.
fn row(attack: &'static Attack, options: &Options) -> Row {
    let mut row = Row { attack: attack.name, ..Row::default() };
    if let Err(Broken(why)) = measure(attack, options, &mut row) {
        row.failure = Some(why);
    }
    row
}

fn measure(attack: &'static Attack, options: &Options, row: &mut Row) -> Result<(), Broken> {
    let seconds = if options.smoke { 0.5 } else { options.seconds };
    let mut stage = Stage::start(&options.memory, options.program.as_deref())?;
    let patience = Duration::from_secs_f64(2.0 * seconds + if options.smoke { 5.0 } else { 20.0 });
    let visit = |stage: &Stage, how| stage.spawn(VICTIM, "victim", &[how, &seconds.to_string()]);
    let mut alone = visit(&stage, "stay")?;
    alone.begin()?;
    let text = alone.answer(patience)?.ok_or_else(|| Broken("alone it never ended".into()))?;
    row.alone = Some(parse(&text)?);

    // It is connected before the attack begins; the newcomer comes after.
    let mut victim = visit(&stage, "stay")?;
    let peak = Peak::watch(stage.server());
    let mut strangers = Vec::new();
    for part in 0..attack.processes {
        let (part, smoke) = (part.to_string(), options.smoke.to_string());
        strangers.push(stage.spawn(STRANGER, "attack", &[attack.name, &part, &smoke])?);
    }
    for stranger in &mut strangers {
        stranger.ready(Duration::from_secs(30))?;
    }
    std::thread::sleep(Duration::from_secs_f64(seconds / 4.0));
    let mut newcomer = visit(&stage, "come")?;
    newcomer.begin()?;
    victim.begin()?;
    if let Some(text) = newcomer.answer(patience)? {
        row.newcomer_ms = found(&text, "newcomer", &mut row.failure);
    }
    if let Some(text) = victim.answer(patience)? {
        row.under = found(&text, "victim", &mut row.failure);
    }
    let notes: Vec<String> = strangers.iter().filter_map(|stranger| stranger.note()).collect();
    row.notes = notes.join("; ");
    (row.memory_mib, row.shared_mib) = peak.end();
    // A stranger takes its mounts down, by which the kernel lets go of whoever waits for them.
    for stranger in strangers {
        stranger.dismiss();
    }
    row.ends = stage.stop();
    Ok(())
}

/// The finding of an actor, from its line `text`. To answer late is a result; that a call of its
/// failed, or read what it did not write, is a failure of the server.
fn found<T: serde::de::DeserializeOwned>(
    text: &str,
    who: &str,
    failure: &mut Option<String>,
) -> Option<T> {
    let found = parse(text);
    if let Err(Broken(why)) = &found {
        failure.get_or_insert_with(|| format!("{who}: {why}"));
    }
    found.ok()
}

fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, Broken> {
    match serde_json::from_str::<Result<T, String>>(text) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(why)) => Err(Broken(why)),
        Err(_) => Err(Broken(format!("it said `{}`", text.trim()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_that_fails_is_a_failure_of_the_run() {
        let mut failure = None;
        assert_eq!(found::<f64>(r#"{"Ok":1.5}"#, "newcomer", &mut failure), Some(1.5));
        assert_eq!(failure, None);
        assert_eq!(
            found::<f64>(r#"{"Err":"page 3 is not its own"}"#, "victim", &mut failure),
            None
        );
        assert_eq!(found::<f64>("panicked", "newcomer", &mut failure), None);
        assert_eq!(failure.as_deref(), Some("victim: page 3 is not its own"));
    }
}
