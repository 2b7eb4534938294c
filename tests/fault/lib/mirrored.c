/* tests/fault/lib/mirrored.c - see mirrored.h. */
#include "mirrored.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"
#include "ports.h"

static void fail(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static weft_runtime_t *open_runtime(const char *transports, uint64_t heartbeat_ns)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = transports;
    o.heartbeat_ns = heartbeat_ns;
    o.connect_timeout_ns = 5 * WEFT_SECOND;
    o.progress = WEFT_PROGRESS_CALLER;
    must(weft_runtime_open(&o, &rt), "weft_runtime_open");
    return rt;
}

/* --- servers -------------------------------------------------------------------------------------------------------------- */

static void on_accept(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l;
    (void)ep;
    (void)user;
}

static void server(int fd, const char *transports, uint64_t heartbeat_ns, const char *listen)
{
    weft_store_server_opts_t so = WEFT_STORE_SERVER_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    weft_store_server_t *s;
    weft_listener_t *l;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    weft_runtime_t *rt = open_runtime(transports, heartbeat_ns);
    so.bytes = UINT64_C(256) << 20;
    lo.accept = on_accept;
    must(weft_store_serve(rt, &so, &s), "weft_store_serve");
    must(weft_listen(rt, listen, &lo, &l), "weft_listen");
    const char *uri = weft_listener_uri(l);
    if (write(fd, uri, strlen(uri) + 1) < 0)
        _exit(1);
    close(fd);
    for (weft_op_t idle = WEFT_OP_INIT;;) { /* asleep when there is nothing to do: it shares the machine with the test */
        must(weft_timer_start(rt, WEFT_SECOND, &idle), "weft_timer_start");
        (void)!weft_op_wait(&idle, 2 * WEFT_SECOND);
    }
}

void mirrored_start(mirrored_t *t, int n, const char *transports, uint64_t heartbeat_ns, const char *const *listen,
                    void (*enter)(int i))
{
    memset(t, 0, sizeof *t);
    t->n = n;
    t->rng = 12345;
    weft_log_set_level(WEFT_LOG_NONE);
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        int fds[2];
        if (pipe(fds))
            fail("pipe");
        t->pid[i] = fork();
        if (t->pid[i] < 0)
            fail("fork");
        if (t->pid[i] == 0) {
            close(fds[0]);
            if (enter)
                enter(i);
            server(fds[1], transports, heartbeat_ns, listen ? listen[i] : ports_tcp());
        }
        close(fds[1]);
        size_t got = 0;
        for (ssize_t k; got < sizeof t->uri[i] - 1 && (k = read(fds[0], t->uri[i] + got, sizeof t->uri[i] - 1 - got)) > 0;)
            got += (size_t)k;
        close(fds[0]);
        if (!got)
            fail("a server does not start");
    }
    t->writer.rt = open_runtime(transports, heartbeat_ns);
    t->reader.rt = open_runtime(transports, heartbeat_ns);
}

void mirrored_signal(mirrored_t *t, int i, int sig)
{
    if (t->pid[i] && kill(t->pid[i], sig))
        fail("kill");
    if (sig == SIGKILL) {
        waitpid(t->pid[i], NULL, 0);
        t->pid[i] = 0;
    }
}

/* --- driving -------------------------------------------------------------------------------------------------------------- */

static uint64_t below(mirrored_t *t, uint64_t n)
{
    t->rng = t->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (t->rng >> 33) % n;
}

static void drive(mirrored_t *t)
{
    unsigned any = weft_runtime_progress(t->writer.rt) + weft_runtime_progress(t->reader.rt);
    if (!any)
        usleep(20); /* the servers need the processor too */
}

static void on_write(weft_op_t *op, void *user)
{
    flying_t *f = user;
    (void)op;
    f->live = false;
}

