//! Runs, failures and events as people and programs see them.

use continuum_schema::activity::OpenActivity;
use continuum_schema::event::{Event, Failure, Outcome, Unread};
use continuum_schema::journal::EventRow;
use continuum_schema::mailbox::RejectedRow;
use continuum_schema::run::{Run, RunState};
use continuum_schema::{EffectId, Payload};
use serde::Serialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use uuid::Uuid;

use super::moment;
use super::payload::{PayloadView, hex, one_line, short};
use crate::error::{RunFailure, kind};
use crate::replay::Blocked;

/// The longest that one detail of a line may be, in characters.
const DETAIL_CHARS_MAX: usize = 120;

/// A moment for programs.
pub(super) fn timestamp(at: OffsetDateTime) -> String {
    at.format(&Rfc3339).unwrap_or_else(|_| at.to_string())
}

/// A failure in a JSON document.
#[derive(Debug, Serialize)]
pub(crate) struct FailureView {
    kind: String,
    message: String,
    retryable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<PayloadView>,
    causes: Vec<String>,
}

impl FailureView {
    pub(crate) fn new(failure: &Failure) -> Self {
        Self {
            kind: failure.kind.clone(),
            message: failure.message.clone(),
            retryable: failure.retryable,
            details: failure.details.as_ref().map(PayloadView::new),
            causes: failure.causes.clone(),
        }
    }
}

/// A failure on one line, with its causes.
pub(crate) fn failure_line(failure: &Failure) -> String {
    let text = RunFailure::from_failure(failure.clone()).to_string();
    one_line(&text, DETAIL_CHARS_MAX)
}

/// A run in a list of a JSON document.
#[derive(Debug, Serialize)]
pub(crate) struct RunView {
    run_id: Uuid,
    chain_id: Uuid,
    namespace: String,
    workflow: String,
    key: Option<String>,
    state: &'static str,
    version_hash: Option<String>,
    created_at: String,
    ended_at: Option<String>,
    worker: Option<String>,
    next_timer_at: Option<String>,
    blocked: Option<Value>,
    failure: Option<FailureView>,
    note: String,
}

impl RunView {
    pub(crate) fn new(run: &Run) -> Self {
        Self {
            run_id: run.run_id,
            chain_id: run.chain_id,
            namespace: run.namespace.clone(),
            workflow: run.workflow.clone(),
            key: run.key.clone(),
            state: run.state.name(),
            version_hash: run.version_hash.clone(),
            created_at: timestamp(run.created_at),
            ended_at: run.ended_at.map(timestamp),
            worker: run.worker.clone(),
            next_timer_at: run.next_timer_at.map(timestamp),
            blocked: run.blocked.as_ref().map(|(reason, detail)| {
                json!({"reason": reason, "message": blocked_text(reason, detail), "detail": detail})
            }),
            failure: run.failure.as_ref().map(FailureView::new),
            note: note(run),
        }
    }
}

/// A run by itself in a JSON document: everything that is known.
#[derive(Debug, Serialize)]
pub(crate) struct RunDetailView {
    #[serde(flatten)]
    run: RunView,
    input: PayloadView,
    result: Option<PayloadView>,
    unread_signals: i32,
    waiting_mail: i64,
    waits: Option<String>,
    activities: Vec<ActivityView>,
}

impl RunDetailView {
    pub(crate) fn new(run: &Run, activities: &[OpenActivity]) -> Self {
        Self {
            run: RunView::new(run),
            input: PayloadView::new(&run.input),
            result: run.result.as_ref().map(PayloadView::new),
            unread_signals: run.unread,
            waiting_mail: run.mail,
            waits: waits(run, activities),
            activities: activities.iter().map(ActivityView::new).collect(),
        }
    }
}

/// An open activity in a JSON document.
#[derive(Debug, Serialize)]
struct ActivityView {
    effect: EffectId,
    name: String,
    queue: String,
    attempt: u32,
    max_attempts: Option<u32>,
    running: bool,
    due_at: Option<String>,
    last_failure: Option<FailureView>,
}

