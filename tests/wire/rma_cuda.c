/* tests/wire/rma_cuda.c - remote memory in CUDA memory of a process of this host, against a driver made of paper: who copies
 * what, the order of reads and writes, revoking and freeing in the middle of a copy, and peers that end.
 * ctest: label=thread timeout=200 gpu */
#include "test.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <weft/weft.h>

#include "lib/cuda/use.h"
#include "lib/pair.h"

enum { LEN = 3 << 20, SMALL = 1000 };

static pid_t owner;
static int to_owner[2], from_owner[2];
static weft_runtime_t *rt;
static weft_ep_t *ep;
static weft_remote_t *remote;
static uint8_t *mine, *host, *pinned; /* device, host */
static uint8_t bytes[LEN], back[LEN];

/* --- the process that owns the region ------------------------------------------------------------------------------------- */

typedef struct told {
    char uri[256];
    uint8_t key[WEFT_REGION_KEY_MAX];
    size_t key_n;
} told_t;

static void must(weft_status_t st)
{
    if (st) {
        fprintf(stderr, "the owner: %s: %s\n", weft_status_name(st), weft_last_error());
        _exit(3);
    }
}

static bool by_fd; /* the region's memory is had by a descriptor */

static void cuda_begin(uint8_t **out, bool fd)
{
    void *ctx, *p = NULL;
    use_paper();
    must(weft_mem_kind_find("cuda") ? WEFT_OK : WEFT_ERR_SYSTEM);
    must(cu.PrimaryRetain(&ctx, 0) || cu.CtxPushCurrent(ctx) ? WEFT_ERR_SYSTEM : WEFT_OK);
    if (fd)
        must(weft_mem_alloc(weft_mem_kind_find("cuda-fd"), LEN, &p));
    else
        must(cu.MemAlloc((uintptr_t *)&p, LEN) ? WEFT_ERR_SYSTEM : WEFT_OK);
    *out = p;
}

/* It does what it is told by single letters, and answers each with one. */
static void owner_run(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    weft_runtime_t *own;
    weft_listener_t *listener;
    weft_region_t *region;
    uint8_t *memory;
    told_t told;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(&told, 0, sizeof told);
    cuda_begin(&memory, by_fd);
    opts.progress = WEFT_PROGRESS_THREAD;
    must(weft_runtime_open(&opts, &own));
    must(weft_listen(own, "tcp://127.0.0.1:0", NULL, &listener));
    snprintf(told.uri, sizeof told.uri, "%s", weft_listener_uri(listener));
    ro.buf = memory;
    ro.len = LEN;
    must(weft_region_new(own, &ro, &region));
    told.key_n = sizeof told.key;
    must(weft_region_key(region, NULL, told.key, &told.key_n));
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    must(cu.MemcpyHtoD((uintptr_t)memory, bytes, LEN) ? WEFT_ERR_SYSTEM : WEFT_OK);
    use_settle();
    must(write(from_owner[1], &told, sizeof told) == sizeof told ? WEFT_OK : WEFT_ERR_SYSTEM);
    for (char what; read(to_owner[0], &what, 1) == 1;) {
        weft_op_t op = WEFT_OP_INIT;
        switch (what) {
        case 'r':
            must(weft_region_revoke(region, &op));
            must(weft_op_wait(&op, 30 * WEFT_SECOND));
            break;
        case 'f':
            must(weft_region_free(region, &op));
            must(weft_op_wait(&op, 30 * WEFT_SECOND));
            if (by_fd)
                weft_mem_free(weft_mem_kind_find("cuda-fd"), memory, LEN);
            else
                must(cu.MemFree((uintptr_t)memory) ? WEFT_ERR_SYSTEM : WEFT_OK);
            break;
        case 'c': /* what is there now? */
            must(cu.MemcpyDtoH(back, (uintptr_t)memory, LEN) ? WEFT_ERR_SYSTEM : WEFT_OK);
            must(write(from_owner[1], back, LEN) == LEN ? WEFT_OK : WEFT_ERR_SYSTEM);
            continue;
        default:
            _exit(0);
        }
        must(write(from_owner[1], &what, 1) == 1 ? WEFT_OK : WEFT_ERR_SYSTEM);
    }
    _exit(0);
}

/* --- the user --------------------------------------------------------------------------------------------------------------- */

static void tell(char what)
{
    CHECK_EQ(write(to_owner[1], &what, 1), 1);
}

static void heard(char what)
{
    char c = 0;
    CHECK_EQ(read(from_owner[0], &c, 1), 1);
    CHECK_EQ(c, what);
}

static weft_status_t done(weft_op_t *op)
{
    return weft_op_wait(op, 30 * WEFT_SECOND);
}

