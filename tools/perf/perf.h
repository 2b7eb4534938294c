/* tools/perf/perf.h - `weft perf`: what its files share.
 *
 *   options.c  the command line                         stats.c    ticks and the histogram
 *   perf.c     roles: server, client, or both by fork   report.c   tables, JSON lines, progress
 *   link.c     runtime, endpoints, waiting              plan.c     the control messages between the two
 *   server.c   serves one client after another          client.c   runs the tests asked for
 *   run.c      operations and buffers of one run        memory.c   kinds of memory for buffers
 *   tests.c    the loops of tag messages                am.c       those of active messages
 *   rma.c      those of remote memory                   rpc.c      those of calls
 *   streams.c  streams of a GPU for operations          cores.c    which core each thread runs on
 *   many.c     one server and many clients
 *
 * The client leads: for each run it sends a plan on endpoint 0, the server makes its buffers, posts its receives and answers
 * READY, both run the same loop from their side, and the server answers DONE. A plan of PERF_END ends the session. */
#ifndef WEFT_TOOLS_PERF_H
#define WEFT_TOOLS_PERF_H

#include <time.h>
#include <weft/weft.h>

#include "../session.h"

/* --- options --------------------------------------------------------------------------------------------- */

typedef enum perf_role { PERF_NO_ROLE, PERF_LISTEN, PERF_CONNECT, PERF_FORK } perf_role_t;

typedef enum perf_test {
    PERF_END = 0, PERF_TAG_LAT = 1, PERF_TAG_BW = 2, PERF_TAG_RATE = 3, PERF_IDLE = 4,
    PERF_AM_LAT = 5, PERF_AM_BW = 6, PERF_AM_RATE = 7,
    PERF_RMA_GET = 8, PERF_RMA_PUT = 9, PERF_RMA_PUT_LAT = 10, PERF_RMA_FADD = 11, PERF_RMA_CAS = 12, PERF_RMA_SWAP = 13,
    PERF_RMA_BATCH = 14, PERF_RPC_LAT = 15, PERF_RPC_RATE = 16, PERF_RPC_TENSOR = 17,
    PERF_TESTS
} perf_test_t;

static inline bool perf_is_latency(uint64_t test)
{
    return test == PERF_TAG_LAT || test == PERF_AM_LAT || test == PERF_RMA_PUT_LAT;
}

static inline bool perf_is_am(uint64_t test)
{
    return test >= PERF_AM_LAT && test <= PERF_AM_RATE;
}

static inline bool perf_is_rma(uint64_t test)
{
    return test >= PERF_RMA_GET && test <= PERF_RMA_BATCH;
}

static inline bool perf_is_rpc(uint64_t test)
{
    return test >= PERF_RPC_LAT && test <= PERF_RPC_TENSOR;
}

static inline bool perf_is_atomic(uint64_t test)
{
    return test >= PERF_RMA_FADD && test <= PERF_RMA_SWAP;
}

#define PERF_MAX_SIZES 64
#define PERF_MAX_WINDOW 4000000
#define PERF_MAX_BATCH 65536
#define PERF_MAX_ENDPOINTS 60000
#define PERF_KIND_CAP 16 /* of the name of a kind of memory, with its end */

/* --stream: operations begin behind their stream, it waits for their end, or both. The words are in this order. */
enum { PERF_BEFORE = 1, PERF_AFTER = 2, PERF_BOTH = 3, PERF_STREAM_WORDS = 4 };
extern const char *const perf_stream_names[PERF_STREAM_WORDS];
#define PERF_MAX_STREAMS 64
#define PERF_HELD UINT64_C(512) /* operations that may be in a stream at one time */

