//! The signal stream on a real server: a work queue in JetStream and one durable consumer that all workers share.
//!
//! Pulls are written out here instead of using the client's: they tell a vanished consumer from an empty one, and
//! they know a stored message (its reply subject is an acknowledgement) from a status of the server, which a
//! publisher can imitate in its headers.
//!
//! A stored message may be one that breaks the client of whoever receives it: headers that are not UTF-8, a line
//! without a colon, a lone carriage return. The broker would deliver it again and again, and break each worker's
//! link each time. So whenever the link broke during a pull, the messages that were delivered and not settled are
//! first looked at through the management interface, where headers travel encoded; the guilty ones come out as
//! faulty deliveries, and their termination removes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::StatusCode;
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, PullConsumer, ReplayPolicy};
use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind,
};
use async_nats::jetstream::stream::{
    self, ConsumerErrorKind, DiscardPolicy, RetentionPolicy, StorageType,
};
use async_nats::jetstream::{self, AckKind, Context, ErrorCode};
use bytes::Bytes;
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::time::Instant;

use crate::base64;
use crate::config::SignalSettings;
use crate::connection::NatsBus;
use crate::envelope::{HeaderError, Headers, Message};
use crate::error::{BarrierError, RequestError, SignalError};
use crate::signal::{
    Acker, CONSUMER, DUPLICATE_WINDOW, Outgoing, Place, PublishAck, SignalDelivery, SignalFault,
};
use crate::subject::Subjects;

const ACK_PREFIX: &str = "$JS.ACK.";
/// What a pull may take longer than the server was told, before the answer counts as lost.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct JetStreamSignals {
    bus: NatsBus,
    stream: String,
    /// The link broke during a pull: look before pulling again.
    suspicious: Arc<AtomicBool>,
}

pub(crate) struct JetStreamAcker {
    bus: NatsBus,
    reply: String,
}

impl std::fmt::Debug for JetStreamAcker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("JetStreamAcker").field(&self.reply).finish()
    }
}

/// How a pull ended.
enum Pulled {
    /// It brought what it could.
    Done,
    /// There is no consumer (any more).
    NoConsumer,
}

#[derive(Deserialize)]
struct PublishReply {
    #[serde(default)]
    duplicate: bool,
    error: Option<ApiError>,
}

#[derive(Default, Deserialize)]
struct ErrorReply {
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

impl From<ApiError> for SignalError {
    fn from(error: ApiError) -> Self {
        Self::Refused {
            code: error.err_code,
            description: error.description,
        }
    }
}

#[derive(Deserialize)]
struct StoredReply {
    message: Option<StoredMessage>,
}

#[derive(Deserialize)]
struct StoredMessage {
    subject: String,
    seq: u64,
    /// Base64, absent if there are none.
    #[serde(default)]
    hdrs: String,
    /// Base64, absent if empty.
    #[serde(default)]
    data: String,
    #[serde(with = "time::serde::rfc3339")]
    time: time::OffsetDateTime,
}

impl JetStreamSignals {
    pub(crate) fn new(bus: NatsBus, subjects: &Subjects) -> Self {
        Self {
            bus,
            stream: subjects.signal_stream(),
            suspicious: Arc::default(),
        }
    }

    pub(crate) fn max_payload(&self) -> usize {
        self.bus.max_payload()
    }

    pub(crate) async fn ensure(
        &self,
        subjects: &Subjects,
        settings: &SignalSettings,
    ) -> Result<(), SignalError> {
        let context = self.context();
        let work = async {
            let stream = self.ensure_stream(&context, subjects, settings).await?;
            self.ensure_consumer(&stream, settings).await
        };
        self.unless_lost(work).await?
    }

