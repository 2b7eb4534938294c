/* bench/beside.c - how long small messages of one peer wait while a runtime moves many bytes for another.
 *
 *     beside [--seconds S] [--size BYTES] [KIND...]
 *
 * A runtime has two peers. One of them, in another process, makes it move payloads of --size bytes, one after the other; with the
 * other it exchanges messages of 8 bytes, one at a time. For each KIND of transfer, in one line of JSON: how many round trips
 * there were, their p50, p99 and max in microseconds, and how many payloads were moved meanwhile. `idle` is without any.
 *
 * The other peer is a second runtime of the same thread, which drives both in turn. So a round trip waits for what a turn of the
 * first runtime takes and for nothing else, and no third core is needed. The figures with `cpu` are in processor time of that
 * thread, which does not count the time for which other programs had the processor.
 *
 * tests/tools/tools_beside.py runs it. */
#include <inttypes.h>
#include <sys/mman.h>
#include <weft/elements.h>
#include <weft/weft.h>

#include "peers/peer.h"

#define TAG_PING 1u
#define TAG_BULK 2u
#define UNDER_WAY 2u /* payloads at one time */
#define SAMPLES (1u << 20)

typedef struct beside {
    weft_runtime_t *rt, *small;
    weft_ep_t *bulk;         /* to the process that moves payloads */
    weft_ep_t *there, *here; /* the two ends of the small one's connection */
    uint64_t size, payloads;
    uint8_t *bytes;
    weft_op_t op[UNDER_WAY];
    bool posted[UNDER_WAY];
    weft_region_t *region;
    weft_remote_t *remote;
    weft_mirror_t *mirror;
    pid_t pid;
    bool unmapped, over;
} beside_t;

typedef struct kind {
    const char *name;
    const char *transports, *copy; /* of both sides; copy: WEFT_SHM_COPY */
    bool unmapped;                 /* nobody maps the region */
    void (*peer)(beside_t *b);     /* in the other process: returns when it is told to, or never */
    void (*begin)(beside_t *b);
    weft_status_t (*post)(beside_t *b, unsigned i); /* one more payload; NULL: the peer does everything */
} kind_t;

static void must(weft_status_t st, const char *what)
{
    if (!st)
        return;
    fprintf(stderr, "beside: %s: %s (%s)\n", what, weft_status_text(st), weft_last_error());
    exit(1);
}

static void check(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "beside: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void await(weft_op_t *op, const char *what)
{
    must(weft_op_wait(op, PEER_LIMIT_S * WEFT_SECOND), what);
}

static uint8_t *memory(uint64_t n)
{
    uint8_t *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(p != MAP_FAILED, "memory");
    memset(p, 0x5a, n);
    return p;
}

static void has_region(beside_t *b)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    o.len = b->size;
    o.name = "beside";
    o.unmapped = b->unmapped;
    must(weft_region_new(b->rt, &o, &b->region), "a region");
    memset(weft_region_base(b->region), 0x5a, b->size);
}

/* The region may not be there yet. */
static void attach(beside_t *b)
{
    for (uint64_t end = peer_now_ns() + PEER_LIMIT_S * PEER_SECOND; !b->remote;) {
        weft_op_t op = WEFT_OP_INIT;
        must(weft_remote_find(b->bulk, "beside", NULL, &op), "attaching");
        weft_status_t st = weft_op_wait(&op, PEER_LIMIT_S * WEFT_SECOND);
        if (st != WEFT_ERR_NOTFOUND || peer_now_ns() > end)
            must(st, "attaching");
        b->remote = weft_op_remote(&op);
    }
}

/* --- the other process ----------------------------------------------------------------------------------- */

static void drive_for_ever(beside_t *b)
{
    for (;;)
        weft_runtime_progress(b->rt);
}

/* Post as many as may be under way, for ever. */
static void repeat(beside_t *b, weft_status_t (*post)(beside_t *b, unsigned i))
{
    for (;;) {
        for (unsigned i = 0; i < UNDER_WAY; i++) {
            if (b->posted[i] && !weft_op_done(&b->op[i]))
                continue;
            b->op[i] = (weft_op_t)WEFT_OP_INIT;
            must(post(b, i), "a payload");
            b->posted[i] = true;
        }
        weft_runtime_progress(b->rt);
    }
}

static weft_status_t post_send(beside_t *b, unsigned i)
{
    return weft_msg_send(b->bulk, b->bytes, b->size, TAG_BULK, &b->op[i]);
}

static weft_status_t post_recv(beside_t *b, unsigned i)
{
    return weft_msg_recv(b->bulk, b->bytes, b->size, TAG_BULK, WEFT_TAG_FULL, &b->op[i]);
}

