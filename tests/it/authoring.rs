//! What authors write: the attributes, the registry, `select!`, and the programs that must not compile.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use continuum_schema::Payload;
use continuum_worker::prelude::*;
use continuum_worker::{Activity, ActivityDefinition, Hashed, Workflow, error::kind};
use futures::FutureExt as _;
use futures::executor::block_on;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Charge {
    cents: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum PayError {
    Declined { code: u32 },
}

impl std::fmt::Display for PayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self::Declined { code } = self;
        write!(f, "declined with code {code}")
    }
}

impl DomainError for PayError {
    fn retryable(&self) -> bool {
        false
    }
}

/// Takes money.
#[activity(
    queue = "payments",
    retry(max_attempts = 5, initial = "100ms", factor = 1.5, max = "1m"),
    timeout = "30s"
)]
async fn charge_card(ctx: ActivityContext, Charge { cents }: Charge) -> Result<u64, PayError> {
    match cents {
        0 => Err(PayError::Declined { code: 51 }),
        cents => Ok(cents * u64::from(ctx.attempt())),
    }
}

#[activity(name = "send-mail", retry(unlimited))]
async fn send(ctx: ActivityContext, to: String) -> anyhow::Result<String> {
    anyhow::ensure!(!to.is_empty(), "nobody to write to");
    Ok(format!("{}{to}", ctx.state::<String>()))
}

#[pure]
fn discount(cents: u64) -> u64 {
    cents / 10
}

