/* Every function that takes options, from callers of other versions: an older one's struct is smaller, and nothing is read
 * behind its end; a newer one's is larger, and is accepted as long as it asks for nothing that this version does not know.
 *
 * weft_runtime_open() is in tests/unit/core_opts.c. */
#include <stddef.h>
#include <sys/mman.h>
#include <weft/element.h>
#include <weft/function.h>
#include <weft/mirror.h>
#include <weft/service.h>
#include <weft/store.h>
#include <weft/elements.h>
#include <weft/weft.h>

#include "pair.h"
#include "test.h"

#define ECHO "echo(v: i32) -> i32"
#define COUNT "count(n: i32) -> stream i32"

static pair_t pair;
static weft_service_t *service;
static weft_client_t *client;
static weft_method_t *echo_method, *count_method;
static weft_store_server_t *server;
static weft_store_t *store;
static weft_region_t *region;
static weft_registry_t *registry;
static uint8_t key[WEFT_REGION_KEY_MAX];
static size_t key_len;
static weft_am_t *taken;

static weft_status_t wait_for(weft_op_t *op)
{
    return pair_wait(&pair, op, 20);
}

/* --- functions and their options ------------------------------------------------------------------------------------------ */

static weft_status_t ep_open(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    weft_status_t st = weft_ep_open(pair.rt[1], weft_listener_uri(pair.listener), opts, &op, &ep);
    if (st)
        return st;
    CHECK_OK(wait_for(&op));
    CHECK_OK(weft_ep_abort(ep, &op));
    return wait_for(&op);
}

static weft_status_t pool_new(const void *opts)
{
    weft_pool_t *pool;
    weft_status_t st = weft_pool_new(pair.rt[0], opts, &pool);
    if (!st)
        weft_pool_free(pool);
    return st;
}

static weft_status_t msg_send(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT, got = WEFT_OP_INIT;
    char buf[8];
    weft_status_t st = weft_msg_send_with(pair.ep[1], opts, &op);
    if (st)
        return st;
    CHECK_OK(wait_for(&op));
    CHECK_OK(weft_msg_recv(pair.ep[0], buf, sizeof buf, 0, WEFT_TAG_ANY, &got));
    return wait_for(&got);
}

static weft_status_t am_send(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT, got = WEFT_OP_INIT;
    weft_status_t st = weft_am_send_with(pair.ep[1], opts, &op);
    if (st)
        return st;
    CHECK_OK(wait_for(&op));
    CHECK_OK(weft_am_take(pair.rt[0], pair.ep[0], WEFT_AM_ANY_ID, &got));
    CHECK_OK(wait_for(&got));
    weft_am_release((weft_am_t *)got.buf);
    return WEFT_OK;
}

static weft_status_t am_recv(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_am_recv(pair.rt[0], opts, &op);
    if (st)
        return st;
    weft_op_cancel(&op);
    CHECK_EQ(wait_for(&op), WEFT_ERR_CANCELLED);
    return WEFT_OK;
}

static weft_status_t am_pull(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT, got = WEFT_OP_INIT;
    CHECK_OK(weft_am_send(pair.ep[1], 5, NULL, 0, "payload", 7, &op));
    CHECK_OK(wait_for(&op));
    CHECK_OK(weft_am_take(pair.rt[0], pair.ep[0], 5, &got));
    CHECK_OK(wait_for(&got));
    taken = (weft_am_t *)got.buf;
    weft_status_t st = weft_am_pull_with(taken, opts, &op);
    if (!st) {
        CHECK_OK(wait_for(&op));
        weft_mem_free(NULL, op.buf, op.len);
    }
    weft_am_release(taken);
    return st;
}

static weft_status_t region_new(const void *opts)
{
    weft_region_t *r;
    weft_status_t st = weft_region_new(pair.rt[0], opts, &r);
    return st ? st : weft_region_free(r, NULL);
}

static weft_status_t region_key(const void *opts)
{
    uint8_t buf[WEFT_REGION_KEY_MAX];
    size_t n = sizeof buf;
    return weft_region_key(region, opts, buf, &n);
}

static weft_status_t remote_attach(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_remote_attach(pair.ep[1], key, key_len, opts, &op);
    if (st)
        return st;
    CHECK_OK(wait_for(&op));
    weft_remote_drop((weft_remote_t *)op.buf);
    return WEFT_OK;
}

