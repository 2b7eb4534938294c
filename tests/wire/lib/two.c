/* tests/wire/lib/two.c - see two.h. */
#include "two.h"

#include <dirent.h>

#include "must.h"
#include "ports.h"

two_t two;
uint64_t two_reconnect_ns;

static void accepted(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    if (two.n_accepted < TWO_MAX)
        two.accepted[two.n_accepted] = ep;
    two.n_accepted++;
}

static weft_on_failure_t failed(weft_ep_t *ep, weft_status_t why, void *user)
{
    int side = (int)(intptr_t)user;
    (void)ep;
    two.failed[side]++;
    two.failed_why[side] = why;
    return two.answer[side];
}

static void closed(weft_ep_t *ep, weft_status_t why, void *user)
{
    int side = (int)(intptr_t)user;
    (void)ep;
    two.closed[side]++;
    two.closed_why[side] = why;
}

void two_open(const weft_runtime_opts_t *server, const weft_runtime_opts_t *client)
{
    weft_runtime_opts_t plain = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {failed, closed, (void *)(intptr_t)0};
    two = (two_t){.n_accepted = 0};
    must(weft_runtime_open(server ? server : &plain, &two.server), "weft_runtime_open");
    must(weft_runtime_open(client ? client : &plain, &two.client), "weft_runtime_open");
    lo.accept = accepted;
    lo.hooks = &hooks;
    lo.reconnect_ns = two_reconnect_ns;
    must(weft_listen(two.server, ports_tcp(), &lo, &two.listener), "weft_listen");
}

weft_ep_opts_t two_ep_opts(void)
{
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    o.hooks = (weft_ep_hooks_t){failed, closed, (void *)(intptr_t)1};
    return o;
}

weft_ep_t *two_connect(const weft_ep_opts_t *opts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_opts_t o = two_ep_opts();
    weft_ep_t *ep;
    int before = two.n_accepted;
    must(weft_ep_open(two.client, weft_listener_uri(two.listener), opts ? opts : &o, &op, &ep), "weft_ep_open");
    must(two_wait(&op, 10), "connect");
    for (double end = now() + 5; two.n_accepted == before && now() < end;)
        two_drive();
    if (two.n_accepted == before)
        must(WEFT_ERR_TIMEOUT, "accept");
    return ep;
}

void two_drive(void)
{
    if (two.server)
        weft_runtime_progress(two.server);
    if (two.client)
        weft_runtime_progress(two.client);
}

weft_status_t two_wait(weft_op_t *op, double seconds)
{
    for (double end = now() + seconds; !weft_op_done(op);) {
        two_drive();
        if (now() > end) {
            fprintf(stderr, "an operation did not complete within %.1f s\n", seconds);
            exit(1);
        }
    }
    return op->status;
}

void two_run(double seconds)
{
    for (double end = now() + seconds; now() < end;)
        two_drive();
}

void two_close(void)
{
    must(weft_runtime_close(two.client), "weft_runtime_close");
    must(weft_runtime_close(two.server), "weft_runtime_close");
    two.client = two.server = NULL;
}

int two_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}
