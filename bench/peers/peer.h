/* bench/peers/peer.h - what the programs share that Weft is measured against: options, time, two processes on one core each,
 * and runs that take long enough to be believed.
 *
 * For C and C++, each of which includes it in one file. The child is the server; the client leads and prints one line of JSON.
 * A server whose client is gone gets a signal from the kernel. What raw_echo.c and the others have of their own is how messages
 * move. */
#ifndef WEFT_BENCH_PEER_H
#define WEFT_BENCH_PEER_H

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PEER_LIMIT_S 60 /* nobody waits longer for the other */
#define PEER_WINDOW_MAX 65536
#define PEER_SAMPLES (1u << 20)
#define PEER_SECOND UINT64_C(1000000000)

typedef struct peer {
    const char *name;  /* what errors begin with */
    const char *ways;  /* "lat|rate|bw|echo" */
    const char *way;   /* the one asked for */
    uint64_t size, window, header;
    double seconds;
    uint64_t count;    /* 0: by time */
    bool pin, sized;
    bool takes_certs;  /* it has --certs DIR */
    const char *certs; /* the directory; NULL: none was given */
    pid_t child;
    uint32_t *samples; /* ticks of round trips, of the last PEER_SAMPLES; NULL: none are kept */
    uint64_t n_samples;
} peer_t;

static inline void peer_die(const peer_t *p, const char *what, const char *why)
{
    fprintf(stderr, "%s: %s: %s\n", p->name, what, why);
    exit(1);
}

/* --- time ------------------------------------------------------------------------------------------------ */

static inline uint64_t peer_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * PEER_SECOND + (uint64_t)ts.tv_nsec;
}

/* As in weft perf: the kernel's clock costs a fifth of an 8-byte round trip. How long a tick is, the run itself tells. */
static inline uint64_t peer_ticks(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return peer_now_ns();
#endif
}

/* A round trip that began at `before` is over; the time now. */
static inline uint64_t peer_sample(peer_t *p, uint64_t before)
{
    uint64_t after = peer_ticks(), took = after - before;
    p->samples[p->n_samples++ & (PEER_SAMPLES - 1)] = took > UINT32_MAX ? UINT32_MAX : (uint32_t)took;
    return after;
}

/* --- options --------------------------------------------------------------------------------------------- */

static inline uint64_t peer_number(const peer_t *p, const char *name, const char *text, uint64_t min, uint64_t max)
{
    char *end = NULL;
    unsigned long long v = text ? strtoull(text, &end, 10) : 0;
    if (!text || *text < '0' || *text > '9' || *end || v < min || v > max) {
        fprintf(stderr, "%s: %s needs a number between %llu and %llu\n", p->name, name, (unsigned long long)min,
                (unsigned long long)max);
        exit(2);
    }
    return v;
}

/* Is it one of "a|b|c"? */
static inline bool peer_is_way(const char *ways, const char *word)
{
    const size_t n = strlen(word);
    for (const char *at = ways; at; at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL)
        if (n && !strncmp(at, word, n) && (at[n] == '|' || !at[n]))
            return true;
    return false;
}

/* NAME WAY [options]. Exits with 2 after a sentence. What the caller has put into *p is the default. */
static inline void peer_options(peer_t *p, int argc, char **argv)
{
    if (argc < 2 || !peer_is_way(p->ways, argv[1])) {
        fprintf(stderr, "usage: %s %s%s [--size N] [--header N] [--window N] [--seconds S] [--count N] [--no-pin]\n",
                p->name, p->ways, p->takes_certs ? " [--certs DIR]" : "");
        exit(2);
    }
    p->way = argv[1];
    p->seconds = 1;
    p->pin = true;
    for (int i = 2; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(name, "--no-pin")) {
            p->pin = false;
            continue;
        }
        if (!strcmp(name, "--size")) {
            p->size = peer_number(p, name, value, 0, UINT64_C(1) << 32);
            p->sized = true;
        } else if (!strcmp(name, "--header")) {
            p->header = peer_number(p, name, value, 0, 4096);
        } else if (!strcmp(name, "--window")) {
            p->window = peer_number(p, name, value, 1, PEER_WINDOW_MAX);
        } else if (!strcmp(name, "--count")) {
            p->count = peer_number(p, name, value, 1, UINT64_C(100000000000));
        } else if (!strcmp(name, "--certs") && p->takes_certs && value && strlen(value) < 4096) {
            p->certs = value;
        } else if (!strcmp(name, "--seconds") && value && (p->seconds = atof(value)) > 0 && p->seconds <= 600) {
        } else {
            fprintf(stderr, "%s: %s is no option, or its value is not right\n", p->name, name);
            exit(2);
        }
        i++;
    }
}

/* --- processes ------------------------------------------------------------------------------------------- */

/* The server has the first core that may be used, the client the second. */
static inline void peer_pin(const peer_t *p, unsigned nth)
{
    cpu_set_t allowed, one;
    if (!p->pin || sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) < 2)
        return;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && !nth--) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
}

