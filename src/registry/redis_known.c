/* registry/redis_known.c - what a Redis server had when it was last listed, so that only changed values are fetched.
 *
 *     there --not in the next list--> lost --REDIS_GRACE_NS--> forgotten
 *                                     lost --in a list again--> there
 *     there --its key is empty: it has left--> forgotten
 *
 * A server that was emptied, or started again without its data, shows nothing until all living processes have put their entries
 * back. So an entry that disappears is kept for a while; a process that leaves says so. This holds only if the last list is
 * recent: after a longer break a missing entry is gone.
 *
 * Values are anyone's bytes: a value that is no entry of its name is remembered as strange, and not fetched again until it
 * changes.
 *
 * Promise: in order, each name once; nothing strange is told. tests/unit/registry_redis.c. */
#include "registry/redis.h"

bool wefti_redis_known_add(redis_known_t *k, const char *name, size_t name_n, const void *head, size_t head_n)
{
    if (!name_n || name_n > REDIS_NAME_MAX || memchr(name, 0, name_n) || (head_n && head_n != REDIS_HEAD))
        return true;
    if (!wefti_grow(&k->at, &k->cap, k->n + 1, sizeof *k->at))
        return false;
    redis_seen_t *s = &k->at[k->n++];
    memset(s, 0, sizeof *s);
    memcpy(s->name, name, name_n);
    if (head_n)
        memcpy(s->head, head, head_n);
    else
        s->fetched = true; /* there is nothing to fetch */
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const redis_seen_t *)a)->name, ((const redis_seen_t *)b)->name);
}

static void drop(redis_seen_t *s)
{
    wefti_reg_entry_unref(s->entry);
    s->entry = NULL;
}

static void sort(redis_known_t *k)
{
    size_t n = 0;
    if (k->n)
        qsort(k->at, k->n, sizeof *k->at, by_name);
    for (size_t i = 0; i < k->n; i++)
        if (n && !strcmp(k->at[n - 1].name, k->at[i].name))
            drop(&k->at[i]);
        else
            k->at[n++] = k->at[i];
    k->n = n;
}

bool wefti_redis_known_turn(redis_known_t *old, redis_known_t *now, uint64_t time)
{
    bool looked = old->asked_at && time - old->asked_at < REDIS_GRACE_NS;
    size_t i = 0, fresh, lost = 0;
    sort(now);
    fresh = now->n;
    for (size_t k = 0; k < old->n; k++) {
        redis_seen_t *s = &old->at[k];
        while (i < fresh && strcmp(now->at[i].name, s->name) < 0)
            i++;
        if (i < fresh && !strcmp(now->at[i].name, s->name)) {
            if (s->fetched && !now->at[i].fetched && !memcmp(s->head, now->at[i].head, REDIS_HEAD)) {
                now->at[i].fetched = true;
                now->at[i].entry = s->entry ? wefti_reg_entry_ref(s->entry) : NULL;
            }
            continue;
        }
        if (!s->lost_at)
            s->lost_at = time;
        if (!s->entry || !looked || time - s->lost_at >= REDIS_GRACE_NS)
            continue;
        if (!wefti_redis_known_add(now, s->name, strlen(s->name), s->head, REDIS_HEAD))
            return false;
        redis_seen_t *kept = &now->at[now->n - 1];
        kept->fetched = true;
        kept->entry = wefti_reg_entry_ref(s->entry);
        kept->lost_at = s->lost_at;
        lost++;
    }
    if (lost)
        sort(now);
    wefti_redis_known_free(old);
    *old = *now;
    old->asked_at = time;
    memset(now, 0, sizeof *now);
    return true;
}

bool wefti_redis_known_value(redis_seen_t *s, const void *value, size_t n)
{
    reg_entry_t *e = NULL;
    const uint8_t *bytes = (const uint8_t *)value;
    if (n > REDIS_HEAD && wefti_reg_entry_decode_as(s->name, bytes + REDIS_HEAD, n - REDIS_HEAD, &e) == WEFT_ERR_NOMEM)
        return false;
    if (n >= REDIS_HEAD) /* it may have changed since it was listed */
        memcpy(s->head, bytes, REDIS_HEAD);
    drop(s);
    s->entry = e;
    s->fetched = n != 0; /* else it is gone since it was listed; the next list says how */
    return true;
}

weft_status_t wefti_redis_known_tell(const redis_known_t *k, bool believed, reg_found_t *found)
{
    weft_status_t st = WEFT_OK;
    for (size_t i = 0; !st && i < k->n; i++)
        if (k->at[i].entry && (believed || !k->at[i].lost_at))
            st = wefti_reg_found_add(found, wefti_reg_entry_ref(k->at[i].entry));
    return st;
}

void wefti_redis_known_free(redis_known_t *k)
{
    for (size_t i = 0; i < k->n; i++)
        drop(&k->at[i]);
    wefti_free(k->at);
    memset(k, 0, sizeof *k);
}
