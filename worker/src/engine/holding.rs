//! The life of one singleton that this worker holds: built, made ready, asked, ended.
//!
//! The author's code runs in tasks of its own, so that whatever it does, the end of the term is noticed at once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use continuum_bus::{Bus, Message, RespondError, Subscription};
use futures::FutureExt as _;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use uuid::Uuid;

use super::core::Core;
use super::service::panic_text;
use crate::retry::Backoff;
use crate::singleton::wire::{self, Answer, Form, Outcome, Request};
use crate::singleton::{
    BoxError, ResidentContext, ResidentDefinition, Singleton, Unanswered, chain,
};

/// The requests that one singleton answers at once; more of them wait in its subscription.
const REQUESTS_MAX: usize = 64;

/// The largest answer. What is larger does not travel on NATS.
const ANSWER_BYTES_MAX: usize = 512 << 10;

/// How long an orderly end waits for the requests that are under way, and then for `on_stop`.
const LEAVE_MAX: Duration = Duration::from_secs(2);

/// How long tasks that were told to end are waited for.
const CUT_MAX: Duration = Duration::from_secs(1);

/// How long requests are still told to go elsewhere after the end.
const LINGER: Duration = Duration::from_millis(250);

/// What the warden wants of a holding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Hold,
    /// End in order; the row is still ours.
    Leave,
    /// Postgres says that it is another's.
    Reap,
}

/// How a holding ended.
#[derive(Debug)]
pub(super) enum End {
    /// It was told to leave, and did so in order.
    Left,
    /// The author's code gave it up.
    Resigned(String),
    /// The author's code failed or panicked.
    Failed(String),
    /// It belonged to another, or to a session that is over.
    Reaped,
}

/// What is held, and under what.
pub(super) struct Held {
    pub(super) definition: ResidentDefinition,
    pub(super) session: Uuid,
    pub(super) context: ResidentContext,
}

/// Holds a singleton until the end of its term, and says how that came and how long it was ready.
pub(super) async fn hold(
    core: Arc<Core>,
    held: Held,
    mut orders: watch::Receiver<Order>,
) -> (End, Duration) {
    let Held {
        definition,
        session,
        context,
    } = held;
    let mut life = Life::new(&core, &definition, &context);
    core.metrics.residents.held.inc();
    let end = tokio::select! {
        biased;
        () = core.session_ended(session) => End::Reaped,
        order = ordered(&mut orders) => order,
        reason = context.resigned() => End::Resigned(reason),
        reason = life.live(&definition) => End::Failed(reason),
    };
    context.end();
    core.metrics.residents.held.dec();
    if matches!(end, End::Reaped | End::Failed(_)) {
        core.metrics.residents.lost.inc();
    }
    let ready = life.ready_at.map_or(Duration::ZERO, |at| at.elapsed());
    match end {
        End::Reaped => life.cut().await,
        End::Left | End::Resigned(_) => life.leave(session, true).await,
        // A panic may have left anything behind; the state is not asked for a last word.
        End::Failed(_) => life.leave(session, false).await,
    }
    (end, ready)
}

async fn ordered(orders: &mut watch::Receiver<Order>) -> End {
    match orders.wait_for(|order| *order != Order::Hold).await {
        Ok(order) if *order == Order::Leave => End::Left,
        // A warden that is gone can't release anything any more.
        Ok(_) | Err(_) => End::Reaped,
    }
}

/// A step of a life that has been taken.
enum Step {
    Built(Arc<dyn Singleton>),
    Ready(Arc<dyn Singleton>),
    Worked,
}

struct Life {
    bus: Bus,
    core: Arc<Core>,
    context: ResidentContext,
    /// Requests to the name, from those who don't know the holder.
    anybody: Door,
    /// Requests to this holder.
    holder: Door,
    state: Option<Arc<dyn Singleton>>,
    ready_at: Option<Instant>,
    /// Building, making ready, work.
    steps: JoinSet<Result<Step, BoxError>>,
    /// Requests that are being answered; a text says that the author's code panicked.
    answers: JoinSet<Result<(), String>>,
}

impl Life {
    fn new(core: &Arc<Core>, definition: &ResidentDefinition, context: &ResidentContext) -> Self {
        let subjects = &core.subjects;
        Self {
            bus: core.bus.clone(),
            core: Arc::clone(core),
            context: context.clone(),
            anybody: Door::new(subjects.resident(&definition.name)),
            holder: Door::new(subjects.resident_holder(&definition.name, context.token())),
            state: None,
            ready_at: None,
            steps: JoinSet::new(),
            answers: JoinSet::new(),
        }
    }

