//! Workers that die, halt or leave: what they held goes on elsewhere, in time, and is never ended twice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::{Event, run::RunState};
use continuum_tests::cluster::load::slow;
use continuum_tests::{ProcessSettings, WorkerProcess, World, carried_out, until, until_ready};
use continuum_worker::dev::{PostgresOptions, PrivatePostgres};
use continuum_worker::prelude::*;
use continuum_worker::{Drained, Worker, WorkerConfig, registry};
use tempfile::NamedTempFile;
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::crash::{PROCESS, only_try, second_try};

/// The time-out of sessions where something quicker is to find the dead ones.
const LONG_TTL: Duration = Duration::from_secs(20);

/// Two worker processes, of which the test lets the first begin everything.
struct Pair {
    world: World,
    log: NamedTempFile,
    settings: ProcessSettings,
    first: WorkerProcess,
    first_session: Uuid,
}

impl Pair {
    async fn new(change: impl FnOnce(&mut ProcessSettings)) -> Self {
        let world = World::new().await;
        let log = NamedTempFile::new().expect("a temporary file");
        let mut settings = ProcessSettings::new(&world, "first", log.path());
        change(&mut settings);
        let mut first = WorkerProcess::start(PROCESS, &settings);
        let first_session = first.session().await;
        Self {
            world,
            log,
            settings,
            first,
            first_session,
        }
    }

    async fn second(&self) -> WorkerProcess {
        let settings = ProcessSettings {
            name: "second".into(),
            ..self.settings.clone()
        };
        let mut second = WorkerProcess::start(PROCESS, &settings);
        second.session().await;
        second
    }

