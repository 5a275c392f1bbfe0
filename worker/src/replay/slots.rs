//! The effects of one run that are not over yet, by number.

use std::borrow::Cow;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::mem;
use std::panic::Location;
use std::task::{Poll, Waker};

use continuum_schema::event::Outcome;
use continuum_schema::{EffectId, Payload, Seq};
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::Side;
use crate::error::ActivityError;

/// The closure of a step, called and its value encoded: what the engine spawns.
pub(crate) type StepRun = BoxFuture<'static, Result<Payload, ActivityError>>;

/// The sort of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectKind {
    /// A queued side effect with attempts.
    Activity,
    /// A side effect that runs in the worker which holds the run.
    Step,
    /// A sleep.
    Timer,
    /// A wait for a signal.
    Signal,
}

impl EffectKind {
    /// Whether issuing such an effect, and dropping it, leaves an event.
    pub(crate) fn is_journaled(self) -> bool {
        matches!(self, Self::Activity | Self::Timer)
    }
}

impl fmt::Display for EffectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Activity => "activity",
            Self::Step => "step",
            Self::Timer => "timer",
            Self::Signal => "signal",
        })
    }
}

/// What an effect resolves with.
pub(crate) enum Delivery {
    Outcome(Outcome),
    Fired,
    Signal(Payload),
    Cancelled,
}

/// One effect that was issued.
pub(crate) struct Slot {
    pub(crate) kind: EffectKind,
    /// Empty for a timer.
    pub(crate) name: Cow<'static, str>,
    /// The author's line.
    pub(crate) location: &'static Location<'static>,
    /// The position of the event after which it was issued.
    pub(crate) since: Seq,
    /// Whether a cancel of the run leaves it alone.
    pub(crate) shielded: bool,
    pub(crate) status: Status,
}

pub(crate) enum Status {
    Outstanding {
        waker: Option<Waker>,
        /// A step's work until the engine takes it.
        run: Option<StepRun>,
        /// When a timer is due.
        fire_at: i64,
    },
    /// Resolved, not yet seen by the code.
    Ready(Delivery),
    /// Seen or dropped by the code.
    Finished,
}

/// What a resolved effect leaves behind, to be woken and dropped outside the lock.
pub(crate) struct Freed {
    /// `None` if the code has started the effect but not polled it yet.
    waker: Option<Waker>,
    /// A step's work that replay needs no more.
    _run: Option<StepRun>,
}

impl Freed {
    /// Wakes whoever polled the effect last.
    pub(crate) fn wake(self) {
        if let Some(waker) = self.waker {
            waker.wake();
        }
    }
}

/// What an effect leaves behind that the code has dropped.
pub(crate) struct Released {
    pub(crate) kind: EffectKind,
    pub(crate) location: &'static Location<'static>,
    /// Otherwise it had resolved, and nobody has looked.
    pub(crate) was_outstanding: bool,
    _status: Status,
}

impl Slot {
    pub(crate) fn is_outstanding(&self) -> bool {
        matches!(self.status, Status::Outstanding { .. })
    }

    fn side(&self, effect: EffectId) -> Side {
        let side = Side::new(self.kind.to_string()).effect(effect);
        match self.kind {
            EffectKind::Timer => side,
            _ => side.name(self.name.clone()),
        }
    }
}

/// An effect that the code waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// Which effect.
    pub effect: EffectId,
    /// Its sort.
    pub kind: EffectKind,
    /// The name of the activity, step or signal; a timer has none.
    pub name: Option<String>,
    /// The position of the event after which the code asked for it.
    pub since: Seq,
    /// When a timer is due, in microseconds since the epoch.
    pub fire_at: Option<i64>,
    /// The author's line, as `file:line:column`.
    pub location: String,
}

/// The effects that are not over yet. Their numbers have no gaps, so that looking one up is indexing.
pub(crate) struct Slots {
    /// The effects from number `first` on; all before it are over and forgotten.
    slots: VecDeque<Slot>,
    first: EffectId,
    outstanding: usize,
    /// The waits for signals that are outstanding, in issue order.
    signals: BTreeSet<EffectId>,
    /// The timers that are outstanding, the next one first.
    timers: BTreeSet<(i64, EffectId)>,
}

impl Slots {
    pub(crate) fn new() -> Self {
        Self {
            slots: VecDeque::new(),
            first: 1,
            outstanding: 0,
            signals: BTreeSet::new(),
            timers: BTreeSet::new(),
        }
    }

    /// The number that the next effect gets.
    pub(crate) fn next(&self) -> EffectId {
        let issued = EffectId::try_from(self.slots.len()).expect("memory ends before 2^32 effects");
        self.first + issued
    }

