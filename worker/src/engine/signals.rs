//! Signal ingest: takes a batch from the signal stream, commits it, and only then acknowledges.

use std::sync::Arc;
use std::time::Duration;

use continuum_bus::{ContentType, SignalDelivery, SignalError};
use continuum_schema::mailbox::{self, PostOutcome, RejectedSignal, Signal};
use continuum_schema::{Error, Payload};

use super::core::Core;
use crate::retry::Backoff;

/// The most signals of one commit.
const BATCH_MAX: usize = 200;

/// How long one fetch waits for the first signal.
const WAIT: Duration = Duration::from_secs(5);

/// The most bytes that are kept of a signal that can't be taken.
const KEPT_MAX: usize = 4 << 10;

/// When a signal for a run whose row is held comes again.
const BUSY_DELAY: Duration = Duration::from_millis(100);

/// Ingests signals until the worker drains.
pub(crate) async fn ingest(core: Arc<Core>) {
    let stream = core.bus.signals(&core.subjects, &core.signal_settings());
    let mut backoff = Backoff::new(Duration::from_secs(5));
    // The stream must be there before the first signal is, not when somebody first asks for one.
    let ensured = async {
        while let Err(error) = Box::pin(stream.ensure()).await {
            report(&core, &error);
            tokio::time::sleep(backoff.next()).await;
        }
        core.signal_fault.send_replace(None);
    };
    if core.draining.run_until_cancelled(ensured).await.is_none() {
        return;
    }
    loop {
        let fetch = async {
            wait_for_session(&core).await;
            Box::pin(stream.next_batch(BATCH_MAX, WAIT)).await
        };
        let fetch = core.draining.run_until_cancelled(fetch).await;
        match fetch {
            None => return,
            Some(Ok(deliveries)) => {
                backoff.reset();
                core.signal_fault
                    .send_if_modified(|fault| fault.take().is_some());
                if !deliveries.is_empty() {
                    store(&core, deliveries).await;
                }
            }
            Some(Err(error)) => {
                report(&core, &error);
                core.pause(backoff.next()).await;
            }
        }
    }
}

async fn wait_for_session(core: &Core) {
    let mut sessions = core.session.subscribe();
    // The sender lives in `core`, so waiting can't fail.
    drop(sessions.wait_for(Option::is_some).await);
}

fn report(core: &Core, error: &SignalError) {
    match error {
        // The state of the link is told by itself.
        SignalError::Disconnected => tracing::debug!("no link to NATS; signals wait in the stream"),
        error => {
            tracing::warn!(%error, "the signal stream can't be read");
            let fault = format!("the signal stream can't be read: {error}");
            core.signal_fault.send_replace(Some(fault));
        }
    }
}

/// Stores a batch. A batch that Postgres refuses is stored one by one, so that one bad message rejects only itself.
async fn store(core: &Core, deliveries: Vec<SignalDelivery>) {
    let sorted: Vec<Sorted> = deliveries.into_iter().map(|d| sort(core, d)).collect();
    match commit(core, &sorted).await {
        Ok(outcomes) => settle(core, sorted, &outcomes).await,
        Err(error) if error.is_transient() => hand_back(sorted).await,
        Err(_) => {
            for one in sorted {
                store_alone(core, one).await;
            }
        }
    }
}

async fn store_alone(core: &Core, one: Sorted) {
    let mut one = vec![one];
    let result = match commit(core, &one).await {
        Err(error) if !error.is_transient() => {
            if let Some(sorted) = one.first_mut() {
                sorted.reject(error.to_string());
            }
            commit(core, &one).await
        }
        other => other,
    };
    match result {
        Ok(outcomes) => settle(core, one, &outcomes).await,
        Err(error) => {
            tracing::error!(%error, "a signal can neither be stored nor rejected; it comes again");
            hand_back(one).await;
        }
    }
}

/// A delivery, and what it is to become.
struct Sorted {
    delivery: SignalDelivery,
    fate: Fate,
}

enum Fate {
    Post(Signal),
    Reject(RejectedSignal),
}

impl Sorted {
    fn reject(&mut self, reason: String) {
        self.fate = Fate::Reject(rejected(&self.delivery, reason));
    }
}

