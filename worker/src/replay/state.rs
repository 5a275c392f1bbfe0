//! What a run's context, its effects and its [`Execution`](super::Execution) share: the outstanding effects and the
//! commands that the code has issued.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use continuum_schema::event::{ActivityOptions, ActivityScheduled, Event, Failure};
use continuum_schema::{EffectId, Payload, Seq};

use super::random::Streams;
use super::slots::{Delivery, EffectKind, Freed, Released, Slot, Slots, Status, StepRun};
use super::wake::Root;
use super::{Blocked, Command, RunInfo, Turn};

/// What an effect asks for when it is first polled.
pub(crate) enum Request {
    Activity {
        name: &'static str,
        input: Payload,
        options: ActivityOptions,
    },
    Step {
        name: Cow<'static, str>,
        run: StepRun,
    },
    Timer {
        after: Duration,
    },
    Signal {
        name: Cow<'static, str>,
    },
}

/// What became of a request.
pub(crate) enum Issue {
    /// It has this number and is outstanding.
    Issued(EffectId),
    /// The run is cancelled; nothing was asked for.
    Cancelled,
    /// The turn has already failed; nothing more is asked for.
    Halted,
}

/// A command as the code issued it, waiting to be matched with the history or turned into events.
pub(crate) enum Asked {
    Activity(ActivityScheduled),
    Step(EffectId),
    Timer { effect: EffectId, fire_at: i64 },
    Signal(EffectId),
    Drop { effect: EffectId, kind: EffectKind },
    End(Ending),
}

/// How the code ended.
pub(crate) enum Ending {
    Completed(Payload),
    Failed(Failure),
    Cancelled(String),
}

/// A command and the author's line that issued it.
pub(crate) struct Issued {
    pub(crate) asked: Asked,
    pub(crate) location: Option<&'static Location<'static>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The history is being fed; commands wait to be matched.
    Replay,
    /// Commands become events.
    Live,
    /// The code is ended, evicted or given up: dropped effects mean nothing any more.
    Closed,
}

/// What is shared between the context, the effects and the execution of one run.
pub(crate) struct Shared {
    pub(crate) info: RunInfo,
    pub(crate) root: Arc<Root>,
    state: Mutex<State>,
}

impl Shared {
    pub(crate) fn new(info: RunInfo) -> Arc<Self> {
        let state = State {
            mode: Mode::Replay,
            slots: Slots::new(),
            issued: VecDeque::new(),
            shields: 0,
            cancelled: None,
            now: info.created_at,
            clock: info.created_at,
            since: 1,
            fault: None,
            streams: Streams::default(),
        };
        Arc::new(Self {
            info,
            root: Root::new(),
            state: Mutex::new(state),
        })
    }

    /// The state. Nothing of the author's may be woken or dropped while the guard lives: it could come back here.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails the turn, and this very call, if the caller is not the run's own code in the run's own poll.
    ///
    /// # Panics
    /// If it isn't. The flag stays even if the author's code catches the panic.
    pub(crate) fn check_current(&self, what: impl fmt::Display) {
        if !self.root.is_current() {
            let message = format!(
                "{what} was used outside its run: on another thread, in another run, or after a `block_on` or a spawn"
            );
            self.lock().fail(Blocked::Foreign(message.clone()));
            panic!("{message}");
        }
    }

    /// The next deterministic number.
    pub(crate) fn random(&self) -> u64 {
        self.check_current("ctx.random()");
        self.lock().streams.number(self.info.run_id)
    }

    /// The next deterministic id.
    pub(crate) fn uuid(&self) -> uuid::Uuid {
        self.check_current("ctx.uuid()");
        self.lock().streams.id(self.info.run_id)
    }

    /// Drops an effect that may still be outstanding.
    pub(crate) fn drop_effect(&self, effect: EffectId) {
        let released = self.lock().drop_effect(effect);
        drop(released);
    }
}

pub(crate) struct State {
    mode: Mode,
    slots: Slots,
    issued: VecDeque<Issued>,
    /// How many shields the poll is inside of.
    shields: u32,
    cancelled: Option<String>,
    /// What the author sees as the time: that of the last delivered event.
    now: i64,
    /// The time that new timers count from. It differs from `now` in a run's first turn only: a run that waited an
    /// hour for a worker must not find its first sleep over at once.
    clock: i64,
    since: Seq,
    fault: Option<Blocked>,
    streams: Streams,
}

