//! One run's code, fed with its history and then with what happens.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use continuum_schema::event::Event;
use continuum_schema::{EffectId, Payload, Seq};
use futures::future::BoxFuture;

use super::matching::{
    completes, expected_side, found_side, is_end_from_outside, resolution, same_command, same_end,
};
use super::slots::Freed;
use super::state::{Ending, Issued};
use super::{Blocked, Completion, EffectKind, Pending, ReplayDrift, RunInfo, Shared, Side, Turn};
use crate::WorkflowContext;
use crate::error::WorkflowError;
use crate::workflow::{RunWorkflow, WorkflowDefinition};

/// How often the code may wake itself in one turn. A join of many parts wakes itself now and then; this is far beyond.
const POLLS_MAX: u32 = 100_000;

/// The code of one run, somewhere between its first line and its end.
///
/// Feed the history with [`Execution::replay`], call [`Execution::go_live`] once, then [`Execution::deliver`] what
/// happens. After a [`Blocked`] every further call gives the same one.
///
/// The caller must poll with tokio's cooperative budget off (`tokio::task::unconstrained`): with a spent budget,
/// tokio's own primitives defer their wake-ups out of the poll, and those count as foreign.
pub struct Execution {
    shared: Arc<Shared>,
    waker: Waker,
    body: Body,
    stage: Stage,
    /// The position of the last event that was fed or emitted.
    seq: Seq,
    blocked: Option<Blocked>,
}

enum Body {
    /// Not polled yet: not even the author's function has been called.
    Fresh(Box<(RunWorkflow, WorkflowContext, Payload)>),
    Running(BoxFuture<'static, Result<Payload, WorkflowError>>),
    /// Returned, given up or evicted.
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Replaying,
    Live,
    Ended,
}

impl Execution {
    /// Takes up the code of a run. Nothing of the author's is called yet.
    #[must_use]
    pub fn new(definition: &WorkflowDefinition, info: RunInfo, input: Payload) -> Self {
        let shared = Shared::new(info);
        let context = WorkflowContext::new(Arc::clone(&shared));
        Self {
            waker: Waker::from(Arc::clone(&shared.root)),
            body: Body::Fresh(Box::new((Arc::clone(&definition.run), context, input))),
            shared,
            stage: Stage::Replaying,
            seq: 0,
            blocked: None,
        }
    }

    /// Feeds one event of the history, which was appended at the time `at` (microseconds since the epoch).
    ///
    /// # Errors
    /// [`Blocked`] if the code doesn't do what the history says, or can't go on.
    ///
    /// # Panics
    /// If the execution is live already.
    pub fn replay(&mut self, seq: Seq, at: i64, event: &Event) -> Result<(), Blocked> {
        assert!(
            self.stage != Stage::Live,
            "the history is fed before the execution goes live"
        );
        self.guarded(|this| this.replay_event(seq, at, event))
    }

    /// Ends the replay: from here on the code's commands become events. Steps and waits for signals that the history
    /// left open come back as commands; open activities and timers are in [`Execution::pending`]. With an empty
    /// history this is the first poll.
    ///
    /// # Errors
    /// [`Blocked`] if the code issued more than the history holds, or can't go on.
    pub fn go_live(&mut self, now: i64) -> Result<Turn, Blocked> {
        self.guarded(|this| {
            if let Some(issued) = this.pop() {
                return Err(this.beyond(&issued));
            }
            if this.stage == Stage::Ended {
                return Ok(this.idle_turn());
            }
            this.stage = Stage::Live;
            this.shared.lock().go_live(now);
            this.begin()?;
            Ok(this.turn(None))
        })
    }

    /// Delivers one completion at the time `now` (microseconds since the epoch), which must be the time that its
    /// event is stored with: the code sees it as `ctx.now()`, in every replay too.
    ///
    /// A completion that nobody waits for, and a second request to cancel, give a turn without events.
    ///
    /// # Errors
    /// [`Blocked`] if the code can't go on; nothing may be appended then.
    ///
    /// # Panics
    /// If the execution is not live yet.
    pub fn deliver(&mut self, now: i64, completion: Completion) -> Result<Turn, Blocked> {
        assert!(
            self.stage != Stage::Replaying,
            "completions are delivered after the execution went live"
        );
        self.guarded(|this| {
            let Some(event) = this.accept(completion) else {
                return Ok(this.idle_turn());
            };
            let seq = this.next_seq();
            this.shared.lock().arrive(seq, now);
            this.complete(&event)?;
            Ok(this.turn(Some(event)))
        })
    }

