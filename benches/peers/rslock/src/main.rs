//! peer-rslock HOST PORT
//!
//! "ready"; then for each line N it does N pairs and says how many ns they took, and how many of its CPU time.

use rslock::LockManager;
use std::time::{Duration, Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, port] = &arguments[..] else { return Err("peer-rslock HOST PORT".into()) };
    let locks = LockManager::new(vec![format!("redis://{host}:{port}/")]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    println!("ready");
    for line in std::io::stdin().lines() {
        let pairs: u32 = line?.trim().parse()?;
        let (wall, cpu) = (Instant::now(), cpu_ns());
        runtime.block_on(async {
            for _ in 0..pairs {
                let lock = locks.lock(b"peer-rslock:cache:my_key:42", Duration::from_secs(60)).await;
                let lock = lock.map_err(|error| format!("not acquired: {error:?}"))?;
                locks.unlock(&lock).await;
            }
            Ok::<(), String>(())
        })?;
        println!("{} {}", wall.elapsed().as_nanos(), cpu_ns() - cpu);
    }
    Ok(())
}

fn cpu_ns() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: time is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}