#[workflow(version = 1, signals(fraud_review: bool), uses(discount))]
async fn order_flow(ctx: &WorkflowContext, order: Charge) -> Result<u64, WorkflowError> {
    let cents = order.cents - discount(order.cents);
    let id: u64 = ctx
        .step("id", move || async move { Ok("7".parse()?) })
        .await?;
    match ctx.activity(charge_card, Charge { cents }).await {
        Ok(paid) => Ok(paid + id),
        Err(Failed::Domain(PayError::Declined { .. })) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

mod reformatted {
    use super::*;

    #[rustfmt::skip]
    #[workflow(version = 1, uses(discount))]
    pub(crate) async fn order_flow(ctx: &WorkflowContext, order: Charge,) -> Result<u64, WorkflowError> {
        let cents = order.cents - discount(order.cents,); // The discount is rounded down.
        let id: u64 = ctx.step("id", move || { async move { Ok("7".parse()?) } }).await?;
        match ctx.activity(charge_card, Charge { cents, }).await {
            Ok(paid) => { Ok(paid + id) }
            Err(Failed::Domain(PayError::Declined { .. })) => Ok(0),
            Err(error) => { Err(error.into()) }
        }
    }
}

mod other_helper {
    use super::*;

    #[pure(uses(rounding))]
    fn discount(cents: u64) -> u64 {
        rounding(cents / 5)
    }

    #[pure]
    fn rounding(cents: u64) -> u64 {
        cents - cents % 10
    }

    #[workflow(version = 2, uses(discount))]
    pub(crate) async fn order_flow(
        ctx: &WorkflowContext,
        order: Charge,
    ) -> Result<u64, WorkflowError> {
        let cents = order.cents - discount(order.cents);
        let id: u64 = ctx
            .step("id", move || async move { Ok("7".parse()?) })
            .await?;
        match ctx.activity(charge_card, Charge { cents }).await {
            Ok(paid) => Ok(paid + id),
            Err(Failed::Domain(PayError::Declined { .. })) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}

mod v3 {
    use super::*;

    #[workflow(version = 3, compatible = ["n1:00000000000000000000000000000001"])]
    pub(crate) async fn order_flow(
        _ctx: &WorkflowContext,
        order: Charge,
    ) -> Result<u64, WorkflowError> {
        Ok(order.cents)
    }
}

#[workflow(version = 1)]
async fn takes_any_error(_ctx: &WorkflowContext, number: String) -> anyhow::Result<u64> {
    Ok(number.parse()?)
}

#[test]
fn an_activity_is_a_plain_function_with_options() {
    let ctx = ActivityContext::for_test();
    assert_eq!(
        block_on(charge_card(ctx.clone(), Charge { cents: 3 })),
        Ok(3)
    );
    let greeter = ctx.with_state(String::from("Dear "));
    assert_eq!(block_on(send(greeter, "Ann".into())).unwrap(), "Dear Ann");

    let options = <charge_card as Activity>::options();
    assert_eq!(
        (options.queue.as_str(), options.timeout_ms),
        ("payments", 30_000)
    );
    let retry = options.retry;
    assert_eq!(
        (retry.max_attempts, retry.initial_ms, retry.max_ms),
        (5, 100, 60_000)
    );
    assert!((retry.factor - 1.5).abs() < f64::EPSILON);
    assert_eq!(<send as Activity>::NAME, "send-mail");
    assert_eq!(<send as Activity>::options().retry.max_attempts, 0);
    assert_eq!(<send as Activity>::options().queue, "default");
}

#[test]
fn an_erased_activity_encodes_its_result_and_its_errors() {
    let definition = ActivityDefinition::new(charge_card);
    let run =
        |input: &Payload| block_on(definition.run(ActivityContext::for_test(), input.clone()));
    let charge = |cents| Payload::encode(&Charge { cents }).unwrap();

    assert_eq!(run(&charge(3)).unwrap().decode(), Ok(3_u64));
    let declined = run(&charge(0)).unwrap_err();
    assert!(!declined.is_retryable());
    assert_eq!(
        declined.details(),
        Ok(Some(PayError::Declined { code: 51 }))
    );
    let undecodable = run(&Payload::encode("three").unwrap()).unwrap_err();
    assert_eq!(undecodable.kind(), kind::DECODE);
    assert!(!undecodable.is_retryable());
}

#[test]
fn a_closure_stands_in_for_an_activity() {
    let registry = registry![|_ctx: ActivityContext, input: Charge| {
        ActivityCall::<charge_card>::new(async move { Ok(input.cents + 1) })
    }];
    let definition = registry.activity("charge_card").unwrap();
    let input = Payload::encode(&Charge { cents: 1 }).unwrap();
    let output = block_on(definition.run(ActivityContext::for_test(), input)).unwrap();
    assert_eq!(output.decode(), Ok(2_u64));
}

#[test]
fn the_hash_ignores_formatting_and_follows_the_helpers() {
    let hash = <order_flow as Workflow>::HASH;
    assert_eq!(hash.len(), 35);
    assert_eq!(hash, <reformatted::order_flow as Hashed>::HASH);
    assert_ne!(hash, <other_helper::order_flow as Hashed>::HASH);
    assert_eq!(order_flow::fraud_review.as_str(), "fraud_review");
    assert_eq!(<order_flow as Workflow>::SIGNALS, ["fraud_review"]);
}

#[test]
fn a_registry_finds_the_code_of_old_and_new_runs() {
    let payments = registry![charge_card, send].state(String::from("Dear "));
    let registry = registry![
        order_flow,
        v3::order_flow,
        takes_any_error,
        other_helper::order_flow
    ]
    .merge(payments);

    let version = |hash| registry.workflow("order_flow", hash).map(|w| w.version());
    assert_eq!(version(<order_flow as Workflow>::HASH), Some(1));
    assert_eq!(version("n1:00000000000000000000000000000001"), Some(3));
    assert_eq!(version("n1:00000000000000000000000000000002"), None);
    assert_eq!(registry.latest("order_flow").unwrap().version(), 3);
    assert!(registry.latest("charge_card").is_none());
    assert_eq!(registry.workflows().count(), 4);
    assert_eq!(registry.activities().count(), 2);
    assert_eq!(Vec::from_iter(registry.queues()), ["default", "payments"]);
}

#[test]
fn a_registry_refuses_two_things_under_one_name_and_names_both() {
    let said = panic_text(|| registry![order_flow, reformatted::order_flow]);
    assert!(said.contains("authoring::order_flow"), "{said}");
    assert!(
        said.contains("authoring::reformatted::order_flow"),
        "{said}"
    );
    let said = panic_text(|| registry![charge_card, send, charge_card]);
    assert!(said.contains("`charge_card` is taken twice"), "{said}");
    let said = panic_text(|| Registry::new().state(1_u8).state(2_u8));
    assert!(said.contains("u8"), "{said}");
}

fn panic_text(build: impl FnOnce() -> Registry) -> String {
    let panic = catch_unwind(AssertUnwindSafe(|| drop(build()))).unwrap_err();
    *panic
        .downcast::<String>()
        .expect("the message is formatted")
}

#[test]
fn select_asks_its_branches_in_source_order_and_heeds_guards() {
    let ready = |value: &'static str| std::future::ready(value);
    let choose = |first: bool| {
        block_on(async move {
            continuum_worker::select! {
                _ = std::future::pending::<()>() => unreachable!("it never ends"),
                value = ready("first"), if first => value,
                value = ready("second") => { value }
                value = ready("third") => value,
            }
        })
    };
    assert_eq!(choose(true), "first");
    assert_eq!(choose(false), "second");
}

#[test]
fn select_drops_the_other_branches_before_the_handler_runs() {
    struct Noisy<'a>(&'a RefCell<Vec<&'static str>>);
    impl Drop for Noisy<'_> {
        fn drop(&mut self) {
            self.0.borrow_mut().push("dropped");
        }
    }
    let told = RefCell::new(Vec::new());
    let noisy = Noisy(&told);
    let slow = async move {
        let _noisy = noisy;
        std::future::pending::<()>().await;
    };
    block_on(async {
        continuum_worker::select! {
            () = slow => unreachable!("it never ends"),
            () = std::future::ready(()) => told.borrow_mut().push("handled"),
        }
    });
    assert_eq!(*told.borrow(), ["dropped", "handled"]);
}

#[test]
fn select_can_borrow_a_future_and_ask_it_again() {
    let mut polls = 0;
    let mut slow = std::future::poll_fn(move |_| {
        polls += 1;
        if polls == 3 {
            Poll::Ready(polls)
        } else {
            Poll::Pending
        }
    });
    let mut rounds = 0;
    let value = async {
        loop {
            continuum_worker::select! {
                value = &mut slow => break value,
                () = std::future::ready(()) => rounds += 1,
            }
        }
    };
    assert_eq!(value.now_or_never(), Some(3));
    assert_eq!(rounds, 2);
}

#[test]
fn wrong_programs_do_not_compile_and_say_why() {
    trybuild::TestCases::new().compile_fail("ui/*.rs");
}