    async fn ensure_stream(
        &self,
        context: &Context,
        subjects: &Subjects,
        settings: &SignalSettings,
    ) -> Result<stream::Stream, SignalError> {
        let wanted = stream_config(&self.stream, subjects, settings);
        // Asking first leaves a stream that is there alone. Two workers that both find none ask for the same one.
        let found = match context.get_stream(&self.stream).await {
            Ok(stream) => stream,
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(api)
                    if api.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    let made = context.create_stream(wanted.clone()).await;
                    match made {
                        Ok(stream) => stream,
                        Err(error) => self.stream_made_by_another(context, error).await?,
                    }
                }
                GetStreamErrorKind::JetStream(api) => return Err(refused(&api)),
                _ => return Err(self.request_failed(&error)),
            },
        };
        let differences = stream_differences(&found.cached_info().config, &wanted);
        if differences.is_empty() {
            return Ok(found);
        }
        Err(SignalError::StreamDiffers {
            stream: self.stream.clone(),
            differences,
        })
    }

    async fn stream_made_by_another(
        &self,
        context: &Context,
        error: CreateStreamError,
    ) -> Result<stream::Stream, SignalError> {
        match error.kind() {
            CreateStreamErrorKind::JetStream(api)
                if api.error_code() == ErrorCode::STREAM_NAME_EXIST =>
            {
                let found = context.get_stream(&self.stream).await;
                found.map_err(|error| self.request_failed(&error))
            }
            CreateStreamErrorKind::JetStream(api) => Err(refused(&api)),
            _ => Err(self.request_failed(&error)),
        }
    }

    async fn ensure_consumer(
        &self,
        stream: &stream::Stream,
        settings: &SignalSettings,
    ) -> Result<(), SignalError> {
        let wanted = consumer_config(settings);
        let found = match stream.consumer_info(CONSUMER).await {
            Ok(info) => info.config,
            Err(_) => {
                // Most often: there is none. If it is something else, the request to make one tells.
                let made: Result<PullConsumer, _> = stream.create_consumer(wanted.clone()).await;
                match made {
                    Ok(consumer) => consumer.cached_info().config.clone(),
                    Err(error) => {
                        return Err(match error.kind() {
                            ConsumerErrorKind::JetStream(api) => refused(&api),
                            _ => self.request_failed(&error),
                        });
                    }
                }
            }
        };
        let fixed = fixed_differences(&found);
        if !fixed.is_empty() {
            return Err(self.consumer_differs(fixed));
        }
        let changeable = changeable_differences(&found, &wanted);
        if changeable.is_empty() {
            return Ok(());
        }
        tracing::info!(?changeable, "bringing the signal consumer into line");
        let updated: Result<PullConsumer, _> = stream.create_consumer(wanted.clone()).await;
        match updated {
            Ok(consumer) => {
                let left = changeable_differences(&consumer.cached_info().config, &wanted);
                if left.is_empty() {
                    Ok(())
                } else {
                    Err(self.consumer_differs(left))
                }
            }
            Err(_) => Err(self.consumer_differs(changeable)),
        }
    }

    fn consumer_differs(&self, differences: Vec<String>) -> SignalError {
        SignalError::ConsumerDiffers {
            consumer: format!("{}/{CONSUMER}", self.stream),
            differences,
        }
    }

    pub(crate) async fn next_batch(
        &self,
        subjects: &Subjects,
        settings: &SignalSettings,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<SignalDelivery>, SignalError> {
        if self.suspicious.load(Ordering::Acquire) {
            let faulty = Box::pin(self.inspect(subjects)).await?;
            if !faulty.is_empty() {
                return Ok(faulty);
            }
            self.suspicious.store(false, Ordering::Release);
        }
        match self.pull_batch(subjects, max, wait).await {
            Ok((deliveries, Pulled::NoConsumer)) if deliveries.is_empty() => {
                tracing::warn!(stream = %self.stream, "the signal consumer is gone; making it again");
                Box::pin(self.ensure(subjects, settings)).await?;
                let (deliveries, _) = self.pull_batch(subjects, max, wait).await?;
                Ok(deliveries)
            }
            Ok((deliveries, _)) => Ok(deliveries),
            Err(error) => {
                self.suspicious.store(true, Ordering::Release);
                Err(error)
            }
        }
    }

    /// What is there; if nothing is, the first that comes and what is there then.
    async fn pull_batch(
        &self,
        subjects: &Subjects,
        max: usize,
        wait: Duration,
    ) -> Result<(Vec<SignalDelivery>, Pulled), SignalError> {
        let mut deliveries = Vec::new();
        let work = async {
            let ended = self.pull(subjects, &mut deliveries, max, None).await?;
            if !deliveries.is_empty() || wait.is_zero() || matches!(ended, Pulled::NoConsumer) {
                return Ok(ended);
            }
            let ended = self.pull(subjects, &mut deliveries, 1, Some(wait)).await?;
            if deliveries.is_empty() || max == 1 {
                return Ok(ended);
            }
            self.pull(subjects, &mut deliveries, max - 1, None).await
        };
        let ended = self.unless_lost(work).await.and_then(|ended| ended);
        match ended {
            // What came before the break is worth storing, and the break shows again at the next pull.
            Err(SignalError::Disconnected) if !deliveries.is_empty() => {
                self.suspicious.store(true, Ordering::Release);
                Ok((deliveries, Pulled::Done))
            }
            ended => ended.map(|ended| (deliveries, ended)),
        }
    }

    /// One pull of up to `max`: without `wait` of what is there, else of what comes within it.
    async fn pull(
        &self,
        subjects: &Subjects,
        deliveries: &mut Vec<SignalDelivery>,
        max: usize,
        wait: Option<Duration>,
    ) -> Result<Pulled, SignalError> {
        if !self.bus.shared.is_up() {
            return Err(SignalError::Disconnected);
        }
        let client = self.bus.shared.client();
        let inbox = client.new_inbox();
        let patience = wait.map_or(self.bus.shared.timeout, |wait| wait + GRACE);
        let deadline = Instant::now() + patience;
        let asked = async {
            let subscriber = client.subscribe(inbox.clone()).await.ok()?;
            let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{CONSUMER}", self.stream);
            let ask = pull_request(max, wait);
            client.publish_with_reply(subject, inbox, ask).await.ok()?;
            Some(subscriber)
        };
        let mut subscriber = match tokio::time::timeout_at(deadline, asked).await {
            Ok(Some(subscriber)) => subscriber,
            _ => return Err(SignalError::Disconnected),
        };
        let wanted = deliveries.len() + max;
        while deliveries.len() < wanted {
            let next = match tokio::time::timeout_at(deadline, subscriber.next()).await {
                Ok(Some(message)) => message,
                Ok(None) => return Err(SignalError::Disconnected),
                // The server's word that the wait is over got lost; the next pull finds out more.
                Err(_) if wait.is_some() => return Ok(Pulled::Done),
                Err(_) => return self.silence().await,
            };
            // A stored message has an acknowledgement subject as its reply; all else is the server talking.
            let message = jetstream::Message {
                context: self.context(),
                message: next,
            };
            match message.info() {
                Ok(info) => deliveries.push(self.delivery(subjects, &message, &info)),
                Err(_) => match status(message.message)? {
                    Some(ended) => return Ok(ended),
                    None => continue,
                },
            }
        }
        Ok(Pulled::Done)
    }

    /// What it means that a pull got no answer. A server of version 2.9 answers nothing if there is no such consumer.
    async fn silence(&self) -> Result<Pulled, SignalError> {
        let subject = format!("$JS.API.CONSUMER.INFO.{}.{CONSUMER}", self.stream);
        let answer = self
            .bus
            .request(
                &subject,
                &Headers::new(),
                Bytes::new(),
                self.bus.shared.timeout,
            )
            .await
            .map_err(|error| self.request_error(error))?;
        let reply: ErrorReply = serde_json::from_slice(&answer.payload).unwrap_or_default();
        let gone = [ErrorCode::CONSUMER_NOT_FOUND, ErrorCode::STREAM_NOT_FOUND];
        match reply.error {
            Some(error) if gone.contains(&ErrorCode(error.err_code)) => Ok(Pulled::NoConsumer),
            Some(error) => Err(error.into()),
            None => Err(SignalError::TimedOut),
        }
    }

    fn delivery(
        &self,
        subjects: &Subjects,
        stored: &jetstream::Message,
        info: &jetstream::message::Info<'_>,
    ) -> SignalDelivery {
        let place = Place {
            stream: &self.stream,
            sequence: info.stream_sequence,
            nanos: info.published.unix_timestamp_nanos(),
            deliveries: u64::try_from(info.delivered).unwrap_or(1).max(1),
        };
        let reply = stored.reply.as_ref().map(ToString::to_string);
        let acker = Acker::Nats(JetStreamAcker {
            bus: self.bus.clone(),
            reply: reply.unwrap_or_default(),
        });
        let message = Message::from_nats(stored.message.clone());
        SignalDelivery::new(subjects, message, &place, acker)
    }

    pub(crate) async fn publish(&self, outgoing: Outgoing) -> Result<PublishAck, SignalError> {
        let answer = self
            .bus
            .request(
                &outgoing.subject,
                &outgoing.headers,
                outgoing.payload,
                self.bus.shared.timeout,
            )
            .await
            .map_err(|error| self.request_error(error))?;
        let reply: PublishReply =
            serde_json::from_slice(&answer.payload).map_err(|error| SignalError::Refused {
                code: 0,
                description: format!("not an acknowledgement of the signal stream: {error}"),
            })?;
        match reply.error {
            None => Ok(PublishAck {
                duplicate: reply.duplicate,
            }),
            Some(error) => Err(error.into()),
        }
    }

    /// The messages that were delivered, are not settled, and can't be delivered without breaking the link.
    async fn inspect(&self, subjects: &Subjects) -> Result<Vec<SignalDelivery>, SignalError> {
        let context = self.context();
        let Ok(stream) = context.get_stream(&self.stream).await else {
            return self.nothing_to_inspect();
        };
        let Ok(consumer) = stream.consumer_info(CONSUMER).await else {
            return self.nothing_to_inspect();
        };
        let last = consumer.delivered.stream_sequence;
        let mut sequence = stream.cached_info().state.first_sequence;
        let mut faulty = Vec::new();
        // At most as many as may be unsettled at once: what is settled is gone from a work queue.
        while sequence <= last {
            let Some(stored) = self.stored_from(subjects, sequence).await? else {
                break;
            };
            sequence = stored.seq + 1;
            if stored.seq <= last {
                faulty.extend(self.faulty(stored)?);
            }
        }
        if !faulty.is_empty() {
            tracing::warn!(
                count = faulty.len(),
                "found signals that break the NATS client"
            );
        }
        Ok(faulty)
    }

    fn nothing_to_inspect(&self) -> Result<Vec<SignalDelivery>, SignalError> {
        if self.bus.shared.is_up() {
            Ok(Vec::new())
        } else {
            Err(SignalError::Disconnected)
        }
    }

    /// The first stored message at or after `sequence`.
    async fn stored_from(
        &self,
        subjects: &Subjects,
        sequence: u64,
    ) -> Result<Option<StoredMessage>, SignalError> {
        let subject = format!("$JS.API.STREAM.MSG.GET.{}", self.stream);
        let filter = subjects.signals();
        let ask = format!("{{\"seq\":{sequence},\"next_by_subj\":\"{filter}\"}}");
        let ask = Bytes::from(ask);
        let answer = self
            .bus
            .request(&subject, &Headers::new(), ask, self.bus.shared.timeout)
            .await
            .map_err(|error| self.request_error(error))?;
        let reply: StoredReply =
            serde_json::from_slice(&answer.payload).map_err(|error| SignalError::Refused {
                code: 0,
                description: format!("message {sequence} can't be looked at: {error}"),
            })?;
        Ok(reply.message)
    }

    fn faulty(&self, stored: StoredMessage) -> Result<Option<SignalDelivery>, SignalError> {
        let undecodable = || SignalError::Refused {
            code: 0,
            description: format!("message {} is not valid base64", stored.seq),
        };
        let headers = Bytes::from(base64::decode(&stored.hdrs).ok_or_else(undecodable)?);
        let payload = Bytes::from(base64::decode(&stored.data).ok_or_else(undecodable)?);
        let fault = match Headers::from_wire(&headers) {
            Err(fault) => fault,
            // The server writes this character for bytes that are not UTF-8.
            Ok(_) if stored.subject.contains(char::REPLACEMENT_CHARACTER) => {
                HeaderError::Block("the subject is not UTF-8")
            }
            Ok(_) => return Ok(None),
        };
        let place = Place {
            stream: &self.stream,
            sequence: stored.seq,
            nanos: stored.time.unix_timestamp_nanos(),
            deliveries: 1,
        };
        let acker = Acker::Nats(JetStreamAcker {
            bus: self.bus.clone(),
            reply: self.ack_subject(&place),
        });
        let fault = SignalFault::from(fault);
        let bytes = (headers, payload);
        Ok(Some(SignalDelivery::malformed(
            stored.subject,
            bytes,
            fault,
            &place,
            acker,
        )))
    }

    /// `$JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>`: the
    /// server goes by the stream sequence.
    fn ack_subject(&self, place: &Place<'_>) -> String {
        format!(
            "{ACK_PREFIX}{}.{CONSUMER}.1.{}.1.{}.0",
            self.stream, place.sequence, place.nanos
        )
    }

    fn context(&self) -> Context {
        let mut context = jetstream::new(self.bus.shared.client());
        context.set_timeout(self.bus.shared.timeout);
        context
    }

    async fn unless_lost<T>(&self, work: impl Future<Output = T>) -> Result<T, SignalError> {
        if !self.bus.shared.is_up() {
            return Err(SignalError::Disconnected);
        }
        let done = self.bus.shared.link.unless_lost(work).await;
        done.map_err(|_: BarrierError| SignalError::Disconnected)
    }

    /// A management request failed below JetStream itself.
    fn request_failed(&self, error: &dyn std::fmt::Display) -> SignalError {
        if !self.bus.shared.is_up() {
            return SignalError::Disconnected;
        }
        let text = error.to_string();
        if text.contains("timed out") {
            SignalError::TimedOut
        } else if text.contains("no responders") {
            SignalError::NoStream(self.stream.clone())
        } else {
            SignalError::Refused {
                code: 0,
                description: text,
            }
        }
    }

    fn request_error(&self, error: RequestError) -> SignalError {
        match error {
            RequestError::NoResponders(_) => SignalError::NoStream(self.stream.clone()),
            RequestError::TimedOut(_) => SignalError::TimedOut,
            RequestError::TooLarge { bytes, limit } => SignalError::TooLarge { bytes, limit },
            RequestError::Disconnected | RequestError::Closed => SignalError::Disconnected,
            RequestError::InvalidSubject(subject) => SignalError::Refused {
                code: 0,
                description: format!("{subject:?} is not a valid subject"),
            },
        }
    }
}