typedef struct perf_opts {
    perf_role_t role;
    const char *uri;
    perf_test_t tests[PERF_TESTS];
    unsigned n_tests;
    uint64_t sizes[PERF_MAX_SIZES];
    unsigned n_sizes;          /* 0: each test's own */
    tool_net_t net;
    bool threaded;             /* the runtime's own thread drives */
    bool json, pin, keep, shuffle;
    bool crowded;              /* there are more processes than cores */
    unsigned core, cores;      /* with pin: the first core of this process, and how many it has */
    uint64_t shards;           /* of the runtime of this process; 0: it has no threads but those of --mode */
    uint64_t clients;          /* processes that call at one time; 0: one client, which may run any test */
    uint64_t window;           /* 0: each test's own */
    uint64_t outstanding;      /* receives kept posted; 0: as many as the window */
    uint64_t endpoints;
    uint64_t header;           /* bytes of an active message's header */
    uint64_t answer;           /* am_lat: bytes of the server's payload; UINT64_MAX: as many as the client's */
    uint64_t batch;            /* accesses of one batch */
    uint64_t region;           /* bytes that accesses are spread over; 0: all touch the same */
    weft_rma_path_t path;
    char send_kind[PERF_KIND_CAP], recv_kind[PERF_KIND_CAP];
    bool view, kept;
    unsigned stream;           /* 0: no streams */
    uint64_t streams;          /* taken in turn where there is a window; 0: one */
    uint64_t iters;            /* 0: by time */
    uint64_t warmup;           /* with iters; UINT64_MAX: a tenth */
    uint64_t measure_ns;
    uint64_t timeout_ns;       /* of one wait */
} perf_opts_t;

/* TOOL_GO or the exit status, as tool_options(). */
int perf_options(int argc, char **argv, perf_opts_t *opts_out);
int perf_command(int argc, char **argv);
const char *perf_test_name(perf_test_t test);

/* --- cores ----------------------------------------------------------------------------------------------- */

/* How many this program may use. */
unsigned perf_cores(void);
/* This thread runs on the nth of them from now on. */
void perf_pin(unsigned nth);
void perf_pin_to(unsigned nth, unsigned n); /* any of n cores from that one on */
/* Sets o->cores. False: there are not enough for one each. */
bool perf_cores_share(perf_opts_t *o, unsigned processes);

/* --- ticks and the histogram ----------------------------------------------------------------------------- */

/* Log-linear: 128 steps per power of two, so that a value is known to 0.4 %. */
#define PERF_STEP_BITS 7
#define PERF_STEPS (1u << PERF_STEP_BITS)

typedef struct perf_histogram {
    uint64_t counts[(65 - PERF_STEP_BITS) * PERF_STEPS];
    uint64_t n, max;
} perf_histogram_t;

extern bool perf_tsc; /* the cycle counter runs evenly and is used */

/* The cheapest even clock: a kernel clock costs a fifth of an 8-byte round trip. */
static inline uint64_t perf_ticks(void)
{
#if defined(__x86_64__)
    if (__builtin_expect(perf_tsc, 1)) {
        uint32_t lo, hi;
        __asm__ volatile("rdtsc" : "=a"(lo), "=d"(hi));
        return (uint64_t)hi << 32 | lo;
    }
#elif defined(__aarch64__)
    if (__builtin_expect(perf_tsc, 1)) {
        uint64_t v;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(v));
        return v;
    }
#endif
    return tool_now();
}

static inline void perf_record(perf_histogram_t *h, uint64_t v)
{
    unsigned top = 63 - (unsigned)__builtin_clzll(v | 1);
    unsigned shift = top > PERF_STEP_BITS ? top - PERF_STEP_BITS : 0;
    h->counts[(shift << PERF_STEP_BITS) + (v >> shift)]++;
    h->n++;
    if (v > h->max)
        h->max = v;
}

/* Find out how long a tick is: about 20 ms, once. */
void perf_ticks_calibrate(void);
double perf_tick_ns(void);
/* The value that `share` of all values do not exceed (0.5: the median); 0 when there are none. */
double perf_percentile(const perf_histogram_t *h, double share);

/* --- the link to the other side -------------------------------------------------------------------------- */

