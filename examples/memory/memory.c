/* examples/memory/memory.c - kinds of memory, one of our own, and buffers that are lent to a peer instead of being copied.
 *
 * The parent lists the kinds this machine has, then sends 64 MiB from a pool twice: the child pulls them once and looks at them
 * in place once. After that the child receives into a kind of its own that has a budget, until the budget says no. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/weft.h>

enum { PULLED = 1, VIEWED = 2, BUDGETED = 3 };
enum { LARGE = 64 << 20, BLOCK = 600000, BUDGET = 1000000 };

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 10 * WEFT_SECOND))

static void check(bool so, const char *what)
{
    if (!so) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

/* --- kinds ------------------------------------------------------------------------------------------------------------ */

static void show_kind(const weft_mem_kind_t *kind, void *user)
{
    (void)user;
    printf("    %-14s %s\n", kind->name, kind->flags & WEFT_MEM_CPU ? "the processor reads and writes it" : "moved by copies");
}

static void list_kinds(void)
{
    printf("sender: kinds of memory here:\n");
    weft_mem_kind_each(show_kind, NULL);
}

/* --- a kind of our own ------------------------------------------------------------------------------------------------ */

/* Memory of another kind, but no more than `left` bytes of it at a time. */
struct budget {
    weft_mem_kind_t kind;
    const weft_mem_kind_t *below;
    _Atomic size_t left; /* any thread allocates */
};

static weft_status_t budget_alloc(const weft_mem_kind_t *kind, size_t n, void **ptr_out)
{
    struct budget *b = kind->user;
    size_t left = atomic_load(&b->left);
    do {
        if (n > left)
            return WEFT_ERR_NOMEM;
    } while (!atomic_compare_exchange_weak(&b->left, &left, left - n));
    weft_status_t status = weft_mem_alloc(b->below, n, ptr_out);
    if (status)
        atomic_fetch_add(&b->left, n);
    return status;
}

static void budget_free(const weft_mem_kind_t *kind, void *ptr, size_t n)
{
    struct budget *b = kind->user;
    weft_mem_free(b->below, ptr, n);
    atomic_fetch_add(&b->left, n);
}

static weft_status_t budget_copy(const weft_mem_kind_t *kind, void *dst, const void *src, size_t n)
{
    const struct budget *b = kind->user;
    return b->below->copy(b->below, dst, src, n);
}

static void budget_init(struct budget *b, const weft_mem_kind_t *below, size_t bytes)
{
    *b = (struct budget){.kind = WEFT_MEM_KIND_INIT, .below = below, .left = bytes};
    b->kind.name = "budget";
    b->kind.flags = below->flags;
    b->kind.user = b;
    b->kind.alloc = budget_alloc;
    b->kind.free = budget_free;
    b->kind.copy = below->copy ? budget_copy : NULL; /* NULL: memcpy does it */
}

/* --- the one that receives -------------------------------------------------------------------------------------------- */

static double microseconds(uint64_t from, uint64_t to)
{
    return (double)(to - from) / 1000.0;
}

/* The payload is copied, once: out of the sender's memory, into ours. */
static void pull(weft_runtime_t *rt, weft_ep_t *ep, char *mine)
{
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_am_take(rt, ep, PULLED, &op));
    WAIT(op);
    weft_am_t *am = weft_op_am(&op);
    uint64_t start = weft_now(rt);
    MUST(weft_am_pull(am, mine, LARGE, &op));
    WAIT(op);
    printf("receiver: %d MiB pulled in %.0f us\n", LARGE >> 20, microseconds(start, weft_now(rt)));
    check(mine[0] == 'p' && mine[LARGE - 1] == 'p', "what was pulled is not what was sent");
    weft_am_release(am);
}

/* The payload stays where it is: we see the sender's memory until we release the message. */
static void view(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_am_take(rt, ep, VIEWED, &op));
    WAIT(op);
    weft_am_t *am = weft_op_am(&op);
    uint64_t start = weft_now(rt);
    MUST(weft_am_view(am, &op));
    WAIT(op);
    printf("receiver: %d MiB viewed in %.0f us\n", LARGE >> 20, microseconds(start, weft_now(rt)));
    const char *theirs = op.buf;
    check(theirs[0] == 'v' && theirs[LARGE - 1] == 'v', "what is viewed is not what was sent");
    weft_am_release(am); /* not ours any more: the sender may write to it again */
}

