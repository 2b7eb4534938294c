/* tools/run/remotes.c - the child processes that stand for other machines: started, looked after, ended.
 *
 * We ping them, and they answer: a machine that is stopped, or a network that is cut, is noticed within SILENT. The time in which
 * we were stopped ourselves does not count. In the end each is told to clean up, and waited for. tests/tools/tools_run_ssh.py
 * checks it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

#define PING (2 * WEFT_SECOND)
#define SILENT (10 * WEFT_SECOND)              /* without a line: it is lost */
#define OPENING (60 * WEFT_SECOND)             /* until it is ready: an engine may start machines first */
#define CLOSING (15 * WEFT_SECOND)             /* until it has cleaned up */
#define LEAVING (3 * WEFT_SECOND)              /* until the child of a lost one is gone */
#define SAID ((size_t)1 << 12)                 /* bytes of a line of its standard error */
#define LINE ((size_t)RUN_LINE_MAX * 2 + 4096) /* a line of an element, escaped, in a line of ours */

/* --- the child -------------------------------------------------------------------------------------------------------------- */

static _Noreturn void become(const run_remote_t *r, int lines, int err)
{
    static const char cannot[] = "cannot be executed: ";
    sigset_t none;
    const char *why;
    setpgid(0, 0); /* a Ctrl-C is for us, who tell the others what to do */
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup2(lines, 0) < 0 || dup2(lines, 1) < 0 || dup2(err, 2) < 0)
        _exit(127);
    execvp(r->argv[0], r->argv);
    why = strerrordesc_np(errno);
    if (write(2, r->argv[0], strlen(r->argv[0])) < 0 || write(2, " ", 1) < 0 || write(2, cannot, sizeof cannot - 1) < 0 ||
        write(2, why, strlen(why)) < 0 || write(2, "\n", 1) < 0)
        _exit(127);
    _exit(127);
}

static bool open_one(run_t *run, run_remote_t *r)
{
    int ends[2] = {-1, -1}, err[2] = {-1, -1};
    bool good;
    r->host.run = run;
    r->host.ops = &run_remote_ops;
    r->lines =
        (run_lines_t){.in.fd = -1, .out.fd = -1, .most = LINE, .line = run_remote_heard, .ended = run_remote_ended, .user = r};
    r->err = (run_lines_t){.in.fd = -1, .out.fd = -1, .most = SAID, .cut = true, .line = run_remote_said, .user = r};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) || pipe2(err, O_CLOEXEC) ||
        fcntl(ends[0], F_SETFL, O_NONBLOCK) || fcntl(err[0], F_SETFL, O_NONBLOCK)) {
        tool_error("cannot begin: %s", strerror(errno));
        return false;
    }
    r->pid = fork();
    if (!r->pid)
        become(r, ends[1], err[1]);
    close(ends[1]);
    close(err[1]);
    good = r->pid > 0;
    if (!good)
        r->pid = 0;
    good &= run_lines_open(run, &r->lines, ends[0], dup(ends[0])) & run_lines_open(run, &r->err, err[0], -1);
    if (!good) {
        tool_error("cannot begin: %s", strerror(errno));
        return false;
    }
    r->heard_at = tool_now();
    return true;
}

bool run_remotes_open(run_t *run)
{
    if (!run_on(run))
        return false;
    for (run_remote_t *r = run->remotes; r; r = r->next)
        if (!open_one(run, r))
            return false;
    for (run_remote_t *r = run->remotes; r; r = r->next) {
        run_remote_open(run, r);
        if (!run_send_code(run, r))
            return false;
        run_remote_say(r, "begin"); /* it has all of the program, and answers `ready` */
    }
    return true;
}

bool run_remotes_ready(const run_t *run)
{
    for (const run_remote_t *r = run->remotes; r; r = r->next)
        if (!r->ready)
            return false;
    return true;
}

void run_remotes_ping(run_t *run, uint64_t now)
{
    for (run_remote_t *r = run->remotes; r; r = r->next)
        if (r->ready && !r->lost && now >= r->pinged_at + PING) {
            r->pinged_at = now;
            run_remote_say(r, "ping");
        }
}

uint64_t run_remotes_keep(run_t *run, uint64_t now)
{
    uint64_t gap = run->kept_at && now > run->kept_at + PING + WEFT_SECOND ? now - run->kept_at - PING : 0;
    if (!run->remotes)
        return UINT64_MAX;
    run->kept_at = now;
    for (run_remote_t *r = run->remotes; r; r = r->next) {
        r->heard_at += gap; /* we were held up ourselves */
        if (!r->lost && now >= r->heard_at + (r->ready ? SILENT : OPENING))
            run_remote_lose(r, r->ready ? "it has not answered for 10 s" : "it was not ready within 60 s");
    }
    run_remotes_ping(run, now);
    return now + PING;
}

/* --- the end --------------------------------------------------------------------------------------------------------------- */

bool run_remotes_reaped(run_t *run, pid_t pid)
{
    for (run_remote_t *r = run->remotes; r; r = r->next)
        if (r->pid == pid) {
            r->pid = 0;
            return true;
        }
    return false;
}

/* Has it cleaned up? Its lines end then, and its process here does. */
static bool is_gone(const run_remote_t *r)
{
    return r->lines.in.fd < 0 && !r->pid;
}

static void wait_for(run_t *run, run_remote_t *r, uint64_t until)
{
    uint64_t now;
    while (!is_gone(r) && (now = tool_now()) < until) {
        struct epoll_event event;
        if (epoll_wait(run->epoll, &event, 1, (int)((until - now) / WEFT_MILLISECOND + 1)) == 1) {
            run_source_t *s = event.data.ptr;
            if (s->fd >= 0)
                s->ready(s, event.events);
        }
    }
    if (!is_gone(r) && !r->lost && (r->ready || r->places))
        tool_error("%s did not say within 15 s that it has cleaned up; it does so by itself when it finds us gone", r->host.name);
    run_lines_close(&r->lines);
    if (r->pid) {
        kill(-r->pid, SIGKILL); /* what is left of it here */
        kill(r->pid, SIGKILL);
        while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR)
            ;
        r->pid = 0;
    }
    run_lines_rest(&r->err);
}

void run_remotes_close(run_t *run)
{
    uint64_t now = tool_now();
    for (run_remote_t *r = run->remotes; r; r = r->next) {
        r->closing = true;
        if (!r->lost)
            run_remote_say(r, "close");
    }
    for (run_remote_t *r = run->remotes; r; r = r->next)
        wait_for(run, r, now + (r->lost || (!r->ready && !r->places) ? LEAVING : CLOSING));
}

void run_remotes_free(run_t *run)
{
    while (run->remotes) {
        run_remote_t *r = run->remotes;
        run->remotes = r->next;
        for (char **a = r->argv; a && *a; a++)
            free(*a);
        free(r->argv);
        free(r->host.name);
        free(r);
    }
}
