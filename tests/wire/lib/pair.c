/* tests/wire/lib/pair.c - see pair.h. */
#include "pair.h"

#include "must.h"
#include "ports.h"

const pair_way_t pair_ways[PAIR_WAYS] = {
    {"shm", WEFT_PROGRESS_CALLER}, {"tcp", WEFT_PROGRESS_CALLER},     {"shm", WEFT_PROGRESS_THREAD},
    {"tcp", WEFT_PROGRESS_THREAD}, {"ucx_tcp", WEFT_PROGRESS_CALLER},
};

unsigned pair_ways_here(void)
{
    return ports_tls() ? PAIR_WAYS - 1 : PAIR_WAYS;
}

void pair_drive(pair_t *pair)
{
    for (int i = 0; i < 2; i++) {
        if (pair->rt[i])
            weft_runtime_progress(pair->rt[i]);
    }
}

void pair_run(pair_t *pair, double seconds)
{
    /* on a busy machine the time may be over after a turn or two, and what was to happen in it has not begun */
    double end = now() + seconds;
    for (unsigned turns = 0; turns < seconds * 1e5 || now() < end; turns++)
        pair_drive(pair);
}

weft_status_t pair_wait(pair_t *pair, weft_op_t *op, double seconds)
{
    double end = now() + seconds;
    while (!weft_op_done(op)) {
        pair_drive(pair);
        if (now() > end) {
            fprintf(stderr, "an operation did not complete within %.1f s\n", seconds);
            exit(1);
        }
    }
    return op->status;
}

void pair_open(pair_t *pair, const pair_way_t *way, const weft_runtime_opts_t *given)
{
    weft_op_t connect = WEFT_OP_INIT, accept = WEFT_OP_INIT;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    if (given)
        opts = *given;
    opts.transports = way->transports;
    opts.progress = way->mode;
    *pair = (pair_t){.listener = NULL};
    for (int i = 0; i < 2; i++)
        must(weft_runtime_open(&opts, &pair->rt[i]), "weft_runtime_open");
    must(weft_listen(pair->rt[0], ports_tcp(), NULL, &pair->listener), "weft_listen");
    must(weft_listener_accept(pair->listener, &accept), "weft_listener_accept");
    must(weft_ep_open(pair->rt[1], weft_listener_uri(pair->listener), NULL, &connect, &pair->ep[1]), "weft_ep_open");
    must(pair_wait(pair, &connect, 10), "connect");
    must(pair_wait(pair, &accept, 10), "accept");
    pair->ep[0] = (weft_ep_t *)accept.buf;
}

void pair_close(pair_t *pair)
{
    weft_op_t ops[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
    for (int i = 0; i < 2; i++) {
        if (pair->ep[i])
            must(weft_ep_close(pair->ep[i], &ops[i]), "weft_ep_close");
        if (pair->ep[i])
            pair_wait(pair, &ops[i], 15);
        pair->ep[i] = NULL;
    }
    if (pair->listener)
        must(weft_listener_close(pair->listener, NULL), "weft_listener_close");
    pair->listener = NULL;
    for (int i = 0; i < 2; i++) {
        must(weft_runtime_close(pair->rt[i]), "weft_runtime_close");
        pair->rt[i] = NULL;
    }
}

static uint8_t pattern(uint64_t seed, size_t i)
{
    uint64_t word = (seed + (i >> 3)) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint8_t)(word >> (8 * (i & 7)));
}

void pattern_fill(void *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)buf)[i] = pattern(seed, i);
}

size_t pattern_check(const void *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        if (((const uint8_t *)buf)[i] != pattern(seed, i))
            return i;
    }
    return len;
}
