//! Random histories: what three sessions or so may ask for, in order and out of it. What is asked depends on the seed
//! and on the model alone, never on what Postgres answered.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::state::Model;
use super::words::*;

/// Runs and sessions in one history.
const RUNS_MAX: usize = 6;
const SESSIONS_MAX: usize = 6;

/// How many calls a history has before its end, more often few than many.
const CALLS: std::ops::RangeInclusive<usize> = 8..=30;

/// How often an owner may die without a new event.
const CRASH_LIMIT: i32 = 2;

/// More than there is.
const ALL: usize = 100;

/// How often each thing is asked for.
const WEIGHTS: &[(u32, Make)] = &[
    (2, Script::open),
    (1, Script::beat),
    (3, Script::close),
    (1, |_, _| Some(Op::Forget)),
    (6, Script::start),
    (14, Script::signal),
    (3, Script::ingest),
    (4, Script::cancel),
    (16, Script::claim),
    (6, Script::read),
    (34, Script::append),
    (5, Script::repeat),
    (10, Script::release),
    (4, Script::block),
    (6, |_, _| {
        Some(Op::Sweep {
            crash_limit: CRASH_LIMIT,
        })
    }),
    (10, Script::task_claim),
    (13, Script::task_complete),
    (10, Script::task_retry),
    (1, |_, _| Some(Op::Lost)),
    (2, |s, m| Some(Op::Owned(s.any_session(m)))),
    (1, |s, m| Some(Op::Held(s.any_session(m)))),
    (2, |s, _| Some(Op::Result(s.result_key()))),
    (5, |s, m| Some(Op::Look(s.any_run(m)))),
    (1, |s, m| Some(Op::History(s.any_run(m)))),
];

/// Makes a call, if there is anything to make it with.
type Make = fn(&mut Script, &Model) -> Option<Op>;

/// The author of one history.
pub(super) struct Script {
    chance: ChaCha8Rng,
    length: usize,
    made: usize,
    effects: u32,
    /// Every lease that anybody ever had, oldest first.
    grants: Vec<Grant>,
    /// Every attempt that anybody ever had, with its session.
    attempts: Vec<(usize, Try)>,
    /// The appends so far.
    appends: Vec<Op>,
    /// The next step of the end.
    step: usize,
    /// Runs that had ended before the end.
    ended: Vec<usize>,
}

/// A lease as its session knows it.
struct Grant {
    session: usize,
    hold: Hold,
    version: u8,
    mail: Vec<usize>,
}

impl Script {
    pub(super) fn new(seed: u64) -> Self {
        let mut chance = ChaCha8Rng::seed_from_u64(seed);
        Self {
            length: chance.random_range(CALLS).min(chance.random_range(CALLS)),
            chance,
            made: 0,
            effects: 0,
            grants: Vec::new(),
            attempts: Vec::new(),
            appends: Vec::new(),
            step: 0,
            ended: Vec::new(),
        }
    }

    /// The next call, or none when the history is complete.
    pub(super) fn next(&mut self, model: &Model) -> Option<Op> {
        self.made += 1;
        match self.made {
            1 | 2 => Some(Op::Open),
            3 => self.start(model),
            made if made <= self.length => Some(self.any(model)),
            _ => self.finale(model),
        }
    }

    /// Remembers what a worker would.
    pub(super) fn note(&mut self, op: &Op, answer: &Answer) {
        match (op, answer) {
            (Op::Claim { session, .. }, Answer::Claimed(taken)) => {
                self.grants.extend(taken.iter().map(|t| Grant {
                    session: *session,
                    hold: t.hold,
                    version: t.version,
                    mail: t.mail.iter().map(|m| m.number).collect(),
                }));
            }
            (Op::Read { session, .. }, Answer::Mailboxes(boxes)) => {
                for mailbox in boxes {
                    self.note_mail(*session, mailbox);
                }
            }
            (Op::TaskClaim { session, .. }, Answer::Tasks(tasks)) => {
                self.attempts
                    .extend(tasks.iter().map(|(attempt, _)| (*session, *attempt)));
            }
            (Op::Append { session, parts }, Answer::Appended(_)) => {
                self.appends.push(op.clone());
                self.note_eager(*session, parts);
            }
            (Op::Append { .. }, _) => self.appends.push(op.clone()),
            _ => {}
        }
    }

