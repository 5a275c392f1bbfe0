//! A mere publisher, in an account of its own as docs/nats-accounts.conf sets it up: it can publish signals and gets
//! its acknowledgement, and whatever else it tries stays without effect.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::{Client as Nats, ConnectOptions, Event, Subscriber};
use bytes::Bytes;
use continuum_bus::{BusConfig, Subjects};
use continuum_schema::Name;
use continuum_tests::{PATIENCE, World, servers, until};
use continuum_worker::dev::{NatsOptions, PrivateNats};
use continuum_worker::prelude::*;
use continuum_worker::{BusSource, WorkerConfig, registry};
use futures::StreamExt as _;
use tokio::sync::mpsc;
use uuid::Uuid;

#[workflow(version = 1)]
async fn told(ctx: &WorkflowContext, (): ()) -> Result<String, WorkflowError> {
    Ok(ctx.signal::<String>("word").await?)
}

/// A server with the example's accounts, and an instance.
struct Stage {
    nats: PrivateNats,
    world: World,
    subjects: Subjects,
}

impl Stage {
    async fn new() -> Self {
        let example = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/nats-accounts.conf");
        let nats = PrivateNats::start(NatsOptions {
            config_file: Some(example),
            ..NatsOptions::default()
        })
        .await
        .expect("nats-server takes the example");
        let world = World::at(&servers().await.postgres.url(), nats.url());
        continuum_schema::migration::migrate(&world.database)
            .await
            .unwrap();
        let subjects = Subjects::new(&world.instance);
        Self {
            nats,
            world,
            subjects,
        }
    }

    fn worker_config(&self) -> WorkerConfig {
        let mut bus = BusConfig::new([self.nats.url()]);
        bus.user = Some("workers".into());
        bus.password = Some("change-me-workers".into());
        bus.inbox_prefix = "_INBOX_workers".into();
        WorkerConfig {
            bus: BusSource::Nats(Box::new(bus)),
            ..self.world.worker_config()
        }
    }

    /// Somebody who is trusted.
    async fn insider(&self) -> Nats {
        let options = ConnectOptions::with_user_and_password(
            "workers".to_owned(),
            "change-me-workers".to_owned(),
        );
        let options = options.custom_inbox_prefix("_INBOX_workers");
        options.connect(self.nats.url()).await.unwrap()
    }

    async fn publisher(&self) -> Publisher {
        let (told, complaints) = mpsc::channel(64);
        let options = ConnectOptions::with_user_and_password(
            "publisher".to_owned(),
            "change-me-publisher".to_owned(),
        )
        .custom_inbox_prefix("_INBOX_publisher")
        .event_callback(move |event| {
            let told = told.clone();
            async move {
                if let Event::ServerError(error) = event {
                    told.send(error.to_string())
                        .await
                        .expect("the test listens");
                }
            }
        });
        Publisher {
            nats: options.connect(self.nats.url()).await.unwrap(),
            complaints,
        }
    }

    fn signal(&self, run_id: Uuid) -> String {
        self.subjects.signal(run_id, &Name::new("word").unwrap())
    }

    /// How many signals the stream holds.
    async fn signals(&self, insider: &Nats) -> u64 {
        let context = jetstream::new(insider.clone());
        let stream = context.get_stream(self.subjects.signal_stream()).await;
        stream.unwrap().get_info().await.unwrap().state.messages
    }
}

struct Publisher {
    nats: Nats,
    /// What the server said of what it tried.
    complaints: mpsc::Receiver<String>,
}

impl Publisher {
    /// Publishes a signal and gives JetStream's answer.
    async fn publish(&self, subject: String, word: &str) -> serde_json::Value {
        let payload = Bytes::from(serde_json::to_vec(word).unwrap());
        let answer = self.nats.request(subject, payload).await.unwrap();
        serde_json::from_slice(&answer.payload).unwrap()
    }

    async fn until_refused(&mut self, what: &str) {
        let complaint = tokio::time::timeout(PATIENCE, self.complaints.recv()).await;
        let complaint = complaint.expect("the server complains").unwrap();
        let complaint = complaint.to_lowercase();
        assert!(complaint.contains("permissions violation"), "{complaint}");
        assert!(complaint.contains(&what.to_lowercase()), "{complaint}");
    }
}

/// A round trip: what was published on this connection before has been dealt with.
async fn barrier(nats: &Nats) {
    let inbox = nats.new_inbox();
    let mut echo = nats.subscribe(inbox.clone()).await.unwrap();
    nats.publish(inbox, Bytes::new()).await.unwrap();
    let echo = tokio::time::timeout(PATIENCE, echo.next()).await;
    assert!(echo.expect("the server answers").is_some());
}

