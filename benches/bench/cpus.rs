//! Which CPUs there are, and pinning to one.

use crate::shared::system_error;

/// The CPUs this process may use.
pub fn allowed() -> Result<Vec<usize>, String> {
    let set = current()?;
    let all = 0..8 * size_of::<libc::cpu_set_t>();
    // SAFETY: every index is inside the set.
    Ok(all.filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// Pins the calling thread, and what it starts from now on, to one CPU.
pub fn pin(cpu: usize) -> Result<(), String> {
    pin_process(0, cpu)
}

/// Pins the first thread of a process; 0: the calling thread.
pub fn pin_process(process: libc::pid_t, cpu: usize) -> Result<(), String> {
    // SAFETY: all-zero bytes are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the index comes from `allowed`, so it is inside the set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    apply(process, &set)
}

/// Pinned to one CPU until it is dropped.
pub struct Pinned {
    before: libc::cpu_set_t,
}

impl Pinned {
    pub fn to(cpu: usize) -> Result<Self, String> {
        let before = current()?;
        pin(cpu)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Fails only where a CPU went away meanwhile; then the kernel has chosen already.
        let _ = apply(0, &self.before);
    }
}

fn current() -> Result<libc::cpu_set_t, String> {
    // SAFETY: all-zero bytes are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: set is writable and of the size that is said.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    if status == 0 { Ok(set) } else { Err(system_error("sched_getaffinity")) }
}

fn apply(process: libc::pid_t, set: &libc::cpu_set_t) -> Result<(), String> {
    // SAFETY: set is readable and of the size that is said.
    let status = unsafe { libc::sched_setaffinity(process, size_of_val(set), set) };
    if status == 0 { Ok(()) } else { Err(system_error("sched_setaffinity")) }
}
