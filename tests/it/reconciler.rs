//! The reconciler and the catch-up pass: what they find is made by hand, for by the rules of the engine there is none of
//! it.

use std::sync::mpsc;
use std::time::Duration;

use continuum_schema::lease;
use continuum_schema::run::RunState;
use continuum_schema::session::{self, NewSession};
use continuum_schema::{Payload, mailbox};
use continuum_tests::{PATIENCE, World, metric, until};
use continuum_worker::prelude::*;
use continuum_worker::{Client, RunHandle, Worker, WorkerConfig, registry};
use tokio::sync::Semaphore;
use uuid::Uuid;

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3_600);

#[workflow(version = 1)]
async fn waits(ctx: &WorkflowContext, (): ()) -> Result<u64, WorkflowError> {
    Ok(ctx.signal::<u64>("go").await?)
}

#[workflow(version = 1)]
async fn sleeps(ctx: &WorkflowContext, (): ()) -> Result<(), WorkflowError> {
    ctx.sleep(NEVER).await?;
    Ok(())
}

/// Its step ends when the test lets it; until then the run can't leave memory.
#[workflow(version = 1)]
async fn holds(ctx: &WorkflowContext, (): ()) -> Result<(), WorkflowError> {
    Ok(ctx
        .step("hold", || async {
            GATE.acquire().await?.forget();
            Ok(())
        })
        .await?)
}

static GATE: Semaphore = Semaphore::const_new(0);

/// Looks often, and hears of nothing in the time of a test but by its own looks.
fn watchful(world: &World) -> WorkerConfig {
    WorkerConfig {
        reconcile_interval: Duration::from_millis(100),
        catch_up_interval: NEVER,
        session_ttl: Duration::from_secs(60),
        ..world.worker_config()
    }
}

async fn until_metric(worker: &Worker, name: &str, least: f64) {
    until(name, async || (metric(worker, name) >= least).then_some(())).await;
}

fn session_of(worker: &Worker) -> Uuid {
    worker.status().borrow().session.expect("it is ready")
}

/// A session that nobody keeps alive.
async fn dead_session(world: &World, claim_keys: Vec<String>) -> Uuid {
    let new = NewSession {
        worker: "dead".into(),
        build: "1".into(),
        queues: Vec::new(),
        claim_keys,
    };
    session::open(&world.database, &new).await.unwrap()
}

