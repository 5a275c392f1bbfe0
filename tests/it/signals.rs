//! Signals: from programs that know only NATS, from clients, from a caller's own transaction; early, late, twice, wrong.

use std::time::Instant;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, Context};
use bytes::Bytes;
use continuum_bus::Subjects;
use continuum_schema::mailbox::{self, RejectedRow};
use continuum_schema::run::RunState;
use continuum_schema::{Name, Payload};
use continuum_tests::{PATIENCE, World, until, until_ready};
use continuum_worker::prelude::*;
use continuum_worker::{ClientError, Limits, Signalled, WorkerConfig};
use futures::StreamExt as _;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const NOBODY: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0002);

/// Receives `count` signals named `item`. Its first event says that it waits.
#[workflow(version = 1)]
async fn collect(ctx: &WorkflowContext, count: usize) -> Result<Vec<String>, WorkflowError> {
    let _: () = ctx.step("waits", || async { Ok(()) }).await?;
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(ctx.signal::<String>("item").await?);
    }
    Ok(items)
}

/// Gets to its wait after `micros`, or a little later.
#[workflow(version = 1)]
async fn wait_late(ctx: &WorkflowContext, micros: u64) -> Result<u64, WorkflowError> {
    let _: () = ctx
        .step("dawdle", move || async move {
            tokio::time::sleep(Duration::from_micros(micros)).await;
            Ok(())
        })
        .await?;
    Ok(ctx.signal::<u64>("go").await?)
}

/// A program that knows NATS and nothing of Continuum but its subjects.
struct Foreigner {
    jetstream: Context,
    subjects: Subjects,
}

impl Foreigner {
    /// Connects beside a worker that is ready, so the stream is there.
    async fn new(world: &World) -> Self {
        let client = async_nats::connect(world.nats_url()).await.unwrap();
        Self {
            jetstream: jetstream::new(client),
            subjects: Subjects::new(&world.instance),
        }
    }

    fn item(&self, run_id: Uuid) -> String {
        self.subjects.signal(run_id, &Name::new("item").unwrap())
    }

    /// Publishes, and waits until the server has stored it.
    async fn send(&self, subject: String, headers: &[(&str, &str)], body: impl Into<Bytes>) {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, *value);
        }
        let stored = self
            .jetstream
            .publish_with_headers(subject, map, body.into())
            .await
            .unwrap();
        stored.await.unwrap();
    }
}

/// Publishes bytes that no NATS client lets through.
async fn send_raw(world: &World, subject: &[u8], headers: &[u8], body: &[u8]) {
    let address = world.nats_url().trim_start_matches("nats://");
    let mut stream = TcpStream::connect(address).await.unwrap();
    let mut wire = b"CONNECT {\"verbose\":false,\"headers\":true}\r\nHPUB ".to_vec();
    wire.extend_from_slice(subject);
    wire.extend_from_slice(
        format!(" {} {}\r\n", headers.len(), headers.len() + body.len()).as_bytes(),
    );
    for part in [headers, body, b"\r\nPING\r\n"] {
        wire.extend_from_slice(part);
    }
    stream.write_all(&wire).await.unwrap();
    // The answer to a ping says that everything before it was taken.
    let mut answer = Vec::new();
    while !String::from_utf8_lossy(&answer).contains("PONG") {
        let read = stream.read_buf(&mut answer).await.unwrap();
        assert_ne!(
            read,
            0,
            "the server hung up: {}",
            String::from_utf8_lossy(&answer)
        );
    }
}

