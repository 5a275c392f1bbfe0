//! The command line that every user binary becomes.
//!
//! A binary of one line, `continuum_worker::main(registry![…])`, is a worker, a client, an operator's tool and a whole
//! private cluster. The `continuum` program is the same with an empty registry.
//!
//! | module | holds |
//! | --- | --- |
//! | `dev`, `migrate`, `worker`, `start`, `signal`, `cancel`, `wait`, `runs`, `signals`, `workers`, `health` | the commands, a file each |
//! | `settings`, `dev_file` | flags and variables, and what they become |
//! | `link` | the connections of a client's command |
//! | `input`, `run_ref` | what users write: JSON, and the names of runs |
//! | `output`, `view`, `payload_text` | what they read |
//! | `error` | failures and exit codes |
//! | `logs`, `stop` | the log, and the signals that stop a process |
//! | `reference` | the settings as a page of documentation |

mod cancel;
mod dev;
mod dev_file;
mod error;
mod health;
mod input;
mod link;
mod logs;
mod migrate;
mod output;
mod reference;
mod run_ref;
mod runs;
mod settings;
mod signal;
mod signals;
mod start;
mod stop;
mod wait;
mod worker;
mod workers;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::error::{CliError, Code, EXIT_CODES};
use self::logs::LogArgs;
use self::output::{Output, OutputFormat};
use crate::Registry;

pub use self::reference::reference;

/// The program that help texts and examples are written for; a user's binary puts its own name there.
const PROGRAM: &str = "continuum";

const FORMAT_VARIABLE: &str = "CONTINUUM_FORMAT";

#[derive(Parser)]
#[command(name = PROGRAM, version, about = "Durable workflows on Postgres and NATS", propagate_version = true)]
#[command(subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// How to answer
    #[arg(long, env = FORMAT_VARIABLE, global = true, value_enum, value_name = "FORMAT", default_value_t = OutputFormat::Text, help_heading = "Output")]
    format: OutputFormat,

    #[command(flatten)]
    logs: LogArgs,
}

#[derive(Subcommand)]
enum Command {
    Dev(dev::DevArgs),
    Migrate(migrate::MigrateArgs),
    Worker(Box<worker::WorkerCommandArgs>),
    Start(start::StartArgs),
    Signal(signal::SignalCommandArgs),
    Cancel(cancel::CancelArgs),
    Wait(wait::WaitArgs),
    #[command(subcommand)]
    Runs(runs::RunsCommand),
    #[command(subcommand)]
    Signals(signals::SignalsCommand),
    #[command(subcommand)]
    Workers(workers::WorkersCommand),
    Health(health::HealthArgs),
}

impl Command {
    /// What is logged unless somebody asks for more or less.
    fn log_level(&self) -> &'static str {
        match self {
            // The libraries below tell of things that are told here in our own words.
            Self::Dev(_) | Self::Worker(_) => "info,sqlx=warn,async_nats=warn",
            _ => "error",
        }
    }
}

/// What every command is given beside its own arguments.
struct Context<'a> {
    /// The name that this program was started under.
    program: &'a str,
    registry: Registry,
    output: &'a Output,
}

/// The whole program: reads the command line, runs the command, and gives the exit code.
///
/// ```no_run
/// use continuum_worker::prelude::*;
///
/// #[workflow(version = 1)]
/// async fn greet(_ctx: &WorkflowContext, name: String) -> Result<String, WorkflowError> {
///     Ok(format!("Hello {name}"))
/// }
///
/// fn main() -> std::process::ExitCode {
///     continuum_worker::main(continuum_worker::registry![greet])
/// }
/// ```
#[must_use = "the exit code is what `main` returns"]
pub fn main(registry: Registry) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let program = program_name(arguments.first());
    let parsed = command(&program)
        .try_get_matches_from(&arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(cli) => run(cli, registry, &program),
        Err(error) => refuse(&error, &arguments),
    }
}

fn run(cli: Cli, registry: Registry, program: &str) -> ExitCode {
    let output = Output::new(cli.format);
    let context = Context {
        program,
        registry,
        output: &output,
    };
    match run_command(cli, context) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let error = error.named_after(program);
            if !error.is_silent() {
                output.error(&error);
            }
            error.exit_code()
        }
    }
}

