//! Each effect on its own, and the values that a context gives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use continuum_schema::Payload;
use continuum_schema::event::{Event, Outcome};
use futures::FutureExt;
use futures::future::FusedFuture;

use super::sim::{CREATED_AT, Sim, define, replay, ten_fold, value};
use crate::activity::Retry;
use crate::effect::{INVALID, SignalError, TimerEffect};
use crate::error::{ActivityError, WorkflowError, kind};
use crate::replay::{Blocked, Command, Completion, EffectKind, Execution};
use crate::workflow::SignalName;

#[test]
fn sequential_activities_are_four_rows_a_pair_and_replay() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let a = ctx.activity(ten_fold, 1).await?;
            let b = ctx.activity(ten_fold, a).await?;
            Ok(b)
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.finish();
    assert_eq!(sim.result::<i64>(), 100);
    assert_eq!(
        sim.names(),
        [
            "started",
            "activity_scheduled",
            "activity_completed",
            "activity_scheduled",
            "activity_completed",
            "completed"
        ]
    );
    sim.verify();
}

#[test]
fn ten_sequential_steps_are_ten_events() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let mut sum = 0;
            for i in 0..10_u64 {
                sum += ctx.step("add", move || async move { Ok(i) }).await?;
            }
            Ok(sum)
        })
    });
    let mut sim = Sim::start_evicting(flow);
    assert!(
        sim.journal.is_empty(),
        "a step leaves nothing until it ends"
    );
    sim.finish();
    assert_eq!(sim.result::<u64>(), 45);
    assert_eq!(sim.journal.len(), 12);
    sim.verify();
}

#[test]
fn a_step_that_fails_keeps_its_kind() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let step = ctx.step("fail", || async {
                Err::<(), _>(ActivityError::permanent("Broken", "no"))
            });
            Ok(step.await?)
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.finish();
    let events = sim.events();
    let Some(Event::Failed { failure, .. }) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!(
        (failure.kind.as_str(), failure.message.as_str()),
        ("Broken", "no")
    );
    sim.verify();
}

#[test]
fn options_of_a_call_reach_the_command_and_may_change_in_replay() {
    let with = |attempts| {
        define(move |ctx| {
            Box::pin(async move {
                let call = ctx
                    .activity(ten_fold, 1)
                    .queue("vip")
                    .retry(Retry::attempts(attempts))
                    .timeout(Duration::from_secs(3))
                    .idempotency_key(17);
                Ok(call.await?)
            })
        })
    };
    let mut sim = Sim::start(with(3));
    let Event::ActivityScheduled(scheduled) = sim.events()[1].clone() else {
        panic!()
    };
    assert_eq!(scheduled.options.queue, "vip");
    assert_eq!(scheduled.options.retry.max_attempts, 3);
    assert_eq!(scheduled.options.timeout_ms, 3_000);
    assert_eq!(scheduled.options.idempotency_key.as_deref(), Some("17"));
    sim.finish();
    assert!(replay(&with(9), &sim.journal).unwrap().is_ended());
}

#[test]
fn calls_that_make_no_sense_are_errors_and_leave_no_trace() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let queue = ctx.activity(ten_fold, 1).queue("a.b").await;
            let key = ctx.activity(ten_fold, 1).idempotency_key("").await;
            let zero = ctx
                .activity(ten_fold, 1)
                .timeout(Duration::ZERO)
                .start()
                .await;
            let step = ctx.step("a b", || async { Ok(()) }).start().await;
            let signal = ctx.signal::<u8>("a.b").start().await;
            assert!(matches!(signal, Err(SignalError::Name(_))));
            let kinds = [queue, key, zero].map(|r| r.unwrap_err().kind().to_owned());
            Ok((kinds, step.unwrap_err().kind().to_owned()))
        })
    });
    let sim = Sim::start(flow);
    let invalid = || INVALID.to_owned();
    assert_eq!(
        sim.result::<([String; 3], String)>(),
        ([invalid(), invalid(), invalid()], invalid())
    );
    assert_eq!(sim.names(), ["started", "completed"]);
}

#[test]
fn an_effect_that_is_never_polled_leaves_no_trace_and_start_issues_at_once() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let _never = ctx.activity(ten_fold, 9);
            let a = ctx.activity(ten_fold, 1).start();
            let b = ctx.activity(ten_fold, 2).start();
            // The other way round than they were started.
            let b = b.await?;
            Ok((a.await?, b))
        })
    });
    let mut sim = Sim::start_evicting(flow);
    assert_eq!(
        sim.names(),
        ["started", "activity_scheduled", "activity_scheduled"]
    );
    sim.complete(1);
    sim.complete(2);
    assert_eq!(sim.result::<(i64, i64)>(), (10, 20));
    sim.verify();
}

