//! Effects: what a workflow asks its context for, each a future.
//!
//! An effect is lazy. It is issued, and numbered, when it is first polled or when its `start` is called; one that is
//! never polled leaves no trace. Dropping an issued effect cancels it. All effects are `Unpin` and fused, so they can
//! be raced by reference and polled in a loop.

mod activity;
mod join;
mod race;
mod shield;
mod signal;
mod step;
mod timeout;
mod timer;

use std::fmt;
use std::panic::Location;
use std::task::{Context, Poll};

use continuum_schema::EffectId;

use crate::replay::{Blocked, Delivery, EffectKind, Issue, Request, Shared};

pub use activity::{ActivityEffect, INVALID};
pub use futures::future::Either;
pub use join::JoinAll;
pub use race::Race;
pub use shield::Shield;
pub use signal::{SignalEffect, SignalError, SignalTimeout};
pub use step::StepEffect;
pub use timeout::Timeout;
pub use timer::TimerEffect;

/// An effect's name for messages.
#[derive(Clone, Copy)]
struct What<'a>(EffectKind, &'a str);

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            "" => self.0.fmt(f),
            name => write!(f, "{} {name:?}", self.0),
        }
    }
}

/// What all effects have in common: a number once they are issued, and a cancel when they are dropped.
pub(crate) struct Handle<'ctx> {
    shared: &'ctx Shared,
    location: &'static Location<'static>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fresh,
    Issued(EffectId),
    /// The code has seen how it ended.
    Over,
}

impl<'ctx> Handle<'ctx> {
    pub(crate) fn new(shared: &'ctx Shared, location: &'static Location<'static>) -> Self {
        Self {
            shared,
            location,
            stage: Stage::Fresh,
        }
    }

    /// A handle for another effect that was made on the caller's line.
    #[track_caller]
    fn sibling(&self) -> Self {
        Self::new(self.shared, Location::caller())
    }

    fn is_fresh(&self) -> bool {
        self.stage == Stage::Fresh
    }

    fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Issues the effect if that has not been done. A cancelled run asks for nothing; the next poll tells the code.
    fn start(&mut self, what: What<'_>, request: impl FnOnce() -> Request) {
        self.shared.check_current(what);
        if self.stage != Stage::Fresh {
            return;
        }
        let issue = self.shared.lock().issue(request, self.location, None);
        if let Issue::Issued(effect) = issue {
            self.stage = Stage::Issued(effect);
        }
    }

    /// Issues the effect at the first call, and gives what became of it once that is known.
    fn poll(
        &mut self,
        what: What<'_>,
        cx: &mut Context<'_>,
        request: impl FnOnce() -> Request,
    ) -> Poll<Delivery> {
        self.shared.check_current(what);
        match self.stage {
            Stage::Fresh => self.issue(cx, request),
            Stage::Issued(effect) => {
                let (polled, replaced) = self.shared.lock().slots_mut().poll(effect, cx.waker());
                drop(replaced);
                if polled.is_ready() {
                    self.stage = Stage::Over;
                }
                polled
            }
            Stage::Over => self.polled_after_end(what),
        }
    }

    fn issue(&mut self, cx: &mut Context<'_>, request: impl FnOnce() -> Request) -> Poll<Delivery> {
        let mut state = self.shared.lock();
        match state.issue(request, self.location, Some(cx.waker())) {
            Issue::Issued(effect) => {
                self.stage = Stage::Issued(effect);
                Poll::Pending
            }
            Issue::Cancelled => {
                self.stage = Stage::Over;
                Poll::Ready(Delivery::Cancelled)
            }
            Issue::Halted => Poll::Pending,
        }
    }

    /// Gives up an effect that was never issued because it can't be.
    fn refuse(&mut self) {
        self.stage = Stage::Over;
    }

    fn polled_after_end<T>(&self, what: What<'_>) -> T {
        let message = format!(
            "{what} was polled again after it had ended ({})",
            self.location
        );
        self.shared.lock().fail(Blocked::Panicked(message.clone()));
        panic!("{message}");
    }

    /// Fails the turn because a value of the history doesn't decode. A fixed build can go on from here.
    fn undecodable<T>(&self, what: What<'_>, message: &dyn fmt::Display) -> Poll<T> {
        self.shared.lock().fail(Blocked::Undecodable {
            what: format!("the result of {what}"),
            message: message.to_string(),
            location: self.location.to_string(),
        });
        Poll::Pending
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if let Stage::Issued(effect) = self.stage {
            self.shared.drop_effect(effect);
        }
    }
}
