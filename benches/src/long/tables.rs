//! W1 on tables that hold much, in turn with W1 on tables that hold nothing.

use std::time::{Duration, Instant};

use anyhow::ensure;
use continuum_schema::clock::to_micros;
use continuum_schema::{Database, bench};
use serde::Serialize;

use super::claims::{self, Claims};
use super::{Scale, start_sleepers, until_census, until_waiting};
use crate::crowd;
use crate::load::Rounds;
use crate::stage::{Servers, Stage, WorkerProcess};

/// Cold runs, and runs that have gone through.
const MILLION: usize = 1_000_000;

/// Copies of one statement.
const COPIES: i32 = 10_000;

/// How long the cold runs sleep: none is due while anything is measured.
const ASLEEP: Duration = Duration::from_secs(30 * 86_400);

/// W1, in turn on full and on fresh tables.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Against {
    pub(crate) runs_per_s: f64,
    pub(crate) fresh_runs_per_s: f64,
    pub(crate) cpu_ms_per_run: f64,
    pub(crate) fresh_cpu_ms_per_run: f64,
}

impl Against {
    /// 1 if full tables cost nothing.
    pub(crate) fn ratio(&self) -> f64 {
        self.runs_per_s / self.fresh_runs_per_s
    }
}

/// W1 beside cold runs.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct ColdRuns {
    pub(crate) cold_runs: i64,
    #[serde(flatten)]
    pub(crate) w1: Against,
    pub(crate) claims: Claims,
    pub(crate) fresh_claims: Claims,
    pub(crate) postgres_table_bytes_per_run: f64,
    pub(crate) postgres_index_bytes_per_run: f64,
}

/// W1 after many runs have gone through while a snapshot was held.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct HeldSnapshot {
    pub(crate) runs_gone_through: usize,
    /// The first tenth of them and the last.
    pub(crate) first_runs_per_s: f64,
    pub(crate) last_runs_per_s: f64,
    #[serde(flatten)]
    pub(crate) w1: Against,
    pub(crate) claims: Claims,
    pub(crate) fresh_claims: Claims,
}

/// W1 beside a million cold runs.
pub(crate) async fn beside_cold_runs(
    servers: &Servers,
    rounds: Rounds,
    scale: Scale,
) -> anyhow::Result<ColdRuns> {
    let full = servers.stage("cold").await?;
    let empty = bench::sizes(&full.database).await?;
    let wanted = i64::try_from(scale.of(MILLION))?;
    let cold_runs = fill(&full, wanted).await?;
    let sizes = bench::sizes(&full.database).await?;
    Ok(ColdRuns {
        cold_runs,
        postgres_table_bytes_per_run: (sizes.tables - empty.tables) as f64 / cold_runs as f64,
        postgres_index_bytes_per_run: (sizes.indexes - empty.indexes) as f64 / cold_runs as f64,
        fresh_claims: claims::measure(&servers.stage("cold-claims").await?).await?,
        claims: claims::measure(&full).await?,
        w1: against_fresh(servers, &full, rounds).await?,
    })
}

/// Lets a worker make one cold run, and copies it.
async fn fill(stage: &Stage, wanted: i64) -> anyhow::Result<i64> {
    let worker = WorkerProcess::start(&stage.place)?;
    let client = stage.place.client().await?;
    let due = to_micros(stage.database.now().await? + ASLEEP);
    start_sleepers(&client, 1, |_| due).await?;
    until_waiting(stage, 1).await?;
    let run = client.find("default", &format!("{due}-0")).await?;
    drop(worker);
    until_census(stage, |c| c.cold == 1).await?;
    let run = run.ok_or_else(|| anyhow::anyhow!("the run that is copied has no record"))?;
    let mut made = 1;
    while made < wanted {
        let count = i32::try_from(wanted - made).unwrap_or(COPIES).min(COPIES);
        let copied = bench::copy(&stage.database, run, count).await?;
        ensure!(
            copied == i64::from(count),
            "{copied} of {count} copies were made"
        );
        made += copied;
    }
    Ok(made)
}

/// W1 after a million runs have gone through beside one snapshot.
pub(crate) async fn beside_held_snapshot(
    servers: &Servers,
    rounds: Rounds,
    scale: Scale,
) -> anyhow::Result<HeldSnapshot> {
    let fresh_claims = claims::measure(&servers.stage("held-claims").await?).await?;
    let full = servers.stage("held").await?;
    let holder: Database = full.place.database(1)?;
    let snapshot = bench::hold_snapshot(&holder).await?;
    let tenth = scale.of(MILLION).div_ceil(10);
    let rates = wear(&full, tenth).await?;
    let claims = claims::measure(&full).await?;
    let w1 = against_fresh(servers, &full, rounds).await?;
    drop(snapshot);
    Ok(HeldSnapshot {
        runs_gone_through: tenth * rates.len(),
        first_runs_per_s: rates[0],
        last_runs_per_s: rates[rates.len() - 1],
        w1,
        claims,
        fresh_claims,
    })
}

/// Lets ten times so many runs go through; returns the runs a second of each tenth.
async fn wear(stage: &Stage, tenth: usize) -> anyhow::Result<[f64; 10]> {
    let _worker = WorkerProcess::start(&stage.place)?;
    let client = stage.place.client().await?;
    let mut rates = [0.0; 10];
    for (done, rate) in rates.iter_mut().enumerate() {
        let began = Instant::now();
        crowd::w1_runs(&client, tenth).await?;
        *rate = tenth as f64 / began.elapsed().as_secs_f64();
        eprintln!(
            "bench: {} runs have gone through, {rate:.0} /s",
            (done + 1) * tenth
        );
    }
    Ok(rates)
}

/// Alternates; each round on fresh tables has an instance of its own, since a round leaves its runs behind.
async fn against_fresh(servers: &Servers, full: &Stage, rounds: Rounds) -> anyhow::Result<Against> {
    let (mut used, mut fresh_used) = (Vec::new(), Vec::new());
    for round in 0..rounds.count {
        let name = format!("{}-fresh-{round}", full.place.instance());
        let fresh = servers.stage(&name).await?;
        fresh_used.push(w1(servers, &fresh, rounds.load).await?);
        used.push(w1(servers, full, rounds.load).await?);
    }
    let mean = |all: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| {
        all.iter().map(of).sum::<f64>() / all.len() as f64
    };
    Ok(Against {
        runs_per_s: mean(&used, |used| used.0),
        fresh_runs_per_s: mean(&fresh_used, |used| used.0),
        cpu_ms_per_run: mean(&used, |used| used.1),
        fresh_cpu_ms_per_run: mean(&fresh_used, |used| used.1),
    })
}

/// Runs a second, and the processor time of a run.
async fn w1(servers: &Servers, stage: &Stage, window: Duration) -> anyhow::Result<(f64, f64)> {
    let round = crowd::w1_round(servers, stage, crowd::IN_FLIGHT, window).await?;
    let cost = round.used.cost_per_run();
    Ok((round.used.runs_per_s(), cost.cpu_ms_per_run))
}
