//! How a fleet shares its load.

use std::time::Duration;

use continuum_tests::{PATIENCE, World, metric, until};
use continuum_worker::prelude::*;
use continuum_worker::{Worker, WorkerConfig, registry};
use tokio::sync::Semaphore;

static GATE: Semaphore = Semaphore::const_new(0);

/// Its step ends when the test lets it.
#[workflow(version = 1)]
async fn gated(ctx: &WorkflowContext, number: u64) -> Result<u64, WorkflowError> {
    ctx.step("gate", || async {
        GATE.acquire().await?.forget();
        Ok(())
    })
    .await?;
    Ok(number)
}

#[workflow(version = 1)]
async fn patient(ctx: &WorkflowContext, number: u64) -> Result<u64, WorkflowError> {
    let plus: u64 = ctx.signal("go").await?;
    Ok(ctx
        .step("add", move || async move { Ok(number + plus) })
        .await?)
}

async fn until_held(worker: &Worker, count: usize) {
    until(&format!("{count} runs are held"), async || {
        (worker.residents() == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_joins_a_busy_fleet_gets_what_the_others_have_no_hands_for() {
    let world = World::new().await;
    let config = WorkerConfig {
        advancing_max: 5,
        ..world.worker_config()
    };
    let first = world.worker_with(registry![gated], config.clone()).await;
    let client = world.client().await;
    let mut runs = Vec::new();
    for number in 0..10 {
        runs.push(client.start(gated, number).await.unwrap());
    }
    until_held(&first, 5).await;
    let second = world.worker_with(registry![gated], config).await;
    until_held(&second, 5).await;
    assert_eq!(first.residents(), 5, "nothing was taken from the first");
    GATE.add_permits(10);
    for (number, run) in (0..).zip(runs) {
        assert_eq!(run.result_within(PATIENCE).await.unwrap(), number);
    }
    world.finish([first, second]).await;
}

/// The whole fleet goes and comes again while many runs are open and all of them have something to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_restarts_with_many_due_runs_shares_them_and_loses_none() {
    const WORKERS: usize = 6;
    const RUNS: u64 = 1_200;
    let world = World::new().await;
    let mut config = WorkerConfig {
        advancing_max: 40,
        idle_max: Duration::from_millis(1),
        ..world.worker_config()
    };
    config.database.connections = 3;
    let before = world.worker_with(registry![patient], config.clone()).await;
    let client = world.client().await;
    let starts = (0..RUNS).map(|number| client.start(patient, number).into_future());
    let mut runs = Vec::new();
    for run in futures::future::join_all(starts).await {
        runs.push(run.unwrap());
    }
    before.stop().await;
    for run in &runs {
        run.signal("go", &1_u64).await.unwrap();
    }
    let boots = (0..WORKERS).map(|_| Worker::start(registry![patient], config.clone()));
    let mut fleet = Vec::new();
    for worker in futures::future::join_all(boots).await {
        fleet.push(worker.unwrap());
    }
    for (number, run) in (0..).zip(runs) {
        assert_eq!(run.result_within(PATIENCE).await.unwrap(), number + 1);
    }
    let shares: Vec<f64> = fleet
        .iter()
        .map(|worker| metric(worker, "continuum_runs_ended_total"))
        .collect();
    let busy = shares.iter().filter(|share| **share > 0.0).count();
    assert!(busy > 1, "one worker did everything: {shares:?}");
    assert_eq!(shares.iter().sum::<f64>(), RUNS as f64);
    world.finish(fleet).await;
}

#[workflow(version = 1)]
async fn sleeper(ctx: &WorkflowContext, _input: ()) -> Result<(), WorkflowError> {
    ctx.sleep(Duration::from_secs(5)).await?;
    Ok(())
}

/// Nobody rings for the timer of a cold run: each worker knows when the next one is due. These workers would look by
/// themselves in an hour.
#[tokio::test(flavor = "multi_thread")]
async fn timers_of_cold_runs_are_taken_when_they_are_due_and_not_at_the_next_look() {
    const HOUR: Duration = Duration::from_secs(3600);
    let world = World::new().await;
    let config = WorkerConfig {
        poll_interval: HOUR,
        catch_up_interval: HOUR,
        reconcile_interval: HOUR,
        ..world.worker_config()
    };
    let first = world.worker_with(registry![sleeper], config.clone()).await;
    let client = world.client().await;
    let mut runs = Vec::new();
    for _ in 0..50 {
        runs.push(client.start(sleeper, ()).await.unwrap());
    }
    for run in &runs {
        world.until_event(run.run_id(), "timer_started").await;
    }
    first.stop().await;
    let second = world.worker_with(registry![sleeper], config).await;
    for run in runs {
        run.result_within(PATIENCE).await.unwrap();
    }
    world.finish([second]).await;
}
