//! A plan: which fault strikes whom, when and for how long. It is a function of its seed.

use std::fmt;
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::{Fault, Link, ServerStop};
use crate::Cut;

/// One fault of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, since the plan's begin.
    pub at: Duration,
    /// What.
    pub fault: Fault,
    /// The worker that it strikes, if it strikes one.
    pub victim: usize,
    /// How long it lasts.
    pub lasts: Duration,
}

impl Step {
    fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let victim = match self.fault.is_of_a_server() {
            true => "all".to_owned(),
            false => format!("w{}", self.victim),
        };
        write!(
            f,
            "{:6.2} s  {victim:<4}{:<38}{:5.2} s",
            self.at.as_secs_f64(),
            self.fault,
            self.lasts.as_secs_f64()
        )
    }
}

/// The plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What it was made of.
    pub seed: u64,
    /// Its faults, by the time that they begin.
    pub steps: Vec<Step>,
}

impl Plan {
    /// The plan of a seed for so many workers and so much time. Faults overlap, but no worker suffers two at a time, and
    /// one server fault is over before the next begins.
    #[must_use]
    pub fn new(seed: u64, workers: usize, length: Duration) -> Self {
        let mut chance = ChaCha8Rng::seed_from_u64(seed);
        let mut steps = Vec::<Step>::new();
        let mut at = millis(&mut chance, 500, 1_500);
        while at < length {
            let step = Step {
                at,
                fault: fault(&mut chance),
                victim: chance.random_range(0..workers),
                lasts: millis(&mut chance, 100, 4_000),
            };
            let collides = steps.iter().any(|other| {
                let same = other.victim == step.victim || step.fault.is_of_a_server();
                let kind = other.fault.is_of_a_server() == step.fault.is_of_a_server();
                same && kind && other.end() > step.at
            });
            if !collides {
                steps.push(step);
            }
            at += millis(&mut chance, 100, 900);
        }
        Self { seed, steps }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "CONTINUUM_SEED={}", self.seed)?;
        for step in &self.steps {
            writeln!(f, "  {step}")?;
        }
        Ok(())
    }
}

fn millis(chance: &mut ChaCha8Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(chance.random_range(from..to))
}

/// Faults of workers come more often than those of servers, which spare nobody.
fn fault(chance: &mut ChaCha8Rng) -> Fault {
    match chance.random_range(0..20) {
        0..4 => Fault::Kill,
        4..6 => Fault::Leave,
        6..9 => Fault::Halt,
        9..13 => Fault::Cut(link(chance), cut(chance)),
        13 => Fault::Refuse(link(chance)),
        14 => Fault::Slow(link(chance)),
        15 => Fault::Clock([-600, -10, 10, 600][chance.random_range(0..4)]),
        16 | 17 => Fault::Postgres(
            [ServerStop::Fast, ServerStop::Immediate, ServerStop::Crash][chance.random_range(0..3)],
        ),
        18 => Fault::Nats([ServerStop::Fast, ServerStop::Crash][chance.random_range(0..2)]),
        _ => Fault::SlowDisk,
    }
}

fn link(chance: &mut ChaCha8Rng) -> Link {
    [Link::Postgres, Link::Nats, Link::All][chance.random_range(0..3)]
}

fn cut(chance: &mut ChaCha8Rng) -> Cut {
    [Cut::ToServer, Cut::FromServer, Cut::Both][chance.random_range(0..3)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64) -> Plan {
        Plan::new(seed, 5, Duration::from_secs(60))
    }

    #[test]
    fn a_seed_gives_the_same_plan_each_time_and_another_seed_another_one() {
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7).steps, plan(8).steps);
    }

    #[test]
    fn no_worker_and_no_server_suffers_two_faults_at_a_time() {
        for seed in 0..100 {
            let steps = plan(seed).steps;
            for (number, step) in steps.iter().enumerate() {
                for earlier in &steps[..number] {
                    let apart = earlier.end() <= step.at;
                    match (earlier.fault.is_of_a_server(), step.fault.is_of_a_server()) {
                        (true, true) => assert!(apart, "{earlier} and {step}"),
                        (false, false) => {
                            assert!(
                                apart || earlier.victim != step.victim,
                                "{earlier} and {step}"
                            );
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}
