/* examples/store/store.c - memory of a server: allocated, found by name, made longer, given back.
 *
 *     store                            a server and its clients, in three processes of this machine
 *     store tcp://192.0.2.7:13337      the clients, of a server that runs: weft mem serve
 *
 * One client writes a journal into a block that it shares, and keeps notes in one that it does not. It then goes away without a
 * word, as a program that crashes does. Another one finds the journal, adds to it, and finds that the notes went with the
 * lease. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/store.h>
#include <weft/elements.h>
#include <weft/weft.h>

#define LEASE (500 * WEFT_MILLISECOND)

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 10 * WEFT_SECOND))

static void check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* --- the server ------------------------------------------------------------------------------------------------------ */

static void came(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener;
    (void)ep; /* the store serves it */
    (void)user;
}

static void went(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    weft_ep_close(ep, NULL);
}

/* Serve until the pipe `until` is closed. */
static void serve(int tell, int until)
{
    weft_runtime_opts_t rt_opts = WEFT_RUNTIME_OPTS_INIT;
    weft_store_server_opts_t opts = WEFT_STORE_SERVER_OPTS_INIT;
    weft_store_stats_t stats = WEFT_STORE_STATS_INIT;
    weft_listen_opts_t listen_opts = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = went};
    weft_runtime_t *rt;
    weft_store_server_t *server;
    weft_listener_t *listener;
    weft_op_t op = WEFT_OP_INIT;
    char end;
    rt_opts.progress = WEFT_PROGRESS_THREAD;
    MUST(weft_runtime_open(&rt_opts, &rt));
    opts.bytes = 64 << 20;       /* to give out in all */
    opts.client_bytes = 8 << 20; /* to one client */
    opts.lease_ns = LEASE;       /* a client that is lost for so long is given up */
    MUST(weft_store_serve(rt, &opts, &server));
    listen_opts.accept = came;
    listen_opts.hooks = &hooks;
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", &listen_opts, &listener));
    if (dprintf(tell, "%s", weft_listener_uri(listener)) > 0)
        close(tell);

    if (read(until, &end, 1) < 0)
        perror("read");
    MUST(weft_store_server_get_stats(server, &stats));
    printf("server: %" PRIu64 " blocks given out, %" PRIu64 " came back, %" PRIu64 " of them with a lease that ran out\n",
           stats.allocs, stats.frees, stats.expired_blocks);
    MUST(weft_listener_close(listener, NULL));
    MUST(weft_store_server_close(server, &op));
    WAIT(op);
    MUST(weft_runtime_close(rt));
}

/* --- its clients ----------------------------------------------------------------------------------------------------- */

struct client {
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_store_t *store;
};

/* A store is a lease at a server. It stands for as long as we are connected, whatever the program does. */
static void client_open(struct client *c, const char *uri)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    opts.progress = WEFT_PROGRESS_THREAD;
    MUST(weft_runtime_open(&opts, &c->rt));
    MUST(weft_ep_open(c->rt, uri, NULL, NULL, &c->ep));
    MUST(weft_store_open(c->ep, NULL, &op));
    WAIT(op);
    c->store = weft_op_store(&op);
}

static void client_close(struct client *c)
{
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_store_close(c->store, &op));
    WAIT(op);
    MUST(weft_ep_close(c->ep, &op));
    WAIT(op);
    MUST(weft_runtime_close(c->rt));
}

static weft_block_t *allocate(struct client *c, const char *name, uint64_t len, bool shared)
{
    weft_block_opts_t opts = WEFT_BLOCK_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    opts.len = len;
    opts.name = name;
    opts.shared = shared; /* it belongs to nobody, and stays until someone removes it */
    MUST(weft_block_alloc(c->store, &opts, &op));
    WAIT(op);
    return weft_op_block(&op);
}

/* A block is remote memory like any other. */
static void put(weft_block_t *block, uint64_t offset, const char *text)
{
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_rma_write(weft_block_remote(block), offset, text, strlen(text), &op));
    WAIT(op);
}