impl ActivityView {
    fn new(activity: &OpenActivity) -> Self {
        Self {
            effect: activity.effect,
            name: activity.name.clone(),
            queue: activity.queue.clone(),
            attempt: activity.attempt,
            max_attempts: (activity.max_attempts > 0).then_some(activity.max_attempts),
            running: activity.running,
            due_at: activity.due_at.map(timestamp),
            last_failure: activity.failure.as_ref().map(FailureView::new),
        }
    }
}

/// `2 of 5`, or only `2` where attempts have no limit.
pub(crate) fn attempt_text(activity: &OpenActivity) -> String {
    match activity.max_attempts {
        0 => activity.attempt.to_string(),
        max => format!("{} of {max}", activity.attempt),
    }
}

/// What an open activity is doing.
pub(crate) fn activity_state(activity: &OpenActivity) -> String {
    match (activity.running, activity.due_at) {
        (true, _) => "running".into(),
        (false, Some(due)) if activity.attempt > 0 => format!("again at {}", moment(due)),
        (false, _) => format!("waits for a worker of queue `{}`", activity.queue),
    }
}

/// The one thing about a run that a list has room for.
pub(crate) fn note(run: &Run) -> String {
    match run.state {
        RunState::Pending => "due; the next free worker takes it".into(),
        RunState::Unserved => unserved(run),
        RunState::Running => run.worker.clone().unwrap_or_default(),
        RunState::Waiting => match run.next_timer_at {
            Some(due) => format!("timer due {}", moment(due)),
            None => "for a signal or an activity".into(),
        },
        RunState::Blocked => blocked_note(run),
        RunState::Completed if run.unread > 0 => format!("{} unread signals", run.unread),
        RunState::Completed => String::new(),
        RunState::Failed => run.failure.as_ref().map(failure_line).unwrap_or_default(),
        RunState::Cancelled => run.failure.as_ref().map_or_else(String::new, |failure| {
            one_line(&failure.message, DETAIL_CHARS_MAX)
        }),
    }
}

fn unserved(run: &Run) -> String {
    match &run.version_hash {
        None => format!("no worker has loaded `{}`", run.workflow),
        Some(hash) => format!("no worker has loaded `{}` at version {hash}", run.workflow),
    }
}

fn blocked_note(run: &Run) -> String {
    let Some((reason, detail)) = &run.blocked else {
        return String::new();
    };
    let again = run
        .next_timer_at
        .map(|at| format!("; tried again at {}", moment(at)));
    let text = one_line(&blocked_text(reason, detail), 2 * DETAIL_CHARS_MAX);
    format!("{text}{}", again.unwrap_or_default())
}

/// Why a run can't go on, in a sentence.
fn blocked_text(reason: &str, detail: &Value) -> String {
    let stored = json!({"reason": reason, "detail": detail});
    if let Ok(blocked) = serde_json::from_value::<Blocked>(stored) {
        return blocked.to_string();
    }
    match detail {
        Value::Null => reason.to_owned(),
        Value::String(text) => format!("{reason}: {text}"),
        detail => format!("{reason}: {detail}"),
    }
}

/// What a run waits for, in a line; nothing when it has ended.
pub(crate) fn waits(run: &Run, activities: &[OpenActivity]) -> Option<String> {
    match run.state {
        RunState::Unserved => Some(format!(
            "{}; start a worker that registers it",
            unserved(run)
        )),
        RunState::Pending => Some("the next free worker".into()),
        RunState::Blocked => Some(format!("blocked: {}", blocked_note(run))),
        RunState::Waiting => Some(cold_waits(run, activities)),
        RunState::Running if !activities.is_empty() => Some(activity_waits(activities)),
        RunState::Running => {
            Some("a signal, a timer or a step, in the memory of its worker".into())
        }
        RunState::Completed | RunState::Failed | RunState::Cancelled => None,
    }
}

