//! Every way in which code and history can part, and what the report says.

use std::collections::HashMap;
use std::time::Duration;

use continuum_schema::Payload;
use continuum_schema::event::{ActivityOptions, ActivityScheduled, Event, Outcome};

use super::sim::{CREATED_AT, Sim, define, drift, info, replay, ten_fold, value};
use crate::activity::{Activity, ActivityCall, ActivityContext};
use crate::error::{ActivityError, WorkflowError};
use crate::replay::{Blocked, Completion, Execution, ReplayDrift};
use crate::workflow::WorkflowDefinition;

/// Another activity than `ten_fold`.
struct Other;

impl Activity for Other {
    type Input = HashMap<String, i64>;
    type Output = i64;
    type Error = ActivityError;
    const NAME: &'static str = "other";

    fn options() -> ActivityOptions {
        super::sim::TenFold::options()
    }

    fn call(_: ActivityContext, _: Self::Input) -> ActivityCall<Self> {
        ActivityCall::new(async { Ok(1) })
    }
}

fn other(ctx: ActivityContext, input: HashMap<String, i64>) -> ActivityCall<Other> {
    Other::call(ctx, input)
}

fn calls(input: i64) -> WorkflowDefinition {
    define(move |ctx| Box::pin(async move { Ok(ctx.activity(ten_fold, input).await?) }))
}

/// The journal of a whole run of `calls(1)`.
fn journal_of_a_call() -> Vec<(i64, Event)> {
    let mut sim = Sim::start(calls(1));
    sim.finish();
    sim.journal
}

fn here(drift: &ReplayDrift, line: u32) {
    let location = drift.location.as_deref().expect("the author's line");
    assert!(
        location.contains(&format!("drift.rs:{line}:")),
        "{location}"
    );
}

#[test]
fn another_input_is_named_on_both_sides_with_the_line() {
    let journal = journal_of_a_call();
    let line = line!() + 1;
    let changed = define(|ctx| Box::pin(async move { Ok(ctx.activity(ten_fold, 2).await?) }));
    let drift = drift(&changed, &journal);
    here(&drift, line);
    assert_eq!((drift.seq, drift.expected.effect), (2, Some(1)));
    assert_eq!(drift.expected.detail.as_deref(), Some("input 1"));
    assert_eq!(drift.found.detail.as_deref(), Some("input 2"));
    let text = Blocked::Drift(Box::new(drift)).to_string();
    assert!(
        text.starts_with(
            "replay drift at seq 2: the history has [activity \"ten_fold\" (effect 1): input 1], the code has \
             [activity \"ten_fold\" (effect 1): input 2] at "
        ),
        "{text}"
    );
}

#[test]
fn another_activity_another_kind_and_silence_drift() {
    let journal = journal_of_a_call();
    let renamed =
        define(|ctx| Box::pin(async move { Ok(ctx.activity(other, HashMap::new()).await?) }));
    assert_eq!(
        drift(&renamed, &journal).found.name.as_deref(),
        Some("other")
    );

    let timer = define(|ctx| Box::pin(async move { Ok(ctx.sleep(Duration::ZERO).await?) }));
    assert_eq!(drift(&timer, &journal).found.what, "timer");

    let line = line!() + 1;
    let silent = define(|ctx| Box::pin(async move { Ok(ctx.signal::<u8>("go").await?) }));
    let silence = drift(&silent, &journal);
    here(&silence, line);
    assert_eq!(silence.found.what, "no command");
    assert!(
        silence
            .found
            .detail
            .unwrap()
            .contains("signal \"go\" (effect 1)")
    );

    let ended = define(|_| Box::pin(async move { Ok(3) }));
    assert_eq!(drift(&ended, &journal).found.what, "end with a value");
}

