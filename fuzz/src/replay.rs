//! Replay, fed with histories that are right, damaged or made up.

use std::time::Duration;

use continuum_schema::event::{
    ActivityOptions, ActivityScheduled, Event, Failure, Outcome, RetryPolicy, Unread,
};
use continuum_schema::{EffectId, Payload, Seq};
use continuum_worker::replay::{Blocked, Completion, EffectKind, Execution, RunInfo};
use continuum_worker::{
    ActivityContext, ActivityError, Either, WorkflowContext, WorkflowDefinition, WorkflowError,
    activity, workflow,
};

/// The longest program, in instructions, and the most completions of one input.
const LENGTH_MAX: usize = 48;

/// A second, in the unit of the journal's times.
const SECOND: i64 = 1_000_000;

/// When every run here is created.
const CREATED_AT: i64 = 1_796_000_000 * SECOND;

#[activity]
async fn work(_ctx: ActivityContext, input: u8) -> Result<u8, ActivityError> {
    Ok(input)
}

/// Runs a program: each byte of its input is an instruction.
#[workflow(version = 1)]
async fn interpreter(ctx: &WorkflowContext, program: Vec<u8>) -> Result<u64, WorkflowError> {
    let mut sum = 0_u64;
    for instruction in program {
        let n = instruction / 12;
        let after = Duration::from_secs(u64::from(n));
        let value = match instruction % 12 {
            0 => ctx.step("step", move || async move { Ok(n) }).await.ok(),
            1 => ctx.activity(work, n).await.ok(),
            2 => ctx.sleep(after).await.ok().map(|()| n),
            3 => ctx.signal::<u8>("red").await.ok(),
            4 => ctx.signal::<u8>("blue").timeout(after).await.ok().flatten(),
            5 => match ctx.race(ctx.activity(work, n), ctx.sleep(after)).await {
                Either::Left(worked) => worked.ok(),
                Either::Right(_) => None,
            },
            6 => {
                let parts = (0..n % 4).map(|part| ctx.activity(work, part));
                let done = ctx.join_all(parts).await;
                done.into_iter().filter_map(Result::ok).max()
            }
            7 => {
                let started = ctx.activity(work, n).start();
                let stepped = ctx.step("other", move || async move { Ok(n) }).await;
                started.await.or(stepped).ok()
            }
            8 => {
                let abandoned = ctx.activity(work, n).start();
                drop(abandoned);
                None
            }
            9 => ctx.shield(ctx.activity(work, n)).await.ok(),
            10 => Some(u8::from(ctx.is_cancelled())),
            _ if n > 18 => return Err(WorkflowError::new("Odd", "the program says so")),
            _ => Some(ctx.random().to_le_bytes()[0]),
        };
        let value = value.map_or(251, u64::from);
        sum = sum.wrapping_mul(31).wrapping_add(value);
    }
    Ok(sum)
}

/// The first byte says what is done, the second how long the program is; the program follows, then the choices.
///
/// A run that lives through any completions replays from its journal and comes to the same place. A journal with
/// another event in it, and one that is made up, either replay or block the run, for good, and never panic.
pub fn replay(data: &[u8]) {
    let mut choices = Choices(data);
    let task = choices.next() % 3;
    let length = usize::from(choices.next()) % LENGTH_MAX;
    let program = choices.take(length);
    match task {
        0 => drop(live(&program, &mut choices)),
        1 => {
            let mut journal = live(&program, &mut choices);
            damage(&mut journal, &mut choices);
            feed(&program, &journal, &mut choices);
        }
        _ => {
            let count = usize::from(choices.next()) % LENGTH_MAX;
            let mut journal = vec![(CREATED_AT, started())];
            journal.extend((0..count).map(|_| (CREATED_AT, event(&mut choices))));
            feed(&program, &journal, &mut choices);
        }
    }
}

/// An event and the time at which it was appended.
type Row = (i64, Event);

