//! Signals: a subject, a block of headers, and a payload, all in a stranger's hand.

use std::time::Duration;

use bytes::Bytes;
use continuum_bus::{
    Bus, CONTENT_TYPE, ContentType, Headers, MESSAGE_ID, SignalDelivery, SignalError,
    SignalSettings, SignalStream, Subjects,
};
use continuum_schema::{KEY_BYTES_MAX, Key, Name, Payload};
use uuid::Uuid;

use super::split;

/// The run that every signal here is for.
pub(super) const RUN: Uuid = Uuid::from_u128(0x0190_b3c2_0000_7000_8000_0000_0000_0001);

/// The instance that reads them.
pub(super) const INSTANCE: &str = "prod";

/// The first line is a subject. The headers as they travel follow, up to an empty line, then the payload.
///
/// Headers that can be read survive the wire. A signal on any subject is delivered, with its run and name or with its
/// fault, and always under an id that Postgres can store. A signal of our own is delivered as it was sent.
pub fn signal(data: &[u8]) {
    let (subject, rest) = split(data, b"\n");
    let (block, payload) = split(rest, b"\r\n\r\n");
    strange_subject(&String::from_utf8_lossy(subject), payload);
    let terminated = [block, b"\r\n\r\n"].concat();
    let Ok(headers) = Headers::from_wire(&terminated) else {
        return;
    };
    assert_eq!(
        Headers::from_wire(&headers.to_wire()).as_ref(),
        Ok(&headers),
        "the headers changed on the wire"
    );
    sent(&headers, payload);
}

/// Publishes as anybody could, without headers.
fn strange_subject(subject: &str, payload: &[u8]) {
    let (bus, stream) = signals();
    bus.hint(subject, Bytes::copy_from_slice(payload));
    for delivery in deliveries(&stream) {
        let expected = subjects().parse(subject);
        assert_eq!(delivery.parsed.is_ok(), expected.is_ok(), "{subject:?}");
        assert_eq!(delivery.content_type, ContentType::Json);
        check(&delivery, payload);
    }
}

/// Publishes with the content type and the delivery id of the headers.
fn sent(headers: &Headers, payload: &[u8]) {
    let content_type = ContentType::parse(headers.get(CONTENT_TYPE));
    assert_eq!(
        ContentType::parse(Some(content_type.as_str())),
        content_type
    );
    let delivery_id = headers.get(MESSAGE_ID);
    let (_bus, stream) = signals();
    let name = Name::new("review").expect("a name");
    let body = Bytes::copy_from_slice(payload);
    let published = wait(stream.publish(RUN, &name, body, &content_type, delivery_id));
    match published {
        Ok(_) => {}
        Err(SignalError::DeliveryId(_)) => {
            let id = delivery_id.expect("there is one to be refused");
            assert!(Key::new(id).is_err(), "{id:?} is refused");
            return;
        }
        Err(SignalError::TooLarge { .. }) => return,
        Err(error) => panic!("{error}"),
    }
    let deliveries = deliveries(&stream);
    let [delivery] = &deliveries[..] else {
        panic!("{} signals were delivered", deliveries.len());
    };
    assert_eq!(delivery.parsed, Ok((RUN, name)));
    assert_eq!(delivery.content_type, content_type);
    if let Some(id) = delivery_id {
        assert_eq!(delivery.delivery_id.as_str(), id);
    }
    check(delivery, payload);
}

/// What ingest relies on, whatever was sent.
fn check(delivery: &SignalDelivery, payload: &[u8]) {
    assert_eq!(delivery.payload, payload);
    assert_eq!(delivery.deliveries, 1);
    let id = delivery.delivery_id.as_str();
    assert!(!id.is_empty() && id.len() <= KEY_BYTES_MAX && !id.contains('\0'));
    let taken = match delivery.content_type {
        ContentType::Json => Payload::from_json(payload),
        ContentType::MsgPack => Payload::from_message_pack(payload),
        ContentType::Unknown(_) => return,
    };
    if let Ok(taken) = taken {
        assert_eq!(taken.body(), payload);
    }
    Headers::from_wire(&delivery.header_bytes).expect("the bus hands out readable headers");
    wait(delivery.ack()).expect("a bus in memory takes every answer");
}

fn subjects() -> Subjects {
    Subjects::new(&Name::new(INSTANCE).expect("a name"))
}

fn signals() -> (Bus, SignalStream) {
    let bus = Bus::memory();
    let stream = bus.signals(&subjects(), &SignalSettings::default());
    wait(stream.ensure()).expect("a bus in memory makes every stream");
    (bus, stream)
}

fn deliveries(stream: &SignalStream) -> Vec<SignalDelivery> {
    wait(stream.next_batch(10, Duration::ZERO)).expect("a bus in memory is always there")
}

/// Nothing here waits for anything: the bus is in memory.
fn wait<F: Future>(future: F) -> F::Output {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without I/O needs nothing of the system");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}
