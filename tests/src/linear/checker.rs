//! The search for a sequential order of a history: Wing and Gong's, with Lowe's memory of what was
//! tried ("Testing for linearizability", 2017), as in Porcupine.
//!
//! Written here and not taken from a crate: `stateright`, the one that is kept up, searches
//! without memory, has no operations of clients that died part way, and brings a model checker and
//! a web server along.

use std::collections::HashSet;
use std::fmt::Write;

use super::history::{Call, FILES};
use super::spec::{Data, Names, Spec, is_observer};

/// The most operations on one object: they are a bit set.
const CALLS_MAX: usize = 128;
/// Steps after which a search gives up.
const STEPS_MAX: u64 = 5_000_000;

/// The result of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Linearizable,
    /// There is none.
    Violation,
    /// Not found within the bound.
    Unknown,
}

/// An end of a call in order of time: (which call, whether it is the return).
type Event = (usize, bool);

/// Searches an order for `calls` that begins with `state`.
///
/// # Panics
/// For more than 128 calls.
pub fn search<S: Spec>(state: S, calls: &[Call]) -> Verdict {
    assert!(calls.len() <= CALLS_MAX, "{} calls on one object", calls.len());
    let mut events: Vec<(u64, Event)> = Vec::new();
    for (i, call) in calls.iter().enumerate() {
        events.push((call.invoked, (i, false)));
        // A call without a return has no place where it has to have happened.
        if let Some((at, _)) = &call.returned {
            events.push((*at, (i, true)));
        }
    }
    events.sort_unstable();
    let bit = |i: usize| 1_u128 << i;
    let completed =
        (0..calls.len()).filter(|&i| calls[i].returned.is_some()).map(bit).sum::<u128>();

    let mut tried: HashSet<(u128, S)> = HashSet::new();
    // Where the walk was, the state and the set of calls that have happened, before each choice.
    let mut choices: Vec<(usize, S, u128)> = Vec::new();
    let (mut state, mut happened, mut at) = (state, 0_u128, 0);
    for _ in 0..STEPS_MAX {
        if happened & completed == completed {
            return Verdict::Linearizable;
        }
        // There is an event: the return of a call that has not happened.
        let (i, is_return) = events[at].1;
        if happened & bit(i) != 0 {
            at += 1;
        } else if is_return {
            // It had to happen before here.
            let Some(choice) = choices.pop() else { return Verdict::Violation };
            (at, state, happened) = choice;
            at += 1;
        } else {
            let mut next = state.clone();
            let seen = calls[i].returned.as_ref().map(|(_, outcome)| outcome);
            let set = happened | bit(i);
            if next.apply(&calls[i].op, seen) && tried.insert((set, next.clone())) {
                choices.push((at, std::mem::replace(&mut state, next), happened));
                happened = set;
                at = 0;
            } else {
                at += 1;
            }
        }
    }
    Verdict::Unknown
}

/// Checks a history of the whole world, object by object. `relink`: see [`Names::new`].
///
/// # Errors
/// The shortest part found that no order explains, in words; or that the search gave up.
pub fn check(calls: &[Call], relink: bool) -> Result<(), String> {
    check_object(Names::new(relink), "names", calls)?;
    (0..FILES).try_for_each(|file| check_object(Data::new(file), &format!("file {file}"), calls))
}

fn check_object<S: Spec>(initial: S, what: &str, calls: &[Call]) -> Result<(), String> {
    let calls: Vec<Call> =
        calls.iter().filter(|call| initial.concerns(&call.op)).cloned().collect();
    match search(initial.clone(), &calls) {
        Verdict::Linearizable => Ok(()),
        Verdict::Unknown => Err(format!("{what}: no answer in {STEPS_MAX} steps")),
        Verdict::Violation => {
            let calls = shrink(&initial, calls);
            Err(format!("{what}: no order explains this:\n{}", describe(&calls)))
        }
    }
}

/// A smaller history that is still a violation, by steps that turn no right history into a wrong
/// one: cut the end, leave out what changed nothing, forget what a call was told.
fn shrink<S: Spec>(initial: &S, mut calls: Vec<Call>) -> Vec<Call> {
    let bad = |calls: &[Call]| search(initial.clone(), calls) == Verdict::Violation;
    let mut ends: Vec<u64> =
        calls.iter().filter_map(|call| call.returned.as_ref().map(|returned| returned.0)).collect();
    ends.sort_unstable();
    let cut = |end: u64| {
        let mut prefix = calls.clone();
        prefix.retain(|call| call.invoked < end);
        for call in &mut prefix {
            call.returned.take_if(|returned| returned.0 > end);
        }
        prefix
    };
    let shortest = ends.into_iter().map(cut).find(|prefix| bad(prefix));
    if let Some(prefix) = shortest {
        calls = prefix;
    }
    for i in (0..calls.len()).rev() {
        let mut fewer = calls.clone();
        if is_observer(&calls[i]) {
            fewer.remove(i);
        } else {
            fewer[i].returned = None;
        }
        if bad(&fewer) {
            calls = fewer;
        }
    }
    calls
}

/// A history as a table.
pub fn describe(calls: &[Call]) -> String {
    let mut calls: Vec<&Call> = calls.iter().collect();
    calls.sort_by_key(|call| call.invoked);
    let mut text = String::new();
    for Call { client, op, invoked, returned } in calls {
        let _ = match returned {
            Some((at, outcome)) => {
                writeln!(text, "  {invoked:4}..{at:<4} client {client}: {op:?} -> {outcome:?}")
            }
            None => writeln!(text, "  {invoked:4}..     client {client}: {op:?} -> (any)"),
        };
    }
    text
}
