//! The search for a sequential order of a history: Wing and Gong's, with Lowe's memory of tried
//! states ("Testing for linearizability", 2017), as in Porcupine.
//!
//! Written here and not taken from a crate: the tester of `stateright` goes through the orders
//! without a memory of those that led to the same state, of which there are exponentially many.

use std::collections::HashSet;
use std::fmt::Write;

use super::history::{Call, FILES};
use super::spec::{Data, Names, Rules, Spec, is_observer};

/// The most operations on one object: they are a bit set.
const CALLS_MAX: usize = 128;
/// Steps after which a search gives up.
const STEPS_MAX: u64 = 1_000_000;

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
    let mut choices: Vec<((usize, bool), S, u128)> = Vec::new();
    let (mut state, mut happened) = (state, 0_u128);
    // The event, and whether its call is taken to have done nothing.
    let (mut at, mut void) = (0, false);
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
            ((at, void), state, happened) = choice;
            (at, void) = if void { (at + 1, false) } else { (at, true) };
        } else {
            let mut next = state.clone();
            let seen = calls[i].returned.as_ref().map(|(_, outcome)| outcome);
            let set = happened | bit(i);
            let fits = match void {
                false => next.apply(&calls[i].op, seen),
                true => next.did_nothing(&calls[i].op, seen),
            };
            if fits && tried.insert((set, next.clone())) {
                choices.push(((at, void), std::mem::replace(&mut state, next), happened));
                happened = set;
                (at, void) = (0, false);
            } else {
                (at, void) = if void { (at + 1, false) } else { (at, true) };
            }
        }
    }
    Verdict::Unknown
}