    /// Adds an effect that is outstanding, under the number [`Slots::next`].
    pub(crate) fn push(&mut self, slot: Slot) {
        let effect = self.next();
        match (slot.kind, &slot.status) {
            (EffectKind::Signal, _) => {
                self.signals.insert(effect);
            }
            (EffectKind::Timer, Status::Outstanding { fire_at, .. }) => {
                self.timers.insert((*fire_at, effect));
            }
            _ => {}
        }
        self.outstanding += 1;
        self.slots.push_back(slot);
    }

    /// The value of an effect, or a note of whom to wake. Also returns the waker that was replaced, to be dropped
    /// outside the lock.
    pub(crate) fn poll(
        &mut self,
        effect: EffectId,
        waker: &Waker,
    ) -> (Poll<Delivery>, Option<Waker>) {
        let slot = self
            .get_mut(effect)
            .expect("an effect asks for its slot only until it has seen its value");
        match &mut slot.status {
            Status::Outstanding { waker: stored, .. } => {
                let known = stored.as_ref().is_some_and(|s| s.will_wake(waker));
                let replaced = (!known).then(|| stored.replace(waker.clone())).flatten();
                (Poll::Pending, replaced)
            }
            status => match mem::replace(status, Status::Finished) {
                Status::Ready(delivery) => {
                    self.trim();
                    (Poll::Ready(delivery), None)
                }
                _ => unreachable!("a finished effect is never asked for"),
            },
        }
    }

    /// Resolves one effect; one that isn't outstanding stays as it is.
    pub(crate) fn resolve(&mut self, effect: EffectId, delivery: Delivery) -> Option<Freed> {
        let slot = self.get_mut(effect)?;
        if !slot.is_outstanding() {
            return None;
        }
        let kind = slot.kind;
        match mem::replace(&mut slot.status, Status::Ready(delivery)) {
            Status::Outstanding {
                waker,
                run,
                fire_at,
            } => {
                self.unlist(effect, kind, fire_at);
                Some(Freed { waker, _run: run })
            }
            _ => unreachable!("the slot was seen to be outstanding"),
        }
    }

    /// Marks an effect that the code drops as over. Returns what its slot held, to be dropped outside the lock.
    pub(crate) fn release(&mut self, effect: EffectId) -> Option<Released> {
        let slot = self.get_mut(effect)?;
        let (kind, location) = (slot.kind, slot.location);
        let status = mem::replace(&mut slot.status, Status::Finished);
        let was_outstanding = matches!(status, Status::Outstanding { .. });
        if let Status::Outstanding { fire_at, .. } = status {
            self.unlist(effect, kind, fire_at);
        }
        self.trim();
        Some(Released {
            kind,
            location,
            was_outstanding,
            _status: status,
        })
    }

    /// Takes a step's work, if the step is still wanted.
    pub(crate) fn take_run(&mut self, effect: EffectId) -> Option<(String, StepRun)> {
        let slot = self.get_mut(effect)?;
        let Status::Outstanding { run, .. } = &mut slot.status else {
            return None;
        };
        Some((slot.name.clone().into_owned(), run.take()?))
    }

    /// Takes over when a timer is due from its event; in replay the code's own figure is provisional.
    pub(crate) fn adopt_fire_at(&mut self, effect: EffectId, due: i64) {
        let Some(slot) = self.get_mut(effect) else {
            return;
        };
        if let Status::Outstanding { fire_at, .. } = &mut slot.status {
            let provisional = mem::replace(fire_at, due);
            self.timers.remove(&(provisional, effect));
            self.timers.insert((due, effect));
        }
    }

    /// Forgets everything. Returns what the slots held, to be dropped outside the lock.
    pub(crate) fn clear(&mut self) -> impl Sized + use<> {
        self.outstanding = 0;
        self.signals.clear();
        self.timers.clear();
        mem::take(&mut self.slots)
    }

