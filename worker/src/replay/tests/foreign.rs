//! Code that waits for what the journal doesn't know, spins, or panics: nothing of such a turn is kept.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use continuum_schema::Payload;
use continuum_schema::event::Outcome;
use futures::FutureExt;

use super::sim::{Sim, define, info, replay, ten_fold, value};
use crate::replay::{Blocked, Completion, Execution};
use crate::workflow::WorkflowDefinition;

/// Wakes itself so many times before it is ready.
struct Yields(u32);

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

/// The block of a run whose very first turn fails.
fn blocked(flow: WorkflowDefinition) -> Blocked {
    Sim::try_start(flow, false).err().expect("a block")
}

#[test]
fn a_wait_for_nothing_of_the_context_is_foreign() {
    let pending = define(|_| Box::pin(async move { Ok(std::future::pending::<u8>().await) }));
    assert!(matches!(blocked(pending), Blocked::Foreign(m) if m.contains("for nothing")));

    // Also once the last effect is done.
    let later = define(|ctx| {
        Box::pin(async move {
            let (call, ()) = futures::join!(ctx.activity(ten_fold, 1), std::future::pending());
            Ok(call?)
        })
    });
    let mut sim = Sim::start(later);
    let before = sim.journal.len();
    let completion = Completion::Activity {
        effect: 1,
        attempt: 1,
        outcome: Outcome::Ok(value(1)),
    };
    let error = sim.deliver(completion).unwrap_err();
    assert!(matches!(error, Blocked::Foreign(_)));
    assert_eq!(sim.journal.len(), before);
}

#[test]
fn a_wake_from_outside_blocks_even_while_effects_are_outstanding() {
    let (send, receive) = tokio::sync::oneshot::channel::<()>();
    let receive = std::sync::Mutex::new(Some(receive));
    let flow = define(move |ctx| {
        let receive = receive.lock().unwrap().take().unwrap();
        Box::pin(async move {
            let sleep = ctx.sleep(Duration::from_secs(1));
            ctx.race(receive, sleep).await;
            Ok(ctx.activity(ten_fold, 1).await?)
        })
    });
    let mut sim = Sim::start(flow);
    send.send(()).unwrap();
    // The timer's own wake is foreign no more than before, but the flag is looked at before the poll: the foreign
    // winner is never seen by the code.
    let error = sim.deliver(Completion::Timer { effect: 1 }).unwrap_err();
    assert!(matches!(error, Blocked::Foreign(m) if m.contains("woken by something outside")));
    assert_eq!(sim.names(), ["started", "timer_started"]);
}

#[test]
fn a_context_used_on_another_thread_is_foreign_there_and_here() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let drawn = std::thread::scope(|scope| scope.spawn(|| ctx.random()).join());
            assert!(drawn.is_err());
            let polled = std::thread::scope(|scope| {
                scope
                    .spawn(|| ctx.sleep(Duration::ZERO).now_or_never())
                    .join()
            });
            assert!(polled.is_err());
            Ok(())
        })
    });
    assert!(matches!(blocked(flow), Blocked::Foreign(m) if m.contains("outside its run")));
}

#[test]
fn yields_are_polls_and_an_endless_one_is_a_livelock() {
    let flow = |yields| {
        define(move |ctx| {
            Box::pin(async move {
                Yields(yields).await;
                let value = ctx.activity(ten_fold, 1).await?;
                Yields(yields).await;
                Ok(value)
            })
        })
    };
    let mut sim = Sim::start_evicting(flow(1_000));
    sim.finish();
    assert_eq!(sim.result::<i64>(), 10);
    sim.verify();
    assert!(matches!(blocked(flow(u32::MAX)), Blocked::Livelock { .. }));
}