fn run_command(cli: Cli, context: Context<'_>) -> Result<(), CliError> {
    cli.logs.start(cli.command.log_level())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| {
            CliError::new(
                Code::Unavailable,
                format!("the async runtime does not start: {e}"),
            )
        })?;
    let done = runtime.block_on(async {
        match cli.command {
            Command::Dev(args) => Box::pin(dev::run(args, context)).await,
            Command::Migrate(args) => Box::pin(migrate::run(args, context)).await,
            Command::Worker(args) => Box::pin(worker::run(*args, context)).await,
            Command::Start(args) => Box::pin(start::run(args, context)).await,
            Command::Signal(args) => Box::pin(signal::run(args, context)).await,
            Command::Cancel(args) => Box::pin(cancel::run(args, context)).await,
            Command::Wait(args) => Box::pin(wait::run(args, context)).await,
            Command::Runs(command) => Box::pin(runs::run(command, context)).await,
            Command::Signals(command) => Box::pin(signals::run(command, context)).await,
            Command::Workers(command) => Box::pin(workers::run(command, context)).await,
            Command::Health(args) => Box::pin(health::run(args, context)).await,
        }
    });
    // An orderly end has been waited for above. After a second signal nothing may hold the process.
    runtime.shutdown_background();
    done
}

/// Help and version are answers; everything else is a failure, in the form that was asked for.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    if error.use_stderr() && wants_json(arguments) {
        let text = error.render().to_string();
        let failure = CliError::usage(text.trim().trim_start_matches("error: "));
        Output::new(OutputFormat::Json).error(&failure);
        return failure.exit_code();
    }
    // A reader that has gone away needs no help.
    drop(error.print());
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Whether errors of a command line that can't be read should be JSON.
fn wants_json(arguments: &[OsString]) -> bool {
    let json = OsStr::new("json");
    let by_flag = arguments.iter().any(|argument| argument == "--format=json")
        || arguments
            .windows(2)
            .any(|pair| pair[0] == "--format" && pair[1] == json);
    by_flag || std::env::var_os(FORMAT_VARIABLE).as_deref() == Some(json)
}

/// The command line as clap sees it, with the examples in the name of `program`.
fn command(program: &str) -> clap::Command {
    let codes: Vec<String> = EXIT_CODES
        .iter()
        .map(|(code, text)| format!("  {code:>3}  {text}"))
        .collect();
    let help = format!(
        "{}\n\nExit codes:\n{}",
        examples(EXAMPLES),
        codes.join("\n")
    );
    rename(
        Cli::command()
            .after_help(help)
            .display_name(program)
            .bin_name(program),
        program,
    )
}

const EXAMPLES: &str = "\
continuum dev                                  a private cluster with this program's workflows
continuum start order_flow --input '{\"id\": 7}'
continuum runs list
continuum runs show key:order-7
continuum worker                               serve the cluster of CONTINUUM_DATABASE_URL
continuum workers list                         who serves it";

/// Examples as a part of a help text.
fn examples(lines: &str) -> String {
    let lines: Vec<String> = lines.lines().map(|line| format!("  {line}")).collect();
    format!("Examples:\n{}", lines.join("\n"))
}

/// Puts the program's name into the examples of a command and of those below it.
fn rename(mut command: clap::Command, program: &str) -> clap::Command {
    if let Some(help) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(help.replace("continuum ", &format!("{program} ")));
    }
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| rename(sub, program))
    })
}

/// The name under which this program was started.
fn program_name(first: Option<&OsString>) -> String {
    let name = first.and_then(|path| Path::new(path).file_name());
    name.map_or_else(
        || PROGRAM.to_owned(),
        |name| name.to_string_lossy().into_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        command(PROGRAM).debug_assert();
    }

    #[test]
    fn help_speaks_in_the_name_of_the_program() {
        let mut orders = command("orders");
        let help = orders.render_long_help().to_string();
        assert!(help.contains("  orders dev "), "{help}");
        assert!(!help.contains("continuum dev"), "{help}");
        for sub in orders.get_subcommands_mut() {
            let help = sub.render_long_help().to_string();
            assert!(!help.contains("  continuum "), "{help}");
        }
    }

    #[test]
    fn each_command_shows_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                command.has_subcommands() || help.contains("Examples:"),
                "{path} has no example"
            );
            command.get_subcommands().for_each(|sub| check(sub, &path));
        }
        check(&command(PROGRAM), "");
    }

    #[test]
    fn what_only_a_worker_needs_is_shown_to_workers_only() {
        let command = command(PROGRAM);
        for sub in command.get_subcommands() {
            let has = sub
                .get_arguments()
                .any(|argument| argument.get_long() == Some("activities-max"));
            assert_eq!(
                has,
                ["dev", "worker"].contains(&sub.get_name()),
                "{}",
                sub.get_name()
            );
        }
    }

    #[test]
    fn no_secret_is_shown_in_a_help_text() {
        fn check(command: &clap::Command) {
            for argument in command.get_arguments() {
                let name = argument.get_long().unwrap_or_default();
                if ["password", "token", "url"]
                    .iter()
                    .any(|secret| name.contains(secret))
                {
                    assert!(argument.is_hide_env_values_set(), "{name}");
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&command(PROGRAM));
    }
}
