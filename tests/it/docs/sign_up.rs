use std::process::ExitCode;

use continuum_worker::prelude::*;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SignUp {
    address: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Mail {
    to: String,
    text: String,
}

/// A side effect: tried up to five times, each time for thirty seconds at most.
#[activity(queue = "mail", retry(max_attempts = 5), timeout = "30s")]
async fn send_mail(ctx: ActivityContext, mail: Mail) -> Result<(), ActivityError> {
    // A real provider would be given `ctx.idempotency_key()`, and send a repeated mail once.
    println!("to {}: {} (attempt {})", mail.to, mail.text, ctx.attempt());
    Ok(())
}

/// Sends a code and waits for whoever received it to send it back.
#[workflow(version = 1, signals(confirmed: String))]
async fn sign_up(ctx: &WorkflowContext, form: SignUp) -> Result<String, WorkflowError> {
    let code = ctx.uuid().to_string();
    let mail = Mail {
        to: form.address.clone(),
        text: format!("your code is {code}"),
    };
    ctx.activity(send_mail, mail).await?;

    loop {
        let answer = ctx
            .signal(sign_up::confirmed)
            .timeout(Duration::from_secs(3 * 24 * 3600))
            .await?;
        match answer {
            Some(answer) if answer == code => return Ok(format!("welcome, {}", form.address)),
            Some(_) => continue,
            None => return Ok("nobody answered".to_owned()),
        }
    }
}

fn main() -> ExitCode {
    continuum_worker::main(registry![sign_up, send_mail])
}

// What follows is not quoted.

#[tokio::test(flavor = "multi_thread")]
async fn the_first_workflow_does_what_its_page_says() {
    let world = continuum_tests::World::new().await;
    let worker = world.worker(registry![sign_up, send_mail]).await;
    let client = world.client().await;
    let form = SignUp {
        address: "ada@example.org".into(),
    };
    let run = client.start(sign_up, form).key("ada").await.unwrap();
    let code =
        continuum_tests::until("a code was mailed", || mailed_code(&world, run.run_id())).await;
    for answer in ["wrong", &code] {
        run.signal(sign_up::confirmed, &answer.to_owned())
            .await
            .unwrap();
    }
    let result = run.result_within(continuum_tests::PATIENCE).await.unwrap();
    assert_eq!(result, "welcome, ada@example.org");
    world.finish([worker]).await;
}

/// What the journal says was asked to be mailed.
async fn mailed_code(world: &continuum_tests::World, run_id: Uuid) -> Option<String> {
    use continuum_schema::{Event, journal};

    let history = journal::history(&world.database, run_id, 0, 10)
        .await
        .unwrap();
    let events = history.into_iter().map(|row| row.decode().unwrap());
    let mail: Mail = events.into_iter().find_map(|event| match event {
        Event::ActivityScheduled(scheduled) => Some(scheduled.input.decode().unwrap()),
        _ => None,
    })?;
    mail.text.strip_prefix("your code is ").map(str::to_owned)
}