fn sort(core: &Core, delivery: SignalDelivery) -> Sorted {
    let fate = match signal(core, &delivery) {
        Ok(signal) => Fate::Post(signal),
        Err(reason) => Fate::Reject(rejected(&delivery, reason)),
    };
    Sorted { delivery, fate }
}

/// The signal in a delivery, or the rule that it breaks.
fn signal(core: &Core, delivery: &SignalDelivery) -> Result<Signal, String> {
    let (run_id, name) = delivery.parsed.as_ref().map_err(ToString::to_string)?;
    let max = core.config.limits.payload_bytes_max;
    if delivery.payload.len() > max {
        return Err(format!(
            "the signal has {} bytes; the limit is {max}",
            delivery.payload.len()
        ));
    }
    let payload = match &delivery.content_type {
        ContentType::Json if delivery.payload.is_empty() => Ok(Payload::unit()),
        ContentType::Json => Payload::from_json(&delivery.payload),
        ContentType::MsgPack => Payload::from_message_pack(&delivery.payload),
        ContentType::Unknown(found) => {
            return Err(format!(
                "Content-Type {found:?} is not known; use application/json or application/msgpack"
            ));
        }
    };
    Ok(Signal {
        run_id: *run_id,
        name: name.to_string(),
        payload: payload.map_err(|e| e.to_string())?,
        delivery_id: Some(delivery.delivery_id.to_string()),
    })
}

fn rejected(delivery: &SignalDelivery, reason: String) -> RejectedSignal {
    let kept = delivery.payload.len().min(KEPT_MAX);
    RejectedSignal {
        subject: delivery.subject.replace('\0', "\u{fffd}"),
        reason: reason.replace('\0', "\u{fffd}"),
        delivery_id: Some(delivery.delivery_id.to_string()),
        payload: delivery.payload[..kept].to_vec(),
        size: i64::try_from(delivery.payload.len()).unwrap_or(i64::MAX),
    }
}

/// One commit for good and bad alike; the outcomes are those of the good ones, in order.
async fn commit(core: &Core, sorted: &[Sorted]) -> Result<Vec<PostOutcome>, Error> {
    let mut signals = Vec::new();
    let mut subjects = Vec::new();
    let mut rejected = Vec::new();
    for one in sorted {
        match &one.fate {
            Fate::Post(signal) => {
                signals.push(signal.clone());
                subjects.push(one.delivery.subject.clone());
            }
            Fate::Reject(reject) => rejected.push(reject.clone()),
        }
    }
    mailbox::ingest(&core.database, &signals, &subjects, &rejected).await
}

/// After the commit: acknowledge what is stored, wake whom it concerns. A lost acknowledgement brings the signal again,
/// and its delivery id makes it a duplicate.
async fn settle(core: &Core, sorted: Vec<Sorted>, outcomes: &[PostOutcome]) {
    let mut outcomes = outcomes.iter();
    for one in sorted {
        let settled = match one.fate {
            Fate::Reject(reject) => {
                tracing::warn!(
                    subject = reject.subject,
                    reason = reject.reason,
                    "signal.rejected"
                );
                core.metrics.signals.rejected.inc();
                one.delivery.term().await
            }
            Fate::Post(signal) => match outcomes.next() {
                Some(PostOutcome::Posted(wake)) => {
                    core.metrics.signals.ingested.inc();
                    core.wake(wake);
                    one.delivery.ack().await
                }
                Some(PostOutcome::Busy) => one.delivery.nak(BUSY_DELAY).await,
                Some(PostOutcome::NotFound | PostOutcome::Ended) => {
                    core.metrics.signals.rejected.inc();
                    tracing::warn!(run_id = %signal.run_id, name = signal.name, "signal.rejected");
                    one.delivery.ack().await
                }
                Some(PostOutcome::Duplicate) => {
                    core.metrics.signals.duplicates.inc();
                    one.delivery.ack().await
                }
                None => one.delivery.ack().await,
            },
        };
        if let Err(error) = settled {
            tracing::debug!(%error, "a signal could not be settled; it comes again");
        }
    }
}

async fn hand_back(sorted: Vec<Sorted>) {
    for one in sorted {
        if let Err(error) = one.delivery.nak(Duration::from_secs(1)).await {
            tracing::debug!(%error, "a signal could not be handed back; it comes again");
        }
    }
}
