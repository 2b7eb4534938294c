/* A server that is no etcd, or a strange one: garbage, answers without end, none at all, drips, lies about lengths and revisions.
 * ctest: timeout=300 long */
#define TEST_SECONDS 120
#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "places.h"
#include "test.h"

/* --- the server ------------------------------------------------------------------------------------------------------------- */

typedef enum manner {
    GARBAGE,        /* no HTTP */
    SILENT,         /* accepts, and says nothing */
    CLOSES,         /* at once */
    NOT_JSON,       /* 200, and text */
    EMPTY,          /* 200, and nothing */
    DEEP,           /* arrays in arrays */
    ENDLESS_BODY,   /* 200, and more than anyone wants */
    ENDLESS_HEAD,   /* headers without end */
    DRIPS,          /* a byte now and then */
    SHORT,          /* less than it promised */
    REDIRECTS,      /* to itself */
    ERRORS,         /* 500 */
    STRANGE_ERRORS, /* 404 with a code that there is not */
    NO_REVISION,    /* JSON that is missing everything */
    WRONG_TYPES,    /* members of other types */
    MORE_FOREVER,   /* pages without end */
    BAD_CHUNKS,     /* a length that is no number */
    ANSWERS,
    BAD_STREAM,   /* an etcd whose watch says what cannot be */
    ENDED_STREAM, /* or ends at once */
    LONG_STREAM,  /* or does not end its line */
    EVERY_ANSWER,
    LOSES_ANSWERS /* to what is put, if `losing`; all else works */
} manner_t;

static _Atomic int manner;
static _Atomic bool over, losing;
static _Atomic unsigned served, deleted;
static int post_fd, port;
static char block[65536], brackets[65536];

static bool put(int fd, const char *text)
{
    return send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text);
}

static void ok(int fd, const char *body)
{
    char head[128];
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    put(fd, head);
    put(fd, body);
}

static void watch_badly(int fd)
{
    put(fd, "HTTP/1.1 200 OK\r\n\r\n{\"result\":{\"created\":true}}\n");
    if (manner == BAD_STREAM)
        put(fd, "{\"result\":{\"events\":[{\"kv\":{\"key\":\"L3dlZnQvcy94\",\"mod_revision\":\"9\"}},{\"type\":7}]}}\n");
    for (int i = 0; manner == LONG_STREAM && i < 4096 && put(fd, block); i++)
        ;
}

