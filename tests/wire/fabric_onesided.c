/* tests/wire/fabric_onesided.c - one-sided access to a peer's memory, on a ucx transport that is marked as trusted: what
 * arrives, when a put is done, and every way in which the other side or the lane can end in the middle.
 *
 * ctest: timeout=240 */
#define TEST_SECONDS 120
#include "test.h"

#include <sys/mman.h>
#include <sys/socket.h>

#include "fabric/module.h"
#include "lanes.h"

#define BIG ((size_t)48 << 20)

/* As where there is hardware for it: UCX gets everything at once. */
static void all_at_once(void)
{
    wefti_ucx_rendezvous = true;
}

static void open_pair(lanes_t *l)
{
    setenv("WEFT_TRUSTED", "on", 1);
    lanes_open(l, "ucx");
    CHECK(l->a.lane->ops->key_new && l->a.lane->ops->get && l->a.lane->ops->put);
    /* both halves have their endpoint once a record went each way */
    lanes_send(l, &l->a, "a", 1);
    lanes_send(l, &l->b, "b", 1);
    LANES_UNTIL(l, l->a.records == 1 && l->b.records == 1);
}

/* Memory of b's, and a's way to it. */
typedef struct reach {
    lanes_t *l;
    void *key, *remote;
    uint8_t bytes[WEFTI_KEY_MAX];
    size_t n;
} reach_t;

static void reach_open(reach_t *r, lanes_t *l, void *base, size_t n)
{
    memset(r, 0, sizeof *r);
    r->l = l;
    CHECK_OK(l->b.lane->ops->key_new(l->b.lane, base, n, r->bytes, &r->n, &r->key));
    CHECK(r->n && r->n <= WEFTI_KEY_MAX);
    CHECK_OK(l->a.lane->ops->key_open(l->a.lane, r->bytes, r->n, &r->remote));
}

static void reach_close(reach_t *r)
{
    r->l->a.lane->ops->key_close(r->remote);
    r->l->b.lane->ops->key_free(r->key, NULL);
}

static void get(reach_t *r, uint64_t offset, void *buf, size_t n)
{
    weft_iov_t iov = {buf, n};
    lanes_xfer_t x;
    lanes_xfer_init(&x);
    CHECK_OK(r->l->a.lane->ops->get(r->l->a.lane, r->remote, offset, &iov, 1, n, &x.x));
    LANES_UNTIL(r->l, x.done);
    CHECK_OK(x.status);
}

static void put(reach_t *r, uint64_t offset, const void *buf, size_t n)
{
    weft_iov_t iov = {(void *)(uintptr_t)buf, n};
    lanes_xfer_t x;
    lanes_xfer_init(&x);
    CHECK_OK(r->l->a.lane->ops->put(r->l->a.lane, r->remote, offset, &iov, 1, n, &x.x));
    LANES_UNTIL(r->l, x.done);
    CHECK_OK(x.status);
}

static void fill(uint8_t *buf, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        buf[i] = (uint8_t)(i * 31 + (i >> 9) + seed);
}

TEST(a_transport_that_is_not_trusted_has_none_of_it)
{
    lanes_t l;
    unsetenv("WEFT_TRUSTED");
    lanes_open(&l, "ucx");
    const wefti_transport_ops_t *ops = l.a.lane->ops;
    CHECK(!ops->key_new && !ops->key_open && !ops->get && !ops->put);
    lanes_close(&l);
}

static void sizes(void)
{
    static const size_t lens[] = {1, 7, 8, 64, 4096, 8191, 65536, 65537, 1 << 20, 5000003};
    enum { CAP = 6 << 20, EDGE = 4096 };
    lanes_t l;
    reach_t r;
    uint8_t *theirs = calloc(1, CAP), *mine = malloc(CAP), *back = malloc(CAP);
    open_pair(&l);
    reach_open(&r, &l, theirs + EDGE, CAP - 2 * EDGE);
    for (unsigned i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        size_t n = lens[i], at = i * 13;
        fill(mine, n, i);
        memset(theirs, 0, CAP);
        put(&r, at, mine, n);
        CHECK(!memcmp(theirs + EDGE + at, mine, n)); /* done means there */
        for (size_t k = 0; k < EDGE; k++)
            CHECK(!theirs[k] && !theirs[CAP - 1 - k]);
        CHECK(!theirs[EDGE + at + n] && (!at || !theirs[EDGE + at - 1]));
        fill(theirs + EDGE + at, n, i + 100);
        memset(back, 0xee, n + 1);
        get(&r, at, back, n);
        CHECK(!memcmp(theirs + EDGE + at, back, n) && back[n] == 0xee);
    }
    reach_close(&r);
    lanes_close(&l);
    free(theirs);
    free(mine);
    free(back);
}