#[test]
fn a_polled_effect_that_is_dropped_is_journaled_where_a_command_was() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let mut timer = ctx.sleep(Duration::from_secs(60));
            let mut activity = ctx.activity(ten_fold, 1);
            let mut step = ctx.step("slow", || async { Ok(()) });
            let mut signal = ctx.signal::<u8>("go");
            futures::select_biased! {
                _ = timer => {}, _ = activity => {}, _ = step => {}, _ = signal => {}
            }
            drop((timer, activity, signal));
            assert!(step.is_terminated());
            ctx.step("after", || async { Ok(()) }).await?;
            Ok(())
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.complete(3);
    assert_eq!(
        sim.names()[3..],
        ["step_completed", "dropped", "dropped"],
        "the timer and the activity"
    );
    assert_eq!(sim.dropped, [1, 2, 4]);
    assert_eq!(sim.open.keys().copied().collect::<Vec<_>>(), [5]);
    for late in [
        Completion::Timer { effect: 1 },
        Completion::Activity {
            effect: 2,
            attempt: 1,
            outcome: Outcome::Ok(value(1)),
        },
    ] {
        assert!(!sim.execution.is_pending(late.effect().unwrap()));
        let before = sim.journal.len();
        sim.deliver(late).unwrap();
        assert_eq!(sim.journal.len(), before, "a late result is ignored");
    }
    sim.finish();
    sim.verify();
}

#[test]
fn a_step_that_is_issued_and_dropped_in_one_poll_is_never_run() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let mut step = ctx.step("gone", || async { Ok(()) });
            assert!((&mut step).now_or_never().is_none());
            drop(step);
            ctx.sleep(Duration::from_secs(1)).await?;
            Ok(())
        })
    });
    let mut execution = Execution::new(&flow, super::sim::info(), Payload::unit());
    let turn = execution.go_live(0).unwrap();
    assert!(
        matches!(
            turn.commands[..],
            [
                Command::Drop {
                    effect: 1,
                    kind: EffectKind::Step
                },
                Command::Timer { effect: 2, .. }
            ]
        ),
        "{:?}",
        turn.commands
    );
}

#[test]
fn an_effect_wakes_whoever_polled_it_last() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let mut step = ctx.step("moved", || async { Ok(7) });
            // Polled with a waker that wakes nobody, then inside a join that polls woken parts only.
            assert!((&mut step).now_or_never().is_none());
            let parts = ctx.join_all([
                ctx.shield(step),
                ctx.shield(ctx.step("other", || async { Ok(8) })),
            ]);
            Ok(parts.await.into_iter().collect::<Result<Vec<_>, _>>()?)
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.finish();
    assert_eq!(sim.result::<Vec<i32>>(), [7, 8]);
    sim.verify();
}

#[test]
fn sleep_counts_from_the_turn_and_replay_takes_the_time_from_its_event() {
    let lasting = |seconds| {
        define(move |ctx| {
            Box::pin(async move {
                ctx.sleep(Duration::from_secs(seconds)).await?;
                Ok(ctx.now().unix_timestamp_nanos() / 1_000)
            })
        })
    };
    let mut sim = Sim::start_evicting(lasting(60));
    let due = CREATED_AT + 1_000_000 + 60_000_000;
    assert_eq!(sim.execution.next_timer(), Some(due));
    assert_eq!(sim.execution.pending()[0].fire_at, Some(due));
    let longer = replay(&lasting(90), &sim.journal).unwrap();
    assert_eq!(longer.next_timer(), Some(due), "what was set stays set");
    sim.finish();
    assert_eq!(i64::try_from(sim.result::<i128>()).unwrap(), sim.clock);
    assert_eq!(sim.execution.next_timer(), None);
    sim.verify();
}

#[test]
fn the_longest_sleep_does_not_overflow() {
    let flow = define(|ctx| Box::pin(async move { Ok(ctx.sleep(Duration::MAX).await?) }));
    assert_eq!(Sim::start(flow).execution.next_timer(), Some(i64::MAX));
}

#[test]
fn time_numbers_and_ids_are_the_same_in_every_replay() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let first = (ctx.now().unix_timestamp(), ctx.random(), ctx.uuid());
            ctx.step("wait", || async { Ok(()) }).await?;
            let second = (ctx.now().unix_timestamp(), ctx.random(), ctx.uuid());
            assert_ne!(first.1, second.1);
            Ok((first, second))
        })
    });
    let mut sim = Sim::start(flow);
    sim.finish();
    sim.verify();
    type Drawn = (i64, u64, uuid::Uuid);
    let (first, second) = sim.result::<(Drawn, Drawn)>();
    assert_eq!(first.0, CREATED_AT / 1_000_000);
    assert_eq!(second.0, sim.clock / 1_000_000);
}