static void misbehave(int fd, const char *request)
{
    char text[512];
    switch ((manner_t)manner) {
    case GARBAGE:
        put(fd, "\x00\xff\x01 SSH-2.0-OpenSSH\r\n\r\n\r\n");
        put(fd, "SSH-2.0-OpenSSH_9.2p1 Debian\r\n");
        break;
    case SILENT:
        for (int i = 0; i < 100 && !over && manner == SILENT; i++)
            usleep(100000);
        break;
    case CLOSES:
        break;
    case NOT_JSON:
        ok(fd, "<html>It works!</html>");
        break;
    case EMPTY:
        ok(fd, "");
        break;
    case DEEP:
        ok(fd, brackets);
        break;
    case ENDLESS_BODY:
        put(fd, "HTTP/1.1 200 OK\r\n\r\n{\"kvs\":[\"");
        for (int i = 0; i < 4096 && put(fd, block); i++)
            ;
        break;
    case ENDLESS_HEAD:
        put(fd, "HTTP/1.1 200 OK\r\n");
        for (int i = 0; i < 100000 && put(fd, "X-Header: the quick brown fox jumps over the lazy dog\r\n"); i++)
            ;
        break;
    case DRIPS:
        put(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
        for (int i = 0; i < 100 && !over && manner == DRIPS && put(fd, " "); i++)
            usleep(100000);
        break;
    case SHORT:
        put(fd, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{\"header\":{\"revision\":\"5\"}}");
        break;
    case REDIRECTS:
        snprintf(text, sizeof text, "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%d/\r\nContent-Length: 0\r\n\r\n", port);
        put(fd, text);
        break;
    case ERRORS:
        put(fd, "HTTP/1.1 500 No\r\nContent-Length: 5\r\n\r\nsorry");
        break;
    case STRANGE_ERRORS:
        put(fd, "HTTP/1.1 404 No\r\nContent-Length: "
                "61\r\n\r\n{\"error\":\"\\u0007\\u001b[2Jboo\",\"message\":[{}],\"code\":\"-99\"}      ");
        break;
    case NO_REVISION:
        ok(fd, "{}");
        break;
    case WRONG_TYPES:
        ok(fd, "{\"header\":{\"revision\":{}},\"kvs\":{},\"ID\":[],\"TTL\":null,\"succeeded\":1}");
        break;
    case MORE_FOREVER:
        ok(fd, "{\"header\":{\"revision\":\"7\"},\"ID\":\"1\",\"TTL\":\"9223372036854775807\",\"more\":true,\"succeeded\":false,"
               "\"kvs\":[{\"key\":\"L3dlZnQvcy94\",\"value\":\"!!!\",\"lease\":\"1\"}]}");
        break;
    case BAD_CHUNKS:
        put(fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\nffffffffffffffff\r\n");
        break;
    case ANSWERS:
    case EVERY_ANSWER:
        break;
    case LOSES_ANSWERS:
        if (strstr(request, "request_delete_range"))
            deleted++;
        if (strstr(request, "/lease/keepalive"))
            ok(fd, "{\"result\":{\"header\":{\"revision\":\"7\"},\"ID\":\"1\",\"TTL\":\"3\"}}");
        else if (strstr(request, "/lease/"))
            ok(fd, "{\"header\":{\"revision\":\"7\"},\"ID\":\"1\",\"TTL\":\"3\",\"keys\":[\"L3dlZnQvcy94\"]}");
        else if (!losing || !strstr(request, "request_put"))
            ok(fd, "{\"header\":{\"revision\":\"7\"},\"succeeded\":true}");
        break;
    case BAD_STREAM:
    case ENDED_STREAM:
    case LONG_STREAM:
        if (strstr(request, "/v3/watch"))
            watch_badly(fd);
        else
            ok(fd, "{\"header\":{\"revision\":\"7\"}}");
        break;
    }
}

static void *serve(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char request[4096];
    struct timeval limit = {1, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t n = recv(fd, request, sizeof request - 1, 0);
    if (n > 0) {
        request[n] = 0;
        served++;
        misbehave(fd, request);
        shutdown(fd, SHUT_WR);
        while (!over && recv(fd, request, sizeof request, 0) > 0)
            ;
    }
    close(fd);
    return NULL;
}

static void *accept_all(void *arg)
{
    (void)arg;
    while (!over) {
        pthread_t t;
        int fd = accept(post_fd, NULL, NULL);
        if (fd < 0)
            continue;
        if (over || pthread_create(&t, NULL, serve, (void *)(intptr_t)fd))
            close(fd);
        else
            pthread_detach(t);
    }
    return NULL;
}

static pthread_t server(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    struct timeval limit = {0, 100000};
    pthread_t t;
    memset(block, 'x', sizeof block - 1);
    memset(brackets, '[', sizeof brackets - 1);
    post_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(post_fd >= 0);
    setsockopt(post_fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit); /* accept() has an end, too */
    CHECK(!bind(post_fd, (struct sockaddr *)&a, sizeof a) && !listen(post_fd, 64));
    CHECK(!getsockname(post_fd, (struct sockaddr *)&a, &n));
    port = ntohs(a.sin_port);
    CHECK(!pthread_create(&t, NULL, accept_all, NULL));
    return t;
}

static void server_end(pthread_t t)
{
    over = true;
    pthread_join(t, NULL);
    close(post_fd);
}

/* --- the tests -------------------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the log is of all threads */
static char said[1024];

static void note_line(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    pthread_mutex_lock(&lock);
    if (level <= WEFT_LOG_WARN)
        snprintf(said, sizeof said, "%s", line);
    pthread_mutex_unlock(&lock);
    for (const char *c = line; *c; c++)
        if ((unsigned char)*c < ' ')
            FAIL("the log has the server's control characters");
}

/* Was anything? And it is forgotten. */
static bool was_said(void)
{
    pthread_mutex_lock(&lock);
    bool was = *said;
    *said = 0;
    pthread_mutex_unlock(&lock);
    return was;
}

static weft_status_t try_open(place_t *p)
{
    char uri[64];
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.transports = "shm";
    CHECK_OK(weft_runtime_open(&opts, &p->rt));
    snprintf(uri, sizeof uri, "etcd://127.0.0.1:%d", port);
    return weft_registry_open(p->rt, uri, NULL, &p->registry);
}

TEST(whatever_a_server_does_every_call_ends_and_says_so)
{
    static seen_t s;
    pthread_t t = server();
    weft_log_set_sink(note_line, NULL);
    for (int m = 0; m < ANSWERS; m++) {
        place_t p;
        weft_watch_t *w;
        unsigned before = served;
        manner = m;
        was_said();
        if (try_open(&p))
            SKIP("there is no libcurl here");
        CHECK_OK(weft_registry_watch(p.registry, NULL, seen_change, &s, &w));
        weft_status_t st = place_enter(&p, "s", "x", 0); /* each has an end of 20 s in the library of the tests */
        if (st != WEFT_ERR_UNREACHABLE && st != WEFT_ERR_LIMIT)
            FAIL("manner %d: enter gives %s", m, weft_status_name(st));
        usleep(60000); /* until it is tried again */
        long found = place_count(&p, NULL);
        if (found != WEFT_ERR_UNREACHABLE && found != WEFT_ERR_LIMIT)
            FAIL("manner %d: find gives %ld", m, found);
        CHECK(weft_registry_state(p.registry) != WEFT_OK);
        CHECK(served > before);
        if (!was_said())
            FAIL("manner %d: nothing was said", m);
        CHECK_EQ(s.came, 0);
        place_close(&p);
    }
    server_end(t);
}

TEST(a_server_that_says_nothing_does_not_hold_up_a_close)
{
    pthread_t t = server();
    place_t p;
    manner = SILENT;
    if (try_open(&p))
        SKIP("there is no libcurl here");
    weft_entry_t e = WEFT_ENTRY_INIT;
    e.service = "s";
    e.address = "tcp://127.0.0.1:1";
    for (int i = 0; i < 100; i++) /* which would be minutes if each waited for itself */
        CHECK_OK(weft_registry_enter(p.registry, &e, NULL));
    place_close(&p);
    server_end(t);
}

TEST(what_was_put_without_an_answer_is_taken_away_when_it_leaves)
{
    pthread_t t = server();
    place_t p;
    manner = LOSES_ANSWERS;
    if (try_open(&p))
        SKIP("there is no libcurl here");
    CHECK_OK(place_enter(&p, "s", "x", 0)); /* it keeps the lease of both */
    losing = true;
    CHECK_EQ(place_enter(&p, "s", "y", 0), WEFT_ERR_UNREACHABLE);
    CHECK_EQ(deleted, 0);
    CHECK_OK(place_leave(&p, "s", "y"));
    PLACE_UNTIL(&p, deleted > 0, 20);
    place_close(&p);
    server_end(t);
}

TEST(a_watch_that_makes_no_sense_is_begun_anew_and_not_all_the_time)
{
    static seen_t s;
    pthread_t t = server();
    for (int m = BAD_STREAM; m < EVERY_ANSWER; m++) {
        place_t p;
        weft_watch_t *w;
        unsigned before = served;
        manner = m;
        if (try_open(&p))
            SKIP("there is no libcurl here");
        CHECK_OK(weft_registry_watch(p.registry, NULL, seen_change, &s, &w));
        double until = test_now() + 3;
        PLACE_UNTIL(&p, test_now() > until, 20);
        CHECK_EQ(weft_registry_state(p.registry), WEFT_OK); /* what it lists is an answer */
        CHECK(served - before >= 4);
        if (served - before > 40)
            FAIL("manner %d: %u requests in 3 s", m, served - before);
        CHECK_EQ(s.came, 0);
        place_close(&p);
    }
    server_end(t);
}
