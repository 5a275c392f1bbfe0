//! The functions themselves: carries out calls on a database and tells the answers in the model's symbols.

use std::collections::HashMap;
use std::hash::Hash;

use continuum_schema::activity::{self, Attempt, AttemptEnd, Completion};
use continuum_schema::clock::to_micros;
use continuum_schema::journal::{
    self, Append, AppendOutcome, CompletedActivity, End, EventRow, NewActivity, NewEvent, RunEnd,
};
use continuum_schema::lease::{self, ClaimKey, ClaimedRun, ReleaseOutcome};
use continuum_schema::mailbox::{self, CancelOutcome, PostOutcome, Signal, Wake};
use continuum_schema::run::{self, Ending, Filter, Run, Start, StartOutcome};
use continuum_schema::session::{self, NewSession};
use continuum_schema::{Database, Error, Event, Lease, Payload};
use uuid::Uuid;

use super::words::*;

/// More than one history makes.
const ROWS_MAX: i32 = 1_000;

/// From 2001 to 2096: times that the database's clock gave, in microseconds.
const NOWADAYS: std::ops::Range<i64> = 1_000_000_000_000_000..4_000_000_000_000_000;

/// Symbols of what Postgres has named.
struct Names<T> {
    real: HashMap<usize, T>,
    symbols: HashMap<T, usize>,
}

impl<T: Copy + Eq + Hash> Names<T> {
    fn new() -> Self {
        Self {
            real: HashMap::new(),
            symbols: HashMap::new(),
        }
    }

    /// The symbol of what Postgres told. What is new gets the symbol that the model expects, unless that is taken.
    fn learn(&mut self, real: T, expected: Option<usize>) -> usize {
        if let Some(symbol) = self.symbols.get(&real) {
            return *symbol;
        }
        let Some(symbol) = expected.filter(|s| !self.real.contains_key(s)) else {
            return NOBODY;
        };
        self.real.insert(symbol, real);
        self.symbols.insert(real, symbol);
        symbol
    }

    fn symbol(&self, real: T) -> usize {
        self.symbols.get(&real).copied().unwrap_or(NOBODY)
    }

    fn real(&self, symbol: usize) -> T {
        self.real[&symbol]
    }
}

/// One history's part of a database.
pub(super) struct Stage<'a> {
    database: &'a Database,
    seed: u64,
    runs: Names<Uuid>,
    sessions: Names<Uuid>,
    tokens: Names<i64>,
    mail: Names<i64>,
    has_ingested: bool,
}

impl<'a> Stage<'a> {
    pub(super) fn new(database: &'a Database, seed: u64) -> Self {
        Self {
            database,
            seed,
            runs: Names::new(),
            sessions: Names::new(),
            tokens: Names::new(),
            mail: Names::new(),
            has_ingested: false,
        }
    }

    /// Carries out a call. `expected` only names what is new.
    pub(super) async fn perform(&mut self, op: &Op, expected: &Answer) -> Answer {
        match self.try_perform(op, expected).await {
            Ok(answer) => answer,
            Err(Error::SessionClosed) => Answer::Failed("SessionClosed".into()),
            Err(Error::Stale(_)) => Answer::Failed("Stale".into()),
            Err(error) => Answer::Failed(format!("{error:?}")),
        }
    }

