/* examples/mirror/mirror.c - a block on two servers at once, and what happens when they die, one after the other.
 *
 *     mirror
 *
 * Three memory servers run in processes of their own. A mirror is made on the first two. The first is killed: nothing is lost.
 * The third takes its place, while the program goes on; then the second is killed as well, and everything is still there. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <weft/elements.h>
#include <weft/weft.h>

#define SERVERS 3
#define LEN 1000000

static void must(weft_status_t status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s. %s\n", what, weft_status_text(status), weft_last_error());
        exit(1);
    }
}
#define MUST(call) must(call, #call)
#define WAIT(op) MUST(weft_op_wait(&(op), 30 * WEFT_SECOND))

/* --- the servers ----------------------------------------------------------------------------------------------------- */

static void came(weft_listener_t *listener, weft_ep_t *ep, void *user)
{
    (void)listener;
    (void)ep; /* the store serves it */
    (void)user;
}

/* Serve until it is killed. */
static _Noreturn void serve(int tell)
{
    weft_runtime_opts_t rt_opts = WEFT_RUNTIME_OPTS_INIT;
    weft_store_server_opts_t opts = WEFT_STORE_SERVER_OPTS_INIT;
    weft_listen_opts_t listen_opts = WEFT_LISTEN_OPTS_INIT;
    weft_runtime_t *rt;
    weft_store_server_t *server;
    weft_listener_t *listener;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* not longer than the example */
    rt_opts.progress = WEFT_PROGRESS_THREAD;
    MUST(weft_runtime_open(&rt_opts, &rt));
    opts.bytes = 64 << 20;
    MUST(weft_store_serve(rt, &opts, &server));
    listen_opts.accept = came;
    MUST(weft_listen(rt, "tcp://127.0.0.1:0", &listen_opts, &listener));
    if (dprintf(tell, "%s", weft_listener_uri(listener)) > 0)
        close(tell);
    for (;;)
        pause();
}

struct server {
    pid_t pid;
    char uri[256];
};

static void start(struct server *s)
{
    int from[2];
    if (pipe(from) || (s->pid = fork()) < 0) { /* before weft_runtime_open(): a runtime belongs to the process that opened it */
        perror("starting a server");
        exit(1);
    }
    if (s->pid == 0) {
        close(from[0]);
        serve(from[1]);
    }
    close(from[1]);
    ssize_t n = read(from[0], s->uri, sizeof s->uri - 1);
    close(from[0]);
    if (n <= 0)
        exit(1); /* it has said why */
    s->uri[n] = '\0';
}

static void stop(const struct server *s, const char *which)
{
    kill(s->pid, SIGKILL);
    waitpid(s->pid, NULL, 0);
    printf("the %s server is dead\n", which);
}

/* --- the mirror ------------------------------------------------------------------------------------------------------ */

static weft_store_t *store_of(weft_runtime_t *rt, const struct server *s)
{
    weft_ep_t *ep;
    weft_op_t op = WEFT_OP_INIT;
    MUST(weft_ep_open(rt, s->uri, NULL, NULL, &ep));
    MUST(weft_store_open(ep, NULL, &op));
    WAIT(op);
    return weft_op_store(&op);
}

static weft_mirror_t *make(weft_runtime_t *rt, weft_store_t *const *stores)
{
    weft_mirror_opts_t opts = WEFT_MIRROR_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    opts.name = "example/mirror";
    opts.stores = stores;
    opts.n_stores = 2;
    opts.len = LEN;    /* it is made */
    opts.write = true; /* and we are its writer */
    opts.checksums = true;
    opts.lease_ns = WEFT_SECOND; /* so long do writes wait when a server is lost */
    MUST(weft_mirror_open(rt, &opts, &op));
    WAIT(op);
    return weft_op_mirror(&op);
}

static void show(const weft_mirror_t *mirror)
{
    static const char *const states[] = {"?", "up", "lost", "fenced", "refilling"};
    weft_mirror_info_t info = WEFT_MIRROR_INFO_INIT;
    MUST(weft_mirror_get_info(mirror, &info));
    printf("  members:");
    for (size_t i = 0; i < info.members; i++)
        printf(" %s", states[info.member[i]]);
    printf("; %" PRIu64 " reads went to another one\n", info.failovers);
}

/* Write all of it, read it back. */
static void use(weft_mirror_t *mirror, unsigned char value)
{
    static unsigned char bytes[LEN], back[LEN];
    weft_op_t op = WEFT_OP_INIT;
    memset(bytes, value, sizeof bytes);
    MUST(weft_mirror_write(mirror, 0, bytes, sizeof bytes, &op)); /* complete when every server has it that is not fenced */
    WAIT(op);
    op.timeout_ns = 10 * WEFT_SECOND; /* within which it goes to another server if it must */
    MUST(weft_mirror_read(mirror, 0, back, sizeof back, &op));
    WAIT(op);
    op.timeout_ns = 0;
    if (memcmp(bytes, back, sizeof bytes) != 0) {
        fprintf(stderr, "that is not what was written\n");
        exit(1);
    }
    printf("wrote %d bytes and read them back\n", LEN);
    show(mirror);
}

int main(void)
{
    struct server servers[SERVERS];
    weft_store_t *stores[SERVERS];
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_op_t op = WEFT_OP_INIT;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < SERVERS; i++)
        start(&servers[i]);
    opts.progress = WEFT_PROGRESS_THREAD; /* which renews the leases */
    opts.heartbeat_ns = WEFT_SECOND;
    MUST(weft_runtime_open(&opts, &rt));
    for (int i = 0; i < SERVERS; i++)
        stores[i] = store_of(rt, &servers[i]);

    weft_mirror_t *mirror = make(rt, stores);
    use(mirror, 1);
    stop(&servers[0], "first");
    use(mirror, 2);
    MUST(weft_mirror_add(mirror, stores[2], &op)); /* it is refilled; reads and writes go on meanwhile */
    WAIT(op);
    printf("the third server has taken its place\n");
    use(mirror, 3);
    stop(&servers[1], "second");
    use(mirror, 4);

    MUST(weft_mirror_close(mirror, &op)); /* readers need no writer from now on */
    WAIT(op);
    for (int i = 0; i < SERVERS; i++)
        weft_store_leave(stores[i]);
    MUST(weft_runtime_close(rt));
    stop(&servers[2], "third");
    return 0;
}
