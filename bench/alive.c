/* bench/alive.c - who is lost, and when, for bench/alive.py. A watcher and its peers, which are processes of their own, on one host.
 *
 *     alive silent SECONDS EACH TLS    EACH peers in every progress mode, and in a callback, drive nothing for SECONDS: sleeping, or computing
 *     alive stop N TLS                 N peers are stopped one by one: how long until each was lost
 *     alive kill N TLS                 the same with SIGKILL
 *     alive idle SECONDS TLS           a peer that does nothing: what of a core it takes
 *
 * A line each on stdout: WHAT NUMBER SECONDS-OR-STATE. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <weft/weft.h>

enum { MOST = 512 };

static const char *const modes[] = {"caller", "thread", "loop", "callback"};

typedef struct peer {
    pid_t pid;
    weft_ep_t *ep;
    weft_op_t op;
    char byte;
} peer_t;

static peer_t peers[MOST];
static const char *tls;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void need(weft_status_t st, const char *what)
{
    if (!st)
        return;
    fprintf(stderr, "alive: %s: %s (%s)\n", what, weft_status_text(st), weft_last_error());
    exit(1);
}

static weft_runtime_t *open_runtime(weft_progress_mode_t mode)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.progress = mode;
    o.transports = tls;
    need(weft_runtime_open(&o, &rt), "open");
    return rt;
}

static void compute(double seconds)
{
    volatile double x = 1;
    for (double end = now() + seconds; now() < end;)
        for (int i = 0; i < 100000; i++)
            x = x * 1.0000001 + 1e-9;
}

static void be_silent(double seconds, bool computes)
{
    if (computes)
        compute(seconds);
    else
        usleep((useconds_t)(seconds * 1e6));
}

typedef struct silence {
    double seconds;
    bool computes;
} silence_t;

static void be_silent_inside(void *user)
{
    silence_t *s = user;
    be_silent(s->seconds, s->computes);
}

/* A peer: connects, is silent in its way, then says a byte and waits for the watcher to end it. */
static void live(const char *uri, int mode, double seconds, bool computes)
{
    static const weft_progress_mode_t progress[] = {WEFT_PROGRESS_CALLER, WEFT_PROGRESS_THREAD, WEFT_PROGRESS_LOOP,
                                                    WEFT_PROGRESS_CALLER};
    weft_runtime_t *rt = open_runtime(progress[mode]);
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_t *ep;
    char byte;
    need(weft_ep_connect(rt, uri, NULL, 60 * WEFT_SECOND, &ep), "connect");
    if (mode == 3) {
        silence_t s = {seconds, computes};
        need(weft_runtime_call(rt, be_silent_inside, &s, &op), "call");
        need(weft_op_wait(&op, WEFT_FOREVER), "silence");
    } else {
        be_silent(seconds, computes);
    }
    need(weft_msg_send_wait(ep, "x", 1, 1, 60 * WEFT_SECOND), "send");
    (void)!weft_msg_recv_wait(ep, &byte, 1, 2, WEFT_TAG_FULL, WEFT_FOREVER, NULL);
    exit(0);
}

static pid_t start(const char *uri, int mode, double seconds, bool computes)
{
    pid_t pid = fork();
    if (!pid)
        live(uri, mode, seconds, computes);
    return pid;
}

static void meet(weft_listener_t *l, peer_t *p)
{
    need(weft_listener_accept_wait(l, 120 * WEFT_SECOND, &p->ep), "accept");
    p->op = (weft_op_t)WEFT_OP_INIT;
    need(weft_msg_recv(p->ep, &p->byte, 1, 1, WEFT_TAG_FULL, &p->op), "receive");
}

static int silent(weft_listener_t *l, const char *uri, double seconds, int each)
{
    int n = 0, wrong = 0;
    for (int mode = 0; mode < 4; mode++)
        for (int i = 0; i < each; i++, n++)
            peers[n].pid = start(uri, mode, seconds, i % 2);
    for (int i = 0; i < n; i++)
        meet(l, &peers[i]);
    for (int i = 0; i < n; i++) {
        weft_status_t st = weft_op_wait(&peers[i].op, (uint64_t)(seconds * 4 + 120) * WEFT_SECOND);
        wrong += st != WEFT_OK;
        printf("silent %d %s\n", i, weft_status_name(st));
    }
    for (int i = 0; i < n; i++)
        kill(peers[i].pid, SIGKILL);
    printf("kept %d of %d: %d of each of %s, %s, %s, %s\n", n - wrong, n, each, modes[0], modes[1], modes[2], modes[3]);
    return wrong != 0;
}

/* One after the other, so that each has a machine that is as busy as the others'. */
static int lose(weft_listener_t *l, const char *uri, int n, int signal)
{
    for (int i = 0; i < n; i++) {
        peer_t *p = &peers[0];
        p->pid = start(uri, 1, 0, false);
        meet(l, p);
        need(weft_op_wait(&p->op, 60 * WEFT_SECOND), "its byte");
        need(weft_msg_recv(p->ep, &p->byte, 1, 3, WEFT_TAG_FULL, &p->op), "receive");
        usleep((useconds_t)(rand() % 1000) * 1000); /* anywhere between two heartbeats */
        double began = now();
        kill(p->pid, signal);
        weft_status_t st = weft_op_wait(&p->op, 60 * WEFT_SECOND);
        printf("%s %d %.4f %s\n", signal == SIGSTOP ? "stop" : "kill", i, now() - began, weft_status_name(st));
        fflush(stdout);
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
        (void)weft_ep_abort(p->ep, NULL);
    }
    return 0;
}

static int idle(weft_listener_t *l, const char *uri, double seconds)
{
    struct rusage r;
    peers[0].pid = start(uri, 1, seconds, false);
    meet(l, &peers[0]);
    weft_op_wait(&peers[0].op, (uint64_t)(seconds + 60) * WEFT_SECOND);
    kill(peers[0].pid, SIGKILL);
    wait4(peers[0].pid, NULL, 0, &r);
    double used = (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
    printf("idle: %.2f ms of CPU in %.0f s, with its start and its end: %.4f %% of a core\n", used * 1e3, seconds,
           used / seconds * 100);
    return 0;
}

int main(int argc, char **argv)
{
    char uri[64];
    weft_listener_t *l;
    if (argc < 4)
        return 2;
    tls = argv[argc - 1];
    snprintf(uri, sizeof uri, "unix://@weft-alive-%d", (int)getpid());
    /* the peers are forked while no runtime is open in this process but its own, which a child leaves alone */
    weft_runtime_t *rt = open_runtime(WEFT_PROGRESS_THREAD);
    need(weft_listen(rt, uri, NULL, &l), "listen");
    signal(SIGCHLD, SIG_DFL);
    if (!strcmp(argv[1], "silent") && argc == 5 && atoi(argv[3]) <= MOST / 4)
        return silent(l, uri, atof(argv[2]), atoi(argv[3]));
    if (!strcmp(argv[1], "stop"))
        return lose(l, uri, atoi(argv[2]), SIGSTOP);
    if (!strcmp(argv[1], "kill"))
        return lose(l, uri, atoi(argv[2]), SIGKILL);
    if (!strcmp(argv[1], "idle"))
        return idle(l, uri, atof(argv[2]));
    return 2;
}