    /// How many are outstanding.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    pub(crate) fn is_outstanding(&self, effect: EffectId) -> bool {
        self.get(effect).is_some_and(Slot::is_outstanding)
    }

    /// Whether the effect is outstanding, of this kind and, where one is given, of this name.
    pub(crate) fn awaits(&self, effect: EffectId, kind: EffectKind, name: Option<&str>) -> bool {
        self.get(effect).is_some_and(|slot| {
            slot.is_outstanding() && slot.kind == kind && name.is_none_or(|n| n == slot.name)
        })
    }

    /// The name of a step that is outstanding.
    pub(crate) fn step_name(&self, effect: EffectId) -> Option<String> {
        let slot = self.get(effect)?;
        let waits = slot.is_outstanding() && slot.kind == EffectKind::Step;
        waits.then(|| slot.name.clone().into_owned())
    }

    pub(crate) fn waiting_signals(&self) -> Vec<(EffectId, String)> {
        self.signals
            .iter()
            .filter_map(|&effect| Some((effect, self.get(effect)?.name.clone().into_owned())))
            .collect()
    }

    pub(crate) fn next_timer(&self) -> Option<i64> {
        self.timers.first().map(|(fire_at, _)| *fire_at)
    }

    pub(crate) fn pending(&self) -> Vec<Pending> {
        self.numbered()
            .filter_map(|(effect, slot)| {
                let Status::Outstanding { fire_at, .. } = slot.status else {
                    return None;
                };
                let is_timer = slot.kind == EffectKind::Timer;
                Some(Pending {
                    effect,
                    kind: slot.kind,
                    name: (!is_timer).then(|| slot.name.clone().into_owned()),
                    since: slot.since,
                    fire_at: is_timer.then_some(fire_at),
                    location: slot.location.to_string(),
                })
            })
            .collect()
    }

    /// What the code has under this number, for a drift report.
    pub(crate) fn describe(&self, effect: EffectId) -> (Side, Option<&'static Location<'static>>) {
        match self.get(effect) {
            Some(slot) if slot.is_outstanding() => (
                slot.side(effect).detail("still waited for"),
                Some(slot.location),
            ),
            Some(slot) => (
                slot.side(effect).detail("no longer waited for"),
                Some(slot.location),
            ),
            None if effect >= self.first => (Side::new("no such effect yet").effect(effect), None),
            None => (Side::new("an effect that is over").effect(effect), None),
        }
    }

    /// What the code waits for, for a drift report, and the line of the last of it.
    pub(crate) fn describe_waits(&self) -> (Side, Option<&'static Location<'static>>) {
        const NAMED_MAX: usize = 4;
        let waits = || self.numbered().filter(|(_, slot)| slot.is_outstanding());
        let mut texts: Vec<_> = waits()
            .take(NAMED_MAX)
            .map(|(effect, slot)| slot.side(effect).to_string())
            .collect();
        if self.outstanding > NAMED_MAX {
            texts.push(format!("{} more", self.outstanding - NAMED_MAX));
        }
        let side = Side::new("no command").detail(format!("it waits for {}", texts.join(", ")));
        (side, waits().last().map(|(_, slot)| slot.location))
    }

    /// An effect by its number, unless it is over and forgotten.
    pub(crate) fn get(&self, effect: EffectId) -> Option<&Slot> {
        self.slots
            .get(usize::try_from(effect.checked_sub(self.first)?).ok()?)
    }

    fn get_mut(&mut self, effect: EffectId) -> Option<&mut Slot> {
        self.slots
            .get_mut(usize::try_from(effect.checked_sub(self.first)?).ok()?)
    }

    /// All effects that are not forgotten, in issue order.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (EffectId, &Slot)> {
        (self.first..).zip(&self.slots)
    }

    /// Takes an effect that is no longer outstanding out of the indexes.
    fn unlist(&mut self, effect: EffectId, kind: EffectKind, fire_at: i64) {
        self.outstanding -= 1;
        match kind {
            EffectKind::Signal => {
                self.signals.remove(&effect);
            }
            EffectKind::Timer => {
                self.timers.remove(&(fire_at, effect));
            }
            EffectKind::Activity | EffectKind::Step => {}
        }
    }

    /// Forgets finished effects at the front, so that a long run stays small.
    fn trim(&mut self) {
        while matches!(self.slots.front(), Some(slot) if matches!(slot.status, Status::Finished)) {
            self.slots.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> Slot {
        Slot {
            kind: EffectKind::Step,
            name: Cow::Borrowed("s"),
            location: Location::caller(),
            since: 1,
            shielded: false,
            status: Status::Outstanding {
                waker: None,
                run: None,
                fire_at: 0,
            },
        }
    }

    #[test]
    fn a_long_run_keeps_only_what_is_not_over() {
        let mut slots = Slots::new();
        slots.push(step());
        for effect in 2..1_000 {
            slots.push(step());
            assert!(slots.resolve(effect, Delivery::Fired).is_some());
            assert!(slots.poll(effect, Waker::noop()).0.is_ready());
        }
        assert_eq!((slots.numbered().count(), slots.outstanding()), (999, 1));
        slots.release(1);
        assert_eq!((slots.numbered().count(), slots.next()), (0, 1_000));
        assert!(slots.get(1).is_none() && slots.get(1_000).is_none());
        assert!(slots.resolve(1, Delivery::Fired).is_none());
    }
}
