//! Where a worker runs: not on the processor of the clients that it serves.
//!
//! Two that wait for each other on one processor take turns, while another one may idle. The
//! scheduler puts whom it wakes on an idle processor if it finds one, but two that yield to each
//! other it leaves together for longer than many a program runs. So the worker looks when requests
//! come: if nearly all come while it has given its processor to another thread, it moves to another
//! one. So it does if it gives its processor to nobody any more, since one of them has kept it for
//! long: that may have been a client, which works on what it has read.
//!
//! That is a guess. The other thread may be no client, and the other processors as busy, so that
//! moves become rare when they are of no use. A client can bring them about, which costs it its own
//! requests' time and the worker at most a move each millisecond, soon each second.

use std::io;
use std::time::{Duration, Instant};

use rustix::thread::{sched_getaffinity, sched_setaffinity};

use crate::process::processor;

/// Requests that come so before the worker moves.
const TOGETHER: u32 = 16;
/// How many of these one that comes otherwise undoes.
const APART: u32 = 4;
/// The shortest and the longest time between two moves. A move takes some 50 us.
const REST_MIN: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_secs(1);
/// After so many times the rest without a reason, moves count as useful again.
const SETTLED: u32 = 8;

/// A worker's knowledge of where it runs.
#[derive(Debug)]
pub(crate) struct Placement {
    score: u32,
    rest: Duration,
    /// No move before.
    until: Option<Instant>,
}

impl Placement {
    /// Of one that has served nobody.
    pub fn new() -> Placement {
        Placement { score: 0, rest: REST_MIN, until: None }
    }

    /// Takes note of a request, which came while another thread had this processor, or wanted it,
    /// if the worker `gives_way`. Returns whether it is to move, for which it asks the time.
    #[inline]
    pub fn served(&mut self, gives_way: bool, now: impl FnOnce() -> Instant) -> bool {
        if !gives_way {
            self.score = self.score.saturating_sub(APART);
            return false;
        }
        self.score += 1;
        self.score >= TOGETHER && self.is_due(now())
    }

    #[cold]
    fn is_due(&mut self, now: Instant) -> bool {
        self.score = 0;
        let Some(until) = self.until else { return self.moves(now) };
        if now < until {
            return false;
        }
        self.rest = match now - until < self.rest * SETTLED {
            true => (self.rest * 2).min(REST_MAX),
            false => REST_MIN,
        };
        self.moves(now)
    }

    fn moves(&mut self, now: Instant) -> bool {
        self.until = Some(now + self.rest);
        true
    }
}

/// Has the calling thread go on on another processor, if it may run on others. Where it may run
/// stays as it is, but is what it was asked for from then on: a set of processors of its control
/// group that grows later does not become its own.
///
/// # Errors
/// The error of sched_setaffinity(2); sched_getaffinity(2) fails where there are more than 1,024
/// processors.
pub(crate) fn leave() -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut others = allowed;
    others.unset(processor()?);
    if others.count() > 0 {
        sched_setaffinity(None, &others)?;
        sched_setaffinity(None, &allowed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::CpuSet;

    /// Answers requests for `time`, one each 5 us, `percent` of them after another thread had the
    /// processor. Returns how often the worker moved.
    fn moves(placement: &mut Placement, now: &mut Instant, time: Duration, percent: u32) -> u32 {
        let (end, mut count) = (*now + time, 0);
        for request in 0u32.. {
            *now += Duration::from_micros(5);
            if *now >= end {
                break;
            }
            // Evenly spread.
            let gave_way = (request + 1) * percent / 100 > request * percent / 100;
            count += u32::from(placement.served(gave_way, || *now));
        }
        count
    }

    #[test]
    fn it_moves_away_from_a_client_at_once() {
        let mut placement = Placement::new();
        let now = Instant::now();
        let requests = (1..100).find(|_| placement.served(true, || now));
        assert_eq!(requests, Some(TOGETHER));
    }

    #[test]
    fn it_stays_where_requests_come_from_elsewhere() {
        let (mut placement, mut now) = (Placement::new(), Instant::now());
        for percent in [0, 10, 50, 75] {
            assert_eq!(moves(&mut placement, &mut now, Duration::from_millis(100), percent), 0);
        }
        assert!(moves(&mut placement, &mut now, Duration::from_millis(1), 95) > 0);
    }

    #[test]
    fn moves_that_do_not_help_become_rare() {
        let (mut placement, mut now) = (Placement::new(), Instant::now());
        let second = Duration::from_secs(1);
        let first = moves(&mut placement, &mut now, second, 100);
        assert!((8..=12).contains(&first), "{first}");
        moves(&mut placement, &mut now, second, 100);
        assert!(moves(&mut placement, &mut now, 4 * second, 100) <= 5);
        // For long it had no reason.
        assert_eq!(moves(&mut placement, &mut now, 20 * second, 0), 0);
        let again = moves(&mut placement, &mut now, Duration::from_millis(10), 100);
        assert!(again >= 3, "{again}");
    }

    #[test]
    fn leaving_goes_to_another_processor_and_keeps_the_choice() {
        let set = |cpus: &CpuSet| -> Vec<usize> {
            (0..CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu)).collect()
        };
        // A thread of its own: others of the test program stay where they are.
        std::thread::spawn(move || {
            let allowed = sched_getaffinity(None).unwrap();
            leave().unwrap();
            assert_eq!(set(&sched_getaffinity(None).unwrap()), set(&allowed));
            // With one there is nowhere to go.
            let mut one = CpuSet::new();
            one.set(set(&allowed)[0]);
            sched_setaffinity(None, &one).unwrap();
            leave().unwrap();
            assert_eq!(set(&sched_getaffinity(None).unwrap()), set(&one));
            assert_eq!(processor().unwrap(), set(&one)[0]);
        })
        .join()
        .unwrap();
    }
}