TEST(bytes_of_every_size_are_read_and_written_where_they_should_be_and_nowhere_else)
{
    sizes();
}

TEST(all_at_once_bytes_of_every_size_are_read_and_written_where_they_should_be_and_nowhere_else)
{
    all_at_once();
    sizes();
}

static void pieces(void)
{
    lanes_t l;
    reach_t r;
    static uint8_t theirs[4096], parts[3][1000];
    lanes_xfer_t x;
    open_pair(&l);
    reach_open(&r, &l, theirs, sizeof theirs);
    fill(theirs, sizeof theirs, 3);
    weft_iov_t iov[] = {{parts[0], 1000}, {parts[1], 0}, {parts[1], 500}, {parts[2], 1000}};
    lanes_xfer_init(&x);
    CHECK_OK(l.a.lane->ops->get(l.a.lane, r.remote, 100, iov, 4, 2000, &x.x));
    LANES_UNTIL(&l, x.done);
    CHECK_OK(x.status);
    CHECK(!memcmp(parts[0], theirs + 100, 1000) && !memcmp(parts[1], theirs + 1100, 500) &&
          !memcmp(parts[2], theirs + 1600, 500) && !parts[2][500] && !parts[1][500]);
    memset(theirs, 0, sizeof theirs);
    lanes_xfer_init(&x);
    CHECK_OK(l.a.lane->ops->put(l.a.lane, r.remote, 1, iov, 4, 2000, &x.x));
    LANES_UNTIL(&l, x.done);
    CHECK_OK(x.status);
    CHECK(!memcmp(theirs + 1, parts[0], 1000) && !memcmp(theirs + 1001, parts[1], 500) && !memcmp(theirs + 1501, parts[2], 500) &&
          !theirs[0] && !theirs[2001]);
    reach_close(&r);
    lanes_close(&l);
}

TEST(pieces_are_filled_and_sent_in_order_up_to_the_length)
{
    pieces();
}

TEST(all_at_once_pieces_are_filled_and_sent_in_order_up_to_the_length)
{
    all_at_once();
    pieces();
}

TEST(what_is_not_within_the_key_and_keys_that_are_none_are_refused_at_once)
{
    lanes_t l;
    reach_t r;
    static uint8_t theirs[4096], mine[4096];
    weft_iov_t iov = {mine, sizeof mine};
    lanes_xfer_t x;
    void *remote;
    open_pair(&l);
    reach_open(&r, &l, theirs, sizeof theirs);
    const wefti_transport_ops_t *ops = l.a.lane->ops;
    static const uint64_t offsets[] = {1, 4096, UINT64_MAX, UINT64_MAX - 4095, UINT64_C(1) << 63};
    for (unsigned i = 0; i < 5; i++) {
        lanes_xfer_init(&x);
        CHECK_EQ(ops->get(l.a.lane, r.remote, offsets[i], &iov, 1, 4096, &x.x), WEFT_ERR_RANGE);
        CHECK_EQ(ops->put(l.a.lane, r.remote, offsets[i], &iov, 1, 4096, &x.x), WEFT_ERR_RANGE);
    }
    for (size_t n = 0; n <= 20; n++)
        CHECK_EQ(ops->key_open(l.a.lane, r.bytes, n, &remote), WEFT_ERR_PROTOCOL);
    r.bytes[0] ^= 1;
    CHECK_EQ(ops->key_open(l.a.lane, r.bytes, r.n, &remote), WEFT_ERR_PROTOCOL);
    for (int i = 0; i < 50; i++)
        lanes_progress(&l);
    CHECK(!x.done);
    reach_close(&r);
    lanes_close(&l);
}

