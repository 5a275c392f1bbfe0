use continuum_examples::{charge_card, order_flow, refund, ship};
use continuum_worker::prelude::*;

fn main() -> std::process::ExitCode {
    continuum_worker::main(registry![order_flow, charge_card, ship, refund])
}
