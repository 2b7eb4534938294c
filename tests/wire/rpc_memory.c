/* wire/rpc_memory.c - tensors in every kind of memory this machine has, as arguments and as results: to functions that get them
 * in host memory, and to functions and callers that have them brought into memory of a kind; the library's kinds, and a device
 * without hardware whose bytes come out wrong if anyone but its own copy() touched them. What a kind lacks here is skipped with
 * the reason.
 * ctest: tls timeout=300 */
#define TEST_SECONDS 140
#include <stdlib.h>
#include <string.h>

#include "fakedev.h"
#include "lib/desk.h"
#include "test.h"

#define SIG "(t: tensor, seed: u64) -> tensor"

static desk_t desk;
static uint8_t host[3u << 20];

typedef struct side {
    const weft_mem_kind_t *kind; /* where the function has the data brought, and answers from */
    void *buf;
    size_t room;
    weft_request_t *kept;
    weft_op_t fetch, reply;
    int64_t shape[1];
    weft_tensor_t answer;
    int32_t device_type;
    bool done;
} side_t;

static weft_tensor_t tensor_of(void *data, int64_t *shape, int32_t device_type)
{
    return (weft_tensor_t){.data = data, .device_type = device_type, .ndim = 1, .code = 1, .bits = 8, .lanes = 1, .shape = shape};
}

static int32_t device_of(const weft_mem_kind_t *kind)
{
    return kind->flags & WEFT_MEM_CPU ? 1 : 2;
}

static void put(const weft_mem_kind_t *kind, void *p, size_t n, uint64_t seed)
{
    pattern_fill(host, n, seed);
    CHECK_OK(weft_mem_copy(p, kind, host, weft_mem_host(), n));
}

static size_t right(const weft_mem_kind_t *kind, const void *p, size_t n, uint64_t seed)
{
    return weft_mem_copy(host, weft_mem_host(), p, kind, n) ? 0 : pattern_check(host, n, seed);
}

/* Gets it in host memory, wherever it came from, and gives it back. */
static void returns(weft_request_t *request, void *user)
{
    const weft_tensor_t *t = request->args[0].tensors.at;
    size_t n = (size_t)t->shape[0];
    (void)user;
    if (t->device_type != 1 || pattern_check((const uint8_t *)t->data + t->byte_offset, n, request->args[1].u64) != n)
        weft_request_fail(request, WEFT_CODE_DATA_LOSS, "the bytes are not right");
    else
        weft_request_reply(request, request->args, 1);
}

static void replied(weft_op_t *op, void *user)
{
    side_t *s = (side_t *)user;
    (void)op;
    weft_mem_free(s->kind, s->buf, s->room);
    weft_request_release(s->kept);
    s->done = true;
}

static void fetched(weft_op_t *op, void *user)
{
    side_t *s = (side_t *)user;
    const weft_tensor_t *t = s->kept->args[0].tensors.at;
    size_t n = (size_t)t->shape[0];
    weft_value_t value = weft_tensor(&s->answer);
    if (op->status || t->data != s->buf || t->device_type != s->device_type ||
        right(s->kind, s->buf, n, s->kept->args[1].u64) != n) {
        weft_request_fail(s->kept, WEFT_CODE_DATA_LOSS, "the bytes are not right, or not where they should be");
        replied(op, s);
        return;
    }
    s->shape[0] = t->shape[0];
    s->answer = tensor_of(s->buf, s->shape, s->device_type);
    s->reply.fn = replied;
    s->reply.user = s;
    CHECK_OK(weft_request_reply_from(s->kept, &value, 1, &s->reply));
}

/* Has it brought into memory of its own choice, and answers from there. */
static void brings(weft_request_t *request, void *user)
{
    side_t *s = (side_t *)user;
    s->done = false;
    s->kept = weft_request_keep(request);
    CHECK(s->kept && s->kept->fetch_len);
    s->room = s->kept->fetch_len;
    CHECK_OK(weft_mem_alloc(s->kind, s->room, &s->buf));
    s->fetch.fn = fetched;
    s->fetch.user = s;
    CHECK_OK(weft_request_fetch(s->kept, s->buf, s->room, s->kind, &s->fetch));
}

static const size_t lens[] = {9001, 70001, (512u << 10) + 1, (2u << 20) + 7};