static void many(void)
{
    enum { N = 2000, SIZE = 512 };
    lanes_t l;
    reach_t r;
    static uint8_t theirs[N][SIZE], mine[N][SIZE], back[N][SIZE];
    static lanes_xfer_t x[N];
    static weft_iov_t iov[N];
    open_pair(&l);
    reach_open(&r, &l, theirs, sizeof theirs);
    fill(mine[0], sizeof mine, 9);
    for (int i = 0; i < N; i++) {
        iov[i] = (weft_iov_t){mine[i], SIZE};
        lanes_xfer_init(&x[i]);
        CHECK_OK(l.a.lane->ops->put(l.a.lane, r.remote, (uint64_t)i * SIZE, &iov[i], 1, SIZE, &x[i].x));
        if (i % 100 == 99)
            lanes_progress(&l);
    }
    for (int i = 0; i < N; i++) {
        LANES_UNTIL(&l, x[i].done);
        CHECK_OK(x[i].status);
        CHECK(!memcmp(theirs[i], mine[i], SIZE));
    }
    for (int i = 0; i < N; i++) {
        iov[i] = (weft_iov_t){back[i], SIZE};
        lanes_xfer_init(&x[i]);
        CHECK_OK(l.a.lane->ops->get(l.a.lane, r.remote, (uint64_t)i * SIZE, &iov[i], 1, SIZE, &x[i].x));
    }
    l.a.lane->ops->key_close(r.remote);
    for (int i = 0; i < N; i++) {
        LANES_UNTIL(&l, x[i].done);
        CHECK_OK(x[i].status);
    }
    CHECK(!memcmp(back, mine, sizeof mine));
    l.b.lane->ops->key_free(r.key, NULL);
    lanes_close(&l);
}

TEST(many_puts_and_gets_in_flight_are_each_done_once_and_their_key_may_be_closed_under_them)
{
    many();
}

TEST(all_at_once_many_puts_and_gets_in_flight_are_each_done_once_and_their_key_may_be_closed_under_them)
{
    all_at_once();
    many();
}

static void not_done(void)
{
    lanes_t l;
    reach_t r;
    static uint8_t theirs[100], mine[100];
    weft_iov_t iov = {mine, sizeof mine};
    lanes_xfer_t x;
    open_pair(&l);
    reach_open(&r, &l, theirs, sizeof theirs);
    fill(mine, sizeof mine, 1);
    lanes_xfer_init(&x);
    CHECK_OK(l.a.lane->ops->put(l.a.lane, r.remote, 0, &iov, 1, sizeof mine, &x.x));
    for (int i = 0; i < 2000; i++) {
        lanes_side_progress(&l.a);
        CHECK(!x.done || !memcmp(theirs, mine, sizeof mine));
    }
    CHECK(!x.done); /* over TCP the owner has to do it */
    LANES_UNTIL(&l, x.done);
    CHECK_OK(x.status);
    CHECK(!memcmp(theirs, mine, sizeof mine));
    reach_close(&r);
    lanes_close(&l);
}

TEST(a_put_is_not_done_while_its_owner_does_not_move)
{
    not_done();
}

TEST(all_at_once_a_put_is_not_done_while_its_owner_does_not_move)
{
    all_at_once();
    not_done();
}

/* --- endings --------------------------------------------------------------------------------------------------------------- */

enum { MIXED = 48 };
typedef struct mixed {
    lanes_xfer_t x[MIXED];
    weft_iov_t iov[MIXED];
    uint8_t *buf;
} mixed_t;

/* Gets and puts at once, large and small: more than the sockets hold. `n` of the buffer and of the remote. */
static void mixed_post(mixed_t *m, lanes_side_t *s, void *remote, size_t n)
{
    const wefti_transport_ops_t *ops = s->lane->ops;
    memset(m, 0, sizeof *m);
    m->buf = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(m->buf != MAP_FAILED);
    size_t part = n / MIXED & ~(size_t)7;
    for (unsigned i = 0; i < MIXED; i++) {
        weft_iov_t *iov = &m->iov[i];
        *iov = (weft_iov_t){m->buf + i * part, i % 6 < 4 ? part : 64};
        lanes_xfer_init(&m->x[i]);
        if (i % 2)
            CHECK_OK(ops->put(s->lane, remote, i * part, iov, 1, iov->len, &m->x[i].x));
        else
            CHECK_OK(ops->get(s->lane, remote, i * part, iov, 1, iov->len, &m->x[i].x));
    }
}

