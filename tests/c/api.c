/* Every function and every status of the blocking API. */
#include "check.h"
#include <pthread.h>
#include <sys/stat.h>

static void acquires_and_releases(void) {
  buflock_t *lock = table_lock(0, "&ttl=30");
  char token[BUFLOCK_TOKEN_SIZE], other[BUFLOCK_TOKEN_SIZE] = "untouched";
  buflock_info info = {.size = sizeof info, .holder = 7};
  CHECK(buflock_acquire(lock, "k", 1, BUFLOCK_DEFAULT, 0, token, &info) == BUFLOCK_OK);
  CHECK(strlen(token) == 32 && strspn(token, "0123456789abcdef") == 32);
  CHECK(info.size == sizeof info && info.left_ms == 30000 && info.waited_ms == 0 && info.holder == 0);
  CHECK(info.fence > 0 && info.fence < UINT64_C(1) << 53);
  uint64_t fence = info.fence;

  CHECK(buflock_acquire(lock, "k", 1, 1000, 0, other, &info) == BUFLOCK_BUSY);
  CHECK(info.left_ms > 29000 && info.left_ms <= 30001 && info.holder == (uint32_t)getpid() && info.fence == 0);
  CHECK(!strcmp(other, "untouched"));
  double begin = seconds();
  CHECK(buflock_acquire(lock, "k", 1, 1000, 200, other, &info) == BUFLOCK_BUSY);
  double waited = seconds() - begin;
  CHECK(waited >= 0.2 && waited < 5 && info.waited_ms >= 200); /* the upper limit: a loaded machine, not ours to say */

  CHECK(buflock_extend(lock, "k", 1, token, 60000) == BUFLOCK_OK);
  CHECK(buflock_extend(lock, "k", 1, token, BUFLOCK_DEFAULT) == BUFLOCK_OK);
  CHECK(release(lock, "k", token) == BUFLOCK_OK);
  CHECK(release(lock, "k", token) == BUFLOCK_EXPIRED);
  CHECK(buflock_extend(lock, "k", 1, token, 1000) == BUFLOCK_EXPIRED);

  CHECK(buflock_acquire(lock, "k", 1, 1000, BUFLOCK_DEFAULT, other, &info) == BUFLOCK_OK && info.fence > fence);
  CHECK(release(lock, "k", token) == BUFLOCK_TAKEN);
  CHECK(buflock_extend(lock, "k", 1, token, 1000) == BUFLOCK_TAKEN);
  CHECK(buflock_drop(lock, "k", 1, token) == BUFLOCK_TAKEN);
  CHECK(buflock_drop(lock, "k", 1, other) == BUFLOCK_OK);

  CHECK(acquire(lock, "k", 60000, 0, token) == BUFLOCK_OK);
  buflock_t *impatient = table_lock(0, "&timeout=0.1");
  begin = seconds();
  CHECK(buflock_acquire(impatient, "k", 1, 1000, BUFLOCK_DEFAULT, other, &info) == BUFLOCK_BUSY && info.waited_ms >= 100);
  CHECK(buflock_await(impatient, "k", 1, BUFLOCK_DEFAULT) == BUFLOCK_BUSY);
  waited = seconds() - begin;
  CHECK(waited >= 0.2 && waited < 4); /* less than one default wait, 5 s */
  CHECK(buflock_drop(impatient, "k", 1, token) == BUFLOCK_OK && buflock_drop(impatient, "k", 1, token) == BUFLOCK_EXPIRED);
  buflock_free(impatient);

  CHECK(acquire(lock, "k", 1, 0, token) == BUFLOCK_OK); /* a lease of 1 ms */
  pause_ms(3);
  CHECK(buflock_extend(lock, "k", 1, token, 1000) == BUFLOCK_EXPIRED);
  CHECK(release(lock, "k", token) == BUFLOCK_EXPIRED);
  buflock_free(lock);
}

