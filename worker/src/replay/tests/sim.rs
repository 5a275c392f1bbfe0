//! A worker in miniature: it keeps a journal in memory, runs steps and activities when a test says so, and can evict
//! and replay its run at any time.

use std::collections::BTreeMap;
use std::sync::Arc;

use continuum_schema::event::{ActivityOptions, ActivityScheduled, Event, Outcome, RetryPolicy};
use continuum_schema::{EffectId, Payload, Seq};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Serialize;
use uuid::Uuid;

use crate::WorkflowContext;
use crate::activity::{Activity, ActivityCall, ActivityContext};
use crate::error::{ActivityError, WorkflowError};
use crate::replay::{
    Blocked, Command, Completion, Execution, Pending, ReplayDrift, RunInfo, StepRun, Turn,
};
use crate::workflow::WorkflowDefinition;

/// The time at which every test's run is created: 2026-11-30.
pub(crate) const CREATED_AT: i64 = 1_796_000_000_000_000;

/// An activity that the simulation answers with ten times its input; an input below zero fails.
pub(crate) struct TenFold;

impl Activity for TenFold {
    type Input = i64;
    type Output = i64;
    type Error = ActivityError;
    const NAME: &'static str = "ten_fold";

    fn options() -> ActivityOptions {
        ActivityOptions {
            queue: "default".to_owned(),
            retry: RetryPolicy::default(),
            timeout_ms: 1_000,
            idempotency_key: None,
        }
    }

    fn call(_: ActivityContext, input: i64) -> ActivityCall<Self> {
        ActivityCall::new(async move { Ok(input * 10) })
    }
}

/// The handle by which workflows name [`TenFold`].
pub(crate) fn ten_fold(ctx: ActivityContext, input: i64) -> ActivityCall<TenFold> {
    TenFold::call(ctx, input)
}

/// A workflow without the macro.
pub(crate) fn define<T, F>(run: F) -> WorkflowDefinition
where
    T: Serialize + Send + 'static,
    F: for<'a> Fn(&'a WorkflowContext) -> BoxFuture<'a, Result<T, WorkflowError>>
        + Send
        + Sync
        + 'static,
{
    let run = Arc::new(run);
    WorkflowDefinition {
        name: "test_flow",
        path: "tests::test_flow",
        version: 1,
        hash: "n1:00000000000000000000000000000000",
        compatible: &[],
        signals: &[],
        run: Arc::new(move |ctx, _| {
            let run = Arc::clone(&run);
            Box::pin(async move { Ok(Payload::encode(&run(&ctx).await?)?) })
        }),
    }
}

pub(crate) fn info() -> RunInfo {
    RunInfo {
        run_id: Uuid::from_u128(7),
        chain_id: Uuid::from_u128(7),
        workflow: "test_flow".to_owned(),
        version: 1,
        hash: "n1:00000000000000000000000000000000".to_owned(),
        key: Some("order-1".to_owned()),
        namespace: "default".to_owned(),
        created_at: CREATED_AT,
    }
}

pub(crate) fn value<T: Serialize>(value: T) -> Payload {
    Payload::encode(&value).unwrap()
}

/// What an activity of the simulation gives.
fn answer(scheduled: &ActivityScheduled) -> Outcome {
    match scheduled.input.decode::<i64>().unwrap() {
        n if n < 0 => Outcome::Err(ActivityError::new("Negative", format!("{n} < 0")).into()),
        n => Outcome::Ok(value(n * 10)),
    }
}

/// Something that the simulation can complete.
pub(crate) enum Open {
    Activity(ActivityScheduled),
    Step(StepRun),
    Timer,
    Signal(String),
}

pub(crate) struct Sim {
    definition: WorkflowDefinition,
    pub(crate) execution: Execution,
    /// The events with their times.
    pub(crate) journal: Vec<(i64, Event)>,
    pub(crate) open: BTreeMap<EffectId, Open>,
    pub(crate) dropped: Vec<EffectId>,
    pub(crate) clock: i64,
    /// Evict the run after each turn and replay it.
    evicting: bool,
}

/// Where an engine is; the engine that follows it must come to the same place.
struct Place {
    pending: Vec<Pending>,
    waits: Vec<(EffectId, String)>,
    timer: Option<i64>,
    /// Steps and waits, of which the journal knows nothing yet.
    unjournaled: Vec<EffectId>,
}

