/* buflock.h - locks that end by themselves, shared by threads, processes and languages.
 *
 * Made from src/ffi; do not edit.
 *
 * Results   Calls return int: 0 done, > 0 an expected answer, < 0 a failure; see buflock_status. Outputs come last and
 *           are written only as said. Only a result < 0 sets buflock_last_error.
 * Handles   Made by _new, freed once by _free; _free takes NULL and does no network I/O.
 * Strings   Keys are bytes with a length (any, also 0) and may hold NULs. Other strings end in NUL.
 * NULL      Where it is not allowed: BUFLOCK_ARGUMENT, and the text names the parameter.
 * Time      In ms.
 * Threads   A buflock_t may be used by many threads at once, a buflock_config or a buflock_op by one at a time.
 * Fork      A handle made before fork works on both sides. A token is plain text and belongs to whoever has it; an op
 *           belongs to the process that made it. A child's exit releases nothing.
 * Signals   EINTR is retried against the same deadline; only buflock_op_run hands signals back.
 * Effects   No thread but the bell's, no handler, environment read (but SSL_CERT_FILE and SSL_CERT_DIR by rediss: without
 *           ca_file) or output at load or in a call; errno is kept; fds are CLOEXEC. A bug inside is BUFLOCK_PANIC, never an unwinding host.
 */

#ifndef BUFLOCK_H
#define BUFLOCK_H

#include <stddef.h>
#include <stdint.h>

#define BUFLOCK_VERSION "0.1.0"
#define BUFLOCK_VERSION_MAJOR 0
#define BUFLOCK_VERSION_MINOR 1
#define BUFLOCK_VERSION_PATCH 0

// Room for a token: it is text, today 32 hex digits, and never has more than 63 characters.
#define BUFLOCK_TOKEN_SIZE 64

// As ttl_ms or wait_ms: what the lock's options say.
#define BUFLOCK_DEFAULT 4294967295

// What calls answer, as int. Numbers are never reused.
typedef enum buflock_status {
  // Done.
  BUFLOCK_OK = 0,
  // Another owner holds it, and the wait (if any) is over.
  BUFLOCK_BUSY = 1,
  // release, extend: this token does not hold it, nor does anybody: it ran out or was released before.
  BUFLOCK_EXPIRED = 2,
  // release, extend: another owner holds it now. Untouched.
  BUFLOCK_TAKEN = 3,
  // buflock_op_run only: a signal, or the slice's end. Nothing is lost: call it again.
  BUFLOCK_INTERRUPTED = 4,
  // NULL, or a value it cannot have.
  BUFLOCK_ARGUMENT = -1,
  // Unknown option (the nearest is named), bad value, bad URL.
  BUFLOCK_CONFIG = -2,
  // The server cannot be reached, and nothing was done there: the lock was not taken.
  BUFLOCK_UNREACHABLE = -3,
  // Sent, no answer, and it could not be settled: act as not holding it.
  BUFLOCK_UNCERTAIN = -4,
  // The server answered with an error.
  BUFLOCK_REFUSED = -5,
  // The circuit breaker is open: failed at once, nothing sent.
  BUFLOCK_UNAVAILABLE = -6,
  // The lock table is full (held locks are never evicted), or the process gets no memory.
  BUFLOCK_NO_MEMORY = -7,
  // The shared segment is missing, foreign, damaged, deleted or of another layout.
  BUFLOCK_SEGMENT = -8,
  // A bug in buflock; the handle may still be used or freed.
  BUFLOCK_PANIC = -9,
} buflock_status;

// What to do next about an op.
typedef enum buflock_step_kind {
  // Nothing: call buflock_op_finish.
  BUFLOCK_STEP_DONE = 0,
  // Connect to `host` and `port`, or take a connection out of `pool`; then call buflock_op_connected or _fail.
  BUFLOCK_STEP_CONNECT = 1,
  // Send `data`, all of it; each is said once. buflock_op_fail where that can't be.
  BUFLOCK_STEP_SEND = 2,
  // Receive some bytes and pass them to buflock_op_feed.
  BUFLOCK_STEP_RECV = 3,
  // Sleep for `ms`.
  BUFLOCK_STEP_SLEEP = 4,
  // Wait until the bell says `id`, at most for `ms`.
  BUFLOCK_STEP_BELL = 5,
  // Let your own client run a command, once: this is said until it is answered. Its arguments by buflock_op_argument, its reply to buflock_op_reply.
  BUFLOCK_STEP_CALL = 6,
} buflock_step_kind;

// The kind of a reply that a caller's own client got.
typedef enum buflock_reply {
  // No value.
  BUFLOCK_REPLY_NIL = 0,
  // A text.
  BUFLOCK_REPLY_TEXT = 1,
  // A number.
  BUFLOCK_REPLY_INTEGER = 2,
  // An error, as the server said it.
  BUFLOCK_REPLY_ERROR = 3,
} buflock_reply;

