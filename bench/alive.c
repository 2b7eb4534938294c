/* bench/alive.c - who is lost, and when, for bench/alive.py. A watcher and its peers, which are processes of their own.
 *
 *     alive silent SECONDS EACH TLS    EACH peers in every progress mode, and in a callback, drive nothing for SECONDS, all at
 *                                      the same time, every second one computing and the others sleeping: how many were kept
 *     alive stop K TLS                 K peers are stopped, each at a random moment of one second: a line with the seconds
 *                                      until each was lost
 *     alive kill K TLS                 the same with SIGKILL
 *     alive partition K tcp            the same with K hosts whose link is cut; exits with 77 where no hosts can be made
 *     alive idle SECONDS TLS           a peer that does nothing: what of a core it takes
 *
 * Seconds run from a clock read just before the signal, or the cut, to the hook that says the endpoint is WEFT_EP_FAILED. They
 * are negative for a peer that was lost before anything happened to it, and inf for one that was not lost within a minute. The
 * bound is the library's default.
 *
 * A host is a network namespace of its own with a veth pair to the watcher's, which is private too: no address of the machine
 * is used, and everything goes with the processes. Peers are forked before the watcher has a runtime, and try to connect until
 * it listens. */
#include <fcntl.h>
#include <math.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <weft/weft.h>

enum { MOST = 512, MOST_HOSTS = 250, MODES = 4, CANNOT = 77 };
enum { TAG_NUMBER = 1, TAG_BE_SILENT, TAG_SILENCE };

typedef struct driving {
    const char *name;
    weft_progress_mode_t progress;
    bool in_callback;
} driving_t;

static const driving_t modes[MODES] = {{"caller", WEFT_PROGRESS_CALLER, false},
                                       {"thread", WEFT_PROGRESS_THREAD, false},
                                       {"loop", WEFT_PROGRESS_LOOP, false},
                                       {"callback", WEFT_PROGRESS_CALLER, true}};
static const driving_t *const own_thread = &modes[1];

typedef struct silence {
    double began, ended;
} silence_t;

typedef struct peer {
    const driving_t *mode;
    double seconds;
    bool computes;
    char uri[64];
    pid_t pid;
    int on_its_host; /* a socket there, to take its link down with */
    weft_ep_t *ep;
    weft_op_t op;
    silence_t silence;
    double hit_at;
    _Atomic double lost_at;
} peer_t;

static peer_t peers[MOST];
static const char *tls;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void sleep_until(double when)
{
    double left = when - now();
    if (left > 0)
        usleep((useconds_t)(left * 1e6));
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
    o.connect_timeout_ns = 60 * WEFT_SECOND;
    need(weft_runtime_open(&o, &rt), "open");
    return rt;
}

/* --- a peer ------------------------------------------------------------------------------------------------------- */

static void compute_until(double end)
{
    volatile double x = 1;
    while (now() < end)
        for (int i = 0; i < 100000; i++)
            x = x * 1.0000001 + 1e-9;
}

static void be_silent(void *user)
{
    peer_t *p = user;
    p->silence.began = now();
    if (p->computes)
        compute_until(p->silence.began + p->seconds);
    else
        sleep_until(p->silence.began + p->seconds);
    p->silence.ended = now();
}

static void be_silent_in_callback(weft_runtime_t *rt, peer_t *p)
{
    weft_op_t op = WEFT_OP_INIT;
    need(weft_runtime_call(rt, be_silent, p, &op), "call");
    need(weft_op_wait(&op, WEFT_FOREVER), "silence in a callback");
}

/* Connects and says its number, is silent in its way once it is told to, and says when it was. */
static void live(peer_t *p)
{
    weft_runtime_t *rt = open_runtime(p->mode->progress);
    int number = (int)(p - peers);
    weft_ep_t *ep;
    char byte;
    need(weft_ep_connect(rt, p->uri, NULL, 60 * WEFT_SECOND, &ep), "connect");
    need(weft_msg_send_wait(ep, &number, sizeof number, TAG_NUMBER, 60 * WEFT_SECOND), "send");
    if (weft_msg_recv_wait(ep, &byte, 1, TAG_BE_SILENT, WEFT_TAG_FULL, WEFT_FOREVER, NULL))
        return; /* cut off, it has lost the watcher too */
    if (p->mode->in_callback)
        be_silent_in_callback(rt, p);
    else
        be_silent(p);
    need(weft_msg_send_wait(ep, &p->silence, sizeof p->silence, TAG_SILENCE, 60 * WEFT_SECOND), "send");
}

static void start(peer_t *p, const driving_t *mode, const char *uri)
{
    p->mode = mode;
    snprintf(p->uri, sizeof p->uri, "%s", uri);
    p->pid = fork();
    if (p->pid)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    live(p);
    for (;;)
        pause();
}

