/* Ops over Redis by sockets of the host's own, and commands that its own client carries: against a real server. */
#include "check.h"
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

static char socket_path[128], url[256];
static pid_t server;

static void stop_server(void) {
  if (getpid() != test_process) return;
  kill(server, SIGKILL);
  waitpid(server, NULL, 0);
  unlink(socket_path);
}

static int dial_path(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0 && strlen(path) < sizeof address.sun_path);
  strcpy(address.sun_path, path);
  if (!connect(fd, (struct sockaddr *)&address, sizeof address)) return fd;
  close(fd);
  return -1;
}

static void start_server(void) {
  buflock_free(table_lock(0, "")); /* makes test_dir */
  snprintf(socket_path, sizeof socket_path, "%s/redis", test_dir);
  snprintf(url, sizeof url, "unix://%s", socket_path);
  server = fork();
  CHECK(server >= 0);
  if (!server) {
    execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", socket_path, "--save", "", "--dir", test_dir,
           "--logfile", "/dev/null", (char *)NULL);
    _exit(127);
  }
  atexit(stop_server);
  for (int tries = 0; tries < 500; tries++) {
    int fd = dial_path(socket_path);
    if (fd >= 0) {
      close(fd);
      return;
    }
    pause_ms(10);
  }
  CHECK(!"the server starts");
}

static buflock_t *redis_lock(const char *base, const char *options) {
  char text[512];
  buflock_t *lock = NULL;
  /* Time enough under valgrind. */
  const char *more = "budget=5&command_timeout=2.5&connect_timeout=2.5";
  snprintf(text, sizeof text, "%s%s%c%s", base, options, *options ? '&' : '?', more);
  CHECK(buflock_new(text, NULL, &lock) == BUFLOCK_OK);
  return lock;
}

/* The host: one pool of one connection for each of the two names that a server has. */
static struct {
  char name[256];
  int fd;
} pool[2];
static int dialed, sent, reused;

static int *place_in_pool(const char *name) {
  for (int i = 0; i < 2; i++) {
    if (!pool[i].name[0]) snprintf(pool[i].name, sizeof pool[i].name, "%s", name), pool[i].fd = -1;
    if (!strcmp(pool[i].name, name)) return &pool[i].fd;
  }
  CHECK(!"a server has two pools");
  return NULL;
}

static void put_away(int fd, int *place, int keep) {
  if (fd < 0) return;
  if (keep && place && *place < 0) *place = fd;
  else close(fd);
}

static int drive(buflock_op *op, char *token, buflock_info *info) {
  buflock_step step = {.size = sizeof step};
  int fd = -1, *place = NULL;
  char in[7]; /* so that replies come in pieces */
  CHECK(buflock_op_next(op, &step) == BUFLOCK_OK);
  for (; step.kind != BUFLOCK_STEP_DONE; CHECK(buflock_op_next(op, &step) == BUFLOCK_OK)) {
    CHECK(step.ms >= 1);
    switch (step.kind) {
    case BUFLOCK_STEP_CONNECT:
      put_away(fd, place, step.keep);
      CHECK(step.port == 0 && !strcmp(step.host, socket_path) && !step.tls && step.pool && !strstr(step.pool, "geheim"));
      place = place_in_pool(step.pool);
      reused += *place >= 0;
      dialed += *place < 0;
      fd = *place >= 0 ? *place : dial_path(step.host);
      CHECK(buflock_op_connected(op, *place < 0) == BUFLOCK_OK);
      *place = -1;
      break;
    case BUFLOCK_STEP_SEND:
      CHECK(send(fd, step.data, step.data_len, MSG_NOSIGNAL) == (ssize_t)step.data_len);
      sent++;
      break;
    case BUFLOCK_STEP_RECV: {
      struct pollfd entry = {fd, POLLIN, 0};
      if (poll(&entry, 1, (int)step.ms) != 1) break;
      ssize_t count = recv(fd, in, sizeof in, 0);
      CHECK((count > 0 ? buflock_op_feed(op, in, (size_t)count) : buflock_op_fail(op, "closed")) == BUFLOCK_OK);
      break;
    }
    case BUFLOCK_STEP_SLEEP:
      pause_ms(step.ms);
      break;
    default:
      CHECK(!"no step of a lock over Redis");
    }
  }
  put_away(fd, place, step.keep);
  return buflock_op_finish(op, token, info);
}

static int drive_and_free(buflock_op *op, char *token, buflock_info *info) {
  int answer = drive(op, token, info);
  buflock_op_free(op);
  return answer;
}