async fn rejected(world: &World) -> Vec<RejectedRow> {
    mailbox::rejected(&world.database, 1_000).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_program_signals_in_json_and_in_message_pack() {
    let world = World::new().await;
    let worker = world.worker(registry![collect]).await;
    let foreigner = Foreigner::new(&world).await;
    let run = world.client().await.start(collect, 4).await.unwrap();
    let subject = || foreigner.item(run.run_id());
    let packed = Payload::encode("packed").unwrap();
    foreigner.send(subject(), &[], "\"bare\"").await;
    foreigner
        .send(
            subject(),
            &[("Content-Type", "application/json")],
            "\"named \\u0000\"",
        )
        .await;
    foreigner
        .send(
            subject(),
            &[("Content-Type", "application/msgpack")],
            packed.body().to_vec(),
        )
        .await;
    foreigner
        .send(subject(), &[("Nats-Msg-Id", "once")], "\"identified\"")
        .await;
    let mut items = run.result_within(PATIENCE).await.unwrap();
    items.sort();
    assert_eq!(items, ["bare", "identified", "named \0", "packed"]);
    assert!(rejected(&world).await.is_empty());
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_message_is_rejected_once_with_its_reason_and_the_link_stays_up() {
    let world = World::new().await;
    let limits = Limits {
        payload_bytes_max: 4 << 10,
        turn_bytes_max: 16 << 10,
    };
    let config = WorkerConfig {
        limits,
        ..world.worker_config()
    };
    let worker = world.worker_with(registry![collect], config).await;
    let client = world.client().await;
    let foreigner = Foreigner::new(&world).await;
    let ended = client.start(collect, 0).await.unwrap();
    ended.result_within(PATIENCE).await.unwrap();
    let run = client.start(collect, 1).await.unwrap();

    let item = foreigner.item(run.run_id());
    let prefix = format!("continuum.{}.signal", world.instance);
    let long_id = "x".repeat(600);
    let long_id = [("Nats-Msg-Id", &*long_id)];
    let large = format!("\"{}\"", "x".repeat(limits.payload_bytes_max));
    let json = "\"x\"";
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let bad: Vec<(&str, String, Headers, Bytes)> = vec![
        (
            "text/plain",
            item.clone(),
            &[("Content-Type", "text/plain")],
            json.into(),
        ),
        ("JSON", item.clone(), &[], "{\"a\":".into()),
        ("JSON", item.clone(), &[], Bytes::from_static(b"\"\xff\"")),
        (
            "MessagePack",
            item.clone(),
            &[("Content-Type", "application/msgpack")],
            Bytes::from_static(b"\xc1"),
        ),
        ("the limit is 4096", item.clone(), &[], large.into()),
        ("the limit is 512", item.clone(), &long_id, json.into()),
        (
            "there is no such run",
            foreigner.item(NOBODY),
            &[],
            json.into(),
        ),
        (
            "the run has ended",
            foreigner.item(ended.run_id()),
            &[],
            json.into(),
        ),
        (
            "run id is not a UUID",
            format!("{prefix}.not-a-run.item"),
            &[],
            json.into(),
        ),
        (
            "no known shape",
            format!("{prefix}.{NOBODY}"),
            &[],
            json.into(),
        ),
        (
            "no known shape",
            format!("{prefix}.{NOBODY}.item.more"),
            &[],
            json.into(),
        ),
        (
            "allowed are A-Z a-z 0-9 _ -",
            format!("{prefix}.{NOBODY}.naïve"),
            &[],
            json.into(),
        ),
    ];
    for (_, subject, headers, body) in &bad {
        foreigner.send(subject.clone(), headers, body.clone()).await;
    }
    foreigner.send(item.clone(), &[], "\"good\"").await;
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), ["good"]);

    let look = || async {
        let rows = rejected(&world).await;
        (rows.len() >= bad.len()).then_some(rows)
    };
    let mut rows = until("every bad message is rejected", look).await;
    assert_eq!(rows.len(), bad.len(), "{rows:#?}");
    for (reason, subject, _, body) in &bad {
        let place = rows.iter().position(|row| {
            row.subject == *subject
                && row.reason.contains(reason)
                && row.size == i64::try_from(body.len()).unwrap()
        });
        let place = place.unwrap_or_else(|| panic!("no row for {subject}: {reason}: {rows:#?}"));
        rows.remove(place);
    }
    // Nothing of it comes again: what is left in the stream would.
    let look = || async {
        let mut stream = foreigner
            .jetstream
            .get_stream(foreigner.subjects.signal_stream())
            .await
            .unwrap();
        (stream.info().await.unwrap().state.messages == 0).then_some(())
    };
    until("the stream is empty", look).await;
    assert_eq!(rejected(&world).await.len(), bad.len());
    assert_eq!(worker.status().borrow().reasons, [""; 0]);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_no_client_can_read_are_rejected_and_stop_nobody() {
    let world = World::new().await;
    let worker = world.worker(registry![collect]).await;
    let foreigner = Foreigner::new(&world).await;
    let run = world.client().await.start(collect, 1).await.unwrap();
    let item = foreigner.item(run.run_id());
    let plain = b"NATS/1.0\r\nA: b\r\n\r\n".as_slice();
    send_raw(
        &world,
        item.as_bytes(),
        b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n\r\n",
        b"1",
    )
    .await;
    send_raw(
        &world,
        item.as_bytes(),
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"2",
    )
    .await;
    send_raw(
        &world,
        item.as_bytes(),
        b"NATS/1.0\r\nNats-Msg-Id: a\0b\r\n\r\n",
        b"3",
    )
    .await;
    let odd = [
        format!("continuum.{}.signal.", world.instance).as_bytes(),
        b"\xff\xfe.item",
    ]
    .concat();
    send_raw(&world, &odd, plain, b"4").await;
    send_raw(&world, item.as_bytes(), plain, b"\"good\"").await;
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), ["good"]);
    let look = || async {
        let rows = rejected(&world).await;
        (rows.len() >= 4).then_some(rows)
    };
    let rows = until("the four are rejected", look).await;
    assert_eq!(rows.len(), 4, "{rows:#?}");
    for reason in [
        "not UTF-8",
        "a line without a colon",
        "NUL",
        "the subject is not UTF-8",
    ] {
        assert!(
            rows.iter().any(|row| row.reason.contains(reason)),
            "{reason}: {rows:#?}"
        );
    }
    // The link of the worker is up, or up again.
    until_ready(&worker).await;
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_delivery_id_counts_once_whatever_its_road_and_whoever_is_alive() {
    let world = World::new().await;
    let client = world.client().await;
    let first = world.worker(registry![collect]).await;
    let run = client.start(collect, 2).await.unwrap();
    let send = |text: &str| run.signal("item", &text.to_owned()).delivery_id("id-1");
    assert_eq!(send("first").await.unwrap(), Signalled::Accepted);
    for _ in 0..9 {
        assert_eq!(send("again").await.unwrap(), Signalled::Duplicate);
    }
    world.until_event(run.run_id(), "signal_received").await;
    first.stop().await;
    for _ in 0..5 {
        assert_eq!(
            send("while nobody works").await.unwrap(),
            Signalled::Duplicate
        );
    }
    let second = world.worker(registry![collect]).await;
    let foreigner = Foreigner::new(&world).await;
    for _ in 0..5 {
        foreigner
            .send(
                foreigner.item(run.run_id()),
                &[("Nats-Msg-Id", "id-1")],
                "\"over NATS\"",
            )
            .await;
    }
    foreigner
        .send(
            foreigner.item(run.run_id()),
            &[("Nats-Msg-Id", "id-2")],
            "\"second\"",
        )
        .await;
    assert_eq!(
        run.result_within(PATIENCE).await.unwrap(),
        ["first", "second"]
    );
    // Case and name tell deliveries apart; that is no repetition.
    let other = client.start(collect, 2).await.unwrap();
    for id in ["id-1", "ID-1"] {
        let sent = other
            .signal("item", &id.to_owned())
            .delivery_id(id)
            .await
            .unwrap();
        assert_eq!(sent, Signalled::Accepted);
    }
    assert_eq!(
        other.result_within(PATIENCE).await.unwrap(),
        ["id-1", "ID-1"]
    );
    world.finish([first, second]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_comes_before_its_wait_is_received_and_one_after_the_end_is_refused() {
    let world = World::new().await;
    let client = world.client().await;
    let run = client.start(collect, 3).await.unwrap();
    for item in ["a", "b", "c"] {
        let signal = run.signal("item", &item.to_owned());
        signal.delivery_id(item).await.unwrap();
    }
    assert_eq!(run.get().await.unwrap().mail, 3);
    let worker = world.worker(registry![collect]).await;
    assert_eq!(
        run.result_within(PATIENCE).await.unwrap(),
        ["a", "b", "c"],
        "in the order in which they were sent"
    );
    let late = run.signal("item", &"d".to_owned()).await;
    assert!(
        matches!(late, Err(ClientError::Ended(id)) if id == run.run_id()),
        "{late:?}"
    );
    // A sender that never heard that its signal was accepted: by NATS again, and by itself.
    let again = run.signal("item", &"c".to_owned()).delivery_id("c").await;
    assert_eq!(again.unwrap(), Signalled::Duplicate);
    let foreigner = Foreigner::new(&world).await;
    let item = foreigner.item(run.run_id());
    for id in ["c", "e"] {
        let headers = [("Nats-Msg-Id", id)];
        foreigner.send(item.clone(), &headers, "\"c\"").await;
    }
    let look = async || {
        let rows = rejected(&world).await;
        (!rows.is_empty()).then_some(rows)
    };
    let rows = until("the new one is rejected", look).await;
    let ids: Vec<_> = rows.iter().map(|row| row.delivery_id.as_deref()).collect();
    assert_eq!(ids, [Some("e")], "what was received is not rejected too");
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_that_nobody_waited_for_are_told_by_the_end() {
    let world = World::new().await;
    let client = world.client().await;
    let run = client.start(collect, 1).await.unwrap();
    run.signal("other", &1)
        .delivery_id("unread-1")
        .await
        .unwrap();
    run.signal("item", &"x".to_owned()).await.unwrap();
    let worker = world.worker(registry![collect]).await;
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), ["x"]);
    assert_eq!(run.get().await.unwrap().unread, 1);
    let history = world.history(run.run_id()).await;
    let Some(continuum_schema::Event::Completed { unread, .. }) = history.last() else {
        panic!("{history:#?}")
    };
    assert_eq!(unread[0].name, "other");
    assert_eq!(unread[0].delivery_id.as_deref(), Some("unread-1"));
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_races_its_wait_is_never_lost() {
    const RUNS: u64 = 300;
    let world = World::new().await;
    // A lost wake-up shows: nobody looks by himself within the patience of the test.
    let config = WorkerConfig {
        poll_interval: PATIENCE * 4,
        catch_up_interval: PATIENCE * 4,
        ..world.worker_config()
    };
    let worker = world.worker_with(registry![wait_late], config).await;
    let client = worker.client();
    let mut chance = ChaCha8Rng::seed_from_u64(3);
    let offsets: Vec<(u64, u64, u64)> = (0..RUNS)
        .map(|n| {
            (
                n,
                chance.random_range(0..20_000),
                chance.random_range(0..20_000),
            )
        })
        .collect();
    let races = offsets.into_iter().map(|(n, wait, send)| {
        let client = client.clone();
        async move {
            let run = client.start(wait_late, wait).await.unwrap();
            tokio::time::sleep(Duration::from_micros(send)).await;
            run.signal("go", &n).await.unwrap();
            assert_eq!(
                run.result_within(PATIENCE).await.unwrap(),
                n,
                "run {}",
                run.run_id()
            );
        }
    });
    futures::stream::iter(races)
        .buffer_unordered(40)
        .collect::<()>()
        .await;
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_and_a_signal_share_the_fate_of_the_callers_transaction() {
    let world = World::new().await;
    // What is not told waits: nobody looks by himself within the patience of the test.
    let config = WorkerConfig {
        poll_interval: PATIENCE * 4,
        catch_up_interval: PATIENCE * 4,
        ..world.worker_config()
    };
    let worker = world.worker_with(registry![collect], config).await;
    let client = worker.client();
    let pool = world.foreign_pool().await;
    let waiting = client.start(collect, 1).await.unwrap();
    world.until_event(waiting.run_id(), "step_completed").await;
    let word = |word: &str| client.signal(waiting.run_id(), "item", &word.to_owned());

    let mut transaction = pool.begin().await.unwrap();
    let started = client
        .start(collect, 0)
        .key("in-transaction")
        .within(&mut transaction)
        .await
        .unwrap();
    word("rolled back").within(&mut transaction).await.unwrap();
    assert!(
        matches!(started.get().await, Err(ClientError::NotFound(_))),
        "seen before its commit"
    );
    transaction.rollback().await.unwrap();
    assert!(matches!(started.get().await, Err(ClientError::NotFound(_))));
    assert_eq!(
        client.find("default", "in-transaction").await.unwrap(),
        None
    );
    assert_eq!(waiting.get().await.unwrap().mail, 0);

    let mut transaction = pool.begin().await.unwrap();
    let started = client
        .start(collect, 1)
        .key("in-transaction")
        .within(&mut transaction)
        .await
        .unwrap();
    client
        .signal(started.run_id(), "item", &"own".to_owned())
        .within(&mut transaction)
        .await
        .unwrap();
    word("committed").within(&mut transaction).await.unwrap();
    let again = client
        .start(collect, 1)
        .key("in-transaction")
        .within(&mut transaction)
        .await
        .unwrap();
    assert_eq!(again.run_id(), started.run_id());
    let conflict = client
        .start(collect, 2)
        .key("in-transaction")
        .within(&mut transaction)
        .await;
    assert!(matches!(conflict, Err(ClientError::Conflict { .. })));
    transaction.commit().await.unwrap();
    client.notify(started.run_id()).await;
    client.notify(waiting.run_id()).await;
    assert_eq!(started.result_within(PATIENCE).await.unwrap(), ["own"]);
    assert_eq!(
        waiting.result_within(PATIENCE).await.unwrap(),
        ["committed"]
    );
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_and_not_told_is_found_by_polling() {
    let world = World::new().await;
    let worker = world.worker(registry![collect]).await;
    let client = worker.client();
    let pool = world.foreign_pool().await;
    let mut transaction = pool.begin().await.unwrap();
    let run = client
        .start(collect, 1)
        .within(&mut transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    world.until_event(run.run_id(), "step_completed").await;
    let mut transaction = pool.begin().await.unwrap();
    run.signal("item", &"found".to_owned())
        .within(&mut transaction)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), ["found"]);
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_in_an_open_transaction_stalls_nobody_and_its_commit_fails_if_the_run_has_ended() {
    let world = World::new().await;
    let worker = world.worker(registry![collect]).await;
    let client = world.client().await;
    let pool = world.foreign_pool().await;
    let run = client.start(collect, 1).await.unwrap();
    let neighbour = client.start(collect, 1).await.unwrap();
    world.until_event(run.run_id(), "step_completed").await;

    let mut transaction = pool.begin().await.unwrap();
    for handle in [&run, &neighbour] {
        handle
            .signal("item", &"held".to_owned())
            .within(&mut transaction)
            .await
            .unwrap();
    }
    // Both go on and end while the transaction is open, and so does a stranger.
    let since = Instant::now();
    for handle in [&run, &neighbour] {
        handle.signal("item", &"direct".to_owned()).await.unwrap();
        assert_eq!(handle.result_within(PATIENCE).await.unwrap(), ["direct"]);
    }
    client
        .start(collect, 0)
        .await
        .unwrap()
        .result_within(PATIENCE)
        .await
        .unwrap();
    let lock_timeout = world.database.config().lock_timeout;
    assert!(
        since.elapsed() < lock_timeout,
        "somebody waited for the open transaction: {:?}",
        since.elapsed()
    );

    let refused = transaction.commit().await.unwrap_err();
    let refused = refused.as_database_error().expect("Postgres says so");
    assert_eq!(refused.code().as_deref(), Some("CTM02"), "{refused}");
    assert!(refused.message().contains("has ended"), "{refused}");
    assert_eq!(run.get().await.unwrap().state, RunState::Completed);
    assert_eq!(run.get().await.unwrap().unread, 0);
    world.finish([worker]).await;
}
