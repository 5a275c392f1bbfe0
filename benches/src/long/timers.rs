//! W5: timers of cold runs, many within a minute and many at one moment.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use continuum_schema::bench;
use continuum_schema::clock::{Micros, to_micros};
use serde::Serialize;

use super::{LOOK, PATIENCE, Scale, start_sleepers, until_census};
use crate::report::Percentiles;
use crate::stage::{Servers, Stage, WorkerProcess, WorkerSettings};

const WORKERS: usize = 3;

/// Timers that come due one after another.
const SPREAD: usize = 100_000;

/// The time over which they do.
const SPREAD_OVER: Duration = Duration::from_secs(60);

/// Timers that come due at one moment.
const AT_ONCE: usize = 2_000;

/// Runs that a fleet of three starts and gives back in a second, for certain.
const PREPARED_PER_S: usize = 600;

/// The least time until the first is due.
const PREPARATION_MIN: Duration = Duration::from_secs(10);

/// Runs go cold quickly here, since what is measured are timers of cold runs.
const IDLE_MAX_MS: u64 = 1_000;

/// How late runs ended after their timers were due, by the database's clock.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Timers {
    pub(crate) workers: usize,
    /// Due one after another.
    pub(crate) spread: Lag,
    /// Due at one moment.
    pub(crate) at_once: Lag,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Lag {
    pub(crate) timers: usize,
    /// Runs that were in nobody's memory when the first timer came due.
    pub(crate) cold: i64,
    #[serde(flatten)]
    pub(crate) late: Percentiles,
    pub(crate) late_max_ms: f64,
}

/// Both, on an instance each.
pub(crate) async fn measure(servers: &Servers, scale: Scale) -> anyhow::Result<Timers> {
    let at_once = servers.stage("timers-at-once").await?;
    let spread = servers.stage("timers-spread").await?;
    let over = i64::try_from(SPREAD_OVER.as_micros())?;
    Ok(Timers {
        workers: WORKERS,
        at_once: lag(&at_once, scale.of(AT_ONCE), 0).await?,
        spread: lag(&spread, scale.of(SPREAD), over).await?,
    })
}

async fn lag(stage: &Stage, count: usize, over: Micros) -> anyhow::Result<Lag> {
    let settings = WorkerSettings {
        idle_max_ms: Some(IDLE_MAX_MS),
        ..WorkerSettings::default()
    };
    let _workers = (0..WORKERS)
        .map(|_| WorkerProcess::start_with(&stage.place, settings))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let client = stage.place.client().await?;
    let preparation = PREPARATION_MIN + Duration::from_secs((count / PREPARED_PER_S) as u64);
    let first = to_micros(stage.database.now().await? + preparation);
    let due = |n: usize| first + over * n as Micros / count as Micros;
    start_sleepers(&client, count, due).await?;
    let prepared = until_census(stage, |c| c.cold == count as i64).await?;
    let left = first - to_micros(stage.database.now().await?);
    ensure!(
        left > 0,
        "the first timer was due before all runs were cold"
    );
    eprintln!(
        "bench: {count} runs are cold, {:.1} s before the first is due",
        left as f64 / 1e6
    );
    until_ended(stage).await?;
    lateness(stage, count, prepared.cold).await
}

async fn until_ended(stage: &Stage) -> anyhow::Result<()> {
    let looking = async {
        loop {
            let census = bench::census(&stage.database).await?;
            if census.owned + census.due + census.cold == 0 {
                return anyhow::Ok(());
            }
            tokio::time::sleep(LOOK * 5).await;
        }
    };
    tokio::time::timeout(PATIENCE, looking).await?
}

async fn lateness(stage: &Stage, count: usize, cold: i64) -> anyhow::Result<Lag> {
    let ends = bench::ends(&stage.database).await?;
    ensure!(ends.len() == count, "{} of {count} runs ended", ends.len());
    let mut late = Vec::with_capacity(count);
    for end in &ends {
        ensure!(end.state == "completed", "a run {}", end.state);
        let (due, _) = end.key.split_once('-').context("a key names a moment")?;
        let after = to_micros(end.at) - due.parse::<Micros>()?;
        late.push(Duration::from_micros(
            u64::try_from(after).context("a timer fired before it was due")?,
        ));
    }
    Ok(Lag {
        timers: count,
        cold,
        late_max_ms: late
            .iter()
            .max()
            .map_or(0.0, |late| late.as_secs_f64() * 1e3),
        late: Percentiles::of(late),
    })
}
