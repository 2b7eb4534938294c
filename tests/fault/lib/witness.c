/* tests/fault/lib/witness.c - see witness.h. */
#include "witness.h"

#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

enum { UNDER_WAY = 16, LARGE = 40000, LARGE_EVERY = 32 };

typedef struct head {
    uint64_t seq, check;
} head_t;

static void must_be(bool fact, const char *what)
{
    if (fact)
        return;
    fprintf(stderr, "the witness: %s\n", what);
    exit(1);
}

static size_t length_of(uint64_t seq)
{
    return seq % LARGE_EVERY == LARGE_EVERY - 1 ? LARGE : (size_t)(seq * 37 % 300);
}

static uint8_t byte_of(uint64_t seq, size_t i)
{
    return (uint8_t)(seq * 131 + i);
}

static void fill(uint8_t *at, uint64_t seq)
{
    for (size_t i = 0, n = length_of(seq); i < n; i++)
        at[i] = byte_of(seq, i);
}

static bool same(const uint8_t *at, uint64_t seq)
{
    for (size_t i = 0, n = length_of(seq); i < n; i++) {
        if (at[i] != byte_of(seq, i))
            return false;
    }
    return true;
}

/* --- its process ------------------------------------------------------------------------------------------------------------ */

static uint64_t sent, back;
static bool stop;

static void came_back(weft_am_t *am, void *user)
{
    head_t head;
    (void)user;
    must_be(am->header_len == sizeof head && am->len == 0, "an answer has another form");
    memcpy(&head, am->header, sizeof head);
    must_be(head.seq == back && head.check == ~back, "an answer is out of order");
    back++;
}

static void asked_to_stop(weft_am_t *am, void *user)
{
    (void)am, (void)user;
    stop = true;
}

void witness_life(weft_runtime_t *rt, weft_ep_t *ep)
{
    static weft_op_t ops[UNDER_WAY];
    static head_t heads[UNDER_WAY];
    static uint8_t bufs[UNDER_WAY][LARGE];
    must(weft_am_handle(rt, WITNESS_BACK, came_back, NULL, NULL), "weft_am_handle");
    must(weft_am_handle(rt, WITNESS_STOP, asked_to_stop, NULL, NULL), "weft_am_handle");
    while (!stop || back < sent) {
        unsigned moved = weft_runtime_progress(rt);
        unsigned i = sent % UNDER_WAY;
        must_be(weft_ep_get_state(ep) == WEFT_EP_UP, "its endpoint is not up");
        if (!stop && sent - back < UNDER_WAY && weft_op_done(&ops[i])) {
            must(ops[i].status, "the witness: a send");
            weft_am_send_opts_t o = WEFT_AM_SEND_OPTS_INIT;
            heads[i] = (head_t){sent, ~sent};
            fill(bufs[i], sent);
            o.id = WITNESS_ID;
            o.header = &heads[i];
            o.header_len = sizeof heads[i];
            o.buf = bufs[i];
            o.len = length_of(sent);
            o.reply = true;
            must(weft_am_send_with(ep, &o, &ops[i]), "the witness: weft_am_send_with");
            sent++;
        } else if (!moved) {
            usleep(20); /* it shares its processor with the others */
        }
    }
    for (unsigned i = 0; i < UNDER_WAY; i++)
        must(weft_op_wait(&ops[i], 10 * WEFT_SECOND), "the witness: a send");
    weft_op_t close_op = WEFT_OP_INIT;
    must(weft_ep_close(ep, &close_op), "the witness: weft_ep_close");
    must(weft_op_wait(&close_op, 10 * WEFT_SECOND), "the witness: close");
    must(weft_runtime_close(rt), "the witness: weft_runtime_close");
    _exit(0);
}

/* --- our side ------------------------------------------------------------------------------------------------------------- */

typedef struct pulled {
    weft_op_t op;
    uint64_t seq;
    uint8_t bytes[LARGE];
} pulled_t;

static uint64_t arrived;
static unsigned pulling;

static void pull_done(weft_op_t *op, void *user)
{
    pulled_t *p = user;
    must(op->status, "the witness: a pull of its payload");
    must_be(op->len == LARGE && same(p->bytes, p->seq), "a payload of it was not what it sent");
    pulling--;
    free(p);
}

static void serve(weft_am_t *am, void *user)
{
    head_t head;
    const peer_t *witness = user;
    must_be(am->ep == witness->ep && am->reply == am->ep, "a message of it came over another endpoint");
    must_be(am->header_len == sizeof head, "a header of it has another length");
    memcpy(&head, am->header, sizeof head);
    must_be(head.seq == arrived && head.check == ~arrived, "a message of it is lost, doubled or out of order");
    must_be(am->len == length_of(arrived), "a message of it has another length");
    if (am->data || !am->len) {
        must_be(!am->len || same(am->data, arrived), "a message of it was not what it sent");
    } else {
        pulled_t *p = calloc(1, sizeof *p);
        must_be(p && am->len <= LARGE, "no memory for a payload of it");
        p->seq = arrived;
        p->op.fn = pull_done;
        p->op.user = p;
        pulling++;
        must(weft_am_pull(am, p->bytes, sizeof p->bytes, &p->op), "the witness: weft_am_pull");
    }
    arrived++;
    must(weft_am_send(am->reply, WITNESS_BACK, &head, sizeof head, NULL, 0, NULL), "the witness: an answer");
}

void witness_serve(peer_t *witness)
{
    arrived = 0;
    must(weft_am_handle(witness->rt, WITNESS_ID, serve, witness, NULL), "weft_am_handle");
}

uint64_t witness_count(void)
{
    return arrived;
}

void witness_goes_on(peer_t *witness, double seconds)
{
    uint64_t want = arrived + 3 * LARGE_EVERY;
    for (double end = now() + seconds; arrived < want;) {
        weft_runtime_progress(witness->rt);
        must_be(now() < end, "nothing comes from it any more");
    }
}

void witness_end(peer_t *witness)
{
    int status = -1;
    weft_op_t close_op = WEFT_OP_INIT;
    witness_goes_on(witness, 20);
    must(weft_am_send(witness->ep, WITNESS_STOP, NULL, 0, NULL, 0, NULL), "the witness: its end");
    for (double end = now() + 20; waitpid(witness->pid, &status, WNOHANG) == 0;) {
        weft_runtime_progress(witness->rt);
        must_be(now() < end, "it does not end");
    }
    must_be(WIFEXITED(status) && WEXITSTATUS(status) == 0, "it noticed something");
    must_be(pulling == 0, "pulls of its payloads are left");
    must(weft_ep_close(witness->ep, &close_op), "the witness: weft_ep_close");
    peer_wait(witness, &close_op, 10);
    must(close_op.status, "the witness: close here");
    must(weft_am_handle(witness->rt, WITNESS_ID, NULL, NULL, NULL), "weft_am_handle");
    witness->pid = 0;
    witness->ep = NULL;
}