    async fn try_perform(&mut self, op: &Op, expected: &Answer) -> Result<Answer, Error> {
        let database = self.database;
        Ok(match op {
            Op::Open => self.open(expected).await?,
            Op::Beat(session) => {
                match session::beat(database, self.sessions.real(*session)).await {
                    Err(Error::SessionClosed) => Answer::Told(false),
                    other => Answer::Told(other.map(|_| true)?),
                }
            }
            Op::Close { session, beat } => {
                let session = self.sessions.real(*session);
                Answer::Told(session::close(database, session, *beat, "test").await?)
            }
            Op::Forget => Answer::Count(count(session::forget(database, 0.0).await?)),
            Op::Start(starts) => self.start(starts, expected).await?,
            Op::Signal(letters) => {
                let outcomes = mailbox::signal(database, &self.signals(letters)).await?;
                self.posted(letters, &outcomes)
            }
            Op::Ingest(letters) => self.ingest(letters).await?,
            Op::Cancel(run) => self.cancel(*run).await?,
            Op::Claim {
                session,
                keys,
                limit,
                timers_only,
            } => {
                self.claim((*session, *keys, *limit, *timers_only), expected)
                    .await?
            }
            Op::Read { session, runs } => self.read(*session, runs, expected).await?,
            Op::Append { session, parts } => self.append(*session, parts).await?,
            Op::Release { session, leases } => self.release(*session, leases).await?,
            Op::Block {
                session,
                hold,
                retry,
            } => self.block(*session, hold, *retry).await?,
            Op::Sweep { crash_limit } => {
                let swept = lease::sweep(database, ROWS_MAX, *crash_limit).await?;
                Answer::Count(count(swept))
            }
            Op::TaskClaim {
                session,
                names,
                limit,
            } => self.task_claim(*session, names, *limit).await?,
            Op::TaskComplete { session, done } => self.task_complete(*session, done).await?,
            Op::TaskRetry {
                session,
                attempt,
                end,
                later,
            } => self.task_retry(*session, *attempt, *end, *later).await?,
            Op::Lost => self.lost().await?,
            Op::Owned(session) => self.owned(*session).await?,
            Op::Held(session) => self.held(*session).await?,
            Op::Result((kind, key)) => {
                let key = self.result_key(*key);
                Answer::Result(activity::result(database, "default", name(*kind), &key).await?)
            }
            Op::Look(run) => self.look(*run).await?,
            Op::History(run) => {
                let id = self.runs.real(*run);
                let rows = journal::history(database, id, 0, i64::from(ROWS_MAX)).await?;
                let ending = run::endings(database, &[id]).await?.remove(0);
                let ending = ending.ok_or_else(|| Error::NotFound(id.to_string()))?;
                Answer::History(events(&rows), ending)
            }
            Op::List => self.list().await?,
        })
    }

    async fn open(&mut self, expected: &Answer) -> Result<Answer, Error> {
        let number = match expected {
            Answer::Opened(number) => *number,
            _ => NOBODY,
        };
        let claim_keys = (0..KINDS).flat_map(|w| {
            let pinned = [1, 2].map(|v| ClaimKey::pinned(name(w), &hash(v)));
            std::iter::once(name(w).to_owned()).chain(pinned)
        });
        let new = NewSession {
            worker: format!("s{number}"),
            build: "test".into(),
            queues: vec![QUEUE.into()],
            claim_keys: claim_keys.collect(),
        };
        let id = session::open(self.database, &new).await?;
        Ok(Answer::Opened(self.sessions.learn(id, Some(number))))
    }

    // ---- runs and mail ----

    /// Keys are unique in an instance, which many histories share.
    fn run_key(&self, key: u8) -> String {
        format!("{}-{key}", self.seed)
    }

    fn result_key(&self, key: u8) -> String {
        self.run_key(key)
    }

    async fn start(&mut self, starts: &[NewRun], expected: &Answer) -> Result<Answer, Error> {
        let all: Vec<Start> = starts
            .iter()
            .map(|s| Start {
                namespace: "default".into(),
                workflow: name(s.workflow).into(),
                key: s.key.map(|k| self.run_key(k)),
                input: payload(u32::from(s.input)),
                trace_context: None,
            })
            .collect();
        let numbers = match expected {
            Answer::Started(all) => all.iter().map(|(_, run)| *run).collect(),
            _ => Vec::new(),
        };
        let outcomes = run::start(self.database, &all).await?;
        let told = outcomes
            .into_iter()
            .enumerate()
            .map(|(i, outcome)| match outcome {
                StartOutcome::Started(id) => {
                    (Started::New, self.runs.learn(id, numbers.get(i).copied()))
                }
                StartOutcome::Existing(id) => (Started::Existing, self.runs.symbol(id)),
                StartOutcome::Conflict(id) => (Started::Conflict, self.runs.symbol(id)),
            });
        Ok(Answer::Started(told.collect()))
    }

    /// The run's id; one that was never given, for [`NOBODY`].
    fn run_id(&self, run: usize) -> Uuid {
        if run == NOBODY {
            Uuid::max()
        } else {
            self.runs.real(run)
        }
    }

    fn signals(&self, letters: &[Letter]) -> Vec<Signal> {
        let signal = |letter: &Letter| Signal {
            run_id: self.run_id(letter.to),
            name: name(letter.name).into(),
            payload: payload(u32::from(letter.name)),
            delivery_id: letter.delivery.map(|d| d.to_string()),
        };
        letters.iter().map(signal).collect()
    }

