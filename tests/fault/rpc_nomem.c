/* Memory runs out at every single allocation of a service and a client that are opened anew each time, one after the other:
 * opening, adding functions, finding methods, asking for them by signature and by name, tensors both ways, calls without an
 * operation, replacing a function, closing. Everything ends with a result that is right or a status that says so, and
 * afterwards the same runtimes do all of it. Results that nobody wants need none. (rpc_service_nomem.c has the kinds of requests,
 * rpc_stream_nomem.c streams.)
 *
 * ctest: timeout=300 */
#define TEST_SECONDS 280
#include <weft/service.h>
#include <weft/weft.h>

#include "lib/couple.h"
#include "lib/nomem.h"
#include "test.h"

#define ADD "add(a: i32, b: i32) -> i32"
#define IMAGE "image(t: tensor, ts: [tensor]) -> ([tensor], tensor)"
#define TELL "tell(s: string) -> void oneway"

static unsigned told;

static void add(weft_request_t *request, void *user)
{
    (void)user;
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    weft_request_reply(request, &sum, 1);
}

static void image(weft_request_t *request, void *user)
{
    (void)user;
    weft_value_t back[2] = {request->args[1], request->args[0]};
    weft_request_reply(request, back, 2);
}

static void tell(weft_request_t *request, void *user)
{
    (void)user;
    CHECK_EQ(request->args[0].view.n, 5);
    told++;
}

static weft_status_t call_add(weft_client_t *client, const char *method)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_value_t args[2] = {weft_i32(40), weft_i32(2)};
    weft_method_t *m;
    weft_status_t st = weft_client_method(client, method, &m);
    if (st)
        return st;
    if (!weft_method_sig(m)) {
        st = weft_method_check(m, &reply, &op);
        if (!st)
            st = couple_finish(&op);
        weft_reply_release(&reply);
        if (st)
            return st;
    }
    st = weft_call(m, args, 2, &reply, &op);
    if (st)
        return st;
    st = couple_finish(&op);
    if (!st)
        CHECK_EQ(reply.values[0].i32, 42);
    else
        CHECK(reply.code != WEFT_CODE_OK && reply.message);
    weft_reply_release(&reply);
    return st;
}

static weft_status_t call_image(weft_client_t *client)
{
    static float numbers[600];
    static int64_t shape[2] = {20, 30}, small[1] = {3};
    weft_tensor_t t[2] = {{.data = numbers, .device_type = 1, .ndim = 2, .code = 2, .bits = 32, .lanes = 1, .shape = shape},
                          {.data = numbers, .device_type = 1, .ndim = 1, .code = 2, .bits = 32, .lanes = 1, .shape = small}};
    weft_op_t op = WEFT_OP_INIT;
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_value_t args[2] = {weft_tensor(&t[0]), weft_tensors(t, 2)};
    weft_method_t *m;
    weft_status_t st = weft_client_method(client, IMAGE, &m);
    if (!st)
        st = weft_call(m, args, 2, &reply, &op);
    if (st)
        return st;
    st = couple_finish(&op);
    if (!st) {
        CHECK_EQ(reply.n, 2);
        CHECK_EQ(reply.values[0].tensors.n, 2);
        CHECK_EQ(reply.values[1].tensors.at[0].shape[1], 30);
    }
    weft_reply_release(&reply);
    return st;
}

static bool failing; /* memory runs out */

static bool hit(void)
{
    return failing && !nomem_still_ahead();
}

