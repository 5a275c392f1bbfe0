//! A run in memory: its code, its inputs, and the one append that it may have in flight.
//!
//! A turn is: take the inputs, deliver them one at a time, collect events, append once, then act. Nothing that a turn
//! decided is visible before its append has committed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use continuum_schema::clock::{Micros, to_micros};
use continuum_schema::event::{ActivityScheduled, Failure, Unread};
use continuum_schema::journal::{Append, CompletedActivity, End, NewActivity, NewEvent, RunEnd};
use continuum_schema::lease::ClaimedRun;
use continuum_schema::mailbox::{Mail, MailKind, Mailbox};
use continuum_schema::{EffectId, Event, Lease, Payload, Seq};
use futures::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use super::core::{Advancing, Core};
use crate::config::Limits;
use crate::error::{ActivityError, kind};
use crate::replay::{Blocked, Command, Completion, EffectKind, Execution, RunInfo, Turn};

/// A turn takes no further input once its append has this many bytes.
const TURN_BYTES_ENOUGH: usize = 512 << 10;

/// Differences between clocks that are greater are a step of the database's clock.
const STEP_MIN: Micros = 5_000_000;

/// Why a run can't be in memory.
#[derive(Debug)]
pub(crate) enum Stuck {
    /// Its code can't go on from its history; a fixed build can.
    Blocked(Blocked),
    /// Its history can't be read.
    Corrupt { seq: Option<Seq>, reason: String },
    /// Postgres will not take its append.
    Refused(String),
    /// It takes its workers down.
    Quarantined,
}

/// What it takes to park a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) lease: Lease,
    /// The wake counter of the mail that was last read.
    pub(crate) wake: i64,
    /// How often the run was parked before.
    pub(crate) tries: i32,
    /// It takes its workers down, and stays known for that until it has ended.
    pub(crate) quarantined: bool,
}

impl Standing {
    pub(crate) fn of(run: &ClaimedRun) -> Self {
        Self {
            lease: run.lease,
            wake: run.wake,
            tries: run.block_count,
            quarantined: run.quarantined,
        }
    }
}

/// A request to stop a run that can't be loaded.
pub(crate) struct Cancel {
    reason: String,
    mail: i64,
    next: Seq,
    hash: String,
}

impl Cancel {
    /// The request in a claimed run's mail, if there is one.
    pub(crate) fn asked(run: &ClaimedRun) -> Option<Self> {
        let mail = run.mail.iter().find(|mail| mail.kind == MailKind::Cancel)?;
        Some(Self {
            reason: cancel_reason(&mail.payload),
            mail: mail.mail_id,
            next: run.history.last().map_or(1, |row| row.seq + 1),
            hash: run.hash.clone(),
        })
    }

    /// The append that ends the run.
    pub(crate) fn append(self, lease: Lease, now: Micros) -> Append {
        let event = Event::Cancelled {
            reason: self.reason.clone(),
            unread: Vec::new(),
        };
        Append {
            lease,
            first: self.next,
            events: vec![NewEvent::new(&event, now)],
            end: Some(End {
                state: RunEnd::Cancelled(self.reason),
                hash: self.hash,
            }),
            mail: vec![self.mail],
            timers_set: Vec::new(),
            timers_gone: Vec::new(),
            activities_dropped: Vec::new(),
            activities_completed: Vec::new(),
            activities: Vec::new(),
        }
    }
}

fn cancel_reason(payload: &Payload) -> String {
    payload.decode().unwrap_or_else(|_| "cancelled".to_owned())
}

impl From<Blocked> for Stuck {
    fn from(blocked: Blocked) -> Self {
        match blocked {
            Blocked::Damaged { seq, message } => Self::Corrupt {
                seq: Some(seq),
                reason: message,
            },
            other => Self::Blocked(other),
        }
    }
}

/// An input on its way into the code.
struct Input {
    completion: Completion,
    /// The mail that it came as.
    mail: Option<i64>,
    /// The local activity that it completes.
    activity: Option<CompletedActivity>,
}

/// What is done after the append of the turn has committed.
pub(crate) enum Action {
    /// Run a step here.
    Step {
        effect: EffectId,
        name: String,
        run: BoxFuture<'static, Result<Payload, ActivityError>>,
    },
    /// Start an activity that was born leased to this session.
    Activity {
        scheduled: Box<ActivityScheduled>,
        slot: OwnedSemaphorePermit,
    },
    /// Tell a queue's workers of an activity.
    Ring { queue: String },
    /// Watch a timer that was set to ring after `wait`.
    Timer {
        effect: EffectId,
        fire_at: Micros,
        wait: Duration,
    },
    /// Tell waiters that the run has ended.
    Ended,
}