    fn note_mail(&mut self, session: usize, mailbox: &Mailbox) {
        let mut grants = self.grants.iter_mut().rev();
        let grant = grants.find(|g| g.session == session && g.hold.run == mailbox.run);
        if let Some(grant) = grant {
            grant.hold.wake = mailbox.wake;
            grant.mail = mailbox.mail.iter().map(|m| m.number).collect();
        }
    }

    fn note_eager(&mut self, session: usize, parts: &[Part]) {
        for part in parts {
            for act in &part.acts {
                if let Act::Schedule {
                    effect,
                    eager: true,
                    ..
                } = act
                {
                    let attempt = Try {
                        run: part.run,
                        effect: *effect,
                        attempt: 1,
                    };
                    self.attempts.push((session, attempt));
                }
            }
        }
    }

    // ---- chance ----

    fn percent(&mut self, percent: u32) -> bool {
        self.chance.random_range(0..100) < percent
    }

    fn below(&mut self, bound: usize) -> usize {
        self.chance.random_range(0..bound)
    }

    fn kind(&mut self) -> u8 {
        self.chance.random_range(0..KINDS)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        let index = self.below(from.len());
        from.get(index).cloned()
    }

    fn any(&mut self, model: &Model) -> Op {
        let total = WEIGHTS.iter().map(|(weight, _)| weight).sum();
        loop {
            let mut rest: u32 = self.chance.random_range(0..total);
            let chosen = WEIGHTS.iter().find(|(weight, _)| {
                let hit = rest < *weight;
                rest = rest.saturating_sub(*weight);
                hit
            });
            let (_, make) = chosen.expect("the number is below the sum of the weights");
            if let Some(op) = make(self, model) {
                return op;
            }
        }
    }

    fn any_session(&mut self, model: &Model) -> usize {
        self.below(model.sessions.len())
    }

    /// Mostly one that is open.
    fn session(&mut self, model: &Model) -> usize {
        let open: Vec<usize> = (0..model.sessions.len())
            .filter(|s| model.sessions[*s].open)
            .collect();
        let pick = if self.percent(93) {
            self.pick(&open)
        } else {
            None
        };
        pick.unwrap_or_else(|| self.any_session(model))
    }

    fn any_run(&mut self, model: &Model) -> usize {
        self.below(model.chains.len())
    }

    /// A run, or one that there is not.
    fn addressee(&mut self, model: &Model) -> usize {
        if self.percent(4) {
            NOBODY
        } else {
            self.any_run(model)
        }
    }

    fn result_key(&mut self) -> ResultKey {
        (self.kind(), self.kind())
    }

    fn effect(&mut self) -> u32 {
        self.effects += 1;
        self.effects
    }

    // ---- sessions, runs and mail ----

    fn open(&mut self, model: &Model) -> Option<Op> {
        (model.sessions.len() < SESSIONS_MAX).then_some(Op::Open)
    }

    fn beat(&mut self, model: &Model) -> Option<Op> {
        Some(Op::Beat(self.any_session(model)))
    }

    fn close(&mut self, model: &Model) -> Option<Op> {
        let session = self.any_session(model);
        let beat = match self.below(4) {
            0 => Some(model.sessions[session].beat + 1),
            1 => Some(model.sessions[session].beat),
            _ => None,
        };
        Some(Op::Close { session, beat })
    }

    fn start(&mut self, model: &Model) -> Option<Op> {
        let room = RUNS_MAX.saturating_sub(model.chains.len());
        let count = (1 + self.below(2)).min(room);
        // The function starts a batch in the order of the keys, those without one last.
        let mut starts: Vec<NewRun> = (0..count)
            .map(|_| NewRun {
                workflow: self.kind(),
                key: if self.percent(50) {
                    Some(self.kind())
                } else {
                    None
                },
                input: u8::from(self.percent(15)),
            })
            .collect();
        starts.sort_by_key(|s| s.key.map_or(u8::MAX, |k| k));
        (!starts.is_empty()).then_some(Op::Start(starts))
    }

    fn letters(&mut self, model: &Model) -> Vec<Letter> {
        let count = if self.percent(70) { 1 } else { 3 };
        (0..count)
            .map(|_| Letter {
                to: self.addressee(model),
                name: self.kind(),
                delivery: if self.percent(50) {
                    Some(self.kind())
                } else {
                    None
                },
            })
            .collect()
    }