impl Sim {
    /// Starts a run and takes its first turn.
    pub(crate) fn start(definition: WorkflowDefinition) -> Self {
        Self::try_start(definition, false).unwrap()
    }

    /// Like [`Sim::start`]; the run is evicted and replayed after each turn.
    pub(crate) fn start_evicting(definition: WorkflowDefinition) -> Self {
        Self::try_start(definition, true).unwrap()
    }

    pub(crate) fn try_start(
        definition: WorkflowDefinition,
        evicting: bool,
    ) -> Result<Self, Blocked> {
        let execution = Execution::new(&definition, info(), Payload::unit());
        let mut sim = Self {
            definition,
            execution,
            journal: Vec::new(),
            open: BTreeMap::new(),
            dropped: Vec::new(),
            clock: CREATED_AT + 1_000_000,
            evicting,
        };
        let turn = sim.execution.go_live(sim.clock)?;
        sim.take(turn);
        Ok(sim)
    }

    /// Delivers one completion, a second after the last.
    pub(crate) fn deliver(&mut self, completion: Completion) -> Result<(), Blocked> {
        self.clock += 1_000_000;
        let turn = self.execution.deliver(self.clock, completion)?;
        self.take(turn);
        Ok(())
    }

    /// Completes an open effect in the natural way.
    pub(crate) fn complete(&mut self, effect: EffectId) {
        let completion = self.completion(effect);
        self.deliver(completion).unwrap();
    }

    /// Computes the turn that completes an open effect, and dies before it is appended. The next engine knows the journal
    /// alone, and the effect is open again.
    pub(crate) fn lose_turn(&mut self, effect: EffectId) {
        let place = self.place();
        let open = match &self.open[&effect] {
            Open::Activity(scheduled) => Some(Open::Activity(scheduled.clone())),
            Open::Timer => Some(Open::Timer),
            Open::Signal(name) => Some(Open::Signal(name.clone())),
            // The next engine issues it again.
            Open::Step(_) => None,
        };
        let completion = self.completion(effect);
        let lost = self.execution.deliver(self.clock + 1_000_000, completion);
        drop(lost.unwrap());
        self.open.extend(open.map(|open| (effect, open)));
        self.reload(&place);
    }

    fn completion(&mut self, effect: EffectId) -> Completion {
        match self.open.remove(&effect).expect("the effect is open") {
            Open::Activity(scheduled) => Completion::Activity {
                effect,
                attempt: 1,
                outcome: answer(&scheduled),
            },
            Open::Step(run) => Completion::Step {
                effect,
                outcome: match run.now_or_never().expect("test steps don't wait") {
                    Ok(value) => Outcome::Ok(value),
                    Err(error) => Outcome::Err(error.into()),
                },
            },
            Open::Timer => Completion::Timer { effect },
            Open::Signal(name) => Completion::Signal {
                effect,
                name,
                payload: value(i64::from(effect)),
                delivery_id: None,
            },
        }
    }

    /// Delivers a signal to the first wait for it.
    pub(crate) fn signal(&mut self, name: &str, payload: Payload) {
        let waits = self.execution.waiting_signals();
        let (effect, _) = waits.iter().find(|(_, n)| n == name).expect("a wait");
        let effect = *effect;
        self.open.remove(&effect);
        let name = name.to_owned();
        let delivery_id = Some("d-1".to_owned());
        self.deliver(Completion::Signal {
            effect,
            name,
            payload,
            delivery_id,
        })
        .unwrap();
    }

    pub(crate) fn cancel(&mut self) {
        let reason = "enough".to_owned();
        self.deliver(Completion::Cancel { reason }).unwrap();
    }

    /// Completes everything, the oldest first, until the run is over.
    pub(crate) fn finish(&mut self) {
        while !self.execution.is_ended() {
            let (&effect, _) = self.open.iter().next().expect("something is open");
            self.complete(effect);
        }
    }

    /// The oldest step that is open.
    pub(crate) fn open_step(&self) -> Option<EffectId> {
        let mut steps = self
            .open
            .iter()
            .filter(|(_, open)| matches!(open, Open::Step(_)));
        steps.next().map(|(effect, _)| *effect)
    }

    /// The value that the run returned.
    pub(crate) fn result<T: serde::de::DeserializeOwned>(&self) -> T {
        match &self.journal.last().unwrap().1 {
            Event::Completed { result, .. } => result.decode().unwrap(),
            other => panic!("the run ended otherwise: {other:?}"),
        }
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.journal
            .iter()
            .map(|(_, event)| event.clone())
            .collect()
    }

