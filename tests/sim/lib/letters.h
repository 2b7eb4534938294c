/* tests/sim/lib/letters.h - active messages as the simulated programs know them: what was sent, what came of it at either side.
 *
 * A letter has its number at the front of its header, so that whoever receives it tells which one it is. Checked at once: it
 * was sent there, is whole, comes once and in order. Checked at the end, when both sides have spoken: what the sender was told
 * is what the receiver did. */
#ifndef SIM_LETTERS_H
#define SIM_LETTERS_H

#include "model.h"

#define LETTERS_MAX 700
#define LETTER_IDS 8          /* 0 to 3 always have a handler */
#define LETTER_HEAD 8         /* bytes of the shortest header */

enum { ACT_AM_SEND = ACT_OTHER, ACT_AM_RECV, ACT_AM_TAKE, ACT_AM_PULL, ACT_AM_VIEW };

typedef enum letter_in { IN_HOST, IN_POOL, IN_DEVICE } letter_in_t;

typedef struct letter {
    int end;                  /* who sends it */
    uint32_t id, seq;         /* seq: of this direction of the link */
    uint32_t header_len, len;
    uint8_t *header, *buf;    /* the sender's memory, while the library may look at it */
    letter_in_t in;
    bool owned, no_op, confirm, urgent, no_wait, asked; /* asked: cancelled, or with a deadline or a token */
    unsigned pieces, released;
    /* what the sender was told */
    bool sent, done;          /* sent: the post succeeded */
    weft_status_t status;
    uint32_t reason;
    uint64_t sent_at, done_at;
    /* what the receiver did */
    bool arrived;             /* somebody got it */
    bool to_handler, here;    /* its payload came with it, as far as that can be told */
    bool known;               /* `here` can be told */
    bool pulled;              /* somebody has its bytes, all of them */
    bool let_go;              /* handled or released and not pulled */
    bool too_long;            /* it met a receive that was too short */
    bool vague;               /* a pull of it ended early: both may be told anything */
    uint32_t said;            /* the reason of its rejection */
    int at_end;               /* where it came in */
    bool to_receive;          /* it came to one for id `wanted` on end `filter`, the stamp-th operation */
    int filter;
    uint32_t wanted, stamp;
} letter_t;

typedef struct letters {
    letter_t all[LETTERS_MAX];
    int n;
    uint64_t hold_ns;         /* WEFT_AM_HOLD */
    weft_pool_t *pool[SIM_NODES_MAX]; /* or NULL */
    bool handled[SIM_NODES_MAX][LETTER_IDS];
    uint32_t unhandled[SIM_NODES_MAX][LETTER_IDS]; /* the last operation that was posted before the handler was taken away */
    bool vague[SIM_NODES_MAX]; /* a receive of that node ended early, with a message on its way that nobody knows */
} letters_t;

extern letters_t letters;

void letters_init(uint64_t hold_ns);
/* A new one from this end; NULL: the table is full, or there is no such memory. */
letter_t *letter_new(model_t *m, int end, uint32_t id, size_t header_len, size_t len, letter_in_t in);
/* The last one was not sent after all. */
void letter_unsend(model_t *m);
void letter_release(void *buf, void *user); /* a weft_release_fn; user is the letter_t */
/* Its operation is complete, or it has none and was posted. */
void letter_sent(model_t *m, letter_t *g);
void letter_done(model_t *m, letter_t *g, weft_status_t status, uint32_t reason);

/* Somebody at `node` got it: the letter. len and the header are checked; a NULL header is one that was not looked at: NULL is
 * returned. */
letter_t *letter_got(model_t *m, int node, weft_ep_id_t from, uint32_t id, const void *header, uint32_t header_len, uint64_t len);
/* It came to the handler of its id. */
void letter_to_handler(model_t *m, int node, letter_t *g);
/* It came to this receive or take, whose a->tag is the id that was asked for: in the order of their posts. */
void letter_to_receive(model_t *m, letter_t *g, const act_t *a);
/* These are its bytes. */
void letter_bytes(model_t *m, const letter_t *g, const uint8_t *bytes);

/* Everybody has spoken. */
void letters_check(model_t *m);
/* The bytes and memory of all of them go. */
void letters_free(model_t *m);

#endif
