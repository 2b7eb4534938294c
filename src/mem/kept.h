/* mem/kept.h - things that are found by the name of an allocation, used by several at a time, and kept for a moment when nobody
 * uses them: kept.c. */
#ifndef WEFTI_MEM_KEPT_H
#define WEFTI_MEM_KEPT_H

#include "core/core.h"

typedef struct wefti_kept {
    wefti_list_t link;
    uint8_t name[16];
    _Atomic uint32_t refs; /* other threads only change it when it is parted */
    bool distrusted;       /* nobody finds it any more */
    bool parted;           /* it outlives its keeper: the owner lets go of it */
    uint64_t idle_since;
} wefti_kept_t;

typedef struct wefti_keeper {
    /* set by the owner */
    weft_runtime_t *rt;
    uint64_t keep_ns; /* how long without a use */
    void (*forget)(wefti_kept_t *k);
    const char *what; /* for the log, if a runtime ends with one in use */
    bool (*may)(void); /* forget one that is idle now, if that is not yet needed? NULL: always */
    /* kept.c's */
    wefti_timer_t timer;
    wefti_list_t list; /* the last used first */
    uint32_t n;
} wefti_keeper_t;

void wefti_keeper_init(wefti_keeper_t *all);
void wefti_keeper_close(wefti_keeper_t *all); /* all of them go */
/* The one of that name, in front now; NULL: there is none. */
wefti_kept_t *wefti_kept_find(wefti_keeper_t *all, const uint8_t *name);
/* Is there space for one more? One that nobody uses makes it: the one that was idle for longest. */
bool wefti_kept_space(wefti_keeper_t *all, uint32_t max);
void wefti_kept_add(wefti_keeper_t *all, wefti_kept_t *k, const uint8_t *name); /* in use by nobody */
void wefti_kept_drop(wefti_keeper_t *all, wefti_kept_t *k);   /* it goes at once */
/* One user less. at_once: it goes with the last. */
void wefti_kept_unref(wefti_keeper_t *all, wefti_kept_t *k, bool at_once);
void wefti_kept_part(wefti_keeper_t *all, wefti_kept_t *k); /* the keeper knows it no more */

#endif