static void some_range(mirrored_t *t, uint64_t *offset, size_t *len)
{
    uint64_t cells = t->len / HISTORY_CELL, most = cells < 64 ? cells : 64;
    uint64_t n = below(t, 3) ? 8 : 1 + below(t, most), from = below(t, cells - n + 1);
    if (n == 8)
        from -= from % 8;
    *offset = from * HISTORY_CELL;
    *len = n * HISTORY_CELL;
}

static void begin_write(mirrored_t *t, flying_t *f)
{
    uint64_t offset;
    size_t len;
    some_range(t, &offset, &len);
    f->buf = malloc(len);
    f->write = history_write(t->history, offset, len, f->buf);
    f->op.fn = on_write;
    f->op.user = f;
    f->since = now();
    f->live = true;
    must(weft_mirror_write(t->writer.m, offset, f->buf, len, &f->op), "weft_mirror_write");
}

static void begin_read(mirrored_t *t, flying_t *f, weft_mirror_t *m)
{
    uint64_t offset;
    size_t len;
    some_range(t, &offset, &len);
    f->buf = malloc(len);
    f->read = history_read(t->history, offset, len);
    f->op.fn = on_write;
    f->op.user = f;
    f->since = now();
    f->live = true;
    must(weft_mirror_read(m, offset, f->buf, len, &f->op), "weft_mirror_read");
}

/* What has ended is looked at; false: it has not. */
static bool ended(mirrored_t *t, flying_t *f)
{
    double took = now() - f->since;
    if (f->live)
        return false;
    if (!f->buf)
        return true;
    if (f->read) {
        const char *wrong = history_check(t->history, f->read, f->op.status ? NULL : f->buf);
        f->read = NULL;
        if (wrong)
            fail(wrong);
        t->failed_reads += f->op.status != WEFT_OK;
        t->read += !f->op.status;
        t->longest_read = took > t->longest_read ? took : t->longest_read;
        if (f->op.status)
            fprintf(stderr, "# a read ended with %s\n", weft_status_name(f->op.status));
    } else {
        if (!f->op.status)
            history_written(t->history, f->write);
        else
            fprintf(stderr, "# a write ended with %s\n", weft_status_name(f->op.status));
        t->failed_writes += f->op.status != WEFT_OK;
        t->written += !f->op.status;
        t->longest_write = took > t->longest_write ? took : t->longest_write;
    }
    free(f->buf);
    f->buf = NULL;
    return true;
}

static void keep_busy(mirrored_t *t, bool more)
{
    for (int i = 0; i < FLIGHT; i++) {
        if (ended(t, &t->writes[i]) && more)
            begin_write(t, &t->writes[i]);
        if (ended(t, &t->reads[i]) && more)
            begin_read(t, &t->reads[i], t->reader.m);
        if (ended(t, &t->own[i]) && more)
            begin_read(t, &t->own[i], t->writer.m);
    }
}

void mirrored_load(mirrored_t *t, double seconds, bool (*done)(mirrored_t *t))
{
    double end = now() + seconds;
    while (now() < end) {
        keep_busy(t, true);
        drive(t);
        if (done && done(t))
            return;
    }
    if (done)
        fail("what was waited for under load did not come");
}

void mirrored_rest(mirrored_t *t, double seconds)
{
    double end = now() + seconds;
    for (bool any = true; any;) {
        any = false;
        keep_busy(t, false);
        for (int i = 0; i < FLIGHT; i++)
            any = any || t->writes[i].live || t->reads[i].live || t->own[i].live;
        drive(t);
        if (now() > end)
            fail("an operation does not end");
    }
    keep_busy(t, false);
}

weft_status_t mirrored_wait(mirrored_t *t, weft_op_t *op, double seconds, bool load)
{
    double end = now() + seconds;
    while (!weft_op_done(op)) {
        keep_busy(t, load);
        drive(t);
        if (now() > end)
            fail("an operation does not end");
    }
    return op->status;
}