/// What a turn came to.
pub(crate) enum Outcome {
    /// Nothing to do.
    Idle,
    /// Nothing to append: act at once.
    Act(Vec<Action>),
    /// Append, then act.
    Append(Box<Append>),
}

/// A run in memory.
pub(crate) struct Resident {
    pub(crate) lease: Lease,
    pub(crate) namespace: String,
    hash: String,
    version: u32,
    execution: Execution,
    /// The position of the next event.
    next: Seq,
    /// The time of the last event: time never goes backwards within a run.
    now: Micros,
    /// The wake counter that belongs to the mail in memory.
    pub(crate) wake: i64,
    block_count: i32,
    inputs: VecDeque<Input>,
    /// Signals that nobody waits for yet, oldest first.
    signals: VecDeque<Mail>,
    /// Mail that is in memory or consumed; a read may bring it again.
    known_mail: HashSet<i64>,
    /// Mail that completes nothing; it goes with the next append.
    void_mail: Vec<i64>,
    /// The first turn, which needs no input, and the moment that its timers count from.
    first: Option<(Turn, Micros)>,
    /// What the append in flight will lead to.
    in_flight: Option<Vec<Action>>,
    consumed_in_flight: bool,
    /// Counts appends that consumed mail, to know a read that was begun before one.
    pub(crate) mail_epoch: u64,
    pub(crate) timers: HashMap<EffectId, Micros>,
    steps: HashMap<EffectId, AbortHandle>,
    /// Activities that run in this worker.
    local_activities: HashSet<EffectId>,
    pub(crate) mail_wanted: bool,
    pub(crate) active_at: Instant,
    /// The next turn appends also if there is nothing but the begin to tell.
    must_begin: bool,
    /// Held while the run is being advanced.
    advancing: Option<Advancing>,
}

impl Resident {
    /// Rebuilds a run from its journal.
    pub(crate) fn load(core: &Core, run: ClaimedRun, advancing: Advancing) -> Result<Self, Stuck> {
        let definition = core
            .registry
            .workflow(&run.workflow, &run.hash)
            .ok_or_else(|| Stuck::Corrupt {
                seq: None,
                reason: format!(
                    "this worker claimed `{}@{}` and has no code for it",
                    run.workflow, run.hash
                ),
            })?;
        let created_at = to_micros(run.created_at);
        let info = RunInfo {
            run_id: run.lease.run_id,
            chain_id: run.lease.chain_id,
            workflow: run.workflow,
            version: definition.version(),
            hash: run.hash.clone(),
            key: run.key,
            namespace: run.namespace.clone(),
            created_at,
        };
        let mut execution = Execution::new(definition, info, run.input);
        let mut now = created_at;
        for row in &run.history {
            let event = row.decode().map_err(|e| Stuck::Corrupt {
                seq: Some(row.seq),
                reason: e.to_string(),
            })?;
            now = now.max(to_micros(row.at));
            execution.replay(row.seq, to_micros(row.at), &event)?;
        }
        // Timers of the first turn count from now, however long the run was queued.
        let live_at = advance(now, core.clock.now());
        let first = execution.go_live(live_at)?;
        let mut resident = Self {
            lease: run.lease,
            namespace: run.namespace,
            hash: run.hash,
            version: definition.version(),
            next: run.history.last().map_or(1, |row| row.seq + 1),
            now,
            wake: run.wake,
            block_count: run.block_count,
            inputs: VecDeque::new(),
            signals: VecDeque::new(),
            known_mail: HashSet::new(),
            void_mail: Vec::new(),
            first: Some((first, live_at)),
            in_flight: None,
            consumed_in_flight: false,
            mail_epoch: 0,
            timers: open_timers(&execution),
            steps: HashMap::new(),
            local_activities: HashSet::new(),
            mail_wanted: false,
            active_at: Instant::now(),
            must_begin: false,
            advancing: Some(advancing),
            execution,
        };
        resident.take_mail(run.mail)?;
        Ok(resident)
    }

    /// What it takes to park the run.
    pub(crate) fn standing(&self) -> Standing {
        Standing {
            lease: self.lease,
            wake: self.wake,
            tries: self.block_count,
            quarantined: false,
        }
    }