impl JetStreamAcker {
    pub(crate) async fn ack(&self) -> Result<(), SignalError> {
        self.settle(AckKind::Ack).await
    }

    pub(crate) async fn nak(&self, delay: Duration) -> Result<(), SignalError> {
        self.settle(AckKind::Nak(Some(delay))).await
    }

    pub(crate) async fn term(&self) -> Result<(), SignalError> {
        self.settle(AckKind::Term).await
    }

    async fn settle(&self, kind: AckKind) -> Result<(), SignalError> {
        self.bus
            .send(&self.reply, &Headers::new(), kind.into())
            .await
            .map_err(|_| SignalError::Disconnected)
    }
}

/// What a status means: the end of the pull, nothing, or an error.
fn status(message: async_nats::Message) -> Result<Option<Pulled>, SignalError> {
    let description = message.description.unwrap_or_default();
    match message.status {
        Some(StatusCode::NOT_FOUND | StatusCode::TIMEOUT) => Ok(Some(Pulled::Done)),
        Some(StatusCode::NO_RESPONDERS) => Ok(Some(Pulled::NoConsumer)),
        Some(StatusCode::IDLE_HEARTBEAT) | None => Ok(None),
        Some(status) if status.as_u16() == 409 => {
            // "Consumer Deleted" is mended by making it again; the others ("Exceeded MaxWaiting", "Server
            // Shutdown", "Leadership Change") end this pull only.
            let gone = description.contains("Consumer Deleted");
            Ok(Some(if gone {
                Pulled::NoConsumer
            } else {
                Pulled::Done
            }))
        }
        Some(status) => Err(SignalError::Refused {
            code: u64::from(status.as_u16()),
            description,
        }),
    }
}

