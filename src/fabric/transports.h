/* fabric/transports.h - what the text of "transports" asks for. */
#ifndef WEFTI_TRANSPORTS_H
#define WEFTI_TRANSPORTS_H

#include <stdbool.h>
#include <weft/status.h>

typedef struct wefti_transports {
    bool shm;      /* our shared memory */
    bool ucx;
    char tls[512]; /* what UCX gets as its list; "^..." is our own choice, which the user's UCX_TLS may replace */
} wefti_transports_t;

/* WEFT_ERR_INVALID names the word that is no transport. */
weft_status_t wefti_transports_parse(const char *text, wefti_transports_t *out);

#endif