/// A run may wait for a signal beside everything else: a wait for a signal leaves no trace until it ends.
fn cold_waits(run: &Run, activities: &[OpenActivity]) -> String {
    let timer = run
        .next_timer_at
        .map(|at| format!("a timer due {}", moment(at)));
    let activities = (!activities.is_empty()).then(|| activity_waits(activities));
    let known: Vec<String> = [timer, activities].into_iter().flatten().collect();
    match known.is_empty() {
        true => "a signal".into(),
        false => known.join("; "),
    }
}

fn activity_waits(activities: &[OpenActivity]) -> String {
    let one = |a: &OpenActivity| {
        format!(
            "activity `{}` (attempt {}, {})",
            a.name,
            attempt_text(a),
            activity_state(a)
        )
    };
    match activities {
        [first] => one(first),
        [first, rest @ ..] => format!("{} and {} more activities", one(first), rest.len()),
        [] => String::new(),
    }
}

/// An event in a JSON document. A row that this build can't read is told as it is stored.
#[derive(Debug, Serialize)]
pub(crate) struct EventView {
    seq: i32,
    at: String,
    event: String,
    #[serde(flatten)]
    fields: Fields,
}

#[derive(Debug, Default, Serialize)]
struct Fields {
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<EffectId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hash: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<PayloadView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    options: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<PayloadView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<FailureView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fire_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<PayloadView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

impl EventView {
    pub(crate) fn new(row: &EventRow) -> Self {
        let (event, fields) = match row.decode() {
            Ok(event) => (event.name().to_owned(), Fields::new(&event)),
            Err(error) => (
                format!("kind_{}", row.kind),
                Fields {
                    unreadable: Some(error.to_string()),
                    hex: Some(hex(&row.payload)),
                    ..Fields::default()
                },
            ),
        };
        Self {
            seq: row.seq,
            at: timestamp(row.at),
            event,
            fields,
        }
    }
}

impl Fields {
    fn new(event: &Event) -> Self {
        let fields = Self {
            effect: effect(event),
            name: name(event).map(str::to_owned),
            unread: unread(event).map(|unread| {
                unread
                    .iter()
                    .map(|u| json!({"name": u.name, "delivery_id": u.delivery_id}))
                    .collect()
            }),
            ..Self::default()
        };
        match event {
            Event::Started { version, hash } => Self {
                version: Some(*version),
                hash: Some(hash.clone()),
                ..fields
            },
            Event::ActivityScheduled(scheduled) => Self {
                input: Some(PayloadView::new(&scheduled.input)),
                options: serde_json::to_value(&scheduled.options).ok(),
                ..fields
            },
            Event::ActivityCompleted {
                attempt, outcome, ..
            } => Self {
                attempt: Some(*attempt),
                ..fields.outcome(outcome)
            },
            Event::StepCompleted { outcome, .. } => fields.outcome(outcome),
            Event::TimerStarted { fire_at, .. } => Self {
                fire_at: Some(timestamp(continuum_schema::clock::from_micros(*fire_at))),
                ..fields
            },
            Event::SignalReceived {
                payload,
                delivery_id,
                ..
            } => Self {
                payload: Some(PayloadView::new(payload)),
                delivery_id: delivery_id.clone(),
                ..fields
            },
            Event::CancelRequested { reason } | Event::Cancelled { reason, .. } => Self {
                reason: Some(reason.clone()),
                ..fields
            },
            Event::Completed { result, .. } => Self {
                result: Some(PayloadView::new(result)),
                ..fields
            },
            Event::Failed { failure, .. } => Self {
                failure: Some(FailureView::new(failure)),
                ..fields
            },
            Event::TimerFired { .. } | Event::Dropped { .. } => fields,
        }
    }

    fn outcome(self, outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Ok(value) => Self {
                result: Some(PayloadView::new(value)),
                ..self
            },
            Outcome::Err(failure) => Self {
                failure: Some(FailureView::new(failure)),
                ..self
            },
        }
    }
}