    fn signal(&mut self, model: &Model) -> Option<Op> {
        Some(Op::Signal(self.letters(model)))
    }

    fn ingest(&mut self, model: &Model) -> Option<Op> {
        Some(Op::Ingest(self.letters(model)))
    }

    fn cancel(&mut self, model: &Model) -> Option<Op> {
        Some(Op::Cancel(self.addressee(model)))
    }

    // ---- leases ----

    fn claim(&mut self, model: &Model) -> Option<Op> {
        let session = self.session(model);
        let keys = if self.percent(85) {
            Keys::Version(1)
        } else {
            Keys::Version(2)
        };
        let timers_only = self.percent(10);
        let limit = [1, 2, ALL, ALL][self.below(4)];
        let (_, exact) = model.claimable(keys, limit, timers_only);
        let limit = if exact { limit } else { ALL };
        Some(Op::Claim {
            session,
            keys,
            limit,
            timers_only,
        })
    }

    fn read(&mut self, model: &Model) -> Option<Op> {
        let session = self.session(model);
        let runs = (0..model.chains.len()).collect();
        Some(Op::Read { session, runs })
    }

    /// A grant: mostly one that still holds, else any.
    fn grant(&mut self, model: &Model) -> Option<usize> {
        let holds = |g: &Grant| {
            let lease = model.chains[g.hold.run].lease.as_ref();
            lease.is_some_and(|l| l.owner == Some(g.session) && l.token == g.hold.token)
        };
        let all: Vec<usize> = (0..self.grants.len()).collect();
        let current: Vec<usize> = all
            .iter()
            .copied()
            .filter(|g| holds(&self.grants[*g]))
            .collect();
        let pick = if self.percent(80) {
            self.pick(&current)
        } else {
            None
        };
        pick.or_else(|| {
            if self.percent(40) {
                self.pick(&all)
            } else {
                None
            }
        })
    }

    /// The grant's session, or seldom another.
    fn session_of(&mut self, model: &Model, grant: usize) -> usize {
        let other = self.percent(4).then(|| self.any_session(model));
        other.unwrap_or(self.grants[grant].session)
    }

    fn release(&mut self, model: &Model) -> Option<Op> {
        let grant = self.grant(model)?;
        let session = self.session_of(model, grant);
        let mut leases = vec![self.grants[grant].hold];
        if self.percent(30) {
            let rest = self.grants.iter().rev().map(|g| g.hold);
            let second = rest.into_iter().find(|h| h.run != leases[0].run);
            leases.extend(second);
        }
        Some(Op::Release { session, leases })
    }

    fn block(&mut self, model: &Model) -> Option<Op> {
        let grant = self.grant(model)?;
        let session = self.session_of(model, grant);
        let hold = self.grants[grant].hold;
        let retry = [Retry::Never, Retry::AtOnce, Retry::InAnHour][self.below(3)];
        Some(Op::Block {
            session,
            hold,
            retry,
        })
    }

    // ---- appends ----

    fn append(&mut self, model: &Model) -> Option<Op> {
        let grant = self.grant(model)?;
        let session = self.session_of(model, grant);
        let mut grants = vec![grant];
        if self.percent(25) {
            let run = self.grants[grant].hold.run;
            let others = (0..self.grants.len()).rev();
            let neighbour = others
                .into_iter()
                .find(|g| self.grants[*g].session == session && self.grants[*g].hold.run != run);
            grants.extend(neighbour);
        }
        let parts = grants
            .into_iter()
            .map(|g| self.part(model, session, g))
            .collect();
        Some(Op::Append { session, parts })
    }

    fn part(&mut self, model: &Model, session: usize, grant: usize) -> Part {
        let Grant { hold, version, .. } = self.grants[grant];
        let next = model.chains[hold.run].history.len() + 1;
        let first = match self.below(20) {
            0 => next + 1,
            1 | 2 => (next - 1).max(1),
            _ => next,
        };
        let mut acts = Vec::new();
        if first == 1 {
            acts.push(Act::Begin(version));
        }
        for _ in 0..self.below(4) {
            let act = self.act(model, session, grant);
            acts.extend(act.filter(|new| !acts.iter().any(|old| touch_the_same(old, new))));
        }
        if acts.is_empty() {
            acts.push(Act::Step(self.effect()));
        }
        if self.percent(10) {
            let how = [How::Completed, How::Failed, How::Cancelled][self.below(3)];
            acts.push(Act::End { how, version });
        }
        Part {
            run: hold.run,
            token: hold.token,
            first,
            acts,
        }
    }

