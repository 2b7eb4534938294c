/* examples/rpc_discovery/rpc_discovery.c - a function of another process: published, discovered, called; and its server
 * replaced meanwhile.
 *
 *     rpc_discovery                    two servers, one after the other, and a client, in processes of this machine
 *     rpc_discovery serve INSTANCE     a server, until its input ends
 *     rpc_discovery call               a client, of whoever serves
 *
 * Servers and clients meet in the registry that is configured (WEFT_REGISTRY): a directory of this machine if nothing is. No
 * program knows the address of another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/function.h>
#include <weft/weft.h>

/* What both sides know. It makes calc_add() for the client, calc_add_serve() for the server, and the type of the function. */
WEFT_FUNCTION_IDEMPOTENT(calc_add, "add", i32, (i32, a), (i32, b))

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 10 * WEFT_SECOND))

/* --- the server ------------------------------------------------------------------------------------------------------ */

static calc_add_fn add;
static weft_code_t add(weft_request_t *request, void *user, int32_t a, int32_t b, int32_t *result_out)
{
    (void)request;
    (void)user;
    *result_out = a + b;
    return WEFT_CODE_OK;
}

static void came(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener;
    (void)ep; /* the service answers over every endpoint */
    (void)user;
}

static void went(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    weft_ep_close(ep, NULL);
}

/* Serve until the pipe `until` is closed, and leave in good order. */
static void serve(const char *instance, int until)
{
    weft_runtime_opts_t rt_opts = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t listen_opts = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = went};
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_service_t *service;
    weft_op_t op = WEFT_OP_INIT;
    char end;
    rt_opts.progress = WEFT_PROGRESS_THREAD;
    MUST(weft_runtime_open(&rt_opts, &rt));

    weft_service_opts_t opts = WEFT_SERVICE_OPTS_INIT;
    opts.instance = instance;
    MUST(weft_service_open(rt, "calc", &opts, &service));
    weft_function_opts_t add_opts = WEFT_FUNCTION_OPTS_INIT;
    add_opts.number = 100; /* by which it can be called, too */
    MUST(calc_add_serve(service, add, NULL, &add_opts));

    listen_opts.accept = came;
    listen_opts.hooks = &hooks;
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", &listen_opts, &listener));
    MUST(weft_service_publish(service, NULL, NULL)); /* the address is the listener's, the registry the configured one */
    printf("%s: serves, at %s\n", instance, weft_listener_uri(listener));
    fflush(stdout);

    if (read(until, &end, 1) < 0)
        perror("read");
    MUST(weft_service_drain(service, &op)); /* what is under way is answered, new calls go elsewhere */
    WAIT(op);
    MUST(weft_service_close(service, &op));
    WAIT(op);
    MUST(weft_runtime_close(rt));
    printf("%s: has left\n", instance);
}

/* --- the client ------------------------------------------------------------------------------------------------------ */

/* An entry of the registry: who, where, and what it offers. */
static void show(const weft_entry_t *entry, void *user)
{
    (void)user;
    printf("client: found %s@%s, load %u, which offers: %.*s", entry->service, entry->instance, entry->load, (int)entry->data_len,
           (const char *)entry->data);
}

/* Wait until somebody offers the service; then show everyone who does. */
static void discover(weft_runtime_t *rt)
{
    weft_registry_t *registry;
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_registry_open(rt, NULL, NULL, &registry));
    do {
        usleep(1000);
        MUST(weft_registry_find(registry, "calc", show, NULL, &op));
        WAIT(op);
    } while (op.len == 0);
    MUST(weft_registry_close(registry, &op));
    WAIT(op);
}

static weft_runtime_t *client_runtime(void)
{
    weft_runtime_t *rt;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.progress = WEFT_PROGRESS_THREAD;
    MUST(weft_runtime_open(&opts, &rt));
    return rt;
}

static void call_once(weft_client_t *client)
{
    int32_t sum;
    MUST(calc_add(client, 25, 17, &sum));
    printf("client: add(25, 17) is %d\n", sum);
    if (sum != 42)
        exit(1);
}

static weft_client_t *connect_to_calc(weft_runtime_t *rt)
{
    weft_client_t *client;
    weft_client_opts_t opts = WEFT_CLIENT_OPTS_INIT;
    opts.timeout_ns = 10 * WEFT_SECOND; /* of each call; the server hears of it */
    MUST(weft_client_open(rt, "weft://calc", &opts, &client));
    return client;
}

static void leave(weft_runtime_t *rt, weft_client_t *client)
{
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_client_close(client, &op));
    WAIT(op);
    MUST(weft_runtime_close(rt));
}

/* --- all of it --------------------------------------------------------------------------------------------------------- */

/* Processes are forked before this one has threads; each waits for its turn. */
struct server {
    pid_t pid;
    int to; /* a byte: begin; the end: leave */
};

static void start(struct server *s, const char *instance, const struct server *other)
{
    int fds[2];
    char go;
    if (pipe(fds) || (s->pid = fork()) < 0) {
        perror("fork");
        exit(1);
    }
    if (s->pid == 0) {
        close(fds[1]);
        if (other)
            close(other->to);
        if (read(fds[0], &go, 1) == 1)
            serve(instance, fds[0]);
        exit(0);
    }
    close(fds[0]);
    s->to = fds[1];
}

static void begin(struct server *s)
{
    if (write(s->to, "g", 1) != 1)
        perror("write");
}

static void ended(struct server *s)
{
    int status;
    if (waitpid(s->pid, &status, 0) != s->pid || status) {
        fprintf(stderr, "a server did not end well\n");
        exit(1);
    }
}

static void everything(void)
{
    char place[] = "/tmp/weft-example-XXXXXX", uri[64];
    int32_t sum = 0;
    if (!mkdtemp(place)) {
        perror(place);
        exit(1);
    }
    snprintf(uri, sizeof uri, "dir://%s", place); /* a registry of its own, so that it meets nobody else's servers */
    setenv("WEFT_REGISTRY", uri, 1);
    setvbuf(stdout, NULL, _IOLBF, 0);

    struct server b, c;
    start(&b, "server_B", NULL);
    start(&c, "server_C", &b);
    begin(&b);
    weft_runtime_t *rt = client_runtime();
    discover(rt);
    weft_client_t *client = connect_to_calc(rt);
    call_once(client);

    begin(&c); /* another one comes, */
    weft_client_stats_t stats = WEFT_CLIENT_STATS_INIT;
    while (stats.connected < 2) {
        usleep(1000);
        MUST(weft_client_get_stats(client, &stats));
    }
    close(b.to); /* the first one leaves, */
    for (int i = 0; i < 3000; i++) {
        MUST(calc_add(client, i, 1, &sum));
        if (sum != i + 1)
            exit(1);
    }
    printf("client: 3000 calls meanwhile, none of them lost\n");
    ended(&b);
    call_once(client); /* and nothing else changes */
    leave(rt, client);
    close(c.to);
    ended(&c);
    if (rmdir(place))
        perror(place);
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        everything();
    } else if (argc == 3 && !strcmp(argv[1], "serve")) {
        serve(argv[2], 0);
    } else if (argc == 2 && !strcmp(argv[1], "call")) {
        weft_runtime_t *rt = client_runtime();
        discover(rt);
        weft_client_t *client = connect_to_calc(rt);
        call_once(client);
        leave(rt, client);
    } else {
        fprintf(stderr, "usage: %s [serve INSTANCE | call]\n", argv[0]);
        return 2;
    }
    return 0;
}
