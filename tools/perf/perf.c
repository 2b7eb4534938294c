/* tools/perf/perf.c - `weft perf`: server, client, or both by fork.
 *
 * With --fork the child is the server and the parent the client. The fork comes before any runtime exists: neither a runtime
 * nor UCX survives one. The child sends its address through a pipe and dies with its parent. Each is pinned to a core of its
 * own (cores.c). tests/tools/tools_perf.py and tests/tools/tools_peer_loss.py
 * check it. */
#include "perf.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void be_child(perf_opts_t *opts, int fd, pid_t parent)
{
    int rc;
    /* The child ends with its parent. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(TOOL_FAILED);
    tool_name = "weft perf (server)";
    rc = perf_server(opts, fd);
    fflush(stdout);
    _exit(rc);
}

/* What the child wrote until it closed its end: the URI, or nothing if it could not listen. */
static bool read_uri(int fd, char *uri, size_t cap)
{
    size_t at = 0;
    while (at < cap - 1) {
        ssize_t n = read(fd, uri + at, cap - 1 - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    uri[at] = '\0';
    return at > 0;
}

/* TOOL_OK if the child ended well, else the exit status. It has at most a few seconds of closing to do. */
static int reap(pid_t child, bool expect_well)
{
    int status;
    uint64_t deadline = tool_now() + (expect_well ? 15 : 2) * WEFT_SECOND;
    pid_t got;
    while ((got = waitpid(child, &status, WNOHANG)) == 0 && tool_now() < deadline)
        usleep(1000);
    if (got == 0) {
        if (expect_well)
            tool_error("the server process does not end; killing it");
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return TOOL_FAILED;
    }
    if (got == child && WIFEXITED(status))
        return WEXITSTATUS(status) && WEXITSTATUS(status) != TOOL_USAGE ? TOOL_FAILED : WEXITSTATUS(status);
    if (got == child && WIFSIGNALED(status))
        tool_error("the server process was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    return TOOL_FAILED;
}

static int fork_both(perf_opts_t *opts)
{
    pid_t parent = getpid(), child;
    char uri[512];
    int fds[2], ended, rc = TOOL_FAILED;
    if (pipe(fds)) {
        tool_error("cannot make a pipe: %s", strerror(errno));
        return TOOL_FAILED;
    }
    fflush(stdout);
    child = fork();
    if (child < 0) {
        tool_error("cannot fork: %s", strerror(errno));
        close(fds[0]);
        close(fds[1]);
        return TOOL_FAILED;
    }
    if (!child) {
        close(fds[0]);
        be_child(opts, fds[1], parent);
    }
    close(fds[1]);
    opts->core = opts->cores;
    if (read_uri(fds[0], uri, sizeof uri))
        rc = perf_client(opts, uri);
    close(fds[0]);
    ended = reap(child, rc == TOOL_OK);
    return ended ? ended : rc;
}

int perf_command(int argc, char **argv)
{
    perf_opts_t opts;
    int rc = perf_options(argc, argv, &opts);
    if (rc != TOOL_GO)
        return rc;
    switch (opts.role) {
    case PERF_LISTEN:
        opts.pin = false;
        return perf_server(&opts, -1);
    case PERF_CONNECT:
        opts.pin = false;
        return perf_client(&opts, opts.uri);
    default:
        if (opts.clients)
            return perf_many(&opts);
        if (opts.pin && !perf_cores_share(&opts, 2)) {
            tool_error("only one core may be used: both sides share it, and the figures show the scheduler");
            opts.pin = false;
        }
        return fork_both(&opts);
    }
}
