//! What takes longer than an everyday round, each only when it is asked for by name.

pub(crate) mod claims;
pub(crate) mod growth;
pub(crate) mod kills;
pub(crate) mod memory;
pub(crate) mod replay;
pub(crate) mod table;
pub(crate) mod tables;
pub(crate) mod timers;

use std::time::Duration;

use anyhow::ensure;
use continuum_schema::bench::{self, Census};
use continuum_schema::clock::Micros;
use continuum_worker::{Client, RunHandle};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;

use crate::flows;
use crate::stage::Stage;

/// Starts that wait for their answers at a time.
const STARTS: usize = 512;

/// The time between two looks at how far a stage is.
const LOOK: Duration = Duration::from_millis(200);

/// The longest that a stage may take to get somewhere.
const PATIENCE: Duration = Duration::from_secs(1_200);

/// What was measured, by name.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Figures {
    pub(crate) w1_growth: Option<Vec<growth::Step>>,
    pub(crate) memory: Option<memory::Memory>,
    pub(crate) w1_cold_runs: Option<tables::ColdRuns>,
    pub(crate) w1_held_snapshot: Option<tables::HeldSnapshot>,
    pub(crate) cold_replay: Option<replay::ColdReplay>,
    pub(crate) w5: Option<timers::Timers>,
    pub(crate) w6: Option<kills::Kills>,
}

/// How large the measurements are: a part of their full size.
#[derive(Clone, Copy)]
pub(crate) struct Scale(pub(crate) f64);

impl Scale {
    /// That part of `full`, at least one.
    pub(crate) fn of(self, full: usize) -> usize {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "sizes are far below 2^52"
        )]
        let part = (full as f64 * self.0).round() as usize;
        part.max(1)
    }
}

/// Starts sleepers until the moments that `due` gives, each under the moment and its number as its key.
async fn start_sleepers(
    client: &Client,
    count: usize,
    due: impl Fn(usize) -> Micros,
) -> anyhow::Result<()> {
    let starts = (0..count).map(|n| {
        let due = due(n);
        client
            .start(flows::sleep_until, due)
            .key(format!("{due}-{n}"))
            .into_future()
    });
    stream::iter(starts)
        .buffer_unordered(STARTS)
        .try_for_each(async |_: RunHandle<()>| Ok(()))
        .await?;
    Ok(())
}

/// Looks at the active runs until they are as wanted.
async fn until_census(stage: &Stage, wanted: impl Fn(Census) -> bool) -> anyhow::Result<Census> {
    let looking = async {
        loop {
            let census = bench::census(&stage.database).await?;
            if wanted(census) {
                return Ok(census);
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await?
}

/// Waits until so many runs have come to the position at which they wait.
async fn until_waiting(stage: &Stage, count: usize) -> anyhow::Result<()> {
    let count = i64::try_from(count)?;
    let looking = async {
        while bench::reached(&stage.database, flows::WAITING_AT).await? < count {
            tokio::time::sleep(LOOK).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, looking).await??;
    let active = bench::census(&stage.database).await?;
    ensure!(
        active.due == 0,
        "{} runs are still to be claimed",
        active.due
    );
    Ok(())
}
