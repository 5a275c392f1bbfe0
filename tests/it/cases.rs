//! Faults that users of other systems reported, as claims about this one. Each test names its case.

use std::collections::HashSet;
use std::future::IntoFuture as _;
use std::time::Duration;

use continuum_bus::{Bus, BusConfig, BusStatus, ContentType, SignalStream, Subjects};
use continuum_schema::activity::{self, Attempt, Completion};
use continuum_schema::event::Outcome;
use continuum_schema::journal::AppendOutcome;
use continuum_schema::lease::{self, ClaimKey};
use continuum_schema::run::{self, RunState, Start, StartOutcome};
use continuum_schema::{DatabaseConfig, Event, Name, Payload, migration, session};
use continuum_tests::{PATIENCE, ProcessSettings, WorkerProcess, World, serve, until};
use continuum_worker::dev::{NatsOptions, PrivateNats};
use continuum_worker::prelude::*;
use continuum_worker::{BusSource, Client, Limits, Registry, RunHandle, WorkerConfig};
use futures::StreamExt as _;
use futures::future::join_all;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tempfile::NamedTempFile;

use crate::interleavings::{KEY, PIN, Stage, schedule, step};

// ---- claims --------------------------------------------------------------------------------------------------------

/// A6: whoever loses a candidate to another claimer takes the next one, and "nothing there" means that.
#[tokio::test(flavor = "multi_thread")]
async fn ten_claimers_get_ten_runs_in_each_of_200_rounds_and_empty_means_empty() {
    const CLAIMERS: usize = 10;
    let stage = Stage::new().await;
    let database = &stage.world.database;
    let sessions = join_all((0..CLAIMERS).map(|_| stage.session())).await;
    let keys = [KEY, PIN].map(|key| ClaimKey {
        key: key.into(),
        pin: PIN.into(),
    });
    let one = Start {
        namespace: "default".into(),
        workflow: KEY.into(),
        key: None,
        input: Payload::unit(),
        trace_context: None,
    };
    for round in 0..200 {
        let started = run::start(database, &vec![one.clone(); CLAIMERS]).await;
        let started: HashSet<Uuid> = started
            .unwrap()
            .into_iter()
            .map(|outcome| match outcome {
                StartOutcome::Started(run_id) => run_id,
                other => panic!("{other:?}"),
            })
            .collect();
        let claims = sessions
            .iter()
            .map(|session| lease::claim(database, *session, &keys, 1, 0));
        let claimed: HashSet<Uuid> = join_all(claims)
            .await
            .into_iter()
            .flat_map(|claimed| claimed.unwrap())
            .map(|run| run.lease.run_id)
            .collect();
        assert_eq!(claimed, started, "round {round}");
        let late = lease::claim(database, sessions[round % CLAIMERS], &keys, 1, 0).await;
        assert!(late.unwrap().is_empty(), "round {round}");
    }
    stage.finish().await;
}

/// C4: how long a session has been silent is no question to an append or a completion. Both are taken as long as the
/// lease and the attempt are the session's, and not a moment longer.
#[tokio::test]
async fn a_silent_session_may_end_what_it_holds_until_it_is_taken_from_it() {
    for (silent, closed, taken) in [
        (false, false, false),
        (true, false, false),
        (true, true, false),
        (true, true, true),
    ] {
        let stage = Stage::new().await;
        let database = &stage.world.database;
        let (session, lease) = stage.held_run().await;
        assert_eq!(
            stage.append(session, schedule(lease, 2)).await,
            AppendOutcome::Committed
        );
        let attempt = Attempt {
            run_id: lease.run_id,
            effect: 1,
            attempt: 1,
        };
        if silent {
            // Two looks of a watcher see the same beat: the TTL is over, and anybody may close the session.
            let beats = [
                session::watch(database).await.unwrap(),
                session::watch(database).await.unwrap(),
            ];
            assert_eq!(beats[0], beats[1]);
            if closed {
                let beat = beats[0].iter().find(|(id, _)| *id == session).unwrap().1;
                assert!(
                    session::close(database, session, Some(beat), "silent")
                        .await
                        .unwrap()
                );
            }
        } else {
            session::beat(database, session).await.unwrap();
        }
        if taken {
            assert_eq!(lease::sweep(database, 10, 20).await.unwrap(), 1);
            let lost = activity::lost(database, 10).await.unwrap();
            assert_eq!(lost.len(), 1);
            assert!(
                activity::retry(
                    database,
                    session,
                    attempt,
                    &activity::AttemptEnd::Unknown,
                    0
                )
                .await
                .unwrap()
            );
        }
        let completion = Completion {
            attempt,
            event: Event::ActivityCompleted {
                effect: 1,
                attempt: 1,
                outcome: Outcome::Ok(Payload::unit()),
            },
            result: None,
        };
        let completed = activity::complete(database, session, &[completion])
            .await
            .unwrap();
        assert_eq!(completed[0].is_some(), !taken, "{silent} {closed} {taken}");
        let appended = stage.append(session, step(lease, 3, "late")).await;
        let expected = if taken {
            AppendOutcome::Refused
        } else {
            AppendOutcome::Committed
        };
        assert_eq!(appended, expected, "{silent} {closed} {taken}");
        stage.finish().await;
    }
}