static void awaits_inspects_and_breaks(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], holder[64], want[64];
  buflock_info info = {.size = sizeof info};
  CHECK(buflock_await(lock, "k", 1, 0) == BUFLOCK_OK);
  CHECK(buflock_inspect(lock, "k", 1, &info, holder, sizeof holder) == BUFLOCK_OK);
  CHECK(info.left_ms == 0 && info.holder == 0 && info.size == sizeof info && !holder[0]);
  CHECK(acquire(lock, "k", 60000, 0, token) == BUFLOCK_OK);
  CHECK(buflock_await(lock, "k", 1, 0) == BUFLOCK_BUSY);
  CHECK(buflock_await(lock, "k", 1, 50) == BUFLOCK_BUSY);
  snprintf(want, sizeof want, "pid %d", (int)getpid());
  CHECK(buflock_inspect(lock, "k", 1, &info, holder, sizeof holder) == BUFLOCK_BUSY && !strcmp(holder, want));
  CHECK(info.holder == (uint32_t)getpid() && info.left_ms > 59000);
  CHECK(buflock_inspect(lock, "k", 1, NULL, NULL, 0) == BUFLOCK_BUSY);
  memset(holder, '#', sizeof holder);
  CHECK(buflock_inspect(lock, "k", 1, NULL, holder, 0) == BUFLOCK_BUSY && holder[0] == '#');
  CHECK(buflock_inspect(lock, "k", 1, NULL, holder, 1) == BUFLOCK_BUSY && !holder[0] && holder[1] == '#');
  CHECK(buflock_inspect(lock, "k", 1, NULL, holder, 4) == BUFLOCK_BUSY && !memcmp(holder, "pid\0#", 5));
  CHECK(buflock_break(lock, "k", 1) == BUFLOCK_OK);
  CHECK(buflock_break(lock, "k", 1) == BUFLOCK_EXPIRED);
  CHECK(release(lock, "k", token) == BUFLOCK_EXPIRED);
  buflock_free(lock);
}

/* An info of `size` bytes and what lies behind it; */
static void has_room_for(const unsigned char *room, uint32_t size, uint32_t left_min, uint32_t left_max) {
  uint32_t left;
  CHECK(!memcmp(room, &size, 4));
  memcpy(&left, room + 4, 4);
  CHECK(left >= left_min && left <= left_max);
  for (uint32_t i = sizeof(buflock_info); i < size; i++) CHECK(room[i] == 0); /* what this library does not know of */
  for (uint32_t i = size; i < 64; i++) CHECK(room[i] == '#');
}

static void tells_no_more_than_an_info_has_room_for(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], none[BUFLOCK_TOKEN_SIZE];
  _Alignas(buflock_info) unsigned char room[64];
  buflock_info *info = (buflock_info *)(void *)room;
  for (uint32_t size = 8; size <= 40; size++) {
    memset(room, '#', sizeof room);
    memcpy(room, &size, 4);
    CHECK(buflock_acquire(lock, "k", 1, 30000, 0, token, info) == BUFLOCK_OK);
    has_room_for(room, size, 30000, 30000);
    memset(room + 4, '#', sizeof room - 4);
    CHECK(buflock_acquire(lock, "k", 1, 30000, 0, none, info) == BUFLOCK_BUSY);
    has_room_for(room, size, 1, 30001);
    memset(room + 4, '#', sizeof room - 4);
    CHECK(buflock_inspect(lock, "k", 1, info, NULL, 0) == BUFLOCK_BUSY);
    has_room_for(room, size, 1, 30001);
    CHECK(release(lock, "k", token) == BUFLOCK_OK);
    memset(room + 4, '#', sizeof room - 4);
    CHECK(buflock_inspect(lock, "k", 1, info, NULL, 0) == BUFLOCK_OK);
    has_room_for(room, size, 0, 0);
  }
  const uint32_t bad[] = {0, 4, 7, 4097, UINT32_MAX};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    buflock_info info = {.size = bad[i]};
    CHECK(buflock_acquire(lock, "k", 1, 1000, 0, token, &info) == BUFLOCK_ARGUMENT && says("info->size"));
    CHECK(buflock_inspect(lock, "k", 1, &info, NULL, 0) == BUFLOCK_ARGUMENT);
  }
  CHECK(buflock_await(lock, "k", 1, 0) == BUFLOCK_OK); /* nothing was taken by the bad ones */
  buflock_free(lock);
}

