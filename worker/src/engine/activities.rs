//! Activities that run in this worker: slots, attempts, their ends.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use continuum_schema::activity::{self, Attempt, AttemptEnd, Completion};
use continuum_schema::event::{ActivityScheduled, Failure, Outcome};
use continuum_schema::{Event, Name, Payload};
use futures::FutureExt as _;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::core::Core;
use super::service::panic_text;
use super::shard::Message;
use crate::activity::{ActivityContext, ActivityDefinition};
use crate::batch;
use crate::error::{ActivityError, kind};
use crate::metrics::tally;
use crate::registry::Registry;
use crate::retry::{self, Backoff, jittered};

/// The most activities of one claim.
const CLAIM_MAX: usize = 32;

/// The most completions that share one commit.
const COMPLETIONS_MAX: usize = 64;

/// How often a worker asks which of its attempts are still its own.
const HELD_INTERVAL: Duration = Duration::from_secs(5);

/// The activities of one worker.
pub(crate) struct Activities {
    queues: Vec<String>,
    names: Vec<String>,
    slots: Arc<Semaphore>,
    slots_max: usize,
    running: Mutex<HashMap<Attempt, Running>>,
    due: Notify,
    /// Whether a free slot is a reason to look: the last claim took all that it had room for. An empty queue is not asked
    /// again at each slot that is freed; who fills it rings.
    more: AtomicBool,
    completions: mpsc::UnboundedSender<Posted>,
}

struct Running {
    cancel: CancellationToken,
    since: Instant,
}

/// A completion for a mailbox, with the session that ran the attempt. It keeps the attempt's slot until it is stored, so
/// that a worker that stops waits for it, and that no more of them pile up than there are slots.
pub(crate) struct Posted {
    session: Uuid,
    completion: Completion,
    slot: OwnedSemaphorePermit,
}

