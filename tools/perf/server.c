/* tools/perf/server.c - the server: does what the client's plans say.
 *
 * A session: ASSEMBLING (endpoints arrive, each with a hello that has its number) -> SERVING (plans on endpoint 0, one run
 * each) -> over. One client at a time; others wait in the listener. A client that is lost ends its session: with --keep the
 * next one is served, otherwise the server ends with an error. tests/tools/tools_peer_loss.py checks it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf.h"

typedef struct session {
    perf_link_t *link;
    weft_listener_t *listener;
    weft_op_t control_op;
    perf_plan_t control;
    uint64_t id, total;
    weft_ep_t **placed; /* by index */
    uint64_t n_placed;
} session_t;

/* A wait without a bound, which must not spin. */
static weft_status_t wait_long(weft_op_t *op, uint64_t ns)
{
    weft_status_t st = weft_op_wait(op, ns);
    if (weft_op_done(op))
        return op->status;
    tool_cancel(op);
    return op->status == WEFT_OK ? WEFT_OK : st;
}

static weft_status_t post_control(session_t *s)
{
    return weft_msg_recv(s->placed[0], &s->control, sizeof s->control, PERF_CONTROL_TAG, WEFT_TAG_FULL, &s->control_op);
}

static weft_status_t reply(session_t *s, perf_reply_t *r)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    r->magic = PERF_MAGIC;
    st = weft_msg_send(s->placed[0], r, sizeof *r, PERF_REPLY_TAG, &op);
    return st ? st : wait_long(&op, s->link->timeout_ns);
}

/* --- assembling ------------------------------------------------------------------------------------------ */

/* Read the hello of a new endpoint and put it in its place. False: it is none of ours, and has been closed. */
static bool place(session_t *s, weft_ep_t *ep)
{
    perf_link_t *l = s->link;
    perf_hello_t hello;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_msg_recv(ep, &hello, sizeof hello, PERF_HELLO_TAG, WEFT_TAG_FULL, &op);
    if (!st)
        st = wait_long(&op, 10 * WEFT_SECOND);
    if (st || !perf_hello_ok(&hello, op.len))
        goto err_not_ours;
    if (!s->total) {
        s->placed = calloc(hello.total, sizeof *s->placed);
        if (!s->placed)
            goto err_not_ours;
        s->id = hello.session;
        s->total = hello.total;
    }
    if (hello.session != s->id || hello.total != s->total || s->placed[hello.index])
        goto err_not_ours;
    if (!perf_link_add(l, ep))
        goto err_not_ours;
    s->placed[hello.index] = ep;
    if (++s->n_placed == 1)
        l->rss_first = perf_rss();
    return true;

err_not_ours:
    tool_error("a connection that is not one of this client's was closed: %s",
               st ? weft_status_text(st) : "its first message is not that of weft perf, or another client is being served");
    st = weft_ep_abort(ep, NULL);
    (void)st;
    return false;
}

static weft_status_t assemble(session_t *s)
{
    do {
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st = weft_listener_accept(s->listener, &op);
        if (!st)
            st = wait_long(&op, s->total ? s->link->timeout_ns : WEFT_FOREVER);
        if (st)
            return st;
        place(s, weft_op_ep(&op));
    } while (!s->total || s->n_placed < s->total);
    /* Runs count endpoints from 0 on both sides alike. */
    memcpy(s->link->eps, s->placed, s->total * sizeof *s->placed);
    return WEFT_OK;
}

/* --- serving --------------------------------------------------------------------------------------------- */