static void keys_are_any_bytes(void) {
  buflock_t *lock = table_lock(0, "");
  size_t big = 1 << 20;
  char *key = malloc(big), tokens[5][BUFLOCK_TOKEN_SIZE];
  CHECK(key);
  memset(key, 'x', big);
  const struct { const char *bytes; size_t length; } keys[5] = {
    {NULL, 0}, {"a\0b", 3}, {"a\0c", 3}, {key, big}, {key, big - 1}
  };
  for (int i = 0; i < 5; i++)
    CHECK(buflock_acquire(lock, keys[i].bytes, keys[i].length, 1000, 0, tokens[i], NULL) == BUFLOCK_OK);
  CHECK(buflock_acquire(lock, "", 0, 1000, 0, tokens[0], NULL) == BUFLOCK_BUSY); /* as NULL with no length */
  CHECK(buflock_release(lock, keys[1].bytes, 3, tokens[2]) == BUFLOCK_TAKEN);
  for (int i = 0; i < 5; i++) CHECK(buflock_release(lock, keys[i].bytes, keys[i].length, tokens[i]) == BUFLOCK_OK);
  free(key);
  buflock_free(lock);
}

static void other_tokens_touch_nothing(void) {
  buflock_t *lock = table_lock(0, ""), *elsewhere = table_lock(1, "");
  char mine[BUFLOCK_TOKEN_SIZE], of_other_key[BUFLOCK_TOKEN_SIZE], of_other_table[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(lock, "k", 60000, 0, mine) == BUFLOCK_OK);
  CHECK(acquire(lock, "other", 60000, 0, of_other_key) == BUFLOCK_OK);
  CHECK(acquire(elsewhere, "k", 60000, 0, of_other_table) == BUFLOCK_OK);
  char longer[BUFLOCK_TOKEN_SIZE + 8], upper[BUFLOCK_TOKEN_SIZE];
  static char huge[1 << 20];
  memset(huge, 'f', sizeof huge - 1);
  snprintf(longer, sizeof longer, "%.40s0", mine);
  snprintf(upper, sizeof upper, "%s", mine);
  for (char *c = upper; *c; c++)
    if (*c >= 'a') *c = (char)(*c - 32);
  const char *tokens[] = {"", "x", "0", longer, "ffffffffffffffffffffffffffffffff",
                          "00000000000000000000000000000000", "\xff\xfe", huge, of_other_key, of_other_table};
  for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
    CHECK(release(lock, "k", tokens[i]) == BUFLOCK_TAKEN && buflock_drop(lock, "k", 1, tokens[i]) == BUFLOCK_TAKEN);
    CHECK(buflock_extend(lock, "k", 1, tokens[i], 1) == BUFLOCK_TAKEN);
    CHECK(release(lock, "free", tokens[i]) == BUFLOCK_EXPIRED);
  }
  for (int i = 0; i < 32; i++) { /* every digit counts */
    char near[BUFLOCK_TOKEN_SIZE];
    memcpy(near, mine, sizeof near);
    near[i] = near[i] == '0' ? '1' : '0';
    CHECK(release(lock, "k", near) == BUFLOCK_TAKEN && buflock_extend(lock, "k", 1, near, 1) == BUFLOCK_TAKEN);
  }
  if (strcmp(upper, mine)) CHECK(release(lock, "k", upper) == BUFLOCK_TAKEN);
  CHECK(release(lock, "k", mine) == BUFLOCK_OK && release(lock, "other", of_other_key) == BUFLOCK_OK);
  CHECK(release(elsewhere, "k", of_other_table) == BUFLOCK_OK);
  buflock_free(lock);
  buflock_free(elsewhere);
}