static unsigned mixed_done(const mixed_t *m)
{
    unsigned n = 0;
    for (unsigned i = 0; i < MIXED; i++)
        n += m->x[i].done;
    return n;
}

/* All are done, none with anything but success or `status`; and some with that. */
static void mixed_ended(const mixed_t *m, weft_status_t status, size_t n)
{
    unsigned bad = 0;
    for (unsigned i = 0; i < MIXED; i++) {
        CHECK_EQ(m->x[i].done, 1);
        CHECK(!m->x[i].status || m->x[i].status == status);
        bad += m->x[i].status != WEFT_OK;
    }
    CHECK(bad > 0);
    munmap(m->buf, n); /* UCX has let go of it */
}

static void closing(void)
{
    for (int rounds = 0; rounds < 6; rounds++) {
        lanes_t l;
        reach_t r;
        static mixed_t m;
        uint8_t *theirs = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(theirs != MAP_FAILED);
        open_pair(&l);
        reach_open(&r, &l, theirs, BIG);
        mixed_post(&m, &l.a, r.remote, BIG);
        for (int i = 0; i < rounds * 3; i++)
            lanes_progress(&l);
        CHECK(mixed_done(&m) < MIXED);
        void *lane = l.a.lane;
        l.a.lane->ops->lane_close(l.a.lane);
        if (rounds % 2)
            l.a.transport->ops->key_close(r.remote); /* before the end, or after the lane */
        LANES_UNTIL(&l, l.a.closed);
        CHECK(lane && mixed_done(&m) == MIXED);
        mixed_ended(&m, WEFT_ERR_CANCELLED, BIG);
        l.a.lane = NULL;
        if (!(rounds % 2))
            l.a.transport->ops->key_close(r.remote);
        lanes_xfer_t taken;
        lanes_xfer_init(&taken);
        l.b.transport->ops->key_free(r.key, &taken.x);
        CHECK(!taken.done);
        lanes_close(&l);
        CHECK(taken.done && !taken.status);
        munmap(theirs, BIG);
    }
}

TEST(closing_the_lane_ends_what_is_under_way)
{
    closing();
}

TEST(all_at_once_closing_the_lane_ends_what_is_under_way)
{
    all_at_once();
    closing();
}

TEST(an_owner_that_closes_its_lane_in_the_middle_costs_no_more_than_what_was_under_way)
{
    lanes_t l;
    reach_t r;
    static mixed_t m;
    uint8_t *theirs = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(theirs != MAP_FAILED);
    open_pair(&l);
    reach_open(&r, &l, theirs, BIG);
    mixed_post(&m, &l.a, r.remote, BIG);
    for (int i = 0; i < 10; i++)
        lanes_progress(&l);
    lanes_xfer_t taken;
    lanes_xfer_init(&taken);
    l.b.lane->ops->key_free(r.key, &taken.x);
    l.b.lane->ops->lane_close(l.b.lane);
    LANES_UNTIL(&l, taken.done);
    CHECK_OK(taken.status);
    munmap(theirs, BIG); /* nothing touches it any more */
    LANES_UNTIL(&l, l.b.closed && l.a.failed);
    l.b.lane = NULL;
    for (int i = 0; i < 200; i++)
        lanes_progress(&l);
    l.a.lane->ops->lane_close(l.a.lane);
    LANES_UNTIL(&l, l.a.closed);
    l.a.lane = NULL;
    CHECK_EQ(mixed_done(&m), MIXED);
    unsigned bad = 0;
    for (unsigned i = 0; i < MIXED; i++)
        bad += m.x[i].status == WEFT_ERR_PEER || m.x[i].status == WEFT_ERR_CANCELLED;
    CHECK(bad);
    munmap(m.buf, BIG);
    l.a.transport->ops->key_close(r.remote);
    lanes_close(&l);
}

/* --- two processes ---------------------------------------------------------------------------------------------------------- */

/* Fork an owner of BIG bytes whose key comes as a record; both sides are up when this returns. */
typedef struct apart {
    lanes_side_t s;
    pid_t pid; /* of the owner; 0 there */
    uint8_t key[WEFTI_KEY_MAX];
    size_t key_n;
    void *own, *remote;
    uint8_t *bytes;
} apart_t;

static apart_t two;

