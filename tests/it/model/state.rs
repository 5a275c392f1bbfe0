//! The model: what the functions promise, as plain data and without a database.

use std::collections::{BTreeMap, BTreeSet};

use continuum_schema::mailbox::MailKind;
use continuum_schema::run::{Ending, RunState};
use continuum_schema::{Event, Payload};

use super::words::*;

/// A promise that a wrong model does not keep, for the proof that the test would notice.
/// An effect of a run, and a number that goes with it.
type Numbered = ((usize, u32), u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flaw {
    /// An append is not fenced by session and token.
    OldTokensAppend,
    /// The same append, sent again, is refused.
    RepeatsAreRefused,
    /// An append may consume mail that is gone.
    LostMailIsConsumed,
    /// A delivery counts as often as it comes.
    DeliveriesCountTwice,
    /// A release does not look at the wake counter.
    ReleaseForgetsWakes,
    /// A completion is not fenced by session and attempt.
    OldAttemptsComplete,
    /// A closed session may claim.
    ClosedSessionsClaim,
    /// What is in the mailbox of a run that ends counts as read.
    EndForgetsMail,
}

impl Flaw {
    pub(super) const ALL: [Self; 8] = [
        Self::OldTokensAppend,
        Self::RepeatsAreRefused,
        Self::LostMailIsConsumed,
        Self::DeliveriesCountTwice,
        Self::ReleaseForgetsWakes,
        Self::OldAttemptsComplete,
        Self::ClosedSessionsClaim,
        Self::EndForgetsMail,
    ];
}

/// A whole instance.
#[derive(Default)]
pub(super) struct Model {
    pub(super) flaw: Option<Flaw>,
    pub(super) sessions: Vec<Session>,
    pub(super) chains: Vec<Chain>,
    results: BTreeMap<ResultKey, Payload>,
    rejected: Vec<Letter>,
    /// The number of the call. Tickets taken in one call have no order that is promised.
    moment: u64,
    tokens: usize,
    mails: usize,
}

pub(super) struct Session {
    pub(super) open: bool,
    pub(super) beat: i64,
    forgotten: bool,
}

/// A chain of one run.
pub(super) struct Chain {
    origin: NewRun,
    pub(super) history: Vec<Entry>,
    /// Gone when the run has ended.
    pub(super) lease: Option<LeaseRow>,
    ending: Ending,
    version: Option<u8>,
    unread: usize,
    accepted: BTreeSet<(u8, u8)>,
    pub(super) timers: BTreeMap<u32, i64>,
    pub(super) tasks: BTreeMap<u32, Task>,
}

pub(super) struct Entry {
    token: usize,
    event: Event,
}

pub(super) struct LeaseRow {
    pub(super) owner: Option<usize>,
    pub(super) token: usize,
    pub(super) wake: i64,
    pub(super) mail: Vec<Mail>,
    pub(super) version: Option<u8>,
    pub(super) blocked: Option<&'static str>,
    ticket: Option<u64>,
    next: Option<(Next, NextOrder)>,
    block_count: i32,
    crashes: i32,
    crash_seq: usize,
}

/// In which order cold runs become due; `None` is an hour or a century away.
type NextOrder = Option<(bool, i64)>;

pub(super) struct Task {
    pub(super) name: u8,
    pub(super) attempt: u32,
    pub(super) max: u32,
    pub(super) owner: Option<usize>,
    ticket: Option<u64>,
    failure: Option<String>,
}

/// What an append is to its journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    New,
    Repeated,
    Refused,
}

impl Model {
    pub(super) fn new(flaw: Option<Flaw>) -> Self {
        Self {
            flaw,
            ..Self::default()
        }
    }

