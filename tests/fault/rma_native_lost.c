/* fault/rma_native_lost.c - remote memory by one-sided operations of the fabric when the process on the other side is killed or
 * stopped: every access ends, small ones by their deadline, and an owner gets its memory back. Over UCX's TCP, which emulates
 * them; a user is killed between two accesses only, since UCX 1.13 may abort its owner otherwise (fabric/ucx/onesided.c).
 * ctest: timeout=120 */
#define TEST_SECONDS 60
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "lib/peer.h"
#include "test.h"

enum { LEN = 4 << 20, N = 64 };

static char key_path[64];

static void trust(void)
{
    snprintf(key_path, sizeof key_path, "rma_native_lost.%d.key", (int)getpid());
    int fd = open(key_path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    CHECK(fd >= 0 && write(fd, "0123456789abcdef", 16) == 16);
    close(fd);
    setenv("WEFT_KEY_FILE", key_path, 1);
    setenv("WEFT_TRUSTED", "emulated", 1);
}

static void start(peer_t *p, peer_life_t life)
{
    trust();
    peer_start(p, "ucx_tcp", WEFT_SECOND, life);
    unlink(key_path);
}

/* --- an owner --------------------------------------------------------------------------------------------------------------- */

static void owner(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    weft_region_t *region;
    (void)ep;
    o.len = LEN;
    o.name = "it";
    CHECK_OK(weft_region_new(rt, &o, &region));
    peer_live(rt);
}

static weft_remote_t *find(peer_t *p)
{
    weft_remote_opts_t o = WEFT_REMOTE_OPTS_INIT;
    o.path = WEFT_RMA_NATIVE;
    for (int i = 0; i < 500; i++) { /* it may not be there yet */
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_remote_find(p->ep, "it", &o, &op));
        weft_status_t st = peer_wait(p, &op, 10);
        if (!st)
            return op.buf;
        CHECK_EQ(st, WEFT_ERR_NOTFOUND);
        peer_run(p, 0.01);
    }
    FAIL("there is no region \"it\"");
    return NULL;
}

static weft_op_t ops[N];
static uint8_t *bufs[N];

static size_t len_of(unsigned i)
{
    return i % 4 == 3 ? LEN / N : 64;
}

static void post(weft_remote_t *r, uint64_t timeout_ns)
{
    memset(ops, 0, sizeof ops);
    for (unsigned i = 0; i < N; i++) {
        size_t n = len_of(i);
        uint64_t at = (uint64_t)i * (LEN / N);
        bufs[i] = malloc(n);
        memset(bufs[i], 1, n);
        ops[i].timeout_ns = timeout_ns;
        CHECK_OK(i % 3 == 2 ? weft_rma_atomic(r, WEFT_RMA_ADD, at, 8, 1, 0, &ops[i])
                 : i % 2    ? weft_rma_read(r, at, bufs[i], n, &ops[i])
                            : weft_rma_write(r, at, bufs[i], n, &ops[i]));
    }
}

static void killed(int rounds)
{
    peer_t p;
    start(&p, owner);
    weft_remote_t *r = find(&p);
    post(r, 0);
    for (int i = 0; i < rounds; i++)
        weft_runtime_progress(p.rt);
    peer_signal(&p, SIGKILL);
    unsigned lost = 0;
    for (unsigned i = 0; i < N; i++) {
        weft_status_t st = peer_wait(&p, &ops[i], 10);
        CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
        lost += st != WEFT_OK;
        free(bufs[i]); /* nobody has it any more: the address sanitizer looks */
    }
    CHECK(lost);
    uint64_t word;
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_rma_read(r, 0, &word, 8, &op));
    CHECK_EQ(peer_wait(&p, &op, 10), WEFT_ERR_PEER);
    weft_remote_drop(r);
    peer_end(&p);
}

TEST(an_owner_that_is_killed_ends_every_access_to_it)
{
    killed(0);
    killed(5);
    killed(50);
}

TEST(an_owner_that_is_stopped_is_waited_for_no_longer_than_deadline_and_heartbeat)
{
    peer_t p;
    start(&p, owner);
    weft_remote_t *r = find(&p);
    peer_signal(&p, SIGSTOP);
    post(r, 20 * WEFT_MILLISECOND);
    unsigned late = 0;
    for (unsigned i = 0; i < N; i++) {
        weft_status_t st = peer_wait(&p, &ops[i], 10);
        /* the fabric has the buffer of a large one, and lets go of it with the lane */
        if (len_of(i) == 64)
            CHECK(st == WEFT_ERR_TIMEOUT || st == WEFT_OK);
        else
            CHECK(st == WEFT_ERR_TIMEOUT || st == WEFT_ERR_PEER || st == WEFT_OK);
        late += st == WEFT_ERR_TIMEOUT;
        free(bufs[i]);
    }
    CHECK(late);
    weft_remote_drop(r);
    peer_end(&p);
}

/* --- a user --------------------------------------------------------------------------------------------------------------- */

static _Atomic int *stage; /* shared with the user's process */

static void user(weft_runtime_t *rt, weft_ep_t *ep)
{
    peer_t self = {.rt = rt, .ep = ep};
    weft_remote_t *r = find(&self);
    uint8_t buf[100];
    memset(buf, 5, sizeof buf);
    for (int i = 0; i < 20; i++) {
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_rma_write(r, 10, buf, sizeof buf, &op));
        CHECK_OK(peer_wait(&self, &op, 10));
    }
    atomic_store(stage, 1);
    peer_live(rt);
}

TEST(an_owner_gets_its_memory_back_from_a_user_that_is_killed_or_stopped)
{
    static uint8_t own[LEN];
    stage = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(stage != MAP_FAILED);
    for (int frees = 0; frees < 2; frees++) {
        for (int stopped = 0; stopped < 2; stopped++) {
            peer_t p;
            weft_op_t end = WEFT_OP_INIT;
            weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
            weft_region_t *region;
            atomic_store(stage, 0);
            memset(own, 0, sizeof own);
            start(&p, user);
            o.len = LEN;
            o.name = "it";
            o.buf = own;
            CHECK_OK(weft_region_new(p.rt, &o, &region));
            for (double until = test_now() + 10; !atomic_load(stage);) {
                weft_runtime_progress(p.rt);
                CHECK(test_now() < until);
            }
            CHECK(own[9] == 0 && own[10] == 5 && own[109] == 5 && own[110] == 0);
            peer_signal(&p, stopped ? SIGSTOP : SIGKILL);
            CHECK_OK(frees ? weft_region_free(region, &end) : weft_region_revoke(region, &end));
            if (stopped) {
                peer_run(&p, 0.2);
                CHECK(!weft_op_done(&end)); /* it could be in the middle of one */
            }
            CHECK_OK(peer_wait(&p, &end, 10)); /* it is lost by its silence at the latest */
            if (!frees) {
                end = (weft_op_t)WEFT_OP_INIT;
                CHECK_OK(weft_region_free(region, &end));
                CHECK_OK(peer_wait(&p, &end, 10));
            }
            peer_end(&p);
        }
    }
}