static void begin(void)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    void *page = NULL;
    told_t told;
    use_there();
    setenv("PAPER_THREAD", "10", 1);
    CHECK(!pipe(to_owner) && !pipe(from_owner));
    owner = fork(); /* before CUDA */
    CHECK(owner >= 0);
    if (!owner)
        owner_run();
    CHECK_EQ(read(from_owner[0], &told, sizeof told), (ssize_t)sizeof told);
    cuda_begin(&mine, false);
    host = malloc(LEN);
    CHECK(!posix_memalign(&page, 4096, LEN));
    CHECK_EQ(cu.MemHostRegister(page, LEN, 1), 0);
    pinned = page;
    opts.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&opts, &rt));
    CHECK_OK(weft_ep_connect(rt, told.uri, NULL, 30 * WEFT_SECOND, &ep));
    CHECK_OK(weft_remote_attach(ep, told.key, told.key_n, NULL, &op));
    CHECK_OK(done(&op));
    remote = weft_op_remote(&op);
    for (size_t i = 0; i < LEN; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
}

static weft_rma_path_t path(void)
{
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    CHECK_OK(weft_remote_get_info(remote, &info));
    return info.path;
}

static void finish(void)
{
    weft_remote_drop(remote);
    CHECK_OK(weft_runtime_close(rt));
    SEEN(live_imports, 0);
    tell('x');
    CHECK_EQ(waitpid(owner, NULL, 0), owner);
}

static void check_read(uint8_t *into, uint64_t offset, size_t n)
{
    weft_op_t op = WEFT_OP_INIT;
    bool device = into == mine;
    memset(back, 0, n);
    if (device)
        CHECK_EQ(cu.MemsetD8((uintptr_t)into, 0, n), 0);
    else
        memset(into, 0, n);
    use_settle();
    CHECK_OK(weft_rma_read(remote, offset, into, n, &op));
    CHECK_OK(done(&op));
    if (device)
        CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)into, n), 0);
    else
        memcpy(back, into, n);
    CHECK(!memcmp(back, bytes + offset, n));
}

static void reads_by_the_reader(void)
{
    begin();
    CHECK_EQ(path(), WEFT_RMA_MAPPED);
    SEEN(imports, 1);
    kill(owner, SIGSTOP); /* so it is not asked */
    static const size_t lens[] = {1, 2, 7, 8, 4095, SMALL, 8192, 8193, 100000, LEN};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        check_read(mine, 0, lens[i]);
        check_read(mine, LEN - lens[i], lens[i]);
        check_read(pinned, LEN - lens[i], lens[i]);
        if (lens[i] <= 8192)
            check_read(host, LEN - lens[i], lens[i]);
    }
    SEEN(waits, 0);
    kill(owner, SIGCONT);
    check_read(host, 5, LEN - 5); /* long, into memory that no engine writes to: the owner sends it */
    finish();
}

TEST(reads_are_copied_by_the_reader_and_owners_do_nothing)
{
    reads_by_the_reader();
}

TEST(and_so_are_those_of_memory_that_is_had_by_a_descriptor)
{
    by_fd = true;
    reads_by_the_reader();
}

TEST(batches_and_pieces)
{
    begin();
    weft_rma_item_t items[20];
    weft_op_t op = WEFT_OP_INIT;
    memset(items, 0, sizeof items);
    for (int i = 0; i < 20; i++)
        items[i] = (weft_rma_item_t){
            .remote = remote, .what = WEFT_RMA_DO_READ, .offset = (uint64_t)i * 1001, .buf = mine + i * 2000, .len = 999};
    CHECK_OK(weft_rma_batch(items, 20, &op));
    CHECK_OK(done(&op));
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)mine + (uintptr_t)i * 2000, 999), 0);
        CHECK(!memcmp(back, bytes + i * 1001, 999));
    }
    weft_iov_t iov[3] = {{mine, 10}, {mine + 1000, 0}, {mine + 2000, 90000}};
    CHECK_OK(weft_rma_readv(remote, 17, iov, 3, &op));
    CHECK_OK(done(&op));
    CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)mine, 10), 0);
    CHECK_EQ(cu.MemcpyDtoH(back + 10, (uintptr_t)mine + 2000, 90000), 0);
    CHECK(!memcmp(back, bytes + 17, 90010));
    finish();
}

