//! The torture: processes that are killed and stopped inside every step of the protocol, on a table too small for their
//! keys, and a check of every answer they get. And the mutants: planted bugs that the torture must find.
//!
//! It needs the library's test hooks:
//! `RUSTFLAGS="--cfg buflock_test" cargo test --release --test torture --target-dir target/hooks -- --help`

#![allow(missing_docs)] // a program, read from its source

#[cfg(buflock_test)]
mod board;
#[cfg(buflock_test)]
mod chaos;
#[cfg(buflock_test)]
mod claim;
#[cfg(buflock_test)]
mod history;
#[cfg(buflock_test)]
mod mutants;
#[cfg(buflock_test)]
mod plan;
#[cfg(buflock_test)]
mod random;
#[cfg(buflock_test)]
mod report;
#[cfg(buflock_test)]
mod run;
#[cfg(buflock_test)]
mod scan;
#[cfg(buflock_test)]
mod scenes;
#[cfg(buflock_test)]
mod sleep;
#[cfg(buflock_test)]
mod stage;
#[cfg(buflock_test)]
mod steps;
#[cfg(buflock_test)]
mod sys;
#[cfg(buflock_test)]
mod worker;

#[cfg(not(buflock_test))]
fn main() {
    eprintln!("the torture needs the library's test hooks: build it with RUSTFLAGS=\"--cfg buflock_test\"");
    std::process::exit(2);
}

#[cfg(buflock_test)]
fn main() {
    let task = plan::parse(std::env::args().skip(1)).unwrap_or_else(|wrong| {
        eprintln!("{wrong}\n\n{}", plan::USAGE);
        std::process::exit(2);
    });
    sys::catch_interrupts();
    let (passed, failed) = match task {
        plan::Task::Help => {
            println!("{}", plan::USAGE);
            return;
        }
        plan::Task::Torture(plan) => one(torture(&plan)),
        plan::Task::Mutants(plan) => mutants::run(&plan),
    };
    println!("{passed} passed, {failed} failed");
    std::process::exit(i32::from(failed > 0));
}

#[cfg(buflock_test)]
fn torture(plan: &plan::Plan) -> bool {
    match run::run(plan) {
        Ok(outcome) => report::print(plan, &outcome),
        Err(wrong) => {
            println!("WRONG  {wrong}");
            false
        }
    }
}

#[cfg(buflock_test)]
fn one(passed: bool) -> (u32, u32) {
    if passed { (1, 0) } else { (0, 1) }
}