impl Activities {
    #[expect(
        clippy::disallowed_methods,
        reason = "at most one completion a slot is on its way"
    )]
    pub(crate) fn new(
        registry: &Registry,
        queues: &[Name],
        slots: usize,
    ) -> (Self, mpsc::UnboundedReceiver<Posted>) {
        let mut served: HashSet<String> = queues.iter().map(ToString::to_string).collect();
        if queues.is_empty() {
            served.extend(registry.queues());
        }
        let mut served: Vec<String> = served.into_iter().collect();
        served.sort();
        let (completions, posted) = mpsc::unbounded_channel();
        let activities = Self {
            queues: served,
            names: registry.activities().map(|a| a.name().to_owned()).collect(),
            slots: Arc::new(Semaphore::new(slots)),
            slots_max: slots,
            running: Mutex::new(HashMap::new()),
            due: Notify::new(),
            more: AtomicBool::new(true),
            completions,
        };
        (activities, posted)
    }

    /// The queues that are served.
    pub(crate) fn queues(&self) -> &[String] {
        &self.queues
    }

    /// How many attempts run now.
    pub(crate) fn running(&self) -> usize {
        self.lock().len()
    }

    /// Something may be available.
    pub(crate) fn kick(&self) {
        self.due.notify_one();
    }

    /// A slot for an activity that this worker can run itself, if one is free.
    pub(crate) fn reserve(
        &self,
        core: &Core,
        scheduled: &ActivityScheduled,
    ) -> Option<OwnedSemaphorePermit> {
        let can_run = !core.draining.is_cancelled()
            && self.queues.contains(&scheduled.options.queue)
            && core.registry.activity(&scheduled.name).is_some();
        if !can_run {
            return None;
        }
        Arc::clone(&self.slots).try_acquire_owned().ok()
    }

    /// Tells the workers of a queue that an activity is available, this one included.
    pub(crate) fn ring(&self, core: &Core, queue: &str) {
        if self.queues.iter().any(|served| served == queue) {
            self.kick();
        }
        match Name::of("queue", queue) {
            Ok(name) => core.bus.hint(&core.subjects.queue(&name), Bytes::new()),
            Err(error) => tracing::warn!(queue, %error, "nobody can be told of this activity"),
        }
    }

    /// Starts an attempt that this session holds. The slot is free again when it ends.
    pub(crate) fn start(
        &self,
        core: &Arc<Core>,
        session: Uuid,
        attempt: Attempt,
        namespace: String,
        scheduled: ActivityScheduled,
        slot: OwnedSemaphorePermit,
    ) {
        let cancel = CancellationToken::new();
        self.lock().insert(
            attempt,
            Running {
                cancel: cancel.clone(),
                since: Instant::now(),
            },
        );
        core.metrics.activities.started.inc();
        let core = Arc::clone(core);
        tokio::spawn(async move {
            let ended = run_attempt(&core, attempt, &namespace, &scheduled, &cancel).await;
            core.activities.lock().remove(&attempt);
            count_end(&core, &ended);
            settle(&core, session, attempt, scheduled, ended, slot).await;
        });
    }

    /// Sends a completion to its chain's mailbox.
    pub(crate) fn post(&self, session: Uuid, completion: Completion, slot: OwnedSemaphorePermit) {
        // The receiver is gone only when the worker stops; the attempt is then found to be lost.
        drop(self.completions.send(Posted {
            session,
            completion,
            slot,
        }));
    }

    /// Gives slots back; whatever waited for one may have it.
    pub(crate) fn free(&self, slots: impl IntoIterator<Item = OwnedSemaphorePermit>) {
        slots.into_iter().for_each(drop);
        // After the slots, as the claim looks at them after it has said that there is more: one of both sees the other.
        if self.more.load(Ordering::SeqCst) {
            self.kick();
        }
    }

    /// Tells every attempt that its result counts no more.
    pub(crate) fn cancel_all(&self) {
        for running in self.lock().values() {
            running.cancel.cancel();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Attempt, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How an attempt ended.
enum Ended {
    /// With a value, or an error.
    With(Outcome),
    /// It was told to stop, because its result counts no more.
    Cancelled,
}

fn count_end(core: &Core, ended: &Ended) {
    let metrics = &core.metrics.activities;
    match ended {
        Ended::With(Outcome::Ok(_)) => metrics.completed.inc(),
        Ended::With(Outcome::Err(_)) => metrics.failed.inc(),
        Ended::Cancelled => metrics.cancelled.inc(),
    };
}

async fn run_attempt(
    core: &Core,
    attempt: Attempt,
    namespace: &str,
    scheduled: &ActivityScheduled,
    cancel: &CancellationToken,
) -> Ended {
    let Some(definition) = core.registry.activity(&scheduled.name) else {
        let message = format!("this worker has no activity `{}`", scheduled.name);
        return Ended::With(Outcome::Err(
            ActivityError::new(kind::ERROR, message).into(),
        ));
    };
    if let Some(key) = &scheduled.options.idempotency_key {
        match activity::result(&core.database, namespace, &scheduled.name, key).await {
            Ok(Some(result)) => return Ended::With(Outcome::Ok(result)),
            Ok(None) => {}
            // Without the answer the effect may be a second one: better another attempt.
            Err(error) => {
                let message = format!("the idempotency key could not be looked up: {error}");
                return Ended::With(Outcome::Err(
                    ActivityError::new(kind::ERROR, message).into(),
                ));
            }
        }
    }
    let ctx = ActivityContext::new(
        attempt.run_id,
        attempt.effect,
        attempt.attempt,
        scheduled.name.clone(),
        cancel.clone(),
        core.registry.states().clone(),
    );
    let timeout = Duration::from_millis(scheduled.options.timeout_ms);
    let call = call(definition, ctx, scheduled.input.clone());
    let limited = tokio::time::timeout(timeout, call);
    // Whoever took the activity over has told us so; the future is dropped at its next await.
    let Some(ended) = cancel.run_until_cancelled(limited).await else {
        return Ended::Cancelled;
    };
    let result = ended.unwrap_or_else(|_| {
        cancel.cancel();
        let after = humantime::format_duration(timeout);
        Err(ActivityError::new(
            kind::TIMED_OUT,
            format!(
                "attempt {} of `{}` took longer than {after}",
                attempt.attempt, scheduled.name
            ),
        ))
    });
    Ended::With(match check_size(core, &scheduled.name, result) {
        Ok(value) => Outcome::Ok(value),
        Err(error) => Outcome::Err(error.into()),
    })
}

/// Calls the author's code; a panic is that attempt's error and nobody else's.
async fn call(
    definition: &ActivityDefinition,
    ctx: ActivityContext,
    input: Payload,
) -> Result<Payload, ActivityError> {
    let name = definition.name();
    let call = AssertUnwindSafe(async move { definition.run(ctx, input).await });
    call.catch_unwind().await.unwrap_or_else(|panic| {
        let message = format!("activity `{name}` panicked: {}", panic_text(&*panic));
        Err(ActivityError::new(kind::PANICKED, message))
    })
}

fn check_size(
    core: &Core,
    name: &str,
    result: Result<Payload, ActivityError>,
) -> Result<Payload, ActivityError> {
    let max = core.config.limits.payload_bytes_max;
    match result {
        Ok(value) if value.len() > max => Err(ActivityError::permanent(
            kind::OVERSIZE,
            format!(
                "the result of activity `{name}` has {} bytes; the limit is {max}",
                value.len()
            ),
        )),
        other => other,
    }
}

/// Ends the activity, or sees to its next attempt. The slot is free once nothing of it can be lost.
async fn settle(
    core: &Arc<Core>,
    session: Uuid,
    attempt: Attempt,
    scheduled: ActivityScheduled,
    ended: Ended,
    slot: OwnedSemaphorePermit,
) {
    let Ended::With(outcome) = ended else {
        if core.is_current(session) {
            core.shards
                .send(attempt.run_id, Message::ActivityLeft { attempt });
        }
        core.activities.free([slot]);
        return;
    };
    match &outcome {
        Outcome::Err(failure)
            if retry::may_retry(&scheduled.options.retry, attempt.attempt, failure.retryable) =>
        {
            try_again(core, session, attempt, &scheduled, failure.clone()).await;
            core.activities.free([slot]);
        }
        _ => {
            let result = match (&outcome, scheduled.options.idempotency_key) {
                (Outcome::Ok(value), Some(key)) => Some((scheduled.name, key, value.clone())),
                _ => None,
            };
            let completion = Completion {
                attempt,
                event: Event::ActivityCompleted {
                    effect: attempt.effect,
                    attempt: attempt.attempt,
                    outcome,
                },
                result,
            };
            let message = Message::Activity {
                session,
                completion,
                slot,
            };
            core.shards.send(attempt.run_id, message);
        }
    }
}

/// Records the failed attempt and makes the activity available again after its back-off, to any worker.
async fn try_again(
    core: &Arc<Core>,
    session: Uuid,
    attempt: Attempt,
    scheduled: &ActivityScheduled,
    failure: Failure,
) {
    let delay = retry::delay(&scheduled.options.retry, attempt.attempt);
    tracing::debug!(
        run_id = %attempt.run_id, activity = scheduled.name, attempt = attempt.attempt,
        error = failure.message, ?delay, "activity.retry"
    );
    let end = AttemptEnd::Failed(failure);
    if !hand_back(core, session, attempt, &end, delay).await {
        return;
    }
    core.shards
        .send(attempt.run_id, Message::ActivityLeft { attempt });
    let core = Arc::clone(core);
    let queue = scheduled.options.queue.clone();
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        core.activities.ring(&core, &queue);
    });
}