static buflock_op *acquire_op(buflock_t *lock, const char *key, unsigned ttl_ms, unsigned wait_ms) {
  buflock_op *op = NULL;
  CHECK(buflock_op_acquire(lock, key, strlen(key), ttl_ms, wait_ms, &op) == BUFLOCK_OK);
  return op;
}

static int release_by_op(buflock_t *lock, const char *key, const char *token) {
  buflock_op *op = NULL;
  CHECK(buflock_op_release(lock, key, strlen(key), token, &op) == BUFLOCK_OK);
  return drive_and_free(op, NULL, NULL);
}

static int await_by_op(buflock_t *lock, const char *key, unsigned wait_ms) {
  buflock_op *op = NULL;
  CHECK(buflock_op_await(lock, key, strlen(key), wait_ms, &op) == BUFLOCK_OK);
  return drive_and_free(op, NULL, NULL);
}

static void ops_by_own_sockets(void) {
  buflock_t *lock = redis_lock(url, "?db=2&label=me");
  char token[BUFLOCK_TOKEN_SIZE], other[BUFLOCK_TOKEN_SIZE], holder[64];
  buflock_info info = {.size = sizeof info};
  CHECK(drive_and_free(acquire_op(lock, "k", 60000, 0), token, &info) == BUFLOCK_OK);
  CHECK(info.left_ms > 58000 && info.left_ms <= 60000 && strlen(token) == 32);
  CHECK(dialed == 1 && sent == 3); /* SELECT; EVALSHA, which the server does not know; EVAL */
  CHECK(drive_and_free(acquire_op(lock, "k", 60000, 0), other, &info) == BUFLOCK_BUSY && info.left_ms > 58000);
  CHECK(dialed == 1 && reused == 1 && sent == 4); /* the same connection, one command */
  CHECK(buflock_inspect(lock, "k", 1, &info, holder, sizeof holder) == BUFLOCK_BUSY && !strcmp(holder, "me"));
  buflock_op *op = NULL;
  CHECK(buflock_op_inspect(lock, "k", 1, &op) == BUFLOCK_OK && drive(op, NULL, &info) == BUFLOCK_BUSY);
  CHECK(info.left_ms > 58000 && buflock_op_holder(op, holder, sizeof holder) == BUFLOCK_OK && !strcmp(holder, "me"));
  buflock_op_free(op);
  CHECK(buflock_op_extend(lock, "k", 1, token, 90000, &op) == BUFLOCK_OK && drive_and_free(op, NULL, NULL) == BUFLOCK_OK);
  CHECK(buflock_inspect(lock, "k", 1, &info, NULL, 0) == BUFLOCK_BUSY && info.left_ms > 80000);

  double begin = seconds();
  CHECK(drive_and_free(acquire_op(lock, "k", 60000, 300), other, &info) == BUFLOCK_BUSY);
  CHECK(info.waited_ms >= 300 && seconds() - begin >= 0.3 && seconds() - begin < 0.6);
  CHECK(await_by_op(lock, "k", 100) == BUFLOCK_BUSY);
  CHECK(release_by_op(lock, "k", "0123") == BUFLOCK_TAKEN && release_by_op(lock, "k", "") == BUFLOCK_TAKEN);
  CHECK(release_by_op(lock, "k", token) == BUFLOCK_OK && release_by_op(lock, "k", token) == BUFLOCK_EXPIRED);
  CHECK(await_by_op(lock, "k", 100) == BUFLOCK_OK);
  CHECK(buflock_op_extend(lock, "k", 1, token, 90000, &op) == BUFLOCK_OK);
  CHECK(drive_and_free(op, NULL, NULL) == BUFLOCK_EXPIRED);
  for (int broken = 0; broken < 2; broken++) {
    if (!broken) CHECK(drive_and_free(acquire_op(lock, "k", 60000, 0), token, NULL) == BUFLOCK_OK);
    CHECK(buflock_op_break(lock, "k", 1, &op) == BUFLOCK_OK);
    CHECK(drive_and_free(op, NULL, NULL) == (broken ? BUFLOCK_EXPIRED : BUFLOCK_OK));
  }
  buflock_free(lock);
}

/* Releases in another process after a while; says when it did. */
static pid_t release_later(const char *key, const char *token, long ms) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child) return child;
  pause_ms(ms);
  buflock_t *lock = redis_lock(url, "?db=2");
  CHECK(release(lock, key, token) == BUFLOCK_OK);
  _exit(0);
}

