//! The lock service: picks the backend and applies the options that both share.

use crate::answer::{Acquire, Answer, Await, Hold, Verdict};
use crate::cancel::Uncancelled;
use crate::config::{Settings, Target, parse_url};
use crate::error::{BellFault, Error};
use crate::off::Off;
use crate::op::{Ends, Op};
use crate::policy::{lease, wait};
use crate::redis::Redis;
use crate::redis::machine::Want as RedisWant;
use crate::shm::Shm;
use crate::shm::machine::Want;
use crate::stats::Object;
use crate::token::Token;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A lock service: one URL and its options. May be used by many threads at once, and on both sides of a fork.
pub struct Client {
    backend: Backend,
    ttl_ms: u32,
    timeout_ms: u32,
    ends: Arc<Ends>,
}

enum Backend {
    Shm(Arc<Shm>),
    Redis(Arc<Redis>),
    Off(Off),
}

impl Client {
    /// The service at `url`. Nothing is opened before the first use.
    ///
    /// # Errors
    /// A URL or an option in it that cannot be used.
    pub fn new(url: &str, mut settings: Settings) -> Result<Self, Error> {
        let _uncancelled = Uncancelled::new();
        let target = parse_url(url, &mut settings)?;
        let (ttl_ms, timeout_ms) = (settings.ttl_ms, settings.timeout_ms);
        let backend = match target {
            Target::Shm(name) => Backend::Shm(Arc::new(Shm::new(name, settings))),
            Target::Redis(address) => Backend::Redis(Arc::new(Redis::new(address, settings)?)),
            Target::Off => Backend::Off(Off::default()),
        };
        Ok(Self { backend, ttl_ms, timeout_ms, ends: Arc::default() })
    }

    /// Acquires `key` for `ttl_ms`, waiting at most `wait_ms`; [`crate::policy::DEFAULT`] is what the options say.
    ///
    /// # Errors
    /// Whatever else than a held or a busy lock.
    #[inline]
    pub fn acquire(&self, key: &[u8], ttl_ms: u32, wait_ms: u32) -> Result<Acquire, Error> {
        self.acquire_telling(key, ttl_ms, wait_ms, true)
    }

    /// The same. `tell_left` false: it does not matter how long another holds the lock, which Redis answers a little
    /// faster.
    ///
    /// # Errors
    /// As of [`Self::acquire`].
    #[inline]
    pub fn acquire_telling(&self, key: &[u8], ttl_ms: u32, wait_ms: u32, tell_left: bool) -> Result<Acquire, Error> {
        let (ttl_ms, wait_ms) = (lease(ttl_ms, self.ttl_ms)?, wait(wait_ms, self.timeout_ms));
        match &self.backend {
            Backend::Shm(shm) => shm.acquire(key, ttl_ms, wait_ms),
            Backend::Redis(redis) => {
                let token = Token::random().map_err(|_| Error::NoRandom)?;
                Ok(redis.block(RedisWant::Acquire { ttl_ms, tell_left }, key, &token.0, wait_ms)?.into_acquire())
            }
            Backend::Off(off) => off.acquire(ttl_ms),
        }
    }

    /// Gives the hold that `token` names a lease of `ttl_ms` from now on.
    ///
    /// # Errors
    /// Whatever else than a verdict.
    #[inline]
    pub fn extend(&self, key: &[u8], token: &[u8], ttl_ms: u32) -> Result<Verdict, Error> {
        let ttl_ms = lease(ttl_ms, self.ttl_ms)?;
        match &self.backend {
            Backend::Shm(shm) => shm.extend(key, token, ttl_ms),
            Backend::Redis(redis) => Ok(redis.block(RedisWant::Extend { ttl_ms }, key, token, 0)?.into_verdict()),
            Backend::Off(_) => Ok(Verdict::Ok),
        }
    }

    /// Gives `key` back if `token` still holds it.
    ///
    /// # Errors
    /// Whatever else than a verdict.
    #[inline]
    pub fn release(&self, key: &[u8], token: &[u8]) -> Result<Verdict, Error> {
        match &self.backend {
            Backend::Shm(shm) => shm.release(key, token),
            Backend::Redis(redis) => Ok(redis.block(RedisWant::Release, key, token, 0)?.into_verdict()),
            Backend::Off(_) => Ok(Verdict::Ok),
        }
    }

    /// As release, but without network I/O, for finalizers: OK over Redis says that it goes ahead of the next command.
    ///
    /// # Errors
    /// Whatever else than a verdict.
    pub fn drop_hold(&self, key: &[u8], token: &[u8]) -> Result<Verdict, Error> {
        match &self.backend {
            Backend::Redis(redis) => {
                redis.drop_hold(key, token)?;
                Ok(Verdict::Ok)
            }
            _ => self.release(key, token),
        }
    }

    /// Waits at most `wait_ms` until `key` is free, was released or has changed hands.
    ///
    /// # Errors
    /// Whatever else than an answer.
    pub fn wait_for_end(&self, key: &[u8], wait_ms: u32) -> Result<Await, Error> {
        match &self.backend {
            Backend::Shm(shm) => shm.wait_for_end(key, wait(wait_ms, self.timeout_ms)),
            Backend::Redis(redis) => {
                Ok(redis.block(RedisWant::Await, key, b"", wait(wait_ms, self.timeout_ms))?.into_await())
            }
            Backend::Off(_) => Ok(Await::Over),
        }
    }

