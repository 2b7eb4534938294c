/* tools/run/local.c - the host that is this machine: processes of our own, started with limits, signalled, waited for.
 *
 * Each process leads a process group of its own. What it leaves behind in that group is killed before the process is waited
 * for, since until then the group's number cannot be reused. A launcher that is killed takes its elements with it
 * (PR_SET_PDEATHSIG); it has one thread, so that this means its end.
 *
 * tests/tools/tools_run_loss.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

#define CONTROL_FD 3

extern char **environ;

/* --- the environment ------------------------------------------------------------------------------------------------- */

/* A path, or paths by colons, that hold in another working directory, too. */
static char *whole_paths(const char *text)
{
    char *here = getcwd(NULL, 0), *copy = run_dup(text), *rest = copy, *part;
    run_text_t out = {0};
    bool first = true;
    run_add(&out, "", 0);
    while ((part = strsep(&rest, ":"))) {
        run_addf(&out, "%s", first ? "" : ":");
        if (*part && *part != '/' && here)
            run_addf(&out, "%s/", here);
        run_addf(&out, "%s", part);
        first = false;
    }
    free(copy);
    free(here);
    return out.p;
}

static char **make_environment(const run_proc_t *p)
{
    static const char *const ours[] = {
        "WEFT_ELEMENT_FD=", "WEFT_ELEMENT_ROOT=", "WEFT_LAUNCHER=", "__OW_PAR=", "PYTHONUNBUFFERED="};
    static const char *const paths[] = {
        "WEFT_KEY_FILE=", "WEFT_TLS_CERT=", "WEFT_TLS_KEY=", "WEFT_TLS_CA=", "WEFT_CONFIG_FILE=", "PYTHONPATH="};
    size_t n = 0, at = 0;
    char **env;
    while (environ[n])
        n++;
    env = run_alloc((n + 8) * sizeof *env);
    for (size_t i = 0; i < n; i++) {
        bool drop = false, done = false;
        for (size_t k = 0; k < sizeof ours / sizeof *ours; k++)
            drop |= !strncmp(environ[i], ours[k], strlen(ours[k]));
        drop |= p->run->key_file && !strncmp(environ[i], "WEFT_KEY_FILE=", strlen("WEFT_KEY_FILE="));
        for (size_t k = 0; !drop && k < sizeof paths / sizeof *paths; k++)
            if (!strncmp(environ[i], paths[k], strlen(paths[k]))) {
                char *whole = whole_paths(environ[i] + strlen(paths[k]));
                env[at++] = run_printf("%s%s", paths[k], whole);
                free(whole);
                done = true;
            }
        if (!drop && !done)
            env[at++] = run_dup(environ[i]);
    }
    if (p->run->key_file)
        env[at++] = run_printf("WEFT_KEY_FILE=%s", p->run->key_file);
    if (p->run->code && !p->element->memory)
        env[at++] = run_printf("WEFT_ELEMENT_ROOT=%s", p->run->code);
    if (!p->element->memory) {
        env[at++] = run_printf("WEFT_ELEMENT_FD=%d", CONTROL_FD);
        env[at++] = run_printf("WEFT_LAUNCHER=%s", p->run->socket_path);
        env[at++] = run_printf("__OW_PAR=%u", p->copy);
        env[at++] = run_dup("PYTHONUNBUFFERED=1"); /* what it printed before it was killed is not lost */
    }
    return env;
}

static char **make_arguments(const run_proc_t *p)
{
    const run_element_t *e = p->element;
    char **argv = run_alloc(20 * sizeof *argv);
    unsigned n = 0;
    if (!e->memory) {
        argv[n++] = run_dup(p->run->python);
        argv[n++] = run_dup("-c"); /* as -m disagg.element, which loads runpy first */
        argv[n++] = run_dup("from disagg.element import launched; launched()");
        return argv;
    }
    argv[n++] = run_dup("weft");
    argv[n++] = run_dup("element");
    argv[n++] = run_dup("memory");
    argv[n++] = run_dup("--name");
    argv[n++] = e->copies > 1 ? run_printf("%s@%u", e->name, p->copy) : run_dup(e->trans ? e->trans : e->name);
    argv[n++] = run_dup("--size");
    argv[n++] = run_printf("%llu", (unsigned long long)e->limits.mem);
    argv[n++] = run_dup("--report-fd");
    argv[n++] = run_printf("%d", CONTROL_FD);
    if (e->spare) {
        argv[n++] = run_dup("--spare");
        argv[n++] = run_printf("%llu", (unsigned long long)e->spare);
    }
    if (p->run->address) {
        argv[n++] = run_dup("--listen");
        argv[n++] = run_printf(strchr(p->run->address, ':') ? "tcp://[%s]:0" : "tcp://%s:0", p->run->address);
    }
    if (e->replicas > 1 || e->mirrored)
        argv[n++] = run_dup("--mirrored");
    return argv;
}

static void free_all(char **list)
{
    for (char **s = list; *s; s++)
        free(*s);
    free(list);
}

/* --- starting ------------------------------------------------------------------------------------------------------------- */