/// Ends an attempt without ending its activity. Returns whether it was still this session's.
async fn hand_back(
    core: &Core,
    session: Uuid,
    attempt: Attempt,
    end: &AttemptEnd,
    delay: Duration,
) -> bool {
    let delay_ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
    let mut backoff = Backoff::new(Duration::from_secs(1));
    while core.is_current(session) {
        match activity::retry(&core.database, session, attempt, end, delay_ms).await {
            Ok(mine) => return mine,
            Err(error) if error.is_transient() => tokio::time::sleep(backoff.next()).await,
            Err(error) => {
                tracing::error!(run_id = %attempt.run_id, effect = attempt.effect, %error, "an attempt could not be recorded");
                return false;
            }
        }
    }
    false
}

/// Claims available activities until the worker drains.
pub(crate) async fn dispatch(core: Arc<Core>) {
    let mut backoff = Backoff::new(Duration::from_secs(2));
    let activities = &core.activities;
    if activities.queues.is_empty() || activities.names.is_empty() {
        return;
    }
    let due = || async {
        // Either way there is a reason to look.
        drop(
            tokio::time::timeout(
                jittered(core.config.poll_interval),
                activities.due.notified(),
            )
            .await,
        );
    };
    while core.draining.run_until_cancelled(due()).await.is_some() {
        let Some(session) = core.session() else {
            continue;
        };
        match claim_all(&core, session).await {
            Ok(()) => backoff.reset(),
            Err(error) => {
                tracing::debug!(%error, "a claim of activities failed");
                core.pause(backoff.next()).await;
            }
        }
    }
}

