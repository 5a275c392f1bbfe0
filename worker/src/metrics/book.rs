//! Registers metrics: the prefix is the same for all, and each value of a label is there from the start, so that a rate
//! begins at 0 and not in the void.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// A level in seconds.
pub(crate) type SecondsGauge = Gauge<f64, AtomicU64>;

/// One label and its value.
type Label = [(&'static str, &'static str); 1];

pub(super) struct Book {
    registry: Registry,
}

impl Book {
    pub(super) fn new() -> Self {
        Self {
            registry: Registry::with_prefix("continuum"),
        }
    }

    pub(super) fn close(self) -> Registry {
        self.registry
    }

    pub(super) fn counter(&mut self, name: &str, help: &str) -> Counter {
        let counter = Counter::default();
        self.registry.register(name, help, counter.clone());
        counter
    }

    /// A counter for each value of a label.
    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: [&'static str; N],
    ) -> [Counter; N] {
        let family = Family::<Label, Counter>::default();
        self.registry.register(name, help, family.clone());
        values.map(|value| family.get_or_create_owned(&[(label, value)]))
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str) -> Gauge {
        let gauge = Gauge::default();
        self.registry.register(name, help, gauge.clone());
        gauge
    }

    /// A gauge for each value of a label.
    pub(super) fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        values: [&'static str; N],
    ) -> [Gauge; N] {
        let family = Family::<Label, Gauge>::default();
        self.registry.register(name, help, family.clone());
        values.map(|value| family.get_or_create_owned(&[(label, value)]))
    }

    /// A gauge in seconds; the unit is put behind the name.
    pub(super) fn seconds_gauge(&mut self, name: &str, help: &str) -> SecondsGauge {
        let gauge = SecondsGauge::default();
        self.registry
            .register_with_unit(name, help, Unit::Seconds, gauge.clone());
        gauge
    }

    pub(super) fn histogram<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        buckets: [f64; N],
    ) -> Histogram {
        let histogram = Histogram::new(buckets);
        self.registry.register(name, help, histogram.clone());
        histogram
    }

    /// A histogram in seconds; the unit is put behind the name.
    pub(super) fn seconds_histogram<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        buckets: [f64; N],
    ) -> Histogram {
        let histogram = Histogram::new(buckets);
        self.registry
            .register_with_unit(name, help, Unit::Seconds, histogram.clone());
        histogram
    }

    /// A gauge that is always 1 and says what it has to say in its labels.
    pub(super) fn info(&mut self, name: &str, help: &str, labels: Vec<(&'static str, String)>) {
        let family = Family::<Vec<(&'static str, String)>, Gauge>::default();
        family.get_or_create_owned(&labels).set(1);
        self.registry.register(name, help, family);
    }
}