static void key_record(lanes_side_t *s, const void *rec, size_t n)
{
    (void)s;
    CHECK(n <= sizeof two.key);
    memcpy(two.key, rec, n);
    two.key_n = n;
}

static void fork_apart(void)
{
    int fds[2];
    setenv("WEFT_TRUSTED", "on", 1);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, fds));
    two.pid = fork();
    lanes_side_open(&two.s, "ucx", NULL);
    two.s.on_record = key_record;
    lanes_side_meet(&two.s, fds[two.pid == 0]);
    if (!two.pid) {
        uint8_t key[WEFTI_KEY_MAX];
        size_t n;
        two.bytes = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(two.bytes != MAP_FAILED);
        fill(two.bytes, BIG, 77);
        CHECK_OK(two.s.lane->ops->key_new(two.s.lane, two.bytes, BIG, key, &n, &two.own));
        LANES_SIDE_UNTIL(&two.s, lanes_try_send(&two.s, key, n));
    } else {
        LANES_SIDE_UNTIL(&two.s, two.key_n);
        CHECK_OK(two.s.lane->ops->key_open(two.s.lane, two.key, two.key_n, &two.remote));
    }
}

static void owner_drives(void)
{
    for (double end = test_now() + 60; test_now() < end;)
        lanes_side_progress(&two.s);
    _exit(3);
}

TEST(a_reader_in_another_process_gets_the_owners_bytes)
{
    enum { PART = 3 << 20 };
    fork_apart();
    if (!two.pid)
        owner_drives();
    uint8_t *mine = malloc(PART), *back = malloc(PART);
    lanes_xfer_t x;
    weft_iov_t iov = {back, PART};
    fill(mine, PART, 77);
    lanes_xfer_init(&x);
    CHECK_OK(two.s.lane->ops->get(two.s.lane, two.remote, 0, &iov, 1, PART, &x.x));
    LANES_SIDE_UNTIL(&two.s, x.done);
    CHECK_OK(x.status);
    CHECK(!memcmp(mine, back, PART));
    fill(back, PART, 5);
    lanes_xfer_init(&x);
    CHECK_OK(two.s.lane->ops->put(two.s.lane, two.remote, 0, &iov, 1, PART, &x.x));
    LANES_SIDE_UNTIL(&two.s, x.done);
    CHECK_OK(x.status);
    iov.base = mine;
    lanes_xfer_init(&x);
    CHECK_OK(two.s.lane->ops->get(two.s.lane, two.remote, 0, &iov, 1, PART, &x.x));
    LANES_SIDE_UNTIL(&two.s, x.done);
    CHECK(!x.status && !memcmp(mine, back, PART));
    kill(two.pid, SIGKILL);
    waitpid(two.pid, NULL, 0);
    two.s.lane->ops->key_close(two.remote);
    lanes_side_close(&two.s);
    free(mine);
    free(back);
}

/* Kill the owner after `rounds` of progress with everything under way. */
static void kill_owner(int rounds)
{
    static mixed_t m;
    fork_apart();
    if (!two.pid)
        owner_drives();
    mixed_post(&m, &two.s, two.remote, BIG);
    for (int i = 0; i < rounds; i++)
        lanes_side_progress(&two.s);
    kill(two.pid, SIGKILL);
    waitpid(two.pid, NULL, 0);
    LANES_SIDE_UNTIL(&two.s, two.s.failed);
    CHECK_EQ(two.s.why, WEFT_ERR_PEER);
    /* An access now is an error, and not a wait. */
    weft_iov_t iov = {m.buf, 8};
    lanes_xfer_t late;
    lanes_xfer_init(&late);
    CHECK_EQ(two.s.lane->ops->get(two.s.lane, two.remote, 0, &iov, 1, 8, &late.x), WEFT_ERR_PEER);
    unsigned before = mixed_done(&m);
    lanes_side_close_lane(&two.s);
    printf("%u of %d were done when the lane had failed\n", before, MIXED);
    unsigned bad = 0;
    for (unsigned i = 0; i < MIXED; i++) {
        CHECK_EQ(m.x[i].done, 1);
        bad += m.x[i].status != WEFT_OK;
    }
    CHECK(bad > 0);
    munmap(m.buf, BIG);
    two.s.transport->ops->key_close(two.remote);
    lanes_side_close(&two.s);
}

