/* tests/wire/lib/pair.h - two runtimes in one process, connected over a chosen transport. */
#ifndef WEFT_TEST_PAIR_H
#define WEFT_TEST_PAIR_H

#include <weft/weft.h>

typedef struct pair {
    weft_runtime_t *rt[2];
    weft_listener_t *listener;
    weft_ep_t *ep[2]; /* ep[0] was accepted, ep[1] connected */
} pair_t;

/* The ways every behaviour is tested in: "shm" and "tcp", driven by the caller and by threads; and UCX, over its TCP. */
typedef struct pair_way {
    const char *transports;
    weft_progress_mode_t mode;
} pair_way_t;
enum { PAIR_WAYS = 5 };
extern const pair_way_t pair_ways[PAIR_WAYS];
unsigned pair_ways_here(void); /* how many of them: the last is UCX, which has no TLS */
#define each_way(way) for (const pair_way_t *way = pair_ways; way < pair_ways + pair_ways_here(); way++)

/* Open both runtimes (opts may be NULL; transports and mode are laid over it), connect them. Ends the test if that fails. */
void pair_open(pair_t *pair, const pair_way_t *way, const weft_runtime_opts_t *opts);
/* Drive both until the operation is complete, its status; ends the test after `seconds`. */
weft_status_t pair_wait(pair_t *pair, weft_op_t *op, double seconds);
/* Drive both for a while. */
void pair_run(pair_t *pair, double seconds);
/* Drive both once, and until the condition holds; ends the test if it does not within `seconds`. Needs test.h. */
void pair_drive(pair_t *pair);
#define PAIR_UNTIL(pair, cond, seconds) \
    do { \
        double pair_end = test_now() + (seconds); \
        while (!(cond)) { \
            pair_drive(pair); \
            if (test_now() > pair_end) \
                FAIL("%s did not come true within %.1f s", #cond, (double)(seconds)); \
        } \
    } while (0)
/* Close whatever is still open. */
void pair_close(pair_t *pair);

/* Bytes that tell where they should be: pattern_check returns the first wrong index, or len. */
void pattern_fill(void *buf, size_t len, uint64_t seed);
size_t pattern_check(const void *buf, size_t len, uint64_t seed);

#endif