static void exchange(const weft_mem_kind_t *here, const weft_mem_kind_t *there)
{
    static side_t side;
    weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
    weft_call_opts_t co = WEFT_CALL_OPTS_INIT;
    side = (side_t){.kind = there, .device_type = device_of(there)};
    fo.fetch = true;
    desk_add(&desk, "returns" SIG, returns, NULL);
    CHECK_OK(weft_service_add(desk.service, "brings" SIG, brings, &side, &fo));
    for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
        size_t n = lens[i], room = (n + 63) & ~(size_t)63;
        int64_t shape[1] = {(int64_t)n};
        void *out, *in;
        CHECK_OK(weft_mem_alloc(here, n, &out));
        CHECK_OK(weft_mem_alloc(here, room, &in));
        put(here, out, n, 10 + i);
        weft_tensor_t t = tensor_of(out, shape, device_of(here));
        weft_value_t args[2] = {weft_tensor(&t), weft_u64(10 + i)};

        CHECK_OK(desk_call(&desk, desk_method(&desk, "returns" SIG), args, 2));
        const weft_tensor_t *got = desk.reply.values[0].tensors.at;
        CHECK_EQ(got->device_type, 1);
        CHECK_EQ(pattern_check((const uint8_t *)got->data + got->byte_offset, n, 10 + i), n);

        put(here, in, n, 99);
        co.into = in;
        co.into_cap = room;
        co.into_kind = here;
        CHECK_OK(desk_call_with(&desk, desk_method(&desk, "brings" SIG), args, 2, &co, 0));
        got = desk.reply.values[0].tensors.at;
        CHECK(got->data == in);
        CHECK_EQ(got->device_type, device_of(here));
        CHECK_EQ(right(here, in, n, 10 + i), n);
        PAIR_UNTIL(&desk.pair, side.done, 20);

        co.into_cap = n / 2; /* too short: nothing is written */
        put(here, in, n, 99);
        CHECK_EQ(desk_call_with(&desk, desk_method(&desk, "brings" SIG), args, 2, &co, 0), WEFT_ERR_TRUNCATED);
        CHECK_EQ(desk.reply.ran, WEFT_RAN);
        CHECK_EQ(right(here, in, n, 99), n);
        PAIR_UNTIL(&desk.pair, side.done, 20);
        weft_mem_free(here, out, n);
        weft_mem_free(here, in, room);
    }
}

static void all_with(const weft_mem_kind_t *kind)
{
    each_way(way) {
        desk_open(&desk, way, NULL);
        exchange(kind, kind);
        desk_close(&desk);
        desk_open(&desk, way, NULL);
        exchange(weft_mem_host(), kind);
        desk_close(&desk);
        desk_open(&desk, way, NULL);
        exchange(kind, weft_mem_host());
        desk_close(&desk);
    }
}

static void with_named(const char *name)
{
    const weft_mem_kind_t *kind = weft_mem_kind_find(name);
    if (!kind)
        SKIP("%s", weft_last_error());
    all_with(kind);
}

TEST(memory_of_the_program)
{
    all_with(weft_mem_host());
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

/* A string that is large, and in memory of a device, would be read there by the processor. */
static void tries_to_fetch(weft_request_t *request, void *user)
{
    static weft_op_t op;
    void *room;
    (void)user;
    weft_request_t *mine = weft_request_keep(request);
    CHECK(mine && mine->fetch_len);
    CHECK_OK(weft_mem_alloc(fakedev(), mine->fetch_len, &room));
    op = (weft_op_t)WEFT_OP_INIT;
    CHECK_EQ(weft_request_fetch(mine, room, mine->fetch_len, NULL, &op), WEFT_ERR_UNSUPPORTED);
    weft_mem_free(fakedev(), room, mine->fetch_len);
    weft_request_fail(mine, WEFT_CODE_FAILED_PRECONDITION, "it does not go there");
    weft_request_release(mine);
}

TEST(text_does_not_go_to_memory_of_a_device)
{
    enum { N = 70000 };
    weft_function_opts_t fo = WEFT_FUNCTION_OPTS_INIT;
    weft_call_opts_t co = WEFT_CALL_OPTS_INIT;
    weft_value_t text = weft_text((const char *)host, N);
    memset(host, 'a', N);
    fo.fetch = true;
    fakedev_install();
    CHECK_OK(weft_mem_alloc(fakedev(), N + 64, &co.into));
    co.into_cap = N + 64;
    each_way(way) {
        desk_open(&desk, way, NULL);
        desk_add(&desk, "echo(text: string) -> string", desk_echoes, NULL);
        CHECK_OK(weft_service_add(desk.service, "fetch(text: string) -> string", tries_to_fetch, NULL, &fo));
        CHECK_EQ(desk_call_with(&desk, desk_method(&desk, "echo(text: string) -> string"), &text, 1, &co, 0),
                 WEFT_ERR_UNSUPPORTED);
        CHECK_EQ(desk.reply.ran, WEFT_RAN);
        CHECK_EQ(desk_call(&desk, desk_method(&desk, "fetch(text: string) -> string"), &text, 1), WEFT_ERR_CALL);
        CHECK_EQ(desk.reply.code, WEFT_CODE_FAILED_PRECONDITION);
        desk_close(&desk);
    }
    weft_mem_free(fakedev(), co.into, N + 64);
    fakedev_remove();
    CHECK_EQ(fakedev_live(), 0);
}

/* A reply is the caller's until it is released, also where its runtime is gone by then; so is the memory of its results. */
TEST(results_may_outlive_the_runtime_they_came_by)
{
    each_way(way) {
        for (unsigned i = 0; i < sizeof lens / sizeof *lens; i++) {
            size_t n = lens[i];
            int64_t shape[1] = {(int64_t)n};
            desk_open(&desk, way, NULL);
            desk_add(&desk, "returns" SIG, returns, NULL);
            pattern_fill(host, n, 7);
            weft_tensor_t t = tensor_of(host, shape, 1);
            weft_value_t args[2] = {weft_tensor(&t), weft_u64(7)};
            CHECK_OK(desk_call(&desk, desk_method(&desk, "returns" SIG), args, 2));
            weft_reply_t kept = desk.reply;
            desk.reply = (weft_reply_t)WEFT_REPLY_INIT;
            desk_close(&desk);
            const weft_tensor_t *got = kept.values[0].tensors.at;
            CHECK_EQ(pattern_check((const uint8_t *)got->data + got->byte_offset, n, 7), n);
            weft_reply_release(&kept);
        }
    }
}
