/* tests/wire/policy_table.c - one policy, and a table of who may do what by it: every way to use a runtime that is open to its
 * peers, tried by each of them. What is a function is asked for as one, with and without streams; what a memory server does, as
 * a right to memory; messages, active messages, regions and what a runtime says of itself are open to whoever may connect.
 *
 * ctest: label=thread */
#include <fcntl.h>
#include <weft/elements.h>
#include <weft/weft.h>

#include "test.h"

#define KEY "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcde"
#define ADD "add(a: i32, b: i32) -> i32"
#define COUNT "count(below: u64) -> stream u64"
#define TOTAL "total(values: stream f64) -> f64"
enum { LONG = 60, AM = 7 };

static const char policy[] = "deny out connect\n"
                             "allow owner all\n"
                             "allow * connect\n"
                             "allow caller call calc.add\n"
                             "allow streamer call calc.*\n"
                             "deny writer mem-write data-locked\n"
                             "allow reader mem-read data-*\n"
                             "allow writer mem-write data-*\n"
                             "allow maker mem-allocate data-new* 4k\n"
                             "default deny\n";

/* One bit for each; `out` is nobody. */
enum { OWNER = 1, CALLER = 2, STREAMER = 4, READER = 8, WRITER = 16, MAKER = 32, IDLE = 64, OUT = 128, ALL = OUT - 1 };
static const char *const names[] = {"owner", "caller", "streamer", "reader", "writer", "maker", "idle", "out"};
enum { NAMES = sizeof names / sizeof *names };

static weft_runtime_t *server, *client;
static weft_listener_t *listener;
static weft_store_server_t *memory;
static weft_store_t *owners; /* the owner's, which keeps the blocks */
static weft_ep_t *ep, *theirs;
static char uri[128];

/* --- the server ----------------------------------------------------------------------------------------------------------- */

static void adds(weft_request_t *request, void *user)
{
    weft_value_t v = weft_i32(request->args[0].i32 + request->args[1].i32);
    (void)user;
    (void)weft_request_reply(request, &v, 1);
}

static void counts(weft_request_t *request, void *user)
{
    weft_value_t v = weft_u64(request->args[0].u64);
    (void)user;
    if (weft_stream_send(request->stream, &v, NULL))
        weft_request_fail(request, WEFT_CODE_ABORTED, "no stream");
    else
        weft_request_reply(request, NULL, 0);
}

static void totals(weft_request_t *request, void *user)
{
    weft_value_t v = weft_f64(1);
    (void)user;
    (void)weft_request_reply(request, &v, 1);
}

static _Atomic int handled;

static void handles(weft_am_t *am, void *user)
{
    (void)am, (void)user;
    handled++;
}

static const char *key_file(const char *name)
{
    static char path[64];
    snprintf(path, sizeof path, "policy_table.%d.%s", (int)getpid(), name);
    return path;
}

static weft_runtime_t *opens(const char *keys)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    const char *path = key_file("keys");
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, keys, strlen(keys)) == (ssize_t)strlen(keys));
    close(fd);
    setenv("WEFT_KEY_FILE", path, 1);
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &rt));
    unlink(path);
    return rt;
}

static weft_status_t joins(unsigned who)
{
    char keys[128];
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.no_retry = true;
    snprintf(keys, sizeof keys, KEY "%02x %s\n", who, names[who]);
    client = opens(keys);
    return weft_ep_connect(client, uri, &o, LONG * WEFT_SECOND, &ep);
}

static weft_status_t done(weft_status_t posted, weft_op_t *op)
{
    return posted ? posted : weft_op_wait(op, LONG * WEFT_SECOND);
}

static weft_store_t *store_of(weft_ep_t *at)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(done(weft_store_open(at, NULL, &op), &op));
    return weft_op_store(&op);
}

static weft_status_t allocate(weft_store_t *store, const char *name, uint64_t len, weft_block_t **out)
{
    weft_block_opts_t o = WEFT_BLOCK_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.name = name;
    o.len = len;
    o.shared = name;
    weft_status_t st = done(weft_block_alloc(store, &o, &op), &op);
    *out = st ? NULL : weft_op_block(&op);
    return st;
}

static weft_runtime_t *owner;

