//! Named scenarios of a cluster: real worker processes on a Postgres and a NATS of their own, each behind a proxy to
//! either. What each is about, by the cases of the issue; the random mix of all of it is the soak.
//!
//! | scenario | test |
//! | --- | --- |
//! | dispatch race | [`of_many_runs_that_are_started_at_once_none_is_begun_twice`] |
//! | lease steal while the owner is stopped before its commit (C2) | [`an_append_that_arrives_after_its_run_was_taken_over_is_refused`]; in the middle of a step: `recovery::a_worker_that_was_halted_beyond_its_lease_ends_nothing_and_works_on` |
//! | only the database's traffic is cut (C1) | [`a_worker_without_postgres_drops_its_activity_before_another_takes_it`] |
//! | a halted holder of a singleton (C3) | `residents::a_holder_that_was_halted_beyond_its_lease_reaps_its_own_and_its_late_writes_are_refused` |
//! | kill -9 in the claim (C7) | [`claims_whose_worker_dies_in_the_middle_leave_nothing_behind`] |
//! | lost wake | [`a_link_that_was_cut_is_caught_up_with`] (A1), `signals::what_was_committed_and_not_told_is_found_by_polling`, `signals::a_signal_that_races_its_wait_is_never_lost` |
//! | a halted worker under load (A4) | [`a_halted_worker_delays_no_writer_and_holds_no_snapshot`] |
//! | cancel forwarded | [`a_cancel_reaches_an_owner_that_was_not_asked_and_does_not_hear`] |
//! | graceful hand-over under load (W1) | [`a_hundred_hand_overs_under_load_repeat_nothing_and_lose_nothing`] |
//! | rolling restart | [`a_rolling_restart_under_200_signals_a_second_loses_none_and_doubles_none`] |
//! | crash at each commit point, and before the wake | `commit_points::whatever_commit_point_a_worker_dies_at_another_finishes_what_it_began` |
//! | bus down at boot (A2) | `faults::a_worker_without_nats_works_by_polling_and_hears_again_when_nats_comes`, `faults::a_worker_that_starts_before_postgres_becomes_ready_by_itself` |
//! | clocks of workers (E1) | [`sleeps_are_right_though_the_clocks_of_workers_differ_by_twenty_minutes`] |
//! | broker restarts, lost consumer (N2) | [`signals_come_through_twenty_restarts_of_nats_and_a_deleted_consumer`] |
//! | a worker halted inside its commit (P11) | [`a_worker_that_is_halted_inside_its_transaction_holds_others_up_no_longer_than_the_limit`] |

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use async_nats::jetstream;
use continuum_bus::{Bus, BusConfig, SignalStream, Subjects};
use continuum_schema::Event;
use continuum_tests::cluster::load::{self, long, naps, sleeper, slow, tally, tangle};
use continuum_tests::cluster::{Cluster, ClusterOptions, Tally, Traffic, publish};
use continuum_tests::{
    Cut, Held, Left, PATIENCE, ProcessSettings, Proxy, Waits, carried_out, compare, serve, until,
};
use continuum_worker::{Client, ClientError, RunHandle};
use futures::future::join_all;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The test that is a worker process.
const PROCESS: &str = "cluster::worker_process";

/// After this a session may be taken over; see [`ClusterOptions::new`].
const TTL: Duration = Duration::from_millis(1_500);

/// Not a test: the program of the worker processes.
#[tokio::test(flavor = "multi_thread")]
async fn worker_process() {
    serve(load::registry()).await;
}

/// Waits until an effect of a run was carried out so often.
async fn until_carried_out(cluster: &Cluster, run_id: Uuid, effect: &str, times: usize) {
    until(
        &format!("{effect} is carried out {times} times"),
        async || {
            let notes = carried_out(cluster.ledger.path());
            let count = notes
                .iter()
                .filter(|n| n.0 == run_id && n.1 == effect)
                .count();
            (count >= times).then_some(())
        },
    )
    .await;
}