static _Noreturn void become(const run_proc_t *p, int control, int out, int err, char **argv, char **env, pid_t launcher)
{
    static const char cannot[] = "weft run: cannot be executed: ";
    const char *path = p->element->memory ? "/proc/self/exe" : argv[0], *why;
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != launcher)
        _exit(127); /* it ended before that took effect */
    setpgid(0, 0);
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (dup2(p->run->null_fd, 0) < 0 || dup2(out, 1) < 0 || dup2(err, 2) < 0 ||
        (control == CONTROL_FD ? fcntl(control, F_SETFD, 0) : dup2(control, CONTROL_FD)) < 0 || chdir(p->dir))
        _exit(127);
    run_limits_enter(p);
    execve(path, argv, env);
    why = strerrordesc_np(errno);
    if (write(2, cannot, sizeof cannot - 1) < 0 || write(2, why, strlen(why)) < 0 || write(2, "\n", 1) < 0)
        _exit(127);
    _exit(127);
}

/* p: [ours, theirs]. Both go above what they become in the child, so that dup2() there cannot hit one that is still needed. */
static bool lift(int p[2])
{
    for (int i = 0; i < 2; i++) {
        int high = fcntl(p[i], F_DUPFD_CLOEXEC, CONTROL_FD + 1), why = errno;
        close(p[i]);
        p[i] = high;
        if (high < 0) {
            if (!i)
                close(p[1]);
            p[1] = -1;
            errno = why;
            return false;
        }
    }
    return !fcntl(p[0], F_SETFL, O_NONBLOCK);
}

static bool open_pipe(int p[2])
{
    return !pipe2(p, O_CLOEXEC) && lift(p);
}

static bool open_socket(int p[2])
{
    return !socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p) && lift(p);
}

static void exited(run_source_t *s, uint32_t events);

enum { CONTROL, OUT, ERR, CHANNELS };

static void close_end(int ends[CHANNELS][2], int which)
{
    for (int i = 0; i < CHANNELS; i++)
        if (ends[i][which] >= 0)
            close(ends[i][which]);
}

/* Our ends into epoll, which has them until they are unwatched. */
static bool watch(run_proc_t *p, int pidfd, int ends[CHANNELS][2])
{
    p->exit.user = p;
    return run_watch(p->run, &p->exit, pidfd, EPOLLIN, exited) &
           run_channel_open(p, ends[CONTROL][0], ends[OUT][0], ends[ERR][0]);
}

static bool cannot_start(run_proc_t *p, int why)
{
    run_limits_over(p);
    p->error = run_printf("%s cannot be started: %s%s", p->label, strerror(why),
                          why == EMFILE || why == EAGAIN || why == ENOMEM ? "; --jobs N starts fewer at a time" : "");
    return false;
}

static bool start(run_proc_t *p)
{
    int ends[CHANNELS][2] = {{-1, -1}, {-1, -1}, {-1, -1}}, pidfd, why;
    pid_t launcher = getpid();
    char **argv, **env;
    p->dir = run_printf("%s/%u-%s", p->run->scratch, p->element->index, p->label);
    if (!(p->element->memory ? open_pipe(ends[CONTROL]) : open_socket(ends[CONTROL])) || !open_pipe(ends[OUT]) ||
        !open_pipe(ends[ERR]) || mkdir(p->dir, 0700)) {
        why = errno;
        close_end(ends, 0);
        close_end(ends, 1);
        return cannot_start(p, why);
    }
    argv = make_arguments(p);
    env = make_environment(p);
    run_limits_prepare(p);
    fflush(stdout);
    fflush(stderr);
    p->started = tool_now();
    p->placed = true;
    p->pid = fork();
    if (!p->pid)
        become(p, ends[CONTROL][1], ends[OUT][1], ends[ERR][1], argv, env, launcher);
    why = errno;
    free_all(argv);
    free_all(env);
    close_end(ends, 1);
    if (p->pid < 0) {
        close_end(ends, 0);
        return cannot_start(p, why);
    }
    setpgid(p->pid, p->pid); /* also in the child: one of the two is first */
    pidfd = (int)syscall(SYS_pidfd_open, p->pid, 0);
    if (pidfd >= 0 && watch(p, pidfd, ends))
        return true;
    why = errno;
    if (pidfd < 0)
        close_end(ends, 0); /* else run_proc_free() does */
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    return cannot_start(p, why);
}

/* --- ending ----------------------------------------------------------------------------------------------------------------- */

static void send_signal(run_proc_t *p, int number)
{
    if (number == SIGKILL) {
        kill(-p->pid, SIGKILL);
        kill(p->pid, SIGKILL); /* it has not become a group yet */
    } else {
        kill(p->pid, SIGCONT); /* a stopped process could not end */
        kill(p->pid, number);
    }
}

static void exited(run_source_t *s, uint32_t events)
{
    run_proc_t *p = s->user;
    (void)events;
    /* it is still a zombie, so the number of its group is not reused */
    kill(-p->pid, SIGKILL);
    if (wait4(p->pid, &p->status, WNOHANG, &p->usage) != p->pid)
        return;
    p->over = true;
    run_limits_over(p);
    run_unwatch(&p->exit);
    run_channel_rest(p);
    run_ended(p);
}

static void look(run_proc_t *p)
{
    siginfo_t info = {0};
    if (!p->over && !waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid == p->pid)
        exited(&p->exit, 0);
}

static void forget(run_proc_t *p)
{
    run_unwatch(&p->exit);
    run_channel_close(p);
    free(p->dir);
}

const run_host_ops_t run_local_ops = {
    .start = start,
    .tell = run_channel_tell,
    .signal = send_signal,
    .look = look,
    .answer = run_serve_answer,
    .forget = forget,
};
