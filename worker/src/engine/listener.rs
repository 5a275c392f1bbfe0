//! What a worker hears on the bus: wakes of its runs, rings of `ready` and of its queues, pings, calls for a catch-up.
//! All are hints; the bound is always the poll interval.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use continuum_bus::{BusState, Message as BusMessage, Subject};
use continuum_schema::Name;
use uuid::Uuid;

use super::core::Core;
use super::shard::Message;
use crate::retry::{Backoff, within};

/// The queue group of all workers: one of them hears each ring.
const GROUP: &str = "workers";

/// How often a ring is passed on by workers that can't claim.
const HOPS_MAX: u8 = 3;

/// How long a new session waits for its subscriptions to be in force.
const BARRIER_MAX: Duration = Duration::from_secs(1);

/// The spread of the catch-up passes of a fleet that reconnects together.
const RECONNECT_SPREAD: Duration = Duration::from_secs(5);

/// Hears rings until the worker drains.
pub(crate) async fn hear_ready(core: Arc<Core>) {
    let subject = core.subjects.ready();
    hear_until_drain(&core, &subject, |message| {
        let hops = message.payload.first().copied().unwrap_or(0);
        core.metrics.wakes.rings_heard.inc();
        if core.can_claim() {
            core.runs_due.notify_one();
        } else if hops < HOPS_MAX {
            core.metrics.wakes.rings_passed_on.inc();
            core.ring_ready(hops + 1);
        }
    })
    .await;
    // One that was on its way here when the worker left the group has been swallowed.
    core.ring_ready(1);
}

/// Hears of activities until the worker drains.
pub(crate) async fn hear_queue(core: Arc<Core>, queue: String) {
    let Ok(name) = Name::of("queue", queue) else {
        return;
    };
    let subject = core.subjects.queue(&name);
    hear_until_drain(&core, &subject, |_| core.activities.kick()).await;
    core.bus.hint(&subject, Bytes::new());
}

/// Hears calls for a catch-up pass until the worker stops.
pub(crate) async fn hear_catch_up(core: Arc<Core>) {
    let subject = core.subjects.catchup();
    hear(&core, &subject, None, |_| core.catch_up.notify_one()).await;
}

/// Hears that singletons may be free until the worker stops.
pub(crate) async fn hear_residents(core: Arc<Core>) {
    let subject = core.subjects.residents();
    hear(&core, &subject, None, |_| core.residents_free.notify_one()).await;
}

/// Asks for a catch-up pass whenever messages may have been missed.
pub(crate) async fn watch_link(core: Arc<Core>) {
    let mut status = core.bus.status();
    let mut seen = status.borrow_and_update().generation;
    while status.changed().await.is_ok() {
        let now = status.borrow_and_update().clone();
        if let BusState::Disconnected { reason } = &now.state {
            tracing::warn!(%reason, "no link to NATS: the worker goes on by polling");
        }
        if now.generation != seen && now.is_connected() {
            seen = now.generation;
            tracing::info!("NATS is connected");
            tokio::time::sleep(within(RECONNECT_SPREAD)).await;
            core.catch_up.notify_one();
            core.runs_due.notify_one();
            core.activities.kick();
        }
    }
}

/// Begins to hear what is meant for a new session. Returns when the subscriptions are in force, or can't be for now;
/// they will be when the link returns.
pub(crate) async fn attach(core: &Arc<Core>, session: Uuid) {
    spawn_for_session(core, session, core.subjects.wakes_of(session), hear_wake);
    spawn_for_session(core, session, core.subjects.ping(session), answer_ping);
    spawn_for_session(core, session, core.subjects.drain(session), begin_drain);
    if core.bus.status().borrow().is_connected() {
        // Both tasks subscribe at their first poll; a barrier that comes too early only costs a poll interval later.
        tokio::task::yield_now().await;
        drop(tokio::time::timeout(BARRIER_MAX, core.bus.barrier()).await);
    }
}

fn spawn_for_session<F>(
    core: &Arc<Core>,
    session: Uuid,
    subject: String,
    take: fn(Arc<Core>, BusMessage) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let core = Arc::clone(core);
    tokio::spawn(async move {
        let listening = async {
            let mut backoff = Backoff::new(Duration::from_secs(2));
            loop {
                if let Ok(mut subscription) = core.bus.subscribe(&subject, None).await {
                    while let Some(message) = subscription.next().await {
                        take(Arc::clone(&core), message).await;
                    }
                }
                tokio::time::sleep(backoff.next()).await;
            }
        };
        tokio::select! {
            () = listening => {}
            () = session_over(&core, session) => {}
            () = core.stop.cancelled() => {}
        }
    });
}

/// The session of a listener is over when another one, or none after it, is current.
async fn session_over(core: &Core, session: Uuid) {
    let mut sessions = core.session.subscribe();
    // The listener is attached before its session becomes current.
    drop(sessions.wait_for(|current| *current == Some(session)).await);
    core.session_ended(session).await;
}

async fn hear_wake(core: Arc<Core>, message: BusMessage) {
    if let Ok(Subject::Wake { run, .. }) = core.subjects.parse(&message.subject) {
        core.metrics.wakes.received.inc();
        core.shards.send(run, Message::Wake(run));
    }
}

async fn answer_ping(core: Arc<Core>, message: BusMessage) {
    if let Err(error) = core.bus.respond(&message, Bytes::new()).await {
        tracing::debug!(%error, "a ping was not answered");
    }
}

/// Whoever asks again learns the same: it drains.
async fn begin_drain(core: Arc<Core>, message: BusMessage) {
    core.begin_drain("a request over NATS");
    if let Err(error) = core.bus.respond(&message, Bytes::new()).await {
        tracing::debug!(%error, "a request to drain was not answered");
    }
}

/// Hears what one of the workers is to hear, for as long as this one takes up work: one that doesn't would swallow hints.
async fn hear_until_drain(core: &Core, subject: &str, take: impl Fn(&BusMessage)) {
    let hearing = hear(core, subject, Some(GROUP), take);
    core.draining.run_until_cancelled(hearing).await;
}

async fn hear(core: &Core, subject: &str, group: Option<&str>, take: impl Fn(&BusMessage)) {
    let mut backoff = Backoff::new(Duration::from_secs(2));
    loop {
        match core.bus.subscribe(subject, group).await {
            Ok(mut subscription) => {
                while let Some(message) = subscription.next().await {
                    take(&message);
                }
            }
            Err(error) => tracing::debug!(subject, %error, "a subscription failed"),
        }
        tokio::time::sleep(backoff.next()).await;
    }
}