static void waits_end_by_a_release(void) {
  buflock_t *lock = redis_lock(url, "?db=2");
  char token[BUFLOCK_TOKEN_SIZE], other[BUFLOCK_TOKEN_SIZE];
  buflock_info info = {.size = sizeof info};
  for (int awaits = 0; awaits < 2; awaits++) {
    CHECK(acquire(lock, "w", 60000, 0, token) == BUFLOCK_OK);
    pid_t child = release_later("w", token, 200);
    double begin = seconds();
    int answer = awaits ? await_by_op(lock, "w", 10000) : drive_and_free(acquire_op(lock, "w", 60000, 10000), other, &info);
    double took = seconds() - begin;
    CHECK(answer == BUFLOCK_OK && took > 0.15 && took < 0.45);
    waitpid(child, NULL, 0);
    if (!awaits) CHECK(release(lock, "w", other) == BUFLOCK_OK && info.waited_ms >= 150);
  }
  CHECK(acquire(lock, "w", 400, 0, token) == BUFLOCK_OK); /* a holder that dies */
  double begin = seconds();
  CHECK(drive_and_free(acquire_op(lock, "w", 60000, 10000), other, NULL) == BUFLOCK_OK);
  CHECK(seconds() - begin > 0.35 && seconds() - begin < 0.45);
  CHECK(release(lock, "w", other) == BUFLOCK_OK);
  buflock_free(lock);
}

