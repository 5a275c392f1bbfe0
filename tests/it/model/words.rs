//! What is asked of the functions and what they answer, in symbols: runs, sessions, tokens and mail are numbered in the
//! order in which they come about, so that a history reads the same in every replay of its seed.

use continuum_schema::event::{ActivityOptions, ActivityScheduled, Failure, Outcome, RetryPolicy};
use continuum_schema::mailbox::MailKind;
use continuum_schema::run::{Ending, RunState};
use continuum_schema::{Event, Payload};

/// A run, session, token or piece of mail that there is not.
pub(super) const NOBODY: usize = usize::MAX;

/// How many workflows, names of signals, names of activities there are.
pub(super) const KINDS: u8 = 2;

/// The queue of all activities.
pub(super) const QUEUE: &str = "errands";

/// One call.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Open,
    Beat(usize),
    Close {
        session: usize,
        beat: Option<i64>,
    },
    Forget,
    Start(Vec<NewRun>),
    Signal(Vec<Letter>),
    Ingest(Vec<Letter>),
    Cancel(usize),
    Claim {
        session: usize,
        keys: Keys,
        limit: usize,
        timers_only: bool,
    },
    Read {
        session: usize,
        runs: Vec<usize>,
    },
    Append {
        session: usize,
        parts: Vec<Part>,
    },
    Release {
        session: usize,
        leases: Vec<Hold>,
    },
    Block {
        session: usize,
        hold: Hold,
        retry: Retry,
    },
    Sweep {
        crash_limit: i32,
    },
    TaskClaim {
        session: usize,
        names: Vec<u8>,
        limit: usize,
    },
    TaskComplete {
        session: usize,
        done: Vec<Done>,
    },
    TaskRetry {
        session: usize,
        attempt: Try,
        end: TryEnd,
        later: bool,
    },
    Lost,
    Owned(usize),
    Held(usize),
    Result(ResultKey),
    Look(usize),
    History(usize),
    List,
}

/// A run to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewRun {
    pub(super) workflow: u8,
    pub(super) key: Option<u8>,
    pub(super) input: u8,
}

/// A signal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Letter {
    pub(super) to: usize,
    pub(super) name: u8,
    pub(super) delivery: Option<u8>,
}

/// What a worker has loaded.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keys {
    Version(u8),
    /// Every version; new runs are begun by the first.
    All,
}

impl Keys {
    /// Pairs of what is looked for (a workflow, and the version that it is bound to) and what it is claimed as.
    pub(super) fn pairs(self) -> Vec<((u8, Option<u8>), u8)> {
        (0..KINDS)
            .flat_map(|w| match self {
                Self::Version(v) => vec![((w, None), v), ((w, Some(v)), v)],
                Self::All => vec![((w, None), 1), ((w, Some(1)), 1), ((w, Some(2)), 2)],
            })
            .collect()
    }
}

/// A lease as somebody remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Hold {
    pub(super) run: usize,
    pub(super) token: usize,
    pub(super) wake: i64,
}

/// When a parked run is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retry {
    Never,
    AtOnce,
    InAnHour,
}

/// One run's part of an append.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) run: usize,
    pub(super) token: usize,
    pub(super) first: usize,
    pub(super) acts: Vec<Act>,
}

/// One event, and what comes with it.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Begin(u8),
    Step(u32),
    Consume {
        mail: usize,
        effect: u32,
    },
    SetTimer {
        effect: u32,
        future: bool,
    },
    TimerFired(u32),
    Schedule {
        effect: u32,
        name: u8,
        max: u32,
        eager: bool,
    },
    Complete(Done),
    Drop(u32),
    End {
        how: How,
        version: u8,
    },
}

/// How a run ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Completed,
    Failed,
    Cancelled,
}

/// One attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Try {
    pub(super) run: usize,
    pub(super) effect: u32,
    pub(super) attempt: u32,
}

/// The end of an activity, perhaps with a result that is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) attempt: Try,
    pub(super) key: Option<ResultKey>,
}

/// The name of an activity and its idempotency key.
pub(super) type ResultKey = (u8, u8);

/// How an attempt ended that did not end its activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TryEnd {
    Failed,
    Unknown,
    Released,
}

