//! When to try again: exponential back-off with jitter. The one home of jitter, and of the `backoff` crate.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;
use continuum_schema::event::RetryPolicy;
use rand::RngExt as _;

/// How far a wait is spread to both sides, as a part of itself.
const SPREAD: f64 = 0.2;

/// Whether an activity may be tried again after `attempt` failed.
#[must_use]
pub(crate) fn may_retry(policy: &RetryPolicy, attempt: u32, retryable: bool) -> bool {
    retryable && (policy.max_attempts == 0 || attempt < policy.max_attempts)
}

/// The wait after `attempt` failed, from 1: `initial * factor^(attempt - 1)`, bounded, spread by a fifth.
#[must_use]
pub(crate) fn delay(policy: &RetryPolicy, attempt: u32) -> Duration {
    let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
    let factor = policy.factor.max(1.0).powi(exponent);
    #[expect(
        clippy::cast_precision_loss,
        reason = "a wait needs no more than 53 bits"
    )]
    let (initial, max) = (policy.initial_ms as f64, policy.max_ms as f64);
    jittered(Duration::from_secs_f64(
        (initial * factor).min(max) / 1_000.0,
    ))
}

/// `wait`, spread by a fifth to both sides, so that a fleet doesn't move in step.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "this module is the home of jitter"
)]
pub(crate) fn jittered(wait: Duration) -> Duration {
    wait.mul_f64(rand::rng().random_range(1.0 - SPREAD..1.0 + SPREAD))
}

/// A moment between now and `longest` from now.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "this module is the home of jitter"
)]
pub(crate) fn within(longest: Duration) -> Duration {
    longest.mul_f64(rand::rng().random_range(0.0..1.0))
}

/// The waits of a background service whose work fails: 50 ms at first, doubling, `longest` at most.
pub(crate) struct Backoff(ExponentialBackoff);

impl Backoff {
    pub(crate) fn new(longest: Duration) -> Self {
        let mut waits = ExponentialBackoff {
            initial_interval: Duration::from_millis(50),
            multiplier: 2.0,
            randomization_factor: SPREAD,
            max_interval: longest,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        waits.reset();
        Self(waits)
    }

    /// The next wait.
    pub(crate) fn next(&mut self) -> Duration {
        self.0.next_backoff().unwrap_or(self.0.max_interval)
    }

    /// Starts anew after a success.
    pub(crate) fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound_and_stay_within_their_spread() {
        let policy = RetryPolicy {
            max_attempts: 5,
            initial_ms: 100,
            factor: 2.0,
            max_ms: 1_000,
        };
        for (attempt, expected) in [
            (1, 100.0),
            (2, 200.0),
            (4, 800.0),
            (5, 1_000.0),
            (u32::MAX, 1_000.0),
        ] {
            let wait = delay(&policy, attempt).as_secs_f64() * 1_000.0;
            assert!(
                (expected * 0.799..expected * 1.201).contains(&wait),
                "{attempt}: {wait}"
            );
        }
    }

    #[test]
    fn the_last_attempt_and_a_permanent_error_are_not_tried_again() {
        let policy = RetryPolicy {
            max_attempts: 3,
            ..RetryPolicy::default()
        };
        assert!(may_retry(&policy, 2, true));
        assert!(!may_retry(&policy, 3, true));
        assert!(!may_retry(&policy, 1, false));
        let unlimited = RetryPolicy {
            max_attempts: 0,
            ..policy
        };
        assert!(may_retry(&unlimited, 1_000_000, true));
    }
}