/* Two messages that do not both fit into the budget: the second waits at its sender until the first is freed. */
static void receive_within_budget(weft_runtime_t *rt, weft_ep_t *ep)
{
    struct budget budget;
    weft_am_recv_opts_t opts = WEFT_AM_RECV_OPTS_INIT;
    weft_op_t first = WEFT_OP_INIT, second = WEFT_OP_INIT;
    budget_init(&budget, weft_mem_host(), BUDGET);
    MUST(weft_mem_kind_add(&budget.kind)); /* so that "budget" is found by name; naming it in opts works without */
    opts.ep = ep;
    opts.id = BUDGETED;
    opts.kind = weft_mem_kind_find("budget");
    MUST(weft_am_recv(rt, &opts, &first));
    WAIT(first);
    printf("receiver: %" PRIu64 " bytes received, %zu left of the budget\n", first.len, atomic_load(&budget.left));

    MUST(weft_am_recv(rt, &opts, &second));
    weft_status_t status = weft_op_wait(&second, 10 * WEFT_SECOND);
    printf("receiver: %" PRIu64 " bytes more: %s\n", second.len, weft_status_text(status));
    check(status == WEFT_ERR_NOMEM, "that should have been beyond the budget");
    weft_mem_free(opts.kind, first.buf, first.len);

    MUST(weft_am_recv(rt, &opts, &second)); /* the message is still there */
    WAIT(second);
    printf("receiver: %" PRIu64 " bytes received after the first were freed\n", second.len);
    weft_mem_free(opts.kind, second.buf, second.len);
    MUST(weft_mem_kind_remove(&budget.kind));
}

static void receive(const char *uri)
{
    weft_runtime_t *rt;
    weft_ep_t *ep;
    weft_op_t op = WEFT_OP_INIT;
    char *mine = malloc(LARGE);
    check(mine != NULL, "no memory");
    memset(mine, 0, LARGE); /* the kernel gives pages at the first touch: not while we measure */
    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_ep_open(rt, uri, NULL, NULL, &ep));
    pull(rt, ep, mine);
    view(rt, ep);
    receive_within_budget(rt, ep);
    MUST(weft_ep_close(ep, &op));
    WAIT(op);
    MUST(weft_runtime_close(rt));
    free(mine);
}

/* --- the one that sends ----------------------------------------------------------------------------------------------- */

/* A pool's buffers can be mapped by a peer on this host: copied at the speed of memory, or not copied at all. */
static void send_from_pool(weft_runtime_t *rt, weft_ep_t *ep)
{
    weft_pool_t *pool;
    weft_pool_stats_t stats = WEFT_POOL_STATS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    void *buf;
    MUST(weft_pool_new(rt, NULL, &pool));
    MUST(weft_pool_get(pool, LARGE, &buf));
    memset(buf, 'p', LARGE);
    MUST(weft_am_send(ep, PULLED, NULL, 0, buf, LARGE, &op));
    WAIT(op);
    weft_pool_put(pool, buf);

    MUST(weft_pool_get(pool, LARGE, &buf)); /* the same memory again */
    memset(buf, 'v', LARGE);
    MUST(weft_am_send(ep, VIEWED, NULL, 0, buf, LARGE, &op));
    WAIT(op); /* completes when the peer has released it */
    weft_pool_put(pool, buf);

    weft_pool_get_stats(pool, &stats);
    printf("sender: the pool gave %" PRIu64 " buffers, %" PRIu64 " of them used before, and holds %" PRIu64 " MiB\n", stats.gets,
           stats.reused, stats.arena_bytes >> 20);
    MUST(weft_pool_free(pool));
}

/* A buffer that will be sent from again and again can be made ready once. It is never needed. */
static void send_registered(weft_runtime_t *rt, weft_ep_t *ep)
{
    static char block[BLOCK];
    weft_mem_reg_t *reg;
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_mem_register(rt, block, sizeof block, &reg));
    for (int i = 0; i < 2; i++) {
        MUST(weft_am_send(ep, BUDGETED, NULL, 0, block, sizeof block, &op));
        WAIT(op);
    }
    weft_mem_unregister(reg, true); /* true: also before the memory is freed */
}

static void serve(int to_child)
{
    weft_runtime_t *rt;
    weft_listener_t *listener;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_runtime_open(NULL, &rt));
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", NULL, &listener));
    list_kinds();
    check(dprintf(to_child, "%s", weft_listener_uri(listener)) > 0, "the child is gone");
    close(to_child);
    MUST(weft_listener_accept(listener, &op));
    WAIT(op);
    weft_ep_t *ep = weft_op_ep(&op);
    MUST(weft_ep_get_info(ep, &info));
    printf("sender: the receiver is here, over %s\n", info.transport);
    send_from_pool(rt, ep);
    send_registered(rt, ep);
    MUST(weft_ep_close(ep, &op));
    WAIT(op);
    MUST(weft_listener_close(listener, NULL));
    MUST(weft_runtime_close(rt));
}

int main(void)
{
    int to_child[2], status;
    setvbuf(stdout, NULL, _IOLBF, 0); /* two processes write to it: a line at a time */
    if (pipe(to_child)) {
        perror("pipe");
        return 1;
    }
    pid_t child = fork(); /* before a runtime is opened, and before CUDA is asked for */
    if (child < 0) {
        perror("fork");
        return 1;
    }
    if (child == 0) {
        char uri[128];
        close(to_child[1]);
        ssize_t n = read(to_child[0], uri, sizeof uri - 1);
        if (n <= 0)
            return 1; /* the parent has said why */
        uri[n] = '\0';
        receive(uri);
        return 0;
    }
    close(to_child[0]);
    serve(to_child[1]);
    if (waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status);
}