/// Checks a history of the whole world, object by object.
///
/// # Errors
/// The shortest part found that no order explains, in words; or that the search gave up.
pub fn check(calls: &[Call], rules: Rules) -> Result<(), String> {
    check_object(Names::new(rules), "names", calls)?;
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
/// one: cut the end, leave out calls that changed nothing, forget the answer of a call.
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

#[cfg(test)]
mod tests {
    use super::super::history::{Op, Outcome, Page, Seen};
    use super::super::spec::Kernel;
    use super::*;

    const RULES: Rules = Rules { kernel: Kernel::None, kept: false };

    fn call(client: usize, invoked: u64, returned: u64, op: Op, outcome: Outcome) -> Call {
        Call { client, op, invoked, returned: Some((returned, outcome)) }
    }

    fn pending(client: usize, invoked: u64, op: Op) -> Call {
        Call { client, op, invoked, returned: None }
    }

    fn read(byte: Option<u8>) -> Outcome {
        let page = byte.map_or(Page::Absent, Page::Filled);
        Ok(Seen { page: Some(page), ..Seen::default() })
    }

    fn done() -> Outcome {
        Ok(Seen::default())
    }

    fn data(calls: &[Call]) -> Verdict {
        search(Data::new(0), calls)
    }

    #[test]
    fn one_after_the_other() {
        assert_eq!(data(&[]), Verdict::Linearizable);
        let write = call(0, 1, 2, Op::Write(0, 0, 7), done());
        let after = |seen| [write.clone(), call(1, 3, 4, Op::Read(0, 0), read(seen))];
        assert_eq!(data(&after(Some(7))), Verdict::Linearizable);
        assert_eq!(data(&after(None)), Verdict::Violation);
        assert_eq!(data(&after(Some(8))), Verdict::Violation);
        let torn = Ok(Seen { page: Some(Page::Torn), ..Seen::default() });
        assert_eq!(data(&[call(0, 1, 2, Op::Read(0, 0), torn)]), Verdict::Violation);
    }

    #[test]
    fn at_the_same_time() {
        // During a write, reads may see it or not, but not it and then its absence.
        let reads = |a, b| {
            [
                call(0, 1, 9, Op::Write(0, 0, 7), done()),
                call(1, 2, 3, Op::Read(0, 0), read(a)),
                call(1, 4, 5, Op::Read(0, 0), read(b)),
            ]
        };
        assert_eq!(data(&reads(None, Some(7))), Verdict::Linearizable);
        assert_eq!(data(&reads(None, None)), Verdict::Linearizable);
        assert_eq!(data(&reads(Some(7), Some(7))), Verdict::Linearizable);
        assert_eq!(data(&reads(Some(7), None)), Verdict::Violation);
        // Two appends never take the same page.
        let appends = |a, b| {
            let at = |at| Ok(Seen { at: Some(at), ..Seen::default() });
            [call(0, 1, 4, Op::Append(0, 1), at(a)), call(1, 2, 3, Op::Append(0, 2), at(b))]
        };
        assert_eq!(data(&appends(1, 0)), Verdict::Linearizable);
        assert_eq!(data(&appends(0, 0)), Verdict::Violation);
    }

    #[test]
    fn who_died_in_a_call() {
        // It may happen at any later time, or never, but once and not before it began.
        let seen = |first, second| {
            [
                call(1, 1, 2, Op::Read(0, 0), read(first)),
                pending(0, 3, Op::Append(0, 7)),
                call(1, 4, 5, Op::Truncate(0, 0), done()),
                call(1, 6, 7, Op::Read(0, 0), read(None)),
                call(1, 8, 9, Op::Read(0, 0), read(second)),
                call(1, 10, 11, Op::Read(0, 1), read(None)),
            ]
        };
        assert_eq!(data(&seen(None, None)), Verdict::Linearizable);
        assert_eq!(data(&seen(None, Some(7))), Verdict::Linearizable);
        assert_eq!(data(&seen(Some(7), None)), Verdict::Violation);
        let mut twice = seen(None, Some(7)).to_vec();
        twice[5] = call(1, 10, 11, Op::Read(0, 1), read(Some(7)));
        assert_eq!(data(&twice), Verdict::Violation);
    }

    #[test]
    fn names() {
        let ino = |ino| Ok(Seen { ino: Some(ino), ..Seen::default() });
        let names = |kernel, calls: &[Call]| search(Names::new(Rules { kernel, ..RULES }), calls);
        // A rename, during which the name is seen in both places.
        let both = [
            call(0, 1, 9, Op::Rename((0, 0), (1, 0)), done()),
            call(1, 2, 3, Op::Lookup((1, 0)), ino(5)),
            call(1, 4, 5, Op::Lookup((0, 0)), ino(5)),
        ];
        assert_eq!(names(Kernel::None, &both), Verdict::Violation);
        assert_eq!(names(Kernel::Between, &both), Verdict::Violation);
        // One that did nothing: wrong, unless the kernel has seen the file at both names.
        let exists = [
            call(0, 1, 2, Op::Rename((0, 0), (0, 1)), done()),
            call(1, 3, 4, Op::Lookup((0, 0)), ino(5)),
        ];
        assert_eq!(names(Kernel::None, &exists), Verdict::Violation);
        assert_eq!(names(Kernel::Between, &exists), Verdict::Linearizable);
        // Two that both have made the same name.
        let made = |client, seen| {
            call(client, 1 + client as u64, 4 + client as u64, Op::Create((1, 1)), seen)
        };
        let exists = Err(atoll_vfs::Errno::EEXIST.raw());
        assert_eq!(names(Kernel::None, &[made(0, ino(7)), made(1, exists)]), Verdict::Linearizable);
        assert_eq!(names(Kernel::None, &[made(0, ino(7)), made(1, ino(8))]), Verdict::Violation);
        // A file without names.
        let link =
            [call(0, 1, 2, Op::Unlink((0, 0)), done()), call(0, 3, 4, Op::Link(0, (0, 2)), done())];
        assert_eq!(names(Kernel::None, &link), Verdict::Linearizable);
        assert_eq!(names(Kernel::Alone, &link), Verdict::Violation);
        let kept = Names::new(Rules { kernel: Kernel::Alone, kept: true });
        assert_eq!(search(kept, &link), Verdict::Linearizable);
    }

    /// A violation is told in its shortest form, and a search that gives up says so.
    #[test]
    fn what_is_told() {
        let mut calls = vec![call(0, 1, 2, Op::Write(0, 0, 7), done())];
        calls.extend((0..9).map(|i| call(1, 3 + 2 * i, 4 + 2 * i, Op::Write(1, 1, 9), done())));
        calls.push(call(1, 30, 31, Op::Read(0, 0), read(None)));
        calls.push(call(1, 32, 33, Op::Write(0, 0, 9), done()));
        let error = check(&calls, RULES).expect_err("a violation");
        assert_eq!(error.lines().count(), 3, "{error}");
        // Appends in an unknown order, and an impossible end: too many orders to try.
        let mut calls: Vec<Call> = (0..30)
            .map(|i| call(i, 1 + i as u64, 100 + i as u64, Op::Append(0, i as u8), done()))
            .collect();
        calls.push(call(0, 200, 201, Op::Read(0, 0), read(Some(99))));
        assert_eq!(data(&calls), Verdict::Unknown);
        assert!(check(&calls, RULES).expect_err("no answer").contains("no answer"));
    }
}
