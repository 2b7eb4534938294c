/* tests/fault/lib/couple.h - two runtimes in one process, connected, both driven by the caller, for tests that let memory run
 * out under them.
 *
 * Everything here ends the test if it fails. */
#ifndef WEFT_TEST_COUPLE_H
#define WEFT_TEST_COUPLE_H

#include <weft/weft.h>

typedef struct couple {
    weft_runtime_t *rt[2]; /* 0 listens, 1 connects */
    weft_listener_t *listener;
    weft_ep_t *ep;         /* of rt[1] */
} couple_t;
extern couple_t couple;

void couple_open(const char *transports);
void couple_close(void);
void couple_drive(void);
/* Drive both until it is complete: its status. */
weft_status_t couple_finish(weft_op_t *op);
/* Close both, wait until they are gone, then couple_close(). */
void couple_close_with(weft_client_t *client, weft_service_t *service);

#endif