/// What a call answers.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Opened(usize),
    Told(bool),
    Count(usize),
    Started(Vec<(Started, usize)>),
    Posted(Vec<Posted>),
    Claimed(Vec<Taken>),
    Mailboxes(Vec<Mailbox>),
    Appended(Vec<bool>),
    Released(Vec<Released>),
    Tasks(Vec<(Try, u8)>),
    /// For each completion the owner to wake, if it was accepted.
    Completed(Vec<Option<Option<usize>>>),
    Lost(Vec<(Try, usize, u32)>),
    Owned(Vec<Hold>),
    Held(Vec<Try>),
    Result(Option<Payload>),
    Look(Box<Record>, i64, Vec<OpenTask>),
    History(Vec<Event>, Ending),
    List(Vec<Record>, Vec<Letter>),
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Started {
    New,
    Existing,
    Conflict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    /// To whom.
    Accepted(Option<usize>),
    Duplicate,
    NotFound,
    Ended,
    Busy,
    /// The run was cancelled on the spot.
    EndedNow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Released {
    Cold,
    Due,
    NotMine,
    Busy,
}

/// A claimed run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Taken {
    pub(super) hold: Hold,
    pub(super) origin: NewRun,
    pub(super) version: u8,
    pub(super) block_count: i32,
    pub(super) quarantined: bool,
    pub(super) history: Vec<Event>,
    pub(super) mail: Vec<Mail>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mailbox {
    pub(super) run: usize,
    pub(super) wake: i64,
    pub(super) mail: Vec<Mail>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mail {
    pub(super) number: usize,
    pub(super) kind: MailKind,
    pub(super) name: Option<String>,
    pub(super) delivery: Option<String>,
    pub(super) payload: Payload,
}

/// A run as people see it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) run: usize,
    pub(super) state: RunState,
    pub(super) unread: usize,
    pub(super) worker: Option<String>,
    pub(super) version: Option<String>,
    pub(super) blocked: Option<String>,
    pub(super) next: Option<Next>,
    pub(super) failure: Option<String>,
}

/// When a cold run is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// When this timer is, in microseconds.
    Timer(i64),
    /// At a time that the database's clock gave.
    Retry,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenTask {
    pub(super) effect: u32,
    pub(super) name: String,
    pub(super) attempt: u32,
    pub(super) max: u32,
    pub(super) running: bool,
    pub(super) later: bool,
    pub(super) failure: Option<String>,
}

impl Answer {
    /// The kinds of answer in it, for the proof that the histories reach them.
    pub(super) fn kinds(&self) -> Vec<String> {
        let each = |parts: Vec<String>| parts.iter().map(|p| first_word(p)).collect();
        match self {
            Self::Started(all) => each(all.iter().map(|(s, _)| format!("{s:?}")).collect()),
            Self::Posted(all) => each(all.iter().map(|p| format!("{p:?}")).collect()),
            Self::Released(all) => each(all.iter().map(|r| format!("{r:?}")).collect()),
            Self::Appended(all) => all.iter().map(|a| format!("append {a}")).collect(),
            Self::Completed(all) => all
                .iter()
                .map(|c| format!("completion {}", c.is_some()))
                .collect(),
            Self::Claimed(all) if all.iter().any(|t| t.quarantined) => vec!["quarantined".into()],
            Self::Failed(word) => vec![word.clone()],
            Self::Look(record, ..) => vec![record.state.name().to_owned()],
            _ => Vec::new(),
        }
    }
}

fn first_word(text: &str) -> String {
    let end = text
        .find(|c: char| !c.is_alphanumeric())
        .unwrap_or(text.len());
    text[..end].to_owned()
}

/// The name of a workflow, a signal or an activity.
pub(super) fn name(kind: u8) -> &'static str {
    ["ant", "bee"][usize::from(kind)]
}

/// The hash of a version.
pub(super) fn hash(version: u8) -> String {
    format!("h{version}")
}

/// A failure with this message.
pub(super) fn failure(message: &str) -> Failure {
    Failure {
        kind: "Error".into(),
        message: message.to_owned(),
        retryable: true,
        details: None,
        causes: Vec::new(),
    }
}

/// A payload that tells numbers apart.
pub(super) fn payload(number: u32) -> Payload {
    Payload::encode(&number).expect("a number can be encoded")
}

/// When a timer is due: all different, in 1970 or after 2100.
pub(super) fn fire_at(effect: u32, future: bool) -> i64 {
    let century = if future { 4_102_444_800 } else { 0 };
    (century + i64::from(effect)) * 1_000_000
}

impl Done {
    pub(super) fn event(&self) -> Event {
        Event::ActivityCompleted {
            effect: self.attempt.effect,
            attempt: self.attempt.attempt,
            outcome: Outcome::Ok(payload(self.attempt.effect)),
        }
    }
}

impl Part {
    pub(super) fn end(&self) -> Option<(How, u8)> {
        match self.acts.last() {
            Some(Act::End { how, version }) => Some((*how, *version)),
            _ => None,
        }
    }
}

impl Act {
    pub(super) fn event(&self) -> Event {
        match self {
            Self::Begin(version) => Event::Started {
                version: u32::from(*version),
                hash: hash(*version),
            },
            Self::Step(effect) => Event::StepCompleted {
                effect: *effect,
                name: "step".into(),
                outcome: Outcome::Ok(payload(*effect)),
            },
            Self::Consume { mail, effect } => Event::SignalReceived {
                effect: *effect,
                name: format!("mail-{mail}"),
                payload: Payload::unit(),
                delivery_id: None,
            },
            Self::SetTimer { effect, future } => Event::TimerStarted {
                effect: *effect,
                fire_at: fire_at(*effect, *future),
            },
            Self::TimerFired(effect) => Event::TimerFired { effect: *effect },
            Self::Schedule {
                effect,
                name: kind,
                max,
                ..
            } => Event::ActivityScheduled(ActivityScheduled {
                effect: *effect,
                name: name(*kind).into(),
                input: payload(*effect),
                options: ActivityOptions {
                    queue: QUEUE.into(),
                    retry: RetryPolicy {
                        max_attempts: *max,
                        ..RetryPolicy::default()
                    },
                    timeout_ms: 1_000,
                    idempotency_key: None,
                },
            }),
            Self::Complete(done) => done.event(),
            Self::Drop(effect) => Event::Dropped { effect: *effect },
            Self::End { how, .. } => how.event(),
        }
    }
}

impl How {
    fn event(self) -> Event {
        let unread = Vec::new();
        match self {
            Self::Completed => Event::Completed {
                result: Payload::unit(),
                unread,
            },
            Self::Failed => Event::Failed {
                failure: failure("failed"),
                unread,
            },
            Self::Cancelled => Event::Cancelled {
                reason: "cancelled".into(),
                unread,
            },
        }
    }

    pub(super) fn ending(self) -> Ending {
        match self {
            Self::Completed => Ending::Completed(Payload::unit()),
            Self::Failed => Ending::Failed(failure("failed")),
            Self::Cancelled => Ending::Cancelled("cancelled".into()),
        }
    }
}
