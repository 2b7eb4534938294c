/* tests/sim/registry_turns.c - memory:// on a simulated network, where a registry has no thread: runtimes that enter, change,
 * leave, find, watch, end their watches, close and open again, in every order.
 *
 * What there must be is known at each moment, since a post is done when it returns. Checked: every operation completes once,
 * with the status that it must have; a find tells what there was when it was posted; a watch is told of no change that cannot
 * be, and knows what there is when all is quiet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "seeds.h"
#include "world.h"

#define NODES 4
#define SERVICES 2
#define INSTANCES 5 /* the last is the made-up one of each node */
#define JOBS 400
#define WATCHES 3

typedef struct here {
    int node; /* -1: not there */
    uint32_t load;
} here_t;

typedef struct job {
    weft_op_t op;
    weft_status_t expected;
    uint64_t n;
    unsigned told, done;
    bool find;
    struct guest *close; /* what it closes */
} job_t;

typedef struct eye {
    weft_watch_t *watch;
    int service; /* -1: all */
    here_t known[SERVICES][NODES + INSTANCES];
} eye_t;

typedef struct guest {
    weft_registry_t *registry; /* NULL: closed */
    bool closing;
    char name[64];
    eye_t eyes[WATCHES];
} guest_t;

static sim_net_t net;
static guest_t guests[NODES];
static here_t there[SERVICES][NODES + INSTANCES];
static job_t *jobs[JOBS];
static int n_jobs;
static bool acting;

static const char *service_name(int s)
{
    return s ? "mul" : "add";
}

static int service_of(const char *name)
{
    return !strcmp(name, "mul");
}

/* Names 0 to INSTANCES - 2 are anyone's; the rest are those of the nodes. */
static int instance_of(const char *name)
{
    if (*name == 'i' && name[1] >= '0' && name[1] < '0' + INSTANCES && !name[2])
        return name[1] - '0';
    for (int i = 0; i < NODES; i++)
        if (!strcmp(name, guests[i].name))
            return INSTANCES + i;
    sim_bad(&net, "\"%s\" is nobody's name", name);
    return 0;
}

static void on_job(weft_op_t *op, void *user)
{
    job_t *j = (job_t *)user;
    if (j->done++)
        sim_bad(&net, "an operation completes twice");
    if (op->status != j->expected)
        sim_bad(&net, "an operation ends with %s, not %s", weft_status_name(op->status), weft_status_name(j->expected));
    if (j->find && !op->status && (op->len != j->n || j->told != j->n))
        sim_bad(&net, "a find told of %u, said %u, and there were %u", j->told, (unsigned)op->len, (unsigned)j->n);
    if (j->close) {
        j->close->registry = NULL;
        j->close->closing = false;
    }
}

static job_t *job(weft_status_t expected)
{
    job_t *j = calloc(1, sizeof *j);
    if (!j)
        abort();
    j->op = (weft_op_t)WEFT_OP_INIT;
    j->op.fn = on_job;
    j->op.user = j;
    j->expected = expected;
    jobs[n_jobs++] = j;
    return j;
}

static void must_post(weft_status_t st)
{
    if (st)
        sim_bad(&net, "a post fails: %s (%s)", weft_status_name(st), weft_last_error());
}

static void on_find(const weft_entry_t *e, void *user)
{
    (void)e;
    ((job_t *)user)->told++;
}

static void on_change(weft_change_t change, const weft_entry_t *e, void *user)
{
    eye_t *eye = (eye_t *)user;
    here_t *h = &eye->known[service_of(e->service)][instance_of(e->instance)];
    if (!eye->watch)
        sim_bad(&net, "a watch that has ended is told");
    if (eye->service >= 0 && eye->service != service_of(e->service))
        sim_bad(&net, "a watch is told of another service");
    if ((change == WEFT_CAME) != (h->node < 0))
        sim_bad(&net, "a watch is told what cannot be");
    h->node = change == WEFT_WENT ? -1 : 0;
    h->load = e->load;
}

static void nothing(here_t (*all)[NODES + INSTANCES])
{
    for (int s = 0; s < SERVICES; s++)
        for (int i = 0; i < NODES + INSTANCES; i++)
            all[s][i].node = -1;
}

static void open_at(int node)
{
    guest_t *g = &guests[node];
    must_post(weft_registry_open(net.nodes[node].rt, "memory://turns", NULL, &g->registry));
    snprintf(g->name, sizeof g->name, "%s", weft_registry_name(g->registry));
}

static void enter_or_leave(int node)
{
    guest_t *g = &guests[node];
    int s = (int)sim_below(&net, SERVICES), i = (int)sim_below(&net, INSTANCES);
    char name[4] = {'i', (char)('0' + i), 0, 0};
    bool own = i == INSTANCES - 1;
    here_t *h = &there[s][own ? INSTANCES + node : i];
    if (sim_odds(&net, 60)) {
        weft_entry_t e = WEFT_ENTRY_INIT;
        e.service = service_name(s);
        e.instance = own ? NULL : name;
        e.address = "sim://h0";
        e.load = (uint32_t)sim_below(&net, 1000);
        bool ours = h->node < 0 || h->node == node;
        must_post(weft_registry_enter(g->registry, &e, &job(ours ? WEFT_OK : WEFT_ERR_STATE)->op));
        if (ours)
            *h = (here_t){node, e.load};
    } else {
        bool ours = h->node == node;
        must_post(
            weft_registry_leave(g->registry, service_name(s), own ? NULL : name, &job(ours ? WEFT_OK : WEFT_ERR_NOTFOUND)->op));
        if (ours)
            h->node = -1;
    }
}

