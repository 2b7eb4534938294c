/* conn/direct.h - a payload in device memory that the receiver copies itself, where both sides are on one host: direct.c,
 * payload.c. */
#ifndef WEFTI_CONN_DIRECT_H
#define WEFTI_CONN_DIRECT_H

#include "conn/ep.h"

/* What the sender says of its memory, and the pull of it. */
typedef struct wefti_direct {
    wefti_export_t export;
    wefti_in_t *in;
    wefti_import_t *import;
    wefti_copy_t copy;
    wefti_xfer_t *x;      /* whom to tell */
    weft_status_t status; /* why it failed */
    bool down;            /* the lane is closed, or about to be */
} wefti_direct_t;

/* Shorter payloads go through host memory: processes that share a GPU take turns on it, and a copy within it waits for its turn,
 * while those from and to the host do not. Tests make it small. */
extern uint64_t wefti_direct_min;

/* Of an announcement that carries an export. NULL: no memory; it is pulled in another way then. */
wefti_direct_t *wefti_direct_new(wefti_in_t *in, const wefti_export_t *export);
void wefti_direct_free(wefti_in_t *in);
/* May a payload be exported to this peer, and is it worth it? */
bool wefti_direct_wanted(const wefti_out_t *out);
/* As wefti_in_pull(). WEFT_ERR_UNSUPPORTED: it has to be pulled in another way. */
weft_status_t wefti_direct_pull(wefti_in_t *in, const weft_iov_t *iov, uint64_t want, const weft_mem_kind_t *device,
                                wefti_xfer_t *x);
void wefti_direct_down(wefti_in_t *in); /* the lane is about to be closed */

#endif