/// Lets traffic flow while something is done to the cluster, and compares everything afterwards.
async fn under_load(cluster: &Cluster, what: impl AsyncFnOnce()) -> Tally {
    let mut traffic = Traffic::new(cluster).await;
    let stop = CancellationToken::new();
    let doing = async {
        what().await;
        stop.cancel();
    };
    tokio::join!(doing, traffic.flow(stop.clone()));
    let tally = traffic.settle(cluster, Duration::from_secs(60)).await;
    println!("{tally:?}");
    assert!(tally.completed > 0 && tally.cancelled > 0);
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_runs_that_are_started_at_once_none_is_begun_twice() {
    let cluster = Cluster::start(&ClusterOptions::new(PROCESS, 4)).await;
    let client = cluster.client.clone();
    let runs = join_all((0..120).map(async |number| {
        let run = client.start(tangle, number).await.unwrap();
        run.signal("go", &run.run_id().to_string()).await.unwrap();
        run
    }))
    .await;
    let mut seen = HashMap::new();
    for run in &runs {
        seen.insert(run.run_id(), run.result_within(PATIENCE).await.unwrap());
    }
    let mut effects = HashMap::<Uuid, Vec<String>>::new();
    let mut workers = BTreeSet::new();
    for (run_id, effect, attempt, value) in carried_out(cluster.ledger.path()) {
        assert_eq!(attempt, 1, "run {run_id}: {effect} was tried again");
        effects.entry(run_id).or_default().push(effect);
        workers.insert(value.split('/').next().unwrap().to_owned());
    }
    assert_eq!(effects.len(), runs.len());
    for (run_id, mut effects) in effects {
        effects.sort_unstable();
        let each = [
            "charge", "first", "last", "left", "once", "right", "ship0", "ship1", "ship2",
        ];
        assert_eq!(effects, each, "run {run_id}");
    }
    assert!(workers.len() > 1, "there was no race: {workers:?}");
    cluster.finish().await;
}

/// The owner sends its append; the network holds it up, the process halts, another worker goes on from the journal, and
/// then both come back.
#[tokio::test(flavor = "multi_thread")]
async fn an_append_that_arrives_after_its_run_was_taken_over_is_refused() {
    let cluster = Cluster::new(&ClusterOptions::new(PROCESS, 2)).await;
    let mut owner = cluster.member(0).await;
    owner.boot();
    owner.session().await;
    let client = cluster.client.clone();
    let run = client.start(slow, ()).await.unwrap();
    until_carried_out(&cluster, run.run_id(), "slow", 1).await;
    owner.postgres.cut(Cut::ToServer);
    // Both effects have ended, and what tells of them is under way.
    until_carried_out(&cluster, run.run_id(), "slow", 2).await;
    until_carried_out(&cluster, run.run_id(), "work", 1).await;
    owner.process().pause();

    let mut other = cluster.member(1).await;
    other.boot();
    other.session().await;
    run.signal("go", &"go".to_owned()).await.unwrap();
    let (step, activity) = run.result_within(PATIENCE).await.unwrap();
    assert!(
        step.starts_with("w1.") && activity.starts_with("w1."),
        "{step} {activity}"
    );
    let history = cluster.world.history(run.run_id()).await;

    owner.postgres.forward();
    owner.process().resume();
    owner.session().await;
    assert_eq!(cluster.world.history(run.run_id()).await, history);
    // Alone again, it works on.
    other.kill().await;
    let after = client.start(long, 1).await.unwrap();
    let value = after.result_within(PATIENCE).await.unwrap();
    assert!(value.starts_with("w0."), "{value}");
    drop((owner, other));
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_postgres_drops_its_activity_before_another_takes_it() {
    let cluster = Cluster::new(&ClusterOptions::new(PROCESS, 2)).await;
    let mut owner = cluster.member(0).await;
    owner.boot();
    let session = owner.session().await;
    let client = cluster.client.clone();
    // Longer than the worker trusts its session.
    let run = client.start(long, 2_500).await.unwrap();
    cluster
        .world
        .until_event(run.run_id(), "activity_scheduled")
        .await;
    owner.postgres.hole();
    let mut other = cluster.member(1).await;
    other.boot();
    other.session().await;
    tokio::time::sleep(TTL * 2).await;
    owner.postgres.forward();
    owner.session().await;
    let value = run.result_within(PATIENCE).await.unwrap();
    let notes = carried_out(cluster.ledger.path());
    let [(_, _, 2, ended)] = &notes[..] else {
        panic!("its worker was told to stop its copy: {notes:?}")
    };
    assert_eq!(*ended, value);
    assert_eq!(
        cluster.world.attempts(run.run_id()).await,
        [(1, 1, "unknown".to_owned())]
    );
    let reason = cluster.world.close_reason(session).await;
    // Nobody answers for it once it has given up.
    assert!(reason.is_some());
    drop((owner, other));
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_whose_worker_dies_in_the_middle_leave_nothing_behind() {
    const DEATHS: usize = 15;
    let given = std::env::var("CONTINUUM_SEED").ok();
    let seed = given.map_or(20_261_201, |seed| seed.parse().unwrap());
    println!("CONTINUUM_SEED={seed}");
    let options = ClusterOptions {
        settings: |settings| {
            settings.session_ttl = TTL;
            // Cold at once, so that each of a run's turns begins with a claim.
            settings.idle_max = Duration::from_millis(1);
            settings.poll_interval = Duration::from_millis(50);
            settings.crashes_max = 1_000;
        },
        ..ClusterOptions::new(PROCESS, 4)
    };
    let cluster = Cluster::new(&options).await;
    under_load(&cluster, async || {
        let dying = (0..cluster.size()).map(async |number| {
            let mut chance = ChaCha8Rng::seed_from_u64(seed + number as u64);
            let mut member = cluster.member(number).await;
            for _ in 0..DEATHS {
                let statement = ["lease/claim", "activity/claim"][chance.random_range(0..2)];
                let when = ["before", "after"][chance.random_range(0..2)];
                let call = chance.random_range(1..20);
                let point = format!("{statement}:{when}:{call}");
                member.boot_with(Some(("CONTINUUM_FAULT", &point)));
                until(&format!("it dies at {point}"), async || {
                    (!member.is_up()).then_some(())
                })
                .await;
            }
            member.boot();
        });
        join_all(dying).await;
    })
    .await;
    cluster.finish().await;
}

/// Runs that the first worker owns and that wait for a signal.
async fn parked(client: &Client, count: u64) -> Vec<RunHandle<Vec<String>>> {
    let starts = (0..count).map(async |_| client.start(tally, 1).await.unwrap());
    let runs = join_all(starts).await;
    for run in &runs {
        let look = async || {
            let run = run.get().await.unwrap();
            let is_begun = run.version_hash.is_some();
            (run.worker? == "w0.1" && is_begun).then_some(())
        };
        until("the first worker holds the run", look).await;
    }
    runs
}

/// What breaks a link.
type Break = fn(&Proxy);

#[tokio::test(flavor = "multi_thread")]
async fn a_link_that_was_cut_is_caught_up_with() {
    const CUT: Duration = Duration::from_secs(5);
    let options = ClusterOptions {
        settings: |settings| settings.catch_up_interval = Duration::from_secs(300),
        ..ClusterOptions::new(PROCESS, 2)
    };
    let cluster = Cluster::new(&options).await;
    cluster.member(0).await.boot();
    cluster.member(0).await.session().await;
    let client = cluster.client.clone();
    let cuts: [(&str, Break); 3] = [
        ("both ways", Proxy::hole),
        ("one way", |proxy| proxy.cut(Cut::FromServer)),
        ("refused", Proxy::refuse),
    ];
    for (how, cut) in cuts {
        let runs = parked(&client, 10).await;
        cut(&cluster.member(0).await.nats);
        for run in &runs {
            run.signal("item", &how.to_owned()).await.unwrap();
        }
        tokio::time::sleep(CUT).await;
        cluster.member(0).await.nats.forward();
        // A reconnect after 4 s at most, then a pass after 5 s at most; the next regular pass would be too late.
        for run in runs {
            assert_eq!(run.result_within(PATIENCE).await.unwrap(), [how]);
        }
    }
    let runs = parked(&client, 10).await;
    cluster.nats.lock().await.kill().await;
    let signals = runs.iter().map(async |run| {
        let signal = run.signal("item", &"restart".to_owned());
        signal.await.unwrap();
    });
    join_all(signals).await;
    cluster.nats.lock().await.restart().await.unwrap();
    for run in runs {
        assert_eq!(run.result_within(PATIENCE).await.unwrap(), ["restart"]);
    }
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_halted_worker_delays_no_writer_and_holds_no_snapshot() {
    const HALT: Duration = Duration::from_secs(8);
    let cluster = Cluster::start(&ClusterOptions::new(PROCESS, 3)).await;
    let client = cluster.client.clone();
    under_load(&cluster, async || {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cluster.member(0).await.process().pause();
        let since = Instant::now();
        let mut oldest = 0.0_f64;
        while since.elapsed() < HALT {
            oldest = oldest.max(cluster.world.oldest_transaction().await);
            let run = client.start(long, 1).await.unwrap();
            // It may have ended by now.
            drop(run.signal("item", &0).await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster.member(0).await.process().resume();
        assert!(
            oldest < 4.0,
            "a transaction was open for {oldest} s of {HALT:?}"
        );
    })
    .await;
    cluster.finish().await;
}

/// The worker that is asked is not the owner, and the owner hears nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_reaches_an_owner_that_was_not_asked_and_does_not_hear() {
    let cluster = Cluster::new(&ClusterOptions::new(PROCESS, 2)).await;
    cluster.member(0).await.boot();
    cluster.member(0).await.session().await;
    let client = cluster.client.clone();
    let run = client.start(sleeper, ()).await.unwrap();
    cluster
        .world
        .until_event(run.run_id(), "timer_started")
        .await;
    cluster.member(0).await.nats.hole();
    cluster.member(1).await.boot();
    cluster.member(1).await.session().await;
    let foreign = async_nats::connect(cluster.world.nats_url()).await.unwrap();
    let subject = format!("continuum.{}.api.cancel", cluster.world.instance);
    let body = serde_json::json!({ "run_id": run.run_id(), "reason": "enough" }).to_string();
    // Some requests go to the owner, which is deaf.
    let asked = async || {
        let asking = foreign.request(subject.clone(), body.clone().into());
        let answer = tokio::time::timeout(Duration::from_secs(1), asking).await;
        let answer = answer.ok()?.ok()?;
        serde_json::from_slice::<serde_json::Value>(&answer.payload)
            .unwrap()
            .get("cancel")
            .cloned()
    };
    until("the other worker takes the request", asked).await;
    let ended = run.result_within(PATIENCE).await.unwrap_err();
    assert!(matches!(&ended, ClientError::Cancelled(why) if why == "enough"));
    let notes = carried_out(cluster.ledger.path());
    let [(_, effect, 1, _)] = &notes[..] else {
        panic!("it cleans up once: {notes:?}")
    };
    assert_eq!(effect, "clean");
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_hand_overs_under_load_repeat_nothing_and_lose_nothing() {
    const ROUNDS: usize = 100;
    let options = ClusterOptions {
        // Nobody is taken for dead: only a clean end lets others go on.
        settings: |settings| settings.session_ttl = Duration::from_secs(60),
        ..ClusterOptions::new(PROCESS, 4)
    };
    let cluster = Cluster::start(&options).await;
    let clean = Left {
        is_clean: true,
        handed_back: 0,
    };
    // Two leave at a time, and two stay.
    let hand_over = async |lane: usize| {
        for round in 0..ROUNDS / 2 {
            let mut member = cluster.member(lane * 2 + round % 2).await;
            assert_eq!(member.leave().await, clean, "round {round}");
            member.boot();
            member.session().await;
        }
    };
    let tally = under_load(&cluster, async || {
        tokio::join!(hand_over(0), hand_over(1));
    })
    .await;
    assert_eq!(tally.repeated, 0, "an effect was carried out twice");
    cluster.finish().await;
}

/// The stream of signals, as any program reaches it.
async fn stream(cluster: &Cluster) -> (Bus, SignalStream) {
    let config = BusConfig::new([cluster.world.nats_url().to_owned()]);
    let settings = config.signals.clone();
    let bus = Bus::connect(config).await.unwrap();
    let stream = bus.signals(&Subjects::new(&cluster.world.instance), &settings);
    (bus, stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_under_200_signals_a_second_loses_none_and_doubles_none() {
    const RUNS: u64 = 40;
    const EACH: u64 = 50;
    let cluster = Cluster::start(&ClusterOptions::new(PROCESS, 5)).await;
    let client = cluster.client.clone();
    let runs = join_all((0..RUNS).map(async |_| client.start(tally, EACH).await.unwrap())).await;
    let (bus, stream) = stream(&cluster).await;
    let sending = async {
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        let mut sent = JoinSet::new();
        for number in 0..EACH {
            for run in &runs {
                tick.tick().await;
                let (stream, run_id) = (stream.clone(), run.run_id());
                sent.spawn(async move {
                    publish(&stream, run_id, "item", &format!("{run_id}/{number}")).await;
                });
            }
        }
        sent.join_all().await;
    };
    let rolling = async {
        for number in 0..cluster.size() {
            let mut member = cluster.member(number).await;
            let left = member.leave().await;
            assert!(left.is_clean, "{left:?}");
            member.boot();
            member.session().await;
        }
    };
    tokio::join!(sending, rolling);
    for run in &runs {
        let run_id = run.run_id();
        let items = run.result_within(PATIENCE).await.unwrap();
        let taken: BTreeSet<&String> = items.iter().collect();
        assert_eq!(
            (items.len() as u64, taken.len() as u64),
            (EACH, EACH),
            "run {run_id}"
        );
        let history = cluster.world.history(run_id).await;
        let notes = carried_out(cluster.ledger.path());
        let notes = notes.into_iter().filter(|note| note.0 == run_id);
        compare(
            run_id,
            &[],
            &history,
            &notes.map(|(_, e, a, v)| (e, a, v)).collect(),
        );
    }
    bus.close().await;
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sleeps_are_right_though_the_clocks_of_workers_differ_by_twenty_minutes() {
    const NAP: Duration = Duration::from_secs(2);
    const LATE_MAX: Duration = Duration::from_secs(5);
    let options = ClusterOptions {
        settings: |settings| settings.idle_max = Duration::from_millis(1),
        ..ClusterOptions::new(PROCESS, 3)
    };
    let cluster = Cluster::new(&options).await;
    for (number, minutes) in [(0, -10), (1, 0), (2, 10)] {
        cluster.member(number).await.clock.set(minutes * 60);
    }
    let client = cluster.client.clone();
    let millis = u64::try_from(NAP.as_millis()).unwrap();
    // One arms the timers and leaves; another, twenty minutes apart, fires them.
    for (arms, fires) in [(0, 2), (2, 0)] {
        let mut first = cluster.member(arms).await;
        first.boot();
        first.session().await;
        let since = Instant::now();
        let runs = join_all((0..10).map(async |_| client.start(naps, (1, millis)).await.unwrap()));
        let runs = runs.await;
        for run in &runs {
            cluster
                .world
                .until_event(run.run_id(), "timer_started")
                .await;
        }
        let armed = Instant::now();
        assert!(first.leave().await.is_clean);
        cluster.member(fires).await.boot();
        for run in runs {
            run.result_within(PATIENCE).await.unwrap();
            assert!(since.elapsed() >= NAP, "it slept {:?}", since.elapsed());
            assert!(armed.elapsed() < NAP + LATE_MAX, "{:?}", armed.elapsed());
        }
        cluster.member(fires).await.leave().await;
    }
    // All together, timer after timer.
    for number in 0..3 {
        cluster.member(number).await.boot();
        cluster.member(number).await.session().await;
    }
    let runs = (0..30).map(async |_| {
        let since = Instant::now();
        let run = client.start(naps, (4, 500)).await.unwrap();
        run.result_within(PATIENCE).await.unwrap();
        since.elapsed()
    });
    for slept in join_all(runs).await {
        assert!(slept >= NAP && slept < NAP + LATE_MAX, "{slept:?}");
    }
    cluster.finish().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_come_through_twenty_restarts_of_nats_and_a_deleted_consumer() {
    const RESTARTS: u64 = 20;
    let cluster = Cluster::start(&ClusterOptions::new(PROCESS, 2)).await;
    let client = cluster.client.clone();
    let run = client.start(tally, RESTARTS + 1).await.unwrap();
    let received = async |count: u64| {
        until(&format!("{count} signals are received"), async || {
            let history = cluster.world.history(run.run_id()).await;
            let signals = history
                .iter()
                .filter(|event| matches!(event, Event::SignalReceived { .. }));
            (signals.count() as u64 == count).then_some(())
        })
        .await;
    };
    let (bus, stream) = stream(&cluster).await;
    for number in 0..RESTARTS {
        let mut nats = cluster.nats.lock().await;
        if number % 2 == 0 {
            nats.kill().await;
        }
        nats.restart().await.unwrap();
        publish(&stream, run.run_id(), "item", &number.to_string()).await;
        received(number + 1).await;
    }
    let foreign = jetstream::new(async_nats::connect(cluster.world.nats_url()).await.unwrap());
    let name = Subjects::new(&cluster.world.instance).signal_stream();
    let signals = foreign.get_stream(name).await.unwrap();
    let name = futures::StreamExt::next(&mut signals.consumer_names()).await;
    let name = name.expect("there is a consumer").unwrap();
    let before = signals.consumer_info(&name).await.unwrap().created;
    // The server may say that it could not remove the files of a consumer that it deleted.
    drop(signals.delete_consumer(&name).await);
    until("the workers make another one", async || {
        let now = signals.consumer_info(&name).await.ok()?;
        (now.created != before).then_some(())
    })
    .await;
    publish(&stream, run.run_id(), "item", "after").await;
    let items = run.result_within(PATIENCE).await.unwrap();
    assert_eq!(items.len() as u64, RESTARTS + 1);
    bus.close().await;
    cluster.finish().await;
}

/// Only behind a pooler is there more than one round trip in a transaction, and so a moment to be halted in.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_halted_inside_its_transaction_holds_others_up_no_longer_than_the_limit() {
    const LIMIT: Duration = Duration::from_secs(2);
    // Taken for dead meanwhile, and not.
    let settings: [fn(&mut ProcessSettings); 2] = [
        |settings| settings.session_ttl = TTL,
        |settings| settings.session_ttl = Duration::from_secs(60),
    ];
    for (taken_over, settings) in [true, false].into_iter().zip(settings) {
        let options = ClusterOptions {
            settings,
            ..ClusterOptions::new(PROCESS, 2)
        };
        let cluster = Cluster::new(&options).await;
        for number in 0..2 {
            let mut member = cluster.member(number).await;
            member.settings.statement_timeout = LIMIT;
            member.settings.is_pooled = true;
        }
        let mut halted = cluster.member(0).await;
        halted.boot();
        halted.session().await;
        let run = cluster.client.start(slow, ()).await.unwrap();
        until_carried_out(&cluster, run.run_id(), "slow", 1).await;
        let next = cluster.world.history(run.run_id()).await.len() + 1;
        let mut holder = Held::begin(&cluster.world).await;
        holder
            .take_position(run.run_id(), i32::try_from(next).unwrap())
            .await;
        // Its append waits for the position, with everything locked that an append locks.
        Waits::new(&cluster.world)
            .await
            .behind(holder.pid(), 1)
            .await;
        halted.process().pause();
        holder.roll_back().await;
        let since = Instant::now();

        let mut other = cluster.member(1).await;
        other.boot();
        other.session().await;
        run.signal("go", &"go".to_owned()).await.unwrap();
        if taken_over {
            let (step, _) = run.result_within(PATIENCE).await.unwrap();
            assert!(step.starts_with("w1."), "{step}");
            let bound = LIMIT + TTL + Duration::from_secs(5);
            let waited = since.elapsed();
            assert!(waited < bound, "others waited for {waited:?}");
        }
        until("the server ends the transaction", async || {
            let oldest = cluster.world.oldest_transaction().await;
            // One limit for its statement, one for its silence.
            let limit = LIMIT.as_secs_f64() * 2.0 + 1.0;
            assert!(oldest < limit, "it is open for {oldest} s");
            (since.elapsed() > LIMIT && oldest < 1.0).then_some(())
        })
        .await;
        halted.process().resume();
        if !taken_over {
            // Its append was rolled back, and is sent again: that the server hung up is no fault of the run.
            let (step, _) = run.result_within(PATIENCE).await.unwrap();
            assert!(step.starts_with("w0."), "{step}");
        }
        drop((halted, other));
        cluster.finish().await;
    }
}