    fn is_flawed(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Carries out a call and says what it must answer.
    pub(super) fn apply(&mut self, op: &Op) -> Answer {
        self.moment += 1;
        match op {
            Op::Open => self.open(),
            Op::Beat(session) => self.beat(*session),
            Op::Close { session, beat } => self.close(*session, *beat),
            Op::Forget => self.forget(),
            Op::Start(starts) => Answer::Started(starts.iter().map(|s| self.start(*s)).collect()),
            Op::Signal(letters) => self.signal(letters),
            Op::Ingest(letters) => self.ingest(letters),
            Op::Cancel(run) => Answer::Posted(vec![self.cancel(*run)]),
            Op::Claim {
                session,
                keys,
                limit,
                timers_only,
            } => self.claim(*session, *keys, *limit, *timers_only),
            Op::Read { session, runs } => self.read(*session, runs),
            Op::Append { session, parts } => self.append(*session, parts),
            Op::Release { session, leases } => {
                Answer::Released(leases.iter().map(|h| self.release(*session, h)).collect())
            }
            Op::Block {
                session,
                hold,
                retry,
            } => self.block(*session, hold, *retry),
            Op::Sweep { crash_limit } => self.sweep(*crash_limit),
            Op::TaskClaim {
                session,
                names,
                limit,
            } => self.task_claim(*session, names, *limit),
            Op::TaskComplete { session, done } => self.task_complete(*session, done),
            Op::TaskRetry {
                session,
                attempt,
                end,
                later,
            } => Answer::Told(self.task_retry(*session, *attempt, *end, *later)),
            Op::Lost => self.lost(),
            Op::Owned(session) => self.owned(*session),
            Op::Held(session) => self.held(*session),
            Op::Result(key) => Answer::Result(self.results.get(key).cloned()),
            Op::Look(run) => self.look(*run),
            Op::History(run) => {
                let chain = &self.chains[*run];
                Answer::History(chain.events(), chain.ending.clone())
            }
            Op::List => self.list(),
        }
    }

    // ---- sessions ----

    fn open(&mut self) -> Answer {
        self.sessions.push(Session {
            open: true,
            beat: 0,
            forgotten: false,
        });
        Answer::Opened(self.sessions.len() - 1)
    }

    fn beat(&mut self, session: usize) -> Answer {
        let session = &mut self.sessions[session];
        if session.open {
            session.beat += 1;
        }
        Answer::Told(session.open)
    }

    fn close(&mut self, session: usize, beat: Option<i64>) -> Answer {
        let session = &mut self.sessions[session];
        let closes = session.open && beat.is_none_or(|b| b == session.beat);
        if closes {
            session.open = false;
        }
        Answer::Told(closes)
    }

    fn forget(&mut self) -> Answer {
        let owns = |session| {
            let owner = Some(session);
            self.chains.iter().any(|c| {
                c.lease.as_ref().is_some_and(|l| l.owner == owner)
                    || c.tasks.values().any(|t| t.owner == owner)
            })
        };
        let idle: Vec<usize> = (0..self.sessions.len())
            .filter(|s| !self.sessions[*s].open && !self.sessions[*s].forgotten && !owns(*s))
            .collect();
        for session in &idle {
            self.sessions[*session].forgotten = true;
        }
        Answer::Count(idle.len())
    }

    fn is_open(&self, session: usize) -> bool {
        self.sessions[session].open
    }

    // ---- runs and mail ----

    fn start(&mut self, start: NewRun) -> (Started, usize) {
        let named = self.chains.iter().position(|c| c.origin.key == start.key);
        if let (Some(run), true) = (named, start.key.is_some()) {
            let same = self.chains[run].origin == start;
            return (
                if same {
                    Started::Existing
                } else {
                    Started::Conflict
                },
                run,
            );
        }
        let token = self.next_token();
        self.chains.push(Chain {
            origin: start,
            history: Vec::new(),
            lease: Some(LeaseRow::new(token, self.moment)),
            ending: Ending::Active,
            version: None,
            unread: 0,
            accepted: BTreeSet::new(),
            timers: BTreeMap::new(),
            tasks: BTreeMap::new(),
        });
        (Started::New, self.chains.len() - 1)
    }

    fn next_token(&mut self) -> usize {
        self.tokens += 1;
        self.tokens
    }

    fn signal(&mut self, letters: &[Letter]) -> Answer {
        Answer::Posted(letters.iter().map(|l| self.post_letter(l)).collect())
    }

    fn ingest(&mut self, letters: &[Letter]) -> Answer {
        let mut outcomes = Vec::new();
        for letter in letters {
            let outcome = self.post_letter(letter);
            let rejected = matches!(outcome, Posted::NotFound | Posted::Ended);
            let kept = letter.delivery.is_some() && self.rejected.contains(letter);
            if rejected && !kept {
                self.rejected.push(letter.clone());
            }
            outcomes.push(outcome);
        }
        Answer::Posted(outcomes)
    }

    fn post_letter(&mut self, letter: &Letter) -> Posted {
        let counts_twice = self.is_flawed(Flaw::DeliveriesCountTwice);
        let Some(chain) = self.chains.get_mut(letter.to) else {
            return Posted::NotFound;
        };
        if chain.lease.is_none() {
            let is_known = letter
                .delivery
                .is_some_and(|d| chain.accepted.contains(&(letter.name, d)));
            return match is_known {
                true => Posted::Duplicate,
                false => Posted::Ended,
            };
        }
        let is_new = letter
            .delivery
            .is_none_or(|d| chain.accepted.insert((letter.name, d)));
        if !is_new && !counts_twice {
            return Posted::Duplicate;
        }
        let mail = Mail {
            number: 0,
            kind: MailKind::Signal,
            name: Some(name(letter.name).into()),
            delivery: letter.delivery.map(|d| d.to_string()),
            payload: payload(u32::from(letter.name)),
        };
        self.post(letter.to, mail)
    }

    /// Puts mail into a chain's box and makes the chain due.
    fn post(&mut self, run: usize, mail: Mail) -> Posted {
        let Some(lease) = &mut self.chains[run].lease else {
            return Posted::Ended;
        };
        self.mails += 1;
        lease.wake += 1;
        let parked = lease.blocked.is_some() && mail.kind != MailKind::Cancel;
        if lease.owner.is_none() && !parked {
            lease.ticket.get_or_insert(self.moment);
        }
        lease.mail.push(Mail {
            number: self.mails,
            ..mail
        });
        Posted::Accepted(lease.owner)
    }

    fn cancel(&mut self, run: usize) -> Posted {
        let Some(chain) = self.chains.get_mut(run) else {
            return Posted::NotFound;
        };
        let unowned = chain.lease.as_ref().is_some_and(|l| l.owner.is_none());
        if unowned && chain.history.is_empty() {
            let event = Event::Cancelled {
                reason: "stop".into(),
                unread: Vec::new(),
            };
            chain.history.push(Entry {
                token: NOBODY,
                event,
            });
            self.end(run, Ending::Cancelled("stop".into()), None);
            return Posted::EndedNow;
        }
        let mail = Mail {
            number: 0,
            kind: MailKind::Cancel,
            name: None,
            delivery: None,
            payload: Payload::encode("stop").expect("text can be encoded"),
        };
        self.post(run, mail)
    }

    fn end(&mut self, run: usize, ending: Ending, version: Option<u8>) {
        let forgets = self.is_flawed(Flaw::EndForgetsMail);
        let chain = &mut self.chains[run];
        let Some(lease) = chain.lease.take() else {
            return;
        };
        let signals = lease.mail.iter().filter(|m| m.kind == MailKind::Signal);
        chain.unread = if forgets { 0 } else { signals.count() };
        chain.ending = ending;
        chain.version = version;
        chain.timers.clear();
        chain.tasks.clear();
    }

    // ---- leases ----

    fn claim(&mut self, session: usize, keys: Keys, limit: usize, timers_only: bool) -> Answer {
        if !self.is_open(session) && !self.is_flawed(Flaw::ClosedSessionsClaim) {
            return session_closed();
        }
        let (mut chosen, _) = self.claimable(keys, limit, timers_only);
        chosen.sort_unstable();
        let taken = chosen
            .into_iter()
            .map(|(run, version)| self.take(session, run, version));
        Answer::Claimed(taken.collect())
    }

    fn take(&mut self, session: usize, run: usize, version: u8) -> Taken {
        let token = self.next_token();
        let chain = &mut self.chains[run];
        let history = chain.events();
        let lease = chain
            .lease
            .as_mut()
            .expect("only active runs are claimable");
        let taken = Taken {
            hold: Hold {
                run,
                token,
                wake: lease.wake,
            },
            origin: chain.origin,
            version,
            block_count: lease.block_count,
            quarantined: lease.blocked == Some("quarantined"),
            history,
            mail: lease.mail.clone(),
        };
        *lease = LeaseRow {
            owner: Some(session),
            token,
            version: Some(version),
            ticket: None,
            next: None,
            blocked: None,
            mail: std::mem::take(&mut lease.mail),
            ..*lease
        };
        taken
    }

    /// The runs that a claim gets with the version that they become bound to, and whether the limit falls between
    /// calls, so that their order is promised.
    pub(super) fn claimable(
        &self,
        keys: Keys,
        limit: usize,
        timers_only: bool,
    ) -> (Vec<(usize, u8)>, bool) {
        let mut chosen: Vec<(usize, u8)> = Vec::new();
        let mut exact = true;
        if !timers_only {
            for (key, pin) in keys.pairs() {
                let due = self.unowned(key, |l| l.ticket);
                exact &= take_up_to(limit, due, pin, &mut chosen);
            }
        }
        for (key, pin) in keys.pairs() {
            let due = self.unowned(key, |l| l.next.and_then(|(_, order)| order));
            let due = due
                .into_iter()
                .filter(|(_, run)| chosen.iter().all(|(c, _)| c != run));
            exact &= take_up_to(limit, due.collect(), pin, &mut chosen);
        }
        (chosen, exact)
    }

    fn unowned<T: Ord>(
        &self,
        key: (u8, Option<u8>),
        order: impl Fn(&LeaseRow) -> Option<T>,
    ) -> Vec<(T, usize)> {
        let mut due: Vec<(T, usize)> = self
            .chains
            .iter()
            .enumerate()
            .filter_map(|(run, c)| {
                let lease = c.lease.as_ref()?;
                let matches = lease.owner.is_none() && (c.origin.workflow, lease.version) == key;
                matches.then(|| order(lease)).flatten().map(|o| (o, run))
            })
            .collect();
        due.sort();
        due
    }

    fn read(&self, session: usize, runs: &[usize]) -> Answer {
        let boxes = runs.iter().filter_map(|run| {
            let lease = self.chains[*run].lease.as_ref()?;
            (lease.owner == Some(session)).then(|| Mailbox {
                run: *run,
                wake: lease.wake,
                mail: lease.mail.clone(),
            })
        });
        Answer::Mailboxes(boxes.collect())
    }

    /// The lease row, if it is this session's by this token.
    fn held_lease(&mut self, session: usize, run: usize, token: usize) -> Option<&mut LeaseRow> {
        let lease = self.chains[run].lease.as_mut()?;
        (lease.owner == Some(session) && lease.token == token).then_some(lease)
    }

    fn release(&mut self, session: usize, hold: &Hold) -> Released {
        let forgets = self.is_flawed(Flaw::ReleaseForgetsWakes);
        let (moment, token) = (self.moment, self.next_token());
        let empty = self.chains[hold.run].history.is_empty();
        let timer = self.chains[hold.run].timers.values().min().copied();
        let Some(lease) = self.held_lease(session, hold.run, hold.token) else {
            return Released::NotMine;
        };
        let due = empty || (lease.wake != hold.wake && !forgets);
        lease.owner = None;
        lease.token = token;
        lease.crashes = 0;
        lease.ticket = due.then_some(moment);
        lease.next = timer.map(|at| (Next::Timer(at), is_past(at).then_some((false, at))));
        lease.unbind(empty);
        if due { Released::Due } else { Released::Cold }
    }

    fn block(&mut self, session: usize, hold: &Hold, retry: Retry) -> Answer {
        let (moment, token) = (self.moment, self.next_token());
        let empty = self.chains[hold.run].history.is_empty();
        let Some(lease) = self.held_lease(session, hold.run, hold.token) else {
            return Answer::Released(vec![Released::NotMine]);
        };
        let asked_to_stop = lease.mail.iter().any(|m| m.kind == MailKind::Cancel);
        let due = asked_to_stop && lease.wake != hold.wake;
        lease.owner = None;
        lease.token = token;
        lease.ticket = due.then_some(moment);
        lease.blocked = Some("stuck");
        lease.block_count += 1;
        lease.next = match retry {
            Retry::Never => None,
            Retry::AtOnce => Some((Next::Retry, Some((true, moment.cast_signed())))),
            Retry::InAnHour => Some((Next::Retry, None)),
        };
        lease.unbind(empty);
        Answer::Released(vec![if due { Released::Due } else { Released::Cold }])
    }

    fn sweep(&mut self, crash_limit: i32) -> Answer {
        let mut swept = 0;
        for run in 0..self.chains.len() {
            let token = self.next_token();
            let chain = &mut self.chains[run];
            let seq = chain.history.len();
            let Some(lease) = &mut chain.lease else {
                continue;
            };
            if lease.owner.is_none_or(|s| self.sessions[s].open) {
                continue;
            }
            swept += 1;
            lease.crashes = if seq > lease.crash_seq {
                1
            } else {
                lease.crashes + 1
            };
            lease.crash_seq = seq;
            lease.owner = None;
            lease.token = token;
            lease.unbind(seq == 0);
            let lives = lease.crashes < crash_limit;
            lease.ticket = lives.then_some(self.moment);
            lease.blocked = (!lives).then_some("quarantined");
        }
        Answer::Count(swept)
    }

    // ---- appends ----

    fn append(&mut self, session: usize, parts: &[Part]) -> Answer {
        let eager = |act: &Act| matches!(act, Act::Schedule { eager: true, .. });
        if parts.iter().any(|p| p.acts.iter().any(eager)) && !self.is_open(session) {
            return session_closed();
        }
        let verdicts: Vec<Verdict> = parts.iter().map(|p| self.judge(session, p)).collect();
        let new = || {
            parts
                .iter()
                .zip(&verdicts)
                .filter(|(_, v)| **v == Verdict::New)
        };
        if new().any(|(part, _)| self.is_stale(session, part)) {
            return Answer::Failed("Stale".into());
        }
        for (part, _) in new() {
            self.commit(session, part);
        }
        Answer::Appended(verdicts.iter().map(|v| *v != Verdict::Refused).collect())
    }

    fn judge(&self, session: usize, part: &Part) -> Verdict {
        let chain = &self.chains[part.run];
        if let Some(entry) = chain.history.get(part.first - 1) {
            let mine = entry.token == part.token && !self.is_flawed(Flaw::RepeatsAreRefused);
            return if mine {
                Verdict::Repeated
            } else {
                Verdict::Refused
            };
        }
        let holds = chain.lease.as_ref().is_some_and(|l| {
            let fenced = l.owner == Some(session) && l.token == part.token;
            fenced || self.is_flawed(Flaw::OldTokensAppend)
        });
        if holds && part.first == chain.history.len() + 1 {
            Verdict::New
        } else {
            Verdict::Refused
        }
    }

    /// Whether an append claims what is not there.
    fn is_stale(&self, session: usize, part: &Part) -> bool {
        let chain = &self.chains[part.run];
        let has_mail = |mail: usize| {
            let lease = chain.lease.as_ref();
            lease.is_some_and(|l| l.mail.iter().any(|m| m.number == mail))
        };
        part.acts.iter().any(|act| match act {
            Act::Consume { mail, .. } => {
                !has_mail(*mail) && !self.is_flawed(Flaw::LostMailIsConsumed)
            }
            Act::Complete(done) => !self.is_current(session, done.attempt),
            _ => false,
        })
    }

    fn is_current(&self, session: usize, attempt: Try) -> bool {
        let task = self.chains[attempt.run].tasks.get(&attempt.effect);
        task.is_some_and(|t| {
            let fenced = t.owner == Some(session) && t.attempt == attempt.attempt;
            fenced || self.is_flawed(Flaw::OldAttemptsComplete)
        })
    }

    fn commit(&mut self, session: usize, part: &Part) {
        for act in &part.acts {
            self.chains[part.run].history.push(Entry {
                token: part.token,
                event: act.event(),
            });
            self.commit_act(session, part.run, act);
        }
    }

    fn commit_act(&mut self, session: usize, run: usize, act: &Act) {
        let chain = &mut self.chains[run];
        match act {
            Act::Begin(_) | Act::Step(_) => {}
            Act::Consume { mail, .. } => {
                if let Some(lease) = &mut chain.lease {
                    lease.mail.retain(|m| m.number != *mail);
                }
            }
            Act::SetTimer { effect, future } => {
                chain.timers.insert(*effect, fire_at(*effect, *future));
            }
            Act::TimerFired(effect) => {
                chain.timers.remove(effect);
            }
            Act::Schedule {
                effect,
                name,
                max,
                eager,
            } => {
                let task = Task {
                    name: *name,
                    attempt: u32::from(*eager),
                    max: *max,
                    owner: eager.then_some(session),
                    ticket: (!eager).then_some(self.moment),
                    failure: None,
                };
                chain.tasks.insert(*effect, task);
            }
            Act::Complete(done) => {
                chain.tasks.remove(&done.attempt.effect);
                self.keep_result(done);
            }
            Act::Drop(effect) => {
                chain.tasks.remove(effect);
            }
            Act::End { how, version } => self.end(run, how.ending(), Some(*version)),
        }
    }

    /// The first committed result of a key stands.
    fn keep_result(&mut self, done: &Done) {
        if let Some(key) = done.key {
            self.results
                .entry(key)
                .or_insert_with(|| payload(done.attempt.effect));
        }
    }

    // ---- activities ----

    fn task_claim(&mut self, session: usize, names: &[u8], limit: usize) -> Answer {
        if !self.is_open(session) && !self.is_flawed(Flaw::ClosedSessionsClaim) {
            return session_closed();
        }
        let (mut chosen, _) = self.claimable_tasks(names, limit);
        chosen.sort_unstable();
        let claimed = chosen.into_iter().map(|((run, effect), name)| {
            let task = self.chains[run]
                .tasks
                .get_mut(&effect)
                .expect("it was just seen");
            task.owner = Some(session);
            task.ticket = None;
            task.attempt += 1;
            (
                Try {
                    run,
                    effect,
                    attempt: task.attempt,
                },
                name,
            )
        });
        Answer::Tasks(claimed.collect())
    }

    /// As [`Model::claimable`], for activities.
    pub(super) fn claimable_tasks(&self, names: &[u8], limit: usize) -> (Vec<Numbered>, bool) {
        let mut chosen = Vec::new();
        let mut exact = true;
        for name in names {
            let mut due: Vec<(u64, (usize, u32))> = self
                .all_tasks()
                .filter(|(_, task)| task.name == *name)
                .filter_map(|(at, task)| task.ticket.map(|ticket| (ticket, at)))
                .collect();
            due.sort_unstable();
            exact &= take_up_to(limit, due, *name, &mut chosen);
        }
        (chosen, exact)
    }

    fn all_tasks(&self) -> impl Iterator<Item = ((usize, u32), &Task)> {
        let chains = self.chains.iter().enumerate();
        chains.flat_map(|(run, c)| c.tasks.iter().map(move |(e, task)| ((run, *e), task)))
    }

    fn task_complete(&mut self, session: usize, done: &[Done]) -> Answer {
        let mut order: Vec<usize> = (0..done.len()).collect();
        order.sort_by_key(|i| done[*i].attempt);
        let mut owners = vec![None; done.len()];
        for i in order {
            owners[i] = self.complete(session, &done[i]);
        }
        Answer::Completed(owners)
    }

    fn complete(&mut self, session: usize, done: &Done) -> Option<Option<usize>> {
        if !self.is_current(session, done.attempt) {
            return None;
        }
        self.chains[done.attempt.run]
            .tasks
            .remove(&done.attempt.effect);
        self.keep_result(done);
        let mail = Mail {
            number: 0,
            kind: MailKind::ActivityResult,
            name: None,
            delivery: None,
            payload: Payload::from_bytes(done.event().encode()),
        };
        match self.post(done.attempt.run, mail) {
            Posted::Accepted(owner) => Some(owner),
            _ => None,
        }
    }

    fn task_retry(&mut self, session: usize, attempt: Try, end: TryEnd, later: bool) -> bool {
        if !self.is_current(session, attempt) {
            return false;
        }
        let moment = self.moment;
        let tasks = &mut self.chains[attempt.run].tasks;
        let Some(task) = tasks.get_mut(&attempt.effect) else {
            return false;
        };
        task.owner = None;
        task.ticket = (!later).then_some(moment);
        match end {
            TryEnd::Failed => task.failure = Some("failed".into()),
            TryEnd::Unknown => task.failure = None,
            TryEnd::Released => task.attempt -= 1,
        }
        true
    }

    fn lost(&self) -> Answer {
        let lost = self.all_tasks().filter_map(|((run, effect), task)| {
            let owner = task.owner.filter(|s| !self.is_open(*s))?;
            Some((
                Try {
                    run,
                    effect,
                    attempt: task.attempt,
                },
                owner,
                task.max,
            ))
        });
        Answer::Lost(lost.collect())
    }

    // ---- looks ----

    fn owned(&self, session: usize) -> Answer {
        let leases = self.chains.iter().enumerate().filter_map(|(run, chain)| {
            let lease = chain.lease.as_ref()?;
            let hold = Hold {
                run,
                token: lease.token,
                wake: lease.wake,
            };
            (lease.owner == Some(session)).then_some(hold)
        });
        Answer::Owned(leases.collect())
    }

    fn held(&self, session: usize) -> Answer {
        let held = self.all_tasks().filter_map(|((run, effect), task)| {
            let attempt = Try {
                run,
                effect,
                attempt: task.attempt,
            };
            (task.owner == Some(session)).then_some(attempt)
        });
        Answer::Held(held.collect())
    }

    fn look(&self, run: usize) -> Answer {
        let chain = &self.chains[run];
        let tasks = chain.tasks.iter().map(|(effect, task)| OpenTask {
            effect: *effect,
            name: name(task.name).into(),
            attempt: task.attempt,
            max: task.max,
            running: task.owner.is_some(),
            later: task.owner.is_none() && task.ticket.is_none(),
            failure: task.failure.clone(),
        });
        let mail = chain.lease.as_ref().map_or(0, |l| l.mail.len());
        let mail = i64::try_from(mail).expect("a mailbox is small");
        Answer::Look(Box::new(self.record(run)), mail, tasks.collect())
    }

    fn list(&self) -> Answer {
        let mut rejected = self.rejected.clone();
        rejected.sort();
        Answer::List(
            (0..self.chains.len()).map(|run| self.record(run)).collect(),
            rejected,
        )
    }

    fn record(&self, run: usize) -> Record {
        let chain = &self.chains[run];
        let lease = chain.lease.as_ref();
        let version = lease.map_or(chain.version, |l| l.version);
        let failure = match &chain.ending {
            Ending::Failed(failure) => Some(failure.message.clone()),
            Ending::Cancelled(reason) => Some(reason.clone()),
            _ => None,
        };
        Record {
            run,
            state: self.state(chain),
            unread: chain.unread,
            worker: lease
                .and_then(|l| l.owner)
                .filter(|s| !self.sessions[*s].forgotten)
                .map(|s| format!("s{s}")),
            version: version.map(hash),
            blocked: lease.and_then(|l| l.blocked).map(str::to_owned),
            next: lease.and_then(|l| l.next).map(|(next, _)| next),
            failure,
        }
    }

    fn state(&self, chain: &Chain) -> RunState {
        let served = self.sessions.iter().any(|s| s.open);
        match (&chain.ending, &chain.lease) {
            (Ending::Completed(_), _) => RunState::Completed,
            (Ending::Failed(_), _) => RunState::Failed,
            (Ending::Cancelled(_), _) => RunState::Cancelled,
            (_, Some(lease)) if lease.blocked.is_some() => RunState::Blocked,
            (_, Some(lease)) if lease.owner.is_some() => RunState::Running,
            _ if !served => RunState::Unserved,
            (_, Some(lease)) if lease.ticket.is_some() => RunState::Pending,
            _ => RunState::Waiting,
        }
    }
}

impl Chain {
    fn events(&self) -> Vec<Event> {
        self.history.iter().map(|e| e.event.clone()).collect()
    }
}

impl LeaseRow {
    fn new(token: usize, ticket: u64) -> Self {
        Self {
            owner: None,
            token,
            wake: 0,
            mail: Vec::new(),
            version: None,
            blocked: None,
            ticket: Some(ticket),
            next: None,
            block_count: 0,
            crashes: 0,
            crash_seq: 0,
        }
    }

    /// Whether a claim gets the run by its ticket.
    pub(super) fn is_due(&self) -> bool {
        self.ticket.is_some()
    }

    /// A run that nobody has begun is bound to no version.
    fn unbind(&mut self, empty: bool) {
        if empty {
            self.version = None;
        }
    }
}

fn is_past(at: i64) -> bool {
    at < fire_at(0, true)
}

fn session_closed() -> Answer {
    Answer::Failed("SessionClosed".into())
}

/// Fills `chosen` from what is due in order. False if the limit fell between two that have no order.
fn take_up_to<T: PartialEq, I>(
    limit: usize,
    due: Vec<(T, I)>,
    with: u8,
    chosen: &mut Vec<(I, u8)>,
) -> bool {
    let room = limit - chosen.len();
    let split = room > 0 && room < due.len() && due[room - 1].0 == due[room].0;
    chosen.extend(due.into_iter().take(room).map(|(_, id)| (id, with)));
    !split
}