#[test]
fn another_name_with_the_same_input_and_another_number_drift() {
    let tamper = |change: fn(&mut ActivityScheduled)| {
        let mut journal = journal_of_a_call();
        let Event::ActivityScheduled(scheduled) = &mut journal[1].1 else {
            panic!()
        };
        change(scheduled);
        drift(&calls(1), &journal)
    };
    let renamed = tamper(|scheduled| scheduled.name = "old".to_owned());
    assert_eq!(renamed.expected.name.as_deref(), Some("old"));
    let renumbered = tamper(|scheduled| scheduled.effect = 2);
    assert_eq!(renumbered.found.effect, Some(1));
}

#[test]
fn a_command_too_many_drifts_at_the_completion_that_follows_and_at_the_end() {
    let both = define(|ctx| {
        Box::pin(async move {
            let (a, b) = futures::join!(ctx.activity(ten_fold, 1), ctx.activity(ten_fold, 2));
            Ok((a?, b?))
        })
    });
    let journal = journal_of_a_call();
    let in_between = drift(&both, &journal);
    assert_eq!((in_between.seq, in_between.found.effect), (3, Some(2)));
    assert_eq!(in_between.expected.what, "activity completed");
    let at_the_end = drift(&both, &journal[..2]);
    assert_eq!((at_the_end.seq, at_the_end.found.effect), (3, Some(2)));
    assert_eq!(at_the_end.expected.what, "nothing more");
}

#[test]
fn a_step_of_another_name_and_a_signal_of_another_name_drift_at_their_completion() {
    let step = |name: &'static str| {
        define(move |ctx| Box::pin(async move { Ok(ctx.step(name, || async { Ok(1) }).await?) }))
    };
    let mut sim = Sim::start(step("old"));
    sim.finish();
    let renamed = drift(&step("new"), &sim.journal);
    assert_eq!(renamed.expected.name.as_deref(), Some("old"));
    assert_eq!(renamed.found.name.as_deref(), Some("new"));
    assert!(renamed.location.is_some());

    let wait = |name: &'static str| {
        define(move |ctx| Box::pin(async move { Ok(ctx.signal::<u8>(name).await?) }))
    };
    let mut sim = Sim::start(wait("old"));
    sim.signal("old", value(1));
    let renamed = drift(&wait("new"), &sim.journal);
    assert_eq!(renamed.found.name.as_deref(), Some("new"));
    assert!(
        drift(&step("old"), &sim.journal)
            .to_string()
            .contains("step \"old\"")
    );
}

#[test]
fn another_drop_and_a_completion_of_what_was_dropped_drift() {
    let racing = |keep: bool| {
        define(move |ctx| {
            Box::pin(async move {
                let mut call = ctx.activity(ten_fold, 1);
                let mut step = ctx.step("fast", || async { Ok(()) });
                futures::select_biased! { _ = call => {}, _ = step => {} }
                if keep {
                    return Ok(call.await?);
                }
                drop(call);
                ctx.step("after", || async { Ok(()) }).await?;
                Ok(0)
            })
        })
    };
    let mut dropping = Sim::start(racing(false));
    dropping.complete(2);
    let kept = drift(&racing(true), &dropping.journal);
    assert_eq!(
        (kept.expected.what.as_str(), kept.expected.effect),
        ("drop", Some(1))
    );

    let mut keeping = Sim::start(racing(true));
    keeping.complete(2);
    keeping.complete(1);
    let dropped = drift(&racing(false), &keeping.journal);
    assert_eq!((dropped.seq, dropped.found.what.as_str()), (4, "drop"));
}

