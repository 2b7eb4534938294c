/* A server that is no Redis, or an evil one: it answers garbage, lies about lengths, nests without end, trickles, hangs up at any
 * point, or answers with the wrong type to the right question. Whatever it does, the registry says that it cannot be reached, and
 * closes.
 * ctest: timeout=300 long */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/rng.h"
#include "places.h"
#include "test.h"

/* --- the server ------------------------------------------------------------------------------------------------------------- */

typedef struct evil {
    char folder[64], uri[128];
    int fd;
    pthread_t thread;
    _Atomic bool stop;
    /* Answer what was asked: bytes and their number; 0: hang up. `turn`: how often it was asked on this connection. */
    size_t (*answer)(unsigned turn, char *out, size_t cap);
    bool trickle; /* a byte at a time, and never the last */
} evil_t;

/* False: it is over. */
static bool serve(evil_t *e, int fd, unsigned turn)
{
    static char in[65536], out[1 << 20];
    if (recv(fd, in, sizeof in, 0) <= 0)
        return false;
    size_t n = e->answer(turn, out, sizeof out);
    for (size_t at = 0; at < n && !atomic_load(&e->stop);) {
        ssize_t put = send(fd, out + at, e->trickle ? 1 : n - at, MSG_NOSIGNAL);
        if (put <= 0)
            return false;
        at += (size_t)put;
        if (e->trickle)
            usleep(20000);
    }
    return n != 0;
}

static void *run(void *arg)
{
    enum { MANY = 16 };
    evil_t *e = (evil_t *)arg;
    struct pollfd p[MANY] = {{e->fd, POLLIN, 0}};
    unsigned turns[MANY] = {0}, n = 1;
    while (!atomic_load(&e->stop)) {
        if (poll(p, n, 20) <= 0)
            continue;
        for (unsigned i = n; i-- > 1;)
            if (p[i].revents && !serve(e, p[i].fd, turns[i]++)) {
                close(p[i].fd);
                p[i] = p[--n];
                turns[i] = turns[n];
            }
        if (p[0].revents && n < MANY) {
            p[n] = (struct pollfd){accept(e->fd, NULL, NULL), POLLIN, 0};
            turns[n] = 0;
            n += p[n].fd >= 0;
        }
    }
    while (n > 1)
        close(p[--n].fd);
    return NULL;
}

static void rise(evil_t *e, size_t (*answer)(unsigned turn, char *out, size_t cap))
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    memset(e, 0, sizeof *e);
    snprintf(e->folder, sizeof e->folder, "/tmp/weft-evil-XXXXXX");
    CHECK(mkdtemp(e->folder));
    snprintf(un.sun_path, sizeof un.sun_path, "%s/s", e->folder);
    snprintf(e->uri, sizeof e->uri, "redis+unix://%s", un.sun_path);
    e->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(e->fd >= 0 && !bind(e->fd, (struct sockaddr *)&un, sizeof un) && !listen(e->fd, 50));
    e->answer = answer;
    CHECK(!pthread_create(&e->thread, NULL, run, e));
}

static void fall(evil_t *e)
{
    char path[96];
    atomic_store(&e->stop, true);
    pthread_join(e->thread, NULL);
    close(e->fd);
    snprintf(path, sizeof path, "%s/s", e->folder);
    unlink(path);
    rmdir(e->folder);
}

/* --- what it does ----------------------------------------------------------------------------------------------------------- */

static const char *canned; /* what it says once the greeting is over */
static size_t canned_n;
static unsigned greetings;

static size_t say_canned(unsigned turn, char *out, size_t cap)
{
    if (turn < greetings) {
        memcpy(out, "+OK\r\n", 5);
        return 5;
    }
    CHECK(canned_n <= cap);
    memcpy(out, canned, canned_n);
    return canned_n;
}

static wefti_rng_t rng = {5};

static size_t say_anything(unsigned turn, char *out, size_t cap)
{
    static const char *const bits[] = {"+OK\r\n", "*2\r\n",     "$-1\r\n", ":1\r\n", "$3\r\nabc\r\n",
                                       "*-1\r\n", "-ERR x\r\n", "\r\n",    "*1\r\n", "$0\r\n\r\n"};
    size_t n = 0, many = 1 + wefti_rng_below(&rng, 30);
    (void)cap;
    if (turn == 0 && wefti_rng_below(&rng, 2)) {
        memcpy(out, "+OK\r\n", 5);
        return 5;
    }
    for (size_t i = 0; i < many; i++) {
        if (wefti_rng_below(&rng, 10) == 0) {
            out[n++] = (char)wefti_rng_next(&rng);
            continue;
        }
        const char *bit = bits[wefti_rng_below(&rng, sizeof bits / sizeof *bits)];
        memcpy(out + n, bit, strlen(bit));
        n += strlen(bit);
    }
    return wefti_rng_below(&rng, 10) ? n : 0;
}

