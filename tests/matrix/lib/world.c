/* tests/matrix/lib/world.c - see world.h. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "part.h"

enum { WORLD_SECONDS = 45 };

const part_t parts[PARTS] = {
    {NEEDS_LISTENER, 0, listener_open, listener_close},
    {NEEDS_EP, NEEDS_LISTENER, ep_open, ep_close},
    {NEEDS_QUEUE, 0, queue_open, queue_close},
    {NEEDS_TOKEN, 0, token_open, token_close},
    {NEEDS_TIMER, 0, timer_open, timer_close},
    {NEEDS_POOL, 0, pool_open, pool_close},
    {NEEDS_REG, 0, reg_open, reg_close},
    {NEEDS_MSG, NEEDS_EP, msg_open, msg_close},
    {NEEDS_AM, NEEDS_EP, am_open, am_close},
    {NEEDS_REGION, 0, region_open, region_close},
    {NEEDS_REMOTE, NEEDS_REGION | NEEDS_EP, remote_open, remote_close},
    {NEEDS_REGISTRY, 0, registry_open, registry_close},
    {NEEDS_WATCH, NEEDS_REGISTRY, watch_open, watch_close},
    {NEEDS_SERVICE, 0, service_open, service_close},
    {NEEDS_CLIENT, NEEDS_SERVICE | NEEDS_EP, client_open, client_close},
    {NEEDS_REQUEST, NEEDS_CLIENT, request_open, request_close},
    {NEEDS_STREAM, NEEDS_CLIENT, stream_open, stream_close},
    {NEEDS_SERVER, 0, server_open, server_close},
    {NEEDS_STORE, NEEDS_SERVER | NEEDS_EP, store_open, store_close},
    {NEEDS_BLOCK, NEEDS_STORE, block_open, block_close},
    {NEEDS_MIRROR, NEEDS_STORE, mirror_open, mirror_close},
    {NEEDS_MEMORY, 0, memory_open, memory_close},
    {NEEDS_ACTION, 0, action_open, action_close},
    {NEEDS_TRANSPORT, NEEDS_ACTION | NEEDS_MEMORY, transport_open, transport_close},
    {NEEDS_SERVED, NEEDS_ACTION, served_open, nothing_to_close},
    {NEEDS_SIG, 0, sig_open, nothing_to_close},
};

void nothing_to_close(side_t *s)
{
    (void)s;
}

/* --- driving -------------------------------------------------------------------------------------------------------------- */

void world_drive(world_t *w)
{
    unsigned n = 0;
    for (int i = 0; i < 2; i++) {
        if (w->side[i].drive)
            n += weft_runtime_progress(w->side[i].rt);
    }
    if (!n)
        usleep(20);
}

weft_status_t world_end(world_t *w, weft_op_t *op, const char *what)
{
    double end = now() + WORLD_SECONDS;
    while (!weft_op_done(op)) {
        world_drive(w);
        if (now() > end) {
            fprintf(stderr, "LOST %s is not complete after %d s\n", what, WORLD_SECONDS);
            exit(1);
        }
    }
    return op->status;
}

void world_wait(world_t *w, weft_op_t *op, const char *what)
{
    must(world_end(w, op, what), what);
}

void world_until(world_t *w, bool (*there)(void *arg), void *arg, const char *what)
{
    double end = now() + WORLD_SECONDS;
    while (!there(arg)) {
        world_drive(w);
        if (now() > end) {
            fprintf(stderr, "LOST %s is not there after %d s\n", what, WORLD_SECONDS);
            exit(1);
        }
    }
}

/* --- opening and closing -------------------------------------------------------------------------------------------------- */

static uint64_t with_what_they_need(uint64_t needs)
{
    for (int i = PARTS; i-- > 0;) {
        if (needs & parts[i].bit)
            needs |= parts[i].with;
    }
    return needs;
}

static void runtime_open(side_t *s)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.progress = s->w->mode;
    opts.transports = s->w->transports;
    opts.close_timeout_ns = 5 * WEFT_SECOND;
    must(weft_runtime_open(&opts, &s->rt), "weft_runtime_open");
    s->drive = s->w->mode != WEFT_PROGRESS_THREAD;
}

void world_open(world_t *w, weft_progress_mode_t mode, const char *transports, uint64_t needs)
{
    w->mode = mode;
    w->transports = transports;
    w->needs = with_what_they_need(needs);
    for (int i = 0; i < 2; i++) {
        w->side[i].w = w;
        w->side[i].other = &w->side[!i];
        runtime_open(&w->side[i]);
    }
    for (int i = 0; i < PARTS; i++) {
        for (int j = 0; j < 2 && w->needs & parts[i].bit; j++)
            parts[i].open(&w->side[j]);
    }
}

void world_close_objects(side_t *s)
{
    for (int i = PARTS; i-- > 0;) {
        if (s->w->needs & parts[i].bit)
            parts[i].close(s);
    }
}

void world_close_endpoint(side_t *s)
{
    weft_op_t op = WEFT_OP_INIT;
    op.timeout_ns = 100 * WEFT_MILLISECOND; /* what the other side has not taken is not waited for */
    must(weft_ep_close(s->ep, &op), "weft_ep_close");
    world_end(s->w, &op, "closing an endpoint");
}

void world_close_runtime(side_t *s)
{
    s->drive = false;
    if (s->rt)
        must(weft_runtime_close(s->rt), "weft_runtime_close");
}

static void send_over(side_t *from, side_t *to)
{
    weft_op_t sent = WEFT_OP_INIT, received = WEFT_OP_INIT;
    char byte = 0;
    must(weft_msg_recv(to->ep, &byte, 1, 4711, WEFT_TAG_FULL, &received), "weft_msg_recv");
    must(weft_msg_send(from->ep, "y", 1, 4711, &sent), "weft_msg_send");
    world_wait(from->w, &sent, "a message that was sent");
    world_wait(from->w, &received, "a message that was received");
}

void world_check(world_t *w)
{
    if (!(w->needs & NEEDS_EP))
        return;
    send_over(&w->side[0], &w->side[1]);
    send_over(&w->side[1], &w->side[0]);
}
