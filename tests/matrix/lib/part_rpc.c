/* tests/matrix/lib/part_rpc.c - parts of a world: registries, services, clients, requests, streams. */
#include <string.h>
#include <unistd.h>

#include "part.h"

/* --- registries ----------------------------------------------------------------------------------------------------------- */

void registry_open(side_t *s)
{
    weft_entry_t entry = WEFT_ENTRY_INIT;
    weft_op_t op = WEFT_OP_INIT;
    char uri[64];
    entry.service = "matrix";
    entry.address = "tcp://127.0.0.1:1";
    snprintf(uri, sizeof uri, "memory://matrix-%d", (int)getpid());
    must(weft_registry_open(s->rt, uri, NULL, &s->registry), "weft_registry_open");
    must(weft_registry_enter(s->registry, &entry, &op), "weft_registry_enter");
    world_wait(s->w, &op, "entering a registry");
}

void registry_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_registry_close(s->registry, &op), "weft_registry_close");
    world_wait(s->w, &op, "closing a registry");
}

static void saw(weft_change_t change, const weft_entry_t *entry, void *user)
{
    (void)change;
    (void)entry;
    (void)user;
}

void watch_open(side_t *s)
{
    must(weft_registry_watch(s->registry, NULL, saw, NULL, &s->watch), "weft_registry_watch");
}

void watch_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_watch_end(s->watch, &op), "weft_watch_end");
    world_wait(s->w, &op, "ending a watch");
}

/* --- services ------------------------------------------------------------------------------------------------------------- */

static void adds(weft_request_t *request, void *user)
{
    (void)user;
    weft_value_t sum = weft_i32(request->args[0].i32 + request->args[1].i32);
    weft_request_reply(request, &sum, 1);
}

/* Gives text that a reply, and an item, cannot hold in themselves. */
static void tells(weft_request_t *request, void *user)
{
    static char text[4096];
    weft_value_t value = weft_text(text, sizeof text);
    (void)user;
    weft_request_reply(request, &value, 1);
}

static void nobody_waits(weft_request_t *request, void *user)
{
    (void)user;
    weft_request_release(request);
}

/* The first is the world's; others are kept until nobody waits for them any more. */
static void holds(weft_request_t *request, void *user)
{
    side_t *s = (side_t *)user;
    weft_request_t *kept = weft_request_keep(request);
    if (!atomic_load(&s->request))
        atomic_store(&s->request, kept);
    else if (kept)
        weft_request_on_cancel(kept, nobody_waits, NULL);
}

/* Sends some text, and never answers. */
static void talks(weft_request_t *request, void *user)
{
    static char text[4096];
    side_t *s = (side_t *)user;
    weft_value_t value = weft_text(text, sizeof text);
    weft_request_t *kept = weft_request_keep(request);
    for (int i = 0; kept && i < 8; i++)
        (void)!weft_stream_send(kept->stream, &value, NULL);
    if (!atomic_load(&s->talking))
        atomic_store(&s->talking, kept);
    else if (kept)
        weft_request_on_cancel(kept, nobody_waits, NULL);
}

void service_open(side_t *s)
{
    weft_function_opts_t fetch = WEFT_FUNCTION_OPTS_INIT;
    fetch.fetch = true;
    must(weft_service_open(s->rt, "calc", NULL, &s->service), "weft_service_open");
    must(weft_service_add(s->service, "add(a: i32, b: i32) -> i32", adds, s, NULL), "weft_service_add");
    must(weft_service_add(s->service, "tell() -> string", tells, s, NULL), "weft_service_add");
    must(weft_service_add(s->service, "hold(data: [u8]) -> i32", holds, s, &fetch), "weft_service_add");
    must(weft_service_add(s->service, "talk(lines: stream string) -> stream string", talks, s, NULL), "weft_service_add");
}

void service_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_service_close(s->service, &op), "weft_service_close");
    world_wait(s->w, &op, "closing a service");
}

/* --- clients -------------------------------------------------------------------------------------------------------------- */

static weft_method_t *method(side_t *s, const char *signature)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_method_t *m = NULL;
    must(weft_client_method(s->client, signature, &m), "weft_client_method");
    must(weft_method_check(m, NULL, &op), "weft_method_check");
    world_wait(s->w, &op, "checking a method");
    return m;
}

void client_open(side_t *s)
{
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.service = "calc";
    must(weft_client_on(s->ep, &o, &s->client), "weft_client_on");
    s->add = method(s, "add(a: i32, b: i32) -> i32");
    s->hold = method(s, "hold(data: [u8]) -> i32");
    s->talk = method(s, "talk(lines: stream string) -> stream string");
    must(weft_call(method(s, "tell() -> string"), NULL, 0, &s->reply, &op), "weft_call");
    world_wait(s->w, &op, "a call");
}

void client_close(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_client_close(s->client, &op), "weft_client_close");
    world_wait(s->w, &op, "closing a client");
}

static bool has_request(void *arg)
{
    return atomic_load(&((side_t *)arg)->request) != NULL;
}

void request_open(side_t *s)
{
    static const uint8_t data[BIG];
    static weft_value_t args[2]; /* borrowed until the call ends: one for each side */
    side_t *caller = s->other;
    weft_value_t *arg = &args[s - s->w->side];
    *arg = weft_vector(WEFT_T_U8, data, sizeof data);
    must(weft_call(caller->hold, arg, 1, &caller->hold_reply, &caller->hold_op), "weft_call");
    world_until(s->w, has_request, s, "a request");
}

void request_close(side_t *s)
{
    weft_request_release(atomic_load(&s->request));
    world_end(s->w, &s->other->hold_op, "a call whose request was released");
}

static bool has_talk(void *arg)
{
    return atomic_load(&((side_t *)arg)->talking) != NULL;
}

void stream_open(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_stream_t *stream;
    must(weft_call_stream(s->talk, NULL, 0, NULL, &s->talk_reply, &s->talk_op, &stream), "weft_call_stream");
    s->stream = stream;
    world_until(s->w, has_talk, s->other, "a request with a stream");
    must(weft_stream_recv(s->stream, &s->item, &op), "weft_stream_recv");
    world_wait(s->w, &op, "receiving from a stream");
}

void stream_close(side_t *s)
{
    weft_stream_release(s->stream);
    world_end(s->w, &s->talk_op, "a call whose stream was released");
    weft_request_release(atomic_load(&s->talking));
}
