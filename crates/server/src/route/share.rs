//! How a carrier of many clients' requests shares its time: first between users, then between the
//! clients of a user.
//!
//! Deficit round robin: in each round every user may use [`QUANTUM`]; one whose last request took
//! longer pays for it in the rounds that follow. Time that a user does not use is not kept, so that
//! nobody can save up time and then take it at once; one who was idle has its turn in the next
//! round, which is as long as a quantum and one request for every user with work. The clients of a
//! user share its time in the same way.
//!
//! Time is measured only while several clients have work. One alone is served without a look at
//! the clock, in turns of at most [`BATCH`] units.
//!
//! A client that sends its next request when it has seen an answer would have one request served
//! in each round, however little of the time that is. So the carrier looks for its next request a
//! little longer (`LINGER`) before it turns to users with more to do, for as long as that is seen
//! to help.

use std::time::Duration;

/// The time of a user in each round.
pub const QUANTUM: Duration = Duration::from_micros(100);
/// The most units of work of one turn of a client. A request is a unit and what its bytes add.
pub const BATCH: u32 = 64;
/// Bytes of data that are as much work as a request, or less.
pub const UNIT: usize = 16 << 10;

/// The time of a client in each round in which its user has time.
const CLIENT: i64 = NS / 4;
const NS: i64 = QUANTUM.as_nanos() as i64;
/// How long time is measured after two clients had work in one round.
const MEASURED: Duration = Duration::from_millis(100);
/// How long a client is waited for while others have work.
const LINGER: Duration = Duration::from_micros(5);
/// A round that is shorter brings everybody the next turn soon enough.
const LONG: Duration = Duration::from_micros(20);
/// After a wait of no use there is none for so many turns.
const RESTS: u32 = 16;
/// The most that anybody owes, in nanoseconds.
const DEBT: i64 = 1000 * NS;

/// The result of a client's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// So many units of work; with 0 it had none.
    Units(u32),
    /// It is to be served no more.
    Gone,
}

struct Client<C> {
    client: C,
    /// Time that it may use, or owes, in nanoseconds.
    left: i64,
    /// The cost of a unit of its work, in nanoseconds. At first as much as there is: one that was
    /// not measured is trusted with one request.
    cost: i64,
    /// The round in which it last had work.
    worked: u64,
}

struct User<C> {
    uid: u32,
    left: i64,
    clients: Vec<Client<C>>,
    /// The client whose turn is next.
    next: usize,
    /// Whether it had work in its last turn.
    worked: bool,
    /// Turns until it is waited for again.
    rests: u32,
}

/// Clients by their users, and the time that each has used.
pub struct Share<C> {
    users: Vec<User<C>>,
    /// Time is measured until then.
    measured: Option<Duration>,
    /// How long the last round took, if time was measured.
    round: Duration,
    /// The users that had work in it.
    busy: u32,
    /// Counts the rounds.
    rounds: u64,
}

impl<C> Default for Share<C> {
    fn default() -> Self {
        Share { users: Vec::new(), measured: None, round: Duration::ZERO, busy: 0, rounds: 0 }
    }
}

/// A round, while it goes on.
struct Turn<T, S> {
    clock: T,
    serve: S,
    /// When the last turn that did something ended, if time is measured.
    at: Option<Duration>,
    /// The number of the round.
    round: u64,
    /// Clients that had work.
    busy: u32,
    /// Somebody has work that waits for its time.
    owed: bool,
}

impl<T: FnMut() -> Duration, S> Turn<T, S> {
    /// The time since it was asked for last, in nanoseconds; 0 if time is not measured.
    fn passed(&mut self) -> i64 {
        let Some(at) = &mut self.at else { return 0 };
        let now = (self.clock)();
        let passed = now.saturating_sub(*at);
        *at = now;
        i64::try_from(passed.as_nanos()).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
    }

    /// Gives `client` a turn of at most `most` nanoseconds. Returns its units, and the time they
    /// took; `None` if it has gone.
    fn give<C>(&mut self, client: &mut Client<C>, most: i64) -> Option<(u32, i64)>
    where
        S: FnMut(&mut C, u32) -> Served,
    {
        let batch = match self.at {
            Some(_) => (most / client.cost).clamp(1, i64::from(BATCH)) as u32,
            None => BATCH,
        };
        match (self.serve)(&mut client.client, batch) {
            Served::Gone => None,
            Served::Units(0) => Some((0, 0)),
            Served::Units(units) => {
                self.busy += u32::from(client.worked != self.round);
                client.worked = self.round;
                let took = self.passed();
                if self.at.is_some() {
                    client.left = (client.left - took).max(-DEBT);
                    let cost = took / i64::from(units);
                    client.cost = ((3 * client.cost + cost) / 4).max(cost).max(1);
                }
                Some((units, took))
            }
        }
    }
}

