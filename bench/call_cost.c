/* bench/call_cost.c - what a call of add(i32, i32) costs the processor, without a network and, but for pool_ns,
 * without another core.
 *
 *     call_cost [--seconds S]
 *
 *   encode_ns    making the message of a call out of two values
 *   dispatch_ns  from that message to the function: what it is, which function, checks, its arguments; the function adds them
 *   ns           both
 *   call_ns      a whole call and its reply, between two runtimes that one thread drives in turn over shared memory
 *   pool_ns      the same of a function that runs on a thread of its service, which spins between two calls
 *   am_ns        an active message of as many bytes and its answer, in the same way: what is left of call_ns is the call's own
 *
 * Each is the least of many short rounds: what disturbs only adds. The first two call the room's own functions, which is why this
 * is linked with the library's insides. One line of JSON. tests/tools/tools_call_cost.py runs it. */
#include "rpc/client.h"
#include "rpc/serve.h"

#include "peers/peer.h"

#define ROUND 500
#define ROUND_ON_THREAD 20 /* shorter: two threads have to be undisturbed */
#define ADD "add(a: i32, b: i32) -> i32"
#define ON_THREADS "add_on_threads(a: i32, b: i32) -> i32"
#define NOTE "note(a: i32, b: i32) -> void oneway"
#define AM_ASK 7
#define AM_ANSWER 8

typedef struct both {
    weft_runtime_t *rt[2]; /* 0 serves */
    weft_ep_t *ep[2];
    weft_listener_t *listener;
    weft_service_t *service;
    weft_client_t *client;
    weft_method_t *add, *pool, *note;
    rpc_msg_t msg; /* a call of note */
    uint64_t answers, sum;
} both_t;

static void must(weft_status_t st, const char *what)
{
    if (!st)
        return;
    fprintf(stderr, "call_cost: %s: %s\n", what, weft_status_text(st));
    exit(1);
}

static void wait_for(both_t *b, weft_op_t *op, const char *what)
{
    uint64_t deadline = 0;
    for (uint32_t spin = 1; !weft_op_done(op); spin++) {
        weft_runtime_progress(b->rt[0]);
        weft_runtime_progress(b->rt[1]);
        if (spin & 0xfff)
            continue;
        if (!deadline)
            deadline = peer_now_ns() + 10 * PEER_SECOND;
        else if (peer_now_ns() > deadline)
            must(WEFT_ERR_TIMEOUT, what);
    }
    must(op->status, what);
}

/* --- what is measured ------------------------------------------------------------------------------------ */

static void encode(both_t *b)
{
    const weft_value_t args[2] = {weft_i32(25), weft_i32((int32_t)b->sum)};
    rpc_msg_init(&b->msg, rpc_head(RPC_CALL, 0));
    must(wefti_rpc_pack(&b->msg, b->note->args, args, 2, NULL), "encoding");
}

static void dispatch(both_t *b)
{
    weft_am_t am = {.id = RPC_AM_TO_SERVER, .header_len = b->msg.len, .header = b->msg.header, .ep = b->ep[0]};
    wefti_rpc_to_server(&am, rpc_state(b->rt[0]));
}

static void call_of(both_t *b, weft_method_t *method)
{
    const weft_value_t args[2] = {weft_i32(25), weft_i32(17)};
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_op_t op = WEFT_OP_INIT;
    must(weft_call(method, args, 2, &reply, &op), "a call");
    wait_for(b, &op, "a call");
    b->sum += (uint64_t)reply.values[0].i32;
    weft_reply_release(&reply);
}

static void call(both_t *b)
{
    call_of(b, b->add);
}

static void call_on_thread(both_t *b)
{
    call_of(b, b->pool);
}

static void message(both_t *b)
{
    const uint64_t before = b->answers;
    const char bytes[24] = {0};
    weft_op_t op = WEFT_OP_INIT;
    must(weft_am_send(b->ep[1], AM_ASK, bytes, sizeof bytes, NULL, 0, &op), "a message");
    while (b->answers == before) {
        weft_runtime_progress(b->rt[0]);
        weft_runtime_progress(b->rt[1]);
    }
    wait_for(b, &op, "a message");
}

/* The least time of one, of as many short rounds as fill the time: short, so that most are not disturbed even on a busy
 * machine. */
static double least_ns(both_t *b, void (*what)(both_t *b), unsigned round, double seconds)
{
    const uint64_t end = peer_now_ns() + (uint64_t)(seconds * 1e9);
    double best = 1e18;
    do {
        uint64_t start = peer_now_ns(), ns;
        for (unsigned i = 0; i < round; i++)
            what(b);
        ns = peer_now_ns() - start;
        if ((double)ns / round < best)
            best = (double)ns / round;
    } while (peer_now_ns() < end);
    return best;
}

/* --- both sides ------------------------------------------------------------------------------------------ */

static void on_add(weft_request_t *request, void *user)
{
    const weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    (void)user;
    must(weft_request_reply(request, &sum, 1), "a reply");
}

static void on_note(weft_request_t *request, void *user)
{
    ((both_t *)user)->sum += (uint64_t)(request->args[0].i32 + request->args[1].i32);
}