/* Both processes, each on its core: true in the server. Before any library is opened: most survive no fork. */
static inline bool peer_fork(peer_t *p)
{
    pid_t parent = getpid();
    signal(SIGPIPE, SIG_IGN);
    p->child = fork();
    if (p->child < 0)
        peer_die(p, "fork", strerror(errno));
    if (!p->child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    peer_pin(p, p->child ? 1 : 0);
    return !p->child;
}

/* The client calls this now and then while it waits. */
static inline void peer_look_around(const peer_t *p, uint64_t deadline)
{
    if (waitpid(p->child, NULL, WNOHANG))
        peer_die(p, "the server", "is gone");
    if (peer_now_ns() > deadline)
        peer_die(p, "the server", "said nothing for too long");
}

/* The server's exit status, if it ends in time. */
static inline int peer_reap(const peer_t *p)
{
    int status = 1 << 8;
    uint64_t deadline = peer_now_ns() + 10 * PEER_SECOND;
    pid_t got;
    while ((got = waitpid(p->child, &status, WNOHANG)) == 0 && peer_now_ns() < deadline)
        usleep(1000);
    if (got == 0) {
        kill(p->child, SIGKILL);
        waitpid(p->child, &status, 0);
    }
    if (WIFSIGNALED(status))
        fprintf(stderr, "%s: the server was killed by signal %d\n", p->name, WTERMSIG(status));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* End a server that serves until it is ended. */
static inline void peer_end(const peer_t *p)
{
    kill(p->child, SIGKILL);
    waitpid(p->child, NULL, 0);
}

/* What the server has to say before anything can begin, through a pipe. */
static inline void peer_tell(const peer_t *p, int fd, const char *text)
{
    if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        peer_die(p, "the client", "is gone");
    close(fd);
}

/* And the client's end of it: until the server closes its. */
static inline void peer_told(const peer_t *p, int fd, char *text, size_t cap)
{
    size_t at = 0;
    ssize_t n;
    while (at < cap - 1 && ((n = read(fd, text + at, cap - 1 - at)) > 0 || (n < 0 && errno == EINTR)))
        at += n > 0 ? (size_t)n : 0;
    text[at] = '\0';
    close(fd);
    if (!at)
        peer_die(p, "the server", "did not come up");
}

/* --- measuring ------------------------------------------------------------------------------------------- */

typedef uint64_t (*peer_run_fn)(void *user, uint64_t count); /* do so many; nanoseconds */

static inline int peer_by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Warm up, and find how many fill the time asked for. */
static inline uint64_t peer_choose_count(const peer_t *p, peer_run_fn run, void *user)
{
    /* Runs of growing length, the last of which is long enough to be believed. If something disturbed that one, it promises too
     * few; the fastest, if it fitted into some buffer, too many. */
    const double least = p->seconds / 5 < 0.05 ? p->seconds / 5 * 1e9 : 0.05e9;
    uint64_t count = p->size > 1 << 18 ? 4 : 256, ns;
    double rate, fastest = 0;
    if (p->count) {
        run(user, p->count / 10 + 1);
        return p->count;
    }
    while (true) {
        ns = run(user, count);
        rate = (double)count / (double)(ns + 1);
        fastest = rate > fastest ? rate : fastest;
        if ((double)ns >= least)
            break;
        count *= 4;
    }
    count = (uint64_t)((fastest < 3 * rate ? fastest : 3 * rate) * p->seconds * 1e9);
    return count ? count : 1;
}

/* Measure, and print. `half`: a time is that of half a round trip. */
static inline void peer_measure(peer_t *p, peer_run_fn run, void *user, bool half)
{
    const uint64_t count = peer_choose_count(p, run, user);
    uint64_t t0, t1, ns;
    double avg_us, p50_us;
    p->n_samples = 0;
    t0 = peer_ticks();
    ns = run(user, count);
    t1 = peer_ticks();
    avg_us = p50_us = (double)ns / 1e3 / (double)count / (half ? 2 : 1);
    if (p->samples && p->n_samples) {
        uint32_t n = p->n_samples < PEER_SAMPLES ? (uint32_t)p->n_samples : PEER_SAMPLES;
        qsort(p->samples, n, sizeof *p->samples, peer_by_value);
        p50_us = (double)p->samples[n / 2] * ((double)ns / (double)(t1 - t0)) / 1e3 / (half ? 2 : 1);
    }
    printf("{\"test\": \"%s\", \"size\": %llu, \"header\": %llu, \"window\": %llu, \"iterations\": %llu, \"seconds\": %.9f, "
           "\"avg_us\": %.5f, \"p50_us\": %.5f, \"mb_s\": %.3f, \"msg_s\": %.1f}\n",
           p->way, (unsigned long long)p->size, (unsigned long long)p->header, (unsigned long long)p->window,
           (unsigned long long)count,
           (double)ns / 1e9, avg_us, p50_us, (double)p->size / 1.048576 / avg_us, 1e6 / avg_us);
    fflush(stdout);
}

/* Room for samples, touched. */
static inline void peer_keep_samples(peer_t *p)
{
    p->samples = (uint32_t *)malloc(PEER_SAMPLES * sizeof *p->samples);
    if (!p->samples)
        peer_die(p, "samples", "out of memory");
    memset(p->samples, 0, PEER_SAMPLES * sizeof *p->samples);
}

#endif