impl<C> Share<C> {
    /// Lets a client of the user `uid` in.
    pub fn begin(&mut self, uid: u32, client: C) {
        let client = Client { client, left: 0, cost: NS, worked: 0 };
        match self.users.iter_mut().find(|user| user.uid == uid) {
            Some(user) => user.clients.push(client),
            None => {
                let clients = vec![client];
                self.users.push(User { uid, left: 0, clients, next: 0, worked: false, rests: 0 });
            }
        }
    }

    /// Whether there is no client.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    /// All clients.
    pub fn clients(&mut self) -> impl Iterator<Item = &mut C> {
        self.users.iter_mut().flat_map(|user| &mut user.clients).map(|client| &mut client.client)
    }

    /// Keeps the clients that `keep` says.
    pub fn retain(&mut self, mut keep: impl FnMut(&C) -> bool) {
        for user in &mut self.users {
            user.clients.retain(|client| keep(&client.client));
        }
        self.users.retain(|user| !user.clients.is_empty());
    }

    /// Gives everybody a turn by `serve`, which serves a client for at most so many units of work.
    /// `clock` is the time since some moment. Returns whether anybody had work.
    pub fn round(
        &mut self,
        mut clock: impl FnMut() -> Duration,
        serve: impl FnMut(&mut C, u32) -> Served,
    ) -> bool {
        let began = self.measured.map(|_| clock());
        if began > self.measured {
            self.measured = None;
        }
        let began = began.filter(|_| self.measured.is_some());
        self.rounds += 1;
        let round = self.rounds;
        let mut turn = Turn { clock, serve, at: began, round, busy: 0, owed: false };
        // One who is alone is not waited for.
        let lingers = self.busy > 1 && self.round >= LONG;
        let patience = if lingers { 2 * NS / i64::from(self.busy) } else { 0 };
        let mut busy = 0;
        let mut gone = false;
        for user in &mut self.users {
            busy += u32::from(user.turn(&mut turn, patience));
            gone |= user.clients.is_empty();
        }
        if gone {
            self.users.retain(|user| !user.clients.is_empty());
        }
        self.busy = busy;
        if turn.busy > 1 {
            let now = turn.at.unwrap_or_else(&mut turn.clock);
            self.measured = Some(now + MEASURED);
            self.round = began.map_or(Duration::ZERO, |began| now.saturating_sub(began));
        }
        turn.busy > 0 || turn.owed
    }
}

impl<C> User<C> {
    /// The user's turn. A client that asks for one thing after the other is waited for up to
    /// `patience` nanoseconds in all. Returns whether the user had work.
    fn turn<T: FnMut() -> Duration, S: FnMut(&mut C, u32) -> Served>(
        &mut self,
        turn: &mut Turn<T, S>,
        patience: i64,
    ) -> bool {
        let measured = turn.at.is_some();
        if measured {
            self.left = (self.left + NS).min(NS);
            if self.left <= 0 {
                turn.owed = true;
                return true;
            }
        }
        let mut worked = false;
        loop {
            let (any, owed) = self.pass(turn);
            worked |= any;
            if !measured {
                return any;
            }
            // All that have work have used their time, which nobody else of the user wants.
            if self.left > 0 && (any || owed.is_some()) {
                if let Some(least) = owed.filter(|_| !any) {
                    self.forgive(least);
                }
                continue;
            }
            if any || !(worked || self.worked) || self.left <= NS - patience || !self.linger(turn) {
                break;
            }
        }
        if !worked {
            self.left = self.left.min(0);
        }
        self.worked = worked;
        worked
    }

    /// Gives each client a turn, from the one whose turn is next, as long as the user has time.
    /// Returns whether any had work, and the least that any owes which has no time.
    fn pass<T: FnMut() -> Duration, S: FnMut(&mut C, u32) -> Served>(
        &mut self,
        turn: &mut Turn<T, S>,
    ) -> (bool, Option<i64>) {
        let measured = turn.at.is_some();
        let shared = measured && self.clients.len() > 1;
        let (mut any, mut owed) = (false, None::<i64>);
        for _ in 0..self.clients.len() {
            if self.next >= self.clients.len() {
                self.next = 0;
            }
            let at = self.next;
            let Some(client) = self.clients.get_mut(at) else { break };
            if shared {
                client.left = (client.left + CLIENT).min(NS);
                if client.left <= 0 {
                    owed = Some(owed.map_or(-client.left, |least| least.min(-client.left)));
                    self.next += 1;
                    continue;
                }
            }
            let most = if shared { client.left.min(self.left) } else { self.left };
            match turn.give(client, most) {
                None => {
                    self.clients.remove(at);
                    continue;
                }
                Some((0, _)) => client.left = client.left.min(0),
                Some((_, took)) => {
                    any = true;
                    self.left = (self.left - took).max(-DEBT);
                }
            }
            self.next += 1;
            if measured && self.left <= 0 {
                break;
            }
        }
        (any, owed)
    }

