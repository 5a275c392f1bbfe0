//! The table for people, and the file for comparisons.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::load::{Join, Latency, Throughput};
use crate::long::{self, Figures};

/// The middle and the slow end of some durations.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Percentiles {
    count: usize,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
}

impl Percentiles {
    pub(crate) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let last = times.len().saturating_sub(1);
            times
                .get(last * percent / 100)
                .map_or(0.0, |time| time.as_secs_f64() * 1e3)
        };
        Self {
            count: times.len(),
            p50_ms: at(50),
            p99_ms: at(99),
        }
    }
}

/// What was measured without the engine.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct FloorFigures {
    pub(crate) commit_ms: f64,
    pub(crate) commit_p99_ms: f64,
    /// On eight connections.
    pub(crate) rows_per_s: f64,
    pub(crate) rows_per_s_one_connection: f64,
    /// On one connection; between the rounds of W1, if that was measured.
    pub(crate) append_steps_per_s: f64,
}

/// All figures. A load that was not asked for is absent.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) quick: bool,
    pub(crate) cores: usize,
    pub(crate) floors: FloorFigures,
    pub(crate) w1: Option<Throughput>,
    pub(crate) w1a: Option<Throughput>,
    pub(crate) w2: Option<Latency>,
    pub(crate) w3: Option<Latency>,
    pub(crate) w4: Option<Join>,
    #[serde(flatten)]
    pub(crate) long: Figures,
}

/// The figures that mean the same on every machine.
#[derive(Clone, Copy, Debug, Serialize)]
struct Ratios {
    w1_to_append: Option<f64>,
    w1a_to_w1: Option<f64>,
    w2_in_commits: Option<f64>,
    w3_in_commits: Option<f64>,
    w4_in_commits: Option<f64>,
}

#[derive(Serialize)]
struct File<'a> {
    #[serde(flatten)]
    report: &'a Report,
    ratios: Ratios,
}

impl Report {
    /// Each figure is divided by the floor that was measured in turn with it.
    fn ratios(&self) -> Ratios {
        let to_append = |load: &Throughput| load.steps_per_s / load.append_steps_per_s;
        let in_commits = |load: Latency| load.run.p50_ms / load.commit_ms;
        Ratios {
            w1_to_append: self.w1.as_ref().map(to_append),
            w1a_to_w1: self
                .w1a
                .as_ref()
                .zip(self.w1.as_ref())
                .map(|(w1a, w1)| to_append(w1a) / to_append(w1)),
            w2_in_commits: self.w2.map(in_commits),
            w3_in_commits: self.w3.map(in_commits),
            w4_in_commits: self.w4.map(|join| join.wall_ms / join.commit_ms),
        }
    }

    /// Writes the file; its folder is made if it is missing.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let file = File {
            report: self,
            ratios: self.ratios(),
        };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, serde_json::to_string_pretty(&file)? + "\n")?;
        Ok(())
    }

    pub(crate) fn print(&self, profile: bool) {
        self.print_floors();
        self.print_throughput();
        if profile {
            self.print_profile();
        }
        self.print_latency();
        self.print_ratios();
        long::table::print(&self.long);
    }

    fn print_profile(&self) {
        for (name, load) in [("W1", &self.w1), ("W1a", &self.w1a)] {
            let Some(load) = load else { continue };
            println!("\nprofile of {name}: CPU a run, in its own code and in the kernel's");
            for (part, time) in &load.profile {
                let figures = format!("{:.3} and {:.3} ms", time.user_ms, time.system_ms);
                row(part, &figures);
            }
        }
    }

    fn print_floors(&self) {
        let floors = &self.floors;
        println!("\nfloors");
        let commit = format!("{:.2} / {:.2} ms", floors.commit_ms, floors.commit_p99_ms);
        row("commit of one row, p50 / p99", &commit);
        row(
            "rows of inserts of 100, 1 connection",
            &format!("{:.0} /s", floors.rows_per_s_one_connection),
        );
        row(
            "rows of inserts of 100, 8 connections",
            &format!("{:.0} /s", floors.rows_per_s),
        );
        row(
            "append alone",
            &format!("{:.0} steps/s", floors.append_steps_per_s),
        );
    }

    fn print_throughput(&self) {
        let named = [
            ("W1: 10 steps", &self.w1),
            ("W1a: 10 activities", &self.w1a),
        ];
        for (name, load) in named {
            let Some(load) = load else { continue };
            let cost = load.cost;
            println!("\n{name}, 200 runs in flight");
            row(
                "runs, steps",
                &format!("{:.0} /s, {:.0} /s", load.runs_per_s, load.steps_per_s),
            );
            row(
                "append alone, between the rounds",
                &format!("{:.0} steps/s", load.append_steps_per_s),
            );
            row(
                "commits a run, reads included",
                &format!("{:.2}", cost.commits_per_run),
            );
            row(
                "WAL flushes a run",
                &format!("{:.2}", cost.wal_flushes_per_run),
            );
            row(
                "WAL a run",
                &format!("{:.2} kB", cost.wal_bytes_per_run / 1e3),
            );
            let cpu = format!(
                "{:.2} ms ({})",
                cost.cpu_ms_per_run, cost.cpu_ms_per_run_by_process
            );
            row("CPU a run", &cpu);
            row(
                "peak memory, all processes",
                &format!("{:.0} MiB", load.peak_rss_mib),
            );
        }
    }

    fn print_latency(&self) {
        println!("\nlatency");
        for (name, load) in [
            ("W2: start to result", self.w2),
            ("W3: signal to result", self.w3),
        ] {
            let Some(load) = load else { continue };
            let (run, commit) = (load.run, load.commit_ms);
            let figures = format!(
                "{:.2} / {:.2} ms (a commit {commit:.2} ms)",
                run.p50_ms, run.p99_ms
            );
            row(&format!("{name}, p50 / p99"), &figures);
        }
        if let Some(join) = self.w4 {
            let (wall, max, commit) = (join.wall_ms, join.wall_max_ms, join.commit_ms);
            let figures = format!("{wall:.0} / {max:.0} ms (a commit {commit:.2} ms)");
            row("W4: 1,000 joined activities, p50 / max", &figures);
        }
    }

    fn print_ratios(&self) {
        let ratios = self.ratios();
        println!("\nratios");
        let percent = |ratio: f64| format!("{:.1} %", ratio * 100.0);
        let commits = |ratio: f64| format!("{ratio:.2} commits");
        let all = [
            ("W1 steps to append alone", ratios.w1_to_append.map(percent)),
            ("W1a to W1", ratios.w1a_to_w1.map(percent)),
            ("W2, p50", ratios.w2_in_commits.map(commits)),
            ("W3, p50", ratios.w3_in_commits.map(commits)),
            ("W4", ratios.w4_in_commits.map(commits)),
        ];
        for (name, ratio) in all {
            if let Some(ratio) = ratio {
                row(name, &ratio);
            }
        }
    }
}

pub(crate) fn row(name: &str, value: &str) {
    println!("  {name:<42} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_taken_from_sorted_times() {
        let times: Vec<Duration> = (0..=100).rev().map(Duration::from_millis).collect();
        let of = Percentiles::of(times);
        assert_eq!((of.count, of.p50_ms, of.p99_ms), (101, 50.0, 99.0));
        assert_eq!(Percentiles::of(Vec::new()).count, 0);
    }
}
