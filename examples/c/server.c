/* A web server that waits for locks while it goes on serving. A page that is missing is built once; all requests for it
 * wait, in whatever process they are, and others are answered meanwhile.
 *
 *   cc server.c -o server $(pkg-config --cflags --libs buflock) && ./server [PORT [URL]]
 *   curl http://127.0.0.1:8042/page/NAME    takes 300 ms to build; /ping is answered at once all the while
 *
 * Two processes with one epoll loop each; the cache is memory that both have. A request for a page goes round:
 *
 *   look into the cache       a hit: answer
 *   try to acquire            got it: look again, build, put it into the cache, release, answer
 *   await the holder's end    by an op, which the bell or its time says to look at; then look into the cache */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <buflock.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 2, REQUESTS = 256, PLACES = 64, NAME = 40, BUILD_MS = 300, LEASE_MS = 2000, WAIT_MS = 5000 };

/* The cache. A real one would be a server or a file. Only who holds a place's lock writes there; its version is odd
 * while it does, so that a reader sees whether it has read a page in one piece. */
static struct place {
  unsigned version;
  struct page { char name[NAME], text[128]; } page;
} *cache;

/* One request: a connection, and what it is waiting for. */
static struct request {
  int socket, timer; /* timer: it builds; -1: it does not */
  buflock_op *op;    /* it waits for another's build; the bell says its id */
  uint32_t id;
  long look, since;  /* look: when to look at the op at the latest */
  char name[NAME], token[BUFLOCK_TOKEN_SIZE];
} requests[REQUESTS];
static buflock_t *lock;
static int loop, listener, bell, builds;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static void check(int failed, const char *what) {
  if (failed) fail(what, strerror(errno));
}

static long now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void watch(int fd, void *what) {
  check(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = what}), "epoll");
}

