//! The journal's events: what a run did and what happened to it, one row each.
//!
//! An event is a *command* (the workflow's code asked for something, in this order) or a *completion* (something the
//! code waits for came about, in this order). Replay delivers the completions one by one, and after each the code
//! must issue exactly the commands that follow it here.
//!
//! Effects are numbered from 1 in the order in which the code first polls them. A step and a wait for a signal leave
//! no command event: their completion alone names them, so ten sequential steps are ten events.

use serde::{Deserialize, Serialize};

use crate::Payload;

/// The number of an effect within its run, from 1, in the order in which the code issued it.
pub type EffectId = u32;

/// The position of an event within its run, from 1.
pub type Seq = i32;

/// One event of a run's journal.
///
/// The numbers in [`Event::kind`] are stored; they are never given to another meaning.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The first event: the code that the run is bound to from here on.
    Started {
        /// The workflow's version number as its author wrote it.
        version: u32,
        /// The hash of the workflow's code.
        hash: String,
    },
    /// Command: an activity was asked for.
    ActivityScheduled(ActivityScheduled),
    /// Completion: an activity ended, well or badly.
    ActivityCompleted {
        /// Which effect.
        effect: EffectId,
        /// The attempt that ended it, from 1.
        attempt: u32,
        /// What it gave.
        outcome: Outcome,
    },
    /// Completion: a step ended, well or badly.
    StepCompleted {
        /// Which effect.
        effect: EffectId,
        /// The step's name, matched in replay.
        name: String,
        /// What it gave.
        outcome: Outcome,
    },
    /// Command: a timer was set.
    TimerStarted {
        /// Which effect.
        effect: EffectId,
        /// When it is due: microseconds since the epoch, by the database's clock.
        fire_at: i64,
    },
    /// Completion: a timer is due.
    TimerFired {
        /// Which effect.
        effect: EffectId,
    },
    /// Completion: a signal reached a wait for it.
    SignalReceived {
        /// The effect that waited.
        effect: EffectId,
        /// The signal's name, matched in replay.
        name: String,
        /// What it carries.
        payload: Payload,
        /// The sender's delivery id, where there was one.
        delivery_id: Option<String>,
    },
    /// Completion: somebody asked the run to stop.
    CancelRequested {
        /// Why, in the words of whoever asked.
        reason: String,
    },
    /// Command: the code dropped a pending activity or timer.
    Dropped {
        /// Which effect.
        effect: EffectId,
    },
    /// The last event: the workflow returned a value.
    Completed {
        /// The value.
        result: Payload,
        /// Signals that had reached the worker and that nobody had waited for.
        unread: Vec<Unread>,
    },
    /// The last event: the workflow returned an error, panicked where that ends a run, or was ended by an operator.
    Failed {
        /// Why.
        failure: Failure,
        /// Signals that had reached the worker and that nobody had waited for.
        unread: Vec<Unread>,
    },
    /// The last event: the workflow ended because it was cancelled.
    Cancelled {
        /// Why.
        reason: String,
        /// Signals that had reached the worker and that nobody had waited for.
        unread: Vec<Unread>,
    },
}

/// What an activity command carries; see [`Event::ActivityScheduled`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivityScheduled {
    /// Which effect.
    pub effect: EffectId,
    /// The activity's name, matched in replay.
    pub name: String,
    /// Its input, matched in replay.
    pub input: Payload,
    /// How it is to be run. Options may differ in replay: they don't change what the workflow means.
    pub options: ActivityOptions,
}

/// How an activity is to be run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActivityOptions {
    /// The queue whose workers run it.
    pub queue: String,
    /// When and how often it is tried again.
    pub retry: RetryPolicy,
    /// The longest that one attempt may take, in milliseconds.
    pub timeout_ms: u64,
    /// A key under which the first committed result answers every later call in the namespace.
    pub idempotency_key: Option<String>,
}

/// When and how often a failed attempt is tried again: exponential back-off with jitter, bounded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; 0 means without a limit.
    pub max_attempts: u32,
    /// The wait after the first failure, in milliseconds.
    pub initial_ms: u64,
    /// How much longer each wait is than the one before.
    pub factor: f64,
    /// The longest wait, in milliseconds.
    pub max_ms: u64,
}

impl Default for RetryPolicy {
    /// Ten attempts, 200 ms at first, doubling, a minute at most.
    fn default() -> Self {
        Self {
            max_attempts: 10,
            initial_ms: 200,
            factor: 2.0,
            max_ms: 60_000,
        }
    }
}

/// What an activity or a step gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Its value.
    Ok(Payload),
    /// Its error.
    Err(Failure),
}