    /// The waits for signals that are outstanding, in the order in which the code issued them: the first one of a name
    /// gets the next signal of that name.
    #[must_use]
    pub fn waiting_signals(&self) -> Vec<(EffectId, String)> {
        self.shared.lock().slots().waiting_signals()
    }

    /// Everything that the code waits for, in issue order.
    #[must_use]
    pub fn pending(&self) -> Vec<Pending> {
        self.shared.lock().slots().pending()
    }

    /// Whether the code waits for this effect. The engine discards results of effects that it doesn't wait for.
    #[must_use]
    pub fn is_pending(&self, effect: EffectId) -> bool {
        self.shared.lock().slots().is_outstanding(effect)
    }

    /// How many effects the code waits for.
    #[must_use]
    pub fn pending_count(&self) -> usize {
        self.shared.lock().slots().outstanding()
    }

    /// When the next outstanding timer is due, in microseconds since the epoch.
    #[must_use]
    pub fn next_timer(&self) -> Option<i64> {
        self.shared.lock().slots().next_timer()
    }

    /// Whether the run was asked to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.shared.lock().is_cancelled()
    }

    /// Whether the run is over.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// The run that this is.
    #[must_use]
    pub fn info(&self) -> &RunInfo {
        &self.shared.info
    }

    // ---- replay -----------------------------------------------------------------------------------------------------

    fn replay_event(&mut self, seq: Seq, at: i64, event: &Event) -> Result<(), Blocked> {
        self.check_position(seq, event)?;
        self.seq = seq;
        if seq == 1 {
            return Ok(());
        }
        self.begin()?;
        match event {
            Event::Started { .. } => unreachable!("its position was checked"),
            Event::ActivityScheduled(_) | Event::TimerStarted { .. } | Event::Dropped { .. } => {
                self.match_command(event)
            }
            Event::ActivityCompleted { .. }
            | Event::StepCompleted { .. }
            | Event::TimerFired { .. }
            | Event::SignalReceived { .. }
            | Event::CancelRequested { .. } => {
                self.match_completion(event)?;
                self.shared.lock().arrive(seq, at);
                self.complete(event)
            }
            Event::Completed { .. } | Event::Failed { .. } | Event::Cancelled { .. } => {
                self.match_end(event)?;
                self.stage = Stage::Ended;
                self.discard_body();
                Ok(())
            }
        }
    }

    /// A history has no gap, begins with [`Event::Started`] and holds nothing after its end.
    fn check_position(&self, seq: Seq, event: &Event) -> Result<(), Blocked> {
        let damaged = |message: String| Err(Blocked::Damaged { seq, message });
        if seq != self.seq + 1 {
            return damaged(format!("seq {} was to follow", self.seq + 1));
        }
        if self.stage == Stage::Ended {
            return damaged(format!("`{}` follows the last event", event.name()));
        }
        if (seq == 1) != matches!(event, Event::Started { .. }) {
            return damaged(format!("`{}` stands in the wrong place", event.name()));
        }
        Ok(())
    }

    fn match_command(&mut self, event: &Event) -> Result<(), Blocked> {
        let Some(issued) = self.pop() else {
            return Err(self.silent(event));
        };
        if !same_command(event, &issued.asked) {
            return Err(self.drift(expected_side(event), found_side(&issued), issued.location));
        }
        if let Event::TimerStarted { effect, fire_at } = event {
            self.shared
                .lock()
                .slots_mut()
                .adopt_fire_at(*effect, *fire_at);
        }
        Ok(())
    }

    fn match_completion(&self, event: &Event) -> Result<(), Blocked> {
        let state = self.shared.lock();
        let slots = state.slots();
        if let Some(issued) = state.front() {
            let (found, location) = (found_side(issued), issued.location);
            return Err(self.drift(expected_side(event), found, location));
        }
        let Some((effect, kind, name)) = completes(event) else {
            return Ok(());
        };
        if slots.awaits(effect, kind, name) {
            return Ok(());
        }
        let (found, location) = slots.describe(effect);
        Err(self.drift(expected_side(event), found, location))
    }