// Options for buflock_new; use it from one thread at a time.
// Its functions: buflock_config_new, buflock_config_set, buflock_config_free.
typedef struct buflock_config buflock_config;

// One call for an event loop; used by one thread at a time, and only in the process that made it: in a forked child it
// can only be freed, which frees memory and nothing else. It may outlive its lock.
// Its functions: buflock_op_acquire, _extend, _release, _await, _inspect, _break; _next, _connected, _feed, _fail,
// _argument, _reply, _cancel, _run; _finish, _holder, _error, _free.
typedef struct buflock_op buflock_op;

// A lock service: one URL and its options. Many threads may use it at once, and both sides of a fork.
// Its functions: buflock_new, buflock_acquire, buflock_extend, buflock_release, buflock_drop, buflock_await,
// buflock_inspect, buflock_break, buflock_stats, buflock_free.
typedef struct buflock_t buflock_t;

// What there is to know about a hold.
typedef struct buflock_info {
  // In: sizeof(buflock_info). No byte beyond it is written; what this library does not know of it is set to 0.
  uint32_t size;
  // OK: what is left of the lease, in ms. BUSY: of the holder's lease, 0 unknown.
  uint32_t left_ms;
  // How long was waited, in ms.
  uint32_t waited_ms;
  // BUSY in shared memory: the holder's process id, 0 unknown.
  uint32_t holder;
  // OK: grows with every holder of a key, so that a resource can refuse older ones. 0 none; always < 2^53.
  uint64_t fence;
} buflock_info;

// A step. Its pointers are good until the next call with the op.
// Locks in shared memory ask for DONE, SLEEP and BELL only; those over a Redis server for DONE, CONNECT, SEND, RECV and
// SLEEP; those of a `redis:` URL without server for DONE, CALL and SLEEP.
typedef struct buflock_step {
  // In: sizeof(buflock_step). No byte beyond it is written.
  uint32_t size;
  // A buflock_step_kind.
  int32_t kind;
  // When so much time has passed call buflock_op_next again; the op knows what it means.
  uint32_t ms;
  // BELL: the number that buflock_bell_read will say.
  uint32_t id;
  // DONE, CONNECT: 1 the connection in use is clean and may be pooled, 0 close it.
  int32_t keep;
  // CONNECT: 1 TLS with certificate and name checked.
  int32_t tls;
  // CONNECT: 0: host is the path of a Unix socket.
  uint32_t port;
  // CALL: number of arguments.
  uint32_t count;
  // CONNECT; also the server name for TLS.
  const char *host;
  // CONNECT: reuse only connections pooled under this name.
  const char *pool;
  // SEND.
  const char *data;
  // SEND.
  size_t data_len;
} buflock_step;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What this thread's last failure (a result < 0) was, in words: which value or file, what is wrong, what would be
// right. Good until the thread's next failure; empty before its first; never NULL.
const char *buflock_last_error(void);

// The name of a status, such as "BUFLOCK_BUSY"; never NULL.
const char *buflock_status_name(int status);

// The library's version, such as "0.1.0"; compare with BUFLOCK_VERSION.
const char *buflock_version(void);

// The number of the ABI: bindings refuse another than the one they were made for.
int buflock_abi(void);

// A configuration with all defaults, to be freed by buflock_config_free. NULL: no memory.
struct buflock_config *buflock_config_new(void);

// Sets an option; the README's table says which there are and what values they take, as text.
// BUFLOCK_CONFIG: no such option (the nearest is named), or a value it cannot have. Nothing is changed then.
// `option` and `value` are NULL or end in NUL.
int buflock_config_set(struct buflock_config *config, const char *option, const char *value);

// Frees a configuration; NULL is allowed. Locks made of it stay as they are.
void buflock_config_free(struct buflock_config *config);

// Makes a lock service at `url` and writes it to `*lock`, to be freed by buflock_free. `config` may be NULL; what the
// URL says wins. Nothing is opened or connected before the first use.
// BUFLOCK_CONFIG: the URL or an option in it cannot be used.
// `url` is NULL or ends in NUL; `lock` is NULL or a place for a pointer.
int buflock_new(const char *url,
                const struct buflock_config *config,
                struct buflock_t **lock);

// Frees a lock service; NULL is allowed. Locks that are held stay held until their leases end. No network I/O.
void buflock_free(struct buflock_t *lock);