static void on_ask(weft_am_t *am, void *user)
{
    (void)user;
    must(weft_am_send(am->ep, AM_ANSWER, am->header, 20, NULL, 0, NULL), "an answer");
}

static void on_answer(weft_am_t *am, void *user)
{
    (void)am;
    ((both_t *)user)->answers++;
}

static void open_both(both_t *b)
{
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT,
              ops[5] = {WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT};
    weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    weft_function_opts_t on_threads = WEFT_FUNCTION_OPTS_INIT;
    ro.transports = "shm";
    so.threads = 1;
    on_threads.threads = true;
    wefti_rpc_pool_processors = 16; /* the thread spins here too */
    for (int i = 0; i < 2; i++)
        must(weft_runtime_open(&ro, &b->rt[i]), "a runtime");
    must(weft_listen(b->rt[0], "tcp://127.0.0.1:0", NULL, &b->listener), "listening");
    must(weft_listener_accept(b->listener, &accept), "accepting");
    must(weft_ep_open(b->rt[1], weft_listener_uri(b->listener), NULL, &connect, &b->ep[1]), "connecting");
    wait_for(b, &connect, "connecting");
    wait_for(b, &accept, "accepting");
    b->ep[0] = accept.buf;
    must(weft_am_handle(b->rt[0], AM_ASK, on_ask, b, &ops[0]), "a handler");
    must(weft_am_handle(b->rt[1], AM_ANSWER, on_answer, b, &ops[1]), "a handler");
    must(weft_service_open(b->rt[0], "calc", &so, &b->service), "a service");
    must(weft_service_add(b->service, ADD, on_add, b, NULL), ADD);
    must(weft_service_add(b->service, ON_THREADS, on_add, b, &on_threads), ON_THREADS);
    must(weft_service_add(b->service, NOTE, on_note, b, NULL), NOTE);
    must(weft_client_on(b->ep[1], NULL, &b->client), "a client");
    must(weft_client_method(b->client, ADD, &b->add), ADD);
    must(weft_client_method(b->client, ON_THREADS, &b->pool), ON_THREADS);
    must(weft_client_method(b->client, NOTE, &b->note), NOTE);
    must(weft_method_check(b->add, NULL, &ops[2]), ADD);
    must(weft_method_check(b->note, NULL, &ops[3]), NOTE);
    must(weft_method_check(b->pool, NULL, &ops[4]), ON_THREADS);
    for (int i = 0; i < 5; i++)
        wait_for(b, &ops[i], "beginning");
}

static void close_both(both_t *b)
{
    weft_op_t ops[4] = {WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT, WEFT_OP_INIT};
    must(weft_client_close(b->client, &ops[0]), "closing");
    must(weft_service_close(b->service, &ops[1]), "closing");
    must(weft_ep_close(b->ep[1], &ops[2]), "closing");
    must(weft_ep_close(b->ep[0], &ops[3]), "closing");
    for (int i = 0; i < 4; i++)
        wait_for(b, &ops[i], "closing");
    must(weft_runtime_close(b->rt[1]), "closing");
    must(weft_runtime_close(b->rt[0]), "closing");
}

/* Where note is at the server, as the client was told. */
static rpc_head_t head_of_note(both_t *b)
{
    rpc_head_t head = rpc_head(RPC_CALL, 1);
    rpc_server_t *server = wefti_container_of(wefti_list_first(&b->client->servers), rpc_server_t, link);
    const rpc_binding_t *binding = server->bindings[b->note->index];
    head.slot = binding->slot;
    head.check = binding->check;
    return head;
}

int main(int argc, char **argv)
{
    static both_t b;
    double seconds = argc == 1                                    ? 0.4
                     : argc == 3 && !strcmp(argv[1], "--seconds") ? atof(argv[2])
                                                                  : 0,
           encode_ns, dispatch_ns, call_ns, pool_ns, am_ns;
    rpc_head_t head;
    uint64_t before;
    if (!(seconds > 0 && seconds <= 60)) {
        fputs("usage: call_cost [--seconds S]\n", stderr);
        return 2;
    }
    open_both(&b);
    am_ns = least_ns(&b, message, ROUND, seconds / 5);
    call_ns = least_ns(&b, call, ROUND, seconds / 5);
    pool_ns = least_ns(&b, call_on_thread, ROUND_ON_THREAD, seconds / 5);
    encode_ns = least_ns(&b, encode, ROUND, seconds / 5);
    head = head_of_note(&b);
    encode(&b);
    memcpy(b.msg.header, &head, sizeof head);
    before = b.sum;
    dispatch(&b);
    if (b.sum == before) {
        fputs("call_cost: the function did not run\n", stderr);
        return 1;
    }
    dispatch_ns = least_ns(&b, dispatch, ROUND, seconds / 5);
    printf("{\"test\": \"call_cost\", \"encode_ns\": %.2f, \"dispatch_ns\": %.2f, \"ns\": %.2f, \"call_ns\": %.2f, \"pool_ns\": "
           "%.2f, \"am_ns\": %.2f}\n",
           encode_ns, dispatch_ns, encode_ns + dispatch_ns, call_ns, pool_ns, am_ns);
    close_both(&b);
    return 0;
}
