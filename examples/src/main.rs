//! `orders`: a worker of the orders example with every command of Continuum, and `orders demo`.

mod demo;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == "demo") {
        return demo::main(arguments);
    }
    match demo::end_with_parent().and_then(|()| continuum_examples::registry()) {
        Ok(registry) => continuum_worker::main(registry),
        Err(error) => {
            eprintln!("orders: {error:#}");
            ExitCode::FAILURE
        }
    }
}