    async fn ingest(&mut self, letters: &[Letter]) -> Result<Answer, Error> {
        self.has_ingested = true;
        let subjects: Vec<String> = letters.iter().map(|l| self.subject(l)).collect();
        let signals = self.signals(letters);
        let outcomes = mailbox::ingest(self.database, &signals, &subjects, &[]).await?;
        Ok(self.posted(letters, &outcomes))
    }

    fn subject(&self, letter: &Letter) -> String {
        format!("{}.{}.{}", self.seed, letter.to, letter.name)
    }

    fn posted(&self, letters: &[Letter], outcomes: &[PostOutcome]) -> Answer {
        let both = letters.iter().zip(outcomes);
        Answer::Posted(both.map(|(l, o)| self.post_outcome(l.to, *o)).collect())
    }

    fn post_outcome(&self, run: usize, outcome: PostOutcome) -> Posted {
        match outcome {
            PostOutcome::Posted(wake) => self.accepted(run, wake),
            PostOutcome::Duplicate => Posted::Duplicate,
            PostOutcome::NotFound => Posted::NotFound,
            PostOutcome::Ended => Posted::Ended,
            PostOutcome::Busy => Posted::Busy,
        }
    }

    fn accepted(&self, run: usize, wake: Wake) -> Posted {
        let owner = wake.owner.map(|s| self.sessions.symbol(s));
        let right_run = wake.run_id == self.run_id(run);
        Posted::Accepted(if right_run { owner } else { Some(NOBODY) })
    }

    async fn cancel(&mut self, run: usize) -> Result<Answer, Error> {
        let id = self.run_id(run);
        let outcome = match mailbox::cancel(self.database, id, "stop").await? {
            CancelOutcome::Requested(wake) => self.accepted(run, wake),
            CancelOutcome::Cancelled(ended) if ended == id => Posted::EndedNow,
            CancelOutcome::Cancelled(_) => Posted::Busy,
            CancelOutcome::NotFound => Posted::NotFound,
            CancelOutcome::Ended => Posted::Ended,
        };
        Ok(Answer::Posted(vec![outcome]))
    }

    // ---- leases ----

    async fn claim(
        &mut self,
        (session, keys, limit, timers_only): (usize, Keys, usize, bool),
        expected: &Answer,
    ) -> Result<Answer, Error> {
        let keys: Vec<ClaimKey> = keys
            .pairs()
            .into_iter()
            .map(|((workflow, version), pin)| ClaimKey {
                key: version.map_or_else(
                    || name(workflow).to_owned(),
                    |v| ClaimKey::pinned(name(workflow), &hash(v)),
                ),
                pin: ClaimKey::pinned(name(workflow), &hash(pin)),
            })
            .collect();
        let session = self.sessions.real(session);
        let limit = i32::try_from(limit).expect("a small limit");
        let floor = if timers_only { i64::MAX } else { 0 };
        let claimed = lease::claim(self.database, session, &keys, limit, floor).await?;
        let wanted: &[Taken] = match expected {
            Answer::Claimed(taken) => taken,
            _ => &[],
        };
        let mut taken: Vec<Taken> = claimed.iter().map(|run| self.taken(run, wanted)).collect();
        taken.sort_by_key(|t| t.hold);
        Ok(Answer::Claimed(taken))
    }

    fn taken(&mut self, claimed: &ClaimedRun, wanted: &[Taken]) -> Taken {
        let run = self.runs.symbol(claimed.lease.run_id);
        let wanted = wanted.iter().find(|t| t.hold.run == run);
        let token = self
            .tokens
            .learn(claimed.lease.token, wanted.map(|w| w.hold.token));
        let key = claimed.key.as_deref();
        Taken {
            hold: Hold {
                run,
                token,
                wake: claimed.wake,
            },
            origin: NewRun {
                workflow: kind(&claimed.workflow),
                key: key.map(|k| {
                    (0..KINDS)
                        .find(|n| self.run_key(*n) == k)
                        .unwrap_or(u8::MAX)
                }),
                input: claimed.input.decode().unwrap_or(u8::MAX),
            },
            version: [1, 2]
                .into_iter()
                .find(|v| hash(*v) == claimed.hash)
                .unwrap_or(u8::MAX),
            block_count: claimed.block_count,
            quarantined: claimed.quarantined,
            history: events(&claimed.history),
            mail: self.mail(&claimed.mail, wanted.map(|w| w.mail.as_slice())),
        }
    }