static void serve(void)
{
    static const char *const blocks[] = {"data-1", "data-locked", "other"};
    static char region_bytes[64] = "of a region";
    weft_store_server_opts_t so = WEFT_STORE_SERVER_OPTS_INIT;
    weft_region_opts_t ro = WEFT_REGION_OPTS_INIT;
    weft_service_t *service;
    weft_region_t *region;
    char keys[NAMES * 100], *at = keys;
    weft_ep_t *owners_ep;
    weft_log_set_level(WEFT_LOG_NONE);
    for (unsigned i = 0; i < NAMES; i++)
        at += sprintf(at, KEY "%02x %s\n", i, names[i]);
    server = opens(keys);
    CHECK_OK(weft_runtime_set_policy(server, policy, strlen(policy)));
    CHECK_OK(weft_listen(server, "tcp://127.0.0.1:0", NULL, &listener));
    snprintf(uri, sizeof uri, "%s", weft_listener_uri(listener));
    CHECK_OK(weft_service_open(server, "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, ADD, adds, NULL, NULL));
    CHECK_OK(weft_service_add(service, COUNT, counts, NULL, NULL));
    CHECK_OK(weft_service_add(service, TOTAL, totals, NULL, NULL));
    CHECK_OK(weft_am_handle(server, AM, handles, NULL, NULL));
    so.bytes = 16 << 20;
    CHECK_OK(weft_store_serve(server, &so, &memory));
    ro.buf = region_bytes;
    ro.len = sizeof region_bytes;
    CHECK_OK(weft_region_new(server, &ro, &region));
    CHECK_OK(weft_region_name(region, "shelf"));
    CHECK_OK(joins(0)); /* the owner stays for all of it */
    owner = client;
    owners_ep = ep;
    CHECK_OK(weft_listener_accept_wait(listener, LONG * WEFT_SECOND, &theirs));
    owners = store_of(owners_ep);
    for (unsigned i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        weft_block_t *b;
        CHECK_OK(allocate(owners, blocks[i], 100, &b));
        weft_block_drop(b);
    }
}

/* --- what is tried: did it work? Whatever else it comes to than a refusal ends the test. ---------------------------------- */

static bool allowed(weft_status_t st)
{
    if (st && st != WEFT_ERR_PERMISSION)
        FAIL("%s (%s)", weft_status_name(st), weft_last_error());
    return !st;
}

static bool code_allows(weft_status_t st, weft_reply_t *reply)
{
    weft_code_t code = reply->code;
    if (st && code != WEFT_CODE_PERMISSION_DENIED)
        FAIL("%s, %d: %s", weft_status_name(st), (int)code, reply->message);
    if (st)
        CHECK(strstr(reply->message, "the policy (line 10) does not allow"));
    weft_reply_release(reply);
    return !st;
}

static bool call(const char *signature, const weft_value_t *args, size_t n)
{
    weft_client_t *c;
    weft_method_t *m;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    o.service = "calc";
    CHECK_OK(weft_client_on(ep, &o, &c));
    CHECK_OK(weft_client_method(c, signature, &m));
    weft_status_t st = weft_call_wait(m, args, n, NULL, LONG * WEFT_SECOND, &reply);
    bool is = code_allows(st, &reply);
    CHECK_OK(weft_client_close(c, NULL));
    return is;
}

static bool add(void)
{
    weft_value_t args[2] = {weft_i32(5), weft_i32(3)};
    return call(ADD, args, 2);
}

static bool stream(const char *signature, bool takes)
{
    weft_client_t *c;
    weft_method_t *m;
    weft_stream_t *s;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_op_t op = WEFT_OP_INIT, moved = WEFT_OP_INIT;
    weft_value_t n = takes ? weft_f64(1) : weft_u64(5);
    weft_item_t item = WEFT_ITEM_INIT;
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    o.service = "calc";
    CHECK_OK(weft_client_on(ep, &o, &c));
    CHECK_OK(weft_client_method(c, signature, &m));
    CHECK_OK(weft_call_stream(m, &n, takes ? 0 : 1, NULL, &reply, &op, &s));
    weft_status_t st = takes ? weft_stream_send(s, &n, &moved) : weft_stream_recv(s, &item, &moved);
    st = done(st, &moved);
    if (!takes && !st && moved.len) {
        CHECK_EQ(item.value.u64, 5);
        weft_item_release(&item);
    }
    bool is = code_allows(weft_op_wait(&op, LONG * WEFT_SECOND), &reply);
    CHECK(is || takes || st);
    weft_stream_release(s);
    CHECK_OK(weft_client_close(c, NULL));
    return is;
}

static bool stream_from(void)
{
    return stream(COUNT, false);
}

static bool stream_to(void)
{
    return stream(TOTAL, true);
}

static bool reflection(void)
{
    char text[400];
    weft_client_t *c;
    weft_method_t *m;
    weft_value_t none = weft_text("", 0);
    CHECK_OK(weft_client_on(ep, NULL, &c));
    for (int i = 0; i < 2; i++) {
        weft_reply_t reply = WEFT_REPLY_INIT;
        CHECK_OK(weft_client_method(c, i ? WEFT_RPC_FUNCTIONS : WEFT_RPC_SERVICES, &m));
        CHECK_OK(weft_call_wait(m, &none, i ? 1 : 0, NULL, LONG * WEFT_SECOND, &reply));
        snprintf(text, sizeof text, "%.*s", (int)reply.values[0].view.n, (const char *)reply.values[0].view.data);
        CHECK(strstr(text, i ? "add(" : "calc"));
        weft_reply_release(&reply);
    }
    CHECK_OK(weft_client_close(c, NULL));
    return true;
}

static bool message(void)
{
    weft_op_t sent = WEFT_OP_INIT, got = WEFT_OP_INIT;
    char buf[8];
    CHECK_OK(weft_msg_recv(theirs, buf, sizeof buf, 1, WEFT_TAG_FULL, &got));
    CHECK_OK(done(weft_msg_send(ep, "word", 5, 1, &sent), &sent));
    return allowed(weft_op_wait(&got, LONG * WEFT_SECOND));
}

static bool active_message(void)
{
    weft_op_t op = WEFT_OP_INIT;
    int before = handled;
    CHECK_OK(done(weft_am_send(ep, AM, "h", 1, "data", 4, &op), &op));
    TEST_UNTIL(handled > before, LONG);
    return true;
}

static bool region(void)
{
    weft_op_t op = WEFT_OP_INIT, read = WEFT_OP_INIT;
    char buf[12] = "";
    weft_status_t st = done(weft_remote_find(ep, "shelf", NULL, &op), &op);
    if (!allowed(st))
        return false;
    weft_remote_t *r = weft_op_remote(&op);
    CHECK_OK(done(weft_rma_read(r, 0, buf, sizeof buf, &read), &read));
    CHECK_STR(buf, "of a region");
    weft_remote_drop(r);
    return true;
}

static weft_store_t *store;

static bool alloc(const char *name, uint64_t len)
{
    weft_block_t *b;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = allocate(store, name, len, &b);
    if (!st && name) {
        weft_block_drop(b);
        CHECK_OK(done(weft_store_remove(owners, name, &op), &op)); /* shared, so no longer its maker's */
    } else if (!st) {
        CHECK_OK(done(weft_block_free(b, &op), &op));
    }
    return st != WEFT_ERR_LIMIT && allowed(st);
}

static bool alloc_new(void)
{
    return alloc("data-new", 4096);
}

static bool alloc_too_much(void)
{
    return alloc("data-new", 4097);
}

static bool alloc_other(void)
{
    return alloc("mine", 1);
}

static bool alloc_unnamed(void)
{
    return alloc(NULL, 1);
}

/* Fill one first, then give it the name; and in the place of one that is there. */
static bool share(const char *name, bool replace)
{
    weft_block_t *b;
    weft_op_t op = WEFT_OP_INIT, freed = WEFT_OP_INIT;
    if (!allowed(allocate(store, NULL, 10, &b)))
        return false;
    bool is = allowed(done(weft_block_share(b, name, replace, &op), &op));
    if (is) {
        weft_block_drop(b);
        CHECK_OK(done(weft_store_remove(owners, name, &freed), &freed)); /* it is no longer its maker's */
    } else {
        CHECK_OK(done(weft_block_free(b, &freed), &freed));
    }
    return is;
}

/* What it has shared belongs to nobody, so it is not its own any more. */
static bool own_shared(bool reads)
{
    weft_block_t *b;
    weft_op_t op = WEFT_OP_INIT, freed = WEFT_OP_INIT;
    if (!allowed(allocate(store, NULL, 10, &b)))
        return false;
    if (!allowed(done(weft_block_share(b, "data-new3", false, &op), &op))) {
        weft_block_drop(b); /* with its lease it goes */
        return false;
    }
    weft_op_t tried = WEFT_OP_INIT;
    weft_status_t st = reads ? weft_block_open(store, "data-new3", &tried) : weft_block_free(b, &tried);
    bool is = allowed(done(st, &tried));
    if (reads)
        weft_block_drop(b);
    if (reads && is)
        weft_block_drop(weft_op_block(&tried));
    if (reads || !is)
        CHECK_OK(done(weft_store_remove(owners, "data-new3", &freed), &freed));
    return is;
}

static bool read_own_shared(void)
{
    return own_shared(true);
}

static bool free_own_shared(void)
{
    return own_shared(false);
}

static bool share_new(void)
{
    return share("data-new2", false);
}

static bool share_other(void)
{
    return share("mine", false);
}

static weft_block_t *find(const char *name)
{
    weft_op_t op = WEFT_OP_INIT;
    return allowed(done(weft_block_open(store, name, &op), &op)) ? weft_op_block(&op) : NULL;
}

static bool reads(const char *name)
{
    char buf[4];
    weft_op_t op = WEFT_OP_INIT;
    weft_block_t *b = find(name);
    if (!b)
        return false;
    CHECK_OK(done(weft_rma_read(weft_block_remote(b), 0, buf, sizeof buf, &op), &op));
    weft_block_drop(b);
    return true;
}

static bool writes(const char *name)
{
    weft_op_t op = WEFT_OP_INIT, atomic = WEFT_OP_INIT;
    weft_block_t *b = find(name);
    if (!b)
        return false;
    weft_status_t st = done(weft_rma_write(weft_block_remote(b), 0, "word", 4, &op), &op);
    CHECK(!st || st == WEFT_ERR_RIGHTS);
    CHECK_EQ(done(weft_rma_atomic(weft_block_remote(b), WEFT_RMA_ADD, 8, 8, 1, 0, &atomic), &atomic), st);
    weft_block_drop(b);
    return !st;
}

static bool read_data(void)
{
    return reads("data-1");
}

static bool read_other(void)
{
    return reads("other");
}

static bool write_data(void)
{
    return writes("data-1");
}

static bool write_locked(void)
{
    return writes("data-locked");
}

static bool write_other(void)
{
    return writes("other");
}

static bool extend(void)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_block_t *b = find("data-1");
    if (!b)
        return false;
    bool is = allowed(done(weft_block_extend(b, 100, &op), &op));
    weft_block_drop(b);
    return is;
}

static bool removes(const char *name)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_block_t *b;
    if (!allowed(done(weft_store_remove(store, name, &op), &op)))
        return false;
    CHECK_OK(allocate(owners, name, 100, &b)); /* for the next one */
    weft_block_drop(b);
    return true;
}

