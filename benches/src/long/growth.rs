//! W1 with more and more runs in flight.

use serde::Serialize;

use crate::crowd;
use crate::load::Rounds;
use crate::report::Percentiles;
use crate::stage::Servers;

/// Runs in flight, one after the other.
const IN_FLIGHT: [usize; 7] = [1, 8, 32, 100, 200, 500, 1_000];

/// W1 with so many runs in flight.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) in_flight: usize,
    pub(crate) runs_per_s: f64,
    pub(crate) cpu_ms_per_run: f64,
    /// From the start to the result of one run.
    #[serde(flatten)]
    pub(crate) run: Percentiles,
}

/// Measures each number of runs in flight on an instance of its own.
pub(crate) async fn measure(servers: &Servers, rounds: Rounds) -> anyhow::Result<Vec<Step>> {
    let mut steps = Vec::new();
    for in_flight in IN_FLIGHT {
        let stage = servers.stage(&format!("growth-{in_flight}")).await?;
        let window = rounds.load * 2;
        let round = crowd::w1_round(servers, &stage, in_flight, window).await?;
        steps.push(Step {
            in_flight,
            runs_per_s: round.used.runs_per_s(),
            cpu_ms_per_run: round.used.cost_per_run().cpu_ms_per_run,
            run: Percentiles::of(round.times),
        });
    }
    Ok(steps)
}