    fn act(&mut self, model: &Model, session: usize, grant: usize) -> Option<Act> {
        let run = self.grants[grant].hold.run;
        let chain = &model.chains[run];
        match self.below(12) {
            0..=2 => self.consume(model, grant),
            3 => Some(Act::SetTimer {
                effect: self.effect(),
                future: self.percent(50),
            }),
            4 => {
                let timers: Vec<u32> = chain.timers.keys().copied().collect();
                self.pick(&timers).map(Act::TimerFired)
            }
            5..=8 => Some(Act::Schedule {
                effect: self.effect(),
                name: self.kind(),
                max: u32::from(self.kind()),
                eager: self.percent(50),
            }),
            9 | 10 => self
                .done(model, Some((session, run)))
                .map(|(_, done)| Act::Complete(done)),
            _ => {
                let tasks: Vec<u32> = chain.tasks.keys().copied().collect();
                self.pick(&tasks).map(Act::Drop)
            }
        }
    }

    /// Mail that the grant's owner has seen, seldom such as is gone.
    fn consume(&mut self, model: &Model, grant: usize) -> Option<Act> {
        let Grant { hold, mail, .. } = &self.grants[grant];
        let lease = model.chains[hold.run].lease.as_ref();
        let is_there = |n: &usize| lease.is_some_and(|l| l.mail.iter().any(|m| m.number == *n));
        let fresh: Vec<usize> = mail.iter().copied().filter(is_there).collect();
        let known: Vec<usize> = self.grants.iter().flat_map(|g| g.mail.clone()).collect();
        let from = if self.percent(95) { fresh } else { known };
        let mail = self.pick(&from)?;
        Some(Act::Consume {
            mail,
            effect: self.effect(),
        })
    }

    /// The end of an activity, mostly of an attempt that is still current.
    fn done(&mut self, model: &Model, whose: Option<(usize, usize)>) -> Option<(usize, Done)> {
        let task = |t: &Try| model.chains[t.run].tasks.get(&t.effect);
        let known: Vec<(usize, Try)> = self
            .attempts
            .iter()
            .filter(|(session, t)| whose.is_none_or(|w| w == (*session, t.run)))
            .copied()
            .collect();
        let is_current = |(session, t): &(usize, Try)| {
            task(t).is_some_and(|now| now.owner == Some(*session) && now.attempt == t.attempt)
        };
        let current: Vec<(usize, Try)> = known.iter().copied().filter(is_current).collect();
        let from = if self.percent(80) { current } else { known };
        let (session, attempt) = self.pick(&from)?;
        let name = task(&attempt).map_or(0, |t| t.name);
        let key = self.percent(50).then(|| (name, self.kind()));
        Some((session, Done { attempt, key }))
    }

    /// An append whose answer was lost, or that a dead worker's last packet brings.
    fn repeat(&mut self, _: &Model) -> Option<Op> {
        let newest = self.appends.last().cloned();
        if self.percent(60) {
            newest
        } else {
            self.pick(&self.appends.clone())
        }
    }

    // ---- activities ----

    fn task_claim(&mut self, model: &Model) -> Option<Op> {
        let session = self.session(model);
        let names = if self.percent(70) {
            vec![0, 1]
        } else {
            vec![self.kind()]
        };
        let limit = if self.percent(40) { 1 } else { ALL };
        let (chosen, exact) = model.claimable_tasks(&names, limit);
        let limit = if exact { limit } else { ALL };
        (!chosen.is_empty() || self.percent(20)).then_some(Op::TaskClaim {
            session,
            names,
            limit,
        })
    }

    fn task_complete(&mut self, model: &Model) -> Option<Op> {
        let (session, done) = self.done(model, None)?;
        let second = self
            .done(model, None)
            .filter(|(_, d)| d.attempt != done.attempt);
        let mut all = vec![done];
        if self.percent(25) {
            all.extend(second.map(|(_, d)| d));
        }
        let session = if self.percent(4) {
            self.any_session(model)
        } else {
            session
        };
        Some(Op::TaskComplete { session, done: all })
    }

