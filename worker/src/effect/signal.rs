use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use continuum_schema::{Name, Payload};
use futures::future::FusedFuture;
use serde::de::DeserializeOwned;

use super::{Handle, INVALID, Timeout, TimerEffect, What};
use crate::error::{Cancelled, WorkflowError, kind};
use crate::replay::{Delivery, EffectKind, Request};
use crate::workflow::SignalName;

/// Why a wait for a signal gave no value. It passes through `?` and keeps its meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalError {
    /// The run was asked to stop.
    Cancelled,
    /// A signal came, but it doesn't carry what the code wants. It is used up; wait again for the next one.
    Decode(String),
    /// The name can't be that of a signal.
    Name(String),
}

impl fmt::Display for SignalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => Cancelled.fmt(f),
            Self::Decode(reason) | Self::Name(reason) => f.write_str(reason),
        }
    }
}

impl From<Cancelled> for SignalError {
    fn from(_: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl From<SignalError> for WorkflowError {
    fn from(error: SignalError) -> Self {
        match error {
            SignalError::Cancelled => Cancelled.into(),
            SignalError::Decode(reason) => Self::permanent(kind::DECODE, reason),
            SignalError::Name(reason) => Self::permanent(INVALID, reason),
        }
    }
}

/// A wait for a signal, made with [`WorkflowContext::signal`](crate::WorkflowContext::signal).
///
/// Waits of one name get the signals of that name in the order in which both came.
#[must_use = "a wait for a signal does nothing until it is awaited or started"]
pub struct SignalEffect<'ctx, T> {
    handle: Handle<'ctx>,
    signal: SignalName<T>,
}

impl<'ctx, T: DeserializeOwned> SignalEffect<'ctx, T> {
    pub(crate) fn new(handle: Handle<'ctx>, signal: SignalName<T>) -> Self {
        Self { handle, signal }
    }

    /// Waits from now on, not from the first poll on.
    pub fn start(mut self) -> Self {
        if self.check().is_ok() {
            let name = self.signal.as_str();
            self.handle.start(what(name), || request(name));
        }
        self
    }

    /// Waits so long at most; `None` if no signal came. The timer is set when the wait is first polled.
    #[track_caller]
    pub fn timeout(self, after: Duration) -> SignalTimeout<'ctx, T> {
        let timer = TimerEffect::new(self.handle.sibling(), after);
        SignalTimeout(Timeout::new(timer, self))
    }

    fn check(&self) -> Result<(), SignalError> {
        match Name::of("signal name", self.signal.as_str()) {
            Ok(_) => Ok(()),
            Err(e) => Err(SignalError::Name(e.to_string())),
        }
    }

    fn received(&self, payload: &Payload) -> Result<T, SignalError> {
        payload.decode().map_err(|e| {
            let message = format!("signal `{}`: {e}", self.signal.as_str());
            SignalError::Decode(message)
        })
    }
}

impl<T: DeserializeOwned> Future for SignalEffect<'_, T> {
    type Output = Result<T, SignalError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.handle.is_fresh()
            && let Err(error) = self.check()
        {
            self.handle.refuse();
            return Poll::Ready(Err(error));
        }
        let name = self.signal.as_str();
        let polled = self.handle.poll(what(name), cx, || request(name));
        polled.map(|delivery| match delivery {
            Delivery::Signal(payload) => self.received(&payload),
            _ => Err(SignalError::Cancelled),
        })
    }
}

impl<T: DeserializeOwned> FusedFuture for SignalEffect<'_, T> {
    fn is_terminated(&self) -> bool {
        self.handle.is_over()
    }
}

/// A wait for a signal with a time limit, made with [`SignalEffect::timeout`].
#[must_use = "a wait for a signal does nothing until it is awaited"]
pub struct SignalTimeout<'ctx, T: DeserializeOwned>(Timeout<'ctx, SignalEffect<'ctx, T>>);

impl<T: DeserializeOwned> Future for SignalTimeout<'_, T> {
    type Output = Result<Option<T>, SignalError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|waited| waited?.transpose())
    }
}

impl<T: DeserializeOwned> FusedFuture for SignalTimeout<'_, T> {
    fn is_terminated(&self) -> bool {
        self.0.is_terminated()
    }
}

fn what(name: &'static str) -> What<'static> {
    What(EffectKind::Signal, name)
}

fn request(name: &'static str) -> Request {
    Request::Signal { name: name.into() }
}