    /// Lives until the author's code fails, and says why. Safe to drop at any moment: all it knows is in `self`.
    async fn live(&mut self, definition: &ResidentDefinition) -> String {
        let building = definition.build(self.context.clone());
        self.steps
            .spawn(async move { Ok(Step::Built(building.await?)) });
        loop {
            let has_room = self.answers.len() < REQUESTS_MAX;
            let failed = tokio::select! {
                Some(step) = self.steps.join_next() => self.advance(step).err(),
                Some(answered) = self.answers.join_next() => failure(answered),
                request = self.holder.next(&self.bus), if has_room => {
                    self.take(request);
                    None
                }
                request = self.anybody.next(&self.bus), if has_room => {
                    self.take(request);
                    None
                }
            };
            if let Some(reason) = failed {
                return reason;
            }
        }
    }

    fn advance(&mut self, step: Result<Result<Step, BoxError>, JoinError>) -> Result<(), String> {
        let step = step.map_err(join_text)?;
        match step.map_err(|e| chain(&*e))? {
            Step::Built(state) => {
                self.steps.spawn(async move {
                    Arc::clone(&state).make_ready().await?;
                    Ok(Step::Ready(state))
                });
            }
            Step::Ready(state) => {
                tracing::info!(
                    resident = self.context.name(),
                    token = self.context.token(),
                    "resident.ready"
                );
                self.core.metrics.residents.built.inc();
                self.ready_at = Some(Instant::now());
                self.state = Some(Arc::clone(&state));
                self.steps.spawn(async move {
                    state.do_work().await?;
                    Ok(Step::Worked)
                });
            }
            Step::Worked => {}
        }
        Ok(())
    }

    fn take(&mut self, message: Message) {
        let (core, state, token) = (
            Arc::clone(&self.core),
            self.state.clone(),
            self.context.token(),
        );
        self.answers.spawn(async move {
            let (form, outcome, panic) = answer(state, &message).await;
            respond(&core.bus, &message, form, Answer { token, outcome }).await;
            panic.map_or(Ok(()), Err)
        });
    }

    /// An end in order: what is under way may end, then the state is told. Who asks meanwhile is told that nothing was
    /// served, and asks the next holder. For a session that is over nothing is left to do in order.
    async fn leave(&mut self, session: Uuid, is_sound: bool) {
        let state = self.state.take().filter(|_| is_sound);
        self.anybody = Door::closed();
        self.steps.abort_all();
        let core = Arc::clone(&self.core);
        tokio::select! {
            () = core.session_ended(session) => {}
            () = self.finish(state) => {}
        }
        self.cut().await;
    }

    async fn finish(&mut self, state: Option<Arc<dyn Singleton>>) {
        drop(tokio::time::timeout(LEAVE_MAX, self.refuse_until_answered()).await);
        if let Some(state) = state {
            stop(state, self.context.name()).await;
        }
    }

    /// Answers new requests with "not ready" until those under way are answered.
    async fn refuse_until_answered(&mut self) {
        let mut under_way = std::mem::take(&mut self.answers);
        while !under_way.is_empty() {
            tokio::select! {
                _ = under_way.join_next() => {}
                request = self.holder.next(&self.bus) => self.take(request),
            }
        }
    }

    /// Ends whatever still runs and drops the state.
    async fn cut(&mut self) {
        self.state = None;
        self.anybody = Door::closed();
        self.steps.abort_all();
        self.answers.abort_all();
        let ended = async {
            while self.steps.join_next().await.is_some() {}
            while self.answers.join_next().await.is_some() {}
        };
        if tokio::time::timeout(CUT_MAX, ended).await.is_err() {
            tracing::warn!(
                resident = self.context.name(),
                token = self.context.token(),
                "resident code does not stop: it blocks its thread; its writes are fenced by its token alone"
            );
        }
        self.linger();
    }

    /// Who addressed this holder learns at once that nothing is served here any more.
    fn linger(&mut self) {
        let mut door = std::mem::replace(&mut self.holder, Door::closed());
        let (bus, token) = (self.bus.clone(), self.context.token());
        let refusing = async move {
            loop {
                let message = door.next(&bus).await;
                let (form, outcome, _) = answer(None, &message).await;
                respond(&bus, &message, form, Answer { token, outcome }).await;
            }
        };
        tokio::spawn(
            self.core
                .stop
                .clone()
                .run_until_cancelled_owned(async move {
                    drop(tokio::time::timeout(LINGER, refusing).await);
                }),
        );
    }
}

