//! The soak: `soak [--minutes n] [--seeds a,b,…] [--seconds n]`. Episodes of so many seconds, each with the plan of one
//! seed, on servers of its own, until the minutes are over; without seeds they go up from `CONTINUUM_SEED`, or from 1.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use continuum_tests::cluster::{Episode, Plan, Report, episode, load};
use continuum_tests::{ProcessSettings, serve};

/// How many workers there are.
const WORKERS: usize = 5;

struct Arguments {
    minutes: f64,
    seconds: f64,
    seeds: Vec<u64>,
}

impl Arguments {
    fn read() -> Result<Self, String> {
        let mut read = Self {
            minutes: 5.0,
            seconds: 40.0,
            seeds: Vec::new(),
        };
        let mut words = std::env::args().skip(1);
        while let Some(name) = words.next() {
            let value = words.next().ok_or(format!("{name} needs a value"))?;
            let wrong = |_| format!("{name} {value}: not a number");
            match name.as_str() {
                "--minutes" => read.minutes = value.parse().map_err(wrong)?,
                "--seconds" => read.seconds = value.parse().map_err(wrong)?,
                "--seeds" => {
                    let seeds = value.split(',').map(str::parse);
                    read.seeds = seeds
                        .collect::<Result<_, _>>()
                        .map_err(|_| format!("{name} {value}: not a list of numbers"))?;
                }
                _ => return Err(format!("{name}: unknown")),
            }
        }
        Ok(read)
    }

    /// The seeds that were given, or all from the first one on.
    fn seeds(&self) -> Box<dyn Iterator<Item = u64>> {
        if !self.seeds.is_empty() {
            return Box::new(self.seeds.clone().into_iter());
        }
        let first = std::env::var("CONTINUUM_SEED").ok();
        Box::new(first.and_then(|seed| seed.parse().ok()).unwrap_or(1)..)
    }
}

async fn soak(arguments: Arguments) -> ExitCode {
    let since = Instant::now();
    let length = Duration::from_secs_f64(arguments.seconds);
    let mut report = Report::default();
    let mut survived = Vec::new();
    for seed in arguments.seeds() {
        if since.elapsed().as_secs_f64() >= arguments.minutes * 60.0 {
            break;
        }
        println!("{}", Plan::new(seed, WORKERS, length));
        // A panic has told what is broken.
        let one = tokio::spawn(episode(Episode {
            process: "soak",
            seed,
            workers: WORKERS,
            length,
        }));
        let Ok(one) = one.await else {
            println!(
                "soak: FAILED. Once more: make soak SEED={seed}, or soak --seeds {seed} --seconds {}",
                arguments.seconds
            );
            return ExitCode::FAILURE;
        };
        println!("seed {seed} survived\n{one}");
        report.add(&one);
        survived.push(seed.to_string());
    }
    println!(
        "soak: {} episodes in {:.0} s, seeds {}\n{report}",
        survived.len(),
        since.elapsed().as_secs_f64(),
        survived.join(", ")
    );
    ExitCode::SUCCESS
}

#[tokio::main]
async fn main() -> ExitCode {
    if ProcessSettings::of_this_process().is_some() {
        serve(load::registry()).await;
        return ExitCode::SUCCESS;
    }
    match Arguments::read() {
        Ok(arguments) => soak(arguments).await,
        Err(wrong) => {
            eprintln!("soak: {wrong}");
            ExitCode::from(2)
        }
    }
}
