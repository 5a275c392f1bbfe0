//! What a run costs while it waits: in a worker's memory, and cold.

use std::time::Duration;

use continuum_schema::bench;
use continuum_worker::{Client, RunHandle};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde::Serialize;

use super::{STARTS, Scale, until_census, until_waiting};
use crate::flows;
use crate::meter::own_memory_kib;
use crate::stage::{Servers, Stage, WorkerProcess, WorkerSettings};

/// Waiting runs, in turn.
const RUNS: [usize; 2] = [10_000, 50_000];

/// A worker's allocations settle in this time.
const SETTLE: Duration = Duration::from_secs(2);

/// What the worker and Postgres hold.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Memory {
    /// One worker that holds so many runs.
    pub(crate) resident: Vec<Held>,
    /// The same runs, given back, and another worker.
    pub(crate) cold: Cold,
}

/// A worker that holds runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Held {
    pub(crate) runs: usize,
    pub(crate) worker_kib: u64,
    /// More than the same worker had without a run.
    pub(crate) bytes_per_run: f64,
}

/// Runs that nobody holds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Cold {
    pub(crate) runs: usize,
    /// A worker beside them, and one that was started before the first of them.
    pub(crate) worker_kib: u64,
    pub(crate) empty_worker_kib: u64,
    pub(crate) postgres_table_bytes_per_run: f64,
    pub(crate) postgres_index_bytes_per_run: f64,
}

/// Fills one worker, then empties it into the tables.
pub(crate) async fn measure(servers: &Servers, scale: Scale) -> anyhow::Result<Memory> {
    let stage = servers.stage("memory").await?;
    let empty_tables = bench::sizes(&stage.database).await?;
    let roomy = WorkerSettings {
        residents_max: Some(RUNS[1] * 2),
        idle_max_ms: Some(3_600_000),
    };
    let worker = WorkerProcess::start_with(&stage.place, roomy)?;
    let client = stage.place.client().await?;
    let empty_worker_kib = settled_kib(&worker).await?;
    let mut resident: Vec<Held> = Vec::new();
    for full in RUNS {
        let runs = scale.of(full);
        let more = runs - resident.last().map_or(0, |held| held.runs);
        start_waiting(&client, more).await?;
        until_waiting(&stage, runs).await?;
        let worker_kib = settled_kib(&worker).await?;
        resident.push(Held {
            runs,
            worker_kib,
            bytes_per_run: (worker_kib - empty_worker_kib) as f64 * 1024.0 / runs as f64,
        });
    }
    drop(worker);
    let runs = scale.of(RUNS[1]);
    let cold = measure_cold(&stage, runs, empty_worker_kib, empty_tables).await?;
    Ok(Memory { resident, cold })
}

async fn measure_cold(
    stage: &Stage,
    runs: usize,
    empty_worker_kib: u64,
    empty: bench::Sizes,
) -> anyhow::Result<Cold> {
    until_census(stage, |c| c.owned == 0 && c.due == 0).await?;
    let sizes = bench::sizes(&stage.database).await?;
    let worker = WorkerProcess::start(&stage.place)?;
    Ok(Cold {
        runs,
        worker_kib: settled_kib(&worker).await?,
        empty_worker_kib,
        postgres_table_bytes_per_run: (sizes.tables - empty.tables) as f64 / runs as f64,
        postgres_index_bytes_per_run: (sizes.indexes - empty.indexes) as f64 / runs as f64,
    })
}

async fn start_waiting(client: &Client, count: usize) -> anyhow::Result<()> {
    stream::iter(0..count)
        .map(|_| client.start(flows::one_signal, 1).into_future())
        .buffer_unordered(STARTS)
        .try_for_each(async |_: RunHandle<u64>| Ok(()))
        .await?;
    Ok(())
}

async fn settled_kib(worker: &WorkerProcess) -> anyhow::Result<u64> {
    tokio::time::sleep(SETTLE).await;
    own_memory_kib(worker.pid())
}
