/* tests/fault/lib/liar.h - a peer that passed the hello and says, as calls or as answers to calls, whatever a test likes;
 * with a third party that is served by the same runtime all the while.
 *
 * All three are runtimes of this process, so that connecting anew for each lie is cheap. Everything here ends the test if it
 * fails. */
#ifndef WEFT_TEST_LIAR_H
#define WEFT_TEST_LIAR_H

#include <weft/service.h>
#include <weft/weft.h>

#include "rpc/wire.h"

/* The functions of the victim's service "calc". */
enum { LIAR_ADD, LIAR_KEEP, LIAR_TAKE, LIAR_COUNT, LIAR_TOTAL, LIAR_TELL, LIAR_FUNCTIONS };
extern const char *const liar_sigs[LIAR_FUNCTIONS];
/* What becomes of the victim's endpoint: failed with WEFT_ERR_PROTOCOL, standing, or either. */
typedef enum liar_verdict { FAILS, STANDS, EITHER } liar_verdict_t;

typedef struct liar {
    weft_client_t *client;             /* the victim's, of the liar */
    bool failed;                       /* the victim's endpoint */
    weft_status_t failed_why;
    /* what the liar heard: answers to its questions; the last question and call of the victim */
    rpc_head_t bounds[LIAR_FUNCTIONS], asked, called;
    uint64_t epochs[LIAR_FUNCTIONS];
    unsigned n_bounds, n_asked, n_called;
    /* the message that is being made */
    _Alignas(8) uint8_t msg[8192];
    size_t msg_len, payload_len;
    uint8_t payload[100000];
} liar_t;
extern liar_t liar;

void liar_open(void);
void liar_close(void);                 /* and nothing is left at the service */
void liar_join(void);                  /* a connection, and its end */
void liar_part(void);
void liar_bind_all(void);              /* where the functions are: bounds, epochs */
void liar_drive(void);
weft_status_t liar_finish(weft_op_t *op);

/* A message: its head, what follows, and onto its way; function LIAR_FUNCTIONS: none. */
void liar_begin(unsigned kind, uint64_t call, unsigned function);
rpc_head_t *liar_head(void);
void liar_put(const void *p, size_t n);
void liar_ext(unsigned flags, unsigned zero, uint32_t bytes_len);
void liar_u64(uint64_t v);
void liar_failure(uint32_t code, size_t text); /* so many bytes of it */
void liar_say(uint32_t id);
void liar_judge(const char *what, liar_verdict_t verdict);

/* In a switch over lies: the nth of them. */
#define LIE(number, text, expected) \
    case number: \
        *what = text; \
        *verdict = expected;

#endif