    fn mail(&mut self, mail: &[mailbox::Mail], wanted: Option<&[Mail]>) -> Vec<Mail> {
        let number = |i: usize| wanted.and_then(|w| w.get(i)).map(|m| m.number);
        mail.iter()
            .enumerate()
            .map(|(i, m)| Mail {
                number: self.mail.learn(m.mail_id, number(i)),
                kind: m.kind,
                name: m.name.clone(),
                delivery: m.delivery_id.clone(),
                payload: m.payload.clone(),
            })
            .collect()
    }

    async fn read(
        &mut self,
        session: usize,
        runs: &[usize],
        expected: &Answer,
    ) -> Result<Answer, Error> {
        let chains: Vec<Uuid> = runs.iter().map(|r| self.runs.real(*r)).collect();
        let boxes = mailbox::read(self.database, self.sessions.real(session), &chains).await?;
        let wanted: &[Mailbox] = match expected {
            Answer::Mailboxes(boxes) => boxes,
            _ => &[],
        };
        let mut told = Vec::new();
        for found in boxes {
            let run = self.runs.symbol(found.chain_id);
            let wanted = wanted.iter().find(|b| b.run == run);
            let mail = self.mail(&found.mail, wanted.map(|w| w.mail.as_slice()));
            told.push(Mailbox {
                run,
                wake: found.wake,
                mail,
            });
        }
        told.sort_by_key(|b| b.run);
        Ok(Answer::Mailboxes(told))
    }

    fn lease(&self, run: usize, token: usize) -> Lease {
        Lease {
            chain_id: self.runs.real(run),
            run_id: self.runs.real(run),
            token: self.tokens.real(token),
        }
    }

    async fn release(&mut self, session: usize, leases: &[Hold]) -> Result<Answer, Error> {
        let leases: Vec<(Lease, i64)> = leases
            .iter()
            .map(|h| (self.lease(h.run, h.token), h.wake))
            .collect();
        let session = self.sessions.real(session);
        let outcomes = lease::release(self.database, session, &leases).await?;
        Ok(Answer::Released(
            outcomes.into_iter().map(released).collect(),
        ))
    }

    async fn block(&mut self, session: usize, hold: &Hold, retry: Retry) -> Result<Answer, Error> {
        let session = self.sessions.real(session);
        let lease = self.lease(hold.run, hold.token);
        let retry_ms = match retry {
            Retry::Never => None,
            Retry::AtOnce => Some(0),
            Retry::InAnHour => Some(3_600_000),
        };
        let detail = serde_json::Value::Null;
        let held = (&lease, hold.wake);
        let done = lease::block(self.database, session, held, "stuck", &detail, retry_ms).await?;
        Ok(Answer::Released(vec![released(done)]))
    }

    // ---- appends ----

    async fn append(&mut self, session: usize, parts: &[Part]) -> Result<Answer, Error> {
        let session = self.sessions.real(session);
        let appends: Vec<Append> = parts.iter().map(|p| self.one_append(p)).collect();
        let appends: Vec<&Append> = appends.iter().collect();
        let outcomes = journal::append(self.database, session, &appends).await?;
        if outcomes.contains(&AppendOutcome::Busy) {
            return Ok(Answer::Failed("Busy".into()));
        }
        let told = outcomes.iter().map(|o| *o == AppendOutcome::Committed);
        Ok(Answer::Appended(told.collect()))
    }

    fn one_append(&self, part: &Part) -> Append {
        let first = i32::try_from(part.first).expect("a short history");
        let mut append = Append {
            lease: self.lease(part.run, part.token),
            first,
            events: part
                .acts
                .iter()
                .map(|act| NewEvent::new(&act.event(), 1))
                .collect(),
            end: part.end().map(|(how, version)| End {
                state: run_end(how.ending()),
                hash: hash(version),
            }),
            mail: Vec::new(),
            timers_set: Vec::new(),
            timers_gone: Vec::new(),
            activities_dropped: Vec::new(),
            activities_completed: Vec::new(),
            activities: Vec::new(),
        };
        for (seq, act) in (first..).zip(&part.acts) {
            self.add(&mut append, seq, act);
        }
        append
    }

