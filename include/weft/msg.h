/* weft/msg.h - tag messages: bytes to a matching receive.
 *
 * A message carries a 64-bit tag. A receive matches a message when (message tag & mask) == (receive tag & mask). Messages
 * of one endpoint match in the order they were sent; receives match in the order they were posted.
 *
 * Shards: on a runtime with several, receives from any endpoint match in the order they were posted, and so do those of one
 * endpoint; but a receive that names the endpoint comes before one from any, whichever was posted first. Receives from any
 * endpoint complete on the first shard: their callbacks run there.
 *
 * Memory:  a receiver holds at most recv_window bytes per peer of messages nobody has asked for. Beyond that, senders wait: the
 *          bytes stay in the sender's buffer, nothing is dropped, and a receive that is posted later still finds its message.
 *          Buffers may be of any kind (weft/mem.h); the pieces of one message are all in memory that the processor can touch, or
 *          all in memory of one sort of device (else WEFT_ERR_INVALID).
 * Time:    a deadline or a cancel ends a posted receive at once; one whose bytes are on their way, and a large send, not before
 *          their buffer is free (weft/op.h, promise 3).
 * Threads: any. */
#ifndef WEFT_MSG_H
#define WEFT_MSG_H

#include <weft/conn.h>
#include <weft/op.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_TAG_FULL UINT64_MAX /* mask: the whole tag counts */
#define WEFT_TAG_ANY  UINT64_C(0) /* mask: any tag */

/* Send len bytes with a tag. The buffer is borrowed until op completes. op NULL: fire and forget; then the bytes are copied, or
 * WEFT_ERR_AGAIN if they would have to wait and 1 MiB of such copies waits already (WEFT_ERR_LIMIT if they alone are more).
 *
 * op completes with WEFT_OK when the buffer may be reused: small messages are copied and are done when this returns; large
 * ones when the peer has taken them. op->len is the length. It completes with WEFT_ERR_PEER, WEFT_ERR_CLOSED if the endpoint
 * ended before or ends first; WEFT_ERR_SYSTEM if a GPU failed, here or at the peer.
 * Fails:  WEFT_ERR_INVALID (buf NULL with len > 0); with op NULL also WEFT_ERR_CLOSED, WEFT_ERR_PEER. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_msg_send(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag, weft_op_t *op);

typedef struct weft_msg_send_opts {
    size_t size;
    const weft_iov_t *iov;    /* several pieces instead of one buffer; the array is borrowed like the pieces */
    size_t iov_n;
    const void *buf;
    size_t len;
    uint64_t tag;
    weft_release_fn release;  /* the library owns the buffer(s) from a successful post on, and calls this once: for a single
                                 buffer with buf, for pieces once per piece */
    void *release_user;
    bool no_wait;             /* WEFT_ERR_AGAIN instead of waiting for the peer to have space; from a thread that does not drive
                                 the runtime it comes as the status of op */
} weft_msg_send_opts_t;
#define WEFT_MSG_SEND_OPTS_INIT WEFT_INIT(weft_msg_send_opts_t)

/* Send, with all options. op may be NULL only with `release`. On an error nothing was started and release is not
 * called. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_msg_send_with(weft_ep_t *ep, const weft_msg_send_opts_t *opts, weft_op_t *op);

/* Receive one message from this endpoint into buf. Completes with WEFT_OK, op->len = its length, op->tag = its tag, op->from =
 * endpoint; WEFT_ERR_TRUNCATED if it is longer than cap (op->len says how long it was; it is gone, nothing was written);
 * WEFT_ERR_PEER or WEFT_ERR_CLOSED if the endpoint ends first; WEFT_ERR_SYSTEM if a GPU failed, here or at the peer. Messages
 * that had arrived before the end are still received. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_msg_recv(weft_ep_t *ep, void *buf, size_t cap, uint64_t tag, uint64_t mask,
                                                     weft_op_t *op);

/* The same from whichever endpoint of the runtime has a match. It does not fail because one peer is lost, except when that
 * peer's message had matched it and was still on its way: then it completes with WEFT_ERR_PEER, and op->from says whose it
 * was. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_msg_recv_any(weft_runtime_t *rt, void *buf, size_t cap, uint64_t tag, uint64_t mask,
                                                         weft_op_t *op);

/* Receive into pieces, filled in order. The array is borrowed until op completes. ep NULL: from any endpoint. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_msg_recv_iov(weft_runtime_t *rt, weft_ep_t *ep, const weft_iov_t *iov, size_t n,
                                                         uint64_t tag, uint64_t mask, weft_op_t *op);

/* Receive into a buffer made to fit: op->buf, to be given to weft_buf_free(). Longer than max_len: WEFT_ERR_TRUNCATED. ep
 * NULL: any. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_msg_recv_alloc(weft_runtime_t *rt, weft_ep_t *ep, size_t max_len, uint64_t tag,
                                                           uint64_t mask, weft_op_t *op);

/* Send, or receive, and wait for it, for timeout_ns at most: WEFT_ERR_TIMEOUT. The buffer is yours again when they return,
 * whatever they return; until it is, they wait for longer than timeout_ns (weft/op.h, promise 3). *len_out (may be NULL) is the
 * length of the message. Not inside a callback: WEFT_ERR_STATE. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_msg_send_wait(weft_ep_t *ep, const void *buf, size_t len, uint64_t tag,
                                                          uint64_t timeout_ns);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_msg_recv_wait(weft_ep_t *ep, void *buf, size_t cap, uint64_t tag, uint64_t mask,
                                                          uint64_t timeout_ns, size_t *len_out);

/* Look for a message that has arrived and that no receive has matched: WEFT_OK and its envelope, or WEFT_ERR_NOTFOUND. Drives a
 * caller-driven runtime once. ep NULL: any endpoint; inside a callback of a runtime with several shards, any of the shard whose
 * callback it is. The message stays. Inside a callback of another runtime, and for an endpoint of another shard inside a
 * callback: WEFT_ERR_STATE. */
typedef struct weft_msg_envelope {
    uint64_t tag;
    uint64_t len;
    weft_ep_id_t from;
} weft_msg_envelope_t;
WEFT_API weft_status_t weft_msg_probe(weft_runtime_t *rt, weft_ep_t *ep, uint64_t tag, uint64_t mask,
                                      weft_msg_envelope_t *envelope_out);

/* The same, and take the message out of the matching: only weft_msg_recv_claimed() on *msg_out receives it, or
 * weft_msg_drop_claimed() discards it. One of the two is called, once; a receive that returns an error does not count. It may
 * be called after the endpoint was closed, which loses what had not arrived whole, and after the runtime was closed: then the
 * message can only be dropped. */
typedef struct weft_msg weft_msg_t;
WEFT_API weft_status_t weft_msg_claim(weft_runtime_t *rt, weft_ep_t *ep, uint64_t tag, uint64_t mask,
                                      weft_msg_envelope_t *envelope_out, weft_msg_t **msg_out);
WEFT_API WEFT_MUST_CHECK weft_status_t weft_msg_recv_claimed(weft_msg_t *msg, void *buf, size_t cap, weft_op_t *op);
WEFT_API void weft_msg_drop_claimed(weft_msg_t *msg);

#ifdef __cplusplus
}
#endif
#endif