static weft_status_t serve_plan(session_t *s, const perf_plan_t *plan)
{
    perf_link_t *l = s->link;
    /* Memory as the runs before this one left it, and before this one's own buffers. */
    perf_reply_t r = {.kind = PERF_READY, .run = plan->run, .rss_before = l->rss_before, .rss_first = l->rss_first};
    perf_ways_t before;
    perf_run_t run;
    weft_status_t st;
    r.rss_all = perf_rss();
    st = perf_run_new(&run, l, plan, true);
    if (st) {
        r.kind = PERF_REFUSED;
        snprintf(r.text, sizeof r.text, "%s", run.refusal);
        return reply(s, &r);
    }
    run.watch = &s->control_op;
    if (run.rma)
        r.offer = run.rma->offer;
    before = perf_ways_now(l);
    st = perf_server_prepare(l, &run);
    if (!st)
        st = reply(s, &r);
    if (!st)
        st = perf_server_loop(l, &run);
    if (st) {
        perf_link_lost(l, st, perf_test_name((perf_test_t)plan->test));
        perf_rma_drop(&run);
        perf_rpc_drop(&run);
        perf_link_drop(l, false); /* the run's memory is in use until then */
        perf_run_free(&run);
        return st;
    }
    r.cpu_ns = run.cpu_ns;
    r.elapsed_ns = run.elapsed_ns;
    r.ways = perf_ways_since(l, &before);
    r.kind = PERF_DONE;
    /* Before the run's memory is freed: for a stream the client's clock is still running. */
    st = reply(s, &r);
    perf_run_free(&run);
    return st;
}

/* WEFT_OK when the client said goodbye. */
static weft_status_t serve(session_t *s)
{
    perf_reply_t ready = {.kind = PERF_READY};
    weft_status_t st = post_control(s);
    if (!st)
        st = reply(s, &ready);
    while (!st) {
        perf_plan_t plan;
        const char *fault;
        st = wait_long(&s->control_op, WEFT_FOREVER);
        if (st)
            break;
        plan = s->control;
        fault = perf_plan_fault(&plan, s->control_op.len);
        if (fault) {
            perf_reply_t r = {.kind = PERF_REFUSED, .run = plan.run};
            snprintf(r.text, sizeof r.text, "%s", fault);
            st = post_control(s);
            if (!st)
                st = reply(s, &r);
            continue;
        }
        if (plan.test == PERF_END) {
            perf_reply_t bye = {.kind = PERF_DONE, .run = plan.run};
            return reply(s, &bye);
        }
        st = post_control(s);
        if (!st)
            st = serve_plan(s, &plan);
    }
    if (s->link->n_eps)
        perf_link_lost(s->link, st, "waiting for its next test");
    return st;
}

static weft_status_t session(perf_link_t *l, weft_listener_t *listener)
{
    session_t s = {.link = l, .listener = listener};
    weft_status_t st = assemble(&s);
    if (st)
        perf_link_lost(l, st, s.total ? "the client's other endpoints were expected" : "a client was expected");
    else
        st = serve(&s);
    if (l->n_eps)
        perf_link_drop(l, st == WEFT_OK);
    free(s.placed);
    return st;
}

/* --- the server ------------------------------------------------------------------------------------------ */

static bool announce(const perf_opts_t *opts, weft_listener_t *listener, int ready_fd)
{
    const char *uri = weft_listener_uri(listener);
    if (ready_fd >= 0) {
        bool written = write(ready_fd, uri, strlen(uri)) == (ssize_t)strlen(uri);
        close(ready_fd);
        return written;
    }
    if (opts->json) {
        tool_json_t j = tool_json_begin(stdout);
        tool_json_text(&j, "listening", uri);
        tool_json_end(&j);
    } else {
        printf("listening on %s\n", uri);
        fflush(stdout);
    }
    return true;
}

int perf_server(const perf_opts_t *opts, int ready_fd)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_listener_t *listener;
    perf_link_t link;
    weft_status_t st;
    int rc = perf_link_open(&link, opts, "the client");
    if (rc)
        return rc;
    rc = TOOL_FAILED;
    st = weft_listen(link.rt, opts->uri, &lo, &listener);
    if (st) {
        tool_error_status(st, "cannot listen on %s", opts->uri);
        rc = tool_exit_status(st);
        goto out_close;
    }
    if (!announce(opts, listener, ready_fd)) {
        tool_error("the client's process is gone");
        goto out_close;
    }
    do
        st = session(&link, listener);
    while (opts->keep && link.rt);
    if (!st)
        rc = TOOL_OK;
    if (link.rt)
        st = weft_listener_close(listener, NULL);

out_close:
    perf_link_close(&link);
    return rc;
}
