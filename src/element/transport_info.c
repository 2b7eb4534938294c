/* element/transport_info.c - buffers of transports, and what a program may ask of a transport. Any thread. */
#include "element/state.h"

/* --- buffers  --------------------------------------------------------------------------------------------------------- */

static weft_status_t shared_buffer(weft_transport_t *t, size_t size, weft_transport_t *other, weft_buffer_t **buf_out)
{
    weft_buffer_t *buf = weft_transport_buffer(other);
    if (!buf)
        return weft_fail(WEFT_ERR_STATE, "the transport %s has no buffer to share with %s", other->name, t->name);
    if (buf->len < size) {
        weft_fail(WEFT_ERR_RANGE, "the buffer of %s has %zu bytes, and %s is to have %zu", other->name, buf->len, t->name, size);
        weft_buffer_drop(buf);
        return WEFT_ERR_RANGE;
    }
    *buf_out = buf;
    return WEFT_OK;
}

static weft_status_t set_buffer(weft_transport_t *t, weft_buffer_t *buf)
{
    pthread_mutex_lock(&t->lock);
    bool may = t->state != WEFT_TRANSPORT_RELEASED;
    weft_buffer_t *was = may ? t->buf : buf;
    if (may)
        t->buf = buf;
    pthread_mutex_unlock(&t->lock);
    weft_buffer_drop(was);
    return may ? WEFT_OK : weft_fail(WEFT_ERR_CLOSED, "the transport %s was released", t->name);
}

weft_status_t weft_transport_reg(weft_transport_t *trans, size_t size, weft_transport_t *other)
{
    weft_buffer_t *buf = NULL;
    if (!trans)
        return weft_fail(WEFT_ERR_INVALID, "the transport is NULL");
    if (trans->server || (other && other->server))
        return weft_fail(WEFT_ERR_INVALID, "%s is a server: it has its memory, and no buffer",
                         trans->server ? trans->name : other->name);
    weft_status_t st = wefti_transport_enter(trans);
    if (st)
        return st;
    if (other && other->rt != trans->rt)
        st = weft_fail(WEFT_ERR_INVALID, "%s and %s are of two runtimes", trans->name, other->name);
    else
        st = other ? shared_buffer(trans, size, other, &buf) : wefti_element_buffer_new(trans->action, size, &buf);
    if (!st)
        st = set_buffer(trans, buf);
    wefti_transport_leave(trans);
    return st;
}

weft_buffer_t *weft_transport_buffer(weft_transport_t *trans)
{
    weft_buffer_t *buf = NULL;
    if (!trans || weft_ext_check(trans->rt)) /* here and below: before any lock, which may be held for ever in a forked child */
        return NULL;
    pthread_mutex_lock(&trans->lock);
    if (trans->state == WEFT_TRANSPORT_RELEASED) {
        ;
    } else if (trans->server) {
        buf = trans->memory ? wefti_memory_buffer(trans->memory) : NULL;
    } else {
        buf = trans->buf;
        weft_buffer_hold(buf);
    }
    pthread_mutex_unlock(&trans->lock);
    return buf;
}

void *weft_transport_buf(weft_transport_t *trans, size_t *len_out)
{
    void *base = NULL;
    size_t len = 0;
    if (trans && !weft_ext_check(trans->rt)) {
        pthread_mutex_lock(&trans->lock);
        if (trans->state == WEFT_TRANSPORT_RELEASED) {
            ;
        } else if (trans->server) {
            base = weft_memory_base(trans->memory);
            len = base ? trans->stats.len : 0;
        } else if (trans->buf) {
            base = trans->buf->base;
            len = trans->buf->len;
        }
        pthread_mutex_unlock(&trans->lock);
    }
    if (len_out)
        *len_out = len;
    return base;
}

/* --- asking  ---------------------------------------------------------------------------------------------------------- */

weft_transport_state_t weft_transport_state(const weft_transport_t *trans, weft_status_t *why_out)
{
    weft_transport_t *t = (weft_transport_t *)(uintptr_t)trans;
    weft_transport_state_t state = WEFT_TRANSPORT_RELEASED;
    weft_status_t why = WEFT_ERR_INVALID;
    if (t)
        why = weft_ext_check(t->rt);
    if (!why) {
        pthread_mutex_lock(&t->lock);
        state = t->state;
        why = t->why;
        pthread_mutex_unlock(&t->lock);
    }
    if (why_out)
        *why_out = why;
    return state;
}

weft_remote_t *weft_transport_remote(weft_transport_t *trans)
{
    weft_remote_t *remote = NULL;
    if (!trans) {
        weft_fail(WEFT_ERR_INVALID, "the transport is NULL");
        return NULL;
    }
    if (weft_ext_check(trans->rt))
        return NULL;
    pthread_mutex_lock(&trans->lock);
    if (trans->state == WEFT_TRANSPORT_READY && trans->route)
        remote = trans->route->remote;
    if (remote && !wefti_list_linked(&trans->route->pin)) { /* it stays, even if the element is lost */
        wefti_list_push_back(&trans->pins, &trans->route->pin);
        wefti_route_ref(trans->route);
    }
    if (!remote)
        weft_fail(trans->state == WEFT_TRANSPORT_RELEASED ? WEFT_ERR_CLOSED : WEFT_ERR_STATE, "the transport %s is %s%s",
                  trans->name, weft_transport_state_name(trans->state),
                  trans->server                          ? ", a server"
                  : trans->state == WEFT_TRANSPORT_READY ? ", with replicas"
                                                         : "");
    pthread_mutex_unlock(&trans->lock);
    return remote;
}

weft_memory_t *weft_transport_memory(weft_transport_t *trans)
{
    weft_memory_t *memory = NULL;
    if (!trans || weft_ext_check(trans->rt))
        return NULL;
    pthread_mutex_lock(&trans->lock);
    if (trans->server && trans->state == WEFT_TRANSPORT_READY)
        memory = trans->memory;
    pthread_mutex_unlock(&trans->lock);
    return memory;
}

weft_status_t weft_transport_get_stats(weft_transport_t *trans, weft_transport_stats_t *stats_out)
{
    if (!trans || !stats_out || stats_out->size < sizeof stats_out->size)
        return weft_fail(WEFT_ERR_INVALID,
                         trans ? "statistics go to a struct made with WEFT_TRANSPORT_STATS_INIT" : "the transport is NULL");
    weft_transport_stats_t all;
    weft_status_t st = weft_ext_check(trans->rt);
    if (st)
        return st;
    pthread_mutex_lock(&trans->lock);
    bool open = wefti_is_open(&trans->handle); /* that of a released one is there until its action goes */
    if (open)
        all = trans->stats;
    pthread_mutex_unlock(&trans->lock);
    if (!open)
        return weft_fail(WEFT_ERR_CLOSED, "the action of the transport was closed");
    wefti_opts_write(stats_out, &all, sizeof all);
    return WEFT_OK;
}
