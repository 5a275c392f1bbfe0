//! The database's time, as known to a worker between two heartbeats.
//!
//! Worker clocks only measure durations. A reading of the database's clock is carried forward by the monotonic clock,
//! so workers whose clocks are minutes apart agree.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use time::OffsetDateTime;

/// Microseconds since the epoch, by the database's clock.
pub type Micros = i64;

/// An estimate of the database's clock.
#[derive(Debug)]
pub struct Clock {
    reading: Mutex<(Micros, Instant)>,
}

impl Clock {
    /// Starts from a reading that was taken at `taken_at`.
    #[must_use]
    pub fn new(reading: OffsetDateTime, taken_at: Instant) -> Self {
        Self {
            reading: Mutex::new((to_micros(reading), taken_at)),
        }
    }

    /// Takes a newer reading.
    pub fn set(&self, reading: OffsetDateTime, taken_at: Instant) {
        *self.lock() = (to_micros(reading), taken_at);
    }

    /// The database's time now.
    #[must_use]
    pub fn now(&self) -> Micros {
        let (reading, taken_at) = *self.lock();
        let elapsed = i64::try_from(taken_at.elapsed().as_micros()).unwrap_or(i64::MAX);
        reading.saturating_add(elapsed)
    }

    /// How long until the database's clock shows `moment`; zero when it is past.
    #[must_use]
    pub fn until(&self, moment: Micros) -> Duration {
        u64::try_from(moment.saturating_sub(self.now()))
            .map_or(Duration::ZERO, Duration::from_micros)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Micros, Instant)> {
        self.reading
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A timestamp in microseconds.
#[must_use]
pub fn to_micros(moment: OffsetDateTime) -> Micros {
    i64::try_from(moment.unix_timestamp_nanos() / 1_000).unwrap_or(i64::MAX)
}

/// Microseconds as a timestamp; moments outside of the representable years become the nearest one inside.
#[must_use]
pub fn from_micros(micros: Micros) -> OffsetDateTime {
    let nanos = i128::from(micros).saturating_mul(1_000);
    OffsetDateTime::from_unix_timestamp_nanos(nanos).unwrap_or(if micros < 0 {
        time::PrimitiveDateTime::MIN.assume_utc()
    } else {
        time::PrimitiveDateTime::MAX.assume_utc()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_carried_forward_and_past_moments_are_due_at_once() {
        let clock = Clock::new(OffsetDateTime::UNIX_EPOCH, Instant::now());
        assert!((0..1_000_000).contains(&clock.now()));
        assert_eq!(clock.until(-5), Duration::ZERO);
        assert!(clock.until(60_000_000) > Duration::from_secs(50));
    }

    #[test]
    fn micros_survive_the_way_to_a_timestamp_and_back() {
        for micros in [0, 1, -1, 1_796_000_000_123_456] {
            assert_eq!(to_micros(from_micros(micros)), micros);
        }
    }
}