    // ---- inputs ----------------------------------------------------------------------------------------------------

    /// Takes a whole mailbox that was read at `epoch`.
    pub(crate) fn take_mailbox(&mut self, mailbox: Mailbox, epoch: u64) -> Result<(), Stuck> {
        if epoch == self.mail_epoch && !self.consumed_in_flight {
            // Nothing was consumed since the read began: what it did not bring is gone for good.
            let present: HashSet<i64> = mailbox.mail.iter().map(|m| m.mail_id).collect();
            self.known_mail.retain(|id| present.contains(id));
        }
        self.take_mail(mailbox.mail)?;
        self.wake = mailbox.wake;
        Ok(())
    }

    fn take_mail(&mut self, mail: Vec<Mail>) -> Result<(), Stuck> {
        for mail in mail {
            if !self.known_mail.insert(mail.mail_id) {
                continue;
            }
            match mail.kind {
                MailKind::Signal => self.signals.push_back(mail),
                MailKind::ActivityResult => self.take_activity_result(mail)?,
                MailKind::Cancel => {
                    let reason = cancel_reason(&mail.payload);
                    self.inputs.push_front(Input {
                        completion: Completion::Cancel { reason },
                        mail: Some(mail.mail_id),
                        activity: None,
                    });
                }
            }
        }
        Ok(())
    }

    fn take_activity_result(&mut self, mail: Mail) -> Result<(), Stuck> {
        let corrupt = |reason: String| Stuck::Corrupt { seq: None, reason };
        let event = Event::decode(3, mail.payload.into_bytes())
            .map_err(|e| corrupt(format!("mail {}: {e}", mail.mail_id)))?;
        let Event::ActivityCompleted {
            effect,
            attempt,
            outcome,
        } = event
        else {
            return Err(corrupt(format!(
                "mail {} is no activity result",
                mail.mail_id
            )));
        };
        self.inputs.push_back(Input {
            completion: Completion::Activity {
                effect,
                attempt,
                outcome,
            },
            mail: Some(mail.mail_id),
            activity: None,
        });
        Ok(())
    }

    /// A step ended.
    pub(crate) fn step_ended(
        &mut self,
        effect: EffectId,
        outcome: continuum_schema::event::Outcome,
    ) {
        if self.steps.remove(&effect).is_some() {
            self.push(Completion::Step { effect, outcome }, None);
        }
    }

    /// An activity that ran in this worker ended; gives it back if the run doesn't wait for it.
    pub(crate) fn activity_ended(
        &mut self,
        completed: CompletedActivity,
        outcome: continuum_schema::event::Outcome,
    ) {
        self.local_activities.remove(&completed.effect);
        let completion = Completion::Activity {
            effect: completed.effect,
            attempt: completed.attempt,
            outcome,
        };
        self.push(completion, Some(completed));
    }

    /// An activity of this run left this worker without ending.
    pub(crate) fn activity_left(&mut self, effect: EffectId) {
        self.local_activities.remove(&effect);
    }

    /// A timer is due.
    pub(crate) fn timer_due(&mut self, effect: EffectId) {
        if self.timers.remove(&effect).is_some() {
            self.push(Completion::Timer { effect }, None);
        }
    }

    fn push(&mut self, completion: Completion, activity: Option<CompletedActivity>) {
        self.inputs.push_back(Input {
            completion,
            mail: None,
            activity,
        });
    }

    /// The next input: what came about by itself first, then a signal that somebody waits for.
    fn next_input(&mut self) -> Option<Input> {
        if let Some(input) = self.inputs.pop_front() {
            return Some(input);
        }
        if self.signals.is_empty() {
            return None;
        }
        let waits = self.execution.waiting_signals();
        let (place, effect) = self.signals.iter().enumerate().find_map(|(place, mail)| {
            let name = mail.name.as_deref()?;
            let (effect, _) = waits.iter().find(|(_, waited)| waited == name)?;
            Some((place, *effect))
        })?;
        let mail = self.signals.remove(place)?;
        Some(Input {
            completion: Completion::Signal {
                effect,
                name: mail.name.unwrap_or_default(),
                payload: mail.payload,
                delivery_id: mail.delivery_id,
            },
            mail: Some(mail.mail_id),
            activity: None,
        })
    }

    // ---- turns -----------------------------------------------------------------------------------------------------

