//! The command line, as users and their scripts see it: what is printed where, and the code that a command ends with.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};

use continuum_tests::{World, until};
use continuum_worker::cli;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

const NOBODY: &str = "01900000-0000-7000-8000-000000000001";

/// A user's program with these arguments, in an environment without settings.
fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shop"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CONTINUUM_") {
            command.env_remove(name);
        }
    }
    command
        .args(arguments)
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// The same, told where a world is.
pub(crate) fn program_in(world: &World, arguments: &[&str]) -> Command {
    let mut command = program(arguments);
    command
        .env("CONTINUUM_DATABASE_URL", world.database_config().url)
        .env("CONTINUUM_NATS_URL", world.nats_url())
        .env("CONTINUUM_INSTANCE", world.instance.as_str());
    command
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn stdout_json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn error(&self) -> Value {
        let document: Value =
            serde_json::from_str(&self.stderr).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        document["error"].clone()
    }

    #[track_caller]
    pub(crate) fn assert_code(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

pub(crate) async fn run(mut command: Command) -> Ended {
    command.output().await.unwrap().into()
}

pub(crate) async fn run_in(world: &World, arguments: &[&str]) -> Ended {
    run(program_in(world, arguments)).await
}

pub(crate) async fn json_in(world: &World, arguments: &[&str]) -> Value {
    let ended = run_in(world, &[arguments, &["--format", "json"]].concat()).await;
    ended.assert_code(0).stdout_json()
}

/// A process of a user's program that serves `world`.
fn worker_of(world: &World) -> Child {
    let mut command = program_in(world, &["worker"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

pub(crate) fn signal(process: &Child, signal: Signal) {
    let pid = process.id().expect("it has not been waited for");
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

/// What a process wrote to its log, and its exit code.
pub(crate) async fn end_of(mut process: Child) -> (Option<i32>, String) {
    let mut log = String::new();
    let mut stderr = process.stderr.take().unwrap();
    stderr.read_to_string(&mut log).await.unwrap();
    (process.wait().await.unwrap().code(), log)
}

#[tokio::test]
async fn a_run_goes_its_whole_way_from_the_command_line() {
    let world = World::new().await;
    let started = run_in(&world, &["start", "add", "--input", "41", "--key", "sum"]).await;
    let run_id = started.assert_code(0).stdout.trim().to_owned();

    let shown = run_in(&world, &["runs", "show", "key:sum"]).await;
    let waits = "waits      no worker has loaded `add`; start a worker that registers it";
    assert!(shown.stdout.contains(waits), "{shown:?}");
    let none = run_in(&world, &["runs", "history", "key:sum"]).await;
    assert_eq!((none.stdout.as_str(), none.code), ("", Some(0)), "{none:?}");

    let worker = worker_of(&world);
    let waited = run_in(&world, &["wait", "key:sum", "--timeout", "30s"]).await;
    assert_eq!(waited.assert_code(0).stdout, "42\n");

    let listed = json_in(&world, &["runs", "list"]).await;
    assert_eq!(listed["runs"][0]["run_id"], run_id.as_str());
    assert_eq!(listed["runs"][0]["state"], "completed");
    let shown = json_in(&world, &["runs", "show", &run_id]).await;
    assert_eq!(shown["input"]["value"], 41);
    assert_eq!(shown["result"]["value"], 42);
    let history = json_in(&world, &["runs", "history", &run_id]).await;
    let names: Vec<&str> = history["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["event"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "started",
            "activity_scheduled",
            "activity_completed",
            "completed"
        ]
    );

    signal(&worker, Signal::SIGTERM);
    let (code, log) = end_of(worker).await;
    assert_eq!(code, Some(0), "{log}");
    world.finish([]).await;
}

#[tokio::test]
async fn a_signal_counts_once_and_is_refused_after_the_end() {
    let world = World::new().await;
    let _worker = worker_of(&world);
    run_in(&world, &["start", "approval", "--key", "a"])
        .await
        .assert_code(0);
    let send = [
        "signal",
        "key:a",
        "approved",
        r#""by ada""#,
        "--delivery-id",
        "d1",
    ];
    assert_eq!(json_in(&world, &send).await["outcome"], "accepted");
    let waited = run_in(&world, &["wait", "key:a", "--timeout", "30s"]).await;
    assert_eq!(waited.assert_code(0).stdout, "\"by ada\"\n");

    let late = run_in(
        &world,
        &["signal", "key:a", "approved", "1", "--format", "json"],
    )
    .await;
    assert_eq!(late.assert_code(4).error()["code"], "run_ended");
    let cancel = run_in(&world, &["cancel", "key:a"]).await;
    assert!(
        cancel.assert_code(4).stderr.contains("has ended"),
        "{cancel:?}"
    );
}

#[tokio::test]
async fn a_failed_run_ends_with_1_and_tells_its_causes() {
    let world = World::new().await;
    let _worker = worker_of(&world);
    let waited = run_in(
        &world,
        &["start", "pay", "--key", "p", "--wait", "--timeout", "30s"],
    )
    .await;
    let told = "error: the run failed: the card was declined: the limit is reached";
    assert!(waited.assert_code(1).stderr.contains(told), "{waited:?}");

    let waited = run_in(&world, &["wait", "key:p", "--format", "json"]).await;
    let error = waited.assert_code(1).error();
    assert_eq!(error["code"], "run_failed");
    assert_eq!(error["failure"]["causes"][0], "the limit is reached");
    let shown = run_in(&world, &["runs", "show", "key:p"]).await;
    assert!(
        shown.stdout.contains("caused by  the limit is reached"),
        "{shown:?}"
    );
}

#[tokio::test]
async fn each_sort_of_failure_has_its_code() {
    let world = World::new().await;
    run_in(&world, &["start", "add", "--input", "1", "--key", "k"])
        .await
        .assert_code(0);
    let json = |arguments: &'static [&'static str]| run_in(&world, arguments);

    let conflict = json(&[
        "start", "add", "--input", "2", "--key", "k", "--format", "json",
    ])
    .await;
    assert_eq!(conflict.assert_code(4).error()["code"], "key_conflict");
    let late = json(&["wait", "key:k", "--timeout", "10ms", "--format", "json"]).await;
    assert_eq!(late.assert_code(6).error()["code"], "timed_out");
    let unknown = json(&["runs", "show", NOBODY, "--format", "json"]).await;
    assert_eq!(unknown.assert_code(3).error()["code"], "not_found");
    json(&["signal", "key:nobody", "s"]).await.assert_code(3);
    json(&["cancel", "key:k"]).await.assert_code(0);
    let cancelled = json(&["wait", "key:k", "--format", "json"]).await;
    assert_eq!(cancelled.assert_code(1).error()["code"], "run_cancelled");
}

#[tokio::test]
async fn bad_input_is_refused_with_its_rule_and_nothing_is_stored() {
    let world = World::new().await;
    for (arguments, rule) in [
        (
            &["start", "add", "--input", "{\n\"a\": }"][..],
            "line 2 column 6",
        ),
        (&["start", "add", "--input", ""], "--input is empty"),
        (
            &["start", "add", "--input", "[1, 2]", "--payload-limit", "4"],
            "the limit",
        ),
        (&["start", "a.b"], "allowed are A-Z a-z 0-9 _ -"),
        (&["start", "add", "--key", ""], "key is empty"),
        (&["start", "add", "--namespace", "a b"], "namespace"),
        (
            &["start", "add", "--input-file", "/nowhere.json"],
            "can't be read",
        ),
        (&["runs", "show", "no-uuid"], "key:"),
        (&["wait", NOBODY, "--timeout", "30"], "500ms"),
        (&["runs", "list", "--log", "a=b=c"], "log filter"),
        (
            &["worker", "--session-ttl", "1s"],
            "four times the beat interval",
        ),
    ] {
        let refused = run_in(&world, arguments).await;
        assert!(
            refused.assert_code(2).stderr.contains(rule),
            "{arguments:?}: {refused:?}"
        );
        assert_eq!(refused.stdout, "", "{arguments:?}");
    }
    let usage = run_in(&world, &["start", "--format", "json"]).await;
    assert_eq!(usage.assert_code(2).error()["code"], "usage");
    assert_eq!(
        json_in(&world, &["runs", "list"]).await["runs"],
        Value::Array(vec![])
    );
}

#[tokio::test]
async fn input_comes_from_a_pipe_byte_for_byte() {
    let world = World::new().await;
    let mut command = program_in(
        &world,
        &["start", "add", "--input-file", "-", "--key", "piped"],
    );
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut process = command.spawn().unwrap();
    let text = "{ \"big\": 18446744073709551615,\n  \"é\": 1.10 }";
    process
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .await
        .unwrap();
    assert!(process.wait().await.unwrap().success());

    let shown = run_in(&world, &["runs", "show", "key:piped", "--format", "json"]).await;
    assert!(shown.assert_code(0).stdout.contains(text), "{shown:?}");
}

#[tokio::test]
async fn a_misspelt_workflow_is_started_with_a_warning() {
    let world = World::new().await;
    let started = run_in(&world, &["start", "aproval"]).await;
    assert!(
        started
            .assert_code(0)
            .stderr
            .contains("did you mean `approval`?"),
        "{started:?}"
    );
    let document = json_in(&world, &["start", "aproval"]).await;
    assert!(
        document["warnings"][0]
            .as_str()
            .unwrap()
            .contains("approval"),
        "{document}"
    );
}

#[tokio::test]
async fn a_page_of_runs_says_how_to_go_on() {
    let world = World::new().await;
    for _ in 0..3 {
        run_in(&world, &["start", "work"]).await.assert_code(0);
    }
    let first = json_in(&world, &["runs", "list", "--limit", "2"]).await;
    let next = first["next"].as_str().unwrap();
    assert_eq!(first["runs"][1]["run_id"], next);
    let second = json_in(&world, &["runs", "list", "--limit", "2", "--before", next]).await;
    assert_eq!(second["runs"].as_array().unwrap().len(), 1);
    assert_eq!(second["next"], Value::Null);
    let text = run_in(&world, &["runs", "list", "--limit", "2"]).await;
    assert!(
        text.stderr
            .contains(&format!("shop runs list --before {next}")),
        "{text:?}"
    );
    assert!(
        !text.stdout.contains('\u{1b}'),
        "colours in a pipe: {text:?}"
    );
}

#[tokio::test]
async fn a_database_of_another_version_is_refused_with_the_command_to_run() {
    let world = World::unmigrated().await;
    for arguments in [
        &["runs", "list"][..],
        &["start", "add"],
        &["migrate", "--check"],
        &["worker"],
    ] {
        let refused = run_in(&world, arguments).await;
        assert!(
            refused.assert_code(5).stderr.contains("run `shop migrate`"),
            "{refused:?}"
        );
    }
    let done = json_in(&world, &["migrate"]).await;
    assert_eq!(done["from"], 0);
    let again = json_in(&world, &["migrate"]).await;
    assert_eq!((&again["from"], &again["to"]), (&done["to"], &done["to"]));
    run_in(&world, &["migrate", "--check"]).await.assert_code(0);
}

#[tokio::test]
async fn grants_are_printed_without_a_database() {
    let mut command = program(&["migrate", "--print-grants", "--role", "my\"app"]);
    command.env("CONTINUUM_INSTANCE", "shop");
    let printed = run(command).await;
    let line = r#"GRANT USAGE ON SCHEMA "shop" TO "my""app";"#;
    assert!(printed.assert_code(0).stdout.contains(line), "{printed:?}");
    run(program(&["migrate", "--print-grants"]))
        .await
        .assert_code(2);
}

#[tokio::test]
async fn servers_that_are_away_are_named_and_passwords_never_are() {
    let mut command = program(&["runs", "list"]);
    command
        .env(
            "CONTINUUM_DATABASE_URL",
            "postgres://ada:hush-hush@127.0.0.1:1/shop",
        )
        .env("CONTINUUM_DATABASE_ACQUIRE_TIMEOUT", "200ms")
        .env("CONTINUUM_LOG", "trace");
    let refused = run(command).await;
    assert!(
        refused
            .assert_code(5)
            .stderr
            .contains("127.0.0.1:1/shop is unavailable"),
        "{refused:?}"
    );
    assert!(!refused.stderr.contains("hush"), "{refused:?}");

    let world = World::new().await;
    let mut command = program_in(&world, &["start", "add", "--input", "1"]);
    command.env("CONTINUUM_NATS_URL", "nats://ada:hush-hush@127.0.0.1:1");
    let started = run(command).await;
    assert!(
        started
            .assert_code(0)
            .stderr
            .contains("workers find this by polling"),
        "{started:?}"
    );
    assert!(!started.stderr.contains("hush"), "{started:?}");
}

#[tokio::test]
async fn without_a_database_the_ways_to_one_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = program(&["runs", "list"]);
    command.current_dir(folder.path());
    let refused = run(command).await;
    assert!(
        refused
            .assert_code(2)
            .stderr
            .contains("CONTINUUM_DATABASE_URL"),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("`shop dev`"), "{refused:?}");
}

#[tokio::test]
async fn a_second_signal_ends_a_worker_at_once() {
    let world = World::new().await;
    let worker = worker_of(&world);
    run_in(&world, &["start", "work", "--key", "w"])
        .await
        .assert_code(0);
    until("the activity runs", || async {
        let shown = json_in(&world, &["runs", "show", "key:w"]).await;
        (shown["activities"][0]["running"] == true).then_some(())
    })
    .await;
    signal(&worker, Signal::SIGTERM);
    until("the stop has begun", || async {
        let stopping = json_in(&world, &["runs", "show", "key:w"]).await;
        (stopping["worker"] == Value::Null).then_some(())
    })
    .await;
    signal(&worker, Signal::SIGINT);
    let (code, log) = end_of(worker).await;
    assert_eq!(code, Some(130), "{log}");
    assert!(log.contains("second signal"), "{log}");
}

/// A `dev` in `folder`, once it says that it is there.
pub(crate) async fn dev_in(folder: &Path) -> Child {
    // Started by root, Postgres runs as another user, who must be able to enter.
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    let mut command = program(&["dev"]);
    command
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut dev = command.spawn().unwrap();
    let mut lines = BufReader::new(dev.stdout.take().unwrap()).lines();
    while let Some(line) = lines.next_line().await.unwrap() {
        if line.contains("runs list") {
            return dev;
        }
    }
    panic!("{:?}", end_of(dev).await);
}

pub(crate) async fn run_at(folder: &Path, arguments: &[&str]) -> Ended {
    let mut command = program(arguments);
    command.current_dir(folder);
    run(command).await
}

#[tokio::test]
async fn dev_is_found_by_the_commands_of_its_folder_and_keeps_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let dev = dev_in(here).await;
    let sum = run_at(
        here,
        &["start", "add", "--input", "1", "--key", "k", "--wait"],
    )
    .await;
    assert_eq!(sum.assert_code(0).stdout, "2\n");
    let second = run_at(here, &["dev"]).await;
    assert!(
        second.assert_code(5).stderr.contains("in use"),
        "{second:?}"
    );
    signal(&dev, Signal::SIGINT);
    let (code, log) = end_of(dev).await;
    assert_eq!(code, Some(0), "{log}");
    assert!(!here.join(".continuum/dev.json").exists());

    let dev = dev_in(here).await;
    let kept = run_at(here, &["wait", "key:k"]).await;
    assert_eq!(kept.assert_code(0).stdout, "2\n");
    signal(&dev, Signal::SIGTERM);
    assert_eq!(end_of(dev).await.0, Some(0));
}

#[tokio::test]
async fn a_killed_dev_takes_its_servers_along_and_is_known_to_be_over() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let mut dev = dev_in(here).await;
    let pid_file =
        fs::read_to_string(here.join(".continuum/postgres/data/postmaster.pid")).unwrap();
    let postgres: i32 = pid_file.lines().next().unwrap().parse().unwrap();
    dev.kill().await.unwrap();
    until("Postgres is gone", || async {
        kill(Pid::from_raw(postgres), None).is_err().then_some(())
    })
    .await;
    let refused = run_at(here, &["runs", "list"]).await;
    assert!(
        refused
            .assert_code(5)
            .stderr
            .contains("has ended; start it again"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn help_is_an_answer_and_names_the_program() {
    let help = run(program(&["--help"])).await;
    assert!(
        help.assert_code(0).stdout.contains("Exit codes:"),
        "{help:?}"
    );
    assert!(help.stdout.contains("shop dev"), "{help:?}");
    let start = run(program(&["start", "--help"])).await;
    assert!(
        start
            .assert_code(0)
            .stdout
            .contains("shop start order_flow --input"),
        "{start:?}"
    );
    run(program(&["--version"])).await.assert_code(0);
}

/// `UPDATE_DOCS=1 cargo test -p continuum-tests settings_are_documented` writes the page anew.
#[test]
fn settings_are_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let wanted = cli::reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == wanted,
        "docs/configuration.md is out of date: run the tests once with UPDATE_DOCS=1"
    );
}
