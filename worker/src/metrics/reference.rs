//! The metrics as a page of documentation, made from the text that a worker gives out.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use continuum_bus::Bus;
use continuum_schema::{DatabaseConfig, Name};

use super::Metrics;
use crate::config::{BusSource, WorkerConfig};

const HEAD: &str = "\
# Metrics

A worker gives out its metrics at `GET /metrics` of its HTTP port, in the text format of Prometheus, and to a program
that holds it as `Worker::metrics`. This page is made from that text.

- Each worker counts for itself, from its start. What the fleet did is the sum over its workers.
- What is about Postgres as a whole, such as `continuum_reconciler_ownerless_runs`, is what this worker last saw of it:
  take the maximum over the workers, not the sum.
- Every value of a label is there from the start.

| Metric | Type | Labels | Meaning |
| --- | --- | --- | --- |
";

const ALERTS: &str = "
## What to alert on

Each line is a rule for Prometheus: the expression, how long it should hold, and what it tells. What to do then is in
[Operating](operating.md).

| Expression | For | Tells |
| --- | --- | --- |
| `absent(continuum_worker_state{state=\"ready\"} == 1)` | 1m | no worker is ready: nothing goes on, or nothing goes on as it should |
| `max(continuum_reconciler_ownerless_runs) > 0` | 5m | runs are due and nobody takes them: no worker has their code, or all are full |
| `max(continuum_reconciler_overdue_timers) > 0` | 5m | timers are due and nobody fires them |
| `max(continuum_reconciler_expired_attempts) > 0` | 5m | attempts of dead workers are not recovered |
| `increase(continuum_session_lost_total[10m]) > 0` | | a worker lost its session and dropped all it held: Postgres was away, or the worker was starved |
| `rate(continuum_session_renewals_total{outcome=\"failed\"}[5m]) > 0` | 5m | heartbeats fail: sessions are about to be lost |
| `continuum_nats_connected == 0` | 2m | a worker is without NATS: it works by polling, and signals over NATS wait |
| `increase(continuum_runs_blocked_total[15m]) > 0` | | a run can't go on: its code has drifted, panicked or waits for something foreign |
| `increase(continuum_signals_rejected_total[15m]) > 0` | | a signal could not be taken and was kept with its reason |
| `increase(continuum_journal_appends_total{outcome=\"failed\"}[15m]) > 0` | | Postgres refuses to store what a run decided |
| `histogram_quantile(0.99, sum by (le) (rate(continuum_journal_flush_seconds_bucket[5m]))) > 1` | 5m | commits take longer than a second |
| `continuum_database_connections - continuum_database_connections_idle >= continuum_database_connections_max` | 5m | a worker's pool is used up: work waits for connections |
| `rate(continuum_reconciler_passes_total{outcome=\"failed\"}[5m]) > 0` | 10m | what repairs the work of dead workers does not get through |
| `rate(continuum_catch_up_passes_total{outcome=\"failed\"}[5m]) > 0` | 10m | what finds lost hints does not get through |
";

/// The documentation page of all metrics, as Markdown.
#[doc(hidden)]
#[must_use]
pub fn reference() -> String {
    let families = parse(&example().text()).expect("a worker's own text is well-formed");
    let mut page = HEAD.to_owned();
    for family in families {
        let labels: Vec<String> = family
            .labels()
            .into_iter()
            .map(|l| format!("`{l}`"))
            .collect();
        writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            family.name,
            family.kind,
            labels.join(", "),
            family.help
        )
        .expect("a String takes whatever is written to it");
    }
    page + ALERTS
}

/// The names of all metrics, those of a histogram's parts included.
#[doc(hidden)]
#[must_use]
pub fn names() -> Vec<String> {
    let families = parse(&example().text()).expect("a worker's own text is well-formed");
    let names = families.into_iter().flat_map(|family| {
        let parts: &[&str] = match family.kind.as_str() {
            "histogram" => &["", "_bucket", "_sum", "_count"],
            _ => &[""],
        };
        parts
            .iter()
            .map(move |part| format!("{}{part}", family.name))
    });
    names.collect()
}

/// The metrics of a worker that is never started.
fn example() -> Metrics {
    let instance = Name::new("example").expect("it keeps to the alphabet of names");
    let database = DatabaseConfig::new("", &instance);
    Metrics::new(&WorkerConfig::new(
        instance,
        database,
        BusSource::Shared(Bus::memory()),
    ))
}

/// One metric with all of its samples.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) help: String,
    pub(super) samples: Vec<Sample>,
}

/// One line of the text.
#[derive(Debug)]
pub(super) struct Sample {
    labels: Vec<String>,
}

impl Family {
    /// The names of its labels, without that of a histogram's buckets.
    fn labels(&self) -> BTreeSet<&str> {
        let labels = self.samples.iter().flat_map(|sample| &sample.labels);
        labels
            .map(String::as_str)
            .filter(|label| *label != "le")
            .collect()
    }
}

/// Reads the text format as strictly as the page and the tests need it.
///
/// # Errors
/// The first line that is none.
pub(super) fn parse(text: &str) -> Result<Vec<Family>, String> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        let wrong = || format!("not a line of the text format: {line:?}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(wrong)?;
            families.push(Family {
                name: name.to_owned(),
                help: help.to_owned(),
                ..Family::default()
            });
            continue;
        }
        let family = families.last_mut().ok_or_else(wrong)?;
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let kind = rest.strip_prefix(&family.name).ok_or_else(wrong)?;
            family.kind = kind.trim().to_owned();
        } else {
            let sample = sample(line, family).ok_or_else(wrong)?;
            family.samples.push(sample);
        }
    }
    Ok(families)
}

fn sample(line: &str, family: &Family) -> Option<Sample> {
    let rest = line.strip_prefix(&family.name)?;
    let (head, value) = rest.rsplit_once(' ')?;
    value.parse::<f64>().ok()?;
    let (suffix, labels) = match head.split_once('{') {
        Some((suffix, labels)) => (suffix, label_names(labels.strip_suffix('}')?)?),
        None => (head, Vec::new()),
    };
    let is_known = match family.kind.as_str() {
        "histogram" => ["_bucket", "_sum", "_count"].contains(&suffix),
        "counter" | "gauge" => suffix.is_empty(),
        _ => false,
    };
    is_known.then_some(Sample { labels })
}

/// The names in `a="…",b="…"`, where a value may hold an escaped quote.
fn label_names(mut text: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"")?;
        names.push(name.to_owned());
        let mut escaped = false;
        let end = rest.find(|c| {
            let closes = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        })?;
        text = rest[end + 1..].trim_start_matches(',');
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_read_past_quotes_and_braces() {
        assert_eq!(
            label_names(r#"a="x\"}, y",b="\\""#),
            Some(vec!["a".to_owned(), "b".to_owned()])
        );
        assert_eq!(label_names(r#"a="x"#), None);
    }

    #[test]
    fn what_is_no_sample_of_its_metric_is_refused() {
        let text = "# HELP a A thing.\n# TYPE a gauge\n";
        for wrong in ["a x\n", "b 1\n", "a_sum 1\n", "a{b=\"c\" 1\n"] {
            assert!(parse(&format!("{text}{wrong}")).is_err(), "{wrong}");
        }
        assert!(parse(&format!("{text}a{{b=\"c\"}} 1\n")).is_ok());
    }
}