fn pull_request(max: usize, wait: Option<Duration>) -> Bytes {
    let text = match wait {
        None => format!("{{\"batch\":{max},\"no_wait\":true}}"),
        Some(wait) => format!("{{\"batch\":{max},\"expires\":{}}}", wait.as_nanos()),
    };
    text.into()
}

fn stream_config(name: &str, subjects: &Subjects, settings: &SignalSettings) -> stream::Config {
    stream::Config {
        name: name.to_owned(),
        description: Some("Signals that no worker has ingested yet".to_owned()),
        subjects: vec![subjects.signals()],
        retention: RetentionPolicy::WorkQueue,
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        max_age: Duration::ZERO,
        max_bytes: -1,
        max_messages: -1,
        max_messages_per_subject: -1,
        max_message_size: i32::try_from(settings.max_message_bytes).unwrap_or(i32::MAX),
        num_replicas: settings.replicas,
        duplicate_window: DUPLICATE_WINDOW,
        deny_delete: true,
        deny_purge: true,
        ..stream::Config::default()
    }
}

/// What breaks a promise or differs between workers. An operator may set what is not named here, such as a limit on
/// bytes.
fn stream_differences(found: &stream::Config, wanted: &stream::Config) -> Vec<String> {
    let mut all = Differences::default();
    all.add("subjects", &found.subjects, &wanted.subjects);
    all.add("retention", &found.retention, &wanted.retention);
    all.add("storage", &found.storage, &wanted.storage);
    all.add("discard", &found.discard, &wanted.discard);
    all.add("max_age", &found.max_age, &wanted.max_age);
    all.add("deny_delete", &found.deny_delete, &wanted.deny_delete);
    all.add("deny_purge", &found.deny_purge, &wanted.deny_purge);
    all.add("replicas", &found.num_replicas, &wanted.num_replicas);
    all.add(
        "max_msg_size",
        &found.max_message_size,
        &wanted.max_message_size,
    );
    all.add(
        "duplicate_window",
        &found.duplicate_window,
        &wanted.duplicate_window,
    );
    all.0
}

