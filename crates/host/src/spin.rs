//! Looking for what another thread is about to do, before sleeping.
//!
//! To sleep and be woken takes longer than most answers do, so that a thread that waits looks again
//! and again for a while. Where the other thread runs decides how:
//!
//! - On another processor: a pause between two looks, and nothing else.
//! - On this one, which it gets only when this thread gives it away. By sched_yield(2) both take
//!   turns of 1 or 2 us; to sleep and be woken takes twice as long, and pauses would take it from
//!   the other.
//! - Anywhere, while a third thread wants this processor and keeps it for milliseconds. Then it is
//!   not given away any more for a while: a thread that has slept gets it sooner.
//!
//! Nobody says which it is. A yield shows it: one that gives the processor to nobody takes some
//! hundred nanoseconds. [`Pace`] is what is learned from that, and [`Limit`] how long a client
//! looks.

use std::time::{Duration, Instant};

/// The longest that a client looks for an answer before it sleeps, and how long a server usually
/// looks for requests: about what it costs to wake them.
pub const SPIN_MAX: Duration = Duration::from_micros(50);
/// The shortest, when looking has not helped lately.
const SPIN_MIN: Duration = Duration::from_micros(2);
/// How many times longer an answer may take of a server that has to be woken first.
const WAKING: u32 = 4;
/// One in so many waits is as long as it may be, to find out whether that helps now.
const EXPLORE: u32 = 32;

/// Looks between two looks at the clock, when each takes some 30 ns.
const ROUNDS: u32 = 16;
/// The same while yields are of use.
const ROUNDS_TOGETHER: u32 = 4;
/// A yield that takes as long has given the processor to another thread: two switches.
const GIVEN: Duration = Duration::from_nanos(1200);
/// The shortest and the longest time between yields that are of no use.
const BETWEEN_MIN: Duration = Duration::from_micros(4);
const BETWEEN_MAX: Duration = Duration::from_micros(16);
/// Both for a thread that is bound to one processor: whom it waits for may be bound to the same
/// one, or to another.
const BETWEEN_BOUND: Duration = Duration::from_micros(1);
/// A yield that takes as long has given the processor to somebody who does other work.
const CROWDED: Duration = Duration::from_micros(500);
/// After two of them, with fewer than so many others between, there is none for so many times as
/// long as the last one took, which bounds what they cost.
const CROWDED_WITHIN: u32 = 64;
/// The same for a thread that is woken cheaply, in microseconds for which others have to make up:
/// to sleep costs it so much more than a yield does.
const SLEEP_COSTS: Duration = Duration::from_micros(4);
const CROWDED_WITHIN_MOST: u32 = 4096;
const CROWDED_FOR: u32 = 32;

/// The next step of a thread that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Look,
    Yield,
    Sleep,
}

/// When a waiting thread yields and when it gives up.
#[derive(Debug)]
struct Pace {
    /// Time between two yields; none while they are of use.
    between: Duration,
    /// The most.
    rarest: Duration,
    /// Beside other work it sleeps at once, and finds out sooner that there is some.
    meek: bool,
    /// How many yields ago the last long one was, up to a bound.
    since_long: u32,
    /// No yields before.
    crowded: Option<Instant>,
    /// Since when it waits, and when it is to yield next.
    began: Option<(Instant, Instant)>,
    /// Whether it has yielded in this wait.
    yielded: bool,
    /// Whether the last thing it did was to let another thread run.
    given: bool,
}

impl Pace {
    /// Of a thread that may run on one processor only, if it is `bound`.
    fn new(bound: bool) -> Pace {
        Pace {
            between: if bound { BETWEEN_BOUND } else { BETWEEN_MIN },
            rarest: if bound { BETWEEN_BOUND } else { BETWEEN_MAX },
            meek: false,
            since_long: CROWDED_WITHIN_MOST,
            crowded: None,
            began: None,
            yielded: false,
            given: false,
        }
    }

    fn begin(&mut self) {
        (self.began, self.yielded, self.given) = (None, false, false);
    }

