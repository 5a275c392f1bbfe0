//! The signals that stop a process.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::{CliError, Code};

/// SIGINT (Ctrl-C) and SIGTERM. The first one asks for an orderly end, the second one for an end at once.
pub(super) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// From here on these signals don't end the process by themselves.
    pub(super) fn listen() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(|e| cannot_listen(&e));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for the next signal and gives its name.
    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }

    /// Runs `work` unless another signal comes first.
    pub(super) async fn unless_again<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, CliError> {
        tokio::select! {
            done = work => Ok(done),
            name = self.next() => Err(CliError::new(
                Code::Interrupted,
                format!("stopped at once by a second signal ({name}); what was under way is taken over by others"),
            )),
        }
    }
}

fn cannot_listen(error: &io::Error) -> CliError {
    CliError::new(
        Code::Unavailable,
        format!("the signals of the system can't be listened to: {error}"),
    )
}
