//! The loads: W1 to W4. The client is this process, the worker another one.

use std::time::{Duration, Instant};

use anyhow::ensure;
use continuum_schema::journal;
use continuum_worker::{Client, ClientError, RunHandle};
use futures::future::join_all;
use serde::Serialize;

use crate::crowd::{self, IN_FLIGHT};
use crate::floors::Floors;
use crate::flows::{self, JOINED, SEQUENCE, WAITING_AT};
use crate::meter::{CostPerRun, Meter, Profile, Usage};
use crate::report::Percentiles;
use crate::stage::{Servers, Stage, WorkerProcess};

/// Runs before the measured ones of W2 and W3.
const WARM_UP_RUNS: usize = 20;

/// Commits that are measured before each run of W4.
const COMMITS_BETWEEN_JOINS: usize = 50;

/// What W1 and W1a gave.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Throughput {
    pub(crate) runs_per_s: f64,
    pub(crate) steps_per_s: f64,
    /// The append alone, measured between the rounds.
    pub(crate) append_steps_per_s: f64,
    #[serde(flatten)]
    pub(crate) cost: CostPerRun,
    /// Which part of which process the processor time went to.
    pub(crate) profile: Profile,
    pub(crate) peak_rss_mib: f64,
}

/// How long and how often a load alternates with its floor.
#[derive(Clone, Copy)]
pub(crate) struct Rounds {
    pub(crate) count: u32,
    pub(crate) floor: Duration,
    pub(crate) load: Duration,
}

/// W1: runs of sequential steps.
pub(crate) async fn sequential_steps(
    servers: &Servers,
    floors: &mut Floors,
    rounds: Rounds,
) -> anyhow::Result<Throughput> {
    throughput(servers, "w1", floors, rounds, crowd::sequential_steps).await
}

/// W1a: runs of sequential activities.
pub(crate) async fn sequential_activities(
    servers: &Servers,
    floors: &mut Floors,
    rounds: Rounds,
) -> anyhow::Result<Throughput> {
    throughput(servers, "w1a", floors, rounds, crowd::sequential_activities).await
}

/// Alternates between the append alone and the load.
async fn throughput(
    servers: &Servers,
    instance: &str,
    floors: &mut Floors,
    rounds: Rounds,
    run: impl AsyncFn(Client) -> Result<u64, ClientError>,
) -> anyhow::Result<Throughput> {
    let stage = servers.stage(instance).await?;
    let worker = WorkerProcess::start(&stage.place)?;
    let client = stage.place.client().await?;
    let meter = Meter::start(servers, &stage, &worker)?;
    let mut used = Usage::default();
    let mut appended = 0.0;
    for _ in 0..rounds.count {
        appended += floors.append_steps_per_s(rounds.floor).await?;
        used += crowd::round(&meter, &client, IN_FLIGHT, rounds.load, &run)
            .await?
            .used;
    }
    let runs_per_s = used.runs_per_s();
    Ok(Throughput {
        runs_per_s,
        steps_per_s: runs_per_s * SEQUENCE as f64,
        append_steps_per_s: appended / f64::from(rounds.count),
        cost: used.cost_per_run(),
        profile: used.profile(),
        peak_rss_mib: meter.peak_rss_mib(),
    })
}

/// What W2 and W3 gave, and the commits of one row that were measured in turn with their runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Latency {
    #[serde(flatten)]
    pub(crate) run: Percentiles,
    pub(crate) commit_ms: f64,
}

/// W2: from the start to the result of a one-step run, one at a time.
pub(crate) async fn start_to_result(
    servers: &Servers,
    floors: &Floors,
    count: usize,
) -> anyhow::Result<Latency> {
    let stage = servers.stage("w2").await?;
    let _worker = WorkerProcess::start(&stage.place)?;
    let client = stage.place.client().await?;
    let mut times = Vec::with_capacity(count);
    let mut commits = Vec::with_capacity(count);
    for _ in 0..WARM_UP_RUNS + count {
        commits.push(floors.commit().await?);
        let began = Instant::now();
        client.start(flows::one_step, 1).await?.result().await?;
        times.push(began.elapsed());
    }
    Ok(latency(times, commits))
}

/// W3: from the signal to the result of a run that waits for it, one at a time.
pub(crate) async fn signal_to_result(
    servers: &Servers,
    floors: &Floors,
    count: usize,
) -> anyhow::Result<Latency> {
    let stage = servers.stage("w3").await?;
    let _worker = WorkerProcess::start(&stage.place)?;
    let client = stage.place.client().await?;
    let starts =
        (0..WARM_UP_RUNS + count).map(|_| client.start(flows::one_signal, 1).into_future());
    let mut times = Vec::with_capacity(count);
    let mut commits = Vec::with_capacity(count);
    for run in join_all(starts).await {
        let run = run?;
        until_waiting(&stage, &run).await?;
        commits.push(floors.commit().await?);
        let began = Instant::now();
        run.signal(flows::one_signal::go, &1).await?;
        run.result().await?;
        times.push(began.elapsed());
    }
    Ok(latency(times, commits))
}

fn latency(mut runs: Vec<Duration>, mut commits: Vec<Duration>) -> Latency {
    Latency {
        run: Percentiles::of(runs.split_off(WARM_UP_RUNS)),
        commit_ms: Percentiles::of(commits.split_off(WARM_UP_RUNS)).p50_ms,
    }
}

/// Nothing tells that a run has reached its wait, so its journal is looked at until it shows.
async fn until_waiting<T>(stage: &Stage, run: &RunHandle<T>) -> anyhow::Result<()> {
    while journal::history(&stage.database, run.run_id(), WAITING_AT - 1, 1)
        .await?
        .is_empty()
    {
        tokio::task::yield_now().await;
    }
    Ok(())
}

/// What W4 gave.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Join {
    /// The median.
    pub(crate) wall_ms: f64,
    pub(crate) wall_max_ms: f64,
    /// The commit of one row, measured between the runs.
    pub(crate) commit_ms: f64,
}

/// W4: from the start to the result of one run that joins [`JOINED`] activities, several times.
pub(crate) async fn join(servers: &Servers, floors: &Floors, count: usize) -> anyhow::Result<Join> {
    let stage = servers.stage("w4").await?;
    let _worker = WorkerProcess::start(&stage.place)?;
    let client = stage.place.client().await?;
    let mut times = Vec::with_capacity(count);
    let mut commits = Vec::new();
    for _ in 0..count {
        for _ in 0..COMMITS_BETWEEN_JOINS {
            commits.push(floors.commit().await?);
        }
        let began = Instant::now();
        let sum = client
            .start(flows::joined_activities, JOINED)
            .await?
            .result()
            .await?;
        times.push(began.elapsed());
        ensure!(sum == JOINED * (JOINED + 1) / 2, "the run gave {sum}");
    }
    Ok(Join {
        wall_max_ms: times
            .iter()
            .max()
            .map_or(0.0, |time| time.as_secs_f64() * 1e3),
        wall_ms: Percentiles::of(times).p50_ms,
        commit_ms: Percentiles::of(commits).p50_ms,
    })
}
