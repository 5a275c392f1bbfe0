//! The beginnings of the corpus, from real encodings and from what is known to be odd.

use std::collections::BTreeMap;

use continuum_bus::{ContentType, Headers, Subject, Subjects};
use continuum_schema::event::{
    ActivityOptions, ActivityScheduled, Event, Failure, Outcome, RetryPolicy, Unread,
};
use continuum_schema::{Name, Payload};
use serde::Serialize;
use uuid::Uuid;

use super::payload::{Order, Paid};
use super::replay::input;
use super::signal::{INSTANCE, RUN};

/// A file of the corpus.
#[derive(Debug)]
pub struct Seed {
    /// The target that it is for.
    pub target: &'static str,
    /// The name of its file.
    pub name: String,
    /// What the file holds.
    pub bytes: Vec<u8>,
}

/// Every seed. Their names tell what they hold.
pub fn seeds() -> Vec<Seed> {
    let of = |target: &'static str, files: Vec<File>| {
        files.into_iter().map(move |(name, bytes)| Seed {
            target,
            name,
            bytes,
        })
    };
    of("event", events())
        .chain(of("payload", payloads()))
        .chain(of("subject", subjects()))
        .chain(of("signal", signals()))
        .chain(of("cli_json", command_lines()))
        .chain(of("replay", histories()))
        .collect()
}

type File = (String, Vec<u8>);

fn file(name: &str, bytes: impl Into<Vec<u8>>) -> File {
    (name.to_owned(), bytes.into())
}

/// An input is stored without its format byte where the target puts that in front itself.
fn packed<T: Serialize + ?Sized>(value: &T) -> Payload {
    Payload::encode(value).expect("seeds have an encoding")
}

// ---- events ---------------------------------------------------------------------------------------------------------

fn events() -> Vec<File> {
    let mut files: Vec<File> = every_event()
        .iter()
        .map(|(name, event)| (name.clone(), row(event.kind(), &event.encode())))
        .collect();
    let fired = Event::TimerFired { effect: 3 };
    let bytes = fired.encode();
    let json = br#"{"TimerFired":{"effect":3}}"#;
    files.extend([
        file("empty-column", row(6, &[])),
        file("json", row(6, &[&[2], json.as_slice()].concat())),
        file("cut-short", row(6, &bytes[..bytes.len() - 1])),
        file("with-a-tail", row(6, &[&bytes[..], &[0]].concat())),
        file("kind-of-another", row(7, &bytes)),
        file("kind-below-zero", row(-1, &bytes)),
        file("kind-to-come", row(99, &bytes)),
        file("format-to-come", row(6, &[&[3], &bytes[1..]].concat())),
        // An array that claims four thousand million items.
        file("long-claim", row(10, b"\x01\xdd\xff\xff\xff\xff\xc0")),
    ]);
    files
}

fn row(kind: i16, column: &[u8]) -> Vec<u8> {
    let kind = i8::try_from(kind).expect("seeds have small kinds");
    [&[kind.cast_unsigned()], column].concat()
}

fn every_event() -> Vec<(String, Event)> {
    let (name, reason) = ("review".to_owned(), "enough".to_owned());
    let hash = "n1:0123456789abcdef0123456789abcdef".to_owned();
    let payload = packed(&order());
    let ok = || Outcome::Ok(packed(&7_u64));
    let all = [
        Event::Started { version: 2, hash },
        Event::ActivityScheduled(scheduled(RetryPolicy::default())),
        Event::ActivityCompleted {
            effect: 1,
            attempt: 3,
            outcome: ok(),
        },
        Event::StepCompleted {
            effect: 2,
            name: "validate".to_owned(),
            outcome: Outcome::Err(failure()),
        },
        Event::TimerStarted {
            effect: 3,
            fire_at: 1_796_000_000_000_000,
        },
        Event::TimerFired { effect: 3 },
        Event::SignalReceived {
            effect: 4,
            name,
            payload: payload.clone(),
            delivery_id: Some("review-1".to_owned()),
        },
        Event::CancelRequested {
            reason: reason.clone(),
        },
        Event::Dropped { effect: u32::MAX },
        Event::Completed {
            result: payload,
            unread: unread(),
        },
        Event::Failed {
            failure: failure(),
            unread: Vec::new(),
        },
        Event::Cancelled {
            reason,
            unread: unread(),
        },
    ];
    let odd_factor = RetryPolicy {
        factor: f64::NAN,
        ..RetryPolicy::default()
    };
    let odd = Event::ActivityScheduled(scheduled(odd_factor));
    let named = all.map(|event| (event.name().to_owned(), event));
    let odd = ("factor-not-a-number".to_owned(), odd);
    named.into_iter().chain([odd]).collect()
}