#[workflow(version = 1)]
async fn brief(ctx: &WorkflowContext, number: u64) -> Result<u64, WorkflowError> {
    Ok(ctx
        .step("double", move || async move { Ok(number * 2) })
        .await?)
}

/// C5: a run may be taken up by anybody before its start has answered; the start answers with it all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_starts_under_eight_polling_workers_answer_with_their_run_and_each_has_one_owner()
 {
    let world = World::new().await;
    let config = || WorkerConfig {
        poll_interval: Duration::from_millis(50),
        session_ttl: Duration::from_secs(10),
        database: DatabaseConfig {
            connections: 3,
            ..world.database_config()
        },
        ..world.worker_config()
    };
    let workers = (0..8).map(|_| world.worker_with(registry![brief], config()));
    let workers = join_all(workers).await;
    let client = world.client().await;
    // Each key is started twice at the same time: one starts, the other is told of the same run.
    let starts = (0..1_000_u64).map(|n| {
        let number = n / 2;
        let start = client.start(brief, number).key(format!("start-{number}"));
        async move { (number, start.await.unwrap()) }
    });
    let runs = join_all(starts).await;
    let results = runs.iter().map(async |(number, run)| {
        assert_eq!(run.result_within(PATIENCE).await.unwrap(), number * 2);
        run.run_id()
    });
    let ids: HashSet<Uuid> = join_all(results).await.into_iter().collect();
    assert_eq!(ids.len(), 500);
    assert_eq!(world.runs().await, 500);
    for run_id in ids {
        let history = world.history(run_id).await;
        let names: Vec<_> = history.iter().map(Event::name).collect();
        assert_eq!(
            names,
            ["started", "step_completed", "completed"],
            "{run_id}"
        );
    }
    world.finish(workers).await;
}

// ---- activities ----------------------------------------------------------------------------------------------------

#[activity(queue = "long", timeout = "60s", retry(max_attempts = 1))]
async fn outlast(ctx: ActivityContext, time: Duration) -> Result<u32, ActivityError> {
    tokio::time::sleep(time).await;
    Ok(ctx.attempt())
}

#[workflow(version = 1)]
async fn call_outlast(ctx: &WorkflowContext, time: Duration) -> Result<u32, WorkflowError> {
    Ok(ctx.activity(outlast, time).await?)
}

/// C6: what an activity is held by is its worker's heartbeat, and the author has no part in it.
#[tokio::test(flavor = "multi_thread")]
async fn an_activity_of_four_session_ttls_that_never_heartbeats_commits_its_only_attempt() {
    let world = World::new().await;
    let worker = world.worker(registry![call_outlast, outlast]).await;
    // It would take over what it could.
    let rival = world.worker(registry![call_outlast, outlast]).await;
    let session = worker.status().borrow().session;
    let time = world.worker_config().session_ttl * 4;
    let client = world.client().await;
    let run = client.start(call_outlast, time).await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), 1);
    assert_eq!(world.attempts(run.run_id()).await, []);
    assert_eq!(worker.status().borrow().session, session);
    world.finish([worker, rival]).await;
}

// ---- a timer against a signal --------------------------------------------------------------------------------------

/// The test that is a worker process.
const PROCESS: &str = "cases::toss_process";

/// Which side won, as the first execution noted it and as the last one saw it.
#[workflow(version = 1)]
async fn toss(ctx: &WorkflowContext, timer: Duration) -> Result<(bool, bool), WorkflowError> {
    let heads: Option<()> = ctx.signal::<()>("heads").timeout(timer).await?;
    let seen = heads.is_some();
    let noted: bool = ctx.step("note", move || async move { Ok(seen) }).await?;
    ctx.signal::<()>("end").await?;
    Ok((noted, seen))
}