static void lost_interest_leaves_no_lock(void) {
  buflock_t *lock = redis_lock(url, "?db=2");
  char token[BUFLOCK_TOKEN_SIZE];
  buflock_step step = {.size = sizeof step};
  for (int sent_already = 0; sent_already < 2; sent_already++) {
    for (int cancels = 0; cancels < 2; cancels++) {
      buflock_op *op = acquire_op(lock, "c", 60000, 0);
      CHECK(buflock_op_next(op, &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_CONNECT);
      int fd = dial_path(step.host);
      CHECK(buflock_op_connected(op, 1) == BUFLOCK_OK && buflock_op_next(op, &step) == BUFLOCK_OK);
      while (sent_already && step.kind == BUFLOCK_STEP_SEND) { /* to where the lock is taken, and nobody knows */
        CHECK(send(fd, step.data, step.data_len, 0) == (ssize_t)step.data_len);
        CHECK(buflock_op_next(op, &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_RECV);
        if (buflock_inspect(lock, "c", 1, NULL, NULL, 0) == BUFLOCK_BUSY) break;
        char in[512];
        ssize_t count = recv(fd, in, sizeof in, 0);
        CHECK(count > 0 && buflock_op_feed(op, in, (size_t)count) == BUFLOCK_OK && buflock_op_next(op, &step) == BUFLOCK_OK);
      }
      if (cancels) {
        CHECK(buflock_op_cancel(op) == BUFLOCK_OK);
        for (CHECK(buflock_op_next(op, &step) == BUFLOCK_OK); step.kind != BUFLOCK_STEP_DONE;
             CHECK(buflock_op_next(op, &step) == BUFLOCK_OK)) {
          char in[512];
          if (step.kind == BUFLOCK_STEP_SEND) CHECK(send(fd, step.data, step.data_len, 0) == (ssize_t)step.data_len);
          if (step.kind != BUFLOCK_STEP_RECV) continue;
          ssize_t count = recv(fd, in, sizeof in, 0);
          CHECK(count > 0 && buflock_op_feed(op, in, (size_t)count) == BUFLOCK_OK);
        }
        CHECK(buflock_op_finish(op, token, NULL) == BUFLOCK_BUSY);
        CHECK(buflock_inspect(lock, "c", 1, NULL, NULL, 0) == BUFLOCK_OK);
      }
      buflock_op_free(op);
      close(fd);
      CHECK(acquire(lock, "other", 1000, 0, token) == BUFLOCK_OK); /* ahead of this it is released */
      CHECK(buflock_inspect(lock, "c", 1, NULL, NULL, 0) == BUFLOCK_OK);
      CHECK(release(lock, "other", token) == BUFLOCK_OK);
    }
  }
  CHECK(acquire(lock, "c", 60000, 0, token) == BUFLOCK_OK && buflock_drop(lock, "c", 1, token) == BUFLOCK_OK);
  CHECK(buflock_inspect(lock, "c", 1, NULL, NULL, 0) == BUFLOCK_OK);
  buflock_op *op = acquire_op(lock, "c", 60000, 0);
  pid_t child = fork();
  if (!child) {
    int refused = buflock_op_next(op, &step) == BUFLOCK_ARGUMENT;
    buflock_op_free(op);
    buflock_free(lock); /* or valgrind calls it a leak of the child's */
    _exit(!refused);
  }
  int status;
  waitpid(child, &status, 0);
  CHECK(!status && drive_and_free(op, token, NULL) == BUFLOCK_OK && release(lock, "c", token) == BUFLOCK_OK);
  buflock_free(lock);
}

/* The client of a host: sends what a CALL says, and reads one reply of those that scripts make. */
static int client_send(int fd, buflock_op *op, unsigned count) {
  char text[8192];
  int at = sprintf(text, "*%u\r\n", count);
  for (unsigned i = 0; i < count; i++) {
    const char *data;
    size_t size;
    CHECK(buflock_op_argument(op, i, &data, &size) == BUFLOCK_OK && size < 4096);
    at += sprintf(text + at, "$%zu\r\n", size);
    memcpy(text + at, data, size);
    at += (int)size;
    at += sprintf(text + at, "\r\n");
  }
  return send(fd, text, (size_t)at, 0) == at;
}

static size_t client_receive(int fd, char *text, size_t room) {
  size_t size = 0;
  char head[64];
  for (size_t at = 0; read(fd, head + at, 1) == 1 && at + 2 < sizeof head; at++)
    if (head[at] == '\n') {
      head[at] = 0;
      break;
    }
  CHECK(head[0] == '$' && (size = (size_t)atoi(head + 1)) < room - 2);
  for (size_t at = 0; at < size + 2; at++) CHECK(read(fd, text + at, 1) == 1);
  return size;
}

static void call(int fd, buflock_op *op, const buflock_step *step, char *text, size_t *size) {
  CHECK(client_send(fd, op, step->count));
  *size = client_receive(fd, text, 256);
}

static int carry(buflock_op *op, int fd, char *token, buflock_info *info) {
  buflock_step step = {.size = sizeof step};
  char text[256];
  size_t size;
  for (CHECK(buflock_op_next(op, &step) == BUFLOCK_OK); step.kind != BUFLOCK_STEP_DONE;
       CHECK(buflock_op_next(op, &step) == BUFLOCK_OK)) {
    if (step.kind == BUFLOCK_STEP_SLEEP) {
      pause_ms(step.ms);
      continue;
    }
    CHECK(step.kind == BUFLOCK_STEP_CALL && step.count > 3);
    call(fd, op, &step, text, &size);
    CHECK(buflock_op_reply(op, BUFLOCK_REPLY_TEXT, 0, text, size) == BUFLOCK_OK);
  }
  int answer = buflock_op_finish(op, token, info);
  buflock_op_free(op);
  return answer;
}

static void a_client_of_the_hosts_own(void) {
  buflock_t *lock = redis_lock("redis:", ""), *other = redis_lock(url, "");
  int fd = dial_path(socket_path);
  char token[BUFLOCK_TOKEN_SIZE], none[BUFLOCK_TOKEN_SIZE];
  buflock_info info = {.size = sizeof info};
  buflock_op *op;
  CHECK(acquire(lock, "k", 1, 0, token) == BUFLOCK_CONFIG && says("use ops"));
  op = acquire_op(lock, "k", 1000, 0);
  CHECK(buflock_op_run(op, 50) == BUFLOCK_CONFIG && strstr(buflock_op_error(op), "use ops"));
  buflock_op_free(op);
  CHECK(carry(acquire_op(lock, "k", 60000, 0), fd, token, &info) == BUFLOCK_OK && info.left_ms > 58000);
  CHECK(acquire(other, "k", 60000, 0, none) == BUFLOCK_BUSY);
  CHECK(carry(acquire_op(lock, "k", 60000, 0), fd, none, &info) == BUFLOCK_BUSY && info.left_ms > 58000);
  CHECK(carry(acquire_op(lock, "k", 60000, 200), fd, none, &info) == BUFLOCK_BUSY && info.waited_ms >= 200);
  CHECK(buflock_op_extend(lock, "k", 1, token, 90000, &op) == BUFLOCK_OK && carry(op, fd, NULL, NULL) == BUFLOCK_OK);
  CHECK(buflock_op_await(lock, "k", 1, 50, &op) == BUFLOCK_OK && carry(op, fd, NULL, NULL) == BUFLOCK_BUSY);
  CHECK(buflock_op_release(lock, "k", 1, token, &op) == BUFLOCK_OK && carry(op, fd, NULL, NULL) == BUFLOCK_OK);
  CHECK(buflock_op_release(lock, "k", 1, token, &op) == BUFLOCK_OK && carry(op, fd, NULL, NULL) == BUFLOCK_EXPIRED);
  CHECK(buflock_op_await(lock, "k", 1, 50, &op) == BUFLOCK_OK && carry(op, fd, NULL, NULL) == BUFLOCK_OK);

  /* Replies that are not this call's. */
  buflock_step step = {.size = sizeof step};
  char text[256];
  size_t size;
  CHECK(carry(acquire_op(lock, "k", 60000, 0), fd, token, NULL) == BUFLOCK_OK);
  CHECK(buflock_op_extend(lock, "k", 1, token, 60000, &op) == BUFLOCK_OK && buflock_op_next(op, &step) == BUFLOCK_OK);
  call(fd, op, &step, text, &size); /* comes too late for this op, */
  CHECK(buflock_op_fail(op, "the client gave up") == BUFLOCK_OK && buflock_op_finish(op, NULL, NULL) == BUFLOCK_UNCERTAIN);
  CHECK(strstr(buflock_op_error(op), "the client gave up"));
  buflock_op_free(op);
  buflock_op *ops[4];
  CHECK(buflock_op_extend(lock, "k", 1, token, 60000, &ops[0]) == BUFLOCK_OK); /* and is none of these */
  CHECK(buflock_op_release(lock, "k", 1, token, &ops[1]) == BUFLOCK_OK);
  ops[2] = acquire_op(lock, "k", 60000, 1000);
  CHECK(buflock_op_await(lock, "k", 1, 1000, &ops[3]) == BUFLOCK_OK);
  for (int i = 0; i < 4; i++) {
    CHECK(buflock_op_next(ops[i], &step) == BUFLOCK_OK && step.kind == BUFLOCK_STEP_CALL);
    CHECK(buflock_op_reply(ops[i], BUFLOCK_REPLY_TEXT, 0, text, size) == BUFLOCK_OK);
    CHECK(buflock_op_finish(ops[i], none, NULL) == (i == 3 ? BUFLOCK_UNREACHABLE : BUFLOCK_UNCERTAIN));
    CHECK(strstr(buflock_op_error(ops[i]), "out-of-step reply") && buflock_op_reply(ops[i], 1, 0, text, size) == BUFLOCK_ARGUMENT);
    buflock_op_free(ops[i]);
  }
  static const struct {
    int kind, answer;
    const char *text, *says;
  } replies[] = {
      {BUFLOCK_REPLY_NIL, BUFLOCK_UNCERTAIN, "", "no result"},
      {BUFLOCK_REPLY_INTEGER, BUFLOCK_UNCERTAIN, "", "out-of-step"},
      {BUFLOCK_REPLY_TEXT, BUFLOCK_UNCERTAIN, "0", "out-of-step"},
      {BUFLOCK_REPLY_ERROR, BUFLOCK_REFUSED, "NOPERM no such right", "NOPERM no such right"},
  };
  for (size_t i = 0; i < sizeof replies / sizeof *replies; i++) {
    op = acquire_op(lock, "never", 60000, 1000);
    CHECK(buflock_op_next(op, &step) == BUFLOCK_OK && buflock_op_reply(op, 9, 0, "", 0) == BUFLOCK_ARGUMENT);
    CHECK(buflock_op_reply(op, replies[i].kind, 1, replies[i].text, strlen(replies[i].text)) == BUFLOCK_OK);
    CHECK(buflock_op_finish(op, none, NULL) == replies[i].answer && strstr(buflock_op_error(op), replies[i].says));
    buflock_op_free(op);
  }
  op = acquire_op(lock, "never", 60000, 0);
  const char *data;
  CHECK(buflock_op_argument(op, 0, &data, &size) == BUFLOCK_ARGUMENT && buflock_op_feed(op, "x", 1) == BUFLOCK_ARGUMENT);
  CHECK(buflock_op_connected(op, 1) == BUFLOCK_ARGUMENT);
  buflock_op_free(op);
  CHECK(buflock_break(other, "k", 1) == BUFLOCK_OK);
  close(fd);
  buflock_free(lock);
  buflock_free(other);
}

int main(void) {
  start_server();
  ops_by_own_sockets();
  waits_end_by_a_release();
  lost_interest_leaves_no_lock();
  a_client_of_the_hosts_own();
  return 0;
}
