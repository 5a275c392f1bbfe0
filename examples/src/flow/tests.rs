//! The workflow by itself: its effects are answered here, without a worker, a database or a clock.

use continuum_worker::WorkflowDefinition;
use continuum_worker::replay::{Command, Completion, Execution, RunInfo};
use continuum_worker::schema::Payload;
use continuum_worker::schema::event::{Failure, Outcome as Given};
use futures::executor::block_on;

use super::*;

/// What comes while the order waits for its review.
enum Visitor {
    Reviewer(Review),
    Canceller,
    Nobody,
}

#[derive(Debug, PartialEq)]
enum End {
    Outcome(Outcome),
    Failed { kind: String },
    Cancelled,
}

/// How a run ended, and the activities that it asked for.
fn rehearse(order: Order, visitor: Visitor) -> (End, Vec<String>) {
    let definition = WorkflowDefinition::of::<order_flow>();
    let input = Payload::encode(&order).unwrap();
    let mut execution = Execution::new(&definition, info(&definition), input);
    let mut activities = Vec::new();
    let mut commands = execution.go_live(0).unwrap().commands;
    loop {
        if let Some(end) = commands.iter().find_map(end_of) {
            return (end, activities);
        }
        let answers: Vec<_> = commands
            .drain(..)
            .filter_map(|c| answer(c, &visitor))
            .collect();
        assert!(
            !answers.is_empty(),
            "the run waits for something that nobody gives"
        );
        for (activity, completion) in answers {
            activities.extend(activity);
            commands.extend(execution.deliver(0, completion).unwrap().commands);
        }
    }
}

fn info(definition: &WorkflowDefinition) -> RunInfo {
    RunInfo {
        run_id: Uuid::nil(),
        chain_id: Uuid::nil(),
        workflow: definition.name().into(),
        version: definition.version(),
        hash: definition.hash().into(),
        key: None,
        namespace: "default".into(),
        created_at: 0,
    }
}

fn end_of(command: &Command) -> Option<End> {
    match command {
        Command::Complete(result) => Some(End::Outcome(result.decode().unwrap())),
        Command::Fail(Failure { kind, .. }) => Some(End::Failed { kind: kind.clone() }),
        Command::Cancelled { .. } => Some(End::Cancelled),
        _ => None,
    }
}

/// What a command leads to; for an activity also its name.
fn answer(command: Command, visitor: &Visitor) -> Option<(Option<String>, Completion)> {
    match (command, visitor) {
        (Command::Activity(scheduled), _) => {
            let number = Payload::encode(&format!("{}-1", scheduled.name)).unwrap();
            let done = Completion::Activity {
                effect: scheduled.effect,
                attempt: 1,
                outcome: Given::Ok(number),
            };
            Some((Some(scheduled.name), done))
        }
        (Command::Step { effect, run, .. }, _) => {
            let outcome = block_on(run).map_or_else(|e| Given::Err(e.into()), Given::Ok);
            Some((None, Completion::Step { effect, outcome }))
        }
        (Command::WaitSignal { effect, name }, Visitor::Reviewer(review)) => {
            let signal = Completion::Signal {
                effect,
                name,
                payload: Payload::encode(review).unwrap(),
                delivery_id: None,
            };
            Some((None, signal))
        }
        (Command::WaitSignal { .. }, Visitor::Canceller) => {
            let reason = "changed my mind".to_owned();
            Some((None, Completion::Cancel { reason }))
        }
        (Command::Timer { effect, .. }, Visitor::Nobody) => {
            Some((None, Completion::Timer { effect }))
        }
        _ => None,
    }
}

fn order() -> Order {
    Order::new("A-1", "Ada", 1999)
}

fn reviewer(approved: bool) -> Visitor {
    Visitor::Reviewer(Review {
        approved,
        reviewer: "Grace".into(),
    })
}

#[test]
fn an_approved_order_is_charged_and_shipped() {
    let (end, activities) = rehearse(order(), reviewer(true));
    let tracking = "ship-1".into();
    assert_eq!(end, End::Outcome(Outcome::Shipped { tracking }));
    assert_eq!(activities, ["charge_card", "ship"]);
}

#[test]
fn a_refused_order_is_refunded() {
    let (end, activities) = rehearse(order(), reviewer(false));
    let reason = "Grace refused it".into();
    assert_eq!(end, End::Outcome(Outcome::Rejected { reason }));
    assert_eq!(activities, ["charge_card", "refund"]);
}

#[test]
fn an_order_that_nobody_reviews_is_refunded() {
    let (end, activities) = rehearse(order(), Visitor::Nobody);
    let reason = "nobody reviewed it in time".into();
    assert_eq!(end, End::Outcome(Outcome::Rejected { reason }));
    assert_eq!(activities, ["charge_card", "refund"]);
}

#[test]
fn an_order_that_is_called_off_is_refunded_first() {
    let (end, activities) = rehearse(order(), Visitor::Canceller);
    assert_eq!(end, End::Cancelled);
    assert_eq!(activities, ["charge_card", "refund"]);
}

#[test]
fn an_order_that_makes_no_sense_is_not_charged() {
    let (end, activities) = rehearse(Order::new("A-1", "Ada", 0), Visitor::Nobody);
    let kind = "InvalidOrder".into();
    assert_eq!(end, End::Failed { kind });
    assert!(activities.is_empty());
}