async fn claim_all(core: &Arc<Core>, session: Uuid) -> Result<(), continuum_schema::Error> {
    let activities = &core.activities;
    loop {
        activities.more.store(true, Ordering::SeqCst);
        let free = activities.slots.available_permits().min(CLAIM_MAX);
        let wanted = u32::try_from(free).unwrap_or(0);
        let slots = Arc::clone(&activities.slots).try_acquire_many_owned(wanted);
        let (Ok(mut slots), false) = (slots, wanted == 0 || core.draining.is_cancelled()) else {
            return Ok(());
        };
        let limit = i32::try_from(wanted).unwrap_or(1);
        core.metrics.activities.claims.inc();
        let claimed = activity::claim(
            &core.database,
            session,
            &activities.queues,
            &activities.names,
            limit,
        )
        .await?;
        let count = claimed.len();
        for claimed in claimed {
            if let Some(slot) = slots.split(1) {
                activities.start(
                    core,
                    session,
                    claimed.attempt,
                    claimed.namespace,
                    claimed.scheduled,
                    slot,
                );
            }
        }
        if count < free {
            activities.more.store(false, Ordering::SeqCst);
            return Ok(());
        }
    }
}

/// Brings completions to their mailboxes, whatever waits in one commit.
pub(crate) async fn complete(core: Arc<Core>, mut posted: mpsc::UnboundedReceiver<Posted>) {
    while let Some(batch) = batch::next(&mut posted, COMPLETIONS_MAX).await {
        let current = core.session();
        let (completions, slots): (Vec<Completion>, Vec<OwnedSemaphorePermit>) = batch
            .into_iter()
            .filter(|posted| Some(posted.session) == current)
            .map(|posted| (posted.completion, posted.slot))
            .unzip();
        if let Some(session) = current.filter(|_| !completions.is_empty()) {
            post_batch(&core, session, &completions).await;
        }
        core.activities.free(slots);
    }
}

async fn post_batch(core: &Core, session: Uuid, completions: &[Completion]) {
    let mut backoff = Backoff::new(Duration::from_secs(1));
    while core.is_current(session) {
        match activity::complete(&core.database, session, completions).await {
            Ok(wakes) => {
                for wake in wakes.into_iter().flatten() {
                    core.wake(&wake);
                }
                return;
            }
            Err(error) if error.is_transient() => tokio::time::sleep(backoff.next()).await,
            Err(error) => {
                tracing::error!(%error, count = completions.len(), "activity results could not be stored");
                return;
            }
        }
    }
}

/// Stops attempts whose activity was dropped, ended or taken over.
pub(crate) async fn watch_held(core: Arc<Core>) {
    loop {
        tokio::time::sleep(jittered(HELD_INTERVAL)).await;
        let Some(session) = core.session() else {
            continue;
        };
        let asked = Instant::now();
        if core.activities.running() == 0 {
            continue;
        }
        let held: HashSet<Attempt> = match activity::held(&core.database, session).await {
            Ok(held) => held.into_iter().collect(),
            Err(error) => {
                tracing::debug!(%error, "the worker's attempts could not be compared");
                continue;
            }
        };
        for (attempt, running) in core.activities.lock().iter() {
            if running.since < asked && !held.contains(attempt) {
                running.cancel.cancel();
            }
        }
    }
}

/// What became of the attempts that did not end in time.
#[derive(Default)]
pub(crate) struct Rest {
    pub(crate) handed_back: usize,
    pub(crate) left: usize,
}

/// Waits until `deadline` for what runs, then hands the rest back; that may take `hand_back_max`.
pub(crate) async fn drain(core: &Arc<Core>, deadline: Instant, hand_back_max: Duration) -> Rest {
    let all = u32::try_from(core.activities.slots_max).unwrap_or(u32::MAX);
    let idle = core.activities.slots.acquire_many(all);
    if tokio::time::timeout_at(deadline.into(), idle).await.is_ok() {
        return Rest::default();
    }
    let Some(session) = core.session() else {
        return Rest::default();
    };
    let rest: Vec<Attempt> = core.activities.lock().keys().copied().collect();
    core.activities.cancel_all();
    let hand_backs = rest.iter().map(async |attempt| {
        let released = AttemptEnd::Released;
        let hand_back = hand_back(core, session, *attempt, &released, Duration::ZERO);
        // One that was not this session's any more is nobody's loss.
        tokio::time::timeout(hand_back_max, hand_back).await.ok()
    });
    let ends = futures::future::join_all(hand_backs).await;
    let handed_back = ends.iter().filter(|end| **end == Some(true)).count();
    core.metrics
        .activities
        .handed_back
        .inc_by(tally(handed_back));
    Rest {
        handed_back,
        left: ends.iter().filter(|end| end.is_none()).count(),
    }
}