    /// The step at `now`, in a wait of at most `limit`.
    fn step(&mut self, now: Instant, limit: Duration) -> Step {
        self.given = false;
        let (began, next) = *self.began.get_or_insert((now, now + self.between));
        let over = now.duration_since(began) >= limit;
        if self.crowded.is_some_and(|until| now < until) {
            return if over || self.meek { Step::Sleep } else { Step::Look };
        }
        // Before it sleeps it yields once: only so does it find out that it has to.
        match over {
            true if self.yielded => Step::Sleep,
            false if now < next => Step::Look,
            _ => Step::Yield,
        }
    }

    /// What was learned of the processor does not hold for another one. Where all are crowded one
    /// long yield is enough to show it.
    #[cfg(feature = "server")]
    fn moved(&mut self) {
        (self.crowded, self.since_long) = (None, 0);
    }

    /// Takes note of a yield.
    fn yielded(&mut self, before: Instant, after: Instant) {
        let took = after.duration_since(before);
        self.yielded = true;
        self.given = took >= GIVEN;
        self.between = match self.given {
            true => Duration::ZERO,
            false => (self.between * 2).max(BETWEEN_MIN).min(self.rarest),
        };
        let long = took >= CROWDED;
        let within = match self.meek {
            true => (took.as_nanos() / SLEEP_COSTS.as_nanos()) as u32,
            false => CROWDED_WITHIN,
        };
        let crowded = long && self.since_long < within.min(CROWDED_WITHIN_MOST);
        self.crowded = crowded.then(|| after + took * CROWDED_FOR);
        self.since_long = if long { 0 } else { (self.since_long + 1).min(CROWDED_WITHIN_MOST) };
        if let Some((_, next)) = &mut self.began {
            *next = after + self.between;
        }
    }
}

/// One thread's way of waiting.
#[derive(Debug)]
pub struct Spin {
    pace: Pace,
    /// Looks between two looks at the clock.
    rounds: u32,
    /// Looks until the next one.
    left: u32,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin::new()
    }
}

impl Spin {
    /// For looks of some 30 ns, as a look at memory is with the pause that comes with it.
    pub fn new() -> Spin {
        Spin::with_rounds(ROUNDS)
    }

    /// For looks that are system calls.
    #[cfg(feature = "server")]
    pub fn of_calls() -> Spin {
        Spin::with_rounds(1)
    }

    /// For a thread whose other side looks for a while before it sleeps, and wakes it cheaply, as
    /// a guest's processor does: while others want the processor it sleeps at once. Each yield
    /// there costs a turn of theirs, and looks take the processor from whom it waits for.
    #[cfg(feature = "server")]
    pub fn meek() -> Spin {
        let mut spin = Spin::new();
        spin.pace.meek = true;
        spin
    }

    fn with_rounds(rounds: u32) -> Spin {
        let bound = rustix::thread::sched_getaffinity(None).is_ok_and(|cpus| cpus.count() == 1);
        Spin { pace: Pace::new(bound), rounds, left: rounds }
    }

    /// Begins a wait.
    #[inline]
    pub fn begin(&mut self) {
        self.pace.begin();
        self.left = self.rounds();
    }

    /// Passes a moment of a wait of at most `limit`; false when the thread should rather sleep. The
    /// clock starts after the first few moments, in which most answers come.
    #[inline]
    pub fn turn(&mut self, limit: Duration) -> bool {
        std::hint::spin_loop();
        self.left -= 1;
        if self.left > 0 {
            return true;
        }
        self.pass(limit)
    }

    #[cold]
    fn pass(&mut self, limit: Duration) -> bool {
        let now = Instant::now();
        let step = self.pace.step(now, limit);
        if step == Step::Yield {
            rustix::thread::sched_yield();
            self.pace.yielded(now, Instant::now());
        }
        self.left = self.rounds();
        step != Step::Sleep
    }

    /// Looks until the next look at the clock.
    #[inline]
    fn rounds(&self) -> u32 {
        match self.pace.between {
            Duration::ZERO => ROUNDS_TOGETHER.min(self.rounds),
            _ => self.rounds,
        }
    }

    /// Whether the last moment went to another thread, on this processor, or would have to: one
    /// that keeps it for long.
    #[cfg(feature = "server")]
    #[inline]
    pub fn gives_way(&self) -> bool {
        self.pace.given || self.pace.crowded.is_some()
    }

    /// The thread is on another processor than before.
    #[cfg(feature = "server")]
    pub fn moved(&mut self) {
        self.pace.moved();
    }
}

