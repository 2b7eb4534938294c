/* tests/lib/crew.c - see crew.h. */
#include "crew.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "must.h"
#include "ports.h"
#include "places.h"

#define ASKS "asks(n: u32) -> u32 idempotent"
#define DOES "does(n: u32) -> u32"
#define CALL_NS (20 * WEFT_SECOND)

static void die(const char *what)
{
    fprintf(stderr, "crew: %s\n", what);
    exit(1);
}

static weft_runtime_t *open_runtime(const char *transports, uint64_t heartbeat_ns, weft_progress_mode_t mode)
{
    weft_runtime_t *rt;
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.transports = transports;
    o.heartbeat_ns = heartbeat_ns;
    o.connect_timeout_ns = 2 * WEFT_SECOND;
    o.close_timeout_ns = 2 * WEFT_SECOND;
    o.progress = mode;
    o.spin_ns = 20 * WEFT_MICROSECOND; /* they share the machine */
    must(weft_runtime_open(&o, &rt), "weft_runtime_open");
    return rt;
}

static weft_registry_t *open_registry(weft_runtime_t *rt, const char *uri)
{
    weft_registry_t *registry;
    weft_registry_opts_t o = WEFT_REGISTRY_OPTS_INIT;
    o.lease_ns = 2 * WEFT_SECOND; /* where it takes a lease, the dead are to be gone soon */
    must(weft_registry_open(rt, uri, &o, &registry), "weft_registry_open");
    return registry;
}

static void wait_for(weft_op_t *op, const char *what)
{
    weft_status_t st = weft_op_wait(op, 30 * WEFT_SECOND);
    if (!weft_op_done(op))
        die(what);
    must(st, what);
}

/* --- a process that serves ------------------------------------------------------------------------------------------------ */

static void answer(weft_request_t *request, void *user)
{
    weft_value_t who = weft_u32(*(const uint32_t *)user);
    weft_request_reply(request, &who, 1);
}

static void accept_all(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener;
    (void)ep;
    (void)user;
}

static void closed(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    weft_ep_close(ep, NULL);
}

static void serve(const crew_t *c, int from, uint32_t me, const char *transports, uint64_t heartbeat_ns)
{
    char command, instance[16];
    weft_service_t *service;
    weft_registry_t *registry;
    weft_listener_t *listener;
    weft_op_t op = WEFT_OP_INIT;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (read(from, &command, 1) != 1 || command != 'g')
        _exit(0);
    weft_runtime_t *rt = open_runtime(transports, heartbeat_ns, WEFT_PROGRESS_THREAD);
    weft_service_opts_t so = WEFT_SERVICE_OPTS_INIT;
    snprintf(instance, sizeof instance, "m%u", me);
    so.instance = instance;
    must(weft_service_open(rt, "crew", &so, &service), "weft_service_open");
    must(weft_service_add(service, ASKS, answer, &me, NULL), "weft_service_add");
    must(weft_service_add(service, DOES, answer, &me, NULL), "weft_service_add");
    weft_ep_hooks_t hooks = {.closed = closed};
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    lo.accept = accept_all;
    lo.hooks = &hooks;
    must(weft_listen(rt, ports_tcp(), &lo, &listener), "weft_listen");
    registry = open_registry(rt, c->place);
    must(weft_service_publish(service, registry, NULL), "weft_service_publish");
    if (read(from, &command, 1) != 1)
        _exit(0);
    must(weft_service_drain(service, &op), "weft_service_drain");
    wait_for(&op, "draining");
    must(weft_service_close(service, &op), "weft_service_close");
    wait_for(&op, "closing a service");
    must(weft_registry_close(registry, &op), "weft_registry_close");
    wait_for(&op, "closing a registry");
    must(weft_runtime_close(rt), "weft_runtime_close");
    _exit(0);
}

/* --- the side that calls -------------------------------------------------------------------------------------------------- */

void crew_start(crew_t *c, int n, const char *transports, uint64_t heartbeat_ns, uint32_t instances)
{
    char place[128];
    place_new(place);
    crew_start_at(c, place, n, transports, heartbeat_ns, instances);
    c->own_place = true;
}

void crew_start_at(crew_t *c, const char *registry, int n, const char *transports, uint64_t heartbeat_ns, uint32_t instances)
{
    memset(c, 0, sizeof *c);
    c->n = n;
    snprintf(c->place, sizeof c->place, "%s", registry);
    weft_log_set_level(WEFT_LOG_NONE);
    signal(SIGPIPE, SIG_IGN);
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        int fds[2];
        if (pipe(fds))
            die("pipe");
        c->pid[i] = fork();
        if (c->pid[i] < 0)
            die("fork");
        if (c->pid[i] == 0) {
            for (int k = 0; k < i; k++)
                close(c->to[k]);
            close(fds[1]);
            serve(c, fds[0], (uint32_t)i, transports, heartbeat_ns);
        }
        close(fds[0]);
        c->to[i] = fds[1];
    }
    c->rt = open_runtime(transports, heartbeat_ns, WEFT_PROGRESS_CALLER);
    c->registry = open_registry(c->rt, c->place);
    weft_client_opts_t o = WEFT_CLIENT_OPTS_INIT;
    o.registry = c->registry;
    o.instances = instances;
    o.tries = 10;
    must(weft_client_open(c->rt, "weft://crew", &o, &c->client), "weft_client_open");
    must(weft_client_method(c->client, ASKS, &c->asks), "weft_client_method");
    must(weft_client_method(c->client, DOES, &c->does), "weft_client_method");
}