/* The token of a table that is gone, in the one that took its place. */
static void tokens_of_an_earlier_table_touch_nothing(void) {
  char path[256], old[BUFLOCK_TOKEN_SIZE], mine[BUFLOCK_TOKEN_SIZE];
  buflock_t *earlier = table_lock(3, "");
  CHECK(acquire(earlier, "k", 1000, 0, old) == BUFLOCK_OK);
  snprintf(path, sizeof path, "%s/t3", test_dir);
  CHECK(!unlink(path));
  buflock_t *lock = table_lock(3, "");
  CHECK(release(lock, "k", old) == BUFLOCK_EXPIRED && buflock_extend(lock, "k", 1, old, 1) == BUFLOCK_EXPIRED);
  CHECK(acquire(lock, "k", 60000, 0, mine) == BUFLOCK_OK && strcmp(old, mine));
  CHECK(release(lock, "k", old) == BUFLOCK_TAKEN && buflock_extend(lock, "k", 1, old, 1) == BUFLOCK_TAKEN);
  CHECK(buflock_drop(lock, "k", 1, old) == BUFLOCK_TAKEN && release(lock, "k", mine) == BUFLOCK_OK);
  buflock_free(earlier);
  buflock_free(lock);
}

static void bad_times_are_told(void) {
  buflock_t *lock = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(lock, "k", 0, 0, token) == BUFLOCK_ARGUMENT && says("ttl_ms is 0"));
  CHECK(acquire(lock, "k", 2592000001u, 0, token) == BUFLOCK_ARGUMENT && says("30 days"));
  CHECK(acquire(lock, "k", 2592000000u, 0, token) == BUFLOCK_OK);
  CHECK(buflock_extend(lock, "k", 1, token, 0) == BUFLOCK_ARGUMENT && says("ttl_ms is 0"));
  CHECK(buflock_extend(lock, "k", 1, token, 2592000001u) == BUFLOCK_ARGUMENT && says("30 days"));
  CHECK(release(lock, "k", token) == BUFLOCK_OK);
  buflock_free(lock);
}

static void a_full_table_keeps_what_is_held(void) {
  buflock_t *lock = table_lock(2, "");
  static char tokens[200][BUFLOCK_TOKEN_SIZE];
  char key[16], more[BUFLOCK_TOKEN_SIZE];
  int held = 0, refused = 0;
  for (int i = 0; i < 200; i++) {
    snprintf(key, sizeof key, "key %d", i);
    int answer = acquire(lock, key, 60000, i % 2 ? 20 : 0, tokens[i]);
    if (answer == BUFLOCK_OK) held++;
    else {
      CHECK(answer == BUFLOCK_NO_MEMORY && says("the lock table is full") && says("120"));
      refused++;
      tokens[i][0] = 0;
    }
  }
  CHECK(held <= 120 && held > 60 && refused > 0);
  for (int i = 0; i < 200; i++) {
    snprintf(key, sizeof key, "key %d", i);
    if (!tokens[i][0]) continue;
    CHECK(acquire(lock, key, 1000, 0, more) == BUFLOCK_BUSY);
    CHECK(release(lock, key, tokens[i]) == BUFLOCK_OK);
  }
  CHECK(acquire(lock, "new", 1000, 0, more) == BUFLOCK_OK);
  buflock_free(lock);
}

/* What JSON says a value is; NULL: this is none. */
static const char *json_value(const char *at);

static const char *json_text(const char *at) {
  if (*at++ != '"') return NULL;
  for (; *at != '"'; at++) {
    if ((unsigned char)*at < ' ') return NULL; /* also the NUL */
    if (*at != '\\') continue;
    if (*++at == 'u') {
      if (strspn(at + 1, "0123456789abcdefABCDEF") < 4) return NULL;
      at += 4;
    } else if (!*at || !strchr("\"\\/bfnrt", *at)) return NULL;
  }
  return at + 1;
}

