/* tests/lib/crew.h - processes that each serve an instance of the service "crew", and a client that finds them in a registry
 * and calls without rest.
 *
 * Half of the calls are of a function marked idempotent, half of one that is not. What became of every call is counted here. */
#ifndef WEFT_TEST_CREW_H
#define WEFT_TEST_CREW_H

#include <sys/types.h>
#include <weft/service.h>
#include <weft/weft.h>

enum { CREW_MAX = 4, CREW_FLIGHT = 32 };

typedef struct crew_count {
    unsigned long ended, ok[CREW_MAX];               /* ok: by who answered */
    unsigned long not_run, may_have_run, ran, late;  /* of those that failed; late: their deadline was over */
} crew_count_t;

typedef struct crew_call {
    weft_op_t op;
    weft_reply_t reply;
    weft_value_t arg;
    bool live, idempotent;
} crew_call_t;

typedef struct crew {
    char place[128]; /* the registry's uri */
    bool own_place;
    pid_t pid[CREW_MAX];
    int to[CREW_MAX];
    int n;
    weft_runtime_t *rt;
    weft_registry_t *registry;
    weft_client_t *client;
    weft_method_t *asks, *does;
    crew_call_t call[CREW_FLIGHT];
    unsigned posted;
    crew_count_t asked, done; /* since crew_forget() */
} crew_t;

/* Fork n processes, which wait for crew_go(); then open a runtime of our own, a registry in a directory of its own, and a
 * client of weft://crew, at most `instances` of it at a time (0: as it is). */
void crew_start(crew_t *c, int n, const char *transports, uint64_t heartbeat_ns, uint32_t instances);
/* The same with another registry. */
void crew_start_at(crew_t *c, const char *registry, int n, const char *transports, uint64_t heartbeat_ns, uint32_t instances);
/* Have one open its service and enter it. */
void crew_go(crew_t *c, int i);
/* Have one drain, close and exit; crew_drained() waits for it. */
void crew_drain(crew_t *c, int i);
void crew_drained(crew_t *c, int i);
void crew_signal(crew_t *c, int i, int sig); /* SIGKILL: and it is waited for */

/* Keep calls under way, one round of it; and until nothing is. Ends the test if that takes longer than 30 s. */
void crew_work(crew_t *c);
void crew_rest(crew_t *c);
void crew_forget(crew_t *c);
static inline unsigned long crew_ok(const crew_t *c, int i) { return c->asked.ok[i] + c->done.ok[i]; }
weft_client_stats_t crew_stats(const crew_t *c);
/* Kill who is left, close everything. */
void crew_end(crew_t *c);

/* Work until it holds. Needs test.h. */
#define CREW_UNTIL(c, cond, seconds) \
    do { \
        double crew_limit = test_now() + (seconds); \
        while (!(cond)) { \
            crew_work(c); \
            if (test_now() > crew_limit) \
                FAIL("%s did not come true within %.1f s", #cond, (double)(seconds)); \
        } \
    } while (0)

#endif