/* Writes, and then is gone silently. */
static _Noreturn void first_client(const char *uri)
{
    struct client c;
    weft_op_t op = WEFT_OP_INIT;
    client_open(&c, uri);
    weft_block_t *journal = allocate(&c, "example/journal", 16, true);
    weft_block_t *notes = allocate(&c, "example/notes", 4096, false);
    put(journal, 0, "it was a dark an");
    put(notes, 0, "not for others");

    weft_block_opts_t too_much = WEFT_BLOCK_OPTS_INIT;
    too_much.len = UINT64_C(1) << 60;
    MUST(weft_block_alloc(c.store, &too_much, &op));
    weft_status_t status = weft_op_wait(&op, 10 * WEFT_SECOND);
    printf("first: more than there is: %s\n", weft_status_name(status));
    check(status == WEFT_ERR_LIMIT, "that should have been too much");
    printf("first: gone\n");
    _exit(0);
}

static void second_client(const char *uri)
{
    struct client c;
    weft_op_t op = WEFT_OP_INIT;
    weft_store_info_t info = WEFT_STORE_INFO_INIT;
    char text[64] = "";
    client_open(&c, uri);
    MUST(weft_store_get_info(c.store, &info));

    MUST(weft_block_open(c.store, "example/journal", &op));
    WAIT(op);
    weft_block_t *journal = weft_op_block(&op);
    MUST(weft_block_extend(journal, 32, &op)); /* the new bytes are zero */
    WAIT(op);
    put(journal, 16, "d stormy night");
    MUST(weft_rma_read(weft_block_remote(journal), 0, text, 32, &op));
    WAIT(op);
    printf("second: the journal says: %s\n", text);
    check(!strcmp(text, "it was a dark and stormy night"), "that is not what was written");

    weft_status_t status = WEFT_OK;
    for (uint64_t tried = 0; status == WEFT_OK && tried < 20 * info.lease_ns; tried += info.lease_ns / 4) {
        weft_op_t pause = WEFT_OP_INIT;
        MUST(weft_block_open(c.store, "example/notes", &op));
        status = weft_op_wait(&op, 10 * WEFT_SECOND);
        if (status == WEFT_OK) {
            weft_block_drop(weft_op_block(&op)); /* the first one's lease still runs */
            MUST(weft_timer_start(c.rt, info.lease_ns / 4, &pause));
            MUST(weft_op_wait(&pause, WEFT_FOREVER));
        }
    }
    printf("second: the notes: %s\n", weft_status_name(status));
    check(status == WEFT_ERR_NOTFOUND, "the notes should have gone with their owner's lease");

    MUST(weft_block_free(journal, &op)); /* everyone's: so that nothing is left */
    WAIT(op);
    client_close(&c);
}

/* Run a client in a process of its own; true if it ended well. */
static bool run(const char *uri)
{
    int status;
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        return false;
    }
    if (child == 0)
        first_client(uri);
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv)
{
    int from_server[2], to_server[2], status;
    char uri[512];
    setvbuf(stdout, NULL, _IOLBF, 0); /* several processes write to it: a line at a time */
    if (argc > 2) {
        fprintf(stderr, "usage: %s [URI]\n", argv[0]);
        return 2;
    }
    if (argc == 2) {
        if (!run(argv[1]))
            return 1;
        second_client(argv[1]);
        return 0;
    }
    if (pipe(from_server) || pipe(to_server)) {
        perror("pipe");
        return 1;
    }
    pid_t server = fork(); /* before weft_runtime_open(): a runtime belongs to the process that opened it */
    if (server < 0) {
        perror("fork");
        return 1;
    }
    if (server == 0) {
        close(from_server[0]);
        close(to_server[1]);
        serve(from_server[1], to_server[0]);
        return 0;
    }
    close(from_server[1]);
    close(to_server[0]);
    ssize_t n = read(from_server[0], uri, sizeof uri - 1);
    if (n <= 0)
        return 1; /* the server has said why */
    uri[n] = '\0';
    bool well = run(uri);
    if (well)
        second_client(uri);
    close(to_server[1]);
    if (waitpid(server, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) || !well)
        return 1;
    return 0;
}
