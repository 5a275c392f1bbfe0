//! What an event says, held against what the code did.

use continuum_schema::event::{ActivityScheduled, Event, Failure, Outcome};
use continuum_schema::{EffectId, Payload};

use super::state::{Asked, Ending, Issued};
use super::{Delivery, EffectKind, Side, canonical};
use crate::error::kind;

/// The kind of the failure with which an operator ends a run. Replay takes it, and [`kind::PANICKED`], as an end that
/// did not come from the code.
pub const TERMINATED: &str = "Terminated";

/// Which effect a completion resolves, and with what.
pub(super) fn resolution(event: &Event) -> Option<(EffectId, Delivery)> {
    match event {
        Event::ActivityCompleted {
            effect, outcome, ..
        }
        | Event::StepCompleted {
            effect, outcome, ..
        } => Some((*effect, Delivery::Outcome(outcome.clone()))),
        Event::TimerFired { effect } => Some((*effect, Delivery::Fired)),
        Event::SignalReceived {
            effect, payload, ..
        } => Some((*effect, Delivery::Signal(payload.clone()))),
        _ => None,
    }
}

/// Which effect a completion is for, of which kind, and under which name where the event is the only witness of it.
pub(super) fn completes(event: &Event) -> Option<(EffectId, EffectKind, Option<&str>)> {
    match event {
        Event::ActivityCompleted { effect, .. } => Some((*effect, EffectKind::Activity, None)),
        Event::StepCompleted { effect, name, .. } => Some((*effect, EffectKind::Step, Some(name))),
        Event::TimerFired { effect } => Some((*effect, EffectKind::Timer, None)),
        Event::SignalReceived { effect, name, .. } => {
            Some((*effect, EffectKind::Signal, Some(name)))
        }
        _ => None,
    }
}

/// Whether the code issued the command that the history holds. An activity's options and a timer's length may differ:
/// they don't change what the code means, and what the history says stands.
pub(super) fn same_command(event: &Event, asked: &Asked) -> bool {
    match (event, asked) {
        (Event::ActivityScheduled(then), Asked::Activity(now)) => {
            then.effect == now.effect
                && then.name == now.name
                && canonical::equal(&then.input, &now.input)
        }
        (Event::TimerStarted { effect: then, .. }, Asked::Timer { effect: now, .. })
        | (Event::Dropped { effect: then }, Asked::Drop { effect: now, .. }) => then == now,
        _ => false,
    }
}

/// Whether the code ended as the history says. What a failure carries besides its kind and message is for people.
pub(super) fn same_end(event: &Event, asked: &Asked) -> bool {
    match (event, asked) {
        (Event::Completed { result, .. }, Asked::End(Ending::Completed(value))) => {
            canonical::equal(result, value)
        }
        (Event::Failed { failure, .. }, Asked::End(Ending::Failed(error))) => {
            failure.kind == error.kind && failure.message == error.message
        }
        (Event::Cancelled { .. }, Asked::End(Ending::Cancelled(_))) => true,
        _ => false,
    }
}

pub(super) fn is_end_from_outside(failure: &Failure) -> bool {
    [TERMINATED, kind::PANICKED, kind::OVERSIZE].contains(&failure.kind.as_str())
}

/// The history's side of a drift.
pub(super) fn expected_side(event: &Event) -> Side {
    match event {
        Event::ActivityScheduled(scheduled) => activity_side(scheduled),
        Event::ActivityCompleted {
            effect, outcome, ..
        } => Side::new("activity completed")
            .effect(*effect)
            .detail(outcome_word(outcome)),
        Event::StepCompleted {
            effect,
            name,
            outcome,
        } => Side::new("step completed")
            .effect(*effect)
            .name(name)
            .detail(outcome_word(outcome)),
        Event::TimerStarted { effect, .. } => Side::new("timer").effect(*effect),
        Event::TimerFired { effect } => Side::new("timer fired").effect(*effect),
        Event::SignalReceived { effect, name, .. } => {
            Side::new("signal received").effect(*effect).name(name)
        }
        Event::CancelRequested { reason } => Side::new("request to cancel").detail(reason),
        Event::Dropped { effect } => Side::new("drop").effect(*effect),
        Event::Completed { result, .. } => completed_side(result),
        Event::Failed { failure, .. } => failed_side(failure),
        Event::Cancelled { reason, .. } => Side::new("end as cancelled").detail(reason),
        Event::Started { .. } => Side::new("start"),
    }
}

/// The code's side of a drift.
pub(super) fn found_side(issued: &Issued) -> Side {
    match &issued.asked {
        Asked::Activity(scheduled) => activity_side(scheduled),
        Asked::Timer { effect, .. } => Side::new("timer").effect(*effect),
        Asked::Drop { effect, kind } => Side::new("drop").effect(*effect).detail(kind.to_string()),
        Asked::Step(effect) => Side::new("step").effect(*effect),
        Asked::Signal(effect) => Side::new("signal").effect(*effect),
        Asked::End(Ending::Completed(result)) => completed_side(result),
        Asked::End(Ending::Failed(failure)) => failed_side(failure),
        Asked::End(Ending::Cancelled(reason)) => Side::new("end as cancelled").detail(reason),
    }
}

fn activity_side(scheduled: &ActivityScheduled) -> Side {
    Side::new("activity")
        .effect(scheduled.effect)
        .name(&scheduled.name)
        .detail(format!("input {}", canonical::preview(&scheduled.input)))
}

fn completed_side(result: &Payload) -> Side {
    Side::new("end with a value").detail(canonical::preview(result))
}

fn failed_side(failure: &Failure) -> Side {
    Side::new("end with an error").detail(format!("{}: {}", failure.kind, failure.message))
}

fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Ok(_) => "with a value",
        Outcome::Err(_) => "with an error",
    }
}
