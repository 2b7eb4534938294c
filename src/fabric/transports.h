/* fabric/transports.h - what the text of "transports" asks for. */
#ifndef WEFTI_TRANSPORTS_H
#define WEFTI_TRANSPORTS_H

#include <stdbool.h>
#include <weft/status.h>

typedef struct wefti_transports {
    bool shm;      /* our shared memory */
    bool tcp;      /* our TCP */
    bool ucx;      /* UCX, with `tls` */
    bool rdma;     /* the same, if this machine has hardware that only UCX can use */
    char tls[512]; /* what UCX gets as its list; "" is all that it has, or what the user's UCX_TLS says */
} wefti_transports_t;

/* WEFT_ERR_INVALID names the word that is no transport. */
weft_status_t wefti_transports_parse(const char *text, wefti_transports_t *out);

#endif