static weft_status_t store_serve(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_store_server_t *s;
    weft_status_t st = weft_store_serve(pair.rt[1], opts, &s);
    if (st)
        return st;
    CHECK_OK(weft_store_server_close(s, &op));
    return wait_for(&op);
}

static weft_status_t store_open(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_store_open(pair.ep[1], opts, &op);
    if (st)
        return st;
    CHECK_OK(wait_for(&op));
    CHECK_OK(weft_store_close((weft_store_t *)op.buf, &op));
    return wait_for(&op);
}

static weft_status_t block_alloc(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_block_alloc(store, opts, &op);
    if (st)
        return st;
    CHECK_OK(wait_for(&op));
    CHECK_OK(weft_block_free((weft_block_t *)op.buf, &op));
    return wait_for(&op);
}

/* One store is too few for a mirror: that is said whatever the version, unless the options themselves are at fault. */
static weft_status_t mirror_open(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_mirror_open(pair.rt[1], opts, &op);
    CHECK_EQ(st, WEFT_ERR_INVALID);
    return strstr(weft_last_error(), "weft_mirror_opts_t") ? st : WEFT_OK;
}

static weft_status_t registry_open(const void *opts)
{
    weft_registry_t *r;
    weft_status_t st = weft_registry_open(pair.rt[0], "memory://of-another", opts, &r);
    return st ? st : weft_registry_close(r, NULL);
}

static weft_status_t registry_enter(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_registry_enter(registry, opts, &op);
    return st ? st : wait_for(&op);
}

static weft_status_t client_open(const void *opts)
{
    weft_client_t *c;
    weft_status_t st = weft_client_open(pair.rt[1], weft_listener_uri(pair.listener), opts, &c);
    return st ? st : weft_client_close(c, NULL);
}

static weft_status_t client_on(const void *opts)
{
    weft_client_t *c;
    weft_status_t st = weft_client_on(pair.ep[1], opts, &c);
    return st ? st : weft_client_close(c, NULL);
}

static weft_status_t service_open(const void *opts)
{
    weft_service_t *s;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_service_open(pair.rt[0], "another", opts, &s);
    if (st)
        return st;
    CHECK_OK(weft_service_close(s, &op));
    return wait_for(&op);
}

static void echo(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_reply(request, request->args, request->n);
}

static void count(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_reply(request, NULL, 0);
}

static weft_status_t service_add(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_service_add(service, "more(v: i32) -> i32", echo, NULL, opts);
    if (st)
        return st;
    CHECK_OK(weft_service_remove(service, "more", &op));
    return wait_for(&op);
}

static void run_typed(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_reply(request, request->args, request->n);
}

static weft_status_t function_serve(const void *opts)
{
    static const weft_function_t typed = {"typed(v: i32) -> i32", 0, 0};
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_function_serve(service, &typed, run_typed, (weft_handler_fn)run_typed, NULL, opts);
    if (st)
        return st;
    CHECK_OK(weft_service_remove(service, "typed", &op));
    return wait_for(&op);
}

static weft_status_t call_with(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_value_t arg = weft_i32(7);
    weft_status_t st = weft_call_with(echo_method, &arg, 1, opts, &reply, &op);
    if (st)
        return st;
    CHECK_OK(wait_for(&op));
    CHECK_EQ(reply.values[0].i32, 7);
    weft_reply_release(&reply);
    return WEFT_OK;
}

static weft_status_t call_stream(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_value_t arg = weft_i32(7);
    weft_stream_t *stream;
    weft_status_t st = weft_call_stream(count_method, &arg, 1, opts, &reply, &op, &stream);
    if (st)
        return st;
    CHECK_OK(wait_for(&op));
    weft_stream_release(stream);
    weft_reply_release(&reply);
    return WEFT_OK;
}

static weft_status_t memory_open(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_memory_t *memory;
    weft_status_t st = weft_memory_open(pair.rt[1], opts, &memory);
    if (st)
        return st;
    CHECK_OK(weft_memory_close(memory, &op));
    return wait_for(&op);
}

static weft_status_t action_open(const void *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_action_t *action;
    weft_status_t st = weft_action_open(pair.rt[1], "an-action", opts, &action);
    if (st)
        return st;
    CHECK_OK(weft_action_close(action, &op));
    return wait_for(&op);
}

