//! W6: a worker of two dies, or is asked to stop, in the middle of many runs.

use std::time::{Duration, Instant};

use anyhow::ensure;
use continuum_worker::Client;
use futures::future::try_join_all;
use serde::Serialize;

use super::Scale;
use crate::flows;
use crate::stage::{Servers, WorkerProcess};

/// Runs that are started at once.
const RUNS: usize = 500;

/// Steps of each.
const STEPS: u64 = 10;

/// When a worker is lost: the runs are about half done.
const LOST_AFTER: Duration = Duration::from_millis(1_000);

/// The time until the last of the runs has ended.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Kills {
    pub(crate) runs: usize,
    pub(crate) undisturbed_s: f64,
    pub(crate) kill_s: f64,
    pub(crate) stop_s: f64,
}

impl Kills {
    pub(crate) fn stop_ratio(&self) -> f64 {
        self.stop_s / self.undisturbed_s
    }
}

/// What happens to one of the two workers.
#[derive(Clone, Copy)]
enum Fate {
    Undisturbed,
    Killed,
    Stopped,
}

/// Each fate on an instance of its own.
pub(crate) async fn measure(servers: &Servers, scale: Scale) -> anyhow::Result<Kills> {
    let runs = scale.of(RUNS);
    Ok(Kills {
        runs,
        undisturbed_s: until_last(servers, "undisturbed", runs, Fate::Undisturbed).await?,
        kill_s: until_last(servers, "killed", runs, Fate::Killed).await?,
        stop_s: until_last(servers, "stopped", runs, Fate::Stopped).await?,
    })
}

async fn until_last(
    servers: &Servers,
    instance: &str,
    runs: usize,
    fate: Fate,
) -> anyhow::Result<f64> {
    let stage = servers.stage(instance).await?;
    let _survivor = WorkerProcess::start(&stage.place)?;
    let mut other = WorkerProcess::start(&stage.place)?;
    let client = stage.place.client().await?;
    // Connections and plans are as they stay.
    all(&client, runs, 1).await?;
    let began = Instant::now();
    let disturb = async {
        tokio::time::sleep(LOST_AFTER).await;
        match fate {
            Fate::Undisturbed => {}
            Fate::Killed => other.kill()?,
            Fate::Stopped => other.ask_to_stop(),
        }
        anyhow::Ok(())
    };
    tokio::try_join!(all(&client, runs, STEPS), disturb)?;
    Ok(began.elapsed().as_secs_f64())
}

async fn all(client: &Client, runs: usize, steps: u64) -> anyhow::Result<()> {
    let run = async || {
        let run = client.start(flows::slow_steps, steps).await?;
        anyhow::Ok(run.result().await?)
    };
    let ends = try_join_all((0..runs).map(|_| run())).await?;
    ensure!(
        ends.iter().all(|n| *n == steps),
        "a run did not take its {steps} steps"
    );
    Ok(())
}