/* All of it once; the first thing that went wrong. */
static weft_status_t once(void)
{
    weft_service_t *service;
    weft_client_t *client;
    weft_method_t *m;
    weft_op_t op = WEFT_OP_INIT, remove = WEFT_OP_INIT;
    weft_status_t st = weft_service_open(couple.rt[0], "calc", NULL, &service), one;
    if (st)
        return st;
    st = weft_service_add(service, ADD, add, NULL, NULL);
    one = weft_service_add(service, IMAGE, image, NULL, NULL);
    st = st ? st : one;
    one = weft_service_add(service, TELL, tell, NULL, NULL);
    st = st ? st : one;
    one = weft_client_on(couple.ep, NULL, &client);
    st = st ? st : one;
    if (!one) {
        unsigned before = told;
        one = call_add(client, ADD);
        st = st ? st : one;
        one = call_add(client, "add");
        st = st ? st : one;
        one = call_image(client);
        st = st ? st : one;
        weft_value_t text = weft_text("hello", 5);
        one = weft_client_method(client, TELL, &m);
        if (!one)
            one = weft_call(m, &text, 1, NULL, NULL);
        st = st ? st : one;
        one = weft_service_remove(service, "add", &remove);
        if (!one) {
            one = couple_finish(&remove);
            if (!one)
                one = weft_service_add(service, ADD, add, NULL, NULL);
        }
        st = st ? st : one;
        one = call_add(client, ADD);
        st = st ? st : one;
        /* who waits for nothing hears nothing: without memory such a call may be lost */
        for (double end = test_now() + 20; !hit() && told == before && test_now() < end;)
            couple_drive();
        CHECK(hit() ? told <= before + 1 : told == before + 1);
        CHECK_OK(weft_client_close(client, &op));
        CHECK_OK(couple_finish(&op));
    }
    CHECK_OK(weft_service_close(service, &op));
    CHECK_OK(couple_finish(&op));
    return st;
}

/* More than has room beside the values, so that whoever reads them needs memory. */
static void many(weft_request_t *request, void *user)
{
    static uint8_t bytes[3];
    static int64_t shape[1] = {3};
    weft_tensor_t t[20];
    weft_value_t all = weft_tensors(t, 20);
    for (unsigned i = 0; i < 20; i++)
        t[i] = (weft_tensor_t){.data = bytes, .device_type = 1, .ndim = 1, .code = 1, .bits = 8, .lanes = 1, .shape = shape};
    ++*(unsigned *)user;
    weft_request_reply(request, &all, 1);
}

TEST(results_that_nobody_wants_and_no_memory_to_look_at_them)
{
    weft_service_t *service;
    weft_client_t *client;
    weft_method_t *m;
    unsigned answered = 0;
    couple_open("shm");
    CHECK_OK(weft_service_open(couple.rt[0], "calc", NULL, &service));
    CHECK_OK(weft_service_add(service, "many() -> [tensor]", many, &answered, NULL));
    CHECK_OK(weft_client_on(couple.ep, NULL, &client));
    CHECK_OK(weft_client_method(client, "many() -> [tensor]", &m));
    for (unsigned i = 0; i < 2; i++) { /* the first asks for the function, and its memory does not run out */
        weft_op_t op = WEFT_OP_INIT;
        CHECK_OK(weft_call(m, NULL, 0, NULL, &op));
        while (i && answered == 1)
            weft_runtime_progress(couple.rt[0]);
        if (i)
            nomem_at(0, 1000);
        CHECK_OK(couple_finish(&op));
        CHECK(!i || !nomem_still_ahead());
        nomem_off();
        CHECK_EQ(weft_ep_get_state(couple.ep), WEFT_EP_UP);
    }
    couple_close_with(client, service);
}

TEST(memory_runs_out_at_each_place)
{
    static const char *const transports[] = {"shm", "tcp"};
    weft_log_set_level(WEFT_LOG_NONE);
    for (unsigned t = 0; t < 2; t++) {
        unsigned failures = 0;
        couple_open(transports[t]);
        CHECK_OK(once());
        for (long at = 0;; at++) {
            nomem_at(at, 1);
            failing = true;
            weft_status_t st = once();
            bool all = nomem_still_ahead();
            failing = false;
            nomem_off();
            failures += st != WEFT_OK;
            if (weft_ep_get_state(couple.ep) != WEFT_EP_UP) { /* a reply that had no memory ends the connection */
                couple_close();
                couple_open(transports[t]);
            }
            CHECK_OK(once());
            if (all) {
                CHECK_OK(st);
                break;
            }
            CHECK(at < 5000);
        }
        CHECK(failures > 10);
        couple_close();
    }
}
