//! Joins and streams of many effects, whose children are polled through wakers of their own.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;

use super::sim::{Sim, define, ten_fold};
use crate::workflow::WorkflowDefinition;

/// Completes the open effects in an order that a small generator shuffles, one by one, until the run is over.
fn finish_shuffled(sim: &mut Sim, seed: u64) {
    let mut state = seed | 1;
    while !sim.execution.is_ended() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let open: Vec<_> = sim.open.keys().copied().collect();
        let index = usize::try_from(state >> 33).unwrap() % open.len();
        sim.complete(open[index]);
    }
}

/// Completes everything that is open, newest first, for joins that are too large to list again and again.
fn finish_backwards(sim: &mut Sim) {
    while let Some((&effect, _)) = sim.open.last_key_value() {
        sim.complete(effect);
    }
}

fn join_of_futures(n: i64) -> WorkflowDefinition {
    define(move |ctx| {
        Box::pin(async move {
            let calls = (0..n).map(|i| ctx.activity(ten_fold, i));
            let all = futures::future::join_all(calls).await;
            Ok(all.into_iter().collect::<Result<Vec<_>, _>>()?)
        })
    })
}

fn join_of_context(n: i64) -> WorkflowDefinition {
    define(move |ctx| {
        Box::pin(async move {
            let calls = (0..n).map(|i| async move {
                let first = ctx.activity(ten_fold, i).await?;
                ctx.step("follow", move || async move { Ok(first) }).await
            });
            let all = ctx.join_all(calls).await;
            Ok(all.into_iter().collect::<Result<Vec<_>, _>>()?)
        })
    })
}

#[test]
fn joins_of_any_size_come_to_their_end_and_replay() {
    for n in [0, 1, 3, 30, 31, 1_024, 5_000] {
        for flow in [join_of_futures(n), join_of_context(n)] {
            let mut sim = Sim::start(flow);
            finish_backwards(&mut sim);
            assert_eq!(
                sim.result::<Vec<i64>>(),
                (0..n).map(|i| i * 10).collect::<Vec<_>>()
            );
            sim.verify();
        }
    }
}

#[test]
fn joins_survive_an_eviction_after_each_turn_in_any_order() {
    for seed in 1..6 {
        for flow in [join_of_futures(40), join_of_context(40)] {
            let mut sim = Sim::start_evicting(flow);
            finish_shuffled(&mut sim, seed);
            assert_eq!(sim.result::<Vec<i64>>()[39], 390);
            sim.verify();
        }
    }
}

#[test]
fn a_bounded_stream_issues_follow_ups_where_its_parts_end() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let calls = (0..100).map(|i| ctx.activity(ten_fold, i));
            let mut stream = futures::stream::iter(calls).buffer_unordered(7);
            let mut order = Vec::new();
            while let Some(value) = stream.next().await {
                order.push(value?);
            }
            Ok(order)
        })
    });
    for seed in 1..6 {
        let mut sim = Sim::start_evicting(flow.clone());
        assert_eq!(sim.open.len(), 7);
        finish_shuffled(&mut sim, seed);
        assert_eq!(sim.result::<Vec<i64>>().len(), 100);
        sim.verify();
    }
}

#[test]
fn unordered_parts_race_with_a_timer_and_are_dropped_together() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let mut parts: FuturesUnordered<_> =
                (0..50).map(|i| ctx.activity(ten_fold, i)).collect();
            let collect = async {
                let mut seen = 0;
                while parts.next().await.is_some() {
                    seen += 1;
                    if seen == 40 {
                        break;
                    }
                }
                seen
            };
            let seen = ctx.timeout(Duration::from_secs(9), collect).await?;
            drop(parts);
            ctx.step("after", || async { Ok(()) }).await?;
            Ok(seen)
        })
    });
    for seed in 1..6 {
        let mut sim = Sim::start_evicting(flow.clone());
        finish_shuffled(&mut sim, seed);
        sim.verify();
    }
}

#[test]
fn a_channel_between_two_branches_of_a_run_is_no_foreign_await() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let (send, mut receive) = tokio::sync::mpsc::channel(1);
            let producer = async {
                for i in 0..5 {
                    let value = ctx.activity(ten_fold, i).await?;
                    send.send(value).await?;
                }
                drop(send);
                Ok::<_, crate::WorkflowError>(())
            };
            let consumer = async {
                let mut sum = 0;
                while let Some(value) = receive.recv().await {
                    sum += ctx.step("sum", move || async move { Ok(value) }).await?;
                }
                Ok::<_, crate::WorkflowError>(sum)
            };
            let (sent, sum) = futures::join!(producer, consumer);
            sent?;
            sum
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.finish();
    assert_eq!(sim.result::<i64>(), 100);
    sim.verify();
}
