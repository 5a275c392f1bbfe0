//! NATS that misbehaves: a member of a cluster dies, a consumer is deleted, an ingest is slower than its redelivery.

use std::net::TcpListener;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream;
use continuum_bus::{BusConfig, Subjects};
use continuum_schema::Name;
use continuum_tests::{Held, PATIENCE, World, servers, until};
use continuum_worker::dev::{NatsOptions, PrivateNats};
use continuum_worker::prelude::*;
use continuum_worker::{BusSource, WorkerConfig, registry};
use uuid::Uuid;

/// Receives so many signals, and gives what they carried in the order in which they came.
#[workflow(version = 1)]
async fn gather(ctx: &WorkflowContext, count: usize) -> Result<Vec<u64>, WorkflowError> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        numbers.push(ctx.signal("number").await?);
    }
    Ok(numbers)
}

/// A program that knows the subjects and nothing else.
struct Publisher {
    jetstream: jetstream::Context,
    subjects: Subjects,
}

impl Publisher {
    async fn new(world: &World) -> Self {
        let urls: Vec<&str> = world.nats_url().split(',').collect();
        let client = async_nats::connect(urls).await.unwrap();
        let publisher = Self {
            jetstream: jetstream::new(client),
            subjects: Subjects::new(&world.instance),
        };
        until("the signal stream exists", async || {
            publisher.stream().await
        })
        .await;
        publisher
    }

    async fn stream(&self) -> Option<jetstream::stream::Stream> {
        let name = self.subjects.signal_stream();
        self.jetstream.get_stream(name).await.ok()
    }

    /// Publishes until the broker says that it has the signal; the id makes repetitions count once.
    async fn signal(&self, run_id: Uuid, number: u64) {
        let subject = self.subjects.signal(run_id, &Name::new("number").unwrap());
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Msg-Id", format!("{run_id}-{number}"));
        let publish = async || {
            let body = number.to_string().into();
            let sent = self
                .jetstream
                .publish_with_headers(subject.clone(), headers.clone(), body);
            sent.await.ok()?.await.ok()
        };
        until("the broker has the signal", publish).await;
    }
}

fn sorted(mut numbers: Vec<u64>) -> Vec<u64> {
    numbers.sort_unstable();
    numbers
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Three servers that know each other.
async fn cluster() -> Vec<PrivateNats> {
    let ports = [free_port(), free_port(), free_port()];
    let routes = ports
        .map(|port| format!("nats://127.0.0.1:{port}"))
        .join(",");
    let starts = (1..).zip(ports).map(|(number, port)| {
        let arguments = [
            format!("--name=n{number}"),
            "--cluster_name=continuum".to_owned(),
            format!("--cluster=nats://127.0.0.1:{port}"),
            format!("--routes={routes}"),
        ];
        PrivateNats::start(NatsOptions {
            extra_args: arguments.to_vec(),
            ..NatsOptions::default()
        })
    });
    let started = futures::future::join_all(starts).await;
    started
        .into_iter()
        .map(|server| server.expect("a server"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_on_a_cluster_of_three_loses_no_signal_when_each_member_dies_in_turn() {
    const SIGNALS: u64 = 30;
    let mut members = cluster().await;
    let urls: Vec<&str> = members.iter().map(PrivateNats::url).collect();
    let world = World::at(&servers().await.postgres.url(), &urls.join(","));
    continuum_schema::migration::migrate(&world.database)
        .await
        .unwrap();
    let mut bus = BusConfig::new([world.nats_url().to_owned()]);
    bus.signals.replicas = 3;
    let config = WorkerConfig {
        bus: BusSource::Nats(Box::new(bus)),
        ..world.worker_config()
    };
    let workers = [
        world.worker_with(registry![gather], config.clone()).await,
        world.worker_with(registry![gather], config).await,
    ];
    let client = workers[0].client();
    let run = client
        .start(gather, usize::try_from(SIGNALS).unwrap())
        .await
        .unwrap();
    let publisher = Publisher::new(&world).await;
    let mut sent = 0..SIGNALS;
    for member in &mut members {
        for number in sent.by_ref().take(5) {
            publisher.signal(run.run_id(), number).await;
        }
        member.kill().await;
        for number in sent.by_ref().take(5) {
            publisher.signal(run.run_id(), number).await;
        }
        member.restart().await.unwrap();
    }
    let received = run.result_within(PATIENCE).await.unwrap();
    assert_eq!(sorted(received), (0..SIGNALS).collect::<Vec<_>>());
    world.finish(workers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_is_deleted_or_whose_server_restarts_is_made_again() {
    const ROUNDS: u64 = 8;
    let mut nats = PrivateNats::start(NatsOptions::default()).await.unwrap();
    let world = World::at(&servers().await.postgres.url(), nats.url());
    continuum_schema::migration::migrate(&world.database)
        .await
        .unwrap();
    let worker = world.worker(registry![gather]).await;
    let client = worker.client();
    let run = client
        .start(gather, usize::try_from(ROUNDS).unwrap())
        .await
        .unwrap();
    let publisher = Publisher::new(&world).await;
    for round in 0..ROUNDS {
        if round % 2 == 0 {
            let mut stream = publisher.stream().await.unwrap();
            let names: Vec<String> = futures::TryStreamExt::try_collect(stream.consumer_names())
                .await
                .unwrap();
            assert!(stream.info().await.is_ok());
            for name in names {
                stream.delete_consumer(&name).await.unwrap();
            }
        } else {
            nats.kill().await;
            nats.restart().await.unwrap();
        }
        publisher.signal(run.run_id(), round).await;
    }
    let received = run.result_within(PATIENCE).await.unwrap();
    assert_eq!(sorted(received), (0..ROUNDS).collect::<Vec<_>>());
    world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_that_is_delivered_again_while_it_is_being_stored_counts_once() {
    const SIGNALS: u64 = 20;
    let world = World::new().await;
    let mut bus = BusConfig::new([world.nats_url().to_owned()]);
    bus.signals.ack_wait = Duration::from_secs(1);
    let config = WorkerConfig {
        bus: BusSource::Nats(Box::new(bus)),
        ..world.worker_config()
    };
    let workers = [
        world.worker_with(registry![gather], config.clone()).await,
        world.worker_with(registry![gather], config).await,
    ];
    let client = world.client().await;
    let run = client
        .start(gather, usize::try_from(SIGNALS).unwrap())
        .await
        .unwrap();
    let publisher = Publisher::new(&world).await;
    let mut hold = Held::begin(&world).await;
    hold.lock_mailbox().await;
    for number in 0..SIGNALS {
        publisher.signal(run.run_id(), number).await;
    }
    let mut stream = publisher.stream().await.unwrap();
    until("the broker delivers again", async || {
        let name = futures::StreamExt::next(&mut stream.consumer_names())
            .await?
            .ok()?;
        let info = stream.consumer_info(&name).await.ok()?;
        (info.num_redelivered > 0).then_some(())
    })
    .await;
    hold.roll_back().await;
    let received = run.result_within(PATIENCE).await.unwrap();
    assert_eq!(sorted(received), (0..SIGNALS).collect::<Vec<_>>());
    until("the stream is empty", async || {
        let info = stream.info().await.ok()?;
        (info.state.messages == 0).then_some(())
    })
    .await;
    world.finish(workers).await;
}