    /// Nobody but clients that owe has anything to do: takes off at once what passes without work
    /// would, until one of them, which owes `least`, is due with the next.
    fn forgive(&mut self, least: i64) {
        let passes = least / CLIENT;
        for client in self.clients.iter_mut().filter(|client| client.left < 0) {
            client.left = (client.left + passes * CLIENT).min(0);
        }
    }

    /// Waits for the next request of one who has just been answered. Returns whether it came.
    fn linger<T: FnMut() -> Duration, S: FnMut(&mut C, u32) -> Served>(
        &mut self,
        turn: &mut Turn<T, S>,
    ) -> bool {
        if self.rests > 0 {
            self.rests -= 1;
            return false;
        }
        let mut waited = 0;
        while waited < LINGER.as_nanos() as i64 {
            std::hint::spin_loop();
            if self.pass(turn).0 {
                return true;
            }
            let passed = turn.passed();
            self.left -= passed;
            // A clock that stands still is one of a simulation.
            waited += passed.max(50);
        }
        self.rests = RESTS;
        false
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    use super::*;

    const US: Duration = Duration::from_micros(1);

    /// A client: how long a unit of its work takes, and when it has the next.
    struct Asker {
        uid: u32,
        takes: Duration,
        /// The pause between an answer and the next request.
        pause: Duration,
        ready: Duration,
    }

    /// A carrier whose time passes as it works.
    #[derive(Default)]
    struct Scene {
        share: Share<Asker>,
        now: Cell<Duration>,
        looks: Cell<u32>,
        /// The time of each user, and its answers.
        used: RefCell<BTreeMap<u32, (Duration, u32)>>,
        /// The longest that a request of each user has waited.
        waited: RefCell<BTreeMap<u32, Duration>>,
    }

    impl Scene {
        fn begin(&mut self, uid: u32, clients: u32, takes: Duration, pause: Duration) {
            for _ in 0..clients {
                self.share.begin(uid, Asker { uid, takes, pause, ready: self.now.get() });
            }
        }

        fn run(&mut self, time: Duration) {
            let Scene { share, now, looks, used, waited } = self;
            let end = now.get() + time;
            used.take();
            waited.take();
            while now.get() < end {
                let clock = || {
                    looks.set(looks.get() + 1);
                    now.set(now.get() + US / 20);
                    now.get()
                };
                let serve = |asker: &mut Asker, most: u32| {
                    let mut units = 0;
                    while units < most && asker.ready <= now.get() {
                        let mut waited = waited.borrow_mut();
                        let waited = waited.entry(asker.uid).or_default();
                        *waited = (*waited).max(now.get() - asker.ready);
                        now.set(now.get() + asker.takes);
                        let mut used = used.borrow_mut();
                        let used = used.entry(asker.uid).or_default();
                        *used = (used.0 + asker.takes, used.1 + 1);
                        asker.ready = now.get() + asker.pause;
                        units += 1;
                    }
                    Served::Units(units)
                };
                if !share.round(clock, serve) {
                    now.set(now.get() + US);
                }
            }
        }

        /// The part of the time that `uid` had, in percent.
        fn part(&self, uid: u32) -> u32 {
            let used = self.used.borrow();
            let all: Duration = used.values().map(|used| used.0).sum();
            (used[&uid].0.as_nanos() * 100 / all.as_nanos()) as u32
        }
    }

    /// However long the requests take, and through however many connections they come.
    #[test]
    fn users_have_the_same_time() {
        for takes in [1, 10, 150, 900] {
            let mut scene = Scene::default();
            scene.begin(1, 64, takes * US, Duration::ZERO);
            scene.begin(2, 1, 2 * US, Duration::ZERO);
            scene.run(50_000 * US);
            scene.run(500_000 * US);
            assert!((45..=55).contains(&scene.part(2)), "{takes}: {}", scene.part(2));
        }
    }

    #[test]
    fn clients_of_a_user_have_the_same_time() {
        let mut scene = Scene::default();
        // Both are of user 1, and are told apart by what they are noted as.
        scene.share.begin(
            1,
            Asker { uid: 1, takes: 400 * US, pause: Duration::ZERO, ready: Duration::ZERO },
        );
        scene.share.begin(
            1,
            Asker { uid: 2, takes: 2 * US, pause: Duration::ZERO, ready: Duration::ZERO },
        );
        scene.run(50_000 * US);
        scene.run(500_000 * US);
        assert!((45..=55).contains(&scene.part(2)), "{}", scene.part(2));
    }

    /// One that asks now and then waits for a quantum and a request of each other user.
    #[test]
    fn who_asks_seldom_waits_for_little() {
        let mut scene = Scene::default();
        scene.begin(1, 256, 150 * US, Duration::ZERO);
        scene.begin(2, 256, 2 * US, Duration::ZERO);
        scene.begin(3, 1, 2 * US, 2000 * US);
        scene.run(50_000 * US);
        scene.run(500_000 * US);
        let waited = scene.waited.borrow()[&3];
        assert!(waited < 2 * QUANTUM + 150 * US + 20 * US, "{waited:?}");
        assert!(scene.used.borrow()[&3].1 > 200);
    }

    /// One that asks for one thing after the other has half of the time too, or nearly.
    #[test]
    fn who_asks_promptly_is_waited_for() {
        let mut scene = Scene::default();
        scene.begin(1, 4, 150 * US, Duration::ZERO);
        scene.begin(2, 1, US, US);
        scene.run(50_000 * US);
        scene.run(500_000 * US);
        // Alone it would have 250,000 answers.
        let answers = scene.used.borrow()[&2].1;
        assert!(answers > 90_000, "{answers}");
        assert!(scene.used.borrow()[&1].0 > 200_000 * US);
    }

    #[test]
    fn who_never_comes_back_promptly_is_not_waited_for() {
        let mut scene = Scene::default();
        scene.begin(1, 4, 150 * US, Duration::ZERO);
        scene.begin(2, 1, US, 50 * US);
        scene.run(50_000 * US);
        scene.run(500_000 * US);
        let (used, _) = scene.used.borrow()[&1];
        assert!(used > 485_000 * US, "{used:?}");
    }

    /// One that has taken long is served again as soon as nobody else of its user has work, after
    /// a few looks.
    #[test]
    fn who_owes_much_costs_no_passes() {
        let mut share: Share<u32> = Share::default();
        (0..2).for_each(|client| share.begin(1, client));
        share.begin(2, 2);
        let (now, asked) = (Cell::new(Duration::ZERO), Cell::new(0));
        let (long, done) = (Cell::new(false), Cell::new(0));
        let mut rounds = |count| {
            for _ in 0..count {
                let serve = |client: &mut u32, _| {
                    asked.set(asked.get() + 1);
                    if *client == 1 && long.get() {
                        return Served::Units(0);
                    }
                    let slow = *client == 0 && long.get();
                    let quick = if *client == 2 { QUANTUM } else { US };
                    now.set(now.get() + if slow { 400 * QUANTUM } else { quick });
                    done.set(done.get() + u32::from(slow));
                    Served::Units(1)
                };
                share.round(|| now.get(), serve);
            }
        };
        rounds(3);
        long.set(true);
        asked.set(0);
        // Until it has paid for the first one to its user's share, it has the second.
        rounds(1100);
        assert!(done.get() >= 2, "{}", done.get());
        assert!(asked.get() < 2000, "{}", asked.get());
    }

    #[test]
    fn time_is_not_saved_up() {
        let mut scene = Scene::default();
        scene.begin(1, 1, 10 * US, Duration::ZERO);
        scene.begin(2, 1, 10 * US, Duration::ZERO);
        scene.begin(3, 1, 10 * US, Duration::from_secs(3600));
        scene.run(300_000 * US);
        // It has been idle for long, and now asks for more and more.
        for asker in scene.share.clients().filter(|asker| asker.uid == 3) {
            (asker.ready, asker.pause) = (scene.now.get(), Duration::ZERO);
        }
        scene.run(3_000 * US);
        assert!((25..=42).contains(&scene.part(3)), "{}", scene.part(3));
    }

    #[test]
    fn one_alone_costs_no_look_at_the_clock() {
        let mut scene = Scene::default();
        scene.begin(1, 1, US, Duration::ZERO);
        scene.begin(2, 1, US, Duration::from_secs(3600));
        scene.run(10 * US);
        // Both had work in the first round.
        scene.run(200_000 * US);
        scene.looks.set(0);
        scene.run(200_000 * US);
        assert_eq!(scene.looks.get(), 0);
    }

    #[test]
    fn who_has_gone_is_asked_no_more() {
        let mut share: Share<u32> = Share::default();
        (0..6).for_each(|client| share.begin(client % 2, client));
        let clock = || Duration::ZERO;
        let serve = |client: &mut u32, _| match *client {
            1 | 3 | 5 => Served::Gone,
            _ => Served::Units(0),
        };
        assert!(!share.round(clock, serve));
        assert!(share.clients().map(|client| *client).eq([0, 2, 4]));
        share.retain(|&client| client == 2);
        assert!(share.clients().map(|client| *client).eq([2]) && !share.is_empty());
        share.retain(|_| false);
        assert!(share.is_empty());
    }
}