    /// Who holds `key`; None: nobody.
    ///
    /// # Errors
    /// Whatever else than an answer.
    pub fn inspect(&self, key: &[u8]) -> Result<Option<Hold>, Error> {
        match &self.backend {
            Backend::Shm(shm) => Ok(shm.inspect(key)?.map(Hold::from)),
            Backend::Redis(redis) => Ok(redis.block(RedisWant::Inspect, key, b"", 0)?.into_hold()),
            Backend::Off(_) => Ok(None),
        }
    }

    /// An operator's act: frees `key`, whoever holds it. EXPIRED: nobody did.
    ///
    /// # Errors
    /// Whatever else than a verdict.
    pub fn end_any(&self, key: &[u8]) -> Result<Verdict, Error> {
        match &self.backend {
            Backend::Shm(shm) => shm.end_any(key),
            Backend::Redis(redis) => Ok(redis.block(RedisWant::Break, key, b"", 0)?.into_verdict()),
            Backend::Off(_) => Ok(Verdict::Expired),
        }
    }

    /// An acquire in steps; times as of [`Self::acquire`].
    ///
    /// # Errors
    /// Times that cannot be.
    pub fn op_acquire(&self, key: &[u8], ttl_ms: u32, wait_ms: u32) -> Result<Op, Error> {
        let (ttl_ms, wait_ms) = (lease(ttl_ms, self.ttl_ms)?, wait(wait_ms, self.timeout_ms));
        Ok(match &self.backend {
            Backend::Shm(shm) => Op::shm(shm, key, Want::Acquire { ttl_ms }, wait_ms, &self.ends),
            Backend::Redis(redis) => {
                let token = Token::random().map_err(|_| Error::NoRandom)?;
                Op::redis(redis, RedisWant::Acquire { ttl_ms, tell_left: true }, key, &token.0, wait_ms, &self.ends)
            }
            Backend::Off(off) => Op::answered(off.acquire(ttl_ms).map(Answer::Acquire), &self.ends),
        })
    }

    /// An extend in steps.
    ///
    /// # Errors
    /// A lease that cannot be.
    pub fn op_extend(&self, key: &[u8], token: &[u8], ttl_ms: u32) -> Result<Op, Error> {
        let ttl_ms = lease(ttl_ms, self.ttl_ms)?;
        Ok(match &self.backend {
            Backend::Shm(shm) => Op::shm(shm, key, Want::Extend { token: Token::parse(token), ttl_ms }, 0, &self.ends),
            Backend::Redis(redis) => Op::redis(redis, RedisWant::Extend { ttl_ms }, key, token, 0, &self.ends),
            Backend::Off(_) => Op::answered(Ok(Answer::Verdict(Verdict::Ok)), &self.ends),
        })
    }

    /// A release in steps.
    pub fn op_release(&self, key: &[u8], token: &[u8]) -> Op {
        match &self.backend {
            Backend::Shm(shm) => Op::shm(shm, key, Want::Release { token: Token::parse(token) }, 0, &self.ends),
            Backend::Redis(redis) => Op::redis(redis, RedisWant::Release, key, token, 0, &self.ends),
            Backend::Off(_) => Op::answered(Ok(Answer::Verdict(Verdict::Ok)), &self.ends),
        }
    }

    /// An await in steps.
    pub fn op_await(&self, key: &[u8], wait_ms: u32) -> Op {
        let wait_ms = wait(wait_ms, self.timeout_ms);
        match &self.backend {
            Backend::Shm(shm) => Op::shm(shm, key, Want::Await, wait_ms, &self.ends),
            Backend::Redis(redis) => Op::redis(redis, RedisWant::Await, key, b"", wait_ms, &self.ends),
            Backend::Off(_) => Op::answered(Ok(Answer::Await(Await::Over)), &self.ends),
        }
    }

    /// An inspect in steps.
    pub fn op_inspect(&self, key: &[u8]) -> Op {
        match &self.backend {
            Backend::Redis(redis) => Op::redis(redis, RedisWant::Inspect, key, b"", 0, &self.ends),
            _ => Op::answered(self.inspect(key).map(Answer::Hold), &self.ends),
        }
    }

    /// A break in steps.
    pub fn op_break(&self, key: &[u8]) -> Op {
        match &self.backend {
            Backend::Redis(redis) => Op::redis(redis, RedisWant::Break, key, b"", 0, &self.ends),
            _ => Op::answered(self.end_any(key).map(Answer::Verdict), &self.ends),
        }
    }

    /// The service behind the bell.
    ///
    /// # Errors
    /// Only waits in shared memory have a bell.
    pub fn bell(&self) -> Result<&Shm, Error> {
        match &self.backend {
            Backend::Shm(shm) => Ok(shm),
            Backend::Redis(_) | Backend::Off(_) => Err(BellFault::NotShm.into()),
        }
    }

    /// What is worth knowing, as a JSON object.
    ///
    /// # Errors
    /// The backend cannot be asked.
    pub fn stats(&self) -> Result<String, Error> {
        let mut json = Object::default();
        json.text("version", crate::VERSION);
        json.number("abi", u64::from(crate::ABI));
        match &self.backend {
            Backend::Shm(shm) => shm.stats(&mut json)?,
            Backend::Redis(redis) => redis.stats(&mut json),
            Backend::Off(off) => off.stats(&mut json),
        }
        for (name, count) in [
            ("ops_ok", &self.ends.ok),
            ("ops_busy", &self.ends.busy),
            ("ops_lost", &self.ends.lost),
            ("ops_failed", &self.ends.failed),
            ("ops_cancelled", &self.ends.cancelled),
        ] {
            json.number(name, count.load(Relaxed));
        }
        Ok(json.finish())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _uncancelled = Uncancelled::new();
        if let Backend::Shm(shm) = &self.backend {
            shm.close(); // its ops may live on, its thread may not
        }
    }
}
