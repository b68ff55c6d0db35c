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
 * Threads   A buflock_t may be used by many threads at once, a buflock_config by one at a time.
 * Fork      A handle made before fork works on both sides. A token is plain text and belongs to whoever has it; a
 *           child's exit releases nothing.
 * Signals   EINTR is retried against the same deadline.
 * Effects   No thread, handler, environment read or output at load or in a call; errno is kept; fds are CLOEXEC.
 *           A bug inside is BUFLOCK_PANIC, never an unwinding host.
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
  // For operations in steps, which are still to come.
  BUFLOCK_INTERRUPTED = 4,
  // NULL, or a value it cannot have.
  BUFLOCK_ARGUMENT = -1,
  // Unknown option (the nearest is named), bad value, bad URL.
  BUFLOCK_CONFIG = -2,
  // Nothing was sent: the lock was not taken.
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

// Options for buflock_new; use it from one thread at a time.
// Its functions: buflock_config_new, buflock_config_set, buflock_config_free.
typedef struct buflock_config buflock_config;

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

// As buflock_release, but without network I/O, for finalizers: in shared memory at once.
// `key` holds `key_len` bytes; `token` is NULL or ends in NUL.
int buflock_drop(const struct buflock_t *lock, const char *key, size_t key_len, const char *token);

// Waits at most `wait_ms` (or BUFLOCK_DEFAULT) without taking the lock.
// OK: free now, or released or in other hands since the call began. BUSY: the same hold still stands.
// `key` holds `key_len` bytes.
int buflock_await(const struct buflock_t *lock, const char *key, size_t key_len, uint32_t wait_ms);

// Looks who holds `key`. OK: nobody, and all of `info` but its size is 0. BUSY: `info` says how long still, and
// `holder` who, as text such as "pid 4711", cut to its `room` bytes and ended by NUL. Both may be NULL.
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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BUFLOCK_H */
