/* The vectors that all languages run, as far as the C API shows them. */
#include "check.h"

static char *words[16];
static int count, line_number;

static void check(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "vectors, line %d: %s (last error: %s)\n", line_number, what, buflock_last_error());
  exit(1);
}

static struct { char name[64], text[BUFLOCK_TOKEN_SIZE]; } tokens[32];
static int known;

static const char *token(const char *name) {
  for (int i = 0; i < known; i++)
    if (!strcmp(tokens[i].name, name)) return tokens[i].text;
  return name;
}

static void live(buflock_t *lock) {
  const char *step = words[1], *key = words[2], *want = words[count - 1];
  size_t length = strlen(key);
  int answer;
  if (!strcmp(step, "pause")) {
    pause_ms(atol(key));
    return;
  }
  if (!strcmp(step, "acquire")) {
    check(known < 32, "too many tokens");
    answer = buflock_acquire(lock, key, length, (uint32_t)strtoul(words[4], NULL, 10), 0, tokens[known].text, NULL);
    if (answer == BUFLOCK_OK) snprintf(tokens[known++].name, sizeof tokens->name, "%s", words[3]);
  } else if (!strcmp(step, "extend"))
    answer = buflock_extend(lock, key, length, token(words[3]), (uint32_t)strtoul(words[4], NULL, 10));
  else if (!strcmp(step, "release")) answer = buflock_release(lock, key, length, token(words[3]));
  else if (!strcmp(step, "break")) answer = buflock_break(lock, key, length);
  else if (!strcmp(step, "await")) answer = buflock_await(lock, key, length, 0);
  else {
    check(!strcmp(step, "inspect"), "unknown step");
    answer = buflock_inspect(lock, key, length, NULL, NULL, 0);
  }
  check(!strcmp(buflock_status_name(answer), want), buflock_status_name(answer));
}

/* As a wait any length is good, as a lease all but 0; an acquire that everybody is granted says how long it is. */
static void time_is(buflock_config *config, const char *text, const char *want) {
  int good = strcmp(want, "bad") != 0, lasting = good && strcmp(want, "0") != 0;
  char token_text[BUFLOCK_TOKEN_SIZE];
  buflock_info info = {.size = sizeof info};
  buflock_t *lock = NULL;
  check((buflock_config_set(config, "timeout", text) == BUFLOCK_OK) == good, text);
  check((buflock_config_set(config, "ttl", text) == BUFLOCK_OK) == lasting, text);
  if (!lasting) return;
  check(buflock_new("off:", config, &lock) == BUFLOCK_OK, "off:");
  check(buflock_acquire(lock, "k", 1, BUFLOCK_DEFAULT, 0, token_text, &info) == BUFLOCK_OK, "acquire");
  check(info.left_ms == strtoul(want, NULL, 10), "another length");
  buflock_free(lock);
}

int main(int count_of_arguments, char **arguments) {
  FILE *file = fopen(count_of_arguments > 1 ? arguments[1] : "tests/vectors.txt", "r");
  char line[1024];
  int cases = 0;
  CHECK(file);
  buflock_t *lock = table_lock(0, "");
  buflock_config *config = buflock_config_new();
  while (line_number++, fgets(line, sizeof line, file)) {
    if (line[0] == '#') continue;
    count = 0;
    for (char *word = strtok(line, " \n"); word && count < 16; word = strtok(NULL, " \n")) words[count++] = word;
    if (!count) continue;
    const char *kind = words[0];
    if (!strcmp(kind, "status"))
      check(!strcmp(buflock_status_name(atoi(words[1])), words[2]), "another name");
    else if (!strcmp(kind, "ttl")) time_is(config, words[1], words[2]);
    else if (!strcmp(kind, "token")) /* whatever its form, it is nobody's */
      check(buflock_release(lock, "free", 4, strcmp(words[1], "-") ? words[1] : "") == BUFLOCK_EXPIRED, words[1]);
    else if (!strcmp(kind, "life")) live(lock);
    else check(!strcmp(kind, "stored") || !strcmp(kind, "hash"), "unknown kind"); /* the C API does not show these */
    cases++;
  }
  fclose(file);
  CHECK(cases > 100);
  buflock_config_free(config);
  buflock_free(lock);
  puts("ok vectors");
  return 0;
}