fn effect(event: &Event) -> Option<EffectId> {
    match event {
        Event::ActivityScheduled(scheduled) => Some(scheduled.effect),
        Event::ActivityCompleted { effect, .. }
        | Event::StepCompleted { effect, .. }
        | Event::TimerStarted { effect, .. }
        | Event::TimerFired { effect }
        | Event::SignalReceived { effect, .. }
        | Event::Dropped { effect } => Some(*effect),
        _ => None,
    }
}

fn name(event: &Event) -> Option<&str> {
    match event {
        Event::ActivityScheduled(scheduled) => Some(&scheduled.name),
        Event::StepCompleted { name, .. } | Event::SignalReceived { name, .. } => Some(name),
        _ => None,
    }
}

fn unread(event: &Event) -> Option<&[Unread]> {
    match event {
        Event::Completed { unread, .. }
        | Event::Failed { unread, .. }
        | Event::Cancelled { unread, .. } => Some(unread),
        _ => None,
    }
}

/// An event in the columns of a table: its name and everything else on one line.
pub(crate) fn event_columns(row: &EventRow) -> (String, String) {
    match row.decode() {
        Ok(event) => (event.name().to_owned(), event_detail(&event)),
        Err(error) => (format!("kind_{}", row.kind), format!("unreadable: {error}")),
    }
}

fn event_detail(event: &Event) -> String {
    let effect = effect(event).map(|number| format!("#{number}"));
    let name = name(event).map(|name| one_line(name, DETAIL_CHARS_MAX));
    let unread = unread(event)
        .filter(|unread| !unread.is_empty())
        .map(unread_text);
    let parts = [effect, name, Some(event_rest(event)), unread];
    let parts: Vec<String> = parts
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .collect();
    parts.join(" ")
}

fn event_rest(event: &Event) -> String {
    let value = |payload: &Payload| short(payload, DETAIL_CHARS_MAX);
    match event {
        Event::Started { version, hash } => format!("version {version} ({hash})"),
        Event::ActivityScheduled(scheduled) => {
            format!(
                "{} on queue {}",
                value(&scheduled.input),
                scheduled.options.queue
            )
        }
        Event::ActivityCompleted {
            attempt, outcome, ..
        } => format!("attempt {attempt} {}", outcome_text(outcome)),
        Event::StepCompleted { outcome, .. } => outcome_text(outcome),
        Event::TimerStarted { fire_at, .. } => {
            format!(
                "due {}",
                moment(continuum_schema::clock::from_micros(*fire_at))
            )
        }
        Event::SignalReceived {
            payload,
            delivery_id,
            ..
        } => match delivery_id {
            Some(id) => format!(
                "{} (delivery {})",
                value(payload),
                one_line(id, DETAIL_CHARS_MAX)
            ),
            None => value(payload),
        },
        Event::CancelRequested { reason } | Event::Cancelled { reason, .. } => {
            one_line(reason, DETAIL_CHARS_MAX)
        }
        Event::Completed { result, .. } => value(result),
        Event::Failed { failure, .. } => failure_line(failure),
        Event::TimerFired { .. } | Event::Dropped { .. } => String::new(),
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Ok(value) => format!("-> {}", short(value, DETAIL_CHARS_MAX)),
        Outcome::Err(failure) if failure.kind == kind::CANCELLED => "cancelled".into(),
        Outcome::Err(failure) => format!("failed: {}", failure_line(failure)),
    }
}

fn unread_text(unread: &[Unread]) -> String {
    let names: Vec<&str> = unread.iter().map(|u| u.name.as_str()).collect();
    format!(
        "(unread signals: {})",
        one_line(&names.join(", "), DETAIL_CHARS_MAX)
    )
}

/// A rejected signal in a JSON document.
#[derive(Debug, Serialize)]
pub(crate) struct RejectedView {
    at: String,
    subject: String,
    reason: String,
    delivery_id: Option<String>,
    size: i64,
}