impl State {
    // ---- what effects ask -----------------------------------------------------------------------------------------

    /// Issues what `request` makes, if the run takes anything new at all.
    pub(crate) fn issue(
        &mut self,
        request: impl FnOnce() -> Request,
        location: &'static Location<'static>,
        waker: Option<&Waker>,
    ) -> Issue {
        if self.fault.is_some() || self.mode == Mode::Closed {
            return Issue::Halted;
        }
        if self.refuses_new() {
            return Issue::Cancelled;
        }
        let effect = self.slots.next();
        let (kind, name, run, fire_at, asked) = self.open(effect, request());
        self.slots.push(Slot {
            kind,
            name,
            location,
            since: self.since,
            shielded: self.shields > 0,
            status: Status::Outstanding {
                waker: waker.cloned(),
                run,
                fire_at,
            },
        });
        self.enqueue(kind.is_journaled(), asked, Some(location));
        Issue::Issued(effect)
    }

    /// The parts of a new slot, and its command.
    fn open(
        &self,
        effect: EffectId,
        request: Request,
    ) -> (EffectKind, Cow<'static, str>, Option<StepRun>, i64, Asked) {
        match request {
            Request::Activity {
                name,
                input,
                options,
            } => {
                let scheduled = ActivityScheduled {
                    effect,
                    name: name.to_owned(),
                    input,
                    options,
                };
                let asked = Asked::Activity(scheduled);
                (EffectKind::Activity, Cow::Borrowed(name), None, 0, asked)
            }
            Request::Step { name, run } => {
                (EffectKind::Step, name, Some(run), 0, Asked::Step(effect))
            }
            Request::Timer { after } => {
                let micros = i64::try_from(after.as_micros()).unwrap_or(i64::MAX);
                let fire_at = self.clock.saturating_add(micros);
                let asked = Asked::Timer { effect, fire_at };
                (EffectKind::Timer, Cow::Borrowed(""), None, fire_at, asked)
            }
            Request::Signal { name } => (EffectKind::Signal, name, None, 0, Asked::Signal(effect)),
        }
    }

    /// Cancels an effect that the code drops. Returns what its slot held, to be dropped outside the lock.
    pub(crate) fn drop_effect(&mut self, effect: EffectId) -> Option<Released> {
        let released = self.slots.release(effect)?;
        if released.was_outstanding {
            let kind = released.kind;
            self.enqueue(
                kind.is_journaled(),
                Asked::Drop { effect, kind },
                Some(released.location),
            );
        }
        Some(released)
    }

    /// Enters a shield for as long as one poll lasts.
    pub(crate) fn enter_shield(&mut self) {
        self.shields += 1;
    }

    pub(crate) fn leave_shield(&mut self) {
        self.shields -= 1;
    }

    /// Whether a new effect would be refused because the run is cancelled.
    pub(crate) fn refuses_new(&self) -> bool {
        self.cancelled.is_some() && self.shields == 0
    }

    /// Marks the turn as failed; the first reason stays.
    pub(crate) fn fail(&mut self, blocked: Blocked) {
        self.fault.get_or_insert(blocked);
    }

    pub(crate) fn now(&self) -> i64 {
        self.now
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.is_some()
    }

    // ---- what the execution does ----------------------------------------------------------------------------------

    pub(crate) fn fault(&self) -> Option<Blocked> {
        self.fault.clone()
    }

    pub(crate) fn cancel_reason(&self) -> Option<&str> {
        self.cancelled.as_deref()
    }

    pub(crate) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// For what leaves no command.
    pub(crate) fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    /// Notes that the event at `seq` is being delivered at the time `now`.
    pub(crate) fn arrive(&mut self, seq: Seq, now: i64) {
        self.since = seq;
        self.now = now;
        self.clock = now;
    }

    /// Cancels the run: resolves every effect outside a shield, in effect order.
    pub(crate) fn cancel(&mut self, reason: &str) -> Vec<Freed> {
        if self.cancelled.is_some() {
            return Vec::new();
        }
        self.cancelled = Some(reason.to_owned());
        let freed: Vec<_> = self
            .slots
            .numbered()
            .filter(|(_, slot)| slot.is_outstanding() && !slot.shielded)
            .map(|(effect, slot)| (effect, slot.kind, slot.location))
            .collect();
        freed
            .into_iter()
            .filter_map(|(effect, kind, location)| {
                self.enqueue(
                    kind.is_journaled(),
                    Asked::Drop { effect, kind },
                    Some(location),
                );
                self.slots.resolve(effect, Delivery::Cancelled)
            })
            .collect()
    }