    /// Whether the run waits for nothing but the world: it may be evicted.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight.is_none()
            && self.first.is_none()
            && self.inputs.is_empty()
            && self.steps.is_empty()
            && self.local_activities.is_empty()
            && !self.mail_wanted
    }

    /// Counts the run as being advanced or not, as it is now.
    pub(crate) fn count(&mut self, core: &Arc<Core>) {
        if self.is_idle() {
            self.advancing = None;
        } else if self.advancing.is_none() {
            self.advancing = Some(core.advance());
        }
    }

    /// Whether the journal says nothing of the run: it waits for what leaves no event while it is waited for.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.next == 1
    }

    /// Writes with the next turn that the run has begun. Otherwise nobody could tell it from one that is yet to begin,
    /// which is due.
    pub(crate) fn write_begin(&mut self) {
        self.must_begin = self.is_unwritten();
    }

    /// Whether an append is on its way: until it is answered nobody knows what the journal holds.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Takes a turn, unless an append is in flight.
    pub(crate) fn turn(&mut self, core: &Core) -> Result<Outcome, Stuck> {
        if self.in_flight.is_some() {
            return Ok(Outcome::Idle);
        }
        let mut draft = Draft::default();
        if let Some((first, live_at)) = self.first.take() {
            draft.add(first, self.now, live_at);
        }
        while !draft.ended && draft.bytes < TURN_BYTES_ENOUGH {
            let Some(input) = self.next_input() else {
                break;
            };
            self.now = advance(self.now, core.clock.now());
            let turn = self.execution.deliver(self.now, input.completion)?;
            match (turn.events.is_empty(), input.mail) {
                (true, Some(mail)) => self.void_mail.push(mail),
                (false, Some(mail)) => draft.mail.push(mail),
                (_, None) => {}
            }
            if !turn.events.is_empty() {
                draft.completed.extend(input.activity);
            }
            draft.add(turn, self.now, self.now);
        }
        draft.refuse_oversize(core.config.limits);
        draft.report_unread(&self.signals);
        self.cancel_dropped(&draft);
        if draft.events.is_empty() && !std::mem::take(&mut self.must_begin) {
            let (_, actions) = draft.actions(core, self.next);
            return Ok(if actions.is_empty() {
                Outcome::Idle
            } else {
                Outcome::Act(actions)
            });
        }
        Ok(Outcome::Append(Box::new(self.append(core, draft))))
    }

    /// Stops what runs here for effects that the code waits for no longer.
    fn cancel_dropped(&mut self, draft: &Draft) {
        for (effect, _) in &draft.dropped {
            self.timers.remove(effect);
            self.local_activities.remove(effect);
            if let Some(step) = self.steps.remove(effect) {
                step.abort();
            }
        }
    }

    fn append(&mut self, core: &Core, mut draft: Draft) -> Append {
        let first = self.next;
        if first == 1 {
            draft.begin(self.version, &self.hash, self.execution.info().created_at);
        }
        let mut append = draft.journaled(self.lease, first, &self.hash);
        append.mail.append(&mut self.void_mail);
        let (activities, actions) = draft.actions(core, first);
        append.activities = activities;
        self.next = first + Seq::try_from(append.events.len()).unwrap_or(Seq::MAX);
        self.consumed_in_flight = !append.mail.is_empty();
        self.in_flight = Some(actions);
        append
    }

    /// The append in flight has committed: what it decided may be acted on.
    pub(crate) fn committed(&mut self) -> Vec<Action> {
        if std::mem::take(&mut self.consumed_in_flight) {
            self.mail_epoch += 1;
        }
        self.in_flight.take().unwrap_or_default()
    }

    /// A step was spawned.
    pub(crate) fn step_started(&mut self, effect: EffectId, handle: AbortHandle) {
        self.steps.insert(effect, handle);
    }

    /// An activity of this run runs in this worker.
    pub(crate) fn activity_started(&mut self, effect: EffectId) {
        self.local_activities.insert(effect);
    }

    /// Whether the code still waits for an effect.
    pub(crate) fn is_pending(&self, effect: EffectId) -> bool {
        self.execution.is_pending(effect)
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        for step in self.steps.values() {
            step.abort();
        }
    }
}

/// The time of a run's next turn. Two workers' pictures of the database's clock differ by a little, and for that no run
/// sees its time go back. When that clock was itself set back, the run follows it: otherwise each of its sleeps would
/// count from a moment that is still to come.
fn advance(now: Micros, clock: Micros) -> Micros {
    if now.saturating_sub(clock) > STEP_MIN {
        clock
    } else {
        now.max(clock)
    }
}

