//! `buflock_op`: the same work as steps, for event loops.

use super::lock::{InfoOut, StructOut, buflock_info, buflock_t, or_uncertain, write_hold, write_holder, write_token};
use super::words::{Cut, TEXT, buflock_status};
use super::{boundary, bytes, given, guarded, text_bytes};
use crate::answer::{Acquire, Answer};
use crate::config::Address;
use crate::error::{ArgumentFault, Error};
use crate::op::{Op, Run};
use crate::policy::NS_PER_MS;
use crate::redis::wire::Reply;
use crate::step::Step;
use std::ffi::{c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr;

/// What to do next about an op.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum buflock_step_kind {
    /// Nothing: call buflock_op_finish.
    BUFLOCK_STEP_DONE = 0,
    /// Connect to `host` and `port`, or take a connection out of `pool`; then call buflock_op_connected or _fail.
    BUFLOCK_STEP_CONNECT = 1,
    /// Send `data`, all of it; each is said once. buflock_op_fail where that can't be.
    BUFLOCK_STEP_SEND = 2,
    /// Receive some bytes and pass them to buflock_op_feed.
    BUFLOCK_STEP_RECV = 3,
    /// Sleep for `ms`.
    BUFLOCK_STEP_SLEEP = 4,
    /// Wait until the bell says `id`, at most for `ms`.
    BUFLOCK_STEP_BELL = 5,
    /// Let your own client run a command, once: this is said until it is answered. Its arguments by buflock_op_argument, its reply to buflock_op_reply.
    BUFLOCK_STEP_CALL = 6,
}

/// A step. Its pointers are good until the next call with the op.
/// Locks in shared memory ask for DONE, SLEEP and BELL only; those over a Redis server for DONE, CONNECT, SEND, RECV and
/// SLEEP; those of a `redis:` URL without server for DONE, CALL and SLEEP.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct buflock_step {
    /// In: sizeof(buflock_step). No byte beyond it is written.
    pub size: u32,
    /// A buflock_step_kind.
    pub kind: i32,
    /// When so much time has passed call buflock_op_next again; the op knows what it means.
    pub ms: u32,
    /// BELL: the number that buflock_bell_read will say.
    pub id: u32,
    /// DONE, CONNECT: 1 the connection in use is clean and may be pooled, 0 close it.
    pub keep: i32,
    /// CONNECT: 1 TLS with certificate and name checked.
    pub tls: i32,
    /// CONNECT: 0: host is the path of a Unix socket.
    pub port: u32,
    /// CALL: number of arguments.
    pub count: u32,
    /// CONNECT; also the server name for TLS.
    pub host: *const c_char,
    /// CONNECT: reuse only connections pooled under this name.
    pub pool: *const c_char,
    /// SEND.
    pub data: *const c_char,
    /// SEND.
    pub data_len: usize,
}

/// The kind of a reply that a caller's own client got.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum buflock_reply {
    /// No value.
    BUFLOCK_REPLY_NIL = 0,
    /// A text.
    BUFLOCK_REPLY_TEXT = 1,
    /// A number.
    BUFLOCK_REPLY_INTEGER = 2,
    /// An error, as the server said it.
    BUFLOCK_REPLY_ERROR = 3,
}

/// One call for an event loop; used by one thread at a time, and only in the process that made it: in a forked child it
/// can only be freed, which frees memory and nothing else. It may outlive its lock.
/// Its functions: buflock_op_acquire, _extend, _release, _await, _inspect, _break; _next, _connected, _feed, _fail,
/// _argument, _reply, _cancel, _run; _finish, _holder, _error, _free.
pub struct buflock_op {
    op: Op,
    text: [u8; TEXT],
}

/// Makes an op and hands it out.
fn make(
    op: Option<&mut MaybeUninit<*mut buflock_op>>,
    new: impl FnOnce() -> Result<Op, Error>,
) -> Result<buflock_status, Error> {
    let place = given(op, "op")?;
    place.write(Box::into_raw(Box::new(buflock_op { op: new()?, text: [0; TEXT] })));
    Ok(buflock_status::BUFLOCK_OK)
}

