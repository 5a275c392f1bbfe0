//! What the demo shows while it runs: a bar on a terminal, a line a second elsewhere.

use std::io::{IsTerminal as _, stderr, stdout};
use std::time::Duration;

use continuum_examples::Totals;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// How far the orders are.
pub(super) struct Progress {
    began: Instant,
    last_line: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    pub(super) fn new(orders: u32, began: Instant) -> Self {
        let on_terminal = stdout().is_terminal() && stderr().is_terminal();
        Self {
            began,
            last_line: began,
            bar: on_terminal.then(|| bar(orders)),
        }
    }

    /// Shows how many orders were placed and have ended, and what was done meanwhile.
    pub(super) fn show(&mut self, placed: usize, totals: Totals, ended: usize) {
        let Totals {
            charges,
            shipments,
            refunds,
            ..
        } = totals;
        let text = format!(
            "placed {placed}, charged {charges}, shipped {shipments}, refunded {refunds}, ended {ended}"
        );
        if let Some(bar) = &self.bar {
            bar.set_position(ended as u64);
            bar.set_message(text);
        } else if self.last_line.elapsed() >= LINE_INTERVAL {
            self.last_line = Instant::now();
            println!("{:5.1} s  {text}", self.began.elapsed().as_secs_f64());
        }
    }

    /// Says something above the bar.
    pub(super) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| println!("{text}")),
            None => println!("{text}"),
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(orders: u32) -> ProgressBar {
    let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar:.green} {msg}")
        .expect("the template is well-formed");
    ProgressBar::new(u64::from(orders)).with_style(style)
}