fn consumer_config(settings: &SignalSettings) -> consumer::pull::Config {
    consumer::pull::Config {
        durable_name: Some(CONSUMER.to_owned()),
        description: Some("All workers of the instance pull here".to_owned()),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: settings.ack_wait,
        max_deliver: -1,
        replay_policy: ReplayPolicy::Instant,
        max_ack_pending: i64::from(settings.max_ack_pending),
        ..consumer::pull::Config::default()
    }
}

/// Differences that the server can't mend in place.
fn fixed_differences(found: &consumer::Config) -> Vec<String> {
    let mut all = Differences::default();
    all.add("deliver_subject", &found.deliver_subject, &None);
    all.add("ack_policy", &found.ack_policy, &AckPolicy::Explicit);
    all.add("deliver_policy", &found.deliver_policy, &DeliverPolicy::All);
    all.add(
        "replay_policy",
        &found.replay_policy,
        &ReplayPolicy::Instant,
    );
    all.add("filter_subject", &&*found.filter_subject, &"");
    all.0
}

/// Differences that an update mends.
fn changeable_differences(
    found: &consumer::Config,
    wanted: &consumer::pull::Config,
) -> Vec<String> {
    let mut all = Differences::default();
    all.add("ack_wait", &found.ack_wait, &wanted.ack_wait);
    all.add("max_deliver", &found.max_deliver, &wanted.max_deliver);
    all.add(
        "max_ack_pending",
        &found.max_ack_pending,
        &wanted.max_ack_pending,
    );
    all.add("headers_only", &found.headers_only, &wanted.headers_only);
    all.add("backoff", &found.backoff, &wanted.backoff);
    all.0
}

#[derive(Default)]
struct Differences(Vec<String>);

impl Differences {
    fn add<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, found: &T, wanted: &T) {
        if found != wanted {
            self.0
                .push(format!("{what} is {found:?}, wanted is {wanted:?}"));
        }
    }
}

fn refused(error: &jetstream::Error) -> SignalError {
    SignalError::Refused {
        code: error.error_code().0,
        description: error.to_string(),
    }
}
