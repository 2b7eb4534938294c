/* wire/am_memory.c - active and tag messages between every two kinds of memory this machine has: the library's, and a device
 * without hardware whose bytes come out wrong if anyone but its own copy() touched them. What a kind lacks here is skipped with
 * the reason. ctest: tls-long timeout=300 */
#include <stdlib.h>
#include <string.h>

#define TEST_SECONDS 240

#include "fakedev.h"
#include "must.h"
#include "pair.h"
#include "test.h"

static pair_t pair;

/* Small enough for a record, more than that, a stage and a bit, several stages. */
static const size_t lens[] = {1, 100, 5000, 70001, (512u << 10) + 1, (3u << 20) + 7};
enum { MOST = (3u << 20) + 7, ID = 3 };

static void *buffer(const weft_mem_kind_t *kind, size_t n, uint64_t seed)
{
    void *p;
    uint8_t *bytes = (uint8_t *)malloc(n);
    pattern_fill(bytes, n, seed);
    CHECK_OK(weft_mem_alloc(kind, n, &p));
    CHECK_OK(weft_mem_copy(p, kind, bytes, weft_mem_host(), n));
    free(bytes);
    return p;
}

static void check(const weft_mem_kind_t *kind, const void *p, size_t n, uint64_t seed)
{
    uint8_t *bytes = (uint8_t *)malloc(n);
    CHECK_OK(weft_mem_copy(bytes, weft_mem_host(), p, kind, n));
    CHECK_EQ(pattern_check(bytes, n, seed), n);
    free(bytes);
}

static void exchange_am(const weft_mem_kind_t *from, const weft_mem_kind_t *to, size_t n)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    void *out = buffer(from, n, n), *in = buffer(to, n, 1);
    char header[5];
    weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
    want.id = ID;
    want.header = header;
    want.header_cap = sizeof header;
    want.buf = in;
    want.cap = n;
    CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
    CHECK_OK(weft_am_send(pair.ep[1], ID, "warp", 5, out, n, &send));
    CHECK_OK(pair_wait(&pair, &recv, 20));
    CHECK_OK(pair_wait(&pair, &send, 20));
    CHECK(recv.len == n && recv.header_len == 5 && !strcmp(header, "warp"));
    check(to, in, n, n);
    /* the same into memory that is made for it, named by its kind */
    want.buf = NULL;
    want.cap = 0;
    want.kind = to;
    CHECK_OK(weft_am_send(pair.ep[1], ID, "warp", 5, out, n, &send));
    CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
    CHECK_OK(pair_wait(&pair, &recv, 20));
    CHECK_OK(pair_wait(&pair, &send, 20));
    check(to, recv.buf, n, n);
    weft_mem_free(to, recv.buf, recv.len);
    weft_mem_free(from, out, n);
    weft_mem_free(to, in, n);
}

static void exchange_pieces(const weft_mem_kind_t *from, const weft_mem_kind_t *to, size_t n)
{
    weft_op_t send = WEFT_OP_INIT, take = WEFT_OP_INIT, pull = WEFT_OP_INIT;
    uint8_t *out = (uint8_t *)buffer(from, n, n), *in = (uint8_t *)buffer(to, n, 1);
    size_t a = n / 3, b = n / 5;
    weft_iov_t pieces[2] = {{out, a}, {out + a, n - a}}, into[3] = {{in, b}, {in + b, 0}, {in + b, n - b}};
    weft_am_send_opts_t opts = WEFT_AM_SEND_OPTS_INIT;
    weft_am_pull_opts_t where = WEFT_AM_PULL_OPTS_INIT;
    opts.id = ID;
    opts.iov = pieces;
    opts.iov_n = 2;
    opts.kind = from;
    where.iov = into;
    where.iov_n = 3;
    where.kind = to;
    CHECK_OK(weft_am_take(pair.rt[0], pair.ep[0], ID, &take));
    CHECK_OK(weft_am_send_with(pair.ep[1], &opts, &send));
    CHECK_OK(pair_wait(&pair, &take, 20));
    CHECK_OK(weft_am_pull_with((weft_am_t *)take.buf, &where, &pull));
    CHECK_OK(pair_wait(&pair, &pull, 20));
    CHECK_OK(pair_wait(&pair, &send, 20));
    weft_am_release((weft_am_t *)take.buf);
    check(to, in, n, n);
    weft_mem_free(from, out, n);
    weft_mem_free(to, in, n);
}

