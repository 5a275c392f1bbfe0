//! The contract over memory and over a real server, and what only a real server can show.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use continuum_schema::Name;
use futures::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::watch;
use uuid::Uuid;

use crate::contract::{self, Factory};
use crate::{
    Bus, BusConfig, BusState, BusStatus, ContentType, DisconnectReason, MemoryBus, RequestError,
    SignalError, SignalSettings, SignalStream, Subjects,
};

const SOON: Duration = Duration::from_secs(20);

/// A server of our own on a free port; it and its folder end with the value.
struct Server {
    child: Option<Child>,
    folder: tempfile::TempDir,
    port: Option<u16>,
    more: Vec<String>,
}

impl Server {
    async fn start(more: &[&str]) -> Self {
        let mut server = Self {
            child: None,
            folder: tempfile::tempdir().unwrap(),
            port: None,
            more: more.iter().map(ToString::to_string).collect(),
        };
        server.run().await;
        server
    }

    /// Starts the program on a free port, and later on the same one again, and waits until it has written its ports.
    async fn run(&mut self) {
        let folder = self.folder.path();
        let port = self.port.map_or("-1".to_owned(), |port| port.to_string());
        let child = Command::new(program())
            .args(["-a", "127.0.0.1", "-js", "-p", &port])
            .arg("-sd")
            .arg(folder.join("store"))
            .arg("--ports_file_dir")
            .arg(folder)
            .args(&self.more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("nats-server can be started");
        let ports = folder.join(format!("nats-server_{}.ports", child.id()));
        self.child = Some(child);
        let since = Instant::now();
        self.port = loop {
            assert!(since.elapsed() < SOON, "nats-server did not come up");
            if let Some(port) = port_in(&ports) {
                break Some(port);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
    }

    fn port(&self) -> u16 {
        self.port.expect("the server has run")
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn config(&self) -> BusConfig {
        BusConfig::new([format!("nats://127.0.0.1:{}", self.port())])
    }

    async fn bus(&self) -> Bus {
        connected(self.config()).await
    }

    async fn foreign(&self) -> async_nats::Client {
        async_nats::connect(format!("127.0.0.1:{}", self.port()))
            .await
            .unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// `{"nats":["nats://127.0.0.1:4222"],…}`, once it is written in full.
fn port_in(file: &Path) -> Option<u16> {
    let text = std::fs::read(file).ok()?;
    let ports: serde_json::Value = serde_json::from_slice(&text).ok()?;
    ports["nats"][0].as_str()?.rsplit(':').next()?.parse().ok()
}

/// A missing server fails the test: a contract that was not run is not kept.
fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/bin".into()]);
    let found = folders
        .map(|folder| folder.join("nats-server"))
        .find(|file| Path::exists(file));
    found.expect("nats-server must be on PATH")
}

async fn connected(config: BusConfig) -> Bus {
    let bus = Bus::connect(config).await.unwrap();
    reach(&mut bus.status(), BusStatus::is_connected).await;
    bus
}

async fn reach(
    status: &mut watch::Receiver<BusStatus>,
    wanted: impl FnMut(&BusStatus) -> bool,
) -> BusStatus {
    let reached = tokio::time::timeout(SOON, status.wait_for(wanted)).await;
    reached
        .expect("the status is reached in time")
        .unwrap()
        .clone()
}

async fn disconnected(bus: &Bus) -> DisconnectReason {
    let mut status = bus.status();
    let status = reach(&mut status, |status| {
        matches!(status.state, BusState::Disconnected { .. })
    })
    .await;
    match status.state {
        BusState::Disconnected { reason } => reason,
        other => panic!("{other:?}"),
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn subjects() -> Subjects {
    Subjects::new(&name("test"))
}

async fn publish(signals: &SignalStream, n: u128) {
    let payload = Bytes::from(n.to_string());
    let run = Uuid::from_u128(n);
    signals
        .publish(run, &name("go"), payload, &ContentType::Json, None)
        .await
        .unwrap();
}

#[tokio::test]
async fn memory_keeps_the_contract() {
    let hub = MemoryBus::new();
    let make: Factory = Arc::new(move || {
        let client = Bus::Memory(hub.join());
        Box::pin(async { client })
    });
    contract::run_all(make, "m").await;
}

#[tokio::test]
async fn a_real_server_keeps_the_contract() {
    let server = Server::start(&[]).await;
    let config = server.config();
    let make: Factory = Arc::new(move || {
        let config = config.clone();
        Box::pin(async { Bus::connect(config).await.unwrap() })
    });
    contract::run_all(make, "n").await;
}

#[tokio::test]
async fn subscriptions_survive_a_restart_and_the_generation_rises() {
    let mut server = Server::start(&[]).await;
    let (bus, other) = (server.bus().await, server.bus().await);
    let mut heard = bus.subscribe("a.*", None).await.unwrap();
    bus.barrier().await.unwrap();
    let before = bus.status().borrow().generation;
    server.kill();
    disconnected(&bus).await;
    bus.hint("a.lost", Bytes::new());
    assert_eq!(bus.dropped_hints(), 1);
    let asked = bus.request("a.lost", Bytes::new(), SOON).await;
    assert_eq!(asked, Err(RequestError::Disconnected));
    server.run().await;
    let after = reach(&mut bus.status(), BusStatus::is_connected).await;
    assert!(after.generation > before);
    reach(&mut other.status(), BusStatus::is_connected).await;
    // Connected means that subscriptions are in force: no barrier is needed.
    other.hint("a.found", Bytes::new());
    let message = tokio::time::timeout(SOON, heard.next()).await.unwrap();
    assert_eq!(message.unwrap().subject, "a.found");
}

#[tokio::test]
async fn connecting_returns_without_a_server_and_finds_it_later() {
    let mut server = Server::start(&[]).await;
    server.kill();
    let bus = Bus::connect(server.config()).await.unwrap();
    let mut heard = bus.subscribe("a", None).await.unwrap();
    let reason = disconnected(&bus).await;
    assert!(
        matches!(&reason, DisconnectReason::Unreachable(text) if text.contains("127.0.0.1")),
        "{reason:?}"
    );
    server.run().await;
    let status = reach(&mut bus.status(), BusStatus::is_connected).await;
    assert_eq!(status.generation, 1);
    bus.hint("a", Bytes::from_static(b"x"));
    assert_eq!(heard.next().await.unwrap().payload, "x");
}

#[tokio::test]
async fn a_request_under_way_ends_when_the_link_breaks() {
    let mut server = Server::start(&[]).await;
    let bus = server.bus().await;
    let mut silent = bus.subscribe("slow", None).await.unwrap();
    bus.barrier().await.unwrap();
    let since = Instant::now();
    let asked = bus.request("slow", Bytes::new(), Duration::from_secs(60));
    let breaking = async {
        silent.next().await.unwrap();
        server.kill();
    };
    let (answer, ()) = tokio::join!(asked, breaking);
    assert_eq!(answer, Err(RequestError::Disconnected));
    assert!(since.elapsed() < SOON);
}

#[tokio::test]
async fn passwords_and_tokens_let_in_and_wrong_ones_are_named() {
    let server = Server::start(&["--user", "ann", "--pass", "p@ss"]).await;
    let mut config = server.config();
    config.urls = vec![format!("nats://ann:p%40ss@127.0.0.1:{}", server.port())];
    connected(config).await.barrier().await.unwrap();
    let mut config = server.config();
    config.user = Some("ann".into());
    config.password = Some("wrong".into());
    let bus = Bus::connect(config).await.unwrap();
    assert_eq!(
        disconnected(&bus).await,
        DisconnectReason::CredentialsRefused
    );
    bus.close().await;
    let nobody = Bus::connect(server.config()).await.unwrap();
    assert_eq!(
        disconnected(&nobody).await,
        DisconnectReason::CredentialsRefused
    );

    let server = Server::start(&["--auth", "t0ken"]).await;
    let mut config = server.config();
    config.token = Some("t0ken".into());
    connected(config).await.barrier().await.unwrap();
    let mut config = server.config();
    config.urls = vec![format!("nats://wrong@127.0.0.1:{}", server.port())];
    let bus = Bus::connect(config).await.unwrap();
    assert_eq!(
        disconnected(&bus).await,
        DisconnectReason::CredentialsRefused
    );
}

#[tokio::test]
async fn an_overflowing_subscription_raises_the_generation() {
    let server = Server::start(&[]).await;
    let mut config = server.config();
    config.subscription_capacity = 4;
    let bus = connected(config).await;
    let _unread = bus.subscribe("a", None).await.unwrap();
    bus.barrier().await.unwrap();
    let before = bus.status().borrow().generation;
    for _ in 0..10 {
        bus.hint("a", Bytes::new());
    }
    reach(&mut bus.status(), |status| status.generation > before).await;
    assert!(bus.status().borrow().is_connected());
}

#[tokio::test]
async fn the_stream_keeps_its_promises_at_the_server() {
    let server = Server::start(&[]).await;
    let bus = server.bus().await;
    let settings = SignalSettings::default();
    let signals = bus.signals(&subjects(), &settings);
    signals.ensure().await.unwrap();
    signals.ensure().await.unwrap();
    publish(&signals, 1).await;
    let context = async_nats::jetstream::new(server.foreign().await);
    let mut stream = context
        .get_stream(subjects().signal_stream())
        .await
        .unwrap();
    assert!(stream.purge().await.is_err(), "purging is denied");
    assert!(
        stream.delete_message(1).await.is_err(),
        "deleting is denied"
    );
    assert_eq!(stream.info().await.unwrap().state.messages, 1);
    let batch = signals.next_batch(10, SOON).await.unwrap();
    batch[0].ack().await.unwrap();
    bus.barrier().await.unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, 0);
}

#[tokio::test]
async fn settings_that_differ_are_mended_or_named() {
    let server = Server::start(&[]).await;
    let bus = server.bus().await;
    let settings = SignalSettings::default();
    bus.signals(&subjects(), &settings).ensure().await.unwrap();
    let patient = SignalSettings {
        ack_wait: Duration::from_secs(77),
        ..settings.clone()
    };
    bus.signals(&subjects(), &patient).ensure().await.unwrap();
    let context = async_nats::jetstream::new(server.foreign().await);
    let stream = context
        .get_stream(subjects().signal_stream())
        .await
        .unwrap();
    let info = stream.consumer_info("ingest").await.unwrap();
    assert_eq!(info.config.ack_wait, Duration::from_secs(77));

    let larger = SignalSettings {
        max_message_bytes: 2 << 20,
        ..settings.clone()
    };
    let refused = bus.signals(&subjects(), &larger).ensure().await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("max_msg_size is 1048576"), "{text}");

    stream.delete_consumer("ingest").await.unwrap();
    let filtered = async_nats::jetstream::consumer::pull::Config {
        durable_name: Some("ingest".into()),
        filter_subject: "continuum.test.signal.only".into(),
        ..Default::default()
    };
    stream.create_consumer(filtered).await.unwrap();
    let refused = bus.signals(&subjects(), &settings).ensure().await;
    assert!(
        matches!(&refused, Err(SignalError::ConsumerDiffers { differences, .. })
            if differences.iter().any(|text| text.contains("filter_subject"))),
        "{refused:?}"
    );
}

/// A server of version 2.9 refuses with "directory not empty" while it still writes the consumer's state.
async fn delete_consumer(stream: &async_nats::jetstream::stream::Stream) {
    let since = Instant::now();
    while stream.delete_consumer("ingest").await.is_err() {
        if stream.consumer_info("ingest").await.is_err() {
            return;
        }
        assert!(since.elapsed() < SOON, "the consumer can't be deleted");
    }
}

#[tokio::test]
async fn a_consumer_that_vanishes_is_made_again() {
    let server = Server::start(&[]).await;
    let mut config = server.config();
    config.request_timeout = Duration::from_secs(1);
    let bus = connected(config).await;
    let signals = bus.signals(&subjects(), &SignalSettings::default());
    signals.ensure().await.unwrap();
    let context = async_nats::jetstream::new(server.foreign().await);
    let stream = context
        .get_stream(subjects().signal_stream())
        .await
        .unwrap();
    delete_consumer(&stream).await;
    publish(&signals, 1).await;
    let batch = signals.next_batch(10, SOON).await.unwrap();
    assert_eq!(batch.len(), 1, "gone before the pull");
    batch[0].ack().await.unwrap();

    let waiting = signals.next_batch(10, SOON);
    let deleting = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        delete_consumer(&stream).await;
        publish(&signals, 2).await;
    };
    let (batch, ()) = tokio::join!(waiting, deleting);
    // Empty if the consumer vanished twice, which a repeated deletion can do.
    if batch.unwrap().is_empty() {
        let batch = signals.next_batch(10, SOON).await;
        assert_eq!(batch.unwrap().len(), 1, "gone during the pull");
    }
    context
        .delete_stream(subjects().signal_stream())
        .await
        .unwrap();
    let none = signals.next_batch(10, Duration::from_millis(100)).await;
    assert!(none.unwrap().is_empty());
    publish(&signals, 3).await;
    assert_eq!(signals.next_batch(10, SOON).await.unwrap().len(), 1);
}

#[tokio::test]
async fn signals_survive_a_restart_of_the_server() {
    let mut server = Server::start(&[]).await;
    let bus = server.bus().await;
    let signals = bus.signals(&subjects(), &SignalSettings::default());
    signals.ensure().await.unwrap();
    publish(&signals, 1).await;
    let waiting = async {
        let first = signals.next_batch(10, SOON).await.unwrap();
        first[0].ack().await.unwrap();
        signals.next_batch(10, Duration::from_secs(60)).await
    };
    let killing = async {
        publish(&signals, 2).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        server.kill();
    };
    let (first, ()) = tokio::join!(waiting, killing);
    assert!(
        matches!(&first, Err(SignalError::Disconnected))
            || first.is_ok_and(|batch| batch.len() == 1)
    );
    server.run().await;
    reach(&mut bus.status(), BusStatus::is_connected).await;
    publish(&signals, 3).await;
    let batch = signals.next_batch(10, SOON).await.unwrap();
    let last = batch.last().unwrap();
    assert_eq!(last.parsed, Ok((Uuid::from_u128(3), name("go"))));
}

#[tokio::test]
async fn a_payload_over_the_limit_of_the_server_is_refused_here() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("small.conf");
    let mut written = std::fs::File::create(&file).unwrap();
    writeln!(written, "max_payload: 2048").unwrap();
    let server = Server::start(&["-c", file.to_str().unwrap()]).await;
    let bus = server.bus().await;
    let signals = bus.signals(&subjects(), &SignalSettings::default());
    signals.ensure().await.unwrap();
    let before = bus.status().borrow().generation;
    let large = Bytes::from(vec![b'1'; 2048]);
    let refused = signals
        .publish(Uuid::nil(), &name("go"), large, &ContentType::Json, None)
        .await;
    assert!(matches!(
        refused,
        Err(SignalError::TooLarge { limit: 2048, .. })
    ));
    bus.hint("a", Bytes::from(vec![0; 4096]));
    bus.barrier().await.unwrap();
    publish(&signals, 1).await;
    assert_eq!(bus.status().borrow().generation, before, "the link stayed");
}

/// A publisher that speaks the protocol by hand, because clients refuse to send such things.
async fn raw_publish(port: u16, subject: &[u8], headers: &[u8]) {
    let mut socket = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .unwrap();
    let mut bytes = b"CONNECT {\"verbose\":false,\"headers\":true}\r\nHPUB ".to_vec();
    bytes.extend_from_slice(subject);
    bytes.extend_from_slice(format!(" {} {}\r\n", headers.len(), headers.len() + 2).as_bytes());
    bytes.extend_from_slice(headers);
    bytes.extend_from_slice(b"{}\r\nPING\r\n");
    socket.write_all(&bytes).await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"PONG\r\n") {
        assert_ne!(socket.read_buf(&mut heard).await.unwrap(), 0, "closed");
    }
}

/// Takes signals until `wanted` different ones are settled, whatever breaks on the way; answers the fault of each.
async fn ingest(signals: &SignalStream, bus: &Bus, wanted: usize) -> Vec<Option<String>> {
    let since = Instant::now();
    let mut settled = HashMap::new();
    while settled.len() < wanted {
        assert!(since.elapsed() < 2 * SOON, "only {settled:#?}");
        reach(&mut bus.status(), BusStatus::is_connected).await;
        let Ok(batch) = signals.next_batch(10, Duration::from_millis(200)).await else {
            continue;
        };
        for delivery in batch {
            if delivery.term().await.is_ok() {
                let fault = delivery.parsed.err().map(|fault| fault.to_string());
                settled.insert(delivery.delivery_id, fault);
            }
        }
    }
    settled.into_values().collect()
}

#[tokio::test]
async fn signals_that_break_the_client_are_found_and_stop_nobody() {
    let server = Server::start(&[]).await;
    let bus = server.bus().await;
    let settings = SignalSettings {
        ack_wait: Duration::from_secs(1),
        ..SignalSettings::default()
    };
    let signals = bus.signals(&subjects(), &settings);
    signals.ensure().await.unwrap();
    let mut wakes = bus.subscribe("wake", None).await.unwrap();
    publish(&signals, 1).await;
    let good = subjects().signal(Uuid::from_u128(2), &name("go"));
    for headers in [
        b"NATS/1.0\r\nA: \xff\r\n\r\n".as_slice(),
        b"NATS/1.0\r\nA: x\ry\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0 what\r\n\r\n",
        // Not broken: a status that a publisher made up is no word of the server.
        b"NATS/1.0 404 No Messages\r\n\r\n",
    ] {
        raw_publish(server.port(), good.as_bytes(), headers).await;
    }
    let odd = [b"continuum.test.signal.\xff\xfe".as_slice(), b".go"].concat();
    raw_publish(server.port(), &odd, b"NATS/1.0\r\nA: b\r\n\r\n").await;
    publish(&signals, 3).await;
    let faults = ingest(&signals, &bus, 8).await;
    let faulty = faults.iter().filter(|fault| fault.is_some()).count();
    assert_eq!((faulty, faults.len()), (5, 8), "{faults:#?}");
    let context = async_nats::jetstream::new(server.foreign().await);
    bus.barrier().await.unwrap();
    let mut stream = context
        .get_stream(subjects().signal_stream())
        .await
        .unwrap();
    assert_eq!(stream.info().await.unwrap().state.messages, 0);
    // A dead client was replaced on the way; what was subscribed before is in force.
    let foreign = server.foreign().await;
    let mut tries = tokio::time::interval(Duration::from_millis(50));
    let heard = async {
        loop {
            tokio::select! {
                message = wakes.next() => return message,
                _ = tries.tick() => foreign.publish("wake", Bytes::new()).await.unwrap(),
            }
        }
    };
    let heard = tokio::time::timeout(SOON, heard).await.unwrap();
    assert_eq!(heard.unwrap().subject, "wake");
}

#[tokio::test]
async fn a_hostile_reply_subject_does_not_reach_the_server() {
    let server = Server::start(&[]).await;
    let bus = server.bus().await;
    let mut requests = bus.subscribe("continuum.test.api.get", None).await.unwrap();
    bus.barrier().await.unwrap();
    let foreign = server.foreign().await;
    let mut spied = foreign.subscribe("$JS.API.>").await.unwrap();
    foreign
        .publish_with_reply(
            "continuum.test.api.get",
            "$JS.API.STREAM.PURGE.X",
            Bytes::new(),
        )
        .await
        .unwrap();
    let request = requests.next().await.unwrap();
    assert!(bus.respond(&request, Bytes::new()).await.is_err());
    bus.barrier().await.unwrap();
    foreign.publish("$JS.API.INFO", Bytes::new()).await.unwrap();
    let first = spied.next().await.unwrap();
    assert_eq!(first.subject.as_str(), "$JS.API.INFO");
}