typedef struct perf_link {
    const perf_opts_t *opts;
    weft_runtime_t *rt;
    weft_ep_t **eps;
    uint64_t n_eps, cap_eps;
    const char *peer;      /* "the server", "the client" */
    bool threaded, yield;
    uint64_t timeout_ns;
    uint64_t rss_before, rss_first; /* resident bytes with no endpoint and with one */
    weft_pool_t *pool;     /* made when buffers from a pool are first asked for */
    char transport[32], cipher[40]; /* the latter "": no TLS */
} perf_link_t;

/* Opens the runtime. TOOL_OK, or the exit status after a sentence. */
int perf_link_open(perf_link_t *l, const perf_opts_t *opts, const char *peer);
/* Adds an endpoint. False after a sentence; the endpoint is then still the caller's. */
bool perf_link_add(perf_link_t *l, weft_ep_t *ep);
void perf_link_note_transport(perf_link_t *l);
/* Close all endpoints: gracefully, or at once, so that no operation and no buffer is in use any more when it returns. */
void perf_link_drop(perf_link_t *l, bool graceful);
void perf_link_close(perf_link_t *l);
/* The sentence for an operation or a post that failed while `doing`. */
void perf_link_lost(perf_link_t *l, weft_status_t st, const char *doing);

weft_status_t perf_await_slow(perf_link_t *l, weft_op_t *op);

/* Wait for an operation: its status, or WEFT_ERR_PENDING while it is still under way. */
static inline weft_status_t perf_await(perf_link_t *l, weft_op_t *op)
{
    if (!l->threaded) {
        for (unsigned spin = 0; spin < 4096; spin++) {
            if (weft_op_done(op))
                return op->status;
            weft_runtime_progress(l->rt);
        }
    }
    return weft_op_done(op) ? op->status : perf_await_slow(l, op);
}

/* Resident memory of this process, bytes; CPU time of all of its threads, ns. */
uint64_t perf_rss(void);
uint64_t perf_cpu_ns(void);

/* --- control messages ------------------------------------------------------------------------------------ */

#define PERF_CONTROL_TAG UINT64_C(0xc001000000000000) /* plan, client to server; first message of endpoint 0 */
#define PERF_HELLO_TAG   UINT64_C(0xc002000000000000)
#define PERF_REPLY_TAG   UINT64_C(0xc003000000000000)
#define PERF_FINISH_TAG  UINT64_C(0xc004000000000000) /* client to server: the last access of a run is complete */

typedef struct perf_hello { /* first message on each endpoint */
    uint64_t magic, session, index, total;
} perf_hello_t;

typedef struct perf_offer { /* a key of a region of the sender's */
    uint64_t len;
    char key[WEFT_REGION_KEY_MAX];
} perf_offer_t;

typedef struct perf_plan {
    uint64_t magic;
    uint64_t test, run; /* run: makes the tags of each run its own */
    uint64_t size, count, window, outstanding, shuffle;
    uint64_t idle_ns;
    uint64_t header, answer, view, kept;
    char send_kind[PERF_KIND_CAP], recv_kind[PERF_KIND_CAP]; /* of the buffers that are sent, and of those received into */
    uint64_t batch, region, path;
    uint64_t stream, streams;
    perf_offer_t offer;           /* rma_put_lat: the client's region */
} perf_plan_t;

/* How often each way was taken by payloads on a GPU, on one side; copies: asked of the GPU, and not waited for; mapped: accesses
 * to memory of the other side that is mapped here. */
typedef struct perf_ways {
    uint64_t copies, direct, relayed, bounced, staged, mapped;
} perf_ways_t;

enum { PERF_READY = 1, PERF_DONE = 2, PERF_REFUSED = 3 };

typedef struct perf_reply {
    uint64_t magic, kind, run;
    uint64_t rss_before, rss_first, rss_all; /* of the server: with no endpoint, with one, and before this run */
    uint64_t cpu_ns, elapsed_ns;
    perf_ways_t ways;            /* of PERF_DONE: those of the server */
    perf_offer_t offer;          /* of PERF_READY: the server's region */
    char text[200];              /* of PERF_REFUSED */
} perf_reply_t;