static bool remove_data(void)
{
    return removes("data-1");
}

static bool remove_other(void)
{
    return removes("other");
}

static void sees(const weft_block_info_t *info, void *user)
{
    *(bool *)user = *(bool *)user || (info->name && !strcmp(info->name, "data-1"));
}

static bool lists(void)
{
    weft_op_t op = WEFT_OP_INIT;
    bool seen = false;
    CHECK_OK(done(weft_store_list(store, NULL, sees, &seen, &op), &op));
    return seen;
}

static const struct {
    const char *what;
    bool (*try)(void);
    unsigned may;
} table[] = {
    {"call a function", add, OWNER | CALLER | STREAMER},
    {"call for a stream", stream_from, OWNER | STREAMER},
    {"call with a stream", stream_to, OWNER | STREAMER},
    {"ask what is offered", reflection, ALL},
    {"send a message", message, ALL},
    {"send an active message", active_message, ALL},
    {"read a region by its name", region, ALL},
    {"allocate", alloc_new, OWNER | MAKER},
    {"allocate more than the limit", alloc_too_much, OWNER},
    {"allocate under another name", alloc_other, OWNER},
    {"allocate without a name", alloc_unnamed, OWNER | MAKER},
    {"name what was filled", share_new, OWNER | MAKER},
    {"name it otherwise", share_other, OWNER},
    {"open what it has shared", read_own_shared, OWNER},
    {"free what it has shared", free_own_shared, OWNER},
    {"read a block", read_data, OWNER | READER | WRITER},
    {"read another block", read_other, OWNER},
    {"write a block", write_data, OWNER | WRITER},
    {"write one that is locked", write_locked, OWNER},
    {"write another block", write_other, OWNER},
    {"extend a block", extend, OWNER | WRITER},
    {"see a block in the list", lists, OWNER | READER | WRITER},
    {"remove a block", remove_data, OWNER | WRITER},
    {"remove another block", remove_other, OWNER},
};

