/* mem/kept.c - things that are found by the name of an allocation: memory of others that is open here (imports.c), descriptors
 * that others may take (held.c).
 *
 * One is IN USE (refs > 0) or IDLE. Idle ones stay for keep_ns, because making one takes long; but not longer, because memory
 * that its owner has freed stays allocated for as long as one is there. They lie in a list, the last used first; looking
 * through it costs less than the copy that follows.
 *
 * Promise: what is in use never goes; what is idle does, within two keep_ns of a runtime that is driven (or of the moment in
 * which may() says so), and at its end.
 * tests/unit/mem_share.c, tests/unit/mem_fd.c. */
#include "mem/kept.h"

#include <string.h>

#include "base/log.h"

static void take_out(wefti_keeper_t *all, wefti_kept_t *k)
{
    wefti_list_remove(&k->link);
    all->n--;
}

void wefti_kept_drop(wefti_keeper_t *all, wefti_kept_t *k)
{
    take_out(all, k);
    all->forget(k);
}

void wefti_kept_part(wefti_keeper_t *all, wefti_kept_t *k)
{
    take_out(all, k);
    k->parted = true;
}

static void on_sweep(wefti_timer_t *t)
{
    wefti_keeper_t *all = wefti_container_of(t, wefti_keeper_t, timer);
    uint64_t now = all->rt->now;
    bool more = false, may = !all->may || all->may();
    wefti_list_each_safe(l, &all->list) {
        wefti_kept_t *k = wefti_container_of(l, wefti_kept_t, link);
        if (may && !k->refs && now - k->idle_since >= all->keep_ns)
            wefti_kept_drop(all, k);
        else
            more = more || !k->refs;
    }
    if (more)
        (void)wefti_timer_at(all->rt, &all->timer, now + all->keep_ns); /* without memory for it: when the next becomes idle */
}

void wefti_keeper_init(wefti_keeper_t *all)
{
    all->timer.fn = on_sweep;
    wefti_list_init(&all->list);
}

void wefti_keeper_close(wefti_keeper_t *all)
{
    wefti_list_each_safe(l, &all->list) {
        wefti_kept_t *k = wefti_container_of(l, wefti_kept_t, link);
        if (k->refs)
            wefti_error("mem: a runtime ends with %s still in use", all->what);
        wefti_kept_drop(all, k);
    }
}

wefti_kept_t *wefti_kept_find(wefti_keeper_t *all, const uint8_t *name)
{
    wefti_list_each(l, &all->list) {
        wefti_kept_t *k = wefti_container_of(l, wefti_kept_t, link);
        if (k->distrusted || memcmp(k->name, name, sizeof k->name))
            continue;
        if (all->list.next != l) {
            wefti_list_remove(l);
            wefti_list_push_front(&all->list, l);
        }
        return k;
    }
    return NULL;
}

bool wefti_kept_space(wefti_keeper_t *all, uint32_t max)
{
    for (wefti_list_t *l = all->list.prev; all->n >= max && l != &all->list;) {
        wefti_kept_t *k = wefti_container_of(l, wefti_kept_t, link);
        l = l->prev;
        if (!k->refs)
            wefti_kept_drop(all, k);
    }
    return all->n < max;
}

void wefti_kept_add(wefti_keeper_t *all, wefti_kept_t *k, const uint8_t *name)
{
    memcpy(k->name, name, sizeof k->name);
    k->idle_since = all->rt->now;
    wefti_list_push_front(&all->list, &k->link);
    all->n++;
}

void wefti_kept_unref(wefti_keeper_t *all, wefti_kept_t *k, bool at_once)
{
    if (--k->refs)
        return;
    k->idle_since = all->rt->now;
    if (at_once)
        wefti_kept_drop(all, k);
    else if (!wefti_heap_linked(&all->timer.node))
        (void)wefti_timer_at(all->rt, &all->timer, all->rt->now + all->keep_ns);
}