/// The bytes of an input, one decision each; zeros when they are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn next(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next()).collect()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Lives through the completions that are chosen, and holds the replay of the journal against what was lived.
fn live(program: &[u8], choices: &mut Choices<'_>) -> Vec<Row> {
    let mut lived = execution(program);
    let mut clock = CREATED_AT;
    let mut journal = vec![(clock, started())];
    let turn = lived.go_live(clock).expect("the first turn is sound");
    journal.extend(turn.events.into_iter().map(|event| (clock, event)));
    for _ in 0..LENGTH_MAX {
        if choices.is_empty() || lived.is_ended() {
            break;
        }
        clock += SECOND;
        let completion = completion(&lived, choices);
        match lived.deliver(clock, completion) {
            Ok(turn) => journal.extend(turn.events.into_iter().map(|event| (clock, event))),
            Err(Blocked::Undecodable { .. }) => {
                // The turn never happened; the journal up to here stands.
                replay_whole(program, &journal, clock);
                return journal;
            }
            Err(other) => panic!("a sound program is blocked: {other}"),
        }
    }
    let again = replay_whole(program, &journal, clock);
    assert_eq!(again.is_ended(), lived.is_ended());
    assert_eq!(again.is_cancelled(), lived.is_cancelled());
    assert_eq!(again.waiting_signals(), lived.waiting_signals());
    assert_eq!(again.next_timer(), lived.next_timer());
    assert_eq!(again.pending(), lived.pending());
    journal
}

/// Replays a journal that the same program wrote.
fn replay_whole(program: &[u8], journal: &[Row], clock: i64) -> Execution {
    let mut again = execution(program);
    replay_all(&mut again, journal).expect("a journal replays with the code that wrote it");
    let turn = again.go_live(clock).expect("a journal is complete");
    assert_eq!(turn.events, [], "a replay issues nothing new");
    assert_eq!(turn.ended, again.is_ended());
    again
}

/// Replays any journal, and lives on if that goes well.
fn feed(program: &[u8], journal: &[Row], choices: &mut Choices<'_>) {
    let mut execution = execution(program);
    if let Err(blocked) = replay_all(&mut execution, journal) {
        let told = execution.go_live(CREATED_AT).expect_err("it is blocked");
        assert_eq!(told.to_string(), blocked.to_string(), "it stays blocked");
        return;
    }
    if execution.go_live(CREATED_AT).is_err() {
        return;
    }
    for _ in 0..LENGTH_MAX {
        if choices.is_empty() {
            break;
        }
        let completion = completion(&execution, choices);
        if let Err(blocked) = execution.deliver(CREATED_AT, completion) {
            assert!(!blocked.to_string().is_empty());
        }
    }
}

fn replay_all(execution: &mut Execution, journal: &[Row]) -> Result<(), Blocked> {
    (1..)
        .zip(journal)
        .try_for_each(|(seq, (at, event))| execution.replay(Seq::from(seq), *at, event))
}

fn execution(program: &[u8]) -> Execution {
    let definition = WorkflowDefinition::of::<interpreter>();
    let run_id = super::signal::RUN;
    let info = RunInfo {
        run_id,
        chain_id: run_id,
        workflow: definition.name().to_owned(),
        version: definition.version(),
        hash: definition.hash().to_owned(),
        key: None,
        namespace: "default".to_owned(),
        created_at: CREATED_AT,
    };
    Execution::new(&definition, info, value(program))
}

/// Puts another event in the place of one, doubles one, takes one away, or swaps two.
fn damage(journal: &mut Vec<Row>, choices: &mut Choices<'_>) {
    let at = usize::from(choices.next()) % journal.len();
    match choices.next() % 4 {
        0 => journal[at].1 = event(choices),
        1 => journal.insert(at, journal[at].clone()),
        2 => drop(journal.remove(at)),
        _ => {
            let other = usize::from(choices.next()) % journal.len();
            journal.swap(at, other);
        }
    }
}

/// Mostly what the code waits for, at times what it does not.
fn completion(execution: &Execution, choices: &mut Choices<'_>) -> Completion {
    let pending = execution.pending();
    let choice = choices.next();
    let chosen = match pending.len() {
        0 => None,
        count => pending.get(usize::from(choice) % count),
    };
    let (effect, kind, name) = match chosen {
        Some(chosen) if choice < 200 => (chosen.effect, chosen.kind, chosen.name.clone()),
        _ if choice < 220 => {
            let reason = "enough".to_owned();
            return Completion::Cancel { reason };
        }
        _ => {
            let kinds = [
                EffectKind::Activity,
                EffectKind::Step,
                EffectKind::Timer,
                EffectKind::Signal,
            ];
            let kind = kinds[usize::from(choices.next()) % kinds.len()];
            (effect(choices), kind, Some(name(choices)))
        }
    };
    match kind {
        EffectKind::Activity => Completion::Activity {
            effect,
            attempt: u32::from(choices.next()),
            outcome: outcome(choices),
        },
        EffectKind::Step => Completion::Step {
            effect,
            outcome: outcome(choices),
        },
        EffectKind::Timer => Completion::Timer { effect },
        EffectKind::Signal => Completion::Signal {
            effect,
            name: name.unwrap_or_default(),
            payload: payload(choices),
            delivery_id: None,
        },
    }
}

