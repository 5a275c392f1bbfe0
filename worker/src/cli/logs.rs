//! The log: to standard error, as text or as JSON lines.

use std::io;

use anstream::{AutoStream, ColorChoice};
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

use super::error::CliError;

/// The form of log lines.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// What is logged.
#[derive(Args, Debug)]
pub(super) struct LogArgs {
    /// What is logged to standard error: a level, or a filter such as `info,continuum_worker=debug` [default: `info` for
    /// `worker` and `dev`, `error` elsewhere]
    #[arg(
        long,
        env = "CONTINUUM_LOG",
        global = true,
        value_name = "FILTER",
        help_heading = "Output"
    )]
    log: Option<String>,

    /// The form of log lines
    #[arg(long, env = "CONTINUUM_LOG_FORMAT", global = true, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text, help_heading = "Output")]
    log_format: LogFormat,
}

impl LogArgs {
    /// Starts to log, once for the life of the process.
    pub(super) fn start(&self, default_level: &str) -> Result<(), CliError> {
        let filter = self
            .log
            .as_deref()
            .filter(|filter| !filter.is_empty())
            .unwrap_or(default_level);
        let filter = EnvFilter::builder().parse(filter).map_err(|e| {
            CliError::usage(format!("the log filter {filter:?} can't be read: {e}"))
        })?;
        let lines = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr);
        let started = match self.log_format {
            LogFormat::Json => lines.json().flatten_event(true).try_init(),
            LogFormat::Text => {
                let colored = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
                lines.with_ansi(colored).with_target(false).try_init()
            }
        };
        // Somebody who set up a log of their own before calling `main` keeps it.
        if started.is_err() {
            tracing::debug!("the log was set up already");
        }
        Ok(())
    }
}
