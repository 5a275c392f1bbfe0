//! Replay: history and completions in, events and commands out.
//!
//! Nothing here does I/O, knows a clock or needs a runtime. An [`Execution`] holds one run's code. It is fed the run's
//! history event by event, switched to live, and then fed one completion at a time. After each it polls the code until
//! the code is quiet, so that live turns and replays poll in exactly the same way; many completions may still share
//! one append, because the events come out in the order completion, commands, completion, commands.
//!
//! A turn that drifts, panics, livelocks or waits for something foreign gives [`Blocked`] and no event, whatever the
//! author's code may have caught on the way.

mod blocked;
mod canonical;
mod execution;
mod matching;
mod random;
mod slots;
mod state;
#[cfg(test)]
mod tests;
mod wake;

use std::fmt;

use continuum_schema::event::{ActivityScheduled, Event, Failure, Outcome};
use continuum_schema::{EffectId, Payload};
use futures::future::BoxFuture;
use uuid::Uuid;

use crate::error::ActivityError;

pub use blocked::{Blocked, ReplayDrift, Side};
pub use execution::Execution;
pub use matching::TERMINATED;
pub(crate) use slots::{Delivery, StepRun};
pub use slots::{EffectKind, Pending};
pub(crate) use state::{Issue, Request, Shared};

/// What a run's code may know of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInfo {
    /// The run.
    pub run_id: Uuid,
    /// The chain that it belongs to: the id of the chain's first run.
    pub chain_id: Uuid,
    /// The name of its workflow.
    pub workflow: String,
    /// The version of the code that it is bound to.
    pub version: u32,
    /// The hash of that code.
    pub hash: String,
    /// The key that it was started under.
    pub key: Option<String>,
    /// The namespace that it lives in.
    pub namespace: String,
    /// When it was created, in microseconds since the epoch, by the database's clock.
    pub created_at: i64,
}

/// Something that the code waits for and that has come about.
#[derive(Clone, Debug, PartialEq)]
pub enum Completion {
    /// An activity ended.
    Activity {
        /// Which effect.
        effect: EffectId,
        /// The attempt that ended it, from 1.
        attempt: u32,
        /// What it gave.
        outcome: Outcome,
    },
    /// A step ended.
    Step {
        /// Which effect.
        effect: EffectId,
        /// What it gave.
        outcome: Outcome,
    },
    /// A timer is due.
    Timer {
        /// Which effect.
        effect: EffectId,
    },
    /// A signal for a wait.
    Signal {
        /// The effect that waits; see [`Execution::waiting_signals`].
        effect: EffectId,
        /// The signal's name.
        name: String,
        /// What it carries.
        payload: Payload,
        /// The sender's delivery id, where there is one.
        delivery_id: Option<String>,
    },
    /// Somebody asked the run to stop.
    Cancel {
        /// Why, in the words of whoever asked.
        reason: String,
    },
}

impl Completion {
    /// The effect that this completes; a cancel request completes none in particular.
    #[must_use]
    pub fn effect(&self) -> Option<EffectId> {
        match self {
            Self::Activity { effect, .. }
            | Self::Step { effect, .. }
            | Self::Timer { effect }
            | Self::Signal { effect, .. } => Some(*effect),
            Self::Cancel { .. } => None,
        }
    }
}

/// What the engine must act on once the events of the same turn have committed.
pub enum Command {
    /// An activity is to be scheduled.
    Activity(ActivityScheduled),
    /// A step is to be run here.
    Step {
        /// Which effect.
        effect: EffectId,
        /// The step's name.
        name: String,
        /// Its work, with the value already encoded. Spawn it; its end is a [`Completion::Step`].
        run: BoxFuture<'static, Result<Payload, ActivityError>>,
    },
    /// A timer is to be set.
    Timer {
        /// Which effect.
        effect: EffectId,
        /// When it is due, in microseconds since the epoch.
        fire_at: i64,
    },
    /// A signal is waited for; it may be in the mailbox already.
    WaitSignal {
        /// Which effect.
        effect: EffectId,
        /// The signal's name.
        name: String,
    },
    /// The code waits for this no longer. It may be a step or a wait that was issued and dropped in one turn, of which
    /// the engine has never heard.
    Drop {
        /// Which effect.
        effect: EffectId,
        /// Its sort.
        kind: EffectKind,
    },
    /// The run is over, with this value.
    Complete(Payload),
    /// The run is over, with this error.
    Fail(Failure),
    /// The run is over because it was cancelled.
    Cancelled {
        /// Why, in the words of whoever asked.
        reason: String,
    },
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Activity(scheduled) => f.debug_tuple("Activity").field(scheduled).finish(),
            Self::Step { effect, name, .. } => write!(f, "Step({effect}, {name:?})"),
            Self::Timer { effect, fire_at } => write!(f, "Timer({effect}, {fire_at})"),
            Self::WaitSignal { effect, name } => write!(f, "WaitSignal({effect}, {name:?})"),
            Self::Drop { effect, kind } => write!(f, "Drop({effect}, {kind})"),
            Self::Complete(result) => f.debug_tuple("Complete").field(result).finish(),
            Self::Fail(failure) => f.debug_tuple("Fail").field(failure).finish(),
            Self::Cancelled { reason } => write!(f, "Cancelled({reason:?})"),
        }
    }
}

/// What one completion led to.
#[derive(Debug, Default)]
#[must_use = "a turn that is not appended never happened"]
pub struct Turn {
    /// The events to append, in order: the completion, then the commands. Empty if nobody waited for the completion
    /// or if the code issued nothing that is journaled. [`Event::Started`] is never among them.
    pub events: Vec<Event>,
    /// What to act on after the append has committed, in order.
    pub commands: Vec<Command>,
    /// Whether the run is over. Whatever is still outstanding is then dropped without an event.
    pub ended: bool,
}