// Acquires `key`, any `key_len` bytes, for `ttl_ms` (> 0, up to 30 days, or BUFLOCK_DEFAULT), waiting at most
// `wait_ms` (0: one try; or BUFLOCK_DEFAULT).
// OK: it is held, and `token`, a place for BUFLOCK_TOKEN_SIZE bytes, says by what; pass it to extend and release.
// BUSY: somebody else holds it, and the wait is over. `info` may be NULL; it is written with OK and BUSY.
// UNCERTAIN: act as not holding it. `token` is written: releasing it later does no harm.
// `key` holds `key_len` bytes; `token` is NULL or has BUFLOCK_TOKEN_SIZE bytes; `info` is NULL or has `info->size`.
int buflock_acquire(const struct buflock_t *lock,
                    const char *key,
                    size_t key_len,
                    uint32_t ttl_ms,
                    uint32_t wait_ms,
                    char *token,
                    struct buflock_info *info);

// Gives the hold that `token` names a lease of `ttl_ms` (as in buflock_acquire) from now on; the token stays good.
// OK; or EXPIRED, TAKEN: it is not held by this token any more, and nothing is changed.
// `key` holds `key_len` bytes; `token` is NULL or ends in NUL.
int buflock_extend(const struct buflock_t *lock,
                   const char *key,
                   size_t key_len,
                   const char *token,
                   uint32_t ttl_ms);

// Gives `key` back if `token` still holds it, and wakes who waits for it.
// OK; or EXPIRED, TAKEN: it was not held by this token any more. Another's lock is never touched.
// `key` holds `key_len` bytes; `token` is NULL or ends in NUL.
int buflock_release(const struct buflock_t *lock, const char *key, size_t key_len, const char *token);

// As buflock_release, but without network I/O, for finalizers: in shared memory at once; over Redis it goes ahead of
// this process's next command, and OK says no more than that.
// `key` holds `key_len` bytes; `token` is NULL or ends in NUL.
int buflock_drop(const struct buflock_t *lock,
                 const char *key,
                 size_t key_len,
                 const char *token);

// Waits at most `wait_ms` (or BUFLOCK_DEFAULT) without taking the lock.
// OK: free now, or released or in other hands since the call began. BUSY: the same hold still stands.
// `key` holds `key_len` bytes.
int buflock_await(const struct buflock_t *lock, const char *key, size_t key_len, uint32_t wait_ms);

// Looks who holds `key`. OK: nobody, and all of `info` but its size is 0. BUSY: `info` says how long still, and
// `holder` who, as text such as "pid 4711" or, over Redis, the holder's option label, cut to its `room` bytes and ended
// by NUL. Both may be NULL.
// `key` holds `key_len` bytes; `info` is NULL or has `info->size`; `holder` is NULL or has `room` bytes.
int buflock_inspect(const struct buflock_t *lock,
                    const char *key,
                    size_t key_len,
                    struct buflock_info *info,
                    char *holder,
                    size_t room);

// An operator's act: frees `key`, whoever holds it; the holder is not told. OK freed, EXPIRED nobody held it.
// `key` holds `key_len` bytes.
int buflock_break(const struct buflock_t *lock, const char *key, size_t key_len);

// Writes a JSON object in one line to `json`, which has `room` bytes, and its length without the NUL to `*len`, which
// may be NULL. Its "notices" are things worth saying once. Where `room` is too small only `*len` is written, and the
// answer is BUFLOCK_ARGUMENT; `json` may be NULL where `room` is 0.
// `json` is NULL or has `room` bytes; `len` is NULL or a place for a size_t.
int buflock_stats(const struct buflock_t *lock,
                  char *json,
                  size_t room,
                  size_t *len);

// Acquires in steps; arguments as in buflock_acquire. Nothing is done before the first buflock_op_next or _run.
// `key` holds `key_len` bytes; `op` is NULL or a place for a pointer.
int buflock_op_acquire(const struct buflock_t *lock,
                       const char *key,
                       size_t key_len,
                       uint32_t ttl_ms,
                       uint32_t wait_ms,
                       struct buflock_op **op);

// Extends in steps; arguments as in buflock_extend.
// `key` holds `key_len` bytes; `token` is NULL or ends in NUL; `op` is NULL or a place for a pointer.
int buflock_op_extend(const struct buflock_t *lock,
                      const char *key,
                      size_t key_len,
                      const char *token,
                      uint32_t ttl_ms,
                      struct buflock_op **op);

// Releases in steps; arguments as in buflock_release.
// `key` holds `key_len` bytes; `token` is NULL or ends in NUL; `op` is NULL or a place for a pointer.
int buflock_op_release(const struct buflock_t *lock,
                       const char *key,
                       size_t key_len,
                       const char *token,
                       struct buflock_op **op);

