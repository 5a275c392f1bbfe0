//! NATS that misbehaves: a member of a cluster dies, a consumer is deleted, an ingest is slower than its redelivery,
//! certificates and credentials are replaced.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::HeaderMap;
use async_nats::jetstream;
use continuum_bus::{BusConfig, Subjects};
use continuum_schema::Name;
use continuum_tests::{Held, PATIENCE, World, metric, servers, until};
use continuum_worker::dev::{NatsOptions, PrivateNats};
use continuum_worker::prelude::*;
use continuum_worker::{BusSource, Worker, WorkerConfig, registry};
use data_encoding::BASE64URL_NOPAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
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

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_that_overflows_one_subscription_is_counted_and_caught_up_with() {
    let world = World::new().await;
    let mut bus = BusConfig::new([world.nats_url().to_owned()]);
    bus.subscription_capacity = 4;
    let config = WorkerConfig {
        bus: BusSource::Nats(Box::new(bus)),
        catch_up_interval: Duration::from_secs(3_600),
        ..world.worker_config()
    };
    let worker = world.worker_with(registry![gather], config).await;
    let publisher = Publisher::new(&world).await;
    let passes = "continuum_catch_up_passes_total{outcome=\"completed\"}";
    until("the pass at the begin is over", async || {
        (metric(&worker, passes) >= 1.0).then_some(())
    })
    .await;
    let before = metric(&worker, passes);
    let flooder = async_nats::connect(world.nats_url()).await.unwrap();
    let session = worker.status().borrow().session.unwrap();
    let wake = publisher.subjects.wake(session, Uuid::nil());
    until("a pass follows on an overflow", async || {
        for _ in 0..2_000 {
            flooder.publish(wake.clone(), "".into()).await.ok()?;
        }
        flooder.flush().await.ok()?;
        (metric(&worker, passes) > before).then_some(())
    })
    .await;
    // Everything else goes on.
    signal_through(&worker, &publisher).await;
    world.finish([worker]).await;
}

// ---- who may connect, and how -----------------------------------------------------------------------------------------

/// Runs `openssl` in a folder.
fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(folder)
        .output()
        .expect("openssl is installed");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {arguments}: {told}");
}

/// A new authority `ca.pem`, and a certificate of it for a server on this machine.
fn certify(folder: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    std::fs::write(folder.join("san"), "subjectAltName=IP:127.0.0.1").unwrap();
    openssl(
        folder,
        &format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=test-ca -days 2"),
    );
    openssl(
        folder,
        &format!("req {key} -keyout server.key -out server.csr -subj /CN=test-server"),
    );
    openssl(
        folder,
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out server.pem -days 2 -extfile san",
    );
}

async fn until_connected(worker: &Worker, connected: bool) {
    until("the link to NATS is as it should be", async || {
        let value = metric(worker, "continuum_nats_connected");
        (value == f64::from(u8::from(connected))).then_some(())
    })
    .await;
}

/// The run gets a signal through the broker.
async fn signal_through(worker: &Worker, publisher: &Publisher) {
    let run = worker.client().start(gather, 1).await.unwrap();
    publisher.signal(run.run_id(), 1).await;
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), [1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_replaced_are_read_again_and_nothing_goes_out_in_plain_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    certify(folder.path());
    let tls = format!(
        "tls {{ cert_file: {:?}, key_file: {:?} }}",
        path("server.pem"),
        path("server.key")
    );
    std::fs::write(path("nats.conf"), &tls).unwrap();
    let mut nats = PrivateNats::start(NatsOptions {
        config_file: Some(path("nats.conf")),
        ..NatsOptions::default()
    })
    .await
    .unwrap();
    let world = World::at(&servers().await.postgres.url(), nats.url());
    continuum_schema::migration::migrate(&world.database)
        .await
        .unwrap();
    let mut bus = BusConfig::new([world.nats_url().to_owned()]);
    bus.tls.require = true;
    bus.tls.ca_file = Some(path("ca.pem"));
    let config = WorkerConfig {
        bus: BusSource::Nats(Box::new(bus)),
        ..world.worker_config()
    };
    let worker = world.worker_with(registry![gather], config).await;
    until_connected(&worker, true).await;

    // Another authority, in the same files.
    certify(folder.path());
    nats.restart().await.unwrap();
    until_connected(&worker, false).await;
    until_connected(&worker, true).await;

    // A server that speaks plain text gets nothing.
    std::fs::write(path("nats.conf"), "").unwrap();
    nats.restart().await.unwrap();
    until_connected(&worker, false).await;
    let plain = world.nats_url().replace("tls://", "nats://");
    let publisher = async_nats::connect(plain).await.unwrap();
    let hints = publisher.subscribe("continuum.>").await.unwrap();
    publisher.flush().await.unwrap();
    let run = worker.client().start(gather, 1).await.unwrap();
    run.signal("number", &1_u64).await.unwrap();
    assert_eq!(
        run.result_within(PATIENCE).await.unwrap(),
        [1],
        "work goes on by polling"
    );
    assert_eq!(metric(&worker, "continuum_nats_connected"), 0.0);
    publisher.flush().await.unwrap();
    drop(publisher);
    assert!(futures::FutureExt::now_or_never(futures::StreamExt::next(&mut { hints })).is_none());

    std::fs::write(path("nats.conf"), &tls).unwrap();
    nats.restart().await.unwrap();
    until_connected(&worker, true).await;
    world.finish([worker]).await;
}