static weft_status_t post_get(beside_t *b, unsigned i)
{
    return weft_rma_read(b->remote, 0, b->bytes, b->size, &b->op[i]);
}

static weft_status_t post_put(beside_t *b, unsigned i)
{
    return weft_rma_write(b->remote, 0, b->bytes, b->size, &b->op[i]);
}

static void peer_sends(beside_t *b)
{
    b->bytes = memory(b->size);
    repeat(b, post_send);
}

static void peer_sends_pooled(beside_t *b)
{
    weft_pool_t *pool;
    void *p;
    must(weft_pool_new(b->rt, NULL, &pool), "a pool");
    must(weft_pool_get(pool, b->size, &p), "memory of a pool");
    b->bytes = memset(p, 0x5a, b->size);
    repeat(b, post_send);
}

static void peer_receives(beside_t *b)
{
    b->bytes = memory(b->size);
    repeat(b, post_recv);
}

static void peer_gets(beside_t *b)
{
    b->bytes = memory(b->size);
    attach(b);
    repeat(b, post_get);
}

static void peer_puts(beside_t *b)
{
    b->bytes = memory(b->size);
    attach(b);
    repeat(b, post_put);
}

/* In the middle of a write most of the time, so that it is killed there. */
static void peer_writes_until_killed(beside_t *b)
{
    b->bytes = memory(1 << 20);
    attach(b);
    for (;;)
        must(weft_rma_write_wait(b->remote, 0, b->bytes, 1 << 20, PEER_LIMIT_S * WEFT_SECOND), "a write");
}

static void peer_has_region(beside_t *b)
{
    has_region(b);
    drive_for_ever(b);
}

static void peer_stores(beside_t *b)
{
    weft_store_server_opts_t o = WEFT_STORE_SERVER_OPTS_INIT;
    weft_store_server_t *server;
    o.bytes = 4 * b->size + (64 << 20);
    must(weft_store_serve(b->rt, &o, &server), "a store");
    drive_for_ever(b);
}

/* --- what the runtime does ------------------------------------------------------------------------------- */

static void has_bytes(beside_t *b)
{
    b->bytes = memory(b->size);
}

static void has_remote(beside_t *b)
{
    b->bytes = memory(b->size);
    attach(b);
}

static void has_mirror(beside_t *b)
{
    weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    must(weft_store_open(b->bulk, NULL, &op), "a store");
    await(&op, "a store");
    weft_store_t *store = weft_op_store(&op);
    op = (weft_op_t)WEFT_OP_INIT;
    o.name = "beside";
    o.stores = &store;
    o.n_stores = 1;
    o.len = b->size;
    o.write = true;
    o.checksums = true;
    must(weft_mirror_open(b->rt, &o, &op), "a mirror");
    await(&op, "a mirror");
    b->mirror = weft_op_mirror(&op);
    b->bytes = memory(b->size);
    op = (weft_op_t)WEFT_OP_INIT;
    must(weft_mirror_write(b->mirror, 0, b->bytes, b->size, &op), "filling a mirror");
    await(&op, "filling a mirror");
}

static weft_status_t post_mirror_read(beside_t *b, unsigned i)
{
    return i ? WEFT_ERR_AGAIN : weft_mirror_read(b->mirror, 0, b->bytes, b->size, &b->op[i]);
}

static weft_status_t post_mirror_write(beside_t *b, unsigned i)
{
    return i ? WEFT_ERR_AGAIN : weft_mirror_write(b->mirror, 0, b->bytes, b->size, &b->op[i]);
}

/* A region whose peer was killed in the middle of a write: its bytes are moved. Once; the next payload ends the measuring. */
static weft_status_t post_revoke(beside_t *b, unsigned i)
{
    struct timespec pause = {0, 20000000};
    if (i)
        return WEFT_ERR_AGAIN;
    if (b->payloads) {
        b->over = true;
        return WEFT_ERR_AGAIN;
    }
    for (uint64_t end = peer_now_ns() + PEER_SECOND; peer_now_ns() < end;) { /* until it writes */
        weft_region_info_t info = WEFT_REGION_INFO_INIT;
        weft_runtime_progress(b->rt);
        weft_runtime_progress(b->small);
        must(weft_region_get_info(b->region, &info), "a look at the region");
        if (info.mapped)
            break;
    }
    nanosleep(&pause, NULL);
    kill(b->pid, SIGKILL);
    nanosleep(&pause, NULL);
    return weft_region_revoke(b->region, &b->op[i]);
}

static weft_status_t post_free(beside_t *b, unsigned i)
{
    if (i)
        return WEFT_ERR_AGAIN;
    if (b->payloads) {
        b->over = true;
        return WEFT_ERR_AGAIN;
    }
    return weft_region_free(b->region, &b->op[i]);
}