/// Runs the body of a call with an op, and keeps the text of its failure in the op too.
fn with_op(op: Option<&mut buflock_op>, body: impl FnOnce(&mut Op) -> Result<buflock_status, Error>) -> c_int {
    boundary(|| {
        let buflock_op { op, text } = given(op, "op")?;
        let answer = op.check_process().map_err(Error::from).and_then(|()| body(op));
        if let Err(error) = &answer {
            Cut::write(text, error);
        }
        answer
    })
}

/// Acquires in steps; arguments as in buflock_acquire. Nothing is done before the first buflock_op_next or _run.
///
/// # Safety
/// `key` holds `key_len` bytes; `op` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_acquire(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    ttl_ms: u32,
    wait_ms: u32,
    op: Option<&mut MaybeUninit<*mut buflock_op>>,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, key_len, "key") }?;
        make(op, || lock.0.op_acquire(key, ttl_ms, wait_ms))
    })
}

/// Extends in steps; arguments as in buflock_extend.
///
/// # Safety
/// `key` holds `key_len` bytes; `token` is NULL or ends in NUL; `op` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_extend(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    token: *const c_char,
    ttl_ms: u32,
    op: Option<&mut MaybeUninit<*mut buflock_op>>,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let (key, token) = unsafe { (bytes(key, key_len, "key")?, text_bytes(token, "token")?) };
        make(op, || lock.0.op_extend(key, token, ttl_ms))
    })
}

/// Releases in steps; arguments as in buflock_release.
///
/// # Safety
/// `key` holds `key_len` bytes; `token` is NULL or ends in NUL; `op` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_release(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    token: *const c_char,
    op: Option<&mut MaybeUninit<*mut buflock_op>>,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let (key, token) = unsafe { (bytes(key, key_len, "key")?, text_bytes(token, "token")?) };
        make(op, || Ok(lock.0.op_release(key, token)))
    })
}

/// Awaits in steps; arguments as in buflock_await.
///
/// # Safety
/// `key` holds `key_len` bytes; `op` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_await(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    wait_ms: u32,
    op: Option<&mut MaybeUninit<*mut buflock_op>>,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, key_len, "key") }?;
        make(op, || Ok(lock.0.op_await(key, wait_ms)))
    })
}

/// Looks who holds `key`, in steps; buflock_op_finish answers as buflock_inspect, and buflock_op_holder says who.
///
/// # Safety
/// `key` holds `key_len` bytes; `op` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_inspect(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    op: Option<&mut MaybeUninit<*mut buflock_op>>,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, key_len, "key") }?;
        make(op, || Ok(lock.0.op_inspect(key)))
    })
}

/// Breaks in steps; as buflock_break.
///
/// # Safety
/// `key` holds `key_len` bytes; `op` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_break(
    lock: Option<&buflock_t>,
    key: *const c_char,
    key_len: usize,
    op: Option<&mut MaybeUninit<*mut buflock_op>>,
) -> c_int {
    boundary(|| {
        let lock = given(lock, "lock")?;
        // SAFETY: the caller's promise.
        let key = unsafe { bytes(key, key_len, "key") }?;
        make(op, || Ok(lock.0.op_break(key)))
    })
}