fn open_timers(execution: &Execution) -> HashMap<EffectId, Micros> {
    let pending = execution.pending();
    pending
        .iter()
        .filter(|p| p.kind == EffectKind::Timer)
        .filter_map(|p| Some((p.effect, p.fire_at?)))
        .collect()
}

/// A turn in the making.
#[derive(Default)]
struct Draft {
    events: Vec<(Event, Micros)>,
    commands: Vec<Command>,
    /// How long each new timer is to wait. The database's clock may step before the append has committed, and then its
    /// moment alone does not tell.
    waits: HashMap<EffectId, Duration>,
    dropped: Vec<(EffectId, EffectKind)>,
    mail: Vec<i64>,
    completed: Vec<CompletedActivity>,
    bytes: usize,
    ended: bool,
}

impl Draft {
    /// Adds what a turn gave. Its events are dated `at`, and its timers count from `since`.
    fn add(&mut self, turn: Turn, at: Micros, since: Micros) {
        self.bytes += turn.events.iter().map(event_bytes).sum::<usize>();
        self.events
            .extend(turn.events.into_iter().map(|event| (event, at)));
        for command in turn.commands {
            match command {
                Command::Drop { effect, kind } => self.drop_effect(effect, kind),
                Command::Timer { effect, fire_at } => {
                    let wait = u64::try_from(fire_at.saturating_sub(since)).unwrap_or(0);
                    self.waits.insert(effect, Duration::from_micros(wait));
                    self.commands.push(Command::Timer { effect, fire_at });
                }
                command => self.commands.push(command),
            }
        }
        self.ended |= turn.ended;
    }

    /// An effect that is dropped in the turn that issued it never starts.
    fn drop_effect(&mut self, dropped: EffectId, kind: EffectKind) {
        self.commands.retain(|command| match command {
            Command::Activity(scheduled) => scheduled.effect != dropped,
            Command::Step { effect, .. }
            | Command::Timer { effect, .. }
            | Command::WaitSignal { effect, .. } => *effect != dropped,
            _ => true,
        });
        self.dropped.push((dropped, kind));
    }

    fn begin(&mut self, version: u32, hash: &str, created_at: Micros) {
        let started = Event::Started {
            version,
            hash: hash.to_owned(),
        };
        self.events.insert(0, (started, created_at));
    }

    /// A turn that the journal can't take ends the run with the reason; what it would have done is not done.
    fn refuse_oversize(&mut self, limits: Limits) {
        let Some(message) = self.oversize(limits) else {
            return;
        };
        let failure = Failure {
            kind: kind::OVERSIZE.into(),
            message,
            retryable: false,
            details: None,
            causes: Vec::new(),
        };
        let at = self.events.last().map_or(0, |(_, at)| *at);
        let event = Event::Failed {
            failure: failure.clone(),
            unread: Vec::new(),
        };
        self.events = vec![(event, at)];
        self.commands = vec![Command::Fail(failure)];
        self.dropped.clear();
        self.completed.clear();
        self.ended = true;
    }

    /// The last event names the signals that nobody had waited for. Posts that race with the end are not among them;
    /// all of them are kept in Postgres.
    fn report_unread(&mut self, signals: &VecDeque<Mail>) {
        let Some((
            Event::Completed { unread, .. }
            | Event::Failed { unread, .. }
            | Event::Cancelled { unread, .. },
            _,
        )) = self.events.last_mut()
        else {
            return;
        };
        unread.extend(signals.iter().map(|mail| Unread {
            name: mail.name.clone().unwrap_or_default(),
            delivery_id: mail.delivery_id.clone(),
        }));
    }

    fn oversize(&self, limits: Limits) -> Option<String> {
        for (event, _) in &self.events {
            let (what, bytes) = match event {
                Event::ActivityScheduled(scheduled) => (
                    format!("the input of activity `{}`", scheduled.name),
                    scheduled.input.len(),
                ),
                Event::Completed { result, .. } => {
                    ("the workflow's result".to_owned(), result.len())
                }
                _ => continue,
            };
            if bytes > limits.payload_bytes_max {
                return Some(format!(
                    "{what} has {bytes} bytes; the limit is {}",
                    limits.payload_bytes_max
                ));
            }
        }
        (self.bytes > limits.turn_bytes_max).then(|| {
            format!(
                "one turn would append {} bytes; the limit is {}",
                self.bytes, limits.turn_bytes_max
            )
        })
    }