#[test]
fn signals_of_one_name_reach_their_waits_in_order() {
    let flow = define(|ctx| {
        Box::pin(async move {
            const GO: SignalName<String> = SignalName::new("go");
            let (a, b) = futures::join!(ctx.signal(GO), ctx.signal::<String>("go"));
            Ok(format!("{} {}", a?, b?))
        })
    });
    let mut sim = Sim::start_evicting(flow);
    let waits = sim.execution.waiting_signals();
    assert_eq!(waits, [(1, "go".to_owned()), (2, "go".to_owned())]);
    sim.signal("go", Payload::from_json(b"\"first\"").unwrap());
    sim.signal("go", value("second"));
    assert_eq!(sim.result::<String>(), "first second");
    sim.verify();
}

#[test]
fn a_signal_with_a_wrong_body_is_an_error_that_the_code_can_survive() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let wrong = ctx.signal::<u8>("go").await;
            assert!(matches!(&wrong, Err(SignalError::Decode(m)) if m.contains("signal `go`")));
            Ok(ctx.signal::<u8>("go").await?)
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.signal("go", value("text"));
    sim.signal("go", value(7));
    assert_eq!(sim.result::<u8>(), 7);
    sim.verify();
}

#[test]
fn a_signal_of_another_name_or_kind_is_not_taken() {
    let flow = define(|ctx| Box::pin(async move { Ok(ctx.signal::<u8>("go").await?) }));
    let mut sim = Sim::start(flow);
    sim.deliver(Completion::Signal {
        effect: 1,
        name: "stop".to_owned(),
        payload: value(1),
        delivery_id: None,
    })
    .unwrap();
    sim.deliver(Completion::Timer { effect: 1 }).unwrap();
    assert!(sim.journal.is_empty() && sim.execution.is_pending(1));
}

#[test]
fn a_signal_in_time_drops_the_timer_and_one_too_late_is_none() {
    let flow = || {
        define(|ctx| {
            Box::pin(async move {
                let wait = ctx.signal::<u8>("go").timeout(Duration::from_secs(5));
                Ok(wait.await?)
            })
        })
    };
    let mut in_time = Sim::start_evicting(flow());
    in_time.signal("go", value(7));
    assert_eq!(in_time.result::<Option<u8>>(), Some(7));
    assert_eq!(
        in_time.names(),
        [
            "started",
            "timer_started",
            "signal_received",
            "dropped",
            "completed"
        ]
    );
    in_time.verify();

    let mut too_late = Sim::start_evicting(flow());
    too_late.complete(2);
    assert_eq!(too_late.result::<Option<u8>>(), None);
    assert_eq!(too_late.dropped, [1]);
    too_late.verify();
}

#[test]
fn the_left_side_of_a_race_wins_a_tie_and_the_loser_is_dropped() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let a = ctx.activity(ten_fold, 1).start();
            let b = ctx.activity(ten_fold, 2).start();
            ctx.step("meanwhile", || async { Ok(()) }).await?;
            let tie = ctx.race(a, b).await;
            let other = ctx
                .race(ctx.activity(ten_fold, 3), ctx.sleep(Duration::from_secs(1)))
                .await;
            Ok((
                matches!(tie, crate::Either::Left(Ok(10))),
                matches!(other, crate::Either::Right(Ok(()))),
            ))
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.complete(2);
    sim.complete(1);
    sim.complete(3);
    sim.complete(5);
    assert_eq!(sim.result::<(bool, bool)>(), (true, true));
    assert_eq!(sim.dropped, [4]);
    sim.verify();
}

#[test]
fn a_loop_that_races_by_reference_gives_the_same_answer_live_and_in_replay() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let mut a = ctx.step("a", || async { Ok(1) });
            let mut b = ctx.step("b", || async { Ok(2) });
            let mut order = Vec::new();
            while !(a.is_terminated() && b.is_terminated()) {
                futures::select_biased! {
                    x = a => order.push(x?),
                    x = b => order.push(x?),
                }
            }
            Ok(order)
        })
    });
    for order in [[1, 2], [2, 1]] {
        let mut sim = Sim::start(flow.clone());
        order.into_iter().for_each(|effect| sim.complete(effect));
        assert_eq!(sim.result::<Vec<u32>>(), order.to_vec());
        sim.verify();
    }
}