static const kind_t kinds[] = {
    {"idle", "shm", NULL, false, drive_for_ever, has_bytes, NULL},
    {"recv", "shm", NULL, false, peer_sends, has_bytes, post_recv},
    {"recv_kernel", "shm", "kernel", false, peer_sends, has_bytes, post_recv},
    {"recv_ring", "shm", "ring", false, peer_sends, has_bytes, post_recv},
    {"recv_pooled", "shm", NULL, false, peer_sends_pooled, has_bytes, post_recv},
    {"recv_tcp", "tcp", NULL, false, peer_sends, has_bytes, post_recv},
    {"send", "shm", NULL, false, peer_receives, has_bytes, post_send},
    {"send_ring", "shm", "ring", false, peer_receives, has_bytes, post_send},
    {"send_tcp", "tcp", NULL, false, peer_receives, has_bytes, post_send},
    {"get_mapped", "shm", NULL, false, peer_has_region, has_remote, post_get},
    {"put_mapped", "shm", NULL, false, peer_has_region, has_remote, post_put},
    {"get_checked", "shm", NULL, true, peer_has_region, has_remote, post_get},
    {"put_checked", "shm", NULL, true, peer_has_region, has_remote, post_put},
    {"serve_get", "shm", NULL, true, peer_gets, has_region, NULL},
    {"serve_put", "shm", NULL, true, peer_puts, has_region, NULL},
    {"revoke", "shm", NULL, false, peer_writes_until_killed, has_region, post_revoke},
    {"free", "shm", NULL, false, drive_for_ever, has_region, post_free},
    {"mirror_read", "shm", NULL, false, peer_stores, has_mirror, post_mirror_read},
    {"mirror_write", "shm", NULL, false, peer_stores, has_mirror, post_mirror_write},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

/* --- measuring ------------------------------------------------------------------------------------------- */

static uint64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * PEER_SECOND + (uint64_t)ts.tv_nsec;
}

static void payloads(beside_t *b, const kind_t *k)
{
    for (unsigned i = 0; k->post && i < UNDER_WAY; i++) {
        if (b->posted[i]) {
            if (!weft_op_done(&b->op[i]))
                continue;
            must(b->op[i].status, "a payload");
            b->payloads++;
            b->posted[i] = false;
        }
        b->op[i] = (weft_op_t)WEFT_OP_INIT;
        weft_status_t st = k->post(b, i);
        if (st != WEFT_ERR_AGAIN)
            must(st, "a payload");
        b->posted[i] = !st;
    }
}

static void round_trip(beside_t *b)
{
    uint64_t out = 1, in = 0, back = 0;
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT, pong = WEFT_OP_INIT, ping = WEFT_OP_INIT;
    must(weft_msg_recv(b->here, &in, sizeof in, TAG_PING, WEFT_TAG_FULL, &ping), "a receive");
    must(weft_msg_recv(b->there, &back, sizeof back, TAG_PING, WEFT_TAG_FULL, &recv), "a receive");
    must(weft_msg_send(b->there, &out, sizeof out, TAG_PING, &send), "a send");
    for (bool answered = false; !weft_op_done(&recv) || !weft_op_done(&send) || !weft_op_done(&pong);) {
        weft_runtime_progress(b->rt);
        weft_runtime_progress(b->small);
        if (!answered && weft_op_done(&ping)) {
            answered = true;
            must(weft_msg_send(b->here, &in, sizeof in, TAG_PING, &pong), "an answer");
        }
    }
    must(recv.status, "a round trip");
}

static int by_value(const void *a, const void *b)
{
    return *(const uint64_t *)a < *(const uint64_t *)b ? -1 : *(const uint64_t *)a > *(const uint64_t *)b;
}

/* The sorted value that a part of all is not above, in microseconds. */
static double at(const uint64_t *sorted, uint64_t n, double part)
{
    return n ? (double)sorted[(uint64_t)((double)(n - 1) * part)] / 1e3 : 0;
}

static void measure(beside_t *b, const kind_t *k, double seconds)
{
    uint64_t *wall = malloc(SAMPLES * sizeof *wall), *cpu = malloc(SAMPLES * sizeof *cpu), n = 0;
    check(wall && cpu, "memory");
    for (uint64_t end = peer_now_ns() + (uint64_t)(seconds * 1e9);
         n < SAMPLES && (peer_now_ns() < end || (k->post && !b->payloads));) {
        payloads(b, k);
        if (b->over)
            break;
        wall[n] = peer_now_ns();
        cpu[n] = cpu_ns();
        round_trip(b);
        cpu[n] = cpu_ns() - cpu[n];
        wall[n] = peer_now_ns() - wall[n];
        n++;
    }
    qsort(wall, n, sizeof *wall, by_value);
    qsort(cpu, n, sizeof *cpu, by_value);
    printf("{\"kind\": \"%s\", \"size\": %" PRIu64 ", \"payloads\": %" PRIu64 ", \"n\": %" PRIu64 ", \"p50_us\": %.1f, "
           "\"p99_us\": %.1f, \"max_us\": %.1f, \"cpu_p50_us\": %.1f, \"cpu_p99_us\": %.1f, \"cpu_max_us\": %.1f}\n",
           k->name, b->size, b->payloads, n, at(wall, n, 0.5), at(wall, n, 0.99), at(wall, n, 1), at(cpu, n, 0.5),
           at(cpu, n, 0.99), at(cpu, n, 1));
    fflush(stdout);
    free(wall);
    free(cpu);
}