fn started() -> Event {
    let definition = WorkflowDefinition::of::<interpreter>();
    Event::Started {
        version: definition.version(),
        hash: definition.hash().to_owned(),
    }
}

fn event(choices: &mut Choices<'_>) -> Event {
    match choices.next() % 12 {
        0 => started(),
        1 => Event::ActivityScheduled(ActivityScheduled {
            effect: effect(choices),
            name: name(choices),
            input: payload(choices),
            options: ActivityOptions {
                queue: "default".to_owned(),
                retry: RetryPolicy::default(),
                timeout_ms: 1_000,
                idempotency_key: None,
            },
        }),
        2 => Event::ActivityCompleted {
            effect: effect(choices),
            attempt: 1,
            outcome: outcome(choices),
        },
        3 => Event::StepCompleted {
            effect: effect(choices),
            name: name(choices),
            outcome: outcome(choices),
        },
        4 => Event::TimerStarted {
            effect: effect(choices),
            fire_at: time(choices),
        },
        5 => Event::TimerFired {
            effect: effect(choices),
        },
        6 => Event::SignalReceived {
            effect: effect(choices),
            name: name(choices),
            payload: payload(choices),
            delivery_id: None,
        },
        7 => Event::CancelRequested {
            reason: name(choices),
        },
        8 => Event::Dropped {
            effect: effect(choices),
        },
        9 => Event::Completed {
            result: payload(choices),
            unread: unread(),
        },
        10 => Event::Failed {
            failure: failure(choices),
            unread: unread(),
        },
        _ => Event::Cancelled {
            reason: name(choices),
            unread: unread(),
        },
    }
}

fn effect(choices: &mut Choices<'_>) -> EffectId {
    match choices.next() {
        255 => EffectId::MAX,
        small => EffectId::from(small % 16),
    }
}

fn time(choices: &mut Choices<'_>) -> i64 {
    match choices.next() {
        254 => i64::MIN,
        255 => i64::MAX,
        seconds => CREATED_AT + i64::from(seconds) * SECOND,
    }
}

fn name(choices: &mut Choices<'_>) -> String {
    let names = ["step", "other", "work", "red", "blue", ""];
    names[usize::from(choices.next()) % names.len()].to_owned()
}

fn outcome(choices: &mut Choices<'_>) -> Outcome {
    match choices.next() % 4 {
        0 => Outcome::Err(failure(choices)),
        _ => Outcome::Ok(payload(choices)),
    }
}

fn failure(choices: &mut Choices<'_>) -> Failure {
    let kinds = ["Odd", "Terminated", "Panicked", "Cancelled", "TimedOut", ""];
    Failure {
        kind: kinds[usize::from(choices.next()) % kinds.len()].to_owned(),
        message: "the program says so".to_owned(),
        retryable: false,
        details: None,
        causes: Vec::new(),
    }
}

fn payload(choices: &mut Choices<'_>) -> Payload {
    match choices.next() {
        small @ 0..200 => value(&(small % 32)),
        200..210 => Payload::unit(),
        210..220 => value("text"),
        220..230 => Payload::from_bytes(Vec::new()),
        230..240 => Payload::from_bytes(vec![9]),
        240..250 => Payload::from_bytes([vec![1], vec![0x91; 120], vec![0xc0]].concat()),
        _ => Payload::from_bytes(b"\x02{".to_vec()),
    }
}

fn unread() -> Vec<Unread> {
    vec![Unread {
        name: "red".to_owned(),
        delivery_id: None,
    }]
}

fn value<T: serde::Serialize + ?Sized>(value: &T) -> Payload {
    Payload::encode(value).expect("bytes, numbers and text have an encoding")
}

/// Some choices, for seeds.
pub(super) fn input(task: u8, program: &[u8], choices: &[u8]) -> Vec<u8> {
    let length = u8::try_from(program.len()).expect("seeds are short");
    [&[task, length], program, choices].concat()
}
