//! Random workflow programs, run live in random order: whatever they did, a replay does it again.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use continuum_schema::EffectId;
use continuum_schema::event::Event;
use futures::future::{BoxFuture, Either, FusedFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use proptest::prelude::*;

use super::sim::{Sim, define, replay, ten_fold};
use crate::WorkflowContext;
use crate::workflow::WorkflowDefinition;

/// A program of a few shapes; every value that it computes and the order in which it does are part of its result.
#[derive(Clone, Debug)]
enum Op {
    Step(i64),
    /// Below zero it fails.
    Activity(i64),
    Timer(u8),
    Signal(u8),
    Random,
    Yield(u8),
    Sequence(Vec<Op>),
    JoinAll(Vec<Op>),
    Unordered(Vec<Op>),
    Bounded(usize, Vec<Op>),
    Race(Box<Op>, Box<Op>),
    Timeout(u8, Box<Op>),
    Shield(Box<Op>),
    /// Starts an activity, runs the program, then awaits the activity.
    Started(i64, Box<Op>),
    /// Races two steps by reference until both are done.
    Both(i64, i64),
    /// Polls the program once and drops it.
    Dropped(Box<Op>),
    /// Polls the program once with a waker that wakes nobody, then awaits it.
    Peeked(Box<Op>),
}

/// Ready at its second poll so many times over.
struct Yields(u8);

impl Future for Yields {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 == 0 {
            return Poll::Ready(());
        }
        self.0 -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Where the interpreter notes each value as it comes.
type Log = Mutex<Vec<i64>>;

fn run<'a>(ctx: &'a WorkflowContext, op: &'a Op, log: &'a Log) -> BoxFuture<'a, i64> {
    Box::pin(async move {
        let value = evaluate(ctx, op, log).await;
        log.lock().unwrap().push(value);
        value
    })
}

async fn evaluate(ctx: &WorkflowContext, op: &Op, log: &Log) -> i64 {
    match op {
        Op::Step(n) => step(ctx, *n).await,
        Op::Activity(n) => ctx.activity(ten_fold, *n).await.unwrap_or(-1),
        Op::Timer(n) => match ctx.sleep(Duration::from_secs(u64::from(*n))).await {
            Ok(()) => ctx.now().unix_timestamp(),
            Err(_) => -2,
        },
        Op::Signal(n) => {
            let name = ["red", "green", "blue"][usize::from(*n) % 3];
            ctx.signal(name).await.unwrap_or(-3)
        }
        Op::Random => i64::from_ne_bytes(ctx.random().to_ne_bytes()),
        Op::Yield(n) => {
            Yields(*n).await;
            i64::from(*n)
        }
        Op::Sequence(ops) => {
            let mut sum = 0_i64;
            for op in ops {
                sum = sum.wrapping_mul(31).wrapping_add(run(ctx, op, log).await);
            }
            sum
        }
        Op::JoinAll(ops) => sum(ctx.join_all(ops.iter().map(|op| run(ctx, op, log))).await),
        Op::Unordered(ops) => {
            let parts: FuturesUnordered<_> = ops.iter().map(|op| run(ctx, op, log)).collect();
            sum(parts.collect::<Vec<_>>().await)
        }
        Op::Bounded(limit, ops) => {
            let parts: Vec<_> = ops.iter().map(|op| run(ctx, op, log)).collect();
            let stream = futures::stream::iter(parts).buffer_unordered(*limit);
            sum(stream.collect::<Vec<_>>().await)
        }
        Op::Race(a, b) => match ctx.race(run(ctx, a, log), run(ctx, b, log)).await {
            Either::Left(value) => value.wrapping_mul(2),
            Either::Right(value) => value.wrapping_mul(3),
        },
        Op::Timeout(n, op) => {
            let limit = Duration::from_secs(u64::from(*n));
            match ctx.timeout(limit, run(ctx, op, log)).await {
                Ok(Some(value)) => value,
                Ok(None) => -4,
                Err(_) => -5,
            }
        }
        Op::Shield(op) => ctx.shield(run(ctx, op, log)).await,
        Op::Started(n, op) => {
            let started = ctx.activity(ten_fold, *n).start();
            let value = run(ctx, op, log).await;
            value.wrapping_sub(started.await.unwrap_or(-1))
        }
        Op::Both(a, b) => both(ctx, *a, *b).await,
        Op::Dropped(op) => {
            let polled = run(ctx, op, log).now_or_never();
            polled.unwrap_or(-6)
        }
        Op::Peeked(op) => {
            let mut future = run(ctx, op, log);
            match (&mut future).now_or_never() {
                Some(value) => value,
                None => future.await,
            }
        }
    }
}

async fn step(ctx: &WorkflowContext, n: i64) -> i64 {
    ctx.step("step", move || async move { Ok(n) })
        .await
        .unwrap_or(-7)
}

async fn both(ctx: &WorkflowContext, a: i64, b: i64) -> i64 {
    let mut a = ctx.step("a", move || async move { Ok(a) });
    let mut b = ctx.step("b", move || async move { Ok(b) });
    let mut value = 1_i64;
    while !(a.is_terminated() && b.is_terminated()) {
        let next = futures::select_biased! { x = a => x, x = b => x };
        value = value.wrapping_mul(31).wrapping_add(next.unwrap_or(-8));
    }
    value
}

fn sum(values: Vec<i64>) -> i64 {
    let mix = |sum: i64, value| sum.wrapping_mul(31).wrapping_add(value);
    values.into_iter().fold(7, mix)
}

