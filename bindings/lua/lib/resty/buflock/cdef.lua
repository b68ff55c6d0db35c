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

typedef struct buflock_config buflock_config;

typedef struct buflock_t buflock_t;

typedef struct buflock_info {
  uint32_t size;
  uint32_t left_ms;
  uint32_t waited_ms;
  uint32_t holder;
  uint64_t fence;
} buflock_info;

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
]])
