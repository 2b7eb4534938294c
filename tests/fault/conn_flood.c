/* Strangers who fill a listener's places, with silence or with hellos that lead nowhere: nobody else is kept out by them, with
 * a key or without, over TCP and over a Unix socket. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lib/raw.h"
#include "test.h"

enum { CALLS = 30 };

static weft_runtime_t *rt; /* the listener's: it has a thread */
static weft_listener_t *l;

static void start(const char *uri, const char *key, uint32_t backlog)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_log_set_level(WEFT_LOG_ERROR);
    o.progress = WEFT_PROGRESS_THREAD;
    o.connect_timeout_ns = 120 * WEFT_SECOND; /* nobody leaves because his time is up */
    o.key = key;
    o.key_len = key ? strlen(key) : 0;
    CHECK_OK(weft_runtime_open(&o, &rt));
    lo.backlog = backlog;
    CHECK_OK(weft_listen(rt, uri, &lo, &l));
}

/* --- who floods ----------------------------------------------------------------------------------------------------------- */

typedef struct flood {
    bool unix_socket, hello, keyed;
    unsigned n;
    uint32_t from; /* the flood's own address; 0: any */
    uint16_t port;
} flood_t;

static int one_more(const flood_t *f)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(f->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(f->from)};
    struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "\0weft-test-flood"};
    struct timeval patience = {30, 0};
    int fd = socket(f->unix_socket ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    bool ok = fd >= 0 && (!f->from || !bind(fd, (void *)&from, sizeof from)) &&
              !(f->unix_socket ? connect(fd, (void *)&un, (socklen_t)(sizeof un.sun_family + 16))
                               : connect(fd, (void *)&to, sizeof to));
    if (!ok) {
        close(fd);
        return -1;
    }
    if (f->hello) {
        uint8_t bytes[WEFTI_HELLO_MAX];
        wefti_hello_t h = raw_hello();
        h.flags = f->keyed ? WEFTI_HELLO_KEYED : 0;
        raw_send(fd, bytes, wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, bytes, sizeof bytes));
    }
    return fd;
}

static bool hung_up(int fd)
{
    uint8_t bytes[4096];
    ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT); /* what it is told is of no interest */
    return n == 0 || (n < 0 && errno != EAGAIN);
}

/* Hold n connections, and open a new one for each that is closed; never all of them within four seconds, so that who is slow
 * because the machine is busy still has time. */
static void keep_places(const flood_t *f, int ready)
{
    struct rlimit r = {f->n + 100, f->n + 100};
    int *fds = calloc(f->n, sizeof *fds);
    if (setrlimit(RLIMIT_NOFILE, &r))
        _exit(1);
    for (unsigned i = 0; i < f->n; i++)
        fds[i] = one_more(f);
    if (write(ready, "", 1) != 1)
        _exit(1);
    for (unsigned i = 0;; i = (i + 1) % f->n) {
        if (fds[i] >= 0 && !hung_up(fds[i])) {
            if (!i)
                usleep(1000);
            continue;
        }
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = one_more(f);
        usleep(4000000 / f->n);
    }
}

static pid_t flood(const flood_t *f)
{
    int ends[2];
    char c;
    CHECK(!pipe2(ends, O_CLOEXEC));
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        keep_places(f, ends[1]);
    }
    CHECK_EQ(read(ends[0], &c, 1), 1);
    close(ends[0]);
    close(ends[1]);
    return pid;
}

static void end_flood(pid_t pid)
{
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

/* --- who calls ------------------------------------------------------------------------------------------------------------ */

static void calls_get_through(const char *key)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *client;
    unsigned through = 0;
    o.key = key;
    o.key_len = key ? strlen(key) : 0;
    o.connect_timeout_ns = 60 * WEFT_SECOND;
    CHECK_OK(weft_runtime_open(&o, &client));
    for (int i = 0; i < CALLS; i++) {
        weft_op_t op = WEFT_OP_INIT, accept = WEFT_OP_INIT;
        weft_ep_t *ep;
        CHECK_OK(weft_listener_accept(l, &accept));
        CHECK_OK(weft_ep_open(client, weft_listener_uri(l), NULL, &op, &ep));
        through += weft_op_wait(&op, 100 * WEFT_SECOND) == WEFT_OK;
        if (op.status)
            weft_op_cancel(&accept);
        weft_op_wait(&accept, 100 * WEFT_SECOND);
        CHECK_OK(weft_ep_close(ep, NULL));
    }
    CHECK_EQ(through, CALLS);
    CHECK_OK(weft_runtime_close(client));
}

