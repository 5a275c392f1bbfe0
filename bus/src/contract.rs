//! What every bus does, as test cases: the same suite runs over memory and over a real server.
//!
//! A case panics where the contract is broken. Each case has an instance of its own, so that one server serves them
//! all.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use continuum_schema::{Key, Name};
use futures::future::BoxFuture;
use time::OffsetDateTime;
use uuid::Uuid;

use crate::{
    Bus, BusState, ContentType, Endpoint, Message, RequestError, RespondError, Service,
    ServiceInfo, SignalDelivery, SignalError, SignalSettings, SignalStream, Subjects, Subscription,
};

/// No case waits longer than this for something that must come.
const SOON: Duration = Duration::from_secs(10);
/// How long a case listens for something that must not come.
const QUIET: Duration = Duration::from_millis(150);

/// Makes one more client of the same server or hub.
pub type Factory = Arc<dyn Fn() -> BoxFuture<'static, Bus> + Send + Sync>;

/// One clause of the contract.
pub struct Case {
    /// What it claims.
    pub name: &'static str,
    run: fn(World) -> BoxFuture<'static, ()>,
}

/// What a case works with.
pub struct World {
    make: Factory,
    subjects: Subjects,
    settings: SignalSettings,
}

impl Case {
    /// Runs the case in an instance named after `prefix` and the case.
    pub async fn run(&self, make: Factory, prefix: &str) {
        let instance = name(&format!("{prefix}-{}", self.name));
        let world = World {
            make,
            subjects: Subjects::new(&instance),
            settings: SignalSettings {
                ack_wait: Duration::from_millis(500),
                max_message_bytes: 64 << 10,
                ..SignalSettings::default()
            },
        };
        (self.run)(world).await;
    }
}

/// Runs every case, one after the other.
pub async fn run_all(make: Factory, prefix: &str) {
    for case in cases() {
        case.run(make.clone(), prefix).await;
    }
}

macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        vec![$(Case { name: stringify!($case), run: |world| Box::pin($case(world)) }),+]
    };
}

/// Every clause.
#[must_use]
pub fn cases() -> Vec<Case> {
    cases![
        a_hint_reaches_every_subscriber_and_one_member_of_a_group,
        a_filter_takes_in_its_tokens_only,
        nothing_published_after_a_barrier_is_missed,
        an_unsubscribed_subject_is_quiet,
        ill_formed_subjects_are_refused_and_the_link_stays,
        a_request_is_answered,
        a_request_without_a_listener_ends_at_once,
        a_request_without_an_answer_ends_in_time,
        answers_go_to_inboxes_only,
        closing_delivers_what_was_sent_and_ends_subscriptions,
        a_service_shows_itself,
        a_signal_waits_until_it_is_settled,
        an_unsettled_signal_comes_again,
        a_signal_that_was_given_back_comes_after_its_delay,
        a_terminated_signal_never_comes_again,
        a_delivery_id_counts_once,
        consumers_share_the_work,
        a_waiting_consumer_is_woken,
        a_malformed_signal_is_delivered_with_its_fault,
        content_types_arrive_as_they_were_sent,
        a_signal_that_is_too_large_is_refused_and_the_link_stays,
        publishing_without_a_stream_says_so,
    ]
}

impl World {
    async fn bus(&self) -> Bus {
        let bus = (self.make)().await;
        let mut status = bus.status();
        soon(status.wait_for(crate::BusStatus::is_connected))
            .await
            .expect("the bus is not closed");
        bus
    }

    async fn signals(&self) -> SignalStream {
        let signals = self.bus().await.signals(&self.subjects, &self.settings);
        signals.ensure().await.expect("the stream can be made");
        signals
    }
}

async fn a_hint_reaches_every_subscriber_and_one_member_of_a_group(world: World) {
    let (sender, receiver) = (world.bus().await, world.bus().await);
    let subject = world.subjects.ready();
    let mut plain = [
        subscribe(&receiver, &subject).await,
        subscribe(&receiver, &subject).await,
    ];
    let mut members = Vec::new();
    for _ in 0..3 {
        let member = receiver.subscribe(&subject, Some("workers")).await;
        members.push(member.expect("a valid subject"));
    }
    receiver.barrier().await.expect("a link");
    for n in 0..30 {
        sender.hint(&subject, text(n));
    }
    for subscription in &mut plain {
        for n in 0..30 {
            assert_eq!(next(subscription).await.payload, text(n));
        }
    }
    receiver.barrier().await.expect("a link");
    let mut shared = Vec::new();
    for member in &mut members {
        while let Ok(Some(message)) = tokio::time::timeout(QUIET, member.next()).await {
            shared.push(message.payload);
        }
    }
    let distinct: HashSet<_> = shared.iter().collect();
    assert_eq!(
        (shared.len(), distinct.len()),
        (30, 30),
        "one member each time"
    );
}