static void hush(weft_log_level_t level, const char *line, void *user)
{
    (void)level;
    (void)user;
    for (const char *c = line; *c; c++)
        CHECK(*c >= ' ' && *c <= '~'); /* nothing that a server says gets at the terminal */
}

/* All that a program does; none of it may work, and all of it ends. */
static void use(const char *uri)
{
    static seen_t s;
    place_t a;
    weft_watch_t *w;
    memset(&s, 0, sizeof s);
    place_open_lease(&a, uri, WEFT_PROGRESS_CALLER, WEFT_SECOND);
    CHECK_OK(weft_registry_watch(a.registry, NULL, seen_change, &s, &w));
    weft_status_t st = place_enter(&a, "s", "x", 0);
    CHECK(st == WEFT_OK || st == WEFT_ERR_UNREACHABLE || st == WEFT_ERR_LIMIT || st == WEFT_ERR_STATE || st == WEFT_ERR_NOMEM);
    long n = place_count(&a, NULL);
    CHECK(n == 0 || n == WEFT_ERR_UNREACHABLE || n == WEFT_ERR_LIMIT || n == WEFT_ERR_NOMEM);
    CHECK_EQ(s.came, 0);
    place_close(&a);
}

static bool can(void)
{
    weft_runtime_t *rt;
    weft_registry_t *r;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.transports = "shm";
    weft_log_set_sink(hush, NULL);
    CHECK_OK(weft_runtime_open(&opts, &rt));
    bool yes = weft_registry_open(rt, "redis://127.0.0.1:1", NULL, &r) != WEFT_ERR_UNSUPPORTED;
    CHECK_OK(weft_runtime_close(rt));
    return yes;
}

TEST(answers_that_are_none_are_survived)
{
    static char deep[4096], wide[300000], many[300000];
    for (size_t i = 0; i + 4 <= sizeof deep; i += 4)
        memcpy(deep + i, "*1\r\n", 4);
    size_t n = (size_t)sprintf(wide, "*100000\r\n");
    for (int i = 0; i < 50000; i++)
        n += (size_t)sprintf(wide + n, ":1\r\n");
    size_t n_many = (size_t)sprintf(many, "*1000000\r\n"); /* each would take memory for as many again */
    for (int i = 0; i < 20000; i++)
        n_many += (size_t)sprintf(many + n_many, "*1000000\r\n");
    struct {
        const char *text;
        size_t n;
    } all[] = {
        {"HTTP/1.1 400 Bad Request\r\n\r\n", 28},
        {"\0\0\0\0\xff\xff\xff\xff", 8},
        {"$536870912\r\nabc", 15},
        {"$99999999999999999999\r\n", 23},
        {"$-2\r\n", 5},
        {"*2147483647\r\n", 13},
        {"*4294967296\r\n", 13},
        {"*-5\r\n", 5},
        {":99999999999999999999999\r\n", 26},
        {"-\x1b[31mERR\a evil\r\n", 17},
        {"-OOM\r\n", 6},
        {"-\r\n", 3},
        {":0\r\n", 4},
        {"$-1\r\n", 5},
        {"*-1\r\n", 5},
        {"*0\r\n", 4},
        {"*3\r\n$3\r\ns@x\r\n:1\r\n*0\r\n", 21},
        {"*2\r\n$3\r\ns@x\r\n$24\r\naaaaaaaaaaaaaaaaaaaaaaaa\r\n", 44},
        {deep, sizeof deep},
        {many, n_many},
        {wide, n},
        {"+OK\r\n+OK\r\n+OK\r\n+OK\r\n", 20},
        {"", 0},
    };
    if (!can())
        SKIP("%s", weft_last_error());
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (greetings = 0; greetings < 2; greetings++) {
            evil_t e;
            canned = all[i].text;
            canned_n = all[i].n;
            rise(&e, say_canned);
            use(e.uri);
            fall(&e);
        }
}

TEST(any_answers_in_any_order_are_survived)
{
    evil_t e;
    if (!can())
        SKIP("%s", weft_last_error());
    rise(&e, say_anything);
    double until = test_now() + 8;
    for (int i = 0; i < 500 && test_now() < until; i++)
        use(e.uri);
    fall(&e);
}

TEST(a_server_that_trickles_costs_no_more_than_one_that_is_silent)
{
    evil_t e;
    place_t a;
    if (!can())
        SKIP("%s", weft_last_error());
    canned = "$100000\r\n........................................................................................................"
             "......."
             "..................................................................................................................."
             "............";
    canned_n = strlen(canned);
    greetings = 0;
    rise(&e, say_canned);
    e.trickle = true;
    place_open(&a, e.uri, WEFT_PROGRESS_CALLER);
    CHECK_EQ(place_count(&a, NULL), WEFT_ERR_UNREACHABLE);
    place_close(&a);
    fall(&e);
}
