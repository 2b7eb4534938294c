/* tests/wire/lib/joined.c - see joined.h. */
#include "joined.h"

#include "must.h"

/* --- on the driver -------------------------------------------------------------------------------------------------------- */

typedef struct errand {
    wefti_call_t call;
    joined_t *j;
    int side;
    void (*fn)(struct errand *e);
    weft_status_t status;
    bool answer;
    _Atomic bool done;
} errand_t;

static void run_errand(wefti_call_t *call)
{
    errand_t *e = wefti_container_of(call, errand_t, call);
    e->fn(e);
    atomic_store(&e->done, true);
}

static bool on_driver(joined_t *j, int side, void (*fn)(errand_t *e), weft_status_t status)
{
    errand_t e = {.call = {.fn = run_errand}, .j = j, .side = side, .fn = fn, .status = status};
    wefti_call_on_driver(j->pair.rt[side], &e.call);
    for (double end = now() + 10; !atomic_load(&e.done);) {
        pair_drive(&j->pair);
        if (now() > end) {
            fprintf(stderr, "the driver did not do it\n");
            exit(1);
        }
    }
    return e.answer;
}

static void connect(errand_t *e)
{
    wefti_stream_connect(e->j->s[e->side], e->j->pair.ep[e->side], JOINED_CALL, NULL);
}

static void over(errand_t *e)
{
    wefti_stream_over(e->j->s[e->side], e->status);
}

static void drop(errand_t *e)
{
    wefti_stream_drop(e->j->s[e->side]);
    if (e->side == JOINED_CLIENT)
        weft_stream_release(e->j->s[e->side]);
    e->j->s[e->side] = NULL;
}

static void leave(errand_t *e)
{
    wefti_stream_drop(e->j->s[e->side]);
    e->j->s[e->side] = NULL;
}

static void drained(errand_t *e)
{
    e->answer = wefti_stream_drained(e->j->s[e->side]);
}

void joined_over(joined_t *j, int side, weft_status_t status)
{
    on_driver(j, side, over, status);
}

void joined_leave(joined_t *j, int side)
{
    on_driver(j, side, leave, WEFT_OK);
}

bool joined_drained(joined_t *j)
{
    return on_driver(j, JOINED_SERVER, drained, WEFT_OK);
}

/* --- both sides ----------------------------------------------------------------------------------------------------------- */

static void came(joined_t *j, int side, weft_am_t *am)
{
    rpc_head_t head;
    memcpy(&head, am->header, sizeof head);
    memcpy(j->last[side][rpc_kind(&head)], am->header, am->header_len < 64 ? am->header_len : 64);
    atomic_fetch_add(&j->came[side][rpc_kind(&head)], 1);
    if (j->s[side])
        wefti_stream_record(j->s[side], rpc_kind(&head), am, &head);
}

static void came_to_server(weft_am_t *am, void *user)
{
    came((joined_t *)user, JOINED_SERVER, am);
}

static void came_to_client(weft_am_t *am, void *user)
{
    came((joined_t *)user, JOINED_CLIENT, am);
}

void joined_open(joined_t *j, const pair_way_t *way, const char *signature)
{
    weft_sig_t *sig;
    memset(j, 0, sizeof *j);
    pair_open(&j->pair, way, NULL);
    must(weft_sig_parse(signature, &sig), "weft_sig_parse");
    for (int side = 0; side < 2; side++) {
        uint32_t id = side == JOINED_SERVER ? RPC_AM_TO_SERVER : RPC_AM_TO_CLIENT;
        weft_op_t op[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
        must(weft_am_handle(j->pair.rt[side], id, NULL, NULL, &op[0]), "weft_am_handle");
        must(pair_wait(&j->pair, &op[0], 10), "no handler");
        must(wefti_stream_new(rpc_state(j->pair.rt[side]), sig, side == JOINED_SERVER, RPC_STALL_NS, &j->s[side]),
             "wefti_stream_new");
        must(weft_am_handle(j->pair.rt[side], id, side == JOINED_SERVER ? came_to_server : came_to_client, j, &op[1]),
             "weft_am_handle");
        must(pair_wait(&j->pair, &op[1], 10), "a handler");
        on_driver(j, side, connect, WEFT_OK);
    }
    weft_sig_free(sig); /* they have what they need of it */
}

void joined_close(joined_t *j)
{
    for (int side = 0; side < 2; side++) {
        if (j->s[side])
            on_driver(j, side, drop, WEFT_OK);
    }
    pair_close(&j->pair);
}

static weft_status_t ended(joined_t *j, weft_status_t posted, weft_op_t *op)
{
    return posted ? posted : pair_wait(&j->pair, op, 20);
}

weft_status_t joined_send(joined_t *j, int side, weft_value_t value)
{
    weft_op_t op = WEFT_OP_INIT;
    return ended(j, weft_stream_send(j->s[side], &value, &op), &op);
}

weft_status_t joined_end(joined_t *j, int side)
{
    weft_op_t op = WEFT_OP_INIT;
    return ended(j, weft_stream_end(j->s[side], &op), &op);
}

int joined_recv(joined_t *j, int side, weft_item_t *item)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = ended(j, weft_stream_recv(j->s[side], item, &op), &op);
    return st ? (int)st : (int)op.len;
}

int joined_recv_u64(joined_t *j, int side, uint64_t *value_out)
{
    weft_item_t item = WEFT_ITEM_INIT;
    int got = joined_recv(j, side, &item);
    *value_out = item.value.u64;
    weft_item_release(&item);
    return got;
}

void joined_say(joined_t *j, int side, unsigned kind, uint32_t check, const void *more, size_t n, size_t payload)
{
    uint8_t header[256];
    static const uint8_t zeros[65536];
    rpc_head_t head = rpc_head(kind, JOINED_CALL);
    weft_op_t op = WEFT_OP_INIT;
    head.check = check;
    memcpy(header, &head, sizeof head);
    if (n)
        memcpy(header + sizeof head, more, n);
    must(weft_am_send(j->pair.ep[side], side == JOINED_SERVER ? RPC_AM_TO_CLIENT : RPC_AM_TO_SERVER, header, sizeof head + n,
                      zeros, payload, &op),
         "weft_am_send");
    pair_wait(&j->pair, &op, 20);
}