TEST(a_read_sees_the_writes_before_it_and_none_behind_it)
{
    begin();
    for (int round = 0; round < 50; round++) {
        size_t n = round % 2 ? SMALL : 600000;
        weft_op_t op[4] = {WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT};
        CHECK_EQ(cu.MemsetD8((uintptr_t)mine, (unsigned char)(2 * round + 1), n), 0);
        CHECK_EQ(cu.MemsetD8((uintptr_t)mine + n, (unsigned char)(2 * round + 2), n), 0);
        use_settle();
        CHECK_OK(weft_rma_write(remote, 64, mine, n, &op[0]));
        CHECK_OK(weft_rma_read(remote, 64, mine + 2 * n, n, &op[1]));
        CHECK_OK(weft_rma_write(remote, 64, mine + n, n, &op[2]));
        CHECK_OK(weft_rma_read(remote, 64, pinned, n, &op[3]));
        for (int i = 0; i < 4; i++)
            CHECK_OK(done(&op[i]));
        CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)mine + 2 * n, n), 0);
        for (size_t i = 0; i < n; i++) {
            CHECK_EQ(back[i], (uint8_t)(2 * round + 1));
            CHECK_EQ(pinned[i], (uint8_t)(2 * round + 2));
        }
    }
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_rma_atomic(remote, WEFT_RMA_ADD, 0, 8, 5, 0, &op)); /* the owner's */
    CHECK_OK(done(&op));
    finish();
}

TEST(a_revoke_ends_reads_and_the_next_ones_are_told)
{
    use_only_paper();
    begin();
    cu.paper->copy_ns = 20000000; /* each copy takes 20 ms */
    weft_op_t op[8];
    for (int i = 0; i < 8; i++) {
        op[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_rma_read(remote, 0, mine + i * SMALL, SMALL, &op[i]));
    }
    tell('r');
    heard('r');
    for (int i = 0; i < 8; i++) {
        weft_status_t st = done(&op[i]);
        CHECK(st == WEFT_OK || st == WEFT_ERR_STALE);
    }
    CHECK_OK(weft_rma_read(remote, 0, mine, SMALL, &op[0]));
    CHECK_EQ(done(&op[0]), WEFT_ERR_STALE);
    finish();
}

TEST(a_reader_that_is_stopped_does_not_keep_a_revoke_from_its_end)
{
    use_only_paper();
    begin(); /* the slot of a peer that scribbles, or is stopped: its busy word stays set */
    cu.paper->copy_ns = 3000000000u;
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_rma_read(remote, 0, mine, SMALL, &op)); /* three seconds: longer than an owner waits */
    double from = test_now();
    tell('r');
    heard('r');
    CHECK(test_now() - from < 2.9);
    CHECK_EQ(done(&op), WEFT_ERR_STALE);
    finish();
}

static void free_under_a_read(void)
{
    begin();
    cu.paper->copy_ns = 50000000;
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_rma_read(remote, 0, mine, LEN, &op));
    tell('f');
    heard('f');
    weft_status_t st = done(&op);
    CHECK(st == WEFT_OK || st == WEFT_ERR_STALE);
    cu.paper->copy_ns = 0;
    CHECK_OK(weft_rma_read(remote, 0, mine, LEN, &op));
    CHECK_EQ(done(&op), WEFT_ERR_STALE);
    finish();
}

TEST(a_region_is_freed_under_a_read)
{
    free_under_a_read();
}

TEST(and_so_is_one_that_is_had_by_a_descriptor)
{
    by_fd = true;
    free_under_a_read();
}

TEST(an_owner_is_killed_under_a_read)
{
    begin();
    cu.paper->copy_ns = 50000000;
    weft_op_t op = WEFT_OP_INIT, next = WEFT_OP_INIT;
    CHECK_OK(weft_rma_read(remote, 0, mine, LEN, &op));
    kill(owner, SIGKILL);
    CHECK_EQ(waitpid(owner, NULL, 0), owner);
    weft_status_t st = done(&op);
    CHECK(st == WEFT_OK || st == WEFT_ERR_PEER);
    if (!st) {
        CHECK_EQ(cu.MemcpyDtoH(back, (uintptr_t)mine, LEN), 0);
        CHECK(!memcmp(back, bytes, LEN)); /* memory that is imported stays what it was */
    }
    for (double until = test_now() + 10; !next.status && test_now() < until;) {
        next = (weft_op_t)WEFT_OP_INIT;
        weft_status_t posted = weft_rma_read(remote, 0, mine, SMALL, &next);
        if (posted || done(&next))
            break;
    }
    weft_remote_drop(remote);
    CHECK_OK(weft_runtime_close(rt));
    SEEN(live_imports, 0);
}

TEST(memory_that_cannot_be_imported_is_asked_for)
{
    use_only_paper();
    setenv("PAPER_FAIL", "cuIpcOpenMemHandle_v2:0:201:1000", 1);
    begin();
    CHECK_EQ(path(), WEFT_RMA_CHECKED);
    check_read(mine, 3, SMALL);
    check_read(mine, 3, LEN - 3);
    finish();
}
