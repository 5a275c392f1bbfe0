//! The rows of what takes long.

use super::claims::Claims;
use super::tables::Against;
use super::timers::Lag;
use super::{Figures, growth, kills, memory, replay, tables, timers};
use crate::report::{Percentiles, row};

/// Prints what was measured.
pub(crate) fn print(figures: &Figures) {
    if let Some(w5) = &figures.w5 {
        print_timers(w5);
    }
    if let Some(w6) = &figures.w6 {
        print_kills(w6);
    }
    if let Some(steps) = &figures.w1_growth {
        print_growth(steps);
    }
    if let Some(memory) = &figures.memory {
        print_memory(memory);
    }
    if let Some(cold) = &figures.w1_cold_runs {
        print_cold_runs(cold);
    }
    if let Some(held) = &figures.w1_held_snapshot {
        print_held_snapshot(held);
    }
    if let Some(replay) = &figures.cold_replay {
        print_replay(replay);
    }
}

fn print_timers(w5: &timers::Timers) {
    println!("\nW5: timers of cold runs, {} workers", w5.workers);
    let print = |name: &str, lag: &Lag| {
        let figures = format!(
            "{} / {:.0} ms, {} cold",
            ms(lag.late),
            lag.late_max_ms,
            lag.cold
        );
        row(
            &format!("{} {name}, p50 / p99 / max late", lag.timers),
            &figures,
        );
    };
    print("at one moment", &w5.at_once);
    print("within a minute", &w5.spread);
}

fn print_kills(w6: &kills::Kills) {
    println!("\nW6: {} runs of 10 steps of 200 ms, 2 workers", w6.runs);
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    row("until the last, undisturbed", &seconds(w6.undisturbed_s));
    row("one killed", &seconds(w6.kill_s));
    let stopped = format!("{:.2} s, {:.2} times", w6.stop_s, w6.stop_ratio());
    row("one asked to stop", &stopped);
}

fn print_growth(steps: &[growth::Step]) {
    println!("\nW1 by runs in flight: runs/s, p50 / p99, CPU a run");
    for step in steps {
        let figures = format!(
            "{:.0} /s, {}, {:.2} ms",
            step.runs_per_s,
            ms(step.run),
            step.cpu_ms_per_run
        );
        row(&step.in_flight.to_string(), &figures);
    }
}

fn print_memory(memory: &memory::Memory) {
    println!("\nwaiting runs");
    for held in &memory.resident {
        let figures = format!(
            "{:.0} bytes a run, worker {:.1} MiB",
            held.bytes_per_run,
            mib(held.worker_kib)
        );
        row(&format!("{} in a worker's memory", held.runs), &figures);
    }
    let cold = &memory.cold;
    let figures = format!(
        "worker {:.1} MiB, {:.1} without runs",
        mib(cold.worker_kib),
        mib(cold.empty_worker_kib)
    );
    row(&format!("{} cold", cold.runs), &figures);
    let (tables, indexes) = (
        cold.postgres_table_bytes_per_run,
        cold.postgres_index_bytes_per_run,
    );
    print_bytes(tables, indexes);
}

fn print_bytes(tables: f64, indexes: f64) {
    let figures = format!("{tables:.0} + {indexes:.0} bytes");
    row("Postgres a cold run, tables + indexes", &figures);
}

fn print_cold_runs(cold: &tables::ColdRuns) {
    println!("\nW1 beside {} cold runs", cold.cold_runs);
    print_against(&cold.w1);
    print_claims("claim", &cold.claims);
    print_claims("fresh claim", &cold.fresh_claims);
    print_bytes(
        cold.postgres_table_bytes_per_run,
        cold.postgres_index_bytes_per_run,
    );
}

fn print_held_snapshot(held: &tables::HeldSnapshot) {
    println!(
        "\nW1 after {} runs beside a held snapshot",
        held.runs_gone_through
    );
    let rates = format!(
        "{:.0} and {:.0} /s",
        held.first_runs_per_s, held.last_runs_per_s
    );
    row("the first tenth of them, the last", &rates);
    print_against(&held.w1);
    print_claims("claim", &held.claims);
    print_claims("fresh claim", &held.fresh_claims);
}

fn print_against(w1: &Against) {
    let rates = format!(
        "{:.0} and {:.0} /s, {:.1} %",
        w1.runs_per_s,
        w1.fresh_runs_per_s,
        w1.ratio() * 100.0
    );
    row("W1 there, on fresh tables, of them", &rates);
    let cpu = format!(
        "{:.2} and {:.2} ms",
        w1.cpu_ms_per_run, w1.fresh_cpu_ms_per_run
    );
    row("CPU a run", &cpu);
}

fn print_claims(name: &str, claims: &Claims) {
    row(&format!("{name} of one run, p50 / p99"), &ms(claims.one));
    row(&format!("{name} of none"), &ms(claims.none));
    row(
        &format!("{name} of none, full pass"),
        &ms(claims.none_full_pass),
    );
}

fn print_replay(replay: &replay::ColdReplay) {
    println!("\ncold runs, signal to result, p50 / p99");
    row(&format!("{} events", replay.events), &ms(replay.long));
    row("2 events", &ms(replay.short));
    row("reading the long history alone", &ms(replay.read));
    let partitions = format!(
        "{} of {}, {:.1} looks a run",
        replay.partitions_read, replay.partitions, replay.scans_per_run
    );
    row("partitions that were looked into", &partitions);
}

fn ms(times: Percentiles) -> String {
    format!("{:.2} / {:.2} ms", times.p50_ms, times.p99_ms)
}

fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}
