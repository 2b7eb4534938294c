/* store/request.c - the client's half of replicas: the requests of replica.h, and their answers.
 *
 * Each is one request; what it means is up to mirror*.c. tests/wire/store_replica.c. */
#include "store/state.h"

void wefti_store_replica_answer(store_ask_t *a, const store_reply_t *p)
{
    wefti_replica_answer_t *out = (wefti_replica_answer_t *)a->out;
    if (a->op && p->flags & STORE_BODY) {
        out->rec = p->rec;
        out->stamp = p->stamp;
        out->bytes = p->len;
        out->key_len = p->status ? 0 : p->key_len;
        memcpy(out->key, p->key, out->key_len);
    }
    wefti_store_ask_end(a, p->status);
}

static weft_status_t ask(weft_store_t *store, uint8_t kind, const char *name, void *out, weft_op_t *op, store_ask_t **ask_out)
{
    weft_status_t st = store && op ? wefti_store_check_name(name, "a mirror")
                                   : weft_fail(WEFT_ERR_INVALID, "%s is NULL", store ? "the operation" : "the store");
    if (st)
        return st;
    store_ask_t *a = wefti_store_ask_new(store, kind, name);
    if (!a)
        return weft_fail(WEFT_ERR_NOMEM, "no memory for a request");
    a->out = out;
    *ask_out = a;
    return WEFT_OK;
}

weft_status_t wefti_replica_make(weft_store_t *store, const char *name, uint64_t bytes, const wefti_replica_t *rec,
                                 wefti_replica_answer_t *out, weft_op_t *op)
{
    store_ask_t *a = NULL;
    if (!wefti_replica_ok(rec) || !bytes)
        return weft_fail(WEFT_ERR_INVALID, "a record of a mirror that no server takes");
    weft_status_t st = ask(store, STORE_R_MAKE, name, out, op, &a);
    if (st)
        return st;
    a->q.len = bytes;
    a->q.rec = *rec;
    return wefti_store_ask_go(a, op);
}

weft_status_t wefti_replica_get(weft_store_t *store, const char *name, wefti_replica_answer_t *out, weft_op_t *op)
{
    store_ask_t *a = NULL;
    weft_status_t st = ask(store, STORE_R_GET, name, out, op, &a);
    return st ? st : wefti_store_ask_go(a, op);
}

weft_status_t wefti_replica_set(weft_store_t *store, const char *name, uint64_t expected, const wefti_replica_t *rec,
                                uint64_t stamp, wefti_replica_answer_t *out, weft_op_t *op)
{
    store_ask_t *a = NULL;
    if (!wefti_replica_ok(rec))
        return weft_fail(WEFT_ERR_INVALID, "a record of a mirror that no server takes");
    weft_status_t st = ask(store, STORE_R_SET, name, out, op, &a);
    if (st)
        return st;
    a->q.epoch = expected;
    a->q.stamp = stamp;
    a->q.rec = *rec;
    return wefti_store_ask_go(a, op);
}

weft_status_t wefti_replica_renew(weft_store_t *store, const char *name, uint64_t epoch, const uint8_t writer[WEFT_STORE_ID],
                                  uint64_t stamp, wefti_replica_answer_t *out, weft_op_t *op)
{
    store_ask_t *a = NULL;
    weft_status_t st = ask(store, STORE_R_RENEW, name, out, op, &a);
    if (st)
        return st;
    a->q.epoch = epoch;
    a->q.stamp = stamp;
    memcpy(a->q.writer, writer, sizeof a->q.writer);
    return wefti_store_ask_go(a, op);
}

/* The two requests that only say who asks. */
static weft_status_t ask_as(weft_store_t *store, uint8_t kind, const char *name, uint64_t epoch,
                            const uint8_t writer[WEFT_STORE_ID], wefti_replica_answer_t *out, weft_op_t *op)
{
    store_ask_t *a = NULL;
    weft_status_t st = ask(store, kind, name, out, op, &a);
    if (st)
        return st;
    a->q.epoch = epoch;
    memcpy(a->q.writer, writer, sizeof a->q.writer);
    return wefti_store_ask_go(a, op);
}

weft_status_t wefti_replica_seal(weft_store_t *store, const char *name, uint64_t epoch, const uint8_t writer[WEFT_STORE_ID],
                                 wefti_replica_answer_t *out, weft_op_t *op)
{
    return ask_as(store, STORE_R_SEAL, name, epoch, writer, out, op);
}

weft_status_t wefti_replica_unmake(weft_store_t *store, const char *name, uint64_t epoch, const uint8_t writer[WEFT_STORE_ID],
                                   wefti_replica_answer_t *out, weft_op_t *op)
{
    return ask_as(store, STORE_R_UNMAKE, name, epoch, writer, out, op);
}