impl RejectedView {
    pub(crate) fn new(row: &RejectedRow) -> Self {
        Self {
            at: timestamp(row.at),
            subject: row.subject.clone(),
            reason: row.reason.clone(),
            delivery_id: row.delivery_id.clone(),
            size: row.size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(state: RunState) -> Run {
        Run {
            run_id: Uuid::nil(),
            chain_id: Uuid::nil(),
            namespace: "default".into(),
            workflow: "order_flow".into(),
            key: None,
            state,
            input: Payload::unit(),
            result: None,
            failure: None,
            version_hash: None,
            unread: 0,
            mail: 0,
            created_at: OffsetDateTime::UNIX_EPOCH,
            ended_at: None,
            worker: None,
            next_timer_at: None,
            blocked: None,
        }
    }

    fn activity(attempt: u32, running: bool) -> OpenActivity {
        OpenActivity {
            effect: 1,
            name: "charge_card".into(),
            queue: "payments".into(),
            attempt,
            max_attempts: 5,
            running,
            due_at: Some(OffsetDateTime::UNIX_EPOCH),
            failure: None,
        }
    }

    #[test]
    fn a_run_that_nobody_serves_says_what_to_do() {
        let unserved = run(RunState::Unserved);
        let waits = waits(&unserved, &[]).unwrap();
        assert_eq!(
            waits,
            "no worker has loaded `order_flow`; start a worker that registers it"
        );
        let bound = Run {
            version_hash: Some("n1:00".into()),
            ..unserved
        };
        assert_eq!(
            note(&bound),
            "no worker has loaded `order_flow` at version n1:00"
        );
    }

    #[test]
    fn a_cold_run_names_everything_that_it_is_known_to_wait_for() {
        let cold = Run {
            next_timer_at: Some(OffsetDateTime::UNIX_EPOCH),
            ..run(RunState::Waiting)
        };
        assert_eq!(
            waits(&cold, &[activity(2, false), activity(1, true)]).unwrap(),
            "a timer due 1970-01-01 00:00:00Z; activity `charge_card` (attempt 2 of 5, again at 1970-01-01 00:00:00Z) \
             and 1 more activities"
        );
        assert_eq!(waits(&run(RunState::Waiting), &[]).unwrap(), "a signal");
        assert_eq!(waits(&run(RunState::Completed), &[]), None);
    }

    #[test]
    fn the_reason_of_a_block_is_a_sentence_whoever_wrote_it() {
        let stored = serde_json::to_value(Blocked::Panicked("no stock".into())).unwrap();
        assert_eq!(
            blocked_text("panicked", &stored["detail"]),
            "the workflow panicked: no stock"
        );
        assert_eq!(
            blocked_text("quarantined", &json!({"crashes": 20})),
            "quarantined: {\"crashes\":20}"
        );
        assert_eq!(blocked_text("other", &Value::Null), "other");
    }

    #[test]
    fn a_row_that_cannot_be_read_is_shown_and_hides_no_other() {
        let row = EventRow {
            seq: 7,
            kind: 99,
            at: OffsetDateTime::UNIX_EPOCH,
            payload: vec![1, 2],
        };
        let (event, detail) = event_columns(&row);
        assert_eq!(
            (event.as_str(), detail.as_str()),
            (
                "kind_99",
                "unreadable: event kind 99 is unknown to this build"
            )
        );
        let json = serde_json::to_string(&EventView::new(&row)).unwrap();
        assert!(json.contains(r#""hex":"0102""#), "{json}");
    }

    #[test]
    fn an_event_is_one_line_of_text_and_whole_in_json() {
        let event = Event::ActivityCompleted {
            effect: 3,
            attempt: 2,
            outcome: Outcome::Ok(Payload::encode(&u64::MAX).unwrap()),
        };
        let row = EventRow {
            seq: 1,
            kind: event.kind(),
            at: OffsetDateTime::UNIX_EPOCH,
            payload: event.encode(),
        };
        assert_eq!(
            event_columns(&row).1,
            "#3 attempt 2 -> 18446744073709551615"
        );
        assert_eq!(
            serde_json::to_string(&EventView::new(&row)).unwrap(),
            r#"{"seq":1,"at":"1970-01-01T00:00:00Z","event":"activity_completed","effect":3,"attempt":2,"result":{"format":"messagepack","value":18446744073709551615}}"#
        );
    }
}
