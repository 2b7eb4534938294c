/* tests/wire/lib/shm_side.h - the shm transport without the rest of a fabric, and lanes whose upcalls are counted.
 *
 * For tests that need what the common lane tests cannot give: several processes, thousands of lanes, a peer that writes into
 * the shared memory itself. A side is a runtime's transport; an end is one half of a lane. Failures end the test (exit 1). */
#ifndef WEFT_TESTS_SHM_SIDE_H
#define WEFT_TESTS_SHM_SIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fabric/shm/internal.h"

#ifndef SHM_SECONDS
#define SHM_SECONDS 50
#endif
#define SHM_OFFERS 64

typedef struct shm_end shm_end_t;

typedef struct shm_side {
    wefti_fabric_t fabric;
    wefti_transport_t *transport;
    bool in_progress;
    uint64_t sleeps, slept_out; /* sleeps, and those that nothing ended */
} shm_side_t;

struct shm_end {
    shm_side_t *side;
    wefti_lane_t *lane;
    uint8_t addr[256];
    size_t addr_n;
    uint64_t records;
    unsigned announced, withdrawn, rooms, failed, closed;
    weft_status_t why;
    uint8_t last[64];
    size_t last_n;
    wefti_pull_t *offer[SHM_OFFERS]; /* in order; NULL once withdrawn */
    uint64_t offer_total[SHM_OFFERS];
    void (*on_record)(shm_end_t *e, const void *rec, size_t n);
    void (*on_room)(shm_end_t *e);
    void (*on_announced)(shm_end_t *e, wefti_pull_t *p, uint64_t total); /* then it is not kept in offer[] */
    void *user;
};

typedef struct shm_xfer {
    wefti_xfer_t x;
    unsigned done;
    weft_status_t status;
} shm_xfer_t;

void shm_side_open(shm_side_t *s, uint64_t ring, const char *copy);
void shm_side_close(shm_side_t *s);
unsigned shm_progress(shm_side_t *s);
/* Sleep until something happens, at most `ms`. */
void shm_sleep(shm_side_t *s, int ms);

/* One half of a lane: of a listener whose dialler is not known yet; or of the one that has dialled `listener`. */
void shm_end_new(shm_side_t *s, shm_end_t *e);
void shm_end_call(shm_side_t *s, shm_end_t *e, shm_side_t *listener);
weft_status_t shm_end_try(shm_side_t *s, shm_end_t *e, shm_side_t *listener); /* listener NULL: as shm_end_new() */
/* Sign an address that was changed as the owner of `as` would; before that one is connected. */
void shm_end_sign(shm_end_t *as, uint8_t *addr);
void shm_join(shm_side_t *a, shm_end_t *ea, shm_side_t *b, shm_end_t *eb); /* both in this process */
void shm_meet(shm_side_t *s, shm_end_t *e, int fd);                        /* over one end of a socketpair */
void shm_end_close(shm_end_t *e);                                          /* and wait for lane_closed */

bool shm_send(shm_end_t *e, const void *rec, size_t n);
void shm_xfer_init(shm_xfer_t *x);
weft_status_t shm_announce(shm_end_t *e, const weft_iov_t *iov, size_t iov_n, shm_xfer_t *x);
void shm_pull(shm_end_t *e, unsigned i, const weft_iov_t *iov, size_t iov_n, uint64_t want, shm_xfer_t *x);

/* Run fn(fd, arg) in a child; its exit status is checked by shm_child_end(). */
pid_t shm_child(void (*fn)(int fd, void *arg), void *arg, int *fd_out);
void shm_child_end(pid_t pid);
void shm_tell(int fd);   /* one byte */
void shm_hear(int fd);
unsigned shm_open_fds(void);
unsigned shm_maps(void); /* mappings of ours in this process */

double shm_now(void);
void shm_die(const char *file, int line, const char *what);

#define SHM_UNTIL2(s1, s2, cond) \
    do { \
        double shm_end_at = shm_now() + SHM_SECONDS; \
        while (!(cond)) { \
            shm_progress(s1); \
            if ((s2) != (s1)) \
                shm_progress(s2); \
            if (shm_now() > shm_end_at) \
                shm_die(__FILE__, __LINE__, #cond); \
        } \
    } while (0)
#define SHM_UNTIL(s, cond) SHM_UNTIL2(s, s, cond)

#endif