static const char *json_list(const char *at, char end, int named) {
  if (*at == end) return at + 1;
  for (;;) {
    if (named && (!(at = json_text(at)) || *at++ != ':')) return NULL;
    if (!(at = json_value(at))) return NULL;
    if (*at == end) return at + 1;
    if (*at++ != ',') return NULL;
  }
}

static const char *json_value(const char *at) {
  if (*at == '"') return json_text(at);
  if (*at == '{') return json_list(at + 1, '}', 1);
  if (*at == '[') return json_list(at + 1, ']', 0);
  if (!strncmp(at, "true", 4)) return at + 4;
  if (!strncmp(at, "false", 5)) return at + 5;
  size_t digits = strspn(at, "0123456789");
  return digits ? at + digits : NULL; /* the library has no other numbers */
}

static int is_json(const char *text) {
  const char *end = text[0] == '{' ? json_value(text) : NULL;
  return end && !*end;
}

/* Names that JSON has to escape. */
static void statistics_are_json_wherever_the_table_is(void) {
  char dir[128], path[256], json[4096];
  snprintf(dir, sizeof dir, "%s/a\"b\\c\n\x01\x7f\xc3\xa9", test_dir);
  snprintf(path, sizeof path, "%s/t", dir);
  buflock_t *lock = NULL;
  buflock_config *config = buflock_config_new();
  CHECK(!mkdir(dir, 0700) && buflock_config_set(config, "dir", dir) == BUFLOCK_OK);
  CHECK(buflock_new("shm:t?size=16k", config, &lock) == BUFLOCK_OK);
  int answer = buflock_stats(lock, json, sizeof json, NULL);
  buflock_free(lock);
  buflock_config_free(config);
  unlink(path);
  rmdir(dir);
  CHECK(answer == BUFLOCK_OK && is_json(json) && strstr(json, "/a\\\"b\\\\c\\u000a\\u0001\x7f\xc3\xa9/t\""));
}

static void statistics_are_json(void) {
  buflock_t *lock = table_lock(0, "&size=32k");
  char json[4096], small[10];
  size_t length = 0, again = 0;
  CHECK(buflock_stats(lock, NULL, 0, &length) == BUFLOCK_ARGUMENT && length > 10 && says("json has room for 0"));
  memset(small, '#', sizeof small);
  CHECK(buflock_stats(lock, small, sizeof small, &again) == BUFLOCK_ARGUMENT && again >= length - 8);
  for (size_t i = 0; i < sizeof small; i++) CHECK(small[i] == '#');
  CHECK(buflock_stats(lock, json, sizeof json, &length) == BUFLOCK_OK && strlen(json) == length);
  CHECK(is_json(json) && !is_json("{\"a\":1,}") && !is_json("{\"a\":\"\n\"}") && !is_json("{} "));
  CHECK(strstr(json, "\"backend\":\"shm\"") && strstr(json, "\"slots\":120") && strstr(json, "\"held\":0"));
  CHECK(strstr(json, "\"notices\":[\"") && strstr(json, "the size 32768 was ignored"));
  CHECK(buflock_stats(lock, json, sizeof json, NULL) == BUFLOCK_OK);
  char *exact = malloc(length + 1);
  CHECK(exact && buflock_stats(lock, exact, length, NULL) == BUFLOCK_ARGUMENT);
  CHECK(buflock_stats(lock, exact, length + 1, NULL) == BUFLOCK_OK && strlen(exact) == length);
  CHECK(buflock_stats(lock, NULL, 0, NULL) == BUFLOCK_ARGUMENT);
  free(exact);
  buflock_free(lock);
}