/// How often the code is polled is part of the replay: a join that rotates its start would tell.
#[test]
fn the_code_is_polled_only_when_it_was_woken() {
    let polls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&polls);
    let flow = define(move |ctx| {
        let polls = Arc::clone(&counter);
        Box::pin(async move {
            let _started = ctx.activity(ten_fold, 1).start();
            let mut sleep = ctx.sleep(Duration::from_secs(1));
            std::future::poll_fn(|cx| {
                polls.fetch_add(1, Ordering::Relaxed);
                Pin::new(&mut sleep).poll(cx)
            })
            .await?;
            Ok(())
        })
    });
    let mut sim = Sim::start(flow);
    assert_eq!(polls.load(Ordering::Relaxed), 1);
    sim.complete(1);
    assert_eq!(
        polls.load(Ordering::Relaxed),
        1,
        "nobody awaits the activity"
    );
    sim.complete(2);
    assert_eq!(polls.load(Ordering::Relaxed), 2);
    sim.verify();
    assert_eq!(polls.load(Ordering::Relaxed), 4);
}

#[test]
fn a_panic_blocks_with_its_text_and_keeps_the_history() {
    let flow = |broken: bool| {
        define(move |ctx| {
            Box::pin(async move {
                let value = ctx.activity(ten_fold, 1).await?;
                assert!(!broken, "broken build {value}");
                Ok(value)
            })
        })
    };
    let mut sim = Sim::start(flow(true));
    let completion = Completion::Activity {
        effect: 1,
        attempt: 1,
        outcome: Outcome::Ok(value(10)),
    };
    let error = sim.deliver(completion).unwrap_err();
    assert_eq!(error, Blocked::Panicked("broken build 10".to_owned()));
    let mut fixed = replay(&flow(false), &sim.journal).unwrap();
    let turn = fixed.go_live(sim.clock).unwrap();
    assert!(turn.events.is_empty() && fixed.is_pending(1));
}

#[test]
fn a_panic_before_the_first_await_is_contained() {
    let flow = define::<(), _>(|_| panic!("at once"));
    assert_eq!(blocked(flow), Blocked::Panicked("at once".to_owned()));
}

#[test]
fn an_authors_catch_unwind_swallows_no_flag() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let mut step = ctx.step("s", || async { Ok(1) });
            let first = (&mut step).await?;
            // Polled again after its end: it panics, the author catches, and the turn is lost all the same.
            let again = AssertUnwindSafe(&mut step).catch_unwind().await;
            assert!(again.is_err());
            ctx.activity(ten_fold, first).await?;
            Ok(())
        })
    });
    let mut sim = Sim::start(flow);
    let completion = Completion::Step {
        effect: 1,
        outcome: Outcome::Ok(value(1)),
    };
    let error = sim.deliver(completion).unwrap_err();
    assert!(matches!(error, Blocked::Panicked(m) if m.contains("step \"s\" was polled again")));
    assert!(sim.journal.is_empty());
}

#[test]
fn an_authors_own_panic_that_is_caught_is_the_authors_business() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let part = async {
                ctx.shield(async {
                    ctx.step("s", || async { Ok(()) }).await.unwrap();
                    panic!("mine")
                })
                .await
            };
            let caught = AssertUnwindSafe(part).catch_unwind().await.is_err();
            assert!(caught);
            // The shield went down with the panic.
            Ok(ctx.sleep(Duration::from_secs(1)).await.is_err())
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.complete(1);
    sim.cancel();
    assert!(sim.result::<bool>());
    sim.verify();
}

#[test]
fn an_execution_moves_between_threads() {
    let flow = define(|ctx| Box::pin(async move { Ok(ctx.activity(ten_fold, 1).await?) }));
    let mut execution = Execution::new(&flow, info(), Payload::unit());
    let turn = std::thread::scope(|scope| {
        let turn = scope.spawn(|| execution.go_live(0)).join().unwrap();
        turn.unwrap()
    });
    assert_eq!(turn.events.len(), 1);
    let ended = std::thread::spawn(move || {
        let completion = Completion::Activity {
            effect: 1,
            attempt: 1,
            outcome: Outcome::Ok(value(1)),
        };
        execution.deliver(1, completion).unwrap().ended
    });
    assert!(ended.join().unwrap());
}