static void find(guest_t *g)
{
    int service = (int)sim_below(&net, SERVICES + 1) - 1;
    job_t *j = job(WEFT_OK);
    j->find = true;
    for (int s = 0; s < SERVICES; s++)
        for (int i = 0; i < NODES + INSTANCES; i++)
            j->n += there[s][i].node >= 0 && (service < 0 || service == s);
    must_post(weft_registry_find(g->registry, service < 0 ? NULL : service_name(service), on_find, j, &j->op));
}

static void watch(guest_t *g)
{
    eye_t *eye = &g->eyes[sim_below(&net, WATCHES)];
    if (eye->watch) {
        weft_watch_t *w = eye->watch;
        eye->watch = NULL;
        must_post(weft_watch_end(w, NULL));
        return;
    }
    nothing(eye->known);
    eye->service = (int)sim_below(&net, SERVICES + 1) - 1;
    must_post(
        weft_registry_watch(g->registry, eye->service < 0 ? NULL : service_name(eye->service), on_change, eye, &eye->watch));
}

static void gone(int node)
{
    for (int s = 0; s < SERVICES; s++)
        for (int i = 0; i < NODES + INSTANCES; i++)
            if (there[s][i].node == node)
                there[s][i].node = -1;
    for (int i = 0; i < WATCHES; i++)
        guests[node].eyes[i].watch = NULL;
}

static void each_round(void *user)
{
    int node = (int)sim_below(&net, (uint64_t)net.n);
    guest_t *g = &guests[node];
    (void)user;
    if (!acting || n_jobs >= JOBS || !sim_node_runs(&net.nodes[node]) || g->closing)
        return;
    if (!g->registry) {
        open_at(node);
        return;
    }
    switch (sim_below(&net, 12)) {
    case 0:
    case 1:
        watch(g);
        break;
    case 2:
    case 3:
        find(g);
        break;
    case 4:
        if (sim_odds(&net, 20)) {
            job_t *j = job(WEFT_OK);
            j->close = g;
            g->closing = true;
            gone(node);
            must_post(weft_registry_close(g->registry, &j->op));
        }
        break;
    default:
        enter_or_leave(node);
    }
}

static bool all_done(void *user)
{
    (void)user;
    for (int i = 0; i < n_jobs; i++)
        if (!jobs[i]->done)
            return false;
    return true;
}

static void look(const eye_t *eye)
{
    for (int s = 0; s < SERVICES; s++)
        for (int i = 0; i < NODES + INSTANCES; i++) {
            const here_t *h = &there[s][i], *k = &eye->known[s][i];
            bool is = h->node >= 0 && (eye->service < 0 || eye->service == s);
            if (is != (k->node >= 0) || (is && h->load != k->load))
                sim_bad(&net, "a watch does not know what there is");
        }
}

static uint64_t scenario(uint64_t seed)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.progress = WEFT_PROGRESS_CALLER;
    memset(guests, 0, sizeof guests);
    nothing(there);
    n_jobs = 0;
    sim_net_init(&net, seed, 2 + (int)(seed % (NODES - 1)));
    for (int i = 0; i < net.n; i++) {
        sim_net_open(&net, i, &opts);
        open_at(i);
    }
    net.each_round = each_round;
    acting = true;
    for (int i = 0; i < 40; i++) {
        sim_net_run(&net, sim_now(&net) + WEFT_MILLISECOND);
        int node = (int)sim_below(&net, (uint64_t)net.n);
        if (sim_odds(&net, 4) && i > 10 && !guests[node].closing) { /* a runtime is closed as it stands */
            sim_net_close(&net, node);
            gone(node);
            guests[node].registry = NULL;
        }
    }
    acting = false;
    if (!sim_net_run_until(&net, sim_now(&net) + WEFT_SECOND, all_done, NULL))
        sim_bad(&net, "an operation does not end");
    sim_net_run(&net, sim_now(&net) + 10 * WEFT_MILLISECOND);
    for (int i = 0; i < net.n; i++)
        for (int k = 0; k < WATCHES; k++)
            if (guests[i].eyes[k].watch)
                look(&guests[i].eyes[k]);
    for (int i = 0; i < net.n; i++)
        sim_net_close(&net, i);
    for (int i = 0; i < n_jobs; i++)
        free(jobs[i]);
    if (sim_tell)
        printf("%d jobs\n", n_jobs);
    return sim_net_free(&net);
}

int main(int argc, char **argv)
{
    return sim_seeds_main(argc, argv, 5000, scenario);
}