#define PERF_MAGIC UINT64_C(0x3630667265706677) /* "wfperf06" */

bool perf_hello_ok(const perf_hello_t *h, uint64_t len);
/* NULL, or what is wrong with it: it comes from the other side. */
const char *perf_plan_fault(const perf_plan_t *p, uint64_t len);
bool perf_reply_ok(const perf_reply_t *r, uint64_t len);

/* --- memory ---------------------------------------------------------------------------------------------- */

/* The words of --memory. */
#define PERF_KINDS 9
extern const char *const perf_kinds[PERF_KINDS];

typedef struct perf_pages {
    void *at;
    size_t size;
    const weft_mem_kind_t *kind; /* NULL: pages of the kernel's */
} perf_pages_t;

/* Before the memory of a run is allocated. If either side's is CUDA's, both bring CUDA into use, so that "pinned" memory is
 * page-locked for the GPU on both. */
void perf_memory_begin(const perf_plan_t *plan);
/* size bytes of that kind, each of them `fill`, touched. NULL on success, or what is wrong: a sentence that begins with "there"
 * or "no", valid until the next call. *none_out: there is no such memory here at all. Progress is made meanwhile. */
const char *perf_memory_get(perf_link_t *l, const char *kind, uint64_t size, int fill, perf_pages_t *out, bool *none_out);
void perf_memory_put(perf_pages_t *pages);
/* Write all of it, touching every page. Progress is made meanwhile. */
weft_status_t perf_memory_fill(perf_link_t *l, const perf_pages_t *pages, int fill);
/* The bytes at both ends are what they should be; every byte is. */
bool perf_memory_check(const perf_pages_t *pages, uint64_t size, int fill);
bool perf_memory_check_all(perf_link_t *l, const perf_pages_t *pages, uint64_t size, int fill);

/* Is that a kind of memory on a GPU, which the processor cannot touch? */
bool perf_on_gpu(const char *kind);
/* The kind of the region in a test of remote memory. */
const char *perf_region_kind(const perf_plan_t *plan);
/* The ways of payloads since the runtime was opened, and since then. */
perf_ways_t perf_ways_now(perf_link_t *l);
perf_ways_t perf_ways_since(perf_link_t *l, const perf_ways_t *then);
/* "mapped", "direct", "relay", "bounce", "staging", with "+" between them; else "carry" or "record". `here` is the client's. */
#define PERF_WAYS_CAP 40
const char *perf_ways_text(const perf_ways_t *here, const perf_ways_t *there, char *buf, size_t n);
/* Did a GPU take part in a run with these kinds of memory? */
bool perf_ways_on_gpu(const perf_plan_t *plan, const perf_ways_t *here, const perf_ways_t *there);

/* --- one run --------------------------------------------------------------------------------------------- */

typedef struct perf_run perf_run_t;

/* One payload on its way: an operation with a callback, and what that has to know. */
typedef struct perf_slot {
    weft_op_t op;
    perf_run_t *run;
    weft_am_t *msg; /* kept; NULL where its handler started the pull */
    weft_ep_t *ep;
    struct perf_slot *next; /* of the free ones */
} perf_slot_t;

#define PERF_LATER 4096

/* The receiving side of active messages. From perf_am_prepare() to the end of the run only the driving thread touches it. */
typedef struct perf_am {
    bool handling;           /* the handler is set */
    bool server, in_place;   /* in_place: a payload that is here is read where it is */
    weft_status_t status;    /* the first thing that went wrong */
    uint64_t taken;          /* messages; also read by the other thread */
    uint64_t before;         /* ticks of the last one */
    weft_op_t over;          /* cancelled when there is nothing more to wait for: so that a thread can wait for a handler */
    weft_op_t retry, sweep;  /* timers */
    weft_ep_t *retry_ep;
    uint64_t sent, send_at, ep_at;
    bool pulled;             /* something is in recv_buf */
    perf_slot_t *slots, *idle;
    weft_am_t **waiting;     /* kept until a slot is free: a ring, which grows. The receiver's window bounds it */
    uint64_t waiting_at, n_waiting, cap_waiting; /* the last a power of two */
    weft_am_t *later[PERF_LATER]; /* kept until the next turn */
    unsigned n_later;
} perf_am_t;

