//! A crowd of clients: each starts a run, waits for its result, and starts the next.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::ensure;
use continuum_worker::{Client, ClientError};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::flows::{self, SEQUENCE};
use crate::meter::{Meter, Usage};
use crate::stage::{Servers, Stage, WorkerProcess};

/// Runs in flight in W1 and W1a.
pub(crate) const IN_FLIGHT: usize = 200;

/// The load before a measurement begins: connections, plans and caches are then as they stay.
const WARM_UP: Duration = Duration::from_millis(1_500);

/// What is counted while the number of runs in flight is steady.
pub(crate) struct Round {
    pub(crate) used: Usage,
    /// From the start to the result of each run that ended meanwhile.
    pub(crate) times: Vec<Duration>,
}

/// The run of W1.
pub(crate) async fn sequential_steps(client: Client) -> Result<u64, ClientError> {
    client
        .start(flows::sequential_steps, SEQUENCE)
        .await?
        .result()
        .await
}

/// The run of W1a.
pub(crate) async fn sequential_activities(client: Client) -> Result<u64, ClientError> {
    client
        .start(flows::sequential_activities, SEQUENCE)
        .await?
        .result()
        .await
}

/// Keeps so many runs going and measures after the warm-up.
pub(crate) async fn round(
    meter: &Meter,
    client: &Client,
    in_flight: usize,
    window: Duration,
    run: impl AsyncFn(Client) -> Result<u64, ClientError>,
) -> anyhow::Result<Round> {
    let (ended, times) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let (measuring, enough) = (AtomicBool::new(false), AtomicBool::new(false));
    let one_after_another = async || {
        while !enough.load(Ordering::Relaxed) {
            let began = Instant::now();
            checked(run(client.clone()).await?)?;
            ended.fetch_add(1, Ordering::Relaxed);
            if measuring.load(Ordering::Relaxed) {
                let mut times = times.lock().unwrap_or_else(PoisonError::into_inner);
                times.push(began.elapsed());
            }
        }
        anyhow::Ok(())
    };
    let measure = async {
        tokio::time::sleep(WARM_UP).await;
        let before = meter.read(ended.load(Ordering::Relaxed)).await?;
        measuring.store(true, Ordering::Relaxed);
        tokio::time::sleep(window).await;
        measuring.store(false, Ordering::Relaxed);
        let after = meter.read(ended.load(Ordering::Relaxed)).await?;
        enough.store(true, Ordering::Relaxed);
        anyhow::Ok(after.since(&before))
    };
    let load = try_join_all((0..in_flight).map(|_| one_after_another()));
    let (used, _) = tokio::try_join!(measure, load)?;
    let times = times.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Round { used, times })
}

/// One round of W1 on an instance, with a worker of its own.
pub(crate) async fn w1_round(
    servers: &Servers,
    stage: &Stage,
    in_flight: usize,
    window: Duration,
) -> anyhow::Result<Round> {
    let worker = WorkerProcess::start(&stage.place)?;
    let client = stage.place.client().await?;
    let meter = Meter::start(servers, stage, &worker)?;
    let measured = round(&meter, &client, in_flight, window, sequential_steps).await;
    client.close().await;
    measured
}

/// So many runs of W1, as fast as they go.
pub(crate) async fn w1_runs(client: &Client, count: usize) -> anyhow::Result<()> {
    stream::iter(0..count)
        .map(|_| sequential_steps(client.clone()))
        .buffer_unordered(IN_FLIGHT)
        .map(|ended| checked(ended?))
        .try_collect::<()>()
        .await
}

fn checked(n: u64) -> anyhow::Result<()> {
    ensure!(n == SEQUENCE, "a run gave {n} instead of {SEQUENCE}");
    Ok(())
}
