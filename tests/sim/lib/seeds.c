/* tests/sim/lib/seeds.c - the loop over seeds, and how a failure is told. */
#include "seeds.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
#include <weft/weft.h>

#include "heap_count.h"

#define SEED_SECONDS 120 /* of processor time, for 256 seeds: they take seconds at most, also on a busy machine */
#define TWICE_EVERY 32   /* one seed in so many is run twice */

bool sim_tell;
unsigned sim_shards = 1;
static const char *program = "program";
static volatile uint64_t current;
static const uint64_t *once_failed;
static size_t n_once_failed;

/* What a replay needs beside the seed. */
static const char *shards_text(void)
{
    static char text[24];
    if (sim_shards > 1)
        snprintf(text, sizeof text, " --shards %u", sim_shards);
    return text;
}

void sim_seed_failed(uint64_t seed, const char *what)
{
    fflush(stdout);
    fprintf(stderr, "seed %" PRIu64 " failed: %s; replay: %s --seed %" PRIu64 "%s\n", seed, what, program, seed, shards_text());
    _exit(1);
}

/* A crash or an endless loop in the library is a failed seed as well. Only write() is safe here. */
static void on_signal(int sig)
{
    char line[512];
    int n = snprintf(line, sizeof line, "seed %" PRIu64 " failed: %s; replay: %s --seed %" PRIu64 "%s\n", current,
                     sig == SIGPROF   ? "no end"
                     : sig == SIGABRT ? "aborted"
                                      : "crashed",
                     program, current, shards_text());
    if (write(2, line, (size_t)n) < 0 || sig == SIGPROF)
        _exit(1);
    signal(sig, SIG_DFL);
    raise(sig); /* for the core and the debugger */
}

static void give_time(void)
{
    struct itimerval it = {.it_value = {.tv_sec = SEED_SECONDS}};
    setitimer(ITIMER_PROF, &it, NULL);
}

static void run(sim_scenario_fn scenario, uint64_t seed, bool twice)
{
    current = seed;
    long before = heap_count();
    uint64_t hash = scenario(seed);
    long left = heap_count() - before;
    if (left > 0 || twice) {
        /* something is made once per process by whoever needs it first; what a second run leaves is a leak */
        before = heap_count();
        uint64_t again = scenario(seed);
        if (again != hash)
            sim_seed_failed(seed, "two runs of it differ");
        if (left > 0 && heap_count() - before > 0)
            sim_seed_failed(seed, "it leaves memory behind");
    }
    if (sim_tell)
        printf("seed %" PRIu64 " hash %016" PRIx64 "\n", seed, hash);
}

void sim_seeds_once_failed(const uint64_t *seeds, size_t n)
{
    once_failed = seeds;
    n_once_failed = n;
}

static uint64_t number(const char *text)
{
    char *end;
    uint64_t n = strtoull(text, &end, 0);
    if (!*text || *end) {
        fprintf(stderr, "%s: \"%s\" is not a number\n", program, text);
        exit(2);
    }
    return n;
}

int sim_seeds_main(int argc, char **argv, unsigned seeds, sim_scenario_fn scenario)
{
    uint64_t first = 1, n = seeds;
    bool terminal = isatty(1);
    program = argv[0];
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--seeds") && more) {
            n = number(argv[++i]);
        } else if (!strcmp(argv[i], "--first") && more) {
            first = number(argv[++i]);
        } else if (!strcmp(argv[i], "--seed") && more) {
            first = number(argv[++i]);
            n = 1;
            n_once_failed = 0;
            sim_tell = true;
        } else if (!strcmp(argv[i], "--shards") && more) {
            sim_shards = (unsigned)number(argv[++i]);
            n_once_failed = 0; /* they were seeds of another scenario */
        } else if (!strcmp(argv[i], "--tell")) {
            sim_tell = true;
        } else {
            fprintf(stderr, "usage: %s [--seeds N] [--first S] [--seed S] [--shards N] [--tell]\n", program);
            return 2;
        }
    }
    if (!getenv("WEFT_LOG"))
        weft_log_set_level(WEFT_LOG_NONE); /* failures are what these runs are made of */
    signal(SIGPROF, on_signal);
    signal(SIGABRT, on_signal);
#ifndef HEAP_COUNT_SANITIZED
    signal(SIGSEGV, on_signal);
    signal(SIGBUS, on_signal);
#endif
    give_time();
    for (size_t i = 0; i < n_once_failed; i++)
        run(scenario, once_failed[i], false);
    for (uint64_t i = 0; i < n; i++) {
        if (i % 256 == 0)
            give_time();
        if (terminal && i % 256 == 0) {
            printf("\r%" PRIu64 " of %" PRIu64 " seeds", i, n);
            fflush(stdout);
        }
        run(scenario, first + i, i % TWICE_EVERY == 0);
    }
    printf("%s%" PRIu64 " seeds from %" PRIu64 " on passed\n", terminal ? "\r" : "", n, first);
    return 0;
}
