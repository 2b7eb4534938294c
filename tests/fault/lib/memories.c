/* tests/fault/lib/memories.c - see memories.h. */
#include "memories.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

static weft_runtime_t *open_runtime(const memories_t *m)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.transports = m->transports;
    o.heartbeat_ns = m->heartbeat_ns;
    o.connect_timeout_ns = 5 * WEFT_SECOND;
    o.progress = WEFT_PROGRESS_THREAD;
    must(weft_runtime_open(&o, &rt), "weft_runtime_open");
    return rt;
}

static void element(const memories_t *m, int fd)
{
    char durl[WEFT_DURL_MAX + 1];
    size_t len = sizeof durl;
    weft_memory_t *memory;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    weft_runtime_t *rt = open_runtime(m);
    must(weft_memory_open(rt, &m->opts, &memory), "weft_memory_open");
    must(weft_memory_durl(memory, durl, &len), "weft_memory_durl");
    if (write(fd, durl, len + 1) < 0)
        _exit(1);
    close(fd);
    for (;;)
        pause();
}

void memories_start(memories_t *m, int n, const char *transports, uint64_t heartbeat_ns, const weft_memory_opts_t *opts)
{
    memset(m, 0, sizeof *m);
    m->n = n;
    m->transports = transports;
    m->heartbeat_ns = heartbeat_ns;
    m->opts = *opts;
    m->opts.name = "mem";
    weft_log_set_level(WEFT_LOG_NONE);
    fflush(NULL);
    for (int i = 0; i < n; i++) {
        int fds[2];
        must(pipe(fds) ? WEFT_ERR_SYSTEM : WEFT_OK, "pipe");
        m->pid[i] = fork();
        must(m->pid[i] < 0 ? WEFT_ERR_SYSTEM : WEFT_OK, "fork");
        if (m->pid[i] == 0) {
            close(fds[0]);
            element(m, fds[1]);
        }
        close(fds[1]);
        size_t got = 0;
        for (ssize_t k; got < sizeof m->durl[i] - 1 && (k = read(fds[0], m->durl[i] + got, sizeof m->durl[i] - 1 - got)) > 0;)
            got += (size_t)k;
        close(fds[0]);
        must(got ? WEFT_OK : WEFT_ERR_SYSTEM, "a memory element does not start");
    }
    m->rt = open_runtime(m);
    must(weft_action_open(m->rt, "test", NULL, &m->action), "weft_action_open");
}

void memories_signal(memories_t *m, int i, int sig)
{
    if (!m->pid[i])
        return;
    must(kill(m->pid[i], sig) ? WEFT_ERR_SYSTEM : WEFT_OK, "kill");
    if (sig == SIGSTOP) /* its threads run on for a moment after kill() returned */
        must(waitpid(m->pid[i], NULL, WUNTRACED) < 0 ? WEFT_ERR_SYSTEM : WEFT_OK, "waitpid");
    if (sig == SIGKILL) {
        waitpid(m->pid[i], NULL, 0);
        m->pid[i] = 0;
    }
}

void memories_end(memories_t *m)
{
    weft_op_t op = WEFT_OP_INIT;
    for (int i = 0; i < m->n; i++)
        memories_signal(m, i, SIGKILL);
    must(weft_action_close(m->action, &op), "weft_action_close");
    must(weft_op_wait(&op, 20 * WEFT_SECOND), "closing the action");
    must(weft_runtime_close(m->rt), "weft_runtime_close");
}

weft_transport_t *memories_add(memories_t *m, const char *name, int i, unsigned timeout_ms, size_t buffer)
{
    char text[WEFT_DURL_MAX + 1];
    size_t len = sizeof text;
    weft_durl_t d = WEFT_DURL_INIT, other = WEFT_DURL_INIT;
    weft_transport_t *t;
    must(weft_durl_parse(m->durl[i < 0 ? 0 : i], &d), "weft_durl_parse");
    for (int k = 1; i < 0 && k < m->n; k++) {
        must(weft_durl_parse(m->durl[k], &other), "weft_durl_parse");
        memcpy(d.replica[d.n_replicas++], other.replica[0], sizeof other.replica[0]);
    }
    d.timeout_ms = timeout_ms;
    must(weft_durl_format(&d, text, &len), "weft_durl_format");
    char add[WEFT_DURL_NAME_MAX + 32];
    snprintf(add, sizeof add, "%s;rdma_tcp;", name);
    must(weft_action_add(m->action, add), "weft_action_add");
    must(weft_action_get(m->action, name, "rdma", &t), "weft_action_get");
    must(weft_action_configure(m->action, name, text), "weft_action_configure");
    if (buffer)
        must(weft_transport_reg(t, buffer, NULL), "weft_transport_reg");
    return t;
}