/// How long a client looks for each answer: for longer as long as that helps.
#[derive(Debug)]
pub struct Limit {
    most: Duration,
    now: Duration,
    waits: u32,
}

impl Limit {
    /// One of at most `most`.
    pub fn new(most: Duration) -> Limit {
        Limit { most, now: most, waits: 0 }
    }

    /// How long the next wait is, when the one before `slept` and the server has to be `woken`
    /// first.
    pub fn next(&mut self, slept: bool, woken: bool) -> Duration {
        let explored = self.waits.is_multiple_of(EXPLORE);
        self.waits = self.waits.wrapping_add(1);
        self.now = match (slept, explored) {
            (true, _) => self.now / 2,
            (false, true) => self.most,
            (false, false) => self.now * 2,
        };
        self.now = self.now.max(SPIN_MIN).min(self.most);
        let limit = if self.waits.is_multiple_of(EXPLORE) { self.most } else { self.now };
        if woken { limit * WAKING } else { limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);
    const NS: Duration = Duration::from_nanos(1);

    /// A thread that waits, and the time as it sees it.
    struct Waiting {
        pace: Pace,
        now: Instant,
        limit: Duration,
    }

    impl Waiting {
        fn new(bound: bool) -> Waiting {
            Waiting { pace: Pace::new(bound), now: Instant::now(), limit: 50 * US }
        }

        /// One wait in which nothing comes, while each yield takes as long as `yields` says.
        /// Returns how often it yielded.
        fn wait(&mut self, yields: Duration) -> u32 {
            self.pace.begin();
            let mut count = 0;
            // Each look at the clock is half a microsecond after the one before.
            for _ in 0..1000 {
                match self.pace.step(self.now, self.limit) {
                    Step::Sleep => return count,
                    Step::Look => {}
                    Step::Yield => {
                        self.pace.yielded(self.now, self.now + yields);
                        self.now += yields;
                        count += 1;
                    }
                }
                self.now += US / 2;
            }
            panic!("it never sleeps");
        }
    }

    #[test]
    fn yields_of_no_use_become_rare() {
        let mut thread = Waiting::new(false);
        assert!(thread.wait(300 * NS) > 2);
        assert_eq!(thread.wait(300 * NS), 3, "50 us, every 16");
        let before = thread.now;
        thread.wait(300 * NS);
        let waited = thread.now - before;
        assert!(waited >= thread.limit && waited < thread.limit + 2 * US, "{waited:?}");
    }

    #[test]
    fn a_processor_that_others_take_is_offered_at_each_look() {
        let mut thread = Waiting::new(false);
        thread.wait(300 * NS);
        thread.pace.yielded(thread.now, thread.now + 3 * US);
        assert!(thread.pace.given);
        thread.pace.begin();
        assert_eq!(thread.pace.step(thread.now, thread.limit), Step::Yield);
        // Nobody takes it any more.
        thread.pace.yielded(thread.now, thread.now + 300 * NS);
        assert_eq!(thread.pace.step(thread.now + US, thread.limit), Step::Look);
        assert!(!thread.pace.given);
    }

    #[test]
    fn nobody_sleeps_before_having_yielded() {
        let mut thread = Waiting::new(false);
        thread.limit = 2 * US;
        for _ in 0..10 {
            assert_eq!(thread.wait(300 * NS), 1);
        }
    }

    #[test]
    fn without_another_processor_this_one_is_offered_all_the_time() {
        let mut thread = Waiting::new(true);
        for _ in 0..3 {
            // Whether somebody takes it or not.
            assert!(thread.wait(300 * NS) > 20);
            assert!(thread.wait(2 * US) > 15);
        }
        // But not at each look, since whoever is waited for may run elsewhere.
        thread.wait(300 * NS);
        thread.pace.begin();
        assert_eq!(thread.pace.step(thread.now, thread.limit), Step::Look);
    }

    #[test]
    fn beside_a_thread_that_keeps_the_processor_it_is_not_given_away() {
        let long = Duration::from_millis(3);
        let mut thread = Waiting::new(false);
        assert_eq!(thread.wait(long), 1, "and the wait is over");
        // A thread that is only interrupted now and then goes on yielding.
        for _ in 0..30 {
            assert!(thread.wait(300 * NS) >= 3);
        }
        assert_eq!(thread.wait(long) + thread.wait(long), 2);
        let since = thread.now;
        let mut yields = 0;
        while thread.now - since < Duration::from_secs(1) {
            yields += thread.wait(long);
        }
        assert!((2..=12).contains(&yields), "{yields} yields of 3 ms within a second");
    }

    /// On another processor there may be no crowd, and one long yield shows if there is.
    #[cfg(feature = "server")]
    #[test]
    fn a_thread_that_has_moved_looks_again() {
        let long = Duration::from_millis(20);
        for meek in [false, true] {
            let mut thread = Waiting::new(false);
            thread.pace.meek = meek;
            assert_eq!(thread.wait(long) + thread.wait(long), 2);
            assert!(thread.pace.crowded.is_some());
            thread.pace.moved();
            assert!(thread.wait(300 * NS) >= 3 && thread.pace.crowded.is_none());
            thread.pace.moved();
            assert_eq!(thread.wait(long), 1);
            assert!(thread.pace.crowded.is_some());
        }
    }

    /// A device whose guest sends a request each 20 us loses little to a thread that works on.
    #[test]
    fn who_is_meek_gives_a_crowd_little() {
        let long = Duration::from_millis(3);
        let lost = |meek: bool| {
            let mut thread = Waiting::new(false);
            thread.pace.meek = meek;
            let (mut lost, mut slept_at_once) = (Duration::ZERO, 0);
            for wait in 0..10_000 {
                thread.now += 20 * US;
                // One yield of a hundred meets the other thread when it has work.
                let took = if wait % 100 == 0 { long } else { 300 * NS };
                let (before, yields) = (thread.now, thread.wait(took));
                lost += if took == long { took * yields } else { Duration::ZERO };
                slept_at_once += u32::from(thread.now - before < US);
            }
            (lost, slept_at_once)
        };
        let ((often, _), (rarely, slept)) = (lost(false), lost(true));
        assert!(rarely * 5 < often, "{rarely:?} of {often:?}");
        assert!(slept > 5000, "{slept} waits of 10,000");
    }

    #[test]
    fn a_wait_is_as_long_as_it_has_helped() {
        let mut limit = Limit::new(50 * US);
        assert_eq!(limit.next(false, false), 50 * US);
        assert_eq!(limit.next(true, false), 25 * US);
        assert_eq!(limit.next(false, false), 50 * US);
        for _ in 0..10 {
            limit.next(true, false);
        }
        assert_eq!(limit.next(true, false), 2 * US);
        // A server that has to be woken gets longer.
        assert_eq!(limit.next(true, true), 8 * US);
        // One wait in 32 is as long as it may be; once that has helped, all are.
        let explored = (0..32).position(|_| limit.next(true, true) == 200 * US);
        assert!(explored.is_some());
        assert_eq!(limit.next(false, true), 200 * US);
        assert_eq!(limit.next(false, false), 50 * US);
    }

    #[test]
    fn who_may_not_look_does_not() {
        let mut limit = Limit::new(Duration::ZERO);
        for wait in 0..100 {
            assert_eq!(limit.next(wait % 2 == 0, wait % 3 == 0), Duration::ZERO);
        }
    }

    /// Two threads that both wait for the other on one processor, as fast as yields are.
    #[test]
    fn two_on_one_processor_take_turns() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let word = AtomicU32::new(0);
        let turns = 2000;
        let take_turns = |parity: u32| {
            let mut one = rustix::thread::CpuSet::new();
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let processor = (0..rustix::thread::CpuSet::MAX_CPU).find(|&cpu| allowed.is_set(cpu));
            one.set(processor.unwrap());
            // Where that is not allowed they are on two, which is as well.
            let _ = rustix::thread::sched_setaffinity(None, &one);
            let mut spin = Spin::new();
            for turn in (parity..turns).step_by(2) {
                spin.begin();
                while word.load(Ordering::Acquire) != turn {
                    // Never over, so that nobody sleeps.
                    assert!(spin.turn(Duration::from_secs(600)));
                }
                word.store(turn + 1, Ordering::Release);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| take_turns(0));
            scope.spawn(|| take_turns(1));
        });
        assert_eq!(word.load(Ordering::Relaxed), turns);
    }
}