static weft_runtime_t *runtime(const kind_t *k)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.progress = WEFT_PROGRESS_CALLER;
    o.transports = k->transports;
    must(weft_runtime_open(&o, &rt), "a runtime");
    return rt;
}

static weft_ep_t *accepted(beside_t *b, weft_listener_t *listener)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_listener_accept(listener, &op), "accepting");
    while (!weft_op_done(&op)) {
        weft_runtime_progress(b->rt);
        if (b->small)
            weft_runtime_progress(b->small);
    }
    must(op.status, "accepting");
    return weft_op_ep(&op);
}

/* One kind, in a process of its own and one more. */
static int run(const kind_t *k, uint64_t size, double seconds)
{
    beside_t b = {.size = size, .unmapped = k->unmapped};
    int uri[2];
    char at[512] = "";
    weft_listener_t *listener;
    if (k->copy)
        setenv("WEFT_SHM_COPY", k->copy, 1);
    check(!pipe(uri), "a pipe");
    pid_t parent = getpid();
    b.pid = fork();
    check(b.pid >= 0, "fork");
    if (!b.pid) {
        if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
            _exit(1);
        check(read(uri[0], at, sizeof at - 1) > 0, "the address");
        b.rt = runtime(k);
        must(weft_ep_open(b.rt, at, NULL, NULL, &b.bulk), "connecting");
        k->peer(&b);
        _exit(0);
    }
    b.rt = runtime(k);
    must(weft_listen(b.rt, "tcp://127.0.0.1:0", NULL, &listener), "listening");
    snprintf(at, sizeof at, "%s", weft_listener_uri(listener));
    check(write(uri[1], at, strlen(at)) == (ssize_t)strlen(at), "the address");
    b.bulk = accepted(&b, listener);
    b.small = runtime(k);
    must(weft_ep_open(b.small, at, NULL, NULL, &b.there), "connecting");
    b.here = accepted(&b, listener);
    k->begin(&b);
    for (int i = 0; i < 1000; i++)
        round_trip(&b);
    measure(&b, k, seconds);
    kill(b.pid, SIGKILL);
    return 0; /* the process ends, and with it what is under way */
}

static const kind_t *find(const char *name)
{
    for (size_t i = 0; i < N_KINDS; i++)
        if (!strcmp(name, kinds[i].name))
            return &kinds[i];
    return NULL;
}

static int usage(const char *what)
{
    fprintf(stderr, "beside: %s\nusage: beside [--seconds S] [--size BYTES] [KIND...]; kinds are", what);
    for (size_t i = 0; i < N_KINDS; i++)
        fprintf(stderr, " %s", kinds[i].name);
    fprintf(stderr, "\n");
    return 2;
}

int main(int argc, char **argv)
{
    double seconds = 1;
    uint64_t size = 64 << 20;
    int first = 1;
    for (; first < argc && argv[first][0] == '-'; first += 2) {
        char *end = NULL;
        const char *value = first + 1 < argc ? argv[first + 1] : "";
        if (!strcmp(argv[first], "--seconds"))
            seconds = strtod(value, &end);
        else if (!strcmp(argv[first], "--size"))
            size = strtoull(value, &end, 10);
        if (!end || end == value || *end || seconds <= 0 || seconds > 3600 || size < 1 << 20 || size > UINT64_C(1) << 40)
            return usage("that is not an option, or not a number for it");
    }
    for (int i = first; i < argc; i++)
        if (!find(argv[i]))
            return usage("that is not a kind of transfer");
    const size_t n = first < argc ? (size_t)(argc - first) : N_KINDS;
    for (size_t i = 0; i < n; i++) {
        int status = 0;
        pid_t pid = fork();
        check(pid >= 0, "fork");
        if (!pid)
            _exit(run(first < argc ? find(argv[first + (int)i]) : &kinds[i], size, seconds));
        check(waitpid(pid, &status, 0) == pid, "waiting for a process");
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            return 1; /* it has said why */
    }
    return 0;
}
