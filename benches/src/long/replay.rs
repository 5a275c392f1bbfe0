//! A cold run with a long history takes its next step.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::ensure;
use continuum_schema::{Seq, bench, journal};
use continuum_worker::RunHandle;
use futures::future::try_join_all;
use serde::Serialize;

use super::{LOOK, Scale, until_census};
use crate::flows;
use crate::report::Percentiles;
use crate::stage::{Servers, Stage, WorkerProcess};

/// Events of a long history.
const EVENTS: usize = 10_000;

/// Runs of each length.
const RUNS: usize = 20;

/// Postgres's counters arrive in this time.
const COUNTERS_LATE: Duration = Duration::from_millis(1_500);

/// From a signal to the result of a run that nobody holds: claim, replay, append, end.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ColdReplay {
    pub(crate) events: usize,
    pub(crate) long: Percentiles,
    /// The same with a history of two events.
    pub(crate) short: Percentiles,
    /// Reading one whole history, and nothing else.
    pub(crate) read: Percentiles,
    /// Months of the journal that were looked into meanwhile.
    pub(crate) partitions_read: usize,
    pub(crate) partitions: usize,
    /// Looks into the journal for each run, those of the appends included.
    pub(crate) scans_per_run: f64,
}

/// Makes the runs, takes them from the worker, and wakes each.
pub(crate) async fn measure(servers: &Servers, scale: Scale) -> anyhow::Result<ColdReplay> {
    let stage = servers.stage("replay").await?;
    let events = scale.of(EVENTS);
    let worker = WorkerProcess::start(&stage.place)?;
    let client = stage.place.client().await?;
    let start = async |steps: usize| {
        let starts = (0..RUNS).map(|_| {
            client
                .start(flows::long_history, steps as u64)
                .into_future()
        });
        try_join_all(starts).await
    };
    let short = start(1).await?;
    let long = start(events - 1).await?;
    until_made(&stage, &long, events).await?;
    drop(worker);
    until_census(&stage, |c| c.owned == 0 && c.due == 0).await?;
    let read = read_histories(&stage, &long, events).await?;

    let _worker = WorkerProcess::start(&stage.place)?;
    tokio::time::sleep(COUNTERS_LATE).await;
    let before: HashMap<String, i64> = bench::partitions(&stage.database)
        .await?
        .into_iter()
        .collect();
    let short = wake_each(&short).await?;
    let long = wake_each(&long).await?;
    tokio::time::sleep(COUNTERS_LATE).await;
    let after = bench::partitions(&stage.database).await?;
    let scans: Vec<i64> = after
        .iter()
        .map(|(partition, scans)| scans - before.get(partition).copied().unwrap_or(0))
        .collect();
    Ok(ColdReplay {
        events,
        long,
        short,
        read,
        partitions_read: scans.iter().filter(|scans| **scans > 0).count(),
        partitions: scans.len(),
        scans_per_run: scans.iter().sum::<i64>() as f64 / (2 * RUNS) as f64,
    })
}

/// Waits until every history is as long as it is to be.
async fn until_made(stage: &Stage, runs: &[RunHandle<u64>], events: usize) -> anyhow::Result<()> {
    let last = Seq::try_from(events)?;
    for run in runs {
        while journal::history(&stage.database, run.run_id(), last - 1, 1)
            .await?
            .is_empty()
        {
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}

async fn read_histories(
    stage: &Stage,
    runs: &[RunHandle<u64>],
    events: usize,
) -> anyhow::Result<Percentiles> {
    let mut times = Vec::new();
    for run in runs {
        let began = Instant::now();
        let history =
            journal::history(&stage.database, run.run_id(), 0, i64::try_from(events)? + 1).await?;
        times.push(began.elapsed());
        ensure!(
            history.len() == events,
            "a history has {} events instead of {events}",
            history.len()
        );
    }
    Ok(Percentiles::of(times))
}

async fn wake_each(runs: &[RunHandle<u64>]) -> anyhow::Result<Percentiles> {
    let mut times = Vec::new();
    for run in runs {
        let began = Instant::now();
        run.signal(flows::long_history::go, &1).await?;
        run.result().await?;
        times.push(began.elapsed());
    }
    Ok(Percentiles::of(times))
}