    /// Waits until an effect of a run was carried out `times` times.
    async fn until_carried_out(&self, run_id: Uuid, effect: &str, times: usize) {
        let look = || async {
            let notes = carried_out(self.log.path());
            let count = notes
                .iter()
                .filter(|note| note.0 == run_id && note.1 == effect)
                .count();
            (count >= times).then_some(())
        };
        until(&format!("{effect} is carried out {times} times"), look).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_workers_runs_and_activities_go_on_long_before_its_session_times_out() {
    let pair = Pair::new(|settings| settings.session_ttl = LONG_TTL).await;
    let client = pair.world.client().await;
    let again = client.start(second_try, ()).key("again").await.unwrap();
    let once = client.start(only_try, ()).key("once").await.unwrap();
    pair.until_carried_out(again.run_id(), "stubborn", 1).await;
    pair.until_carried_out(once.run_id(), "once", 1).await;
    let second = pair.second().await;

    let died = Instant::now();
    let Pair {
        first,
        first_session,
        world,
        log,
        ..
    } = pair;
    first.kill().await;
    assert_eq!(once.result_within(LONG_TTL).await.unwrap(), "WorkerLost");
    let value = again.result_within(LONG_TTL).await.unwrap();
    assert!(
        died.elapsed() < LONG_TTL / 2,
        "it took {:?}",
        died.elapsed()
    );
    assert_eq!(
        world.close_reason(first_session).await.as_deref(),
        Some("its process is gone")
    );

    let notes = carried_out(log.path());
    let of = |run_id: Uuid| {
        notes
            .iter()
            .filter(|note| note.0 == run_id)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        of(once.run_id()).len(),
        1,
        "an activity of one attempt ran again"
    );
    let [lost, second_attempt] = of(again.run_id())[..] else {
        panic!("two attempts: {notes:?}")
    };
    assert_eq!((lost.2, second_attempt.2), (1, 2));
    assert_eq!(second_attempt.3, value);
    assert_eq!(
        world.attempts(again.run_id()).await,
        [(1, 1, "unknown".to_owned())]
    );
    second.kill().await;
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nats_a_dead_workers_session_times_out_and_not_before() {
    let ttl = Duration::from_millis(1_500);
    let pair = Pair::new(|settings| {
        settings.session_ttl = ttl;
        // A port that nobody listens on.
        settings.nats_url = "nats://127.0.0.1:1".into();
    })
    .await;
    let run = pair
        .world
        .client()
        .await
        .start(second_try, ())
        .key("again")
        .await
        .unwrap();
    pair.until_carried_out(run.run_id(), "stubborn", 1).await;
    let second = pair.second().await;
    let died = Instant::now();
    let Pair {
        first,
        first_session,
        world,
        settings,
        ..
    } = pair;
    first.kill().await;
    run.result_within(LONG_TTL).await.unwrap();
    assert!(
        died.elapsed() >= ttl - settings.beat_interval * 2,
        "it took only {:?}",
        died.elapsed()
    );
    assert_eq!(
        world.close_reason(first_session).await.as_deref(),
        Some("its heartbeat stopped")
    );
    assert_eq!(
        world.attempts(run.run_id()).await,
        [(1, 1, "unknown".to_owned())]
    );
    second.kill().await;
    world.finish([]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_halted_beyond_its_lease_ends_nothing_and_works_on() {
    let mut pair = Pair::new(|settings| settings.session_ttl = Duration::from_millis(1_500)).await;
    let client = pair.world.client().await;
    let run = client.start(slow, ()).key("slow").await.unwrap();
    // In the middle of a step and an activity.
    pair.until_carried_out(run.run_id(), "slow", 1).await;
    pair.first.pause();
    let second = pair.second().await;
    let look = || async {
        let history = pair.world.history(run.run_id()).await;
        let ends = |event: &Event| {
            matches!(
                event,
                Event::StepCompleted { .. } | Event::ActivityCompleted { .. }
            )
        };
        (history.iter().filter(|event| ends(event)).count() == 2).then_some(history)
    };
    let history = until("the second worker ends both effects", look).await;

    // It wakes in the middle of both, ends them, and is too late.
    pair.first.resume();
    pair.first.session().await;
    pair.until_carried_out(run.run_id(), "slow", 3).await;
    assert_eq!(
        pair.world.history(run.run_id()).await,
        history,
        "a zombie wrote into the journal"
    );
    run.signal("go", &"go".to_owned()).await.unwrap();
    let (step, activity) = run.result_within(LONG_TTL).await.unwrap();
    assert!(
        step.starts_with("second/") && activity.starts_with("second/"),
        "{step} {activity}"
    );

    // Alone again, it takes new work.
    second.kill().await;
    let after = client.start(slow, ()).key("after").await.unwrap();
    after.signal("go", &"go".to_owned()).await.unwrap();
    let (step, _) = after.result_within(LONG_TTL).await.unwrap();
    assert!(step.starts_with("first/"), "{step}");
    pair.first.kill().await;
    pair.world.finish([]).await;
}

/// What holds activities back until a test lets them go, and tells how many wait.
struct Gate {
    waiting: Semaphore,
    open: Semaphore,
}

impl Gate {
    fn new() -> Self {
        Self {
            waiting: Semaphore::new(0),
            open: Semaphore::new(0),
        }
    }

    async fn pass(&self) {
        self.waiting.add_permits(1);
        self.open
            .acquire()
            .await
            .expect("nobody closes it")
            .forget();
    }

    async fn until_waiting(&self, count: u32) {
        let waiting = self.waiting.acquire_many(count);
        let waiting = tokio::time::timeout(continuum_tests::PATIENCE, waiting).await;
        waiting
            .expect("they come in time")
            .expect("nobody closes it")
            .forget();
    }
}

#[activity(queue = "gated", retry(max_attempts = 1))]
async fn gated(ctx: ActivityContext, number: u32) -> Result<u32, ActivityError> {
    ctx.state::<Arc<Gate>>().pass().await;
    Ok(number)
}

#[activity(queue = "quick", retry(max_attempts = 1))]
async fn quick(_ctx: ActivityContext, number: u32) -> Result<u32, ActivityError> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(number)
}

#[workflow(version = 1)]
async fn through_the_gate(ctx: &WorkflowContext, number: u32) -> Result<u32, WorkflowError> {
    Ok(ctx.activity(gated, number).await?)
}

#[workflow(version = 1)]
async fn many_hops(ctx: &WorkflowContext, number: u32) -> Result<u32, WorkflowError> {
    let mut sum = 0;
    for _ in 0..10 {
        sum += ctx.activity(quick, number).await?;
        let stepped: u32 = ctx.step("hop", || async { Ok(1) }).await?;
        sum += stepped;
        ctx.sleep(Duration::from_millis(5)).await?;
    }
    Ok(sum)
}

/// Sessions of this worker are not found dead within the time of a test: only a clean end lets others go on at once.
fn patient(world: &World) -> WorkerConfig {
    WorkerConfig {
        session_ttl: Duration::from_secs(60),
        ..world.worker_config()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_under_load_fails_no_attempt_and_another_worker_goes_on_at_once() {
    let world = World::new().await;
    let leaving = world
        .worker_with(registry![many_hops, quick], patient(&world))
        .await;
    let client = world.client().await;
    let mut runs = Vec::new();
    for number in 0..40 {
        runs.push(
            client
                .start(many_hops, number)
                .key(format!("{number}"))
                .await
                .unwrap(),
        );
    }
    world
        .until_event(runs[0].run_id(), "activity_completed")
        .await;
    let staying = world
        .worker_with(registry![many_hops, quick], patient(&world))
        .await;
    let since = Instant::now();
    let stopped = leaving.stop().await;
    assert_eq!(stopped, Drained::default());
    for (number, run) in (0..).zip(&runs) {
        assert_eq!(
            run.result_within(Duration::from_secs(20)).await.unwrap(),
            10 * (number + 1)
        );
        assert_eq!(world.attempts(run.run_id()).await, []);
    }
    assert!(
        since.elapsed() < Duration::from_secs(20),
        "it took {:?}",
        since.elapsed()
    );
    assert_eq!(
        leaving.stop().await,
        stopped,
        "a stop may be asked for again"
    );
    world.finish([leaving, staying]).await;
}

/// The run has left for another worker by the time its activity ends: the result still arrives, through the mailbox.
#[tokio::test(flavor = "multi_thread")]
async fn an_activity_that_ends_while_its_worker_stops_counts() {
    for _ in 0..5 {
        let world = World::new().await;
        let gate = Arc::new(Gate::new());
        let config = WorkerConfig {
            stop_timeout: Duration::from_millis(100),
            ..patient(&world)
        };
        let leaving = world
            .worker_with(
                registry![through_the_gate, gated].state(Arc::clone(&gate)),
                config,
            )
            .await;
        let client = world.client().await;
        let mut runs = Vec::new();
        for number in 0..8 {
            runs.push(
                client
                    .start(through_the_gate, number)
                    .key(format!("{number}"))
                    .await
                    .unwrap(),
            );
        }
        gate.until_waiting(8).await;
        let staying = world
            .worker_with(registry![through_the_gate], patient(&world))
            .await;
        let stopping = async { leaving.stop().await };
        let leave = async {
            for run in &runs {
                let look = || async {
                    run.get()
                        .await
                        .unwrap()
                        .worker
                        .filter(|_| staying.residents() == 8)
                };
                until("the runs are with the other worker", look).await;
            }
            gate.open.add_permits(8);
        };
        let (stopped, ()) = tokio::join!(stopping, leave);
        assert_eq!(stopped.activities_handed_back, 0);
        for (number, run) in (0..).zip(&runs) {
            let result = run.result_within(Duration::from_secs(20)).await;
            assert_eq!(
                result.unwrap_or_else(|e| panic!("run {number}: {e}")),
                number
            );
        }
        world.finish([leaving, staying]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_while_postgres_is_away_ends_in_bounded_time() {
    let mut postgres = PrivatePostgres::start(PostgresOptions {
        fsync: false,
        ..PostgresOptions::default()
    })
    .await
    .unwrap();
    let shared = continuum_tests::servers().await;
    let world = World::at(&postgres.url(), shared.nats.url());
    continuum_schema::migration::migrate(&world.database)
        .await
        .unwrap();
    let gate = Arc::new(Gate::new());
    let mut config = WorkerConfig {
        stop_timeout: Duration::from_millis(500),
        ..world.worker_config()
    };
    config.database.acquire_timeout = Duration::from_secs(1);
    let worker = world
        .worker_with(
            registry![through_the_gate, gated].state(Arc::clone(&gate)),
            config.clone(),
        )
        .await;
    let run = world
        .client()
        .await
        .start(through_the_gate, 7)
        .key("one")
        .await
        .unwrap();
    gate.until_waiting(1).await;
    postgres.kill().await;
    let since = Instant::now();
    worker.stop().await;
    assert!(
        since.elapsed() < Duration::from_secs(15),
        "the stop took {:?}",
        since.elapsed()
    );

    // The run is neither lost nor failed in another way than by the loss of its worker.
    postgres.restart().await.unwrap();
    let reachable = || async { world.database.ping().await.ok() };
    until("dead connections have left the pool", reachable).await;
    let second = Worker::start(registry![through_the_gate, gated].state(gate), config)
        .await
        .unwrap();
    until_ready(&second).await;
    world.until_state(run.run_id(), RunState::Failed).await;
    world.finish([second]).await;
}