static void exchange_msg(const weft_mem_kind_t *from, const weft_mem_kind_t *to, size_t n)
{
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    void *out = buffer(from, n, n), *in = buffer(to, n, 1);
    CHECK_OK(weft_msg_recv(pair.ep[0], in, n, 5, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(pair.ep[1], out, n, 5, &send));
    CHECK_OK(pair_wait(&pair, &recv, 20));
    CHECK_OK(pair_wait(&pair, &send, 20));
    CHECK_EQ(recv.len, n);
    check(to, in, n, n);
    weft_mem_free(from, out, n);
    weft_mem_free(to, in, n);
}

/* A view is host memory whatever the sender's is; what is rejected or taken back moves nothing, and leaves nothing behind. */
static void view_and_refuse(const weft_mem_kind_t *from)
{
    weft_op_t send = WEFT_OP_INIT, take = WEFT_OP_INIT, view = WEFT_OP_INIT;
    void *out = buffer(from, MOST, 7);
    CHECK_OK(weft_am_send(pair.ep[1], ID, NULL, 0, out, MOST, &send));
    CHECK_OK(weft_am_take(pair.rt[0], NULL, ID, &take));
    CHECK_OK(pair_wait(&pair, &take, 20));
    CHECK_OK(weft_am_view((weft_am_t *)take.buf, &view));
    CHECK_OK(pair_wait(&pair, &view, 20));
    CHECK_EQ(pattern_check(view.buf, view.len, 7), MOST);
    weft_am_release((weft_am_t *)take.buf);
    CHECK_OK(pair_wait(&pair, &send, 20));

    CHECK_OK(weft_am_send(pair.ep[1], ID, NULL, 0, out, MOST, &send));
    CHECK_OK(weft_am_take(pair.rt[0], NULL, ID, &take));
    CHECK_OK(pair_wait(&pair, &take, 20));
    CHECK_OK(weft_am_reject((weft_am_t *)take.buf, 77));
    weft_am_release((weft_am_t *)take.buf);
    CHECK_EQ(pair_wait(&pair, &send, 20), WEFT_ERR_REJECTED);
    CHECK_EQ(send.reason, 77);

    CHECK_OK(weft_am_send(pair.ep[1], ID, NULL, 0, out, MOST, &send));
    CHECK_OK(weft_am_take(pair.rt[0], NULL, ID, &take));
    CHECK_OK(pair_wait(&pair, &take, 20));
    weft_op_cancel(&send);
    CHECK_EQ(pair_wait(&pair, &send, 20), WEFT_ERR_CANCELLED);
    CHECK_OK(weft_am_view((weft_am_t *)take.buf, &view));
    CHECK_EQ(pair_wait(&pair, &view, 20), WEFT_ERR_CANCELLED);
    weft_am_release((weft_am_t *)take.buf);
    weft_mem_free(from, out, MOST);
}

/* Everything between this kind and host memory, and within the kind. */
static void all_with(const weft_mem_kind_t *kind)
{
    const weft_mem_kind_t *host = weft_mem_host();
    each_way(way) {
        pair_open(&pair, way, NULL);
        for (unsigned i = 0; i < sizeof lens / sizeof lens[0]; i++) {
            const weft_mem_kind_t *of[3][2] = {{host, kind}, {kind, host}, {kind, kind}};
            for (unsigned k = 0; k < 3; k++) {
                exchange_am(of[k][0], of[k][1], lens[i]);
                exchange_pieces(of[k][0], of[k][1], lens[i]);
                exchange_msg(of[k][0], of[k][1], lens[i]);
            }
        }
        view_and_refuse(kind);
        weft_runtime_stats_t stats = WEFT_RUNTIME_STATS_INIT;
        weft_runtime_get_stats(pair.rt[0], &stats);
        CHECK_EQ(stats.am_held, 0);
        pair_close(&pair);
    }
}

static void with_named(const char *name)
{
    const weft_mem_kind_t *kind = weft_mem_kind_find(name);
    if (!kind)
        SKIP("%s", weft_last_error());
    all_with(kind);
}

TEST(huge_pages)
{
    with_named("huge");
}
TEST(pinned_pages)
{
    with_named("pinned");
}
TEST(cuda)
{
    with_named("cuda");
}
TEST(cuda_managed)
{
    with_named("cuda-managed");
}
TEST(cuda_async)
{
    with_named("cuda-async");
}
TEST(cuda_vmm)
{
    with_named("cuda-vmm");
}
TEST(cuda_fd)
{
    with_named("cuda-fd");
}

TEST(a_device_whose_memory_the_processor_must_not_touch)
{
    fakedev_install();
    all_with(fakedev());
    fakedev_remove();
    CHECK_EQ(fakedev_live(), 0);
}

TEST(a_device_whose_copies_fail_says_so_and_nothing_is_left_behind)
{
    fakedev_install();
    each_way(way) {
        pair_open(&pair, way, NULL);
        for (unsigned k = 0; k < 6; k++) {
            bool from_device = k & 1;
            size_t n = k < 2 ? 100 : MOST;
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            void *out = buffer(from_device ? fakedev() : weft_mem_host(), n, n);
            void *in = buffer(from_device ? weft_mem_host() : fakedev(), n, 1);
            weft_am_recv_opts_t want = WEFT_AM_RECV_OPTS_INIT;
            want.ep = pair.ep[0];
            want.id = ID + 1 + k; /* what a failed receive leaves behind is for the next one of its id */
            want.buf = in;
            want.cap = n;
            fakedev_fail_copies(k < 2 ? 0 : k < 4 ? 1 : 3);
            CHECK_OK(weft_am_recv(pair.rt[0], &want, &recv));
            weft_status_t st = weft_am_send(pair.ep[1], ID + 1 + k, NULL, 0, out, n, &send);
            weft_status_t sent = st ? st : pair_wait(&pair, &send, 20);
            if (from_device)
                CHECK(sent != WEFT_OK);
            if (sent && n == 100) /* it never left */
                weft_op_cancel(&recv);
            CHECK(pair_wait(&pair, &recv, 20) != WEFT_OK);
            fakedev_fail_copies(UINT64_MAX);
            weft_mem_free(from_device ? fakedev() : weft_mem_host(), out, n);
            weft_mem_free(from_device ? weft_mem_host() : fakedev(), in, n);
        }
        exchange_am(fakedev(), fakedev(), MOST); /* and the endpoint goes on */
        pair_close(&pair);
    }
    fakedev_remove();
    CHECK_EQ(fakedev_live(), 0);
}