    fn match_end(&mut self, event: &Event) -> Result<(), Blocked> {
        let Some(issued) = self.pop() else {
            return match event {
                Event::Failed { failure, .. } if is_end_from_outside(failure) => Ok(()),
                _ => Err(self.silent(event)),
            };
        };
        if same_end(event, &issued.asked) {
            return Ok(());
        }
        Err(self.drift(expected_side(event), found_side(&issued), issued.location))
    }

    /// The next command that the code has issued.
    fn pop(&self) -> Option<Issued> {
        self.shared.lock().pop()
    }

    /// The history holds a command where the code only waits.
    fn silent(&self, event: &Event) -> Blocked {
        let (found, location) = self.shared.lock().slots().describe_waits();
        self.drift(expected_side(event), found, location)
    }

    /// The code issued a command where the history is at its end. A completion and the commands that it led to are
    /// appended together, so none can be missing.
    fn beyond(&mut self, issued: &Issued) -> Blocked {
        self.seq = self.next_seq();
        let expected = Side::new("nothing more");
        self.drift(expected, found_side(issued), issued.location)
    }

    fn drift(
        &self,
        expected: Side,
        found: Side,
        location: Option<&'static Location<'static>>,
    ) -> Blocked {
        Blocked::Drift(Box::new(ReplayDrift {
            seq: self.seq,
            expected,
            found,
            location: location.map(ToString::to_string),
        }))
    }

    // ---- live -------------------------------------------------------------------------------------------------------

    /// The event of a completion that somebody waits for.
    fn accept(&self, completion: Completion) -> Option<Event> {
        let state = self.shared.lock();
        let slots = state.slots();
        match completion {
            Completion::Activity {
                effect,
                attempt,
                outcome,
            } if slots.awaits(effect, EffectKind::Activity, None) => {
                Some(Event::ActivityCompleted {
                    effect,
                    attempt,
                    outcome,
                })
            }
            Completion::Step { effect, outcome } => {
                let name = slots.step_name(effect)?;
                Some(Event::StepCompleted {
                    effect,
                    name,
                    outcome,
                })
            }
            Completion::Timer { effect } if slots.awaits(effect, EffectKind::Timer, None) => {
                Some(Event::TimerFired { effect })
            }
            Completion::Signal {
                effect,
                name,
                payload,
                delivery_id,
            } if slots.awaits(effect, EffectKind::Signal, Some(&name)) => {
                Some(Event::SignalReceived {
                    effect,
                    name,
                    payload,
                    delivery_id,
                })
            }
            Completion::Cancel { reason } if !self.is_ended() && !state.is_cancelled() => {
                Some(Event::CancelRequested { reason })
            }
            _ => None,
        }
    }

    /// The position of the next event. Before the first one the engine puts [`Event::Started`].
    fn next_seq(&self) -> Seq {
        self.seq.max(1) + 1
    }

    /// Collects what the code has issued into a turn.
    fn turn(&mut self, completion: Option<Event>) -> Turn {
        let mut turn = Turn::default();
        turn.events.extend(completion);
        self.shared.lock().drain(&mut turn);
        if !turn.events.is_empty() {
            let events = Seq::try_from(turn.events.len()).unwrap_or(Seq::MAX);
            self.seq = self.seq.max(1).saturating_add(events);
        }
        if turn.ended {
            self.stage = Stage::Ended;
        }
        turn
    }

    fn idle_turn(&self) -> Turn {
        Turn {
            ended: self.is_ended(),
            ..Turn::default()
        }
    }

    // ---- both -------------------------------------------------------------------------------------------------------

    /// Runs one call, unless an earlier one has failed; a failure stays.
    fn guarded<T>(
        &mut self,
        call: impl FnOnce(&mut Self) -> Result<T, Blocked>,
    ) -> Result<T, Blocked> {
        if let Some(blocked) = &self.blocked {
            return Err(blocked.clone());
        }
        call(self).inspect_err(|blocked| {
            self.blocked = Some(blocked.clone());
            self.discard_body();
        })
    }

