//! Requests to cancel, shields, and evictions, which must not look like drops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use continuum_schema::event::Event;
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::sim::{Sim, define, replay, ten_fold};
use crate::error::Cancelled;

#[test]
fn a_cancelled_run_frees_everything_in_effect_order_and_ends_as_cancelled() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let all = ctx
                .join_all((0..40).map(|i| ctx.activity(ten_fold, i)))
                .await;
            assert!(
                all.iter()
                    .all(|r| r.as_ref().is_err_and(|e| e.is_cancelled()))
            );
            ctx.sleep(Duration::from_secs(1)).await?;
            Ok(())
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.cancel();
    let events = sim.events();
    assert_eq!(
        events[41],
        Event::CancelRequested {
            reason: "enough".to_owned()
        }
    );
    let dropped: Vec<_> = events[42..82]
        .iter()
        .map(|event| match event {
            Event::Dropped { effect } => *effect,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(dropped, (1..=40).collect::<Vec<_>>());
    assert!(matches!(&events[82], Event::Cancelled { reason, .. } if reason == "enough"));
    assert_eq!(events.len(), 83, "the sleep was refused without a trace");
    sim.verify();
}

#[test]
fn a_cancel_wakes_in_effect_order() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let parts: FuturesUnordered<_> = (0..5_i64)
                .map(|i| async move {
                    // The last part issues its effect first.
                    for _ in i..4 {
                        ctx.shield(ctx.step("wait", || async { Ok(()) }))
                            .await
                            .unwrap();
                    }
                    ctx.sleep(Duration::from_secs(1)).await.unwrap_err();
                    i
                })
                .collect();
            Ok(parts.collect::<Vec<_>>().await)
        })
    });
    let mut sim = Sim::start_evicting(flow);
    while let Some(effect) = sim.open_step() {
        sim.complete(effect);
    }
    sim.cancel();
    assert_eq!(sim.result::<Vec<i64>>(), [4, 3, 2, 1, 0]);
    sim.verify();
}

#[test]
fn clean_up_runs_under_a_shield_and_a_shielded_effect_goes_on() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let kept = ctx.shield(ctx.activity(ten_fold, 1));
            let (kept, slept) = futures::join!(kept, ctx.sleep(Duration::from_secs(60)));
            assert_eq!(slept, Err(Cancelled));
            assert!(ctx.is_cancelled());
            let refund = ctx
                .shield(async {
                    let refund = ctx.activity(ten_fold, kept?).await?;
                    ctx.step("note", move || async move { Ok(refund) }).await
                })
                .await?;
            assert!(ctx.step("outside", || async { Ok(()) }).await.is_err());
            Ok(refund)
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.cancel();
    assert_eq!(sim.dropped, [2]);
    assert!(sim.execution.is_pending(1) && sim.execution.is_cancelled());
    sim.finish();
    assert_eq!(sim.result::<i64>(), 100);
    sim.verify();
}

#[test]
fn a_second_request_and_one_that_the_code_survives_change_nothing() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let waited = ctx.signal::<u8>("go").await;
            assert!(waited.is_err());
            Ok(ctx.shield(ctx.activity(ten_fold, 1)).await?)
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.cancel();
    let before = sim.journal.len();
    sim.cancel();
    assert_eq!(sim.journal.len(), before);
    sim.finish();
    assert_eq!(sim.result::<i64>(), 10);
    sim.verify();
}

#[test]
fn an_error_that_only_looks_cancelled_fails_a_run_that_nobody_cancelled() {
    let flow = define(|_| Box::pin(async move { Err::<(), _>(Cancelled.into()) }));
    let sim = Sim::start(flow);
    assert!(matches!(sim.events()[1], Event::Failed { .. }));
    sim.verify();
}

#[test]
fn a_cancelled_run_that_fails_otherwise_has_failed() {
    let flow = define(|ctx| {
        Box::pin(async move {
            ctx.sleep(Duration::from_secs(1)).await.unwrap_err();
            Err::<(), _>("the clean-up failed".into())
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.cancel();
    let events = sim.events();
    assert!(matches!(events.last(), Some(Event::Failed { .. })));
    sim.verify();
}

#[test]
fn a_cancel_reaches_a_timeout_and_what_it_holds() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let inner = async {
                let call = ctx.activity(ten_fold, 1).await;
                assert!(call.is_err());
                ctx.shield(ctx.step("undo", || async { Ok(5) })).await
            };
            // The timer is cancelled too, and the clean-up with it: a shield belongs around the timeout.
            let timed = ctx.timeout(Duration::from_secs(5), inner).await;
            assert!(timed.is_err());
            let undo = async { ctx.step("undo", || async { Ok(5) }).await };
            let shielded = ctx
                .shield(ctx.timeout(Duration::from_secs(5), undo))
                .await?;
            Ok(shielded.transpose()?)
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.cancel();
    sim.finish();
    assert_eq!(sim.result::<Option<i32>>(), Some(5));
    sim.verify();
}

#[test]
fn an_eviction_runs_destructors_and_journals_nothing() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            assert!(
                std::thread::panicking(),
                "a destructor that panics is contained"
            );
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&drops);
    let flow = define(move |ctx| {
        let counter = Arc::clone(&counter);
        Box::pin(async move {
            let _counted = Counted(counter);
            let parts = (0..40).map(|i| ctx.activity(ten_fold, i));
            ctx.timeout(Duration::from_secs(1), ctx.join_all(parts))
                .await?;
            Ok(())
        })
    });
    let sim = Sim::start(flow.clone());
    let journal = sim.journal.clone();
    drop(sim);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    let execution = replay(&flow, &journal).unwrap();
    assert_eq!(execution.pending_count(), 41);
}
