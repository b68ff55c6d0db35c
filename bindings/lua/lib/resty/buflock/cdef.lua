-- Made from src/ffi; do not edit.
require("ffi").cdef([[
static const uint32_t BUFLOCK_TOKEN_SIZE = 64;

static const uint32_t BUFLOCK_DEFAULT = 4294967295;

typedef enum buflock_status {
  BUFLOCK_OK = 0,
  BUFLOCK_BUSY = 1,
  BUFLOCK_EXPIRED = 2,
  BUFLOCK_TAKEN = 3,
  BUFLOCK_INTERRUPTED = 4,
  BUFLOCK_ARGUMENT = -1,
  BUFLOCK_CONFIG = -2,
  BUFLOCK_UNREACHABLE = -3,
  BUFLOCK_UNCERTAIN = -4,
  BUFLOCK_REFUSED = -5,
  BUFLOCK_UNAVAILABLE = -6,
  BUFLOCK_NO_MEMORY = -7,
  BUFLOCK_SEGMENT = -8,
  BUFLOCK_PANIC = -9,
} buflock_status;

typedef enum buflock_step_kind {
  BUFLOCK_STEP_DONE = 0,
  BUFLOCK_STEP_CONNECT = 1,
  BUFLOCK_STEP_SEND = 2,
  BUFLOCK_STEP_RECV = 3,
  BUFLOCK_STEP_SLEEP = 4,
  BUFLOCK_STEP_BELL = 5,
  BUFLOCK_STEP_CALL = 6,
} buflock_step_kind;

typedef enum buflock_reply {
  BUFLOCK_REPLY_NIL = 0,
  BUFLOCK_REPLY_TEXT = 1,
  BUFLOCK_REPLY_INTEGER = 2,
  BUFLOCK_REPLY_ERROR = 3,
} buflock_reply;

typedef struct buflock_config buflock_config;

typedef struct buflock_op buflock_op;

typedef struct buflock_t buflock_t;

typedef struct buflock_info {
  uint32_t size;
  uint32_t left_ms;
  uint32_t waited_ms;
  uint32_t holder;
  uint64_t fence;
} buflock_info;

typedef struct buflock_step {
  uint32_t size;
  int32_t kind;
  uint32_t ms;
  uint32_t id;
  int32_t keep;
  int32_t tls;
  uint32_t port;
  uint32_t count;
  const char *host;
  const char *pool;
  const char *data;
  size_t data_len;
} buflock_step;

const char *buflock_last_error(void);

const char *buflock_status_name(int status);

const char *buflock_version(void);

int buflock_abi(void);

struct buflock_config *buflock_config_new(void);

int buflock_config_set(struct buflock_config *config, const char *option, const char *value);

void buflock_config_free(struct buflock_config *config);

int buflock_new(const char *url, const struct buflock_config *config, struct buflock_t **lock);

void buflock_free(struct buflock_t *lock);

int buflock_acquire(const struct buflock_t *lock,
                    const char *key,
                    size_t key_len,
                    uint32_t ttl_ms,
                    uint32_t wait_ms,
                    char *token,
                    struct buflock_info *info);

int buflock_extend(const struct buflock_t *lock,
                   const char *key,
                   size_t key_len,
                   const char *token,
                   uint32_t ttl_ms);

int buflock_release(const struct buflock_t *lock, const char *key, size_t key_len, const char *token);

int buflock_drop(const struct buflock_t *lock, const char *key, size_t key_len, const char *token);

int buflock_await(const struct buflock_t *lock, const char *key, size_t key_len, uint32_t wait_ms);

int buflock_inspect(const struct buflock_t *lock,
                    const char *key,
                    size_t key_len,
                    struct buflock_info *info,
                    char *holder,
                    size_t room);

int buflock_break(const struct buflock_t *lock, const char *key, size_t key_len);

int buflock_stats(const struct buflock_t *lock, char *json, size_t room, size_t *len);

int buflock_op_acquire(const struct buflock_t *lock,
                       const char *key,
                       size_t key_len,
                       uint32_t ttl_ms,
                       uint32_t wait_ms,
                       struct buflock_op **op);

int buflock_op_extend(const struct buflock_t *lock,
                      const char *key,
                      size_t key_len,
                      const char *token,
                      uint32_t ttl_ms,
                      struct buflock_op **op);

int buflock_op_release(const struct buflock_t *lock,
                       const char *key,
                       size_t key_len,
                       const char *token,
                       struct buflock_op **op);

int buflock_op_await(const struct buflock_t *lock,
                     const char *key,
                     size_t key_len,
                     uint32_t wait_ms,
                     struct buflock_op **op);

int buflock_op_inspect(const struct buflock_t *lock, const char *key, size_t key_len, struct buflock_op **op);

int buflock_op_break(const struct buflock_t *lock, const char *key, size_t key_len, struct buflock_op **op);

int buflock_op_next(struct buflock_op *op, struct buflock_step *step);

int buflock_op_connected(struct buflock_op *op, int fresh);

int buflock_op_feed(struct buflock_op *op, const char *data, size_t size);

int buflock_op_fail(struct buflock_op *op, const char *why);

int buflock_op_argument(const struct buflock_op *op, uint32_t index, const char **data, size_t *size);

int buflock_op_reply(struct buflock_op *op, int kind, int64_t number, const char *text, size_t text_len);

int buflock_op_cancel(struct buflock_op *op);

int buflock_op_run(struct buflock_op *op, uint32_t slice_ms);

int buflock_op_finish(struct buflock_op *op, char *token, struct buflock_info *info);

int buflock_op_holder(const struct buflock_op *op, char *holder, size_t room);

const char *buflock_op_error(const struct buflock_op *op);

void buflock_op_free(struct buflock_op *op);

int buflock_bell_fd(const struct buflock_t *lock, int *fd);

int buflock_bell_listen(const struct buflock_t *lock, const char *path);

int buflock_bell_read(const struct buflock_t *lock, uint32_t *ids, size_t room, size_t *count);

void buflock_bell_quit(const struct buflock_t *lock);
]])