static void command(crew_t *c, int i, char what)
{
    if (write(c->to[i], &what, 1) != 1)
        die("a process of the crew does not listen");
}

void crew_go(crew_t *c, int i)
{
    command(c, i, 'g');
}

void crew_drain(crew_t *c, int i)
{
    command(c, i, 'd');
}

/* Its end needs our closing of the connection: so this side goes on meanwhile. */
void crew_drained(crew_t *c, int i)
{
    int status;
    struct timespec pause = {0, 1000000};
    for (int k = 0; k < 30000; k++) {
        pid_t got = waitpid(c->pid[i], &status, WNOHANG);
        if (got == c->pid[i]) {
            c->pid[i] = 0;
            if (!WIFEXITED(status) || WEXITSTATUS(status))
                die("a drained process did not end well");
            return;
        }
        crew_work(c);
        nanosleep(&pause, NULL);
    }
    die("a drained process did not end");
}

void crew_signal(crew_t *c, int i, int sig)
{
    kill(c->pid[i], sig);
    if (sig == SIGKILL) {
        waitpid(c->pid[i], NULL, 0);
        c->pid[i] = 0;
    }
}

static void look_at(crew_t *c, crew_call_t *call)
{
    crew_count_t *count = call->idempotent ? &c->asked : &c->done;
    const weft_reply_t *r = &call->reply;
    call->live = false;
    count->ended++;
    if ((call->op.status == WEFT_OK) != (r->code == WEFT_CODE_OK))
        die("the status and the code of a reply do not agree");
    if (!call->op.status) {
        if (r->n != 1 || r->values[0].u32 >= CREW_MAX || r->ran != WEFT_RAN)
            die("a reply that is none");
        count->ok[r->values[0].u32]++;
    } else {
        if (call->op.status != WEFT_ERR_PEER && call->op.status != WEFT_ERR_CLOSED)
            fprintf(stderr, "# %s: %s: %s (%s, %u tries)\n", call->idempotent ? "asks" : "does",
                    weft_status_name(call->op.status), r->message,
                    r->ran == WEFT_RAN            ? "ran"
                    : r->ran == WEFT_MAY_HAVE_RUN ? "may have run"
                                                  : "not run",
                    r->tries);
        count->late += call->op.status == WEFT_ERR_TIMEOUT;
        count->not_run += r->ran == WEFT_NOT_RUN;
        count->may_have_run += r->ran == WEFT_MAY_HAVE_RUN;
        count->ran += r->ran == WEFT_RAN;
    }
    weft_reply_release(&call->reply);
}

static bool collect(crew_t *c)
{
    bool live = false;
    for (int i = 0; i < CREW_FLIGHT; i++) {
        crew_call_t *call = &c->call[i];
        if (call->live && weft_op_done(&call->op))
            look_at(c, call);
        live = live || call->live;
    }
    return live;
}

void crew_work(crew_t *c)
{
    weft_op_t *ops[CREW_FLIGHT];
    collect(c);
    for (int i = 0; i < CREW_FLIGHT; i++) {
        crew_call_t *call = &c->call[i];
        ops[i] = &call->op;
        if (call->live)
            continue;
        *call = (crew_call_t){.op = WEFT_OP_INIT, .reply = WEFT_REPLY_INIT, .arg = weft_u32(c->posted)};
        call->op.timeout_ns = CALL_NS;
        call->idempotent = c->posted++ % 2;
        must(weft_call(call->idempotent ? c->asks : c->does, &call->arg, 1, &call->reply, &call->op), "weft_call");
        call->live = true;
    }
    size_t which;
    (void)weft_op_wait_any(ops, CREW_FLIGHT, 5 * WEFT_MILLISECOND, &which);
}

void crew_rest(crew_t *c)
{
    for (int k = 0; collect(c); k++) {
        if (k > 30000)
            die("calls do not end");
        for (int i = 0; i < CREW_FLIGHT; i++)
            if (c->call[i].live) {
                (void)weft_op_wait(&c->call[i].op, WEFT_MILLISECOND);
                break;
            }
    }
}

void crew_forget(crew_t *c)
{
    memset(&c->asked, 0, sizeof c->asked);
    memset(&c->done, 0, sizeof c->done);
}

weft_client_stats_t crew_stats(const crew_t *c)
{
    weft_client_stats_t s = WEFT_CLIENT_STATS_INIT;
    must(weft_client_get_stats(c->client, &s), "weft_client_get_stats");
    return s;
}

void crew_end(crew_t *c)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_client_close(c->client, &op), "weft_client_close");
    wait_for(&op, "closing a client");
    crew_rest(c);
    must(weft_registry_close(c->registry, &op), "weft_registry_close");
    wait_for(&op, "closing a registry");
    must(weft_runtime_close(c->rt), "weft_runtime_close");
    for (int i = 0; i < c->n; i++) {
        if (c->pid[i]) {
            kill(c->pid[i], SIGKILL);
            waitpid(c->pid[i], NULL, 0);
        }
        close(c->to[i]);
    }
    if (c->own_place)
        place_remove(c->place);
}
