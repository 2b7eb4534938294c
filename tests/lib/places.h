/* tests/lib/places.h - a registry in a place of its own, and what its watch was told. */
#ifndef WEFT_TEST_PLACES_H
#define WEFT_TEST_PLACES_H

#include <sys/types.h>
#include <weft/weft.h>

typedef struct place {
    weft_runtime_t *rt;
    weft_registry_t *registry;
    char uri[128];
} place_t;

/* A directory that nobody else has, as dir://...; removed by place_remove(), with what is in it. */
void place_new(char uri[128]);
void place_remove(const char *uri);

void place_open(place_t *p, const char *uri, weft_progress_mode_t mode);
/* The same with a lease; 0: the usual. */
void place_open_lease(place_t *p, const char *uri, weft_progress_mode_t mode, uint64_t lease_ns);
void place_close(place_t *p);

/* Each ends the test if it takes longer than 20 s. */
weft_status_t place_wait(weft_op_t *op);
weft_status_t place_enter(place_t *p, const char *service, const char *instance, uint32_t load);
weft_status_t place_leave(place_t *p, const char *service, const char *instance);
/* How many instances of a service (NULL: of all) there are; negative: the status. */
long place_count(place_t *p, const char *service);

/* A process that opens the registry and lives `life`, at most as long as we do; *from_out is a socket to it, whose other end it
 * has as `out`. */
typedef void (*place_life_t)(place_t *p, int out);
pid_t place_born(const char *uri, uint64_t lease_ns, place_life_t life, int *from_out);
void place_say(int out, char c);
char place_heard(int from); /* 0: it has ended */
void place_end_of(pid_t pid, int from); /* kill -9 */

/* What a watch knows by what it was told; a change that cannot be (a second coming, a going of what is not there) ends the
 * test. */
typedef struct seen {
    unsigned came, changed, went, there;
    uint32_t load; /* of the last */
    char names[2048][64];
} seen_t;
void seen_change(weft_change_t change, const weft_entry_t *entry, void *user);

/* Drive until it holds. Needs test.h. */
#define PLACE_UNTIL(p, cond, seconds) \
    do { \
        double place_end = test_now() + (seconds); \
        while (!(cond)) { \
            weft_runtime_progress((p)->rt); \
            usleep(200); \
            if (test_now() > place_end) \
                FAIL("%s did not come true within %.1f s", #cond, (double)(seconds)); \
        } \
    } while (0)

#endif