/// An error as it is stored: of an activity, a step or a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What sort of error, as a word that code may match on: `Error`, `TimedOut`, `Cancelled`, `WorkerLost`,
    /// `Panicked`, … or the author's own.
    pub kind: String,
    /// What happened, for people.
    pub message: String,
    /// Whether another attempt may succeed.
    pub retryable: bool,
    /// The author's typed details.
    pub details: Option<Payload>,
    /// The errors behind it, outermost first.
    pub causes: Vec<String>,
}

impl Failure {
    /// The failure that stands on the record of a cancelled run.
    #[must_use]
    pub fn cancelled(reason: &str) -> Self {
        Self {
            kind: "Cancelled".into(),
            message: reason.to_owned(),
            retryable: false,
            details: None,
            causes: Vec::new(),
        }
    }
}

/// A signal that reached the chain but no wait, told by the event that ends the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// The signal's name.
    pub name: String,
    /// The sender's delivery id, where there was one.
    pub delivery_id: Option<String>,
}

/// Why a journal row is not an event that this build can take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// The kind is of a newer build.
    #[error("event kind {0} is unknown to this build")]
    Kind(i16),
    /// The bytes are damaged.
    #[error("the event's bytes don't decode: {0}")]
    Damaged(String),
    /// The kind column and the bytes tell of different events.
    #[error("the event's column says kind {column}, its bytes say kind {bytes}")]
    Mismatch {
        /// What the column says.
        column: i16,
        /// What the bytes say.
        bytes: i16,
    },
}

/// The highest kind that this build knows.
const KIND_MAX: i16 = 12;

impl Event {
    /// The stored number of this kind of event.
    #[must_use]
    pub fn kind(&self) -> i16 {
        match self {
            Self::Started { .. } => 1,
            Self::ActivityScheduled(_) => 2,
            Self::ActivityCompleted { .. } => 3,
            Self::StepCompleted { .. } => 4,
            Self::TimerStarted { .. } => 5,
            Self::TimerFired { .. } => 6,
            Self::SignalReceived { .. } => 7,
            Self::CancelRequested { .. } => 8,
            Self::Dropped { .. } => 9,
            Self::Completed { .. } => 10,
            Self::Failed { .. } => 11,
            Self::Cancelled { .. } => KIND_MAX,
        }
    }

    /// The name of this kind of event, as histories print it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::ActivityScheduled(_) => "activity_scheduled",
            Self::ActivityCompleted { .. } => "activity_completed",
            Self::StepCompleted { .. } => "step_completed",
            Self::TimerStarted { .. } => "timer_started",
            Self::TimerFired { .. } => "timer_fired",
            Self::SignalReceived { .. } => "signal_received",
            Self::CancelRequested { .. } => "cancel_requested",
            Self::Dropped { .. } => "dropped",
            Self::Completed { .. } => "completed",
            Self::Failed { .. } => "failed",
            Self::Cancelled { .. } => "cancelled",
        }
    }

    /// Whether nothing may follow this event.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(
            self,
            Self::Completed { .. } | Self::Failed { .. } | Self::Cancelled { .. }
        )
    }

    /// The event as stored in the journal's `payload` column.
    ///
    /// # Panics
    /// Never: every field has an encoding.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        Payload::encode(self)
            .expect("events hold only types that MessagePack can encode")
            .into_bytes()
    }

    /// Reads an event back from its row.
    ///
    /// # Errors
    /// [`EventError`]; such a run is quarantined, never guessed at.
    pub fn decode(kind: i16, bytes: Vec<u8>) -> Result<Self, EventError> {
        if !(1..=KIND_MAX).contains(&kind) {
            return Err(EventError::Kind(kind));
        }
        let event: Self = Payload::from_bytes(bytes)
            .decode()
            .map_err(|e| EventError::Damaged(e.to_string()))?;
        if event.kind() != kind {
            return Err(EventError::Mismatch {
                column: kind,
                bytes: event.kind(),
            });
        }
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_back_as_written_and_damage_is_named() {
        let event = Event::StepCompleted {
            effect: 3,
            name: "validate".into(),
            outcome: Outcome::Ok(Payload::encode(&u64::MAX).unwrap()),
        };
        let bytes = event.encode();
        assert_eq!(Event::decode(4, bytes.clone()).unwrap(), event);
        assert_eq!(
            Event::decode(3, bytes.clone()),
            Err(EventError::Mismatch {
                column: 3,
                bytes: 4
            })
        );
        assert_eq!(Event::decode(99, bytes.clone()), Err(EventError::Kind(99)));
        assert!(matches!(
            Event::decode(4, bytes[..bytes.len() - 1].to_vec()),
            Err(EventError::Damaged(_))
        ));
    }
}