    fn add(&self, append: &mut Append, seq: i32, act: &Act) {
        match act {
            Act::Begin(_) | Act::Step(_) | Act::End { .. } => {}
            Act::Consume { mail, .. } => append.mail.push(self.mail.real(*mail)),
            Act::SetTimer { effect, future } => {
                append.timers_set.push((*effect, fire_at(*effect, *future)));
            }
            Act::TimerFired(effect) => append.timers_gone.push(*effect),
            Act::Schedule {
                effect,
                name: kind,
                max,
                eager,
            } => {
                append.activities.push(NewActivity {
                    effect: *effect,
                    seq,
                    queue: QUEUE.into(),
                    name: name(*kind).into(),
                    max_attempts: *max,
                    eager: *eager,
                });
            }
            Act::Complete(done) => append.activities_completed.push(CompletedActivity {
                effect: done.attempt.effect,
                attempt: done.attempt.attempt,
                result: self.result(done),
            }),
            Act::Drop(effect) => append.activities_dropped.push(*effect),
        }
    }

    fn result(&self, done: &Done) -> Option<(String, String, Payload)> {
        let (kind, key) = done.key?;
        let value = payload(done.attempt.effect);
        Some((name(kind).to_owned(), self.result_key(key), value))
    }

    // ---- activities ----

    fn attempt(&self, attempt: Try) -> Attempt {
        Attempt {
            run_id: self.runs.real(attempt.run),
            effect: attempt.effect,
            attempt: attempt.attempt,
        }
    }

    fn try_of(&self, attempt: &Attempt) -> Try {
        Try {
            run: self.runs.symbol(attempt.run_id),
            effect: attempt.effect,
            attempt: attempt.attempt,
        }
    }

    async fn task_claim(
        &mut self,
        session: usize,
        names: &[u8],
        limit: usize,
    ) -> Result<Answer, Error> {
        let session = self.sessions.real(session);
        let names: Vec<String> = names.iter().map(|n| name(*n).to_owned()).collect();
        let limit = i32::try_from(limit).expect("a small limit");
        let queues = [QUEUE.to_owned()];
        let claimed = activity::claim(self.database, session, &queues, &names, limit).await?;
        let mut tasks: Vec<(Try, u8)> = claimed
            .iter()
            .map(|c| (self.try_of(&c.attempt), kind(&c.scheduled.name)))
            .collect();
        tasks.sort_unstable();
        Ok(Answer::Tasks(tasks))
    }

    async fn task_complete(&mut self, session: usize, done: &[Done]) -> Result<Answer, Error> {
        let completions: Vec<Completion> = done
            .iter()
            .map(|d| Completion {
                attempt: self.attempt(d.attempt),
                event: d.event(),
                result: self.result(d),
            })
            .collect();
        let session = self.sessions.real(session);
        let wakes = activity::complete(self.database, session, &completions).await?;
        let told = wakes.iter().map(|wake| {
            let owner = wake.as_ref().map(|w| w.owner);
            owner.map(|o| o.map(|s| self.sessions.symbol(s)))
        });
        Ok(Answer::Completed(told.collect()))
    }

    async fn task_retry(
        &mut self,
        session: usize,
        attempt: Try,
        end: TryEnd,
        later: bool,
    ) -> Result<Answer, Error> {
        let session = self.sessions.real(session);
        let end = match end {
            TryEnd::Failed => AttemptEnd::Failed(failure("failed")),
            TryEnd::Unknown => AttemptEnd::Unknown,
            TryEnd::Released => AttemptEnd::Released,
        };
        let delay_ms = if later { 3_600_000 } else { 0 };
        let attempt = self.attempt(attempt);
        let done = activity::retry(self.database, session, attempt, &end, delay_ms).await?;
        Ok(Answer::Told(done))
    }

    // ---- looks ----

    async fn lost(&mut self) -> Result<Answer, Error> {
        let lost = activity::lost(self.database, i64::from(ROWS_MAX)).await?;
        let mut lost: Vec<(Try, usize, u32)> = lost
            .iter()
            .map(|l| {
                (
                    self.try_of(&l.attempt),
                    self.sessions.symbol(l.session),
                    l.max_attempts,
                )
            })
            .collect();
        lost.sort_unstable();
        Ok(Answer::Lost(lost))
    }