    pub(crate) fn end(&mut self, ending: Ending) {
        self.enqueue(true, Asked::End(ending), None);
    }

    /// Forgets every effect. This comes before the code is dropped, so that an eviction doesn't look like the code's
    /// own decision to drop whatever it waits for. Returns what the slots held, to be dropped outside the lock.
    pub(crate) fn close(&mut self) -> impl Sized + use<> {
        self.mode = Mode::Closed;
        self.slots.clear()
    }

    /// Switches from replay to live: commands become events from here on. Steps and waits left no event, so whichever
    /// are outstanding are issued once more.
    pub(crate) fn go_live(&mut self, now: i64) {
        self.clock = now;
        if self.mode == Mode::Closed {
            return;
        }
        self.mode = Mode::Live;
        let again: Vec<_> = self
            .slots
            .numbered()
            .filter(|(_, slot)| slot.is_outstanding() && !slot.kind.is_journaled())
            .map(|(effect, slot)| Issued {
                asked: match slot.kind {
                    EffectKind::Step => Asked::Step(effect),
                    _ => Asked::Signal(effect),
                },
                location: Some(slot.location),
            })
            .collect();
        self.issued.extend(again);
    }

    pub(crate) fn front(&self) -> Option<&Issued> {
        self.issued.front()
    }

    pub(crate) fn pop(&mut self) -> Option<Issued> {
        self.issued.pop_front()
    }

    /// Moves everything issued into a turn.
    pub(crate) fn drain(&mut self, turn: &mut Turn) {
        while let Some(issued) = self.issued.pop_front() {
            match issued.asked {
                Asked::Activity(scheduled) => {
                    turn.events
                        .push(Event::ActivityScheduled(scheduled.clone()));
                    turn.commands.push(Command::Activity(scheduled));
                }
                Asked::Timer { effect, fire_at } => {
                    turn.events.push(Event::TimerStarted { effect, fire_at });
                    turn.commands.push(Command::Timer { effect, fire_at });
                }
                Asked::Step(effect) => turn.commands.extend(self.start_step(effect)),
                Asked::Signal(effect) => turn.commands.extend(self.start_wait(effect)),
                Asked::Drop { effect, kind } => {
                    if kind.is_journaled() {
                        turn.events.push(Event::Dropped { effect });
                    }
                    turn.commands.push(Command::Drop { effect, kind });
                }
                Asked::End(ending) => end_turn(ending, turn),
            }
        }
    }

    /// `None` if the code dropped the step in the very poll that issued it.
    fn start_step(&mut self, effect: EffectId) -> Option<Command> {
        let (name, run) = self.slots.take_run(effect)?;
        Some(Command::Step { effect, name, run })
    }

    /// `None` if the code dropped the wait in the very poll that issued it.
    fn start_wait(&self, effect: EffectId) -> Option<Command> {
        let slot = self
            .slots
            .get(effect)
            .filter(|slot| slot.is_outstanding())?;
        Some(Command::WaitSignal {
            effect,
            name: slot.name.clone().into_owned(),
        })
    }

    /// Steps and waits leave no command event, so in replay there is nothing to match them with.
    fn enqueue(
        &mut self,
        journaled: bool,
        asked: Asked,
        location: Option<&'static Location<'static>>,
    ) {
        if journaled || self.mode == Mode::Live {
            self.issued.push_back(Issued { asked, location });
        }
    }
}

fn end_turn(ending: Ending, turn: &mut Turn) {
    let unread = Vec::new();
    let (event, command) = match ending {
        Ending::Completed(result) => (
            Event::Completed {
                result: result.clone(),
                unread,
            },
            Command::Complete(result),
        ),
        Ending::Failed(failure) => (
            Event::Failed {
                failure: failure.clone(),
                unread,
            },
            Command::Fail(failure),
        ),
        Ending::Cancelled(reason) => (
            Event::Cancelled {
                reason: reason.clone(),
                unread,
            },
            Command::Cancelled { reason },
        ),
    };
    turn.events.push(event);
    turn.commands.push(command);
    turn.ended = true;
}