    /// The kinds of the journal's events, for a glance.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.journal.iter().map(|(_, event)| event.name()).collect()
    }

    /// Drops the engine and replays the journal into a new one, which must come to the same place.
    pub(crate) fn evict(&mut self) {
        let place = self.place();
        self.reload(&place);
    }

    fn place(&self) -> Place {
        Place {
            pending: self.execution.pending(),
            waits: self.execution.waiting_signals(),
            timer: self.execution.next_timer(),
            unjournaled: self.unjournaled(),
        }
    }

    fn reload(&mut self, place: &Place) {
        self.execution = replay(&self.definition, &self.journal).unwrap();
        let turn = self.execution.go_live(self.clock).unwrap();
        assert_eq!(self.execution.pending(), place.pending);
        assert_eq!(self.execution.waiting_signals(), place.waits);
        assert_eq!(self.execution.next_timer(), place.timer);
        if self.journal.is_empty() {
            self.open.clear();
            self.take_commands(turn.commands);
            return;
        }
        assert_eq!(turn.events, [], "a replay issues nothing new");
        assert_eq!(turn.ended, self.execution.is_ended());
        let mut again = place.unjournaled.clone();
        for command in turn.commands {
            let effect = match command {
                Command::Step { effect, run, .. } => {
                    self.open.insert(effect, Open::Step(run));
                    effect
                }
                Command::WaitSignal { effect, .. } => effect,
                other => panic!("{other:?} was issued twice"),
            };
            assert_eq!(again.first(), Some(&effect), "in the order of their issue");
            again.remove(0);
        }
        assert!(again.is_empty(), "every step and wait is issued again");
    }

    /// Replays the whole journal into the same and into a fresh engine; both must agree with it.
    pub(crate) fn verify(&self) {
        let execution = replay(&self.definition, &self.journal).unwrap();
        assert_eq!(execution.is_ended(), self.execution.is_ended());
    }

    fn unjournaled(&self) -> Vec<EffectId> {
        self.open
            .iter()
            .filter(|(_, open)| matches!(open, Open::Step(_) | Open::Signal(_)))
            .map(|(effect, _)| *effect)
            .collect()
    }

    fn take(&mut self, turn: Turn) {
        if !turn.events.is_empty() && self.journal.is_empty() {
            let started = Event::Started {
                version: 1,
                hash: info().hash,
            };
            self.journal.push((self.clock, started));
        }
        let clock = self.clock;
        self.journal
            .extend(turn.events.into_iter().map(|event| (clock, event)));
        self.take_commands(turn.commands);
        if turn.ended {
            self.open.clear();
        }
        if self.evicting {
            self.evict();
        }
    }

    fn take_commands(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Activity(scheduled) => {
                    self.open
                        .insert(scheduled.effect, Open::Activity(scheduled));
                }
                Command::Step { effect, run, .. } => {
                    self.open.insert(effect, Open::Step(run));
                }
                Command::Timer { effect, .. } => {
                    self.open.insert(effect, Open::Timer);
                }
                Command::WaitSignal { effect, name } => {
                    self.open.insert(effect, Open::Signal(name));
                }
                Command::Drop { effect, .. } => {
                    self.open.remove(&effect);
                    self.dropped.push(effect);
                }
                Command::Complete(_) | Command::Fail(_) | Command::Cancelled { .. } => {}
            }
        }
    }
}

/// Feeds a journal to a fresh engine.
pub(crate) fn replay(
    definition: &WorkflowDefinition,
    journal: &[(i64, Event)],
) -> Result<Execution, Blocked> {
    let mut execution = Execution::new(definition, info(), Payload::unit());
    for (seq, (at, event)) in (1..).zip(journal) {
        execution.replay(Seq::from(seq), *at, event)?;
    }
    Ok(execution)
}

/// Replays a journal of one definition with another, which must drift.
pub(crate) fn drift(definition: &WorkflowDefinition, journal: &[(i64, Event)]) -> ReplayDrift {
    let outcome = replay(definition, journal).and_then(|mut execution| {
        let _turn = execution.go_live(CREATED_AT)?;
        Ok(())
    });
    match outcome {
        Err(Blocked::Drift(drift)) => *drift,
        other => panic!("expected a drift, got {other:?}"),
    }
}
