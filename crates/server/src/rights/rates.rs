//! How much a user may ask for in a second, over all of its sessions of all volumes.
//!
//! A user pays for requests afterwards: a request's cost is known when it has been answered. The
//! user whose [`Meter`] is in debt is served again when time has paid the debt. An unused part of a
//! rate is kept for one second, and no longer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The most that a user may ask for in a second; `None` for as much as there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests.
    pub operations: Option<u64>,
    /// Bytes of requests' and answers' data, and of what is copied from file to file.
    pub bytes: Option<u64>,
}

/// The work of some requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Requests.
    pub operations: u64,
    /// Bytes of data, of requests and answers, and of what is copied from file to file.
    pub bytes: u64,
}

/// The rest of one rate.
#[derive(Debug)]
struct Bucket {
    /// In a second.
    rate: u64,
    /// The amount that may still be used, in billionths; below 0 the debt.
    left: i128,
    /// Up to when time has been counted.
    at: Duration,
}

const BILLION: i128 = 1_000_000_000;

impl Bucket {
    fn new(rate: u64, now: Duration) -> Bucket {
        // One that may use nothing would be let in once and then never again.
        let rate = rate.max(1);
        Bucket { rate, left: i128::from(rate) * BILLION, at: now }
    }

    /// How long it takes until it owes nothing.
    fn wait(&mut self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.at).as_nanos() as i128;
        self.at = self.at.max(now);
        let rate = i128::from(self.rate);
        let paid = passed.saturating_mul(rate);
        self.left = self.left.saturating_add(paid).min(rate * BILLION);
        let owed = (-self.left).max(0);
        Duration::from_nanos(u64::try_from((owed + rate - 1) / rate).unwrap_or(u64::MAX))
    }

    fn take(&mut self, amount: u64) {
        self.left -= i128::from(amount) * BILLION;
    }
}

/// Measures what one user asks for.
#[derive(Debug)]
pub struct Meter {
    /// Of operations, and of bytes.
    buckets: Mutex<[Option<Bucket>; 2]>,
}

impl Meter {
    fn new(rates: Rates, now: Duration) -> Meter {
        let bucket = |rate: Option<u64>| rate.map(|rate| Bucket::new(rate, now));
        Meter { buckets: Mutex::new([bucket(rates.operations), bucket(rates.bytes)]) }
    }

    /// How long the user is to wait at `now`, an uptime, before its next request is looked at; zero
    /// when it need not.
    pub fn wait(&self, now: Duration) -> Duration {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.iter_mut().flatten().map(|bucket| bucket.wait(now)).max().unwrap_or_default()
    }

    /// Whether nothing is used or owed.
    fn is_full(&self, now: Duration) -> bool {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.iter_mut().flatten().all(|bucket| {
            bucket.wait(now);
            bucket.left == i128::from(bucket.rate) * BILLION
        })
    }

    /// Takes note of `work` that was done for the user.
    pub fn note(&self, work: Work) {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        for (bucket, amount) in buckets.iter_mut().zip([work.operations, work.bytes]) {
            bucket.iter_mut().for_each(|bucket| bucket.take(amount));
        }
    }
}

/// The meters of a server's users, whichever volumes they use.
#[derive(Debug, Default)]
pub(crate) struct Meters(Mutex<HashMap<u32, Arc<Meter>>>);

impl Meters {
    /// The meter of the user `uid`, to whom `rates` apply; `None` for one who may do as much as
    /// there is. While it is used it keeps its rates.
    pub(crate) fn open(&self, uid: u32, rates: Rates, now: Duration) -> Option<Arc<Meter>> {
        if rates == Rates::default() {
            return None;
        }
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A user in debt that goes and comes again is the same user.
        users.retain(|_, meter| Arc::strong_count(meter) > 1 || !meter.is_full(now));
        Some(Arc::clone(users.entry(uid).or_insert_with(|| Arc::new(Meter::new(rates, now)))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const ONE: Work = Work { operations: 1, bytes: 1000 };

    /// How many requests of `work` a user with `rates` gets done in `seconds`, whatever it wants.
    fn done(meter: &Meter, work: Work, from: Duration, seconds: u32) -> u64 {
        let (mut now, mut done) = (from, 0);
        while now < from + Duration::from_secs(1) * seconds {
            let wait = meter.wait(now);
            if wait.is_zero() {
                meter.note(work);
                done += work.operations;
                now += Duration::from_micros(10);
            } else {
                now += wait;
            }
        }
        done
    }

    #[test]
    fn a_rate_holds_over_time_and_a_second_is_kept() {
        let meters = Meters::default();
        let rates = Rates { operations: Some(100), bytes: None };
        let meter = meters.open(7, rates, Duration::ZERO).unwrap();
        // A second's worth at once, then as much as comes in.
        assert_eq!(done(&meter, ONE, Duration::ZERO, 10), 100 + 10 * 100);
        // The unused rate of an hour is not there.
        let later = Duration::from_secs(3600);
        assert_eq!(done(&meter, ONE, later, 1), 100 + 100);
        let bytes = Rates { operations: None, bytes: Some(100_000) };
        let meter = meters.open(8, bytes, later).unwrap();
        assert_eq!(done(&meter, ONE, later, 10), 100 + 10 * 100);
        assert!(meters.open(9, Rates::default(), later).is_none());
    }

    #[test]
    fn a_large_request_is_paid_for_afterwards() {
        let meter = Meter::new(Rates { operations: None, bytes: Some(1000) }, Duration::ZERO);
        meter.note(Work { operations: 1, bytes: 11_000 });
        assert_eq!(meter.wait(Duration::ZERO), 10_000 * MS);
        assert_eq!(meter.wait(9_999 * MS), MS);
        assert_eq!(meter.wait(10_000 * MS), Duration::ZERO);
        // Time that goes back pays nothing.
        meter.note(Work { operations: 1, bytes: 1000 });
        assert_eq!(meter.wait(5_000 * MS), 1_000 * MS);
    }

    #[test]
    fn who_comes_again_finds_its_debt() {
        let meters = Meters::default();
        let rates = Rates { operations: Some(10), bytes: None };
        let meter = meters.open(7, rates, Duration::ZERO).unwrap();
        meter.note(Work { operations: 30, bytes: 0 });
        drop(meter);
        let again = meters.open(7, rates, 100 * MS).unwrap();
        assert_eq!(again.wait(100 * MS), 1_900 * MS);
        drop(again);
        let _other = meters.open(8, rates, 4_000 * MS).unwrap();
        assert_eq!(meters.0.lock().unwrap().len(), 1, "nobody knows it any more");
    }
}
