/* base/hands.h - idle threads of the process that do a part of a long piece of work: hands.c.
 *
 * The work of an offer is cut in parts with numbers. The thread that made the offer takes parts one by one, and so do the hands;
 * each part is done once. It needs nobody: where no hand is free, its maker takes them all. */
#ifndef WEFTI_HANDS_H
#define WEFTI_HANDS_H

#include <stdbool.h>
#include <stdint.h>

#define WEFTI_HANDS_MOST 16u   /* of a process */
#define WEFTI_PARTS_MOST 1023u /* of an offer */

typedef void (*wefti_hands_fn)(void *arg, uint32_t part);

/* The maker's alone. All zero: none is out. */
typedef struct wefti_offer {
    struct wefti_stand *stand; /* where hands find it; NULL: it is not out */
    wefti_hands_fn fn;
    void *arg;
    uint64_t waits_since;      /* the maker had nothing left to take, and a hand was not done; 0: not so */
} wefti_offer_t;

/* A runtime that may make offers. All zero: it has not begun. */
typedef struct wefti_hands_user {
    uint32_t generation;       /* of the process: a forked child has not begun */
    bool thread;               /* it has a thread of its own */
} wefti_hands_user_t;

/* It begins, and ends; the end of the last one stops all hands and waits for them. */
void wefti_hands_begin(wefti_hands_user_t *user, bool thread);
void wefti_hands_end(wefti_hands_user_t *user);

/* How many hands may help at most, if `wanted` are allowed: one for each processor that the threads of runtimes leave over, or
 * all but one where the program drives. */
uint32_t wefti_hands_free(uint64_t wanted);

/* Offer parts 0 to n - 1 to at most `most` hands: fn(arg, part), on any thread, until the offer is over. False: nobody would come
 * now, and it is not out. */
bool wefti_hands_offer(wefti_offer_t *o, wefti_hands_fn fn, void *arg, uint32_t n, uint32_t most);
/* Do the next part here. False: all are taken. */
bool wefti_hands_work(wefti_offer_t *o);
/* Is every part done? Then the offer is over, and nobody touches anything of it any more. */
bool wefti_hands_over(wefti_offer_t *o);
/* End it: no part is begun any more, and this waits for those that hands are at. It may be over already. */
void wefti_hands_stop(wefti_offer_t *o);

/* For tests: parts that hands have done, in this process; and how many hands it has. */
uint64_t wefti_hands_did(void);
uint32_t wefti_hands_n(void);
/* For tests: as if there were so many processors; 0: as many as there are. And no pauses after a hand that was late. */
extern uint32_t wefti_hands_processors;
extern _Atomic bool wefti_hands_patient;

#endif