// Awaits in steps; arguments as in buflock_await.
// `key` holds `key_len` bytes; `op` is NULL or a place for a pointer.
int buflock_op_await(const struct buflock_t *lock,
                     const char *key,
                     size_t key_len,
                     uint32_t wait_ms,
                     struct buflock_op **op);

// Looks who holds `key`, in steps; buflock_op_finish answers as buflock_inspect, and buflock_op_holder says who.
// `key` holds `key_len` bytes; `op` is NULL or a place for a pointer.
int buflock_op_inspect(const struct buflock_t *lock,
                       const char *key,
                       size_t key_len,
                       struct buflock_op **op);

// Breaks in steps; as buflock_break.
// `key` holds `key_len` bytes; `op` is NULL or a place for a pointer.
int buflock_op_break(const struct buflock_t *lock, const char *key, size_t key_len, struct buflock_op **op);

// Says what to do next. It never sleeps; call it as often as you like.
// `step` is NULL or has `step->size` bytes.
int buflock_op_next(struct buflock_op *op, struct buflock_step *step);

// After CONNECT: the connection stands; `fresh` 0: it was taken from the pool.
int buflock_op_connected(struct buflock_op *op, int fresh);

// After RECV: bytes that came.
// `data` holds `size` bytes.
int buflock_op_feed(struct buflock_op *op, const char *data, size_t size);

// Connecting, sending, receiving or the client failed; `why` is for the error text. Not for a time limit: then call
// buflock_op_next.
// `why` is NULL or ends in NUL.
int buflock_op_fail(struct buflock_op *op,
                    const char *why);

// After CALL: argument number `index` of the command, from 0.
// `data` and `size` are NULL or places for a pointer and a size_t.
int buflock_op_argument(const struct buflock_op *op, uint32_t index, const char **data, size_t *size);

// After CALL: the reply that your client got, a buflock_reply.
// `text` holds `text_len` bytes.
int buflock_op_reply(struct buflock_op *op, int kind, int64_t number, const char *text, size_t text_len);

// The caller has lost interest: an acquire or an await ends BUSY and holds nothing, a release or an extend goes on.
// After a success was fetched it does nothing. Steps go on until DONE.
int buflock_op_cancel(struct buflock_op *op);

// Drives the op here, blocking, for at most `slice_ms`: OK it is done, INTERRUPTED a signal came or the slice is over:
// nothing is lost, call it again. The only call that hands signals back.
int buflock_op_run(struct buflock_op *op,
                   uint32_t slice_ms);

// The result, as the blocking call would give it; may be asked again. With an acquire's OK the lock is the caller's
// from now on: `token` has BUFLOCK_TOKEN_SIZE bytes, and may be NULL but for an acquire; `info` may be NULL.
// BUFLOCK_ARGUMENT: it is not done.
// `token` is NULL or has BUFLOCK_TOKEN_SIZE bytes; `info` is NULL or has `info->size`.
int buflock_op_finish(struct buflock_op *op,
                      char *token,
                      struct buflock_info *info);

// After an inspect that is done: writes who holds the lock, as buflock_inspect does; nothing where nobody does.
// `holder` is NULL or has `room` bytes.
int buflock_op_holder(const struct buflock_op *op,
                      char *holder,
                      size_t room);

// The text of the op's last failure, empty before the first, never NULL; good until the next call with the op.
const char *buflock_op_error(const struct buflock_op *op);

// Frees an op; NULL is allowed. An acquire that is not done, or whose success was not fetched, gives the lock back; a
// release that is not done is done; extend and await are forgotten. In a forked child: memory only.
void buflock_op_free(struct buflock_op *op);

// Writes to `*fd` an fd that is readable while there are ids to read. It is the library's: do not read or close it,
// dup it where an event loop wants one of its own; ask again after a fork. The first call starts a thread, which
// buflock_free ends. Without a bell buflock_op_next says SLEEP.
int buflock_bell_fd(const struct buflock_t *lock,
                    int *fd);

// Instead of an fd: a Unix socket is made at `path` (at most 107 bytes, mode 0600) and takes one connection, of this
// process, after which its name is removed. Ids are written to it, 4 bytes each in the machine's byte order; 0 says
// that the reader is to leave. For hosts that can't watch a foreign fd, such as nginx.
// `path` is NULL or ends in NUL.
int buflock_bell_listen(const struct buflock_t *lock,
                        const char *path);

// Takes up to `room` ids of waits to look at with buflock_op_next and writes how many to `*count`. It never blocks.
// `ids` has room for `room` numbers; `count` is NULL or a place for a size_t.
int buflock_bell_read(const struct buflock_t *lock,
                      uint32_t *ids,
                      size_t room,
                      size_t *count);

// Rings id 0, which no wait has: the reader leaves.
void buflock_bell_quit(const struct buflock_t *lock);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BUFLOCK_H */