TEST(an_owner_that_is_killed_at_once_ends_what_is_under_way)
{
    kill_owner(0);
}

TEST(an_owner_that_is_killed_early_ends_what_is_under_way)
{
    kill_owner(20);
}

TEST(an_owner_that_is_killed_in_the_middle_ends_what_is_under_way)
{
    kill_owner(300);
}

TEST(an_owner_that_is_stopped_is_let_go_of_by_closing)
{
    static mixed_t m;
    fork_apart();
    if (!two.pid)
        owner_drives();
    kill(two.pid, SIGSTOP);
    mixed_post(&m, &two.s, two.remote, BIG);
    for (int i = 0; i < 500; i++)
        lanes_side_progress(&two.s);
    CHECK(mixed_done(&m) < MIXED);
    lanes_side_close_lane(&two.s);
    CHECK_EQ(mixed_done(&m), MIXED);
    mixed_ended(&m, WEFT_ERR_CANCELLED, BIG);
    two.s.transport->ops->key_close(two.remote);
    lanes_side_close(&two.s);
    kill(two.pid, SIGKILL);
    waitpid(two.pid, NULL, 0);
}

/* The other way round: whoever has the memory sees its user die. Between two accesses: with one under way, UCX 1.13 may abort
 * (onesided.c). */
static void kill_user(int rounds, int done)
{
    fork_apart();
    if (two.pid) { /* the parent is the user here: it runs in a process of its own, and dies */
        static uint8_t buf[4096];
        weft_iov_t iov = {buf, sizeof buf};
        for (int i = 0; i < rounds; i++) {
            lanes_xfer_t x;
            lanes_xfer_init(&x);
            if (i % 2)
                CHECK_OK(two.s.lane->ops->get(two.s.lane, two.remote, 0, &iov, 1, sizeof buf, &x.x));
            else
                CHECK_OK(two.s.lane->ops->put(two.s.lane, two.remote, 0, &iov, 1, sizeof buf, &x.x));
            LANES_SIDE_UNTIL(&two.s, x.done);
            CHECK_OK(x.status);
        }
        kill(getpid(), SIGKILL);
    }
    LANES_SIDE_UNTIL(&two.s, two.s.failed);
    CHECK_EQ(two.s.why, WEFT_ERR_PEER);
    lanes_xfer_t taken;
    lanes_xfer_init(&taken);
    two.s.lane->ops->key_free(two.own, &taken.x);
    lanes_side_close_lane(&two.s);
    CHECK(taken.done);
    munmap(two.bytes, BIG);
    lanes_side_close(&two.s);
    CHECK_EQ(write(done, "x", 1), 1);
    _exit(0);
}

static void user_killed(int rounds)
{
    int done[2], status;
    char c;
    CHECK(!pipe(done));
    pid_t user = fork();
    if (!user) {
        close(done[0]);
        kill_user(rounds, done[1]); /* its child, the owner, says in the end that all was well */
    }
    close(done[1]);
    CHECK(waitpid(user, &status, 0) == user && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    CHECK_EQ(read(done[0], &c, 1), 1);
    close(done[0]);
}

TEST(an_owner_survives_a_user_that_is_killed_between_two_accesses)
{
    user_killed(0);
    user_killed(1);
    user_killed(100);
}

/* --- one side only -------------------------------------------------------------------------------------------------------- */

TEST(a_trusted_side_and_one_that_is_not_still_exchange_records)
{
    lanes_t l;
    for (int which = 0; which < 2; which++) {
        setenv("WEFT_TRUSTED", which ? "on" : "off", 1);
        lanes_side_open(&l.a, "ucx", NULL);
        setenv("WEFT_TRUSTED", which ? "off" : "on", 1);
        lanes_side_open(&l.b, "ucx", NULL);
        lanes_new(&l.a, &l.b);
        lanes_side_connect(&l.a, l.b.addr, l.b.addr_n);
        lanes_side_connect(&l.b, l.a.addr, l.a.addr_n);
        for (unsigned i = 0; i < 50; i++) {
            lanes_send(&l, &l.a, "there", 5);
            lanes_send(&l, &l.b, "back", 4);
        }
        LANES_UNTIL(&l, l.a.records == 50 && l.b.records == 50);
        lanes_close(&l);
    }
}