    /// The append, but for the activities that it gives birth to.
    fn journaled(&mut self, lease: Lease, first: Seq, hash: &str) -> Append {
        let mut append = Append {
            lease,
            first,
            events: Vec::with_capacity(self.events.len()),
            end: None,
            mail: std::mem::take(&mut self.mail),
            timers_set: Vec::new(),
            timers_gone: Vec::new(),
            activities_dropped: Vec::new(),
            activities_completed: std::mem::take(&mut self.completed),
            activities: Vec::new(),
        };
        for (event, at) in &self.events {
            match event {
                Event::TimerStarted { effect, fire_at } => {
                    append.timers_set.push((*effect, *fire_at))
                }
                Event::TimerFired { effect } => append.timers_gone.push(*effect),
                _ => {}
            }
            append.end = run_end(event).map(|state| End {
                state,
                hash: hash.to_owned(),
            });
            append.events.push(NewEvent::new(event, *at));
        }
        for (effect, kind) in &self.dropped {
            match kind {
                EffectKind::Timer => append.timers_gone.push(*effect),
                EffectKind::Activity => append.activities_dropped.push(*effect),
                EffectKind::Step | EffectKind::Signal => {}
            }
        }
        let gone = &append.timers_gone;
        append
            .timers_set
            .retain(|(effect, _)| !gone.contains(effect));
        append
    }

    /// What is to be done after the commit, and the activities that are born with it. Whatever this worker can run it
    /// reserves a slot for first.
    fn actions(self, core: &Core, first: Seq) -> (Vec<NewActivity>, Vec<Action>) {
        let mut seqs = HashMap::new();
        for ((event, _), seq) in self.events.iter().zip(first..) {
            if let Event::ActivityScheduled(scheduled) = event {
                seqs.insert(scheduled.effect, seq);
            }
        }
        let mut activities = Vec::new();
        let mut actions = Vec::new();
        for command in self.commands {
            match command {
                Command::Activity(scheduled) => {
                    let slot = core.activities.reserve(core, &scheduled);
                    activities.push(NewActivity {
                        effect: scheduled.effect,
                        seq: seqs.get(&scheduled.effect).copied().unwrap_or(first),
                        queue: scheduled.options.queue.clone(),
                        name: scheduled.name.clone(),
                        max_attempts: scheduled.options.retry.max_attempts,
                        eager: slot.is_some(),
                    });
                    actions.push(match slot {
                        Some(slot) => Action::Activity {
                            scheduled: Box::new(scheduled),
                            slot,
                        },
                        None => Action::Ring {
                            queue: scheduled.options.queue,
                        },
                    });
                }
                Command::Step { effect, name, run } => {
                    actions.push(Action::Step { effect, name, run })
                }
                Command::Timer { effect, fire_at } => actions.push(Action::Timer {
                    effect,
                    fire_at,
                    wait: self.waits.get(&effect).copied().unwrap_or_default(),
                }),
                Command::Complete(_) | Command::Fail(_) | Command::Cancelled { .. } => {
                    actions.push(Action::Ended)
                }
                Command::WaitSignal { .. } | Command::Drop { .. } => {}
            }
        }
        (activities, actions)
    }
}

fn run_end(event: &Event) -> Option<RunEnd> {
    match event {
        Event::Completed { result, .. } => Some(RunEnd::Completed(result.clone())),
        Event::Failed { failure, .. } => Some(RunEnd::Failed(failure.clone())),
        Event::Cancelled { reason, .. } => Some(RunEnd::Cancelled(reason.clone())),
        _ => None,
    }
}

/// The size of what an event carries, roughly.
fn event_bytes(event: &Event) -> usize {
    use continuum_schema::event::Outcome;
    let failed = |failure: &Failure| {
        let causes: usize = failure.causes.iter().map(String::len).sum();
        failure.message.len() + causes + failure.details.as_ref().map_or(0, Payload::len)
    };
    let outcome = |outcome: &Outcome| match outcome {
        Outcome::Ok(value) => value.len(),
        Outcome::Err(failure) => failed(failure),
    };
    64 + match event {
        Event::ActivityScheduled(scheduled) => scheduled.input.len(),
        Event::ActivityCompleted { outcome: o, .. } | Event::StepCompleted { outcome: o, .. } => {
            outcome(o)
        }
        Event::SignalReceived { payload, .. } => payload.len(),
        Event::Completed { result, .. } => result.len(),
        Event::Failed { failure, .. } => failed(failure),
        _ => 0,
    }
}