    /// Polls for the first time, if that has not been done.
    fn begin(&mut self) -> Result<(), Blocked> {
        match self.body {
            Body::Fresh(_) => self.advance(Vec::new()),
            _ => Ok(()),
        }
    }

    /// Hands a completion to the code and polls until the code is quiet.
    fn complete(&mut self, event: &Event) -> Result<(), Blocked> {
        let freed = {
            let mut state = self.shared.lock();
            match event {
                Event::CancelRequested { reason } => state.cancel(reason),
                _ => resolution(event)
                    .and_then(|(effect, delivery)| state.slots_mut().resolve(effect, delivery))
                    .into_iter()
                    .collect(),
            }
        };
        self.advance(freed)
    }

    /// Wakes, in order, then polls for as long as the code is woken. It is never polled otherwise: how often it is
    /// polled is part of what a replay must reproduce.
    fn advance(&mut self, freed: Vec<Freed>) -> Result<(), Blocked> {
        let shared = Arc::clone(&self.shared);
        let _entered = shared.root.enter();
        freed.into_iter().for_each(Freed::wake);
        let mut polls = 0;
        self.check_foreign()?;
        while shared.root.take_woken() {
            if matches!(self.body, Body::Gone) {
                break;
            }
            polls += 1;
            if polls > POLLS_MAX {
                return Err(Blocked::Livelock { polls: POLLS_MAX });
            }
            self.poll_once()?;
            self.check_foreign()?;
        }
        self.check_waits()
    }

    fn poll_once(&mut self) -> Result<(), Blocked> {
        let (body, waker) = (&mut self.body, &self.waker);
        let polled = catch_unwind(AssertUnwindSafe(|| body.poll(waker)));
        if let Some(fault) = self.shared.lock().fault() {
            return Err(fault);
        }
        match polled {
            Ok(Poll::Pending) => Ok(()),
            Ok(Poll::Ready(result)) => {
                self.finish(result);
                Ok(())
            }
            Err(panic) => Err(Blocked::Panicked(panic_message(&*panic))),
        }
    }

    fn finish(&mut self, result: Result<Payload, WorkflowError>) {
        {
            let mut state = self.shared.lock();
            let ending = match (result, state.cancel_reason()) {
                (Ok(value), _) => Ending::Completed(value),
                (Err(error), Some(reason)) if error.is_cancelled() => {
                    Ending::Cancelled(reason.to_owned())
                }
                (Err(error), _) => Ending::Failed(error.into()),
            };
            state.end(ending);
        }
        self.discard_body();
    }

    fn check_foreign(&self) -> Result<(), Blocked> {
        if self.shared.root.is_foreign() {
            return Err(Blocked::Foreign(
                "the workflow was woken by something outside its history, such as a tokio timer, a channel or a \
                 spawned task; await only what `ctx` gives"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// A quiet code must wait for something that the context has handed out.
    fn check_waits(&self) -> Result<(), Blocked> {
        if matches!(self.body, Body::Running(_)) && self.shared.lock().slots().outstanding() == 0 {
            return Err(Blocked::Foreign(
                "the workflow waits, but for nothing that its context has handed out: it awaits something foreign, \
                 such as a tokio timer or a channel; await only what `ctx` gives"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Drops the code without taking the effects that it drops for the code's own decision. A panic in one of the
    /// author's destructors ends here.
    fn discard_body(&mut self) {
        let _entered = self.shared.root.enter();
        let slots = self.shared.lock().close();
        let body = mem::replace(&mut self.body, Body::Gone);
        let contained = catch_unwind(AssertUnwindSafe(|| drop((slots, body))));
        drop(contained);
    }
}

impl Drop for Execution {
    fn drop(&mut self) {
        self.discard_body();
    }
}

impl Body {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<Payload, WorkflowError>> {
        if matches!(self, Self::Fresh(_)) {
            self.start();
        }
        match self {
            Self::Running(future) => future.as_mut().poll(&mut Context::from_waker(waker)),
            _ => Poll::Pending,
        }
    }

    /// Calls the author's function.
    fn start(&mut self) {
        if let Self::Fresh(parts) = mem::replace(self, Self::Gone) {
            let (run, context, input) = *parts;
            *self = Self::Running(run(context, input));
        }
    }
}

/// The text that the author's code panicked with.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}
