//! The journal writer: packs the appends of many runs into one round trip and one commit.
//!
//! A lone append goes out at once; while a flush is under way the next batch gathers. The three outcomes of an append
//! are told apart here: committed and refused by the answer; unknown (the link broke, the time ran out) only by sending
//! the same again, for as long as the session lasts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::Error;
use continuum_schema::journal::{self, Append, AppendOutcome};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::core::Core;
use super::shard::{Answer, Message};
use crate::batch;
use crate::retry::Backoff;

/// The most runs that share a flush.
const RUNS_MAX: usize = 128;

/// The most bytes that share a flush.
const BATCH_BYTES_MAX: usize = 1 << 20;

/// An append this large goes alone, on another connection: it would hold up every other run of its flush.
const LARGE_BYTES: usize = 256 << 10;

/// An append on its way, with the session it was decided under.
pub(crate) struct QueuedAppend {
    pub(crate) session: Uuid,
    pub(crate) append: Append,
}

/// Runs until the sender is gone or the worker stops.
pub(crate) async fn write(core: Arc<Core>, mut queue: mpsc::UnboundedReceiver<QueuedAppend>) {
    let mut waiting: VecDeque<QueuedAppend> = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match batch::next(&mut queue, RUNS_MAX).await {
                Some(more) => waiting.extend(more),
                None => return,
            }
        }
        while let Ok(more) = queue.try_recv() {
            waiting.push_back(more);
        }
        let batch = take_batch(&core, &mut waiting);
        if !batch.is_empty() {
            flush(&core, batch).await;
        }
    }
}

/// Takes what fits one flush; large appends are sent on their way beside it.
fn take_batch(core: &Arc<Core>, waiting: &mut VecDeque<QueuedAppend>) -> Vec<QueuedAppend> {
    let mut batch: Vec<QueuedAppend> = Vec::new();
    let mut bytes = 0;
    while let Some(next) = waiting.front() {
        let size = next.append.bytes();
        let other_session = batch
            .first()
            .is_some_and(|first| first.session != next.session);
        if batch.len() == RUNS_MAX
            || other_session
            || (!batch.is_empty() && bytes + size > BATCH_BYTES_MAX)
        {
            break;
        }
        let Some(next) = waiting.pop_front() else {
            break;
        };
        if size >= LARGE_BYTES {
            let core = Arc::clone(core);
            tokio::spawn(async move { flush(&core, vec![next]).await });
        } else {
            bytes += size;
            batch.push(next);
        }
    }
    batch
}

/// Brings a batch to its end. A batch that is refused as a whole is halved until only the guilty run is refused.
async fn flush(core: &Arc<Core>, batch: Vec<QueuedAppend>) {
    let mut parts = vec![batch];
    while let Some(part) = parts.pop() {
        match settle(core, &part).await {
            Settled::Answered(outcomes) => answer(core, part, outcomes),
            Settled::SessionEnded => {}
            Settled::Refused(error) if part.len() == 1 => refuse(core, &part[0], error),
            Settled::Refused(_) => {
                let mut first = part;
                let second = first.split_off(first.len() / 2);
                parts.push(second);
                parts.push(first);
            }
        }
    }
}

enum Settled {
    Answered(Vec<AppendOutcome>),
    /// The runs are somebody else's by now; their engines are gone.
    SessionEnded,
    Refused(Error),
}

/// Sends a batch until Postgres has answered for it.
async fn settle(core: &Core, batch: &[QueuedAppend]) -> Settled {
    let Some(session) = batch.first().map(|first| first.session) else {
        return Settled::Answered(Vec::new());
    };
    let appends: Vec<&Append> = batch.iter().map(|queued| &queued.append).collect();
    let mut backoff = Backoff::new(Duration::from_secs(1));
    let began = Instant::now();
    loop {
        if !core.is_current(session) {
            return Settled::SessionEnded;
        }
        match journal::append(&core.database, session, &appends).await {
            Ok(outcomes) => {
                core.metrics.journal.flushed(batch.len(), began.elapsed());
                return Settled::Answered(outcomes);
            }
            Err(Error::SessionClosed) => return Settled::SessionEnded,
            Err(error) if error.is_transient() => {
                let wait = backoff.next();
                core.metrics.journal.retries.inc();
                tracing::debug!(%error, ?wait, runs = batch.len(), "an append has no answer yet; the same is sent again");
                tokio::time::sleep(wait).await;
            }
            Err(error) => return Settled::Refused(error),
        }
    }
}

fn answer(core: &Arc<Core>, batch: Vec<QueuedAppend>, outcomes: Vec<AppendOutcome>) {
    for (queued, outcome) in batch.into_iter().zip(outcomes) {
        match outcome {
            AppendOutcome::Committed => tell(core, &queued, Answer::Committed),
            AppendOutcome::Refused => tell(core, &queued, Answer::Refused),
            AppendOutcome::Busy => send_again(Arc::clone(core), queued),
        }
    }
}

fn refuse(core: &Core, queued: &QueuedAppend, error: Error) {
    let run_id = queued.append.lease.run_id;
    match error {
        Error::Stale(reason) => {
            tracing::debug!(%run_id, reason, "an append was stale; its engine is dropped");
            tell(core, queued, Answer::Refused);
        }
        error => {
            tracing::error!(%run_id, %error, "Postgres will not take an append");
            tell(core, queued, Answer::Failed(error.to_string()));
        }
    }
}

fn tell(core: &Core, queued: &QueuedAppend, answer: Answer) {
    let metrics = &core.metrics.journal;
    match answer {
        Answer::Committed => metrics.committed.inc(),
        Answer::Refused => metrics.refused.inc(),
        Answer::Failed(_) => metrics.failed.inc(),
    };
    let lease = queued.append.lease;
    core.shards
        .send(lease.run_id, Message::Appended { lease, answer });
}

/// Somebody holds the row of a run that ends; the others of its batch didn't wait for it, and neither does the writer.
fn send_again(core: Arc<Core>, queued: QueuedAppend) {
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Box::pin(flush(&core, vec![queued])).await;
    });
}