    async fn owned(&mut self, session: usize) -> Result<Answer, Error> {
        let session = self.sessions.real(session);
        let limit = i64::from(ROWS_MAX);
        let owned = lease::owned(self.database, session, Uuid::nil(), limit).await?;
        let mut owned: Vec<Hold> = owned
            .iter()
            .map(|(lease, wake)| Hold {
                run: self.runs.symbol(lease.run_id),
                token: self.tokens.symbol(lease.token),
                wake: *wake,
            })
            .collect();
        owned.sort_unstable();
        Ok(Answer::Owned(owned))
    }

    async fn held(&mut self, session: usize) -> Result<Answer, Error> {
        let held = activity::held(self.database, self.sessions.real(session)).await?;
        let mut held: Vec<Try> = held.iter().map(|a| self.try_of(a)).collect();
        held.sort_unstable();
        Ok(Answer::Held(held))
    }

    async fn look(&mut self, run: usize) -> Result<Answer, Error> {
        let id = self.runs.real(run);
        let found = run::get(self.database, id).await?;
        let tasks = activity::open(self.database, id).await?;
        let tasks = tasks.into_iter().map(|t| OpenTask {
            effect: t.effect,
            name: t.name,
            attempt: t.attempt,
            max: t.max_attempts,
            running: t.running,
            later: t.due_at.is_some(),
            failure: t.failure.map(|f| f.message),
        });
        let record = Box::new(self.record(&found));
        Ok(Answer::Look(record, found.mail, tasks.collect()))
    }

    async fn list(&mut self) -> Result<Answer, Error> {
        let limit = i64::try_from(self.runs.real.len() + 8).expect("a small number");
        let found = run::list(self.database, &Filter::default(), limit).await?;
        let mut records: Vec<Record> = found
            .iter()
            .map(|run| self.record(run))
            .filter(|record| record.run != NOBODY)
            .collect();
        records.sort_by_key(|r| r.run);
        Ok(Answer::List(records, self.rejected().await?))
    }

    fn record(&self, run: &Run) -> Record {
        Record {
            run: self.runs.symbol(run.run_id),
            state: run.state,
            unread: count(run.unread),
            worker: run.worker.clone(),
            version: run.version_hash.clone(),
            blocked: run.blocked.as_ref().map(|(reason, _)| reason.clone()),
            next: run.next_timer_at.map(|at| match to_micros(at) {
                at if NOWADAYS.contains(&at) => Next::Retry,
                at => Next::Timer(at),
            }),
            failure: run.failure.as_ref().map(|f| f.message.clone()),
        }
    }

    async fn rejected(&self) -> Result<Vec<Letter>, Error> {
        if !self.has_ingested {
            return Ok(Vec::new());
        }
        let rows = mailbox::rejected(self.database, i64::from(ROWS_MAX)).await?;
        let letters = rows.iter().filter_map(|row| {
            let rest = row.subject.strip_prefix(&format!("{}.", self.seed))?;
            let (to, name) = rest.split_once('.')?;
            Some(Letter {
                to: to.parse().ok()?,
                name: name.parse().ok()?,
                delivery: row.delivery_id.as_ref().and_then(|d| d.parse().ok()),
            })
        });
        let mut letters: Vec<Letter> = letters.collect();
        letters.sort();
        Ok(letters)
    }
}

fn events(rows: &[EventRow]) -> Vec<Event> {
    let in_order = rows.iter().zip(1..).all(|(row, seq)| row.seq == seq);
    assert!(in_order, "a history is complete and in order");
    let event = |row: &EventRow| row.decode().expect("what was written can be read");
    rows.iter().map(event).collect()
}

fn run_end(ending: Ending) -> RunEnd {
    match ending {
        Ending::Completed(value) => RunEnd::Completed(value),
        Ending::Failed(failure) => RunEnd::Failed(failure),
        Ending::Cancelled(reason) => RunEnd::Cancelled(reason),
        Ending::Active => unreachable!("an end is no end"),
    }
}

fn kind(of: &str) -> u8 {
    (0..KINDS).find(|k| name(*k) == of).unwrap_or(u8::MAX)
}

fn count(rows: impl TryInto<usize>) -> usize {
    rows.try_into().unwrap_or(NOBODY)
}

fn released(outcome: ReleaseOutcome) -> Released {
    match outcome {
        ReleaseOutcome::Released => Released::Cold,
        ReleaseOutcome::Due => Released::Due,
        ReleaseOutcome::NotMine => Released::NotMine,
        ReleaseOutcome::Busy => Released::Busy,
    }
}