static void answer(struct request *request, int status, const char *text) {
  char reply[512];
  int size = snprintf(reply, sizeof reply, "HTTP/1.0 %d -\r\n\r\n%s", status, text);
  if (send(request->socket, reply, (size_t)size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) perror("send");
  close(request->socket);
  request->socket = -1;
}

static struct place *place_of(const struct request *request) {
  unsigned at = 5381;
  for (const char *c = request->name; *c; c++) at = at * 33 + (unsigned char)*c;
  return &cache[at % PLACES]; /* a page that comes to another's place takes it */
}

/* The key is the place in the cache, since that is what the lock protects. */
static size_t key_of(const struct request *request, char *key) {
  return (size_t)snprintf(key, 32, "place %d", (int)(place_of(request) - cache));
}

static int answer_from_cache(struct request *request) {
  struct place *place = place_of(request);
  unsigned version = __atomic_load_n(&place->version, __ATOMIC_ACQUIRE);
  struct page page = place->page;
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (version % 2 || version != __atomic_load_n(&place->version, __ATOMIC_RELAXED)) return 0;
  if (strcmp(page.name, request->name)) return 0;
  answer(request, 200, page.text);
  return 1;
}

static void put_into_cache(const struct request *request, const char *text) {
  struct place *place = place_of(request);
  unsigned version = place->version | 1; /* it is odd already where somebody was killed below */
  __atomic_store_n(&place->version, version, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_RELEASE);
  snprintf(place->page.name, NAME, "%s", request->name);
  snprintf(place->page.text, sizeof place->page.text, "%s", text);
  __atomic_store_n(&place->version, version + 1, __ATOMIC_RELEASE);
}

/* Work that takes a while. Here it is a timer. */
static void build(struct request *request) {
  struct itimerspec after = {.it_value = {BUILD_MS / 1000, BUILD_MS % 1000 * 1000000}};
  request->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  check(request->timer < 0 || timerfd_settime(request->timer, 0, &after, NULL), "timer");
  watch(request->timer, request);
}

/* Publishes, then releases; but not where the lease has ended meanwhile, and another builds. */
static void built(struct request *request) {
  char key[32], text[128];
  close(request->timer);
  request->timer = -1;
  snprintf(text, sizeof text, "page %s, build %d of process %d\n", request->name, ++builds, (int)getpid());
  size_t size = key_of(request, key);
  if (buflock_extend(lock, key, size, request->token, LEASE_MS) == BUFLOCK_OK) { /* it is ours, for long enough */
    put_into_cache(request, text);
    buflock_release(lock, key, size, request->token);
  }
  answer(request, 200, text);
}

static void serve_page(struct request *request);

/* One look at the op that a request waits by. */
static void look(struct request *request) {
  struct buflock_step step = {.size = sizeof step};
  if (buflock_op_next(request->op, &step)) fail("op", buflock_op_error(request->op));
  request->id = step.id;
  request->look = now_ms() + step.ms; /* of BELL and SLEEP; never 0 */
  if (step.kind != BUFLOCK_STEP_DONE) return;
  int status = buflock_op_finish(request->op, NULL, NULL);
  buflock_op_free(request->op);
  request->op = NULL;
  if (status < 0 || now_ms() - request->since > WAIT_MS)
    answer(request, 503, status < 0 ? "the lock failed\n" : "busy\n");
  else
    serve_page(request); /* the hold has ended: is the page there? */
}

static void serve_page(struct request *request) {
  char key[32];
  size_t size = key_of(request, key);
  if (answer_from_cache(request)) return;
  int status = buflock_acquire(lock, key, size, LEASE_MS, 0, request->token, NULL); /* a few steps in memory */
  if (status < 0) {
    answer(request, 503, "the lock failed\n");
  } else if (status == BUFLOCK_BUSY) {
    if (buflock_op_await(lock, key, size, WAIT_MS, &request->op)) fail("await", buflock_last_error());
    look(request);
  } else if (answer_from_cache(request)) { /* it came between the two looks */
    buflock_release(lock, key, size, request->token);
  } else {
    build(request);
  }
}

/* Small requests come in one piece. A real server reads on, and frees the op of a client that leaves. */
static void receive(struct request *request) {
  char text[1024];
  ssize_t size = recv(request->socket, text, sizeof text - 1, MSG_DONTWAIT);
  epoll_ctl(loop, EPOLL_CTL_DEL, request->socket, NULL);
  text[size > 0 ? size : 0] = 0;
  if (!strncmp(text, "GET /ping ", 10))
    answer(request, 200, "pong\n");
  else if (sscanf(text, "GET /page/%39[a-zA-Z0-9_-]", request->name) == 1)
    serve_page(request);
  else
    answer(request, 404, "there are /ping and /page/NAME\n");
}

static void welcome(void) {
  struct request *free_one = NULL;
  for (int i = 0; i < REQUESTS; i++)
    if (requests[i].socket < 0) free_one = &requests[i];
  int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (socket < 0) return; /* the other process took it */
  if (!free_one) fail("welcome", "too many requests"); /* a real server lets them wait */
  *free_one = (struct request){.socket = socket, .timer = -1, .since = now_ms()};
  watch(socket, free_one);
}

/* The bell says which ops to look at. */
static void read_bell(void) {
  uint32_t id;
  size_t count;
  while (buflock_bell_read(lock, &id, 1, &count) == BUFLOCK_OK && count)
    for (int r = 0; r < REQUESTS; r++) /* with many, a hash of ids */
      if (requests[r].op && requests[r].id == id) requests[r].look = 0;
}

/* Looks at the ops whose time has come; how long until the next. With many, they are in a heap. */
static int look_at_ops(void) {
  long now = now_ms(), next = now + 1000;
  for (int r = 0; r < REQUESTS; r++) {
    if (requests[r].op && requests[r].look <= now) look(&requests[r]);
    if (requests[r].op && requests[r].look < next) next = requests[r].look;
  }
  return (int)(next - now);
}

static void work(void) {
  struct epoll_event events[32];
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (int r = 0; r < REQUESTS; r++) requests[r].socket = -1;
  check((loop = epoll_create1(EPOLL_CLOEXEC)) < 0, "epoll");
  if (buflock_bell_fd(lock, &bell)) fail("bell", buflock_last_error()); /* after the fork: each process has its own */
  watch(listener, &listener);
  watch(bell, &bell);
  for (;;) {
    int count = epoll_wait(loop, events, 32, look_at_ops());
    for (int i = 0; i < count; i++) {
      struct request *request = events[i].data.ptr;
      if (events[i].data.ptr == &listener)
        welcome();
      else if (events[i].data.ptr == &bell)
        read_bell();
      else if (request->timer >= 0)
        built(request);
      else
        receive(request);
    }
  }
}

int main(int count, char **arguments) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof address;
  address.sin_port = htons((uint16_t)(count > 1 ? atoi(arguments[1]) : 8042)); /* 0: a free one */
  if (buflock_new(count > 2 ? arguments[2] : "shm:server", NULL, &lock)) fail("new", buflock_last_error());
  cache = mmap(NULL, PLACES * sizeof *cache, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(cache == MAP_FAILED, "mmap");
  check((listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0, "socket");
  check(bind(listener, (struct sockaddr *)&address, size) || listen(listener, 128), "listen");
  check(getsockname(listener, (struct sockaddr *)&address, &size), "getsockname");
  printf("http://127.0.0.1:%d/\n", ntohs(address.sin_port));
  fflush(stdout);
  for (int i = 0; i < WORKERS; i++)
    if (!fork()) work();
  while (wait(NULL) > 0) continue; /* one that dies is not replaced here; its locks end by themselves */
  return 0;
}