fn scheduled(retry: RetryPolicy) -> ActivityScheduled {
    ActivityScheduled {
        effect: 1,
        name: "charge_card".to_owned(),
        input: packed(&order()),
        options: ActivityOptions {
            queue: "payments".to_owned(),
            retry,
            timeout_ms: 30_000,
            idempotency_key: Some("order-1".to_owned()),
        },
    }
}

fn failure() -> Failure {
    Failure {
        kind: "CardDeclined".to_owned(),
        message: "no money".to_owned(),
        retryable: false,
        details: Some(packed(&("4242", 500_u32))),
        causes: vec!["the bank said so".to_owned()],
    }
}

fn unread() -> Vec<Unread> {
    vec![Unread {
        name: "review".to_owned(),
        delivery_id: Some("review-2".to_owned()),
    }]
}

// ---- payloads -------------------------------------------------------------------------------------------------------

fn order() -> Order {
    Order {
        id: "order-1".to_owned(),
        lines: vec![("böok".to_owned(), 2)],
        paid: Some(Paid::Card {
            last4: "4242".to_owned(),
        }),
        notes: BTreeMap::from([("weight".to_owned(), -3)]),
    }
}

/// The target takes each as JSON, as MessagePack and, format byte included, as stored.
fn payloads() -> Vec<File> {
    let stored = packed(&order());
    let json = serde_json::to_vec(&order()).expect("seeds have an encoding");
    let cash = Order {
        paid: Some(Paid::Cash),
        ..order()
    };
    let mut files = vec![
        file("messagepack", stored.body()),
        file("json", json.clone()),
        file("stored", stored.as_bytes()),
        file("stored-cash", packed(&cash).into_bytes()),
        file("stored-json", [&[2], &json[..]].concat()),
        file("stored-empty", [1]),
        file("stored-unit", Payload::unit().into_bytes()),
        file("stored-uuid", packed(&RUN).into_bytes()),
        file("stored-u128", packed(&u128::MAX).into_bytes()),
        file("stored-twice", packed(&stored).into_bytes()),
        file(
            "stored-keys",
            packed(&BTreeMap::from([(7, "seven")])).into_bytes(),
        ),
        file("stored-binary", [1, 0xc4, 2, 0, 255]),
        file("stored-extension", [1, 0xd4, 5, 1]),
        file("stored-reserved", [1, 0xc1]),
        file("stored-invalid-text", [1, 0xa2, 0xc3, 0x28]),
        file(
            "stored-not-a-number",
            [1, 0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0],
        ),
        file("stored-long-claim", [1, 0xc6, 0xff, 0xff, 0xff, 0xff, 1]),
        // Above the depth that either decoder takes, and below.
        file("deep-messagepack", [vec![0x91; 1_100], vec![0xc0]].concat()),
        file(
            "nested-messagepack",
            [vec![0x91; 1_000], vec![0xc0]].concat(),
        ),
    ];
    let texts = [
        (
            "numbers",
            "[0, -0, 1e400, 18446744073709551616, 1.10, -9223372036854775808]",
        ),
        ("escapes", r#""\ud83d\ude00 \u0000 \ud800 \/""#),
        ("spaces", " \r\n\t[ 1 , 2 ] \n"),
        ("twice-the-same-key", r#"{"a":1,"a":2}"#),
        ("two-values", "1 2"),
        ("cut-short", r#"{"a":"#),
    ];
    files.extend(texts.map(|(name, text)| file(name, text)));
    files.push(file("deep-json", "[".repeat(200)));
    files.push(file("invalid-text", *b"\"\xff\""));
    files
}

// ---- subjects -------------------------------------------------------------------------------------------------------

fn subjects() -> Vec<File> {
    let instance = Name::new(INSTANCE).expect("a name");
    let (run, session) = (RUN, Uuid::from_u128(7));
    let name = Name::new("fraud-review_2").expect("a name");
    let all = [
        ("wake", Subject::Wake { session, run }),
        ("closed", Subject::Closed { run }),
        ("ping", Subject::Ping { session }),
        ("ready", Subject::Ready),
        (
            "queue",
            Subject::Queue {
                queue: name.clone(),
            },
        ),
        (
            "signal",
            Subject::Signal {
                run,
                name: name.clone(),
            },
        ),
        ("catchup", Subject::Catchup),
        ("api", Subject::Api { verb: name }),
    ];
    let built = all.map(|(name, subject)| {
        let text = Subjects::new(&instance).build(&subject);
        (name, text)
    });
    let id = run.to_string();
    let odd = [
        ("foreign", "continuum.other.ready".to_owned()),
        ("unknown", "continuum.prod.signal".to_owned()),
        (
            "upper-case-id",
            format!("continuum.prod.closed.{}", id.to_uppercase()),
        ),
        ("bare-id", format!("continuum.prod.closed.{}", run.simple())),
        (
            "braced-id",
            format!("continuum.prod.closed.{}", run.braced()),
        ),
        ("wildcard", format!("continuum.prod.signal.{id}.*")),
        ("escaping", format!("continuum.prod.signal.{id}.a.b")),
        ("empty-token", "continuum.prod.queue.".to_owned()),
        ("line-break", "continuum.prod.queue.a\r\nPUB b".to_owned()),
        (
            "long-name",
            format!("continuum.prod.queue.{}", "q".repeat(129)),
        ),
    ];
    built
        .into_iter()
        .chain(odd)
        .map(|(name, text)| file(name, format!("{instance}\n{text}")))
        .collect()
}

// ---- signals --------------------------------------------------------------------------------------------------------

fn signals() -> Vec<File> {
    let json = br#"{"approved":true}"#.as_slice();
    let packed = packed(&order());
    let ours = [
        ("json", own(&ContentType::Json, Some("review-1"), json)),
        (
            "messagepack",
            own(&ContentType::MsgPack, None, packed.body()),
        ),
        (
            "xml",
            own(&ContentType::Unknown("text/xml".to_owned()), None, b"<a/>"),
        ),
    ];
    let long = "k".repeat(513);
    let blocks: [(&str, &[u8]); 12] = [
        ("no-headers", b""),
        ("only-a-version", b"NATS/1.0"),
        ("status", b"NATS/1.0 503 No Responders"),
        ("odd-status", b"NATS/1.0 what"),
        ("other-version", b"HTTP/1.0\r\nA: b"),
        (
            "charset",
            b"NATS/1.0\r\ncontent-type: Application/JSON; charset=utf-8",
        ),
        ("folded", b"NATS/1.0\r\nNats-Msg-Id: one\r\n two\r\n\tthree"),
        ("no-colon", b"NATS/1.0\r\nno colon"),
        ("lone-return", b"NATS/1.0\r\nA: x\ry"),
        ("invalid-text", b"NATS/1.0\r\nA: \xff"),
        ("nul-in-the-id", b"NATS/1.0\r\nNats-Msg-Id: a\0b"),
        ("spaces", b"NATS/1.0\nA:\x0b x \xc2\x85\n\n B : c\n:d"),
    ];
    let strange = blocks.map(|(name, block)| (name, message(&signal_subject(), block, json)));
    let long_id = format!("NATS/1.0\r\nNats-Msg-Id: {long}");
    let others = [
        (
            "long-id",
            message(&signal_subject(), long_id.as_bytes(), json),
        ),
        (
            "no-run",
            message("continuum.prod.signal.nobody.review", b"", json),
        ),
        ("no-name", message("continuum.prod.signal", b"", b"")),
        (
            "more-tokens",
            message("continuum.prod.signal.a.b.c.d", b"", b""),
        ),
        ("empty-token", message("continuum.prod.signal..", b"", b"")),
        ("wildcard", message("continuum.prod.signal.>", b"", b"")),
    ];
    ours.into_iter()
        .chain(strange)
        .chain(others)
        .map(|(name, bytes)| file(name, bytes))
        .collect()
}

fn signal_subject() -> String {
    let instance = Name::new(INSTANCE).expect("a name");
    let name = Name::new("review").expect("a name");
    Subjects::new(&instance).signal(RUN, &name)
}

fn own(content_type: &ContentType, delivery_id: Option<&str>, payload: &[u8]) -> Vec<u8> {
    let mut headers = Headers::new();
    let id = delivery_id.map(|id| (continuum_bus::MESSAGE_ID, id));
    let all = [(continuum_bus::CONTENT_TYPE, content_type.as_str())];
    for (name, value) in all.into_iter().chain(id) {
        headers.add(name, value).expect("seeds have plain headers");
    }
    let wire = headers.to_wire();
    let block = wire.strip_suffix(b"\r\n\r\n").unwrap_or(&wire);
    message(&signal_subject(), block, payload)
}

fn message(subject: &str, block: &[u8], payload: &[u8]) -> Vec<u8> {
    [subject.as_bytes(), b"\n", block, b"\r\n\r\n", payload].concat()
}

// ---- command lines --------------------------------------------------------------------------------------------------

fn command_lines() -> Vec<File> {
    let json = serde_json::to_string(&order()).expect("seeds have an encoding");
    let (long, odd) = ("n".repeat(129), "\u{10ffff}".repeat(32));
    let lines = [
        ("start", "order_flow", "order:1", json.as_str()),
        ("nothing", "", "", ""),
        ("null", "a", "k", "null"),
        ("long-name", &long, "k", "1"),
        ("name-of-escapes", &odd, "k", "1"),
        ("name-with-a-dot", "order.flow", "k", "1"),
        ("key-of-any-text", "a", "é / \u{301} 'x' ; --", "1"),
        ("key-with-nul", "a", "a\0b", "1"),
        ("lines-in-json", "a", "k", "{\n  \"a\": [1,\n 2]\n}\n"),
        ("mark-of-byte-order", "a", "k", "\u{feff}{}"),
        ("digits", "a", "k", "123456789012345678901234567890.10e-400"),
        ("lone-surrogate", "a", "k", r#"["\udc00"]"#),
        ("comment", "a", "k", "1 // one"),
        ("single-quotes", "a", "k", "{'a':1}"),
        ("not-a-number", "a", "k", "NaN"),
    ];
    let mut files: Vec<File> = lines
        .map(|(name, workflow, key, json)| file(name, format!("{workflow}\n{key}\n{json}")))
        .into();
    let brackets = |count: usize| format!("a\nk\n{}{}", "[".repeat(count), "]".repeat(count));
    files.push(file("deepest", brackets(127)));
    files.push(file("too-deep", brackets(128)));
    files.push(file("invalid-text", *b"a\xff\nk\xff\n{\"a\":\"\xff\"}"));
    files
}

// ---- histories ------------------------------------------------------------------------------------------------------

/// Programs that use every instruction, lived, damaged and made up.
fn histories() -> Vec<File> {
    let every: Vec<u8> = (0..12).map(|instruction| instruction + 24).collect();
    let programs: [(&str, &[u8]); 6] = [
        ("every-instruction", &every),
        ("steps", &[12, 24, 36]),
        ("races-and-joins", &[29, 30, 31, 33]),
        ("signals", &[3, 16, 28, 3]),
        ("fails", &[1, 239]),
        ("nothing", &[]),
    ];
    let answers: Vec<u8> = (0..40_u8).map(|n| n.wrapping_mul(37) % 200).collect();
    let cancelled = [&[1, 1, 5, 210], &answers[..8]].concat();
    let wrong: Vec<u8> = (0..40_u8).map(|n| n.wrapping_mul(91) ^ 0xa5).collect();
    let mut files = Vec::new();
    for (name, program) in programs {
        files.push(file(&format!("lived-{name}"), input(0, program, &answers)));
        files.push(file(
            &format!("cancelled-{name}"),
            input(0, program, &cancelled),
        ));
        files.push(file(&format!("damaged-{name}"), input(1, program, &wrong)));
        files.push(file(&format!("made-up-{name}"), input(2, program, &wrong)));
    }
    files
}