static void off_grants_everything(void) {
  buflock_t *lock = NULL;
  char a[BUFLOCK_TOKEN_SIZE], b[BUFLOCK_TOKEN_SIZE], json[1024];
  buflock_info info = {.size = sizeof info};
  CHECK(buflock_new("off:?ttl=2", NULL, &lock) == BUFLOCK_OK);
  CHECK(buflock_acquire(lock, "k", 1, BUFLOCK_DEFAULT, 0, a, &info) == BUFLOCK_OK && info.left_ms == 2000 && !info.fence);
  CHECK(buflock_acquire(lock, "k", 1, 1000, 0, b, NULL) == BUFLOCK_OK && strcmp(a, b) && strlen(a) == 32);
  CHECK(buflock_extend(lock, "k", 1, a, 1000) == BUFLOCK_OK && buflock_release(lock, "k", 1, "x") == BUFLOCK_OK);
  CHECK(buflock_drop(lock, "k", 1, a) == BUFLOCK_OK && buflock_await(lock, "k", 1, 1000) == BUFLOCK_OK);
  CHECK(buflock_inspect(lock, "k", 1, &info, NULL, 0) == BUFLOCK_OK && buflock_break(lock, "k", 1) == BUFLOCK_EXPIRED);
  CHECK(buflock_stats(lock, json, sizeof json, NULL) == BUFLOCK_OK && is_json(json) && strstr(json, "\"granted\":2"));
  CHECK(strstr(json, "off: is in use"));
  CHECK(buflock_acquire(lock, "k", 1, 0, 0, a, NULL) == BUFLOCK_ARGUMENT);
  buflock_free(lock);
}

static void configuration_is_checked(void) {
  buflock_t *lock = (buflock_t *)&lock;
  buflock_config *config = buflock_config_new();
  CHECK(config);
  CHECK(buflock_config_set(config, "ttl", "0.5") == BUFLOCK_OK);
  CHECK(buflock_config_set(config, "tttl", "1") == BUFLOCK_CONFIG && says("did you mean \"ttl\"?"));
  CHECK(buflock_config_set(config, "ttl", "10s") == BUFLOCK_CONFIG && says("option ttl is \"10s\""));
  CHECK(buflock_config_set(config, "", "1") == BUFLOCK_CONFIG && buflock_config_set(config, "namespace", "") == BUFLOCK_CONFIG);
  CHECK(buflock_config_set(config, "ttl", "\xff") == BUFLOCK_CONFIG && buflock_config_set(config, "size", "15k") == BUFLOCK_CONFIG);
  CHECK(buflock_config_set(config, "\xff", "1") == BUFLOCK_ARGUMENT && says("option is not UTF-8"));
  const char *redis[] = {"redis://user:geheim@localhost/x", "redis://user:ge/heim@localhost", "unix://geheim", "redis:geheim"};
  for (size_t i = 0; i < sizeof redis / sizeof *redis; i++) {
    CHECK(buflock_new(redis[i], config, &lock) == BUFLOCK_CONFIG && !says("heim"));
    CHECK(lock == (buflock_t *)&lock);
  }
  const char *secrets[] = {"shm:x?password=%ffgeheim", "shm:x?password=a&geheim", "off:?password_file=geheim"};
  for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
    CHECK(buflock_new(secrets[i], config, &lock) == BUFLOCK_CONFIG && !says("geheim"));
  CHECK(buflock_config_set(config, "password", "\xffgeheim") == BUFLOCK_CONFIG && !says("geheim"));
  CHECK(buflock_new("shm:../x", config, &lock) == BUFLOCK_CONFIG && says("bad table name"));
  char token[BUFLOCK_TOKEN_SIZE];
  buflock_info info = {.size = sizeof info};
  CHECK(buflock_new("off:", config, &lock) == BUFLOCK_OK);
  buflock_config_free(config); /* the lock has its own */
  CHECK(buflock_acquire(lock, "k", 1, BUFLOCK_DEFAULT, 0, token, &info) == BUFLOCK_OK && info.left_ms == 500);
  buflock_free(lock);
  buflock_free(NULL);
  buflock_config_free(NULL);
}

