//! The database's clock steps. It is the only clock that counts, and still a step robs nobody and stalls nothing.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use continuum_schema::{journal, migration};
use continuum_tests::{FakeClock, PATIENCE, World, servers, until};
use continuum_worker::dev::{PostgresOptions, PrivatePostgres};
use continuum_worker::prelude::*;
use continuum_worker::{Client, RunHandle, Worker, registry};
use futures::future::join_all;
use uuid::Uuid;

const HOUR: i64 = 3600;

/// A Postgres whose clock can be set while it runs.
struct SteppedPostgres {
    postgres: PrivatePostgres,
    clock: FakeClock,
}

impl SteppedPostgres {
    async fn start() -> Self {
        let clock = FakeClock::new();
        let options = PostgresOptions {
            environment: clock.environment(),
            fsync: false,
            ..PostgresOptions::default()
        };
        let postgres = PrivatePostgres::start(options).await;
        Self {
            postgres: postgres.expect("a private Postgres starts under libfaketime"),
            clock,
        }
    }

    /// The clock shows so many seconds more than the true time.
    fn set(&self, seconds: i64) {
        self.clock.set(seconds);
    }
}

#[activity(queue = "clock")]
async fn tick(_ctx: ActivityContext, number: u64) -> Result<u64, ActivityError> {
    Ok(number + 1)
}

/// Works without a pause until it is told to stop.
#[workflow(version = 1)]
async fn work(ctx: &WorkflowContext, (): ()) -> Result<u64, WorkflowError> {
    let mut ticks = 0;
    loop {
        let told: Option<()> = ctx
            .signal::<()>("stop")
            .timeout(Duration::from_millis(5))
            .await?;
        if told.is_some() {
            return Ok(ticks);
        }
        ticks = ctx.activity(tick, ticks).await?;
    }
}

#[workflow(version = 1)]
async fn nap(ctx: &WorkflowContext, millis: u64) -> Result<(), WorkflowError> {
    ctx.sleep(Duration::from_millis(millis)).await?;
    Ok(())
}

/// Runs that are started one after another, each of which wants to be claimed at once.
async fn short_runs(client: &Client) {
    for _ in 0..5 {
        let run = client.start(nap, 20).await.unwrap();
        run.result_within(PATIENCE).await.unwrap();
    }
}

/// How far each run is. A statement that is under way while the clock steps may be over its time all at once; Postgres
/// then asks to send it again.
async fn progress(world: &World, runs: &[RunHandle<u64>]) -> Vec<usize> {
    join_all(runs.iter().map(async |run| {
        loop {
            match journal::history(&world.database, run.run_id(), 0, 1_000_000).await {
                Err(error) if error.is_transient() => {}
                history => return history.unwrap().len(),
            }
        }
    }))
    .await
}

/// Each run goes on.
async fn until_all_advance(world: &World, runs: &[RunHandle<u64>]) {
    let before = progress(world, runs).await;
    let look = async || {
        let now = progress(world, runs).await;
        let all = now
            .iter()
            .zip(&before)
            .all(|(now, before)| *now > before + 20);
        all.then_some(())
    };
    until("each run goes on", look).await;
}

/// Each worker has learnt of the step: the database's clock comes with a heartbeat.
async fn until_all_beat(world: &World, workers: &[Worker]) {
    let beats = async || {
        let open = continuum_schema::session::watch(&world.database).await;
        open.ok().map(HashMap::from_iter)
    };
    let before: HashMap<Uuid, i64> = until("Postgres answers", beats).await;
    let look = async || {
        let now: HashMap<Uuid, i64> = beats().await?;
        let all = workers.iter().filter_map(session).all(|id| {
            // The first one may have been on its way.
            now.get(&id) >= before.get(&id).map(|beat| beat + 2).as_ref()
        });
        all.then_some(())
    };
    until("each worker beats", look).await;
}

/// The session of a worker, which must not change any more.
fn session(worker: &Worker) -> Option<Uuid> {
    worker.status().borrow().session
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_databases_clock_robs_nobody_and_stalls_nothing() {
    let server = SteppedPostgres::start().await;
    let world = World::at(&server.postgres.url(), servers().await.nats.url());
    migration::migrate(&world.database).await.unwrap();
    let workers = [
        world.worker(registry![work, nap, tick]).await,
        world.worker(registry![work, nap, tick]).await,
    ];
    let sessions = workers.each_ref().map(session);
    let client = world.client().await;
    let runs = join_all((0..10).map(async |_| client.start(work, ()).await.unwrap())).await;
    until_all_advance(&world, &runs).await;

    for (step, offset) in [
        ("an hour forward", HOUR),
        ("and back", 0),
        ("an hour back", -HOUR),
    ] {
        let before = world.database.now().await.unwrap();
        server.set(offset);
        let after = world.database.now().await.unwrap();
        let stepped = (after - before).whole_minutes().abs();
        assert!(
            (59..=61).contains(&stepped),
            "the clock did not step: {stepped} min"
        );
        until_all_beat(&world, &workers).await;
        until_all_advance(&world, &runs).await;
        short_runs(&client).await;
        assert_eq!(
            workers.each_ref().map(session),
            sessions,
            "robbed by {step}"
        );
    }
    for run in &runs {
        run.signal("stop", &()).await.unwrap();
        run.result_within(PATIENCE).await.unwrap();
    }
    world.finish(workers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_in_memory_ends_early_with_a_step_forward_and_in_time_with_a_step_back() {
    let server = SteppedPostgres::start().await;
    let world = World::at(&server.postgres.url(), servers().await.nats.url());
    migration::migrate(&world.database).await.unwrap();
    let worker = world.worker(registry![work, nap, tick]).await;
    let client = world.client().await;

    // The database says that the hour is over.
    let long = client.start(nap, 3_000_000).await.unwrap();
    world.until_event(long.run_id(), "timer_started").await;
    server.set(HOUR);
    long.result_within(PATIENCE).await.unwrap();

    // The database says that there is more than an hour to go, and the worker has waited for the whole time.
    let began = Instant::now();
    let short = client.start(nap, 2_000).await.unwrap();
    world.until_event(short.run_id(), "timer_started").await;
    server.set(0);
    short.result_within(PATIENCE).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert!(began.elapsed() < Duration::from_secs(10));
    world.finish([worker]).await;
}