#[test]
fn a_result_that_no_longer_decodes_blocks_the_run_with_the_authors_line() {
    let mut sim = Sim::start(define(|ctx| {
        Box::pin(async move { Ok(ctx.step("old", || async { Ok("text".to_owned()) }).await?) })
    }));
    sim.finish();
    let line = line!() + 2;
    let changed =
        define(|ctx| Box::pin(async move { Ok(ctx.step("old", || async { Ok(1_u8) }).await?) }));
    match replay(&changed, &sim.journal) {
        Err(Blocked::Undecodable { what, location, .. }) => {
            assert_eq!(what, "the result of step \"old\"");
            assert!(
                location.contains(&format!("effects.rs:{line}:")),
                "{location}"
            );
        }
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn an_input_that_can_not_be_encoded_is_an_error_of_the_call() {
    struct Odd;
    impl serde::Serialize for Odd {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("odd"))
        }
    }
    impl<'de> serde::Deserialize<'de> for Odd {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Ok(Self)
        }
    }
    let flow = define(|ctx| {
        Box::pin(async move {
            let step = ctx.step("odd", || async { Ok(Odd) }).await;
            Ok(step.err().map(|e| e.kind().to_owned()))
        })
    });
    let mut sim = Sim::start(flow);
    sim.finish();
    assert_eq!(
        sim.result::<Option<String>>().as_deref(),
        Some(kind::ENCODE)
    );
}

#[test]
fn pending_names_what_the_run_waits_for_and_since_when() {
    let line = line!() + 3;
    let flow = define(|ctx| {
        Box::pin(async move {
            ctx.step("first", || async { Ok(()) }).await?;
            let (_, _) = futures::join!(ctx.activity(ten_fold, 1), ctx.signal::<u8>("go"));
            Ok(())
        })
    });
    let mut sim = Sim::start_evicting(flow);
    let first = &sim.execution.pending()[0];
    assert_eq!(
        (first.effect, first.kind, first.since),
        (1, EffectKind::Step, 1)
    );
    assert!(first.location.contains(&format!("effects.rs:{line}:")));
    sim.complete(1);
    let pending = sim.execution.pending();
    let seen: Vec<_> = pending
        .iter()
        .map(|p| (p.effect, p.kind, p.name.as_deref(), p.since))
        .collect();
    assert_eq!(
        seen,
        [
            (2, EffectKind::Activity, Some("ten_fold"), 2),
            (3, EffectKind::Signal, Some("go"), 2)
        ]
    );
    assert_eq!(sim.execution.pending_count(), 2);
}

#[test]
fn a_run_that_is_over_takes_nothing_more() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let _open = ctx.activity(ten_fold, 1).start();
            let _step = ctx.step("late", || async { Ok(()) }).start();
            Ok(1)
        })
    });
    let mut sim = Sim::start(flow);
    assert!(sim.execution.is_ended());
    assert_eq!(sim.execution.pending(), []);
    let before = sim.journal.len();
    sim.deliver(Completion::Activity {
        effect: 1,
        attempt: 1,
        outcome: Outcome::Ok(value(1)),
    })
    .unwrap();
    sim.cancel();
    assert_eq!(sim.journal.len(), before);
    sim.verify();
}

#[test]
fn a_loser_is_dropped_at_once_even_if_the_combinator_is_kept() {
    let flow = define(|ctx| {
        Box::pin(async move {
            let mut timed = ctx.timeout(Duration::from_secs(1), ctx.step("s", || async { Ok(()) }));
            (&mut timed).await?.expect("in time")?;
            let mut raced = ctx.race(
                ctx.step("t", || async { Ok(()) }),
                ctx.activity(ten_fold, 1),
            );
            let _ = (&mut raced).await;
            assert!(timed.is_terminated() && raced.is_terminated());
            ctx.step("u", || async { Ok(()) }).await?;
            drop((timed, raced));
            Ok(())
        })
    });
    let mut sim = Sim::start_evicting(flow);
    sim.finish();
    assert_eq!(
        sim.names()[2..],
        [
            "step_completed",
            "dropped",
            "activity_scheduled",
            "step_completed",
            "dropped",
            "step_completed",
            "completed"
        ]
    );
    sim.verify();
}

#[test]
fn what_the_code_still_holds_at_its_end_leaves_no_event() {
    /// Ends while it holds an effect that was issued.
    struct Holder(TimerEffect<'static>);
    impl Future for Holder {
        type Output = Result<Payload, WorkflowError>;
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            assert!(Pin::new(&mut self.0).poll(cx).is_pending());
            Poll::Ready(Ok(Payload::unit()))
        }
    }
    let mut flow = define(|_| Box::pin(async { Ok(()) }));
    flow.run = Arc::new(|ctx, _| {
        let ctx: &'static _ = Box::leak(Box::new(ctx));
        Box::pin(Holder(ctx.sleep(Duration::from_secs(1))))
    });
    let sim = Sim::start(flow);
    assert_eq!(sim.names(), ["started", "timer_started", "completed"]);
    assert_eq!(sim.execution.pending(), []);
    sim.verify();
}