/* --- the watcher -------------------------------------------------------------------------------------------------- */

static const char *local_uri(void)
{
    static char uri[64];
    if (!uri[0])
        snprintf(uri, sizeof uri, "unix://@weft-alive-%d", (int)getpid());
    return uri;
}

static weft_on_failure_t note_loss(weft_ep_t *ep, weft_status_t why, void *user)
{
    (void)why, (void)user;
    for (int i = 0; i < MOST; i++)
        if (peers[i].ep == ep && weft_ep_get_state(ep) == WEFT_EP_FAILED)
            atomic_store(&peers[i].lost_at, now());
    return WEFT_GIVE_UP;
}

static void meet_one(weft_listener_t *l)
{
    weft_ep_t *ep;
    int number;
    need(weft_listener_accept_wait(l, 120 * WEFT_SECOND, &ep), "accept");
    need(weft_msg_recv_wait(ep, &number, sizeof number, TAG_NUMBER, WEFT_TAG_FULL, 60 * WEFT_SECOND, NULL), "a peer's number");
    peers[number].ep = ep;
}

/* Listen, and return once the first n peers are connected. */
static void meet(const char *uri, int n)
{
    weft_listen_opts_t o = WEFT_LISTEN_OPTS_INIT;
    weft_ep_hooks_t hooks = {note_loss, NULL, NULL};
    weft_listener_t *l;
    o.hooks = &hooks;
    need(weft_listen(open_runtime(WEFT_PROGRESS_THREAD), uri, &o, &l), "listen");
    for (int i = 0; i < n; i++)
        meet_one(l);
}

static void end(int n)
{
    for (int i = 0; i < n; i++) {
        kill(peers[i].pid, SIGKILL);
        waitpid(peers[i].pid, NULL, 0);
    }
}

/* --- peers that are silent and alive ------------------------------------------------------------------------------ */

static void tell_to_be_silent(peer_t *p)
{
    p->op = (weft_op_t)WEFT_OP_INIT;
    need(weft_msg_recv(p->ep, &p->silence, sizeof p->silence, TAG_SILENCE, WEFT_TAG_FULL, &p->op), "receive");
    need(weft_msg_send_wait(p->ep, "", 1, TAG_BE_SILENT, 60 * WEFT_SECOND), "send");
}

/* Whether it comes back from its silence. */
static bool comes_back(peer_t *p, uint64_t timeout_ns)
{
    weft_status_t st = weft_op_wait(&p->op, timeout_ns);
    if (st)
        printf("silent: a peer of mode %s that was %s: %s\n", p->mode->name, p->computes ? "computing" : "sleeping",
               weft_status_name(st));
    return !st;
}

/* How long all of them were silent at the same time. */
static double together(int n)
{
    double began = 0, ended = INFINITY;
    for (int i = 0; i < n; i++) {
        began = fmax(began, peers[i].silence.began);
        ended = fmin(ended, peers[i].silence.ended);
    }
    return ended - began;
}

static void report_silence(double seconds, int each, int kept[MODES][2])
{
    int n = MODES * each, all = 0;
    for (int m = 0; m < MODES; m++)
        all += kept[m][0] + kept[m][1];
    printf("silent for %g s: kept %d of %d", seconds, all, n);
    if (all == n)
        printf("; all of them silent at the same time for %.1f s", together(n));
    for (int m = 0; m < MODES; m++)
        printf("\n    %-8s  %d of %d that slept, %d of %d that computed", modes[m].name, kept[m][0], each - each / 2, kept[m][1],
               each / 2);
    printf("\n");
}

static int silent(double seconds, int each)
{
    int n = MODES * each, wrong = 0, kept[MODES][2] = {{0}};
    for (int i = 0; i < n; i++) {
        peers[i].seconds = seconds;
        peers[i].computes = i / MODES % 2;
        start(&peers[i], &modes[i % MODES], local_uri());
    }
    meet(local_uri(), n);
    for (int i = 0; i < n; i++)
        tell_to_be_silent(&peers[i]);
    for (int i = 0; i < n; i++) {
        bool well = comes_back(&peers[i], (uint64_t)(seconds * 4 + 120) * WEFT_SECOND);
        kept[i % MODES][peers[i].computes] += well;
        wrong += !well;
    }
    end(n);
    report_silence(seconds, each, kept);
    return wrong != 0;
}

/* --- peers that are hit ------------------------------------------------------------------------------------------- */

typedef void (*hit_fn)(peer_t *p);

static void stop(peer_t *p)
{
    kill(p->pid, SIGSTOP);
}

static void kill_it(peer_t *p)
{
    kill(p->pid, SIGKILL);
}