/* A run of remote memory. The server has a region and the client remotes for it; in rma_put_lat both have both. */
typedef struct perf_rma {
    weft_region_t *region;
    perf_pages_t memory;     /* of the region: the library's, or one of perf_run.pages */
    perf_offer_t offer;
    weft_remote_t **remotes; /* one for each endpoint */
    uint64_t n_remotes;
    weft_rma_path_t path;    /* of the first of them */
    uint64_t places;         /* accesses that fit side by side into the region */
    weft_rma_item_t *items;  /* rma_batch: a batch for each operation of the window */
} perf_rma_t;

/* A run of calls. The server has a service, and the client a client of it on each endpoint. */
typedef struct perf_rpc {
    weft_service_t *service;
    uint64_t served;         /* calls that ran; only the driving thread touches it */
    weft_client_t **clients;
    weft_method_t **methods;
    uint64_t n_clients;
    weft_reply_t *replies;   /* one for each operation of the window */
    weft_value_t arg;        /* that of all calls */
    weft_tensor_t tensor;
    int64_t shape;
} perf_rpc_t;

struct perf_run {
    perf_plan_t plan;
    perf_link_t *link;
    perf_histogram_t *histogram; /* client only; NULL while warming up */
    weft_op_t *watch;            /* of the session: it fails when the other side is gone */
    weft_op_t *sends, *recvs;
    uint64_t n_sends, n_recvs;
    weft_ep_t **recv_eps;        /* whose message each receive takes */
    uint32_t *order;             /* shuffled: the order tags are sent in; NULL otherwise */
    char *send_buf, *recv_buf, *header;
    uint64_t send_size, recv_size; /* they differ with --answer only */
    perf_pages_t pages[8];
    unsigned n_pages;
    int recv_page;               /* which of them is recv_buf; -1: none */
    perf_am_t *am;               /* NULL but for active messages */
    perf_rma_t *rma;             /* NULL but for remote memory */
    perf_rpc_t *rpc;             /* NULL but for calls */
    struct perf_streams *streams; /* NULL but with --stream */
    weft_op_t finish;            /* server of both: the client is done */
    char refusal[200];           /* why perf_run_new() failed */
    const char *advice;          /* what the client says behind it */
    uint64_t elapsed_ns, cpu_ns; /* results of the loop */
};

/* Memory for our side of a plan. On an error nothing is left but the refusal. */
weft_status_t perf_run_new(perf_run_t *run, perf_link_t *l, const perf_plan_t *plan, bool server);
/* Nothing is under way any more: all is complete, or the endpoints are dropped. */
void perf_run_free(perf_run_t *run);

/* The streams of a run, by its plan: false after a refusal. Then its operations: the one of that number is in which of them? */
bool perf_streams_new(perf_run_t *run);
void perf_streams_set(perf_run_t *run, weft_op_t *op, uint64_t nth);
void perf_streams_free(perf_run_t *run);

/* Post what must be there before READY is said (server), then the loops. Statuses are those of operations. */
weft_status_t perf_server_prepare(perf_link_t *l, perf_run_t *run);
weft_status_t perf_server_loop(perf_link_t *l, perf_run_t *run);
/* Everything is sent and taken when `done` (the receive of DONE, posted already) is complete. */
weft_status_t perf_client_loop(perf_link_t *l, perf_run_t *run, weft_op_t *done);

/* The same for active messages, called by these. */
weft_status_t perf_am_prepare(perf_link_t *l, perf_run_t *run);
weft_status_t perf_am_server(perf_link_t *l, perf_run_t *run);
weft_status_t perf_am_ping(perf_link_t *l, perf_run_t *run);
/* Take the handler away and let go of what was kept. */
void perf_am_end(perf_run_t *run);
#define PERF_AM_ID UINT32_C(7)