static weft_status_t durl_format(const void *opts)
{
    char text[WEFT_DURL_MAX + 1];
    size_t n = sizeof text;
    return weft_durl_format(opts, text, &n);
}

/* --- what a caller of this version would give ----------------------------------------------------------------------------- */

static void of_msg(void *opts)
{
    weft_msg_send_opts_t *o = opts;
    o->buf = "message";
    o->len = 7;
}

static void of_am(void *opts)
{
    weft_am_send_opts_t *o = opts;
    o->id = 9;
}

static void of_region(void *opts)
{
    ((weft_region_opts_t *)opts)->len = 100;
}

static void of_server(void *opts)
{
    ((weft_store_server_opts_t *)opts)->bytes = 1 << 20;
}

static void of_mirror(void *opts)
{
    ((weft_mirror_opts_t *)opts)->name = "mirror";
}

static void of_entry(void *opts)
{
    weft_entry_t *e = opts;
    e->service = "service";
    e->address = "tcp://127.0.0.1:1";
}

static void of_call(void *opts)
{
    ((weft_call_opts_t *)opts)->once = true;
}

static void of_memory(void *opts)
{
    weft_memory_opts_t *o = opts;
    o->name = "memory";
    o->bytes = 1 << 20;
}

static void of_durl(void *opts)
{
    CHECK_OK(weft_durl_parse("mem;rdma_tcp;url,tcp://127.0.0.1:1;size,4096;", opts));
}

/* older: so many bytes had the struct of an older caller, for whom the function does the same. */
static const struct {
    const char *name;
    weft_status_t (*call)(const void *opts);
    void (*fill)(void *opts);
    size_t size, older;
} cases[] = {
    {"weft_ep_open", ep_open, NULL, sizeof(weft_ep_opts_t), sizeof(size_t)},
    {"weft_pool_new", pool_new, NULL, sizeof(weft_pool_opts_t), sizeof(size_t)},
    {"weft_msg_send_with", msg_send, of_msg, sizeof(weft_msg_send_opts_t), offsetof(weft_msg_send_opts_t, release)},
    {"weft_am_send_with", am_send, of_am, sizeof(weft_am_send_opts_t), offsetof(weft_am_send_opts_t, header)},
    {"weft_am_recv", am_recv, NULL, sizeof(weft_am_recv_opts_t), sizeof(size_t)},
    {"weft_am_pull_with", am_pull, NULL, sizeof(weft_am_pull_opts_t), sizeof(size_t)},
    {"weft_region_new", region_new, of_region, sizeof(weft_region_opts_t), offsetof(weft_region_opts_t, max_len)},
    {"weft_region_key", region_key, NULL, sizeof(weft_region_key_opts_t), sizeof(size_t)},
    {"weft_remote_attach", remote_attach, NULL, sizeof(weft_remote_opts_t), sizeof(size_t)},
    {"weft_store_serve", store_serve, of_server, sizeof(weft_store_server_opts_t),
     offsetof(weft_store_server_opts_t, client_bytes)},
    {"weft_store_open", store_open, NULL, sizeof(weft_store_opts_t), sizeof(size_t)},
    {"weft_block_alloc", block_alloc, NULL, sizeof(weft_block_opts_t), sizeof(size_t)},
    {"weft_mirror_open", mirror_open, of_mirror, sizeof(weft_mirror_opts_t), offsetof(weft_mirror_opts_t, stores)},
    {"weft_registry_open", registry_open, NULL, sizeof(weft_registry_opts_t), sizeof(size_t)},
    {"weft_registry_enter", registry_enter, of_entry, sizeof(weft_entry_t), offsetof(weft_entry_t, load)},
    {"weft_client_open", client_open, NULL, sizeof(weft_client_opts_t), sizeof(size_t)},
    {"weft_client_on", client_on, NULL, sizeof(weft_client_opts_t), sizeof(size_t)},
    {"weft_service_open", service_open, NULL, sizeof(weft_service_opts_t), sizeof(size_t)},
    {"weft_service_add", service_add, NULL, sizeof(weft_function_opts_t), sizeof(size_t)},
    {"weft_function_serve", function_serve, NULL, sizeof(weft_function_opts_t), sizeof(size_t)},
    {"weft_call_with", call_with, of_call, sizeof(weft_call_opts_t), offsetof(weft_call_opts_t, into)},
    {"weft_call_stream", call_stream, NULL, sizeof(weft_call_opts_t), sizeof(size_t)},
    {"weft_memory_open", memory_open, of_memory, sizeof(weft_memory_opts_t), offsetof(weft_memory_opts_t, uri)},
    {"weft_action_open", action_open, NULL, sizeof(weft_action_opts_t), sizeof(size_t)},
    {"weft_durl_format", durl_format, of_durl, sizeof(weft_durl_t), offsetof(weft_durl_t, timeout_ms)},
};

