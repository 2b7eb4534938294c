/* store/alarm.c - timers of the server's side, which has no driver of its own.
 *
 * A timer belongs to one driver, and no other can move or stop it. The driver of any shard may answer a client, and grant it a
 * lease. So an alarm is set on the driver that wants it. A driver that wants to move one that another has sets one of its own;
 * one that wants to stop it lets go of it. What nobody has any more is freed when it goes off, or when its shard closes.
 *
 * With one shard an alarm is a timer. tests/wire/store_shards.c. */
#include "store/state.h"

struct store_alarm {
    weft_ext_timer_t timer;
    store_state_t *ss;     /* whose driver has it */
    wefti_list_t link;     /* ss->alarms */
    store_alarm_t **owner; /* NULL: nobody has it any more */
    store_alarm_fn fn;
    void *user;
};

store_state_t *wefti_store_here(const store_state_t *ss)
{
    uint32_t k = weft_runtime_shard(ss->head->rt);
    return k < WEFT_SHARDS_MAX ? ss->head->shards[k] : NULL;
}

bool wefti_store_alarm_here(const store_state_t *ss, const store_alarm_t *alarm)
{
    return alarm && alarm->ss == wefti_store_here(ss);
}

static void alarm_free(store_alarm_t *a)
{
    wefti_list_remove(&a->link);
    wefti_free(a);
}

static void goes_off(weft_ext_timer_t *t)
{
    store_alarm_t *a = wefti_container_of(t, store_alarm_t, timer);
    store_state_t *head = a->ss->head;
    pthread_mutex_lock(&head->lock);
    if (a->owner)
        a->fn(a->user, t->when);
    else
        alarm_free(a);
    pthread_mutex_unlock(&head->lock);
}

weft_status_t wefti_store_alarm_set(store_state_t *ss, store_alarm_t **alarm, uint64_t when, store_alarm_fn fn, void *user)
{
    store_state_t *now = wefti_store_here(ss);
    store_alarm_t *a = *alarm;
    if (!now)
        return WEFT_ERR_STATE;
    if (a && a->ss == now)
        return weft_ext_timer_set(now->rt, &a->timer, when);
    a = (store_alarm_t *)wefti_calloc(1, sizeof *a);
    if (!a)
        return WEFT_ERR_NOMEM;
    a->timer.fn = goes_off;
    a->ss = now;
    a->owner = alarm;
    a->fn = fn;
    a->user = user;
    weft_status_t st = weft_ext_timer_set(now->rt, &a->timer, when);
    if (st) {
        wefti_free(a);
        return st;
    }
    wefti_store_alarm_stop(alarm);
    wefti_list_push_back(&now->alarms, &a->link);
    *alarm = a;
    return WEFT_OK;
}

void wefti_store_alarm_stop(store_alarm_t **alarm)
{
    store_alarm_t *a = *alarm;
    *alarm = NULL;
    if (!a)
        return;
    a->owner = NULL;
    if (a->ss != wefti_store_here(a->ss))
        return;
    weft_ext_timer_stop(a->ss->rt, &a->timer);
    alarm_free(a);
}

void wefti_store_alarms_free(store_state_t *ss)
{
    pthread_mutex_lock(&ss->head->lock);
    for (wefti_list_t *l; (l = wefti_list_pop(&ss->alarms));) {
        store_alarm_t *a = wefti_container_of(l, store_alarm_t, link);
        if (a->owner)
            *a->owner = NULL;
        wefti_free(a);
    }
    pthread_mutex_unlock(&ss->head->lock);
}