/* Descriptors enough for so many places and what else there is. */
static void need_descriptors(rlim_t n)
{
    struct rlimit r;
    CHECK(!getrlimit(RLIMIT_NOFILE, &r));
    if (r.rlim_max < n)
        SKIP("this process may have %llu descriptors", (unsigned long long)r.rlim_max);
    r.rlim_cur = n;
    CHECK(!setrlimit(RLIMIT_NOFILE, &r));
}

static void story(const char *uri, const char *key, uint32_t backlog, flood_t f)
{
    start(uri, key, backlog);
    f.port = weft_listener_port(l);
    f.keyed = key;
    pid_t pid = flood(&f);
    calls_get_through(key);
    end_flood(pid);
    CHECK_OK(weft_runtime_close(rt));
}

static const char key[] = "a key that is long enough";

TEST(silence_in_every_place_keeps_nobody_out)
{
    need_descriptors(4096);
    story("tcp://127.0.0.1:0", NULL, 0, (flood_t){.n = 1100});
}

TEST(silence_in_every_place_keeps_nobody_out_who_has_the_key)
{
    need_descriptors(4096);
    story("tcp://127.0.0.1:0", key, 0, (flood_t){.n = 1100});
}

TEST(hellos_that_lead_nowhere_keep_nobody_out)
{
    need_descriptors(4096);
    story("tcp://127.0.0.1:0", NULL, 0, (flood_t){.n = 1100, .hello = true});
    story("tcp://127.0.0.1:0", key, 0, (flood_t){.n = 1100, .hello = true});
}

TEST(silence_on_a_unix_socket_keeps_nobody_out)
{
    story("unix://@weft-test-flood", NULL, 64, (flood_t){.n = 80, .unix_socket = true});
}

/* The backlog is not what bounds it here. */
TEST(silence_that_would_take_every_descriptor_keeps_nobody_out)
{
    need_descriptors(256);
    story("tcp://127.0.0.1:0", key, 0, (flood_t){.n = 300});
}

TEST(two_listeners_do_not_share_out_the_descriptors_to_strangers)
{
    weft_listener_t *other;
    need_descriptors(256);
    start("tcp://127.0.0.1:0", NULL, 0);
    flood_t f = {.n = 300, .port = weft_listener_port(l)};
    pid_t pid = flood(&f);
    CHECK_OK(weft_listen(rt, "unix://@weft-test-flood", NULL, &other));
    l = other;
    calls_get_through(NULL);
    end_flood(pid);
    CHECK_OK(weft_runtime_close(rt));
}

/* --- where it comes from -------------------------------------------------------------------------------------------------- */

TEST(a_flood_from_one_address_drives_out_itself_and_nobody_else)
{
    enum { BACKLOG = 200, MANY = 1500, HELD = 400 };
    start("tcp://127.0.0.1:0", NULL, BACKLOG);
    flood_t quiet = {.port = weft_listener_port(l)}, loud = {.from = INADDR_LOOPBACK + 1, .port = quiet.port};
    int old[5], fds[MANY];
    for (int i = 0; i < 5; i++) {
        old[i] = one_more(&quiet); /* silent as well, and older than all of the others */
        CHECK(old[i] >= 0);
    }
    for (int i = 0; i < MANY; i++) {
        fds[i] = one_more(&loud);
        if (fds[i] < 0 && !i)
            SKIP("127.0.0.2 is no address of this machine's");
        CHECK(fds[i] >= 0);
        if (i >= HELD)
            close(fds[i - HELD]);
        usleep(100);
    }
    TEST_UNTIL(hung_up(fds[MANY - HELD]), 60); /* there were too many of them */
    for (int i = 0; i < 5; i++)
        CHECK(!hung_up(old[i]));
    calls_get_through(NULL);
    for (int i = 0; i < 5; i++)
        CHECK(!hung_up(old[i]));
    CHECK_OK(weft_runtime_close(rt));
}