/// A token as `nsc` makes them: claims, signed by `issuer`.
#[expect(
    clippy::disallowed_methods,
    reason = "the broker compares with its wall clock"
)]
fn token(issuer: &KeyPair, subject: &KeyPair, nats: &Value, expires: Option<u64>) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let mut claims = json!({
        "jti": subject.public_key(), "iat": now, "iss": issuer.public_key(), "name": "test",
        "sub": subject.public_key(), "nats": nats,
    });
    if let Some(seconds) = expires {
        claims["exp"] = json!(now + seconds);
    }
    let encode = |bytes: &[u8]| BASE64URL_NOPAD.encode(bytes);
    let head = encode(br#"{"typ":"JWT","alg":"ed25519-nkey"}"#);
    let body = format!("{head}.{}", encode(claims.to_string().as_bytes()));
    let signature = issuer.sign(body.as_bytes()).unwrap();
    format!("{body}.{}", encode(&signature))
}

/// Writes the credentials of a new user of an account.
fn write_user(path: &Path, account: &KeyPair, expires: Option<u64>) {
    let user = KeyPair::new_user();
    let rights = json!({"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2});
    let jwt = token(account, &user, &rights, expires);
    let seed = user.seed().unwrap();
    let text = format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    );
    std::fs::write(path, text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_expire_and_are_replaced_in_their_file_need_no_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (operator, system, account) = (
        KeyPair::new_operator(),
        KeyPair::new_account(),
        KeyPair::new_account(),
    );
    let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
        "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1});
    let plain = json!({"limits": {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
        "wildcards": true, "conn": -1, "leaf": -1}, "type": "account", "version": 2});
    let storing = json!({"limits": limits, "type": "account", "version": 2});
    let configuration = format!(
        "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}\n",
        token(
            &operator,
            &operator,
            &json!({"type": "operator", "version": 2}),
            None
        ),
        system.public_key(),
        system.public_key(),
        token(&operator, &system, &plain, None),
        account.public_key(),
        token(&operator, &account, &storing, None),
    );
    std::fs::write(path("nats.conf"), configuration).unwrap();
    let nats = PrivateNats::start(NatsOptions {
        config_file: Some(path("nats.conf")),
        ..NatsOptions::default()
    })
    .await
    .unwrap();
    let world = World::at(&servers().await.postgres.url(), nats.url());
    continuum_schema::migration::migrate(&world.database)
        .await
        .unwrap();
    let file = path("worker.creds");
    // Long enough to be ready with, then the server hangs up.
    write_user(&file, &account, Some(5));
    let mut bus = BusConfig::new([world.nats_url().to_owned()]);
    bus.credentials_file = Some(file.clone());
    let config = WorkerConfig {
        bus: BusSource::Nats(Box::new(bus)),
        ..world.worker_config()
    };
    let worker = world.worker_with(registry![gather], config).await;
    until_connected(&worker, true).await;
    until_connected(&worker, false).await;
    write_user(&file, &account, None);
    until_connected(&worker, true).await;
    let options = async_nats::ConnectOptions::with_credentials_file(&file)
        .await
        .unwrap();
    let client = options.connect(world.nats_url()).await.unwrap();
    let publisher = Publisher {
        jetstream: jetstream::new(client),
        subjects: Subjects::new(&world.instance),
    };
    until("the signal stream exists", async || {
        publisher.stream().await
    })
    .await;
    signal_through(&worker, &publisher).await;
    world.finish([worker]).await;
}