/// A subject that is listened to: again and again, whatever becomes of the subscription.
struct Door {
    subject: Option<String>,
    subscription: Option<Subscription>,
    backoff: Backoff,
}

impl Door {
    fn new(subject: String) -> Self {
        Self {
            subject: Some(subject),
            subscription: None,
            backoff: Backoff::new(Duration::from_secs(2)),
        }
    }

    /// Nobody comes here.
    fn closed() -> Self {
        Self {
            subject: None,
            ..Self::new(String::new())
        }
    }

    /// The next request. Cancel-safe.
    async fn next(&mut self, bus: &Bus) -> Message {
        let Some(subject) = &self.subject else {
            return std::future::pending().await;
        };
        loop {
            if self.subscription.is_none() {
                self.subscription = bus.subscribe(subject, None).await.ok();
            }
            if let Some(subscription) = &mut self.subscription {
                self.backoff.reset();
                if let Some(message) = subscription.next().await {
                    return message;
                }
                self.subscription = None;
            }
            tokio::time::sleep(self.backoff.next()).await;
        }
    }
}

/// Answers one request; the form in which it goes back, and what a panic of the author's code said.
async fn answer(
    state: Option<Arc<dyn Singleton>>,
    message: &Message,
) -> (Form, Outcome, Option<String>) {
    let (form, payload) = match wire::read(&message.payload) {
        Ok(Request::Ask(form, payload)) => (form, payload),
        Ok(Request::Who(form)) => {
            let outcome = state.map_or(Outcome::NotReady, |_| Outcome::Here);
            return (form, outcome, None);
        }
        Err((form, error)) => return (form, Outcome::Invalid(error.to_string()), None),
    };
    let Some(state) = state else {
        return (form, Outcome::NotReady, None);
    };
    match AssertUnwindSafe(state.answer(payload)).catch_unwind().await {
        Ok(Ok(answer)) if answer.len() > ANSWER_BYTES_MAX => {
            let text = format!(
                "the answer has {} bytes; over {ANSWER_BYTES_MAX} it does not travel on NATS",
                answer.len()
            );
            (form, Outcome::TooLarge(text), None)
        }
        Ok(Ok(answer)) => (form, Outcome::Done(answer), None),
        Ok(Err(Unanswered::Invalid(text))) => (form, Outcome::Invalid(text), None),
        Ok(Err(Unanswered::Failed(text))) => (form, Outcome::Failed(text), None),
        Err(panic) => {
            let text = format!("a request panicked: {}", panic_text(&*panic));
            (form, Outcome::Failed(text.clone()), Some(text))
        }
    }
}

async fn respond(bus: &Bus, message: &Message, form: Form, answer: Answer) {
    let written = match answer.write(form) {
        Ok(bytes) => bus.respond(message, Bytes::from(bytes)).await,
        Err(error) => {
            tracing::warn!(%error, subject = message.subject, "an answer has no encoding");
            return;
        }
    };
    match written {
        Ok(()) | Err(RespondError::NoReply) => {}
        Err(error @ RespondError::NotAnInbox(_)) => {
            tracing::warn!(%error, subject = message.subject, "refused to answer");
        }
        Err(error) => {
            tracing::debug!(%error, subject = message.subject, "a request was not answered");
        }
    }
}

/// Tells a state that it ends.
async fn stop(state: Arc<dyn Singleton>, name: &str) {
    let stopping = AssertUnwindSafe(async move { state.make_stop().await }).catch_unwind();
    match tokio::time::timeout(LEAVE_MAX, stopping).await {
        Ok(Ok(())) => {}
        Ok(Err(panic)) => {
            tracing::warn!(
                resident = name,
                panic = panic_text(&*panic),
                "on_stop panicked"
            );
        }
        Err(_) => tracing::warn!(resident = name, "on_stop did not end within {LEAVE_MAX:?}"),
    }
}

fn failure(answered: Result<Result<(), String>, JoinError>) -> Option<String> {
    match answered {
        Ok(answered) => answered.err(),
        Err(error) => Some(join_text(error)),
    }
}

fn join_text(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => format!("it panicked: {}", panic_text(&*panic)),
        Err(error) => error.to_string(),
    }
}