/* --- the callers ---------------------------------------------------------------------------------------------------------- */

static void scene(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_store_server_opts_t so = WEFT_STORE_SERVER_OPTS_INIT;
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    weft_log_set_level(WEFT_LOG_NONE);
    pair_open(&pair, &pair_ways[0], NULL);
    CHECK_OK(weft_service_open(pair.rt[0], "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, ECHO, echo, NULL, NULL));
    CHECK_OK(weft_service_add(service, COUNT, count, NULL, NULL));
    CHECK_OK(weft_client_on(pair.ep[1], NULL, &client));
    CHECK_OK(weft_client_method(client, ECHO, &echo_method));
    CHECK_OK(weft_client_method(client, COUNT, &count_method));
    so.bytes = 1 << 20;
    CHECK_OK(weft_store_serve(pair.rt[0], &so, &server));
    CHECK_OK(weft_store_open(pair.ep[1], NULL, &op));
    CHECK_OK(wait_for(&op));
    store = (weft_store_t *)op.buf;
    ro.len = 4096;
    CHECK_OK(weft_region_new(pair.rt[0], &ro, &region));
    key_len = sizeof key;
    CHECK_OK(weft_region_key(region, NULL, key, &key_len));
    CHECK_OK(weft_registry_open(pair.rt[0], "memory://opts", NULL, &registry));
}

static void scene_end(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_registry_close(registry, NULL);
    weft_store_leave(store);
    CHECK_OK(weft_client_close(client, &op));
    CHECK_OK(wait_for(&op));
    CHECK_OK(weft_service_close(service, &op));
    CHECK_OK(wait_for(&op));
    pair_close(&pair);
}

/* n bytes, behind which nothing may be read. */
static uint8_t *at_the_end(size_t n)
{
    size_t page = 65536;
    uint8_t *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED && !mprotect(map + page, page, PROT_NONE));
    return map + page - ((n + 7) & ~(size_t)7);
}

static void set_size(uint8_t *opts, size_t n)
{
    memcpy(opts, &n, sizeof n);
}

#define EACH(i) for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)

static void expect(size_t i, const uint8_t *opts, weft_status_t want, const char *which)
{
    weft_status_t st = cases[i].call(opts);
    if (st != want)
        FAIL("%s, %s: %s (%s)", cases[i].name, which, weft_status_name(st), weft_last_error());
}

TEST(callers_of_every_version_are_understood)
{
    scene();
    EACH(i)
    {
        size_t size = cases[i].size, newer = size + 24;
        uint8_t *opts = at_the_end(newer);
        set_size(opts, size);
        if (cases[i].fill)
            cases[i].fill(opts);
        expect(i, opts, WEFT_OK, "of this version");
        set_size(opts, newer);
        expect(i, opts, WEFT_OK, "newer, asking for nothing new");
        opts[newer - 1] = 1;
        expect(i, opts, WEFT_ERR_INVALID, "newer, asking for something new");
        if (!strstr(weft_last_error(), "does not know"))
            FAIL("%s: \"%s\" does not say that it is not known", cases[i].name, weft_last_error());
        opts[newer - 1] = 0;
        static const size_t none[] = {0, 3, (size_t)1 << 20};
        for (unsigned k = 0; k < 3; k++) {
            set_size(opts, none[k]);
            expect(i, opts, WEFT_ERR_INVALID, "without a size");
        }
        uint8_t *old = at_the_end(cases[i].older);
        memcpy(old, opts, cases[i].older);
        set_size(old, cases[i].older);
        expect(i, old, WEFT_OK, "older");
    }
    scene_end();
}