async fn a_filter_takes_in_its_tokens_only(world: World) {
    let bus = world.bus().await;
    let (mine, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let run = Uuid::from_u128(3);
    let mut wakes = subscribe(&bus, &world.subjects.wakes_of(mine)).await;
    bus.barrier().await.expect("a link");
    bus.hint(&world.subjects.wake(other, run), Bytes::new());
    bus.hint(&world.subjects.closed(run), Bytes::new());
    bus.hint(&world.subjects.wake(mine, run), Bytes::new());
    assert_eq!(
        next(&mut wakes).await.subject,
        world.subjects.wake(mine, run)
    );
    quiet(&mut wakes).await;
}

async fn nothing_published_after_a_barrier_is_missed(world: World) {
    let (sender, receiver) = (world.bus().await, world.bus().await);
    for n in 0..100 {
        let subject = world.subjects.closed(Uuid::from_u128(n));
        let mut closed = subscribe(&receiver, &subject).await;
        receiver.barrier().await.expect("a link");
        sender.hint(&subject, Bytes::new());
        next(&mut closed).await;
    }
    assert_eq!(sender.dropped_hints(), 0);
}

async fn an_unsubscribed_subject_is_quiet(world: World) {
    let bus = world.bus().await;
    let subject = world.subjects.catchup();
    drop(subscribe(&bus, &subject).await);
    bus.barrier().await.expect("a link");
    let asked = bus.request(&subject, Bytes::new(), SOON).await;
    assert_eq!(asked, Err(RequestError::NoResponders(subject)));
}

async fn ill_formed_subjects_are_refused_and_the_link_stays(world: World) {
    let bus = world.bus().await;
    let mut status = bus.status();
    status.mark_unchanged();
    let bad = ["", "a b", "a..b", "a\r\nPUB x 0\r\n\r\n", ".a"];
    for subject in bad {
        bus.hint(subject, Bytes::new());
        assert!(bus.subscribe(subject, None).await.is_err(), "{subject:?}");
        let asked = bus.request(subject, Bytes::new(), SOON).await;
        assert!(
            matches!(asked, Err(RequestError::InvalidSubject(_))),
            "{subject:?}"
        );
    }
    assert!(bus.subscribe("a", Some("b c")).await.is_err());
    assert_eq!(bus.dropped_hints(), bad.len() as u64);
    bus.barrier().await.expect("the link stays");
    assert!(!status.has_changed().expect("not closed"));
}

async fn a_request_is_answered(world: World) {
    let (client, server) = (world.bus().await, world.bus().await);
    let subject = world.subjects.api(&name("get"));
    let mut requests = subscribe(&server, &subject).await;
    server.barrier().await.expect("a link");
    let serving = async {
        let request = next(&mut requests).await;
        assert_eq!(request.payload, "question");
        let answer = server.respond(&request, Bytes::from_static(b"answer"));
        answer.await.expect("an inbox");
    };
    let asking = client.request(&subject, Bytes::from_static(b"question"), SOON);
    let (answer, ()) = tokio::join!(asking, serving);
    assert_eq!(answer.expect("an answer").payload, "answer");
}

async fn a_request_without_a_listener_ends_at_once(world: World) {
    let bus = world.bus().await;
    let subject = world.subjects.ping(Uuid::from_u128(1));
    let asked = soon(bus.request(&subject, Bytes::new(), 10 * SOON)).await;
    assert_eq!(asked, Err(RequestError::NoResponders(subject)));
}

async fn a_request_without_an_answer_ends_in_time(world: World) {
    let bus = world.bus().await;
    let subject = world.subjects.ping(Uuid::from_u128(1));
    let _silent = subscribe(&bus, &subject).await;
    bus.barrier().await.expect("a link");
    let asked = bus.request(&subject, Bytes::new(), QUIET).await;
    assert_eq!(asked, Err(RequestError::TimedOut(QUIET)));
}

async fn answers_go_to_inboxes_only(world: World) {
    let bus = world.bus().await;
    let stream = world.subjects.signal_stream();
    for reply in [
        format!("$JS.API.STREAM.PURGE.{stream}"),
        world.subjects.ready(),
        "_INBOX.>".to_owned(),
    ] {
        let message = Message {
            reply: Some(reply.clone()),
            ..Message::default()
        };
        let answered = bus.respond(&message, Bytes::new()).await;
        assert_eq!(answered, Err(RespondError::NotAnInbox(reply)));
    }
    let answered = bus.respond(&Message::default(), Bytes::new()).await;
    assert_eq!(answered, Err(RespondError::NoReply));
}

async fn closing_delivers_what_was_sent_and_ends_subscriptions(world: World) {
    let (sender, receiver) = (world.bus().await, world.bus().await);
    let subject = world.subjects.ready();
    let mut heard = subscribe(&receiver, &subject).await;
    receiver.barrier().await.expect("a link");
    for n in 0..500 {
        sender.hint(&subject, text(n));
    }
    sender.close().await;
    for n in 0..500 {
        assert_eq!(next(&mut heard).await.payload, text(n));
    }
    assert_eq!(sender.status().borrow().state, BusState::Closed);
    assert_eq!(
        sender.request(&subject, Bytes::new(), SOON).await,
        Err(RequestError::Closed)
    );
    assert!(sender.subscribe(&subject, None).await.is_err());
    receiver.close().await;
    assert_eq!(soon(heard.next()).await, None);
}

async fn a_service_shows_itself(world: World) {
    let (worker, client) = (world.bus().await, world.bus().await);
    let service_name = world.subjects.instance().clone();
    let info = ServiceInfo {
        name: service_name.clone(),
        id: name("w1"),
        version: "1.2.3".to_owned(),
        description: "a worker".to_owned(),
        started: OffsetDateTime::UNIX_EPOCH,
        endpoints: vec![Endpoint {
            name: name("start"),
            subject: world.subjects.api(&name("start")),
            group: "api".to_owned(),
        }],
    };
    let service = Service::announce(&worker, info).await.expect("a bus");
    worker.barrier().await.expect("a link");
    service.record(&name("start"), Duration::from_nanos(10), None);
    service.record(&name("start"), Duration::from_nanos(20), Some("full"));
    let ask = async |subject: String| {
        let answer = client.request(&subject, Bytes::new(), SOON).await;
        let answer = answer.expect("the service answers");
        serde_json::from_slice::<serde_json::Value>(&answer.payload).expect("JSON")
    };
    let ping = ask(format!("$SRV.PING.{service_name}")).await;
    assert_eq!(ping["type"], "io.nats.micro.v1.ping_response");
    assert_eq!(ping["version"], "1.2.3");
    let info = ask(format!("$SRV.INFO.{service_name}.w1")).await;
    assert_eq!(info["endpoints"][0]["name"], "start");
    let stats = ask(format!("$SRV.STATS.{service_name}")).await;
    let start = &stats["endpoints"][0];
    assert_eq!(start["num_requests"], 2);
    assert_eq!(start["num_errors"], 1);
    assert_eq!(start["average_processing_time"], 15);
}

async fn a_signal_waits_until_it_is_settled(world: World) {
    let signals = world.signals().await;
    let run = Uuid::from_u128(7);
    let ack = publish(&signals, run, b"{\"ok\":true}", Some("d-1")).await;
    assert!(!ack.expect("stored").duplicate);
    let delivery = one(&signals).await;
    assert_eq!(delivery.parsed, Ok((run, name("approve"))));
    assert_eq!(
        delivery.subject,
        world.subjects.signal(run, &name("approve"))
    );
    assert_eq!(delivery.delivery_id, Key::new("d-1").expect("a key"));
    assert_eq!(delivery.payload, "{\"ok\":true}");
    assert_eq!(delivery.deliveries, 1);
    delivery.ack().await.expect("a link");
    let after = signals.next_batch(10, world.settings.ack_wait * 2).await;
    assert!(after.expect("a link").is_empty(), "settled is settled");
}

async fn an_unsettled_signal_comes_again(world: World) {
    let signals = world.signals().await;
    publish(&signals, Uuid::from_u128(7), b"1", None)
        .await
        .expect("stored");
    let first = one(&signals).await;
    // A worker that dies before its commit settles nothing.
    let id = first.delivery_id.clone();
    drop(first);
    let again = one(&signals).await;
    assert_eq!((again.delivery_id.clone(), again.deliveries), (id, 2));
    again.ack().await.expect("a link");
}

async fn a_signal_that_was_given_back_comes_after_its_delay(world: World) {
    let signals = world.signals().await;
    publish(&signals, Uuid::from_u128(7), b"1", None)
        .await
        .expect("stored");
    let first = one(&signals).await;
    let delay = Duration::from_millis(200);
    let since = std::time::Instant::now();
    first.nak(delay).await.expect("a link");
    let again = one(&signals).await;
    assert!(since.elapsed() >= delay - Duration::from_millis(20));
    assert_eq!(again.delivery_id, first.delivery_id);
    assert_eq!(again.deliveries, 2);
    again.ack().await.expect("a link");
}

async fn a_terminated_signal_never_comes_again(world: World) {
    let signals = world.signals().await;
    publish(&signals, Uuid::from_u128(7), b"1", None)
        .await
        .expect("stored");
    one(&signals).await.term().await.expect("a link");
    let after = signals.next_batch(10, world.settings.ack_wait * 2).await;
    assert!(after.expect("a link").is_empty());
}

async fn a_delivery_id_counts_once(world: World) {
    let signals = world.signals().await;
    let mut duplicates = 0;
    for _ in 0..20 {
        let ack = publish(&signals, Uuid::from_u128(7), b"1", Some("once")).await;
        duplicates += usize::from(ack.expect("stored").duplicate);
    }
    assert_eq!(duplicates, 19);
    let batch = signals.next_batch(50, SOON).await.expect("a link");
    assert_eq!(batch.len(), 1);
    for bad in ["", " a", "a\r\nb", "a\0b"] {
        let refused = publish(&signals, Uuid::from_u128(7), b"1", Some(bad)).await;
        assert!(
            matches!(refused, Err(SignalError::DeliveryId(_))),
            "{bad:?}: {refused:?}"
        );
    }
}

async fn consumers_share_the_work(world: World) {
    let consumers = [world.signals().await, world.signals().await];
    for n in 0..40 {
        publish(&consumers[0], Uuid::from_u128(n), b"1", None)
            .await
            .expect("stored");
    }
    let mut runs = Vec::new();
    while runs.len() < 40 {
        for consumer in &consumers {
            let batch = consumer.next_batch(7, QUIET).await.expect("a link");
            assert!(batch.len() <= 7);
            for delivery in batch {
                delivery.ack().await.expect("a link");
                runs.push(delivery.parsed.expect("well-formed").0.as_u128());
            }
        }
    }
    runs.sort_unstable();
    assert_eq!(runs, (0..40).collect::<Vec<_>>());
}

async fn a_waiting_consumer_is_woken(world: World) {
    let (consumer, publisher) = (world.signals().await, world.signals().await);
    let since = std::time::Instant::now();
    let waiting = consumer.next_batch(10, SOON);
    let publishing = async {
        tokio::time::sleep(QUIET).await;
        publish(&publisher, Uuid::from_u128(7), b"1", None).await
    };
    let (batch, published) = tokio::join!(waiting, publishing);
    published.expect("stored");
    assert_eq!(batch.expect("a link").len(), 1);
    assert!(since.elapsed() < SOON / 2, "woken, not timed out");
}

async fn a_malformed_signal_is_delivered_with_its_fault(world: World) {
    let (signals, publisher) = (world.signals().await, world.bus().await);
    let prefix = world.subjects.signals();
    let prefix = prefix.trim_end_matches('>');
    let subjects = [
        format!("{prefix}not-an-id.approve"),
        format!("{prefix}{}", Uuid::from_u128(7)),
        format!("{prefix}{}.a.b", Uuid::from_u128(7)),
        format!("{prefix}{}.ünïcode", Uuid::from_u128(7)),
    ];
    for subject in &subjects {
        publisher.hint(subject, Bytes::from_static(b"1"));
    }
    let mut heard = Vec::new();
    while heard.len() < subjects.len() {
        for delivery in signals.next_batch(10, SOON).await.expect("a link") {
            assert!(delivery.parsed.is_err(), "{delivery:?}");
            delivery.term().await.expect("a link");
            heard.push(delivery.subject);
        }
    }
    assert_eq!(heard, subjects);
}

async fn content_types_arrive_as_they_were_sent(world: World) {
    let signals = world.signals().await;
    let sent = [
        ContentType::Json,
        ContentType::MsgPack,
        ContentType::Unknown("text/xml".to_owned()),
    ];
    for kind in &sent {
        let (run, called) = (Uuid::from_u128(7), name("approve"));
        let payload = Bytes::from_static(b"\x81\xa1a\x01");
        let published = signals.publish(run, &called, payload, kind, None);
        published.await.expect("stored");
    }
    let batch = signals.next_batch(10, SOON).await.expect("a link");
    let heard: Vec<_> = batch
        .iter()
        .map(|delivery| delivery.content_type.clone())
        .collect();
    assert_eq!(heard, sent);
    assert!(batch[0].header_bytes.starts_with(b"NATS/1.0\r\n"));
    let ids: HashSet<_> = batch.iter().map(|delivery| &delivery.delivery_id).collect();
    assert_eq!(ids.len(), 3, "without an id of its own each signal counts");
}

async fn a_signal_that_is_too_large_is_refused_and_the_link_stays(world: World) {
    let signals = world.signals().await;
    let limit = world.settings.max_message_bytes;
    let large = vec![b'1'; limit];
    let refused = publish(&signals, Uuid::from_u128(7), &large, None).await;
    assert!(
        matches!(refused, Err(SignalError::TooLarge { bytes, limit: l }) if bytes > limit && l == limit)
    );
    // Room for the headers: this is the size on the wire that counts.
    let fits = vec![b'1'; limit - 100];
    publish(&signals, Uuid::from_u128(7), &fits, None)
        .await
        .expect("stored");
    assert_eq!(one(&signals).await.payload.len(), limit - 100);
    let bus = world.bus().await;
    let ready = world.subjects.ready();
    let huge = Bytes::from(vec![0; 2 << 20]);
    bus.hint(&ready, huge.clone());
    assert_eq!(bus.dropped_hints(), 1);
    let asked = bus.request(&ready, huge, SOON).await;
    assert!(matches!(asked, Err(RequestError::TooLarge { .. })));
    bus.barrier().await.expect("the link stays");
}

async fn publishing_without_a_stream_says_so(world: World) {
    let bus = world.bus().await;
    let signals = bus.signals(&world.subjects, &world.settings);
    let refused = publish(&signals, Uuid::from_u128(7), b"1", None).await;
    assert_eq!(
        refused,
        Err(SignalError::NoStream(world.subjects.signal_stream()))
    );
}

fn name(text: &str) -> Name {
    Name::new(text).expect("the suite's own names are valid")
}

fn text(n: u32) -> Bytes {
    n.to_string().into()
}

async fn soon<T>(work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(SOON, work).await;
    done.expect("what must come comes within ten seconds")
}

async fn subscribe(bus: &Bus, filter: &str) -> Subscription {
    let subscription = bus.subscribe(filter, None).await;
    subscription.expect("the suite's own subjects are valid")
}

async fn next(subscription: &mut Subscription) -> Message {
    let message = soon(subscription.next()).await;
    message.expect("the bus is not closed")
}

async fn quiet(subscription: &mut Subscription) {
    let heard = tokio::time::timeout(QUIET, subscription.next()).await;
    assert!(heard.is_err(), "heard {heard:?}");
}

async fn publish(
    signals: &SignalStream,
    run: Uuid,
    payload: &[u8],
    delivery_id: Option<&str>,
) -> Result<crate::PublishAck, SignalError> {
    let payload = Bytes::copy_from_slice(payload);
    let kind = ContentType::Json;
    signals
        .publish(run, &name("approve"), payload, &kind, delivery_id)
        .await
}

async fn one(signals: &SignalStream) -> SignalDelivery {
    let mut batch = signals.next_batch(1, SOON).await.expect("a link");
    batch.pop().expect("a signal within ten seconds")
}