#[test]
fn another_end_drifts() {
    let ends = |with: Result<i64, &'static str>| {
        define(move |ctx| {
            Box::pin(async move {
                ctx.step("s", || async { Ok(()) }).await?;
                with.map_err(WorkflowError::from)
            })
        })
    };
    let mut sim = Sim::start(ends(Ok(1)));
    sim.finish();
    assert_eq!(
        drift(&ends(Ok(2)), &sim.journal).found.detail.as_deref(),
        Some("2")
    );
    assert_eq!(
        drift(&ends(Err("no")), &sim.journal).found.what,
        "end with an error"
    );
    let mut failed = Sim::start(ends(Err("no")));
    failed.finish();
    failed.verify();
    assert_eq!(drift(&ends(Err("why")), &failed.journal).seq, 3);
    assert_eq!(
        drift(&ends(Ok(1)), &failed.journal).expected.what,
        "end with an error"
    );
}

#[test]
fn an_end_that_an_operator_wrote_is_no_drift() {
    let mut journal = journal_of_a_call();
    journal.truncate(2);
    let failure = |kind: &str| ActivityError::permanent(kind, "ended by hand").into();
    let end = |kind| Event::Failed {
        failure: failure(kind),
        unread: Vec::new(),
    };
    journal.push((CREATED_AT, end(crate::replay::TERMINATED)));
    assert!(replay(&calls(1), &journal).unwrap().is_ended());
    journal.pop();
    journal.push((CREATED_AT, end("Declined")));
    assert_eq!(drift(&calls(1), &journal).found.what, "no command");
}

#[test]
fn equal_maps_in_another_order_are_the_same_input() {
    let flow = define(|ctx| {
        Box::pin(async move {
            // Each map is seeded anew, so that its entries come in another order each time.
            let input: HashMap<_, _> = (0..50).map(|i| (format!("k{i}"), i)).collect();
            Ok(ctx.activity(other, input).await?)
        })
    });
    let mut sim = Sim::start(flow);
    for _ in 0..5 {
        sim.evict();
    }
    let outcome = Outcome::Ok(value(1));
    sim.deliver(Completion::Activity {
        effect: 1,
        attempt: 2,
        outcome,
    })
    .unwrap();
    sim.verify();
}

#[test]
fn a_drifted_run_emits_nothing_and_stays_blocked() {
    let journal = journal_of_a_call();
    let mut execution = Execution::new(&calls(2), info(), Payload::unit());
    execution.replay(1, CREATED_AT, &journal[0].1).unwrap();
    let first = execution.replay(2, CREATED_AT, &journal[1].1).unwrap_err();
    assert_eq!(
        execution.replay(3, CREATED_AT, &journal[2].1),
        Err(first.clone())
    );
    assert_eq!(execution.go_live(CREATED_AT).unwrap_err(), first);
    assert_eq!(execution.pending(), []);
}

#[test]
fn a_history_with_a_gap_or_a_wrong_beginning_is_damaged() {
    let journal = journal_of_a_call();
    let feed = |positions: &[(i32, usize)]| {
        let mut execution = Execution::new(&calls(1), info(), Payload::unit());
        positions
            .iter()
            .try_for_each(|(seq, index)| execution.replay(*seq, CREATED_AT, &journal[*index].1))
    };
    assert_eq!(feed(&[(1, 0), (2, 1), (3, 2), (4, 3)]), Ok(()));
    for wrong in [
        &[(1, 0), (3, 2)][..],
        &[(1, 1)],
        &[(2, 1)],
        &[(1, 0), (2, 0)],
        &[(1, 0), (1, 0)],
        &[(1, 0), (2, 1), (3, 2), (4, 3), (5, 3)],
    ] {
        assert!(
            matches!(feed(wrong), Err(Blocked::Damaged { .. })),
            "{wrong:?}"
        );
    }
}

#[test]
fn a_block_survives_its_way_through_json() {
    let drift = drift(&calls(2), &journal_of_a_call());
    for blocked in [
        Blocked::Drift(Box::new(drift)),
        Blocked::Panicked("oh".to_owned()),
        Blocked::Livelock { polls: 7 },
    ] {
        let json = serde_json::to_string(&blocked).unwrap();
        assert_eq!(serde_json::from_str::<Blocked>(&json).unwrap(), blocked);
    }
}