/// A run that waits and that nobody holds.
async fn cold(world: &World, client: &Client, workflow: &str) -> RunHandle<Payload> {
    let config = WorkerConfig {
        idle_max: Duration::from_millis(1),
        ..watchful(world)
    };
    let worker = world.worker_with(registry![waits, sleeps], config).await;
    let run = client.start_named(workflow, Payload::unit()).await.unwrap();
    world.until_state(run.run_id(), RunState::Waiting).await;
    assert!(worker.stop().await.is_clean());
    run
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_whose_lease_is_anothers_is_reaped_and_the_other_is_left_alone() {
    let world = World::new().await;
    let worker = world.worker_with(registry![waits], watchful(&world)).await;
    let client = world.client().await;
    let run = client.start(waits, ()).await.unwrap();
    until("the run is held", async || {
        (worker.residents() == 1).then_some(())
    })
    .await;
    let other = dead_session(&world, Vec::new()).await;
    world.hand_over(run.run_id(), other).await;
    until("the zombie is reaped", async || {
        (worker.residents() == 0).then_some(())
    })
    .await;
    assert!(metric(&worker, "continuum_reconciler_reaped_total") >= 1.0);
    let owned = lease::owned(&world.database, other, Uuid::nil(), 10)
        .await
        .unwrap();
    assert_eq!(owned.len(), 1, "the other still has it");
    // What it owned comes back when it is closed.
    session::close(&world.database, other, None, "the test")
        .await
        .unwrap();
    client.signal(run.run_id(), "go", &7_u64).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 7);
    assert!(metric(&worker, "continuum_reconciler_released_runs_total") >= 1.0);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_claim_was_never_answered_is_given_back() {
    let world = World::new().await;
    let client = world.client().await;
    let run = cold(&world, &client, "waits").await;
    let worker = world.worker_with(registry![waits], watchful(&world)).await;
    world.hand_over(run.run_id(), session_of(&worker)).await;
    client.signal(run.run_id(), "go", &7_u64).await.unwrap();
    assert_eq!(
        run.result_within(PATIENCE).await.unwrap(),
        Payload::encode(&7_u64).unwrap()
    );
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_that_nothing_would_wake_a_run_for_is_taken_all_the_same() {
    let world = World::new().await;
    let client = world.client().await;
    let run = cold(&world, &client, "waits").await;
    run.cancel("enough").await.unwrap();
    world.forget(run.run_id()).await;
    let worker = world.worker_with(registry![waits], watchful(&world)).await;
    world.until_state(run.run_id(), RunState::Cancelled).await;
    assert!(metric(&worker, "continuum_reconciler_revived_runs_total") >= 1.0);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_that_nothing_would_fire_is_taken_up_all_the_same() {
    let world = World::new().await;
    let client = world.client().await;
    let run = cold(&world, &client, "sleeps").await;
    world.forget(run.run_id()).await;
    let worker = world.worker_with(registry![sleeps], watchful(&world)).await;
    until("the run is held", async || {
        (worker.residents() == 1).then_some(())
    })
    .await;
    assert!(metric(&worker, "continuum_reconciler_revived_runs_total") >= 1.0);
    run.cancel("enough").await.unwrap();
    world.until_state(run.run_id(), RunState::Cancelled).await;
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn due_runs_that_a_full_fleet_does_not_take_are_counted_and_taken_when_there_is_room() {
    let world = World::new().await;
    let config = WorkerConfig {
        residents_max: 1,
        session_ttl: Duration::from_secs(2),
        reconcile_grace: Duration::from_millis(100),
        ..watchful(&world)
    };
    let worker = world.worker_with(registry![holds], config).await;
    let client = world.client().await;
    let first = client.start(holds, ()).await.unwrap();
    until("the worker is full", async || {
        (worker.residents() == 1).then_some(())
    })
    .await;
    let second = client.start(holds, ()).await.unwrap();
    until_metric(&worker, "continuum_reconciler_ownerless_runs", 1.0).await;
    GATE.add_permits(2);
    for run in [first, second] {
        run.result_within(PATIENCE).await.unwrap();
    }
    until("nothing is overdue", async || {
        (metric(&worker, "continuum_reconciler_ownerless_runs") == 0.0).then_some(())
    })
    .await;
    world.finish([worker]).await;
}

/// What takes up every thread and connection of a worker must not keep it from mending what others left behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_own_threads_are_all_taken_still_closes_dead_sessions() {
    let world = World::new().await;
    let (frozen, is_frozen) = mpsc::channel::<()>();
    let (thaw, thawed) = mpsc::channel::<()>();
    let config = WorkerConfig {
        session_ttl: Duration::from_secs(2),
        ..watchful(&world)
    };
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let worker = Worker::start(registry![waits], config).await.unwrap();
            continuum_tests::until_ready(&worker).await;
            frozen.send(()).unwrap();
            // Nothing else of this runtime goes on until the test says so.
            thawed.recv().unwrap();
            worker.stop().await
        })
    });
    tokio::task::spawn_blocking(move || is_frozen.recv())
        .await
        .unwrap()
        .unwrap();
    let client = world.client().await;
    let dead = dead_session(&world, Vec::new()).await;
    let run = client.start(waits, ()).await.unwrap();
    world.hand_over(run.run_id(), dead).await;
    until("the dead session is closed", async || {
        world.close_reason(dead).await
    })
    .await;
    until("its run is free", async || {
        let owned = lease::owned(&world.database, dead, Uuid::nil(), 10)
            .await
            .unwrap();
        owned.is_empty().then_some(())
    })
    .await;
    thaw.send(()).unwrap();
    let drained = tokio::task::spawn_blocking(move || thread.join());
    assert!(drained.await.unwrap().unwrap().is_clean());
    run.cancel("enough").await.unwrap();
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catch_up_pass_finds_what_no_hint_told_of_and_says_so() {
    let world = World::new().await;
    let config = WorkerConfig {
        catch_up_interval: Duration::from_millis(100),
        ..watchful(&world)
    };
    let worker = world.worker_with(registry![waits], config).await;
    let client = world.client().await;
    let run = client.start(waits, ()).await.unwrap();
    until("the run is held", async || {
        (worker.residents() == 1).then_some(())
    })
    .await;
    // Whoever posts so tells nobody.
    let signal = mailbox::Signal {
        run_id: run.run_id(),
        name: "go".into(),
        payload: Payload::encode(&7_u64).unwrap(),
        delivery_id: None,
    };
    let posted = mailbox::ingest(&world.database, &[signal], &[], &[])
        .await
        .unwrap();
    assert_eq!(posted.len(), 1);
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 7);
    assert!(metric(&worker, "continuum_catch_up_woken_total") >= 1.0);
    assert!(metric(&worker, "continuum_catch_up_matched_total") >= 1.0);
    until_metric(&worker, "continuum_catch_up_status", 1.0).await;
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_first_wait_leaves_no_event_becomes_cold_and_stays_so() {
    let world = World::new().await;
    let config = WorkerConfig {
        idle_max: Duration::from_millis(1),
        poll_interval: Duration::from_millis(20),
        ..watchful(&world)
    };
    let worker = world.worker_with(registry![waits], config).await;
    let client = world.client().await;
    let run = client.start(waits, ()).await.unwrap();
    world.until_state(run.run_id(), RunState::Waiting).await;
    // Many looks at what is due later it has been claimed no second time.
    let looks = "continuum_reconciler_passes_total{outcome=\"completed\"}";
    until_metric(&worker, looks, metric(&worker, looks) + 5.0).await;
    assert!(metric(&worker, "continuum_runs_claimed_total") <= 1.0);
    client.signal(run.run_id(), "go", &7_u64).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 7);
    world.finish([worker]).await;
}