static void cut_off(peer_t *p)
{
    struct ifreq down = {.ifr_name = "eth0"};
    if (ioctl(p->on_its_host, SIOCSIFFLAGS, &down))
        perror("alive: taking a link down");
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Hit each at a random moment of the second that begins now. */
static void hit_all(int n, hit_fn hit)
{
    double moments[MOST], began = now();
    for (int i = 0; i < n; i++)
        moments[i] = began + (double)rand() / RAND_MAX;
    qsort(moments, (size_t)n, sizeof moments[0], by_size);
    for (int i = 0; i < n; i++) {
        sleep_until(moments[i]);
        peers[i].hit_at = now();
        hit(&peers[i]);
    }
}

static double wait_for_loss(peer_t *p)
{
    while (!atomic_load(&p->lost_at) && now() < p->hit_at + 60)
        usleep(1000);
    return atomic_load(&p->lost_at) ? atomic_load(&p->lost_at) - p->hit_at : INFINITY;
}

static int lose(const char *what, const char *uri, int n, hit_fn hit)
{
    meet(uri, n);
    hit_all(n, hit);
    for (int i = 0; i < n; i++)
        printf("%s %.4f\n", what, wait_for_loss(&peers[i]));
    end(n);
    return 0;
}

static int lose_here(const char *what, int n, hit_fn hit)
{
    for (int i = 0; i < n; i++)
        start(&peers[i], own_thread, local_uri());
    return lose(what, local_uri(), n, hit);
}

/* --- hosts that are cut off --------------------------------------------------------------------------------------- */

static int cannot(const char *why)
{
    fprintf(stderr, "%s\n", why);
    return CANNOT;
}

/* Host i is 10.99.i.2 there, and the watcher is 10.99.i.1 to it. The watcher's thread is on the new host when this returns. */
static bool make_host(int i, int home)
{
    char cmd[256];
    snprintf(cmd, sizeof cmd,
             "ip link add eth0 type veth peer name host%d netns /proc/%d/fd/%d && ip addr add 10.99.%d.2/24 dev eth0 && ip link "
             "set eth0 up",
             i, (int)getpid(), home, i);
    return !unshare(CLONE_NEWNET) && !system(cmd);
}

static bool go_home(int i, int home)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "ip addr add 10.99.%d.1/24 dev host%d && ip link set host%d up", i, i, i);
    return !setns(home, CLONE_NEWNET) && !system(cmd);
}

static bool start_on_host(peer_t *p, int i, int home)
{
    char uri[64];
    if (!make_host(i, home))
        return false;
    p->on_its_host = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(uri, sizeof uri, "tcp://10.99.%d.1:4711", i);
    start(p, own_thread, uri);
    return go_home(i, home);
}

static int lose_hosts(int n)
{
    if (unshare(CLONE_NEWNET))
        return cannot("network namespaces cannot be made here: that needs root");
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < n; i++)
        if (!start_on_host(&peers[i], i, home))
            return cannot("hosts with a veth pair cannot be made here: that needs root and ip(8)");
    return lose("partition", "tcp://0.0.0.0:4711", n, cut_off);
}

/* --- a peer that does nothing ------------------------------------------------------------------------------------- */

static int idle(double seconds)
{
    struct rusage r;
    peers[0].seconds = seconds;
    start(&peers[0], own_thread, local_uri());
    meet(local_uri(), 1);
    tell_to_be_silent(&peers[0]);
    need(weft_op_wait(&peers[0].op, (uint64_t)(seconds + 60) * WEFT_SECOND), "an idle peer");
    kill(peers[0].pid, SIGKILL);
    wait4(peers[0].pid, NULL, 0, &r);
    double used = (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
    printf("idle: %.2f ms of CPU in %.0f s, with its start and its end: %.4f %% of a core\n", used * 1e3, seconds,
           used / seconds * 100);
    return 0;
}

static bool count_is_fine(int n, int most)
{
    return n >= 1 && n <= most;
}

static int usage(void)
{
    fprintf(stderr,
            "alive: silent SECONDS EACH TLS (EACH up to %d), stop|kill K TLS (up to %d), partition K tcp (up to %d), idle "
            "SECONDS TLS\n",
            MOST / MODES, MOST, MOST_HOSTS);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return usage();
    const char *what = argv[1];
    int n = atoi(argv[2]);
    tls = argv[argc - 1];
    srand((unsigned)getpid() ^ (unsigned)time(NULL));
    if (!strcmp(what, "silent") && argc == 5 && count_is_fine(atoi(argv[3]), MOST / MODES))
        return silent(atof(argv[2]), atoi(argv[3]));
    if (!strcmp(what, "stop") && count_is_fine(n, MOST))
        return lose_here(what, n, stop);
    if (!strcmp(what, "kill") && count_is_fine(n, MOST))
        return lose_here(what, n, kill_it);
    if (!strcmp(what, "partition") && count_is_fine(n, MOST_HOSTS))
        return lose_hosts(n);
    if (!strcmp(what, "idle"))
        return idle(atof(argv[2]));
    return usage();
}