fn program(op: Op) -> WorkflowDefinition {
    let op = Arc::new(op);
    define(move |ctx| {
        let op = Arc::clone(&op);
        Box::pin(async move {
            let log = Log::default();
            let value = run(ctx, &op, &log).await;
            Ok((value, log.into_inner()?))
        })
    })
}

fn ops() -> impl Strategy<Value = Op> {
    let leaf = prop_oneof![
        (0..50_i64).prop_map(Op::Step),
        (-5..50_i64).prop_map(Op::Activity),
        any::<u8>().prop_map(Op::Timer),
        (0..3_u8).prop_map(Op::Signal),
        Just(Op::Random),
        (0..5_u8).prop_map(Op::Yield),
        (0..9_i64, 0..9_i64).prop_map(|(a, b)| Op::Both(a, b)),
    ];
    leaf.prop_recursive(4, 60, 8, |inner| {
        let many = prop::collection::vec(inner.clone(), 0..8);
        let one = inner.prop_map(Box::new);
        prop_oneof![
            many.clone().prop_map(Op::Sequence),
            many.clone().prop_map(Op::JoinAll),
            many.clone().prop_map(Op::Unordered),
            (1..4_usize, many).prop_map(|(limit, ops)| Op::Bounded(limit, ops)),
            (one.clone(), one.clone()).prop_map(|(a, b)| Op::Race(a, b)),
            (any::<u8>(), one.clone()).prop_map(|(n, op)| Op::Timeout(n, op)),
            one.clone().prop_map(Op::Shield),
            (0..9_i64, one.clone()).prop_map(|(n, op)| Op::Started(n, op)),
            one.clone().prop_map(Op::Dropped),
            one.prop_map(Op::Peeked),
        ]
    })
}

/// In which order the effects of a run end, and before which of them it is cancelled.
#[derive(Clone, Debug)]
struct Order {
    picks: Vec<prop::sample::Index>,
    cancel_at: Option<usize>,
    /// In which turns the worker dies before the append, and is followed by another.
    lost: Vec<bool>,
}

fn orders() -> impl Strategy<Value = Order> {
    let picks = prop::collection::vec(any::<prop::sample::Index>(), 64);
    let cancel_at = prop::option::weighted(0.3, 0..12_usize);
    let lost = prop::collection::vec(prop::bool::weighted(0.3), 64);
    (picks, cancel_at, lost).prop_map(|(picks, cancel_at, lost)| Order {
        picks,
        cancel_at,
        lost,
    })
}

fn finish(sim: &mut Sim, order: &Order) {
    drive(sim, order, |_, _, _| {});
}

/// Like [`finish`], under workers that die in the turns that `order` names.
fn finish_through_crashes(sim: &mut Sim, order: &Order) {
    drive(sim, order, |sim, turn, effect| {
        if order.lost[turn % order.lost.len()] {
            sim.lose_turn(effect);
        }
    });
}

fn drive(sim: &mut Sim, order: &Order, before: impl Fn(&mut Sim, usize, EffectId)) {
    let picks = order.picks.iter().cycle();
    for (turn, pick) in picks.enumerate() {
        if order.cancel_at == Some(turn) {
            sim.cancel();
        }
        if sim.execution.is_ended() {
            return;
        }
        let open: Vec<_> = sim.open.keys().copied().collect();
        let effect = *pick.get(&open);
        before(sim, turn, effect);
        sim.complete(effect);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    /// The live history replays one event at a time to the same end, and an engine that is evicted and replayed after
    /// each turn writes the very same history.
    #[test]
    fn every_live_history_replays(op in ops(), order in orders()) {
        let flow = program(op);
        let mut resident = Sim::start(flow.clone());
        finish(&mut resident, &order);
        resident.verify();
        let mut evicted = Sim::start_evicting(flow);
        finish(&mut evicted, &order);
        prop_assert_eq!(evicted.journal, resident.journal);
    }

    /// A worker that dies in the middle of a turn, before its append, leaves no trace: its followers write the history
    /// that it would have written, whether they hold the run for one turn or for many.
    #[test]
    fn a_turn_that_was_lost_is_taken_again_to_the_same_end(op in ops(), order in orders()) {
        let flow = program(op);
        let mut undisturbed = Sim::start(flow.clone());
        finish(&mut undisturbed, &order);
        for start in [Sim::start, Sim::start_evicting] {
            let mut killed = start(flow.clone());
            finish_through_crashes(&mut killed, &order);
            killed.verify();
            prop_assert_eq!(&killed.journal, &undisturbed.journal);
        }
    }

    /// A history that was tampered with is refused or taken, but never panics and never hangs.
    #[test]
    fn a_tampered_history_is_survived(
        op in ops(),
        order in orders(),
        at in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
        swap in any::<bool>(),
    ) {
        let flow = program(op);
        let mut sim = Sim::start(flow.clone());
        finish(&mut sim, &order);
        let mut journal = sim.journal.clone();
        let (at, other) = (at.index(journal.len()), other.index(journal.len()));
        if swap {
            journal.swap(at, other);
        } else {
            journal.remove(at);
        }
        let outcome = replay(&flow, &journal);
        if journal != sim.journal {
            let begins = matches!(journal.first(), Some((_, Event::Started { .. })));
            prop_assert!(begins || outcome.is_err() || journal.is_empty());
        }
    }

    /// Another program either drifts or does the same things.
    #[test]
    fn another_program_never_panics(op in ops(), changed in ops(), order in orders()) {
        let mut sim = Sim::start(program(op));
        finish(&mut sim, &order);
        if let Ok(execution) = replay(&program(changed), &sim.journal) {
            prop_assert!(execution.is_ended());
        }
    }
}