/* --- a mirror ------------------------------------------------------------------------------------------------------------- */

void mirrored_connect(mirrored_t *t, side_t *side, int i)
{
    weft_op_t op = WEFT_OP_INIT, connect = WEFT_OP_INIT;
    must(weft_ep_open(side->rt, t->uri[i], NULL, &connect, &side->ep[i]), "weft_ep_open");
    must(mirrored_wait(t, &connect, 20, side->m != NULL), "connect");
    must(weft_store_open(side->ep[i], NULL, &op), "weft_store_open");
    must(mirrored_wait(t, &op, 20, side->m != NULL), "weft_store_open");
    side->store[i] = op.buf;
}

void mirrored_make(mirrored_t *t, int members, uint64_t len, uint64_t lease_ns, bool checksums)
{
    weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    t->len = len;
    t->lease_ns = lease_ns;
    t->history = history_new(1, len);
    for (int i = 0; i < t->n; i++) {
        mirrored_connect(t, &t->writer, i);
        mirrored_connect(t, &t->reader, i);
    }
    o.name = "mirror";
    o.stores = t->writer.store;
    o.n_stores = (size_t)members;
    o.len = len;
    o.write = true;
    o.checksums = checksums;
    o.lease_ns = lease_ns;
    must(weft_mirror_open(t->writer.rt, &o, &op), "weft_mirror_open");
    must(mirrored_wait(t, &op, 20, false), "making a mirror");
    t->writer.m = op.buf;
    o.write = false;
    o.len = 0;
    o.stores = t->reader.store;
    o.n_stores = (size_t)t->n;
    must(weft_mirror_open(t->reader.rt, &o, &op), "weft_mirror_open");
    must(mirrored_wait(t, &op, 20, false), "opening a mirror");
    t->reader.m = op.buf;
}

void mirrored_look(mirrored_t *t)
{
    weft_mirror_t *at[] = {t->writer.m, t->reader.m};
    uint8_t *buf = malloc(t->len);
    for (int i = 0; i < 2; i++) {
        weft_op_t op = WEFT_OP_INIT;
        history_read_t *r = history_read(t->history, 0, t->len);
        must(weft_mirror_read(at[i], 0, buf, t->len, &op), "weft_mirror_read");
        must(mirrored_wait(t, &op, 30, false), "reading all of it");
        const char *wrong = history_check(t->history, r, buf);
        if (wrong)
            fail(wrong);
    }
    free(buf);
}

weft_mirror_info_t mirrored_info(const side_t *side)
{
    weft_mirror_info_t info = WEFT_MIRROR_INFO_INIT;
    must(weft_mirror_get_info(side->m, &info), "weft_mirror_get_info");
    return info;
}

unsigned mirrored_members(const side_t *side, weft_member_state_t state)
{
    weft_mirror_info_t info = mirrored_info(side);
    unsigned n = 0;
    for (size_t i = 0; i < info.members; i++)
        n += info.member[i] == state;
    return n;
}

void mirrored_end(mirrored_t *t)
{
    side_t *sides[] = {&t->reader, &t->writer};
    mirrored_rest(t, 30);
    for (int i = 0; i < 2; i++) {
        weft_op_t op = WEFT_OP_INIT;
        if (sides[i]->m) {
            must(weft_mirror_close(sides[i]->m, &op), "weft_mirror_close");
            (void)!mirrored_wait(t, &op, 30, false);
        }
        for (int k = 0; k < t->n; k++)
            if (sides[i]->store[k])
                weft_store_leave(sides[i]->store[k]);
    }
    for (int i = 0; i < t->n; i++)
        if (t->pid[i]) {
            kill(t->pid[i], SIGKILL);
            waitpid(t->pid[i], NULL, 0);
        }
    must(weft_runtime_close(t->reader.rt), "weft_runtime_close");
    must(weft_runtime_close(t->writer.rt), "weft_runtime_close");
    history_free(t->history);
}