static void *fails_elsewhere(void *nothing) {
  CHECK(!buflock_last_error()[0]); /* this thread has not failed yet */
  CHECK(buflock_new("x:", NULL, NULL) == BUFLOCK_ARGUMENT && says("lock is NULL"));
  return nothing;
}

/* In the place of 511 bytes, whatever its length, and whole characters. */
static void long_texts_are_cut(void) {
  static const char *const letters[] = {"x", "\xc3\xa9", "\xf0\x9f\x94\x92"};
  char url[2000], token[BUFLOCK_TOKEN_SIZE];
  for (int kind = 0; kind < 3; kind++)
    for (size_t shift = 0; shift < 4; shift++) {
      size_t width = strlen(letters[kind]), at = (size_t)sprintf(url, "shm:t?dir=/%.*s", (int)shift, "nowhere");
      while (at < 1000) at += (size_t)sprintf(url + at, "%s", letters[kind]);
      buflock_t *lock;
      CHECK(buflock_new(url, NULL, &lock) == BUFLOCK_OK && acquire(lock, "k", 1000, 0, token) == BUFLOCK_SEGMENT);
      const char *text = buflock_last_error();
      size_t length = strlen(text);
      CHECK(length <= 511 && length > 511 - width && (length - 1 - shift) % width == 0);
      CHECK(!strncmp(text, url + 10, length));
      buflock_free(lock);
    }
}

static void errors_are_of_a_thread_and_stay(void) {
  buflock_t *lock = NULL;
  char url[2000], before[512];
  pthread_t thread;
  memset(url, 'n', sizeof url - 1);
  memcpy(url, "shm:x?", 6);
  memcpy(url + sizeof url - 4, "=1", 3);
  CHECK(buflock_new(url, NULL, &lock) == BUFLOCK_CONFIG && strlen(buflock_last_error()) < 512);
  snprintf(before, sizeof before, "%s", buflock_last_error());
  CHECK(buflock_new("off:", NULL, &lock) == BUFLOCK_OK); /* a success leaves it, and so do expected answers */
  buflock_t *shared = table_lock(0, "");
  char token[BUFLOCK_TOKEN_SIZE], none[BUFLOCK_TOKEN_SIZE];
  CHECK(acquire(shared, "k", 1000, 0, token) == BUFLOCK_OK && acquire(shared, "k", 1000, 0, none) == BUFLOCK_BUSY);
  CHECK(release(shared, "k", "x") == BUFLOCK_TAKEN && release(shared, "k", token) == BUFLOCK_OK);
  CHECK(release(shared, "k", token) == BUFLOCK_EXPIRED && !strcmp(before, buflock_last_error()));
  buflock_free(shared);
  CHECK(!pthread_create(&thread, NULL, fails_elsewhere, NULL) && !pthread_join(thread, NULL));
  CHECK(!strcmp(before, buflock_last_error()));
  buflock_free(lock);
  CHECK(!strcmp(buflock_version(), BUFLOCK_VERSION) && buflock_abi() == 1);
  CHECK(!strcmp(buflock_status_name(BUFLOCK_PANIC), "BUFLOCK_PANIC") && buflock_status_name(77));
}

int main(void) {
  errors_are_of_a_thread_and_stay();
  acquires_and_releases();
  awaits_inspects_and_breaks();
  tells_no_more_than_an_info_has_room_for();
  keys_are_any_bytes();
  other_tokens_touch_nothing();
  tokens_of_an_earlier_table_touch_nothing();
  bad_times_are_told();
  a_full_table_keeps_what_is_held();
  statistics_are_json();
  statistics_are_json_wherever_the_table_is();
  off_grants_everything();
  configuration_is_checked();
  long_texts_are_cut();
  puts("ok api");
  return 0;
}
