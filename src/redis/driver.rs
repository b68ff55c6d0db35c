//! Drives a machine with sockets of ours, blocking.

use super::Redis;
use super::machine::Machine;
use super::socket::Received;
use super::transport::{Connection, Unopened};
use crate::cancel::Uncancelled;
use crate::error::ServerFault;
use crate::hooks::{Mutant, mutant};
use crate::policy::NS_PER_MS;
use crate::step::Step;
use crate::sys::{Slept, monotonic, sleep};

/// The connection that a machine uses.
#[derive(Default)]
pub struct Link(Option<Connection>);

/// Drives it until it is done: true. With `slice`, in ns, it comes back after so long, or when a signal comes: false.
pub fn drive(redis: &Redis, machine: &mut Machine, link: &mut Link, slice: Option<u64>) -> bool {
    let _uncancelled = Uncancelled::new();
    let begun = monotonic();
    let end = slice.map_or(u64::MAX, |slice| begun.saturating_add(slice));
    let mut now = begun;
    loop {
        let step = machine.next(redis, now);
        let until = |ms: u32| now.saturating_add(u64::from(ms) * NS_PER_MS);
        match step {
            Step::Done { keep } => {
                put_back(redis, link, keep, now);
                return true;
            }
            Step::Connect { ms } => {
                put_back(redis, link, false, now);
                connect(redis, machine, link, now, until(ms));
            }
            Step::Send { ms } => {
                let sent = match &mut link.0 {
                    Some(connection) => connection.send(machine.outgoing(), until(ms)),
                    None => Err("there is no connection".to_owned()),
                };
                if let Err(why) = sent {
                    // What it says before it closes is the reason: that there are too many clients, for one.
                    let said = receive(redis, machine, link, monotonic());
                    if !matches!(said, Received::Bytes(_)) {
                        machine.fail(redis, &why, monotonic());
                    }
                }
            }
            Step::Receive { ms } => {
                if now >= end {
                    return false;
                }
                match receive(redis, machine, link, until(ms).min(end)) {
                    Received::Lost(why) => drop(machine.fail(redis, &why, monotonic())),
                    Received::Interrupted if slice.is_some() => return false,
                    Received::Bytes(_) | Received::Elapsed | Received::Interrupted => {}
                }
            }
            Step::Sleep { ms } => {
                if now >= end {
                    return false;
                }
                let slept = sleep(until(ms).min(end) - now);
                if slept == Slept::Interrupted && slice.is_some() {
                    return false;
                }
            }
            Step::Bell { .. } | Step::Call { .. } => unreachable!("a server's machine asks for neither"),
        }
        now = monotonic();
    }
}

/// Gives the connection back to the others, or closes it.
pub fn put_back(redis: &Redis, link: &mut Link, keep: bool, now: u64) {
    if let Some(connection) = link.0.take() {
        let pool = &redis.local().pool;
        if keep { pool.keep(connection, now) } else { pool.abort(connection) }
    }
}

fn connect(redis: &Redis, machine: &mut Machine, link: &mut Link, now: u64, until: u64) {
    let (local, Some(server)) = (redis.local(), &redis.server) else { return };
    let kept = if machine.wants_fresh() { None } else { local.pool.take(now) };
    if let Some(connection) = kept {
        link.0 = Some(connection);
        machine.connected(redis, false, now);
        return;
    }
    let tls = match local.trust.begin(&server.address, redis.settings.ca_file.as_deref()) {
        Ok(tls) => tls,
        Err(error) => return machine.give_up(redis, error, monotonic()),
    };
    if !local.pool.reserve(!machine.may_be_refused(), until) {
        // No failure of the server's.
        let error = redis.fault(ServerFault::Unreachable, "all 64 connections of this process are in use");
        return machine.give_up(redis, error, monotonic());
    }
    match Connection::open(&server.address, tls, &local.resolver, until, redis.command_time()) {
        Ok(connection) => {
            link.0 = Some(connection);
            machine.connected(redis, true, monotonic());
        }
        Err(Unopened { why, by_us }) => {
            local.pool.closed();
            if by_us && !mutant(Mutant::OwnLimitsOpen) {
                return machine.give_up(redis, redis.fault(ServerFault::Unreachable, &why), monotonic());
            }
            machine.fail(redis, &why, monotonic());
        }
    }
}

fn receive(redis: &Redis, machine: &mut Machine, link: &mut Link, until: u64) -> Received {
    let Some(connection) = &mut link.0 else { return Received::Lost("there is no connection".to_owned()) };
    let mut bytes = [0u8; 1024];
    let received = connection.receive(&mut bytes, until);
    if let Received::Bytes(count) = received {
        machine.feed(redis, &bytes[..count], monotonic());
    }
    received
}
