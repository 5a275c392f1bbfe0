//! The timers of runs that are in memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use continuum_schema::EffectId;
use continuum_schema::clock::{Clock, Micros};
use uuid::Uuid;

/// How much longer than the wait itself the worker's own measure waits. Two clocks that are both right drift apart by
/// less, and the database's clock is the one that counts.
const GRACE: Duration = Duration::from_secs(1);

/// So many entries are kept without a look at them.
const COMPACT_MIN: usize = 1_024;

/// Rings when the database's clock says so, and in any case when the worker has itself measured the whole wait: a step
/// back of the database's clock keeps nobody waiting who waits here.
#[derive(Default)]
pub(crate) struct Alarms {
    by_clock: BinaryHeap<Reverse<(Micros, Uuid, EffectId)>>,
    by_wait: BinaryHeap<Reverse<(Instant, Micros, Uuid, EffectId)>>,
}

impl Alarms {
    /// Sets one that was to ring after `wait`, which is at `fire_at` by the database's clock of that time.
    pub(crate) fn set(&mut self, wait: Duration, fire_at: Micros, run_id: Uuid, effect: EffectId) {
        let patience = wait + wait / 1000 + GRACE;
        self.by_clock.push(Reverse((fire_at, run_id, effect)));
        self.by_wait.push(Reverse((
            Instant::now() + patience,
            fire_at,
            run_id,
            effect,
        )));
    }

    /// How long until the next one may ring; `None` if there is none.
    pub(crate) fn wait(&self, clock: &Clock) -> Option<Duration> {
        let Reverse((fire_at, ..)) = self.by_clock.peek()?;
        let by_clock = clock.until(*fire_at);
        let by_wait = self.by_wait.peek().map(|Reverse((at, ..))| at);
        Some(by_wait.map_or(by_clock, |at| {
            by_clock.min(at.saturating_duration_since(Instant::now()))
        }))
    }

    /// The next one that rings. The same may ring twice; its run knows whether it still waits.
    pub(crate) fn ring(&mut self, clock: &Clock) -> Option<(Micros, Uuid, EffectId)> {
        if let Some(Reverse((fire_at, run_id, effect))) = self.by_clock.peek().copied()
            && fire_at <= clock.now()
        {
            self.by_clock.pop();
            return Some((fire_at, run_id, effect));
        }
        let Reverse((at, fire_at, run_id, effect)) = self.by_wait.peek().copied()?;
        (at <= Instant::now()).then(|| {
            self.by_wait.pop();
            (fire_at, run_id, effect)
        })
    }

    /// Forgets entries that nobody waits for, once they may be most of all: a run that ended or went cold leaves its
    /// timers behind, and a day-long one would stay a day. `live` is how many timers are waited for in all.
    pub(crate) fn compact(
        &mut self,
        live: usize,
        is_live: impl Fn(Micros, Uuid, EffectId) -> bool,
    ) {
        if self.by_clock.len().max(self.by_wait.len()) <= 2 * live + COMPACT_MIN {
            return;
        }
        self.by_clock
            .retain(|Reverse((fire_at, run_id, effect))| is_live(*fire_at, *run_id, *effect));
        self.by_wait
            .retain(|Reverse((_, fire_at, run_id, effect))| is_live(*fire_at, *run_id, *effect));
    }

    pub(crate) fn clear(&mut self) {
        self.by_clock.clear();
        self.by_wait.clear();
    }
}

#[cfg(test)]
mod tests {
    use continuum_schema::clock::from_micros;

    use super::*;

    const HOUR: Micros = 3_600_000_000;

    fn clock_at(micros: Micros) -> Clock {
        Clock::new(from_micros(micros), Instant::now())
    }

    #[test]
    fn the_database_s_clock_rings_at_once_when_it_steps_forward() {
        let mut alarms = Alarms::default();
        alarms.set(Duration::from_secs(3600), HOUR, Uuid::nil(), 1);
        assert_eq!(alarms.ring(&clock_at(0)), None);
        assert!(alarms.ring(&clock_at(HOUR)).is_some());
    }

    #[test]
    fn what_nobody_waits_for_is_forgotten_before_it_would_ring() {
        let mut alarms = Alarms::default();
        for effect in 0..3_000 {
            alarms.set(Duration::from_secs(3600), HOUR, Uuid::nil(), effect);
        }
        alarms.compact(2_000, |_, _, _| {
            panic!("most are waited for: nobody need look")
        });
        alarms.compact(1, |_, _, effect| effect == 7);
        assert_eq!((alarms.by_clock.len(), alarms.by_wait.len()), (1, 1));
    }

    #[test]
    fn a_step_back_keeps_nobody_waiting() {
        let mut alarms = Alarms::default();
        alarms.set(Duration::from_micros(1), HOUR + 1, Uuid::nil(), 1);
        let wait = alarms.wait(&clock_at(0)).unwrap();
        assert!(wait <= GRACE + Duration::from_millis(1), "{wait:?}");
    }
}