    fn task_retry(&mut self, model: &Model) -> Option<Op> {
        let (session, done) = self.done(model, None)?;
        let end = match model.sessions[session].open {
            true => [TryEnd::Failed, TryEnd::Failed, TryEnd::Released][self.below(3)],
            false => TryEnd::Unknown,
        };
        let later = self.percent(20);
        Some(Op::TaskRetry {
            session,
            attempt: done.attempt,
            end,
            later,
        })
    }

    // ---- the end ----

    /// Every worker dies, and one that comes after takes up and ends whatever is left. So every history ends with all
    /// that can be seen of its runs, and with nothing that is due.
    fn finale(&mut self, model: &Model) -> Option<Op> {
        while let Some((repeats, make)) = FINALE.get(self.step) {
            let op = make(self, model);
            if op.is_none() || !repeats {
                self.step += 1;
            }
            if op.is_some() {
                return op;
            }
        }
        None
    }

    fn close_next(&mut self, model: &Model) -> Option<Op> {
        let session = model.sessions.iter().position(|s| s.open)?;
        Some(Op::Close {
            session,
            beat: None,
        })
    }

    fn look_back(&mut self, model: &Model) -> Option<Op> {
        self.ended = (0..model.chains.len())
            .filter(|r| model.chains[*r].lease.is_none())
            .collect();
        None
    }

    fn signal_all(&mut self, model: &Model) -> Option<Op> {
        let letter = |to| Letter {
            to,
            name: 0,
            delivery: None,
        };
        Some(Op::Signal((0..model.chains.len()).map(letter).collect()))
    }

    /// Asks the next parked run to stop, which makes it due.
    fn free_next(&mut self, model: &Model) -> Option<Op> {
        let parked = model.chains.iter().position(|c| {
            let lease = c.lease.as_ref();
            lease.is_some_and(|l| l.blocked.is_some() && !l.is_due())
        });
        parked.map(Op::Cancel)
    }

    fn claim_all(&mut self, model: &Model) -> Option<Op> {
        let session = model.sessions.len() - 1;
        Some(Op::Claim {
            session,
            keys: Keys::All,
            limit: ALL,
            timers_only: false,
        })
    }

    fn end_all(&mut self, model: &Model) -> Option<Op> {
        let session = model.sessions.len() - 1;
        let held = self.grants.iter().filter(|g| g.session == session);
        let parts: Vec<Part> = held
            .map(|g| Part {
                run: g.hold.run,
                token: g.hold.token,
                first: model.chains[g.hold.run].history.len() + 1,
                acts: vec![Act::End {
                    how: How::Completed,
                    version: g.version,
                }],
            })
            .collect();
        (!parts.is_empty()).then_some(Op::Append { session, parts })
    }
}

/// The steps of the end; the first word says whether a step is repeated until it has nothing more to ask.
const FINALE: &[(bool, Make)] = &[
    (true, Script::close_next),
    (false, |_, _| Some(Op::Lost)),
    (false, |_, _| {
        Some(Op::Sweep {
            crash_limit: CRASH_LIMIT,
        })
    }),
    (false, Script::look_back),
    (true, |s, _| s.ended.pop().map(Op::History)),
    (false, |_, _| Some(Op::Open)),
    (false, Script::signal_all),
    (true, Script::free_next),
    (false, Script::claim_all),
    (false, Script::end_all),
    (false, |_, _| Some(Op::List)),
    (true, Script::close_next),
    (false, |_, _| Some(Op::Forget)),
];

/// Whether two events of one append concern the same mail, timer or activity.
fn touch_the_same(old: &Act, new: &Act) -> bool {
    match (old, new) {
        (Act::Consume { mail: a, .. }, Act::Consume { mail: b, .. }) => a == b,
        _ => subject(old).is_some() && subject(old) == subject(new),
    }
}

fn subject(act: &Act) -> Option<u32> {
    match act {
        Act::TimerFired(effect) | Act::Drop(effect) => Some(*effect),
        Act::Complete(done) => Some(done.attempt.effect),
        _ => None,
    }
}