/// What has arrived at a subscription by now.
fn heard(subscriber: &mut Subscriber) -> Vec<String> {
    let mut subjects = Vec::new();
    while let Some(Some(message)) = futures::FutureExt::now_or_never(subscriber.next()) {
        subjects.push(message.subject.to_string());
    }
    subjects
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publishers_signal_is_acknowledged_and_reaches_its_run() {
    let stage = Stage::new().await;
    let worker = stage
        .world
        .worker_with(registry![told], stage.worker_config())
        .await;
    let run = worker.client().start(told, ()).await.unwrap();
    let publisher = stage.publisher().await;
    let answer = publisher.publish(stage.signal(run.run_id()), "hello").await;
    assert_eq!(answer["stream"], stage.subjects.signal_stream());
    assert!(
        answer["seq"].as_u64().is_some_and(|seq| seq > 0),
        "{answer}"
    );
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), "hello");
    stage.world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_can_neither_purge_the_stream_nor_speak_through_its_acknowledgements() {
    let stage = Stage::new().await;
    let worker = stage
        .world
        .worker_with(registry![told], stage.worker_config())
        .await;
    let run = worker.client().start(told, ()).await.unwrap();
    let insider = stage.insider().await;
    // The stream is there once a worker has asked for it; without workers the signals stay in it.
    let made = async || {
        let context = jetstream::new(insider.clone());
        let stream = context.get_stream(stage.subjects.signal_stream()).await;
        stream.ok().map(|_| ())
    };
    until("the worker has made the stream", made).await;
    worker.stop().await;

    let mut publisher = stage.publisher().await;
    let signal = stage.signal(run.run_id());
    publisher.publish(signal.clone(), "kept").await;
    let purge = format!("$JS.API.STREAM.PURGE.{}", stage.subjects.signal_stream());
    publisher
        .nats
        .publish(purge.clone(), Bytes::new())
        .await
        .unwrap();
    publisher.until_refused(&purge).await;

    let mut ready = insider.subscribe(stage.subjects.ready()).await.unwrap();
    barrier(&insider).await;
    for reply in [purge, stage.subjects.ready()] {
        let payload = Bytes::from_static(b"\"again\"");
        let publish = publisher
            .nats
            .publish_with_reply(signal.clone(), reply, payload);
        publish.await.unwrap();
    }
    // The acknowledgement of the last one comes after those of the others.
    publisher.publish(signal, "last").await;
    assert_eq!(stage.signals(&insider).await, 4);
    barrier(&insider).await;
    assert_eq!(heard(&mut ready), Vec::<String>::new());

    // All that came as signals is one, and the first word is the one that counts.
    let worker = stage
        .world
        .worker_with(registry![told], stage.worker_config())
        .await;
    assert_eq!(run.result_within(PATIENCE).await.unwrap(), "kept");
    stage.world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_hears_nothing_but_its_own_acknowledgements() {
    let stage = Stage::new().await;
    let worker = stage
        .world
        .worker_with(registry![told], stage.worker_config())
        .await;
    let mut publisher = stage.publisher().await;
    for filter in ["_INBOX.>", "_INBOX_workers.>", "continuum.>", "_R_.>", ">"] {
        let mut spy = publisher.nats.subscribe(filter).await.unwrap();
        publisher.until_refused(filter).await;
        let run = worker.client().start(told, ()).await.unwrap();
        publisher.publish(stage.signal(run.run_id()), "word").await;
        run.result_within(PATIENCE).await.unwrap();
        // The answer to this one comes after whatever the server had for this connection before.
        publisher.publish(stage.signal(run.run_id()), "late").await;
        assert_eq!(heard(&mut spy), Vec::<String>::new(), "{filter}");
    }
    stage.world.finish([worker]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_answers_no_reply_subject_outside_of_its_inboxes() {
    let stage = Stage::new().await;
    let worker = stage
        .world
        .worker_with(registry![told], stage.worker_config())
        .await;
    let session = worker.status().borrow().session.unwrap();
    let insider = stage.insider().await;
    let mut canary = insider.subscribe("canary.>").await.unwrap();
    let mut others = insider.subscribe("_INBOX.>").await.unwrap();
    let get = stage.subjects.api(&Name::new("get").unwrap());
    for subject in [stage.subjects.ping(session), get] {
        for reply in ["canary.one", "_INBOX.somebody.else"] {
            let payload = Bytes::from_static(b"{}");
            let ask = insider.publish_with_reply(subject.clone(), reply, payload);
            ask.await.unwrap();
        }
        // Requests of one connection are answered in turn.
        let request = insider.request(subject.clone(), Bytes::from_static(b"{}"));
        let answer = tokio::time::timeout(Duration::from_secs(10), request).await;
        answer.expect("a worker answers").unwrap();
    }
    barrier(&insider).await;
    for spy in [&mut canary, &mut others] {
        assert_eq!(heard(spy), Vec::<String>::new());
    }
    stage.world.finish([worker]).await;
}
