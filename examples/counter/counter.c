/* examples/counter/counter.c - a shared counter: several processes take numbers from one word of another's memory.
 *
 *     counter [clients [numbers each]]
 *
 * The owner exposes one word and gives out a key for it. Everyone who has the key connects and adds: fetch-and-add is one
 * operation, so no two get the same number, however they reach the word. Here every other client insists on the checked path,
 * the rest map the word, and the owner itself adds with its processor. In the end the word must say how many numbers were
 * taken. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

enum { CLIENTS = 4, NUMBERS = 10000, AT_ONCE = 64, OURS = 1000 };

/* What a client is told through a pipe: the key says all the rest. */
struct invitation {
    size_t len;
    unsigned char key[WEFT_REGION_KEY_MAX];
};

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 20 * WEFT_SECOND))

static void check(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* --- a client -------------------------------------------------------------------------------------------------------- */

/* Attach the key: the owner's address is in it. */
static weft_remote_t *attach(weft_runtime_t *rt, const struct invitation *in, weft_rma_path_t path, weft_ep_t **ep_out)
{
    weft_region_key_info_t about = WEFT_REGION_KEY_INFO_INIT;
    weft_remote_opts_t opts = WEFT_REMOTE_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_region_key_read(in->key, in->len, &about));
    MUST(weft_ep_open(rt, about.owner, NULL, NULL, ep_out));
    opts.path = path; /* WEFT_RMA_ANY: the fastest there is */
    MUST(weft_remote_attach(*ep_out, in->key, in->len, &opts, &op));
    WAIT(op);
    return weft_op_remote(&op);
}

/* Take n numbers, up to AT_ONCE of them on their way at a time. */
static void take(weft_remote_t *counter, int n)
{
    static weft_op_t ops[AT_ONCE];
    uint64_t last = 0;
    for (int asked = 0, got = 0; got < n; got++) {
        for (; asked < n && asked < got + AT_ONCE; asked++)
            MUST(weft_rma_atomic(counter, WEFT_RMA_ADD, 0, 8, 1, 0, &ops[asked % AT_ONCE]));
        weft_op_t *op = &ops[got % AT_ONCE];
        WAIT(*op);
        check(!got || op->value > last, "a number is not after the one before it");
        last = op->value; /* what the word said before we added */
    }
}

static void client(int number, int numbers, int from_parent)
{
    struct invitation in;
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    weft_op_t op = WEFT_OP_INIT;
    if (read(from_parent, &in, sizeof in) != sizeof in)
        exit(1); /* the parent has said why */
    MUST(weft_runtime_open(NULL, &rt));
    weft_remote_t *counter = attach(rt, &in, number % 2 ? WEFT_RMA_CHECKED : WEFT_RMA_ANY, &ep);
    take(counter, numbers);
    MUST(weft_remote_get_info(counter, &info));
    printf("client %d: %d numbers over the %s path\n", number, numbers, weft_rma_path_name(info.path));
    weft_remote_drop(counter);
    MUST(weft_ep_close(ep, &op));
    WAIT(op);
    MUST(weft_runtime_close(rt));
}

/* --- the owner ------------------------------------------------------------------------------------------------------- */

static void came(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener;
    (void)ep; /* nothing to do: its accesses are served by the library */
    (void)user;
}

static void went(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why;
    (void)user;
    weft_ep_close(ep, NULL);
}

static weft_listener_t *listen_for_clients(weft_runtime_t *rt)
{
    weft_listen_opts_t opts = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {.closed = went};
    weft_listener_t *listener;
    opts.accept = came;
    opts.hooks = &hooks;
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", &opts, &listener));
    return listener;
}

int main(int argc, char **argv)
{
    int clients = argc > 1 ? atoi(argv[1]) : CLIENTS, numbers = argc > 2 ? atoi(argv[2]) : NUMBERS;
    int to_client[64], status, failed = 0;
    if (clients < 1 || clients > 64 || numbers < 1) {
        fprintf(stderr, "usage: %s [clients (1 to 64) [numbers each]]\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* several processes write to it: a line at a time */
    for (int i = 0; i < clients; i++) {
        int fds[2];
        if (pipe(fds)) {
            perror("pipe");
            return 1;
        }
        pid_t child = fork(); /* before weft_runtime_open(): a runtime belongs to the process that opened it */
        if (child < 0) {
            perror("fork");
            return 1;
        }
        if (child == 0) {
            close(fds[1]);
            for (int k = 0; k < i; k++)
                close(to_client[k]);
            client(i, numbers, fds[0]);
            return 0;
        }
        close(fds[0]);
        to_client[i] = fds[1];
    }

    /* A thread of the runtime's own serves the clients while this one waits for them. */
    weft_runtime_opts_t rt_opts = WEFT_RUNTIME_OPTS_INIT;
    weft_region_opts_t opts = WEFT_REGION_OPTS_INIT;
    weft_runtime_t *rt;
    weft_region_t *region;
    rt_opts.progress = WEFT_PROGRESS_THREAD;
    MUST(weft_runtime_open(&rt_opts, &rt));
    weft_listener_t *listener = listen_for_clients(rt);
    opts.len = sizeof(uint64_t);
    MUST(weft_region_new(rt, &opts, &region)); /* memory that the library makes: zero, and peers on this host may map it */

    struct invitation in = {.len = sizeof in.key};
    weft_region_key_opts_t rights = WEFT_REGION_KEY_OPTS_INIT;
    rights.rights = WEFT_RMA_ATOMIC; /* adding, and nothing else */
    MUST(weft_region_key(region, &rights, in.key, &in.len));
    for (int i = 0; i < clients; i++) {
        check(write(to_client[i], &in, sizeof in) == sizeof in, "a client is gone already");
        close(to_client[i]);
    }

    _Atomic uint64_t *word = weft_region_base(region);
    for (int i = 0; i < OURS; i++)
        atomic_fetch_add(word, 1);
    for (int i = 0; i < clients; i++)
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status))
            failed = 1;

    uint64_t counted = atomic_load(word), expected = (uint64_t)clients * (uint64_t)numbers + OURS;
    printf("owner: %" PRIu64 " numbers were taken, %s\n", counted, counted == expected ? "none twice" : "WHICH IS WRONG");
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_region_free(region, &op));
    WAIT(op);
    MUST(weft_listener_close(listener, NULL));
    MUST(weft_runtime_close(rt));
    return failed || counted != expected;
}