fn toss_registry() -> Registry {
    registry![toss]
}

/// Not a test: the program of the worker processes.
#[tokio::test(flavor = "multi_thread")]
async fn toss_process() {
    serve(toss_registry()).await;
}

/// Ends the runs, and compares what each noted with what its replays saw. Both sides have won somewhere.
async fn end_all(runs: &[RunHandle<(bool, bool)>]) {
    for run in runs {
        run.signal("end", &()).await.unwrap();
    }
    let mut sides = HashSet::new();
    for run in runs {
        let (noted, seen) = run.result_within(PATIENCE).await.unwrap();
        assert_eq!(noted, seen, "run {}", run.run_id());
        sides.insert(seen);
    }
    assert_eq!(sides.len(), 2);
}

/// D8, evicted: each run leaves memory as soon as it waits and is replayed for whatever comes next.
#[tokio::test(flavor = "multi_thread")]
async fn a_timer_against_a_signal_ends_one_way_in_500_rounds_with_eviction() {
    let world = World::new().await;
    let config = WorkerConfig {
        idle_max: Duration::from_millis(1),
        ..world.worker_config()
    };
    let worker = world.worker_with(toss_registry(), config).await;
    let client = world.client().await;
    // A hundred at a time: the run begins at once, and so its timer is where the signal expects it.
    let rounds = (0..500_u64).map(|n| {
        let client = client.clone();
        async move {
            let (timer, signal) = (20 + n % 50, n * 7 % 60);
            let run = client
                .start(toss, Duration::from_millis(timer))
                .await
                .unwrap();
            tokio::time::sleep(Duration::from_millis(signal)).await;
            run.signal("heads", &()).await.unwrap();
            run
        }
    });
    let rounds = futures::stream::iter(rounds).buffered(100);
    let mut runs: Vec<RunHandle<(bool, bool)>> = rounds.collect().await;
    // Whatever the machine's speed, one run has a timer that fires alone and one has none to speak of.
    let alone = client.start(toss, Duration::from_millis(1)).await.unwrap();
    world.until_event(alone.run_id(), "step_completed").await;
    let unhurried = client.start(toss, PATIENCE * 100).await.unwrap();
    unhurried.signal("heads", &()).await.unwrap();
    runs.extend([alone, unhurried]);
    for run in &runs {
        world.until_event(run.run_id(), "step_completed").await;
        world.until_state(run.run_id(), RunState::Waiting).await;
    }
    assert_eq!(worker.residents(), 0);
    end_all(&runs).await;
    world.finish([worker]).await;
}

/// D8, killed: timer and signal are both due when a worker takes the run up, and it dies at any moment after.
#[tokio::test(flavor = "multi_thread")]
async fn a_timer_against_a_signal_ends_one_way_when_both_are_due_and_the_worker_is_killed() {
    const ROUNDS: u64 = 30;
    let world = World::new().await;
    let client = world.client().await;
    let log = NamedTempFile::new().unwrap();
    let mut chance = ChaCha8Rng::seed_from_u64(8);
    let worker = async |name: String| {
        let settings = ProcessSettings {
            idle_max: Duration::from_millis(1),
            session_ttl: Duration::from_secs(2),
            ..ProcessSettings::new(&world, name, log.path())
        };
        let mut process = WorkerProcess::start(PROCESS, &settings);
        process.session().await;
        process
    };
    let mut runs = Vec::new();
    let mut process = worker("first".into()).await;
    for round in 0..ROUNDS {
        // Some fire before the kill, some while nobody lives, some at about the time at which the next worker comes, and
        // one never.
        let timers = [
            Duration::from_millis(1),
            Duration::from_millis(chance.random_range(1..100)),
            Duration::from_millis(chance.random_range(100..300)),
            Duration::from_millis(chance.random_range(300..600)),
            PATIENCE * 100,
        ];
        let starts = timers.map(|timer| client.start(toss, timer).into_future());
        let started: Vec<_> = join_all(starts)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();
        for run in &started {
            let begun = || async { (!world.history(run.run_id()).await.is_empty()).then_some(()) };
            until("the run has begun", begun).await;
        }
        process.kill().await;
        for run in &started {
            run.signal("heads", &()).await.unwrap();
        }
        runs.extend(started);
        process = worker(format!("after-{round}")).await;
        tokio::time::sleep(Duration::from_millis(chance.random_range(0..30))).await;
    }
    end_all(&runs).await;
    process.kill().await;
    world.finish([]).await;
}