TEST(each_may_do_what_the_policy_says_and_nothing_else)
{
    serve();
    for (unsigned who = 0; who < NAMES; who++) {
        weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
        CHECK_OK(weft_runtime_get_stats(server, &s));
        uint64_t before = s.policy_refused;
        weft_status_t st = joins(who);
        CHECK_EQ(st, 1u << who == OUT ? WEFT_ERR_PERMISSION : WEFT_OK);
        if (st) {
            CHECK(strstr(weft_last_error(), "the policy (line 1) does not allow \"out\" to connect"));
        } else {
            CHECK_OK(weft_listener_accept_wait(listener, LONG * WEFT_SECOND, &theirs));
            store = store_of(ep);
            for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
                bool may = table[i].may >> who & 1;
                if (table[i].try() != may)
                    FAIL("%s %s %s", names[who], may ? "may not" : "may", table[i].what);
            }
            weft_store_leave(store);
        }
        CHECK_OK(weft_runtime_get_stats(server, &s));
        CHECK((s.policy_refused > before) == (who != 0)); /* and each refusal is counted */
        CHECK_OK(weft_runtime_close(client));
    }
    weft_store_leave(owners);
    CHECK_OK(weft_runtime_close(owner));
    CHECK_OK(weft_runtime_close(server));
}