/* And for remote memory. A region of that kind of memory, each byte `fill`, and a key for it: false after a refusal. */
bool perf_rma_expose(perf_run_t *run, void *at, const weft_mem_kind_t *kind, int fill);
/* Remotes for what the other side offers. */
weft_status_t perf_rma_attach(perf_run_t *run, const perf_offer_t *offer);
weft_status_t perf_rma_prepare(perf_link_t *l, perf_run_t *run);
weft_status_t perf_rma_server(perf_link_t *l, perf_run_t *run);
weft_status_t perf_rma_client(perf_link_t *l, perf_run_t *run);
/* The client is done and tells: its own memory is looked at, then the server's. */
weft_status_t perf_rma_finish(perf_link_t *l, perf_run_t *run);
/* Let go of the remotes: before endpoints go. Then of the rest. */
void perf_rma_drop(perf_run_t *run);
void perf_rma_end(perf_run_t *run);

/* And for calls: a service for the plan, false after a refusal; clients of the other side's service, checked. */
bool perf_rpc_serve(perf_run_t *run);
weft_status_t perf_rpc_attach(perf_run_t *run);
weft_status_t perf_rpc_server(perf_link_t *l, perf_run_t *run);
weft_status_t perf_rpc_client(perf_link_t *l, perf_run_t *run);
/* Close the clients: before endpoints go. Then the rest. */
void perf_rpc_drop(perf_run_t *run);
void perf_rpc_end(perf_run_t *run);

/* A server that only drives until its client says that it is done: `run->finish`, posted before READY is said. */
weft_status_t perf_finish_expect(perf_link_t *l, perf_run_t *run);
weft_status_t perf_finish_await(perf_link_t *l, perf_run_t *run);
weft_status_t perf_finish_tell(perf_link_t *l);
void perf_finish_drop(perf_run_t *run);

/* The session's next receive failed, because the other side is gone. */
static inline bool perf_peer_lost(const perf_run_t *run, weft_status_t *st_out)
{
    if (!weft_op_done(run->watch) || !run->watch->status)
        return false;
    *st_out = run->watch->status;
    return true;
}

static inline weft_status_t perf_await_all(perf_link_t *l, weft_op_t *ops, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        weft_status_t st = perf_await(l, &ops[i]);
        if (st)
            return st;
    }
    return WEFT_OK;
}

/* --- roles ----------------------------------------------------------------------------------------------- */

/* Each returns an exit status. ready_fd: the bound URI is written there and it is closed; -1: it is printed. */
int perf_server(const perf_opts_t *opts, int ready_fd);
int perf_client(const perf_opts_t *opts, const char *uri);
/* --clients: all of them and their server. */
#define PERF_MAX_CLIENTS 1024
int perf_many(perf_opts_t *opts);

/* What is asked for: each test with each size, until one fails; and the plan of one. */
bool perf_points_each(const perf_opts_t *opts, bool (*fn)(void *user, perf_test_t test, uint64_t size), void *user);
perf_plan_t perf_plan_new(const perf_opts_t *opts, perf_test_t test, uint64_t size);

/* --- output ---------------------------------------------------------------------------------------------- */

typedef struct perf_result {
    perf_test_t test;
    uint64_t size, header, answer, batch, region, window, outstanding, streams, endpoints, iterations;
    double seconds;
    const perf_histogram_t *histogram;
    double tick_us;                /* one unit of the histogram */
    double avg_us, mb_s, msg_s;
    double endpoint_bytes, peer_endpoint_bytes;
    double cpu_percent, peer_cpu_percent; /* idle only */
    const char *transport, *path;  /* path: rma tests only */
    const char *cipher;
    const char *device_path;       /* NULL: no memory of a GPU */
} perf_result_t;

void perf_report_head(const perf_opts_t *opts, const char *transport, const char *cipher);
void perf_report(const perf_opts_t *opts, const perf_result_t *r);
/* A line that is overwritten, on a terminal only; NULL wipes it. */
void perf_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