// ---- publishes that get lost ---------------------------------------------------------------------------------------

/// Waits for the signal `go`.
#[workflow(version = 1)]
async fn wait_for_go(ctx: &WorkflowContext, _input: ()) -> Result<u64, WorkflowError> {
    Ok(ctx.signal::<u64>("go").await?)
}

async fn beside_a_nats_of_its_own() -> (PrivateNats, World) {
    let nats = PrivateNats::start(NatsOptions::default()).await.unwrap();
    let servers = continuum_tests::servers().await;
    let world = World::at(&servers.postgres.url(), nats.url());
    migration::migrate(&world.database).await.unwrap();
    (nats, world)
}

async fn linked(world: &World) -> Bus {
    let bus = Bus::connect(BusConfig::new([world.nats_url()]))
        .await
        .unwrap();
    let mut status = bus.status();
    status
        .wait_for(BusStatus::is_connected)
        .await
        .map(drop)
        .unwrap();
    bus
}

/// N1, hints: the broker dies while they are on their way, or their program ends before they leave it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hint_that_never_left_its_program_costs_time_and_nothing_else() {
    let (mut nats, world) = beside_a_nats_of_its_own().await;
    let worker = world.worker(registry![wait_for_go, brief]).await;
    let bus = linked(&world).await;
    let client = Client::connect(
        &world.instance,
        world.database_config(),
        BusSource::Shared(bus.clone()),
        Limits::default(),
    );
    let client = client.await.unwrap();
    let waiting = client.start(wait_for_go, ()).await.unwrap();
    // It is in memory, so polling for runs to claim would never find its mail.
    world.until_state(waiting.run_id(), RunState::Running).await;
    nats.kill().await;
    waiting.signal("go", &5).await.unwrap();
    let started = client.start(brief, 4).await.unwrap();
    bus.close().await;
    drop(client);

    let observer = worker.client();
    let waiting = observer.run::<u64>(waiting.run_id());
    assert_eq!(waiting.result_within(PATIENCE).await.unwrap(), 5);
    let started = observer.run::<u64>(started.run_id());
    assert_eq!(started.result_within(PATIENCE).await.unwrap(), 8);
    nats.restart().await.unwrap();
    world.finish([worker]).await;
}

async fn publish(stream: &SignalStream, run_id: Uuid, id: &str) -> bool {
    let go = Name::new("go").unwrap();
    let stored = stream.publish(run_id, &go, "7".into(), &ContentType::Json, Some(id));
    stored.await.is_ok()
}

/// N1, signals: a publish says "stored" when the broker has said so and not before, and what is stored outlives the
/// broker and the program that published it.
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_was_published_is_stored_and_one_that_was_not_says_so() {
    let (mut nats, world) = beside_a_nats_of_its_own().await;
    let first = world.worker(registry![wait_for_go]).await;
    let client = world.client().await;
    let acknowledged = client.start(wait_for_go, ()).await.unwrap();
    let unanswered = client.start(wait_for_go, ()).await.unwrap();
    for run in [&acknowledged, &unanswered] {
        world.until_state(run.run_id(), RunState::Running).await;
    }
    // Nobody ingests.
    first.stop().await;

    let bus = linked(&world).await;
    let settings = BusConfig::new([""; 0]).signals;
    let stream = bus.signals(&Subjects::new(&world.instance), &settings);
    assert!(publish(&stream, acknowledged.run_id(), "one").await);
    nats.kill().await;
    assert!(!publish(&stream, unanswered.run_id(), "two").await);
    bus.close().await;
    nats.restart().await.unwrap();

    let second = world.worker(registry![wait_for_go]).await;
    assert_eq!(acknowledged.result_within(PATIENCE).await.unwrap(), 7);
    let bus = linked(&world).await;
    let stream = bus.signals(&Subjects::new(&world.instance), &settings);
    assert!(publish(&stream, unanswered.run_id(), "two").await);
    assert_eq!(unanswered.result_within(PATIENCE).await.unwrap(), 7);
    bus.close().await;
    world.finish([first, second]).await;
}