/// Says what to do next. It never sleeps; call it as often as you like.
///
/// # Safety
/// `step` is NULL or has `step->size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_next(op: Option<&mut buflock_op>, step: *mut buflock_step) -> c_int {
    with_op(op, |op| {
        // SAFETY: the caller's promise.
        let out = unsafe { StructOut::new(step, "step") }?;
        let told = step_of(op);
        out.write(&told);
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// The next step of an op as C sees it.
fn step_of(op: &mut Op) -> buflock_step {
    use buflock_step_kind as kind;
    let step = op.next();
    let none = ptr::null();
    let (data, data_len) = (none, 0);
    let (size, id, keep, count) = (0, 0, 0, 0);
    let (tls, port, host, pool) = (0, 0, none, none);
    let idle = buflock_step { size, kind: 0, ms: 0, id, keep, tls, port, count, host, pool, data, data_len };
    match step {
        Step::Done { keep } => buflock_step { kind: kind::BUFLOCK_STEP_DONE as i32, keep: keep.into(), ..idle },
        Step::Sleep { ms } => buflock_step { kind: kind::BUFLOCK_STEP_SLEEP as i32, ms, ..idle },
        Step::Bell { id, ms } => buflock_step { kind: kind::BUFLOCK_STEP_BELL as i32, ms, id, ..idle },
        Step::Call { ms, count } => buflock_step { kind: kind::BUFLOCK_STEP_CALL as i32, ms, count, ..idle },
        Step::Receive { ms } => buflock_step { kind: kind::BUFLOCK_STEP_RECV as i32, ms, ..idle },
        Step::Send { ms } => {
            let bytes = op.outgoing();
            let (kind, data) = (kind::BUFLOCK_STEP_SEND as i32, bytes.as_ptr().cast());
            buflock_step { kind, ms, data, data_len: bytes.len(), ..idle }
        }
        Step::Connect { ms } => {
            let kind = kind::BUFLOCK_STEP_CONNECT as i32;
            let Some((server, may_wait)) = op.server() else { return buflock_step { kind, ms, ..idle } };
            let (port, tls) = match server.address {
                Address::Tcp { port, tls, .. } => (port.into(), tls.into()),
                Address::Unix(_) => (0, 0),
            };
            let pool = if may_wait { &server.waiting_pool } else { &server.pool };
            buflock_step { kind, ms, tls, port, host: server.host.as_ptr(), pool: pool.as_ptr(), ..idle }
        }
    }
}

/// After CONNECT: the connection stands; `fresh` 0: it was taken from the pool.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_op_connected(op: Option<&mut buflock_op>, fresh: c_int) -> c_int {
    with_op(op, |op| {
        op.connected(fresh != 0)?;
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// After RECV: bytes that came.
///
/// # Safety
/// `data` holds `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_feed(op: Option<&mut buflock_op>, data: *const c_char, size: usize) -> c_int {
    with_op(op, |op| {
        // SAFETY: the caller's promise.
        op.feed(unsafe { bytes(data, size, "data") }?)?;
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// Connecting, sending, receiving or the client failed; `why` is for the error text. Not for a time limit: then call
/// buflock_op_next.
///
/// # Safety
/// `why` is NULL or ends in NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_fail(op: Option<&mut buflock_op>, why: *const c_char) -> c_int {
    with_op(op, |op| {
        // SAFETY: the caller's promise.
        let why = unsafe { text_bytes(why, "why") }?;
        op.fail(&String::from_utf8_lossy(why))?;
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// After CALL: argument number `index` of the command, from 0.
///
/// # Safety
/// `data` and `size` are NULL or places for a pointer and a size_t.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_argument(
    op: Option<&buflock_op>,
    index: u32,
    data: Option<&mut MaybeUninit<*const c_char>>,
    size: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    boundary(|| {
        let op = given(op, "op")?;
        let (data, size) = (given(data, "data")?, given(size, "size")?);
        op.op.check_process()?;
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        let argument = op.op.argument(index).ok_or(ArgumentFault::NotAsked("a call with such an argument"))?;
        data.write(argument.as_ptr().cast());
        size.write(argument.len());
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// After CALL: the reply that your client got, a buflock_reply.
///
/// # Safety
/// `text` holds `text_len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_reply(
    op: Option<&mut buflock_op>,
    kind: c_int,
    number: i64,
    text: *const c_char,
    text_len: usize,
) -> c_int {
    with_op(op, |op| {
        // SAFETY: the caller's promise.
        let text = unsafe { bytes(text, text_len, "text") }?;
        let reply = match kind {
            0 => Reply::Nil,
            1 => Reply::Text(text.to_vec()),
            2 => Reply::Integer(number),
            3 => Reply::Error(String::from_utf8_lossy(text).into_owned()),
            _ => return Err(ArgumentFault::ReplyKind(kind).into()),
        };
        op.reply(&reply)?;
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// The caller has lost interest: an acquire or an await ends BUSY and holds nothing, a release or an extend goes on.
/// After a success was fetched it does nothing. Steps go on until DONE.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_op_cancel(op: Option<&mut buflock_op>) -> c_int {
    with_op(op, |op| {
        op.cancel();
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// Drives the op here, blocking, for at most `slice_ms`: OK it is done, INTERRUPTED a signal came or the slice is over:
/// nothing is lost, call it again. The only call that hands signals back.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_op_run(op: Option<&mut buflock_op>, slice_ms: u32) -> c_int {
    with_op(op, |op| {
        Ok(match op.run(u64::from(slice_ms) * NS_PER_MS)? {
            Run::Done => buflock_status::BUFLOCK_OK,
            Run::Interrupted => buflock_status::BUFLOCK_INTERRUPTED,
        })
    })
}

/// The result, as the blocking call would give it; may be asked again. With an acquire's OK the lock is the caller's
/// from now on: `token` has BUFLOCK_TOKEN_SIZE bytes, and may be NULL but for an acquire; `info` may be NULL.
/// BUFLOCK_ARGUMENT: it is not done.
///
/// # Safety
/// `token` is NULL or has BUFLOCK_TOKEN_SIZE bytes; `info` is NULL or has `info->size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_finish(
    op: Option<&mut buflock_op>,
    token: *mut c_char,
    info: *mut buflock_info,
) -> c_int {
    with_op(op, |op| {
        // SAFETY: the caller's promise.
        let info = unsafe { InfoOut::or_none(info) }?;
        if op.held().is_some() && token.is_null() {
            return Err(ArgumentFault::Null("token").into()); // not fetched: it is still given back
        }
        // SAFETY: the caller's promise.
        Ok(match unsafe { or_uncertain(op.finish()?, token) }? {
            Answer::Acquire(Acquire::Held(held)) => {
                // SAFETY: not NULL, and the caller's promise.
                unsafe { write_token(&held.token, token) };
                info.write(&held.into());
                buflock_status::BUFLOCK_OK
            }
            Answer::Acquire(Acquire::Busy(busy)) => {
                info.write(&busy.into());
                buflock_status::BUFLOCK_BUSY
            }
            Answer::Verdict(verdict) => verdict.into(),
            Answer::Await(answer) => answer.into(),
            Answer::Hold(held) => write_hold(&info, held),
        })
    })
}

/// After an inspect that is done: writes who holds the lock, as buflock_inspect does; nothing where nobody does.
///
/// # Safety
/// `holder` is NULL or has `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn buflock_op_holder(op: Option<&buflock_op>, holder: *mut c_char, room: usize) -> c_int {
    boundary(|| {
        let op = given(op, "op")?;
        if holder.is_null() {
            return Err(ArgumentFault::Null("holder").into());
        }
        op.op.check_process()?;
        // SAFETY: not NULL, and the caller's promise.
        unsafe { write_holder(holder, room, op.op.hold()) };
        Ok(buflock_status::BUFLOCK_OK)
    })
}

/// The text of the op's last failure, empty before the first, never NULL; good until the next call with the op.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_op_error(op: Option<&buflock_op>) -> *const c_char {
    guarded(c"".as_ptr(), || op.map_or(c"op is NULL".as_ptr(), |op| op.text.as_ptr().cast()))
}

/// Frees an op; NULL is allowed. An acquire that is not done, or whose success was not fetched, gives the lock back; a
/// release that is not done is done; extend and await are forgotten. In a forked child: memory only.
#[unsafe(no_mangle)]
pub extern "C" fn buflock_op_free(op: Option<Box<buflock_op>>) {
    guarded((), || drop(op));
}
