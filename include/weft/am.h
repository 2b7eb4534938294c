/* weft/am.h - active messages: a header and a payload, to the peer's handler or receive of an id.
 *
 * A message has a 32-bit id, a header (up to WEFT_AM_HEADER_MAX bytes) and a payload of any length.
 * It is received by, in this order:
 *   - the handler of its id (weft_am_handle): called once per message, from progress, in the order they were sent;
 *   - a receive for its id or for any id (weft_am_recv: the whole message; weft_am_take: header first), oldest first;
 *   - otherwise it waits here for one of them, within this peer's window.
 *
 * Small messages arrive whole; of large ones only the header arrives, and the payload stays in the sender's memory until it is
 * pulled, viewed or rejected. weft_am_t.data tells which.
 *
 * Flow:    a receiver grants each peer a window of bytes and of messages (WEFT_AM_WINDOW, WEFT_AM_MESSAGES) for what waits or is
 *          kept here. A message takes 256 bytes of it beside its own. Beyond it sends wait, in order, at the sender; nothing is
 *          dropped, and other peers are not affected. The last quarter is kept for large payloads, of which only the header
 *          travels, and for urgent messages.
 * Threads: any. Handlers and completions run where the runtime delivers them.
 * Shards:  on a runtime with several, receives from any endpoint are served oldest first, and complete on the first shard; one
 *          that names the endpoint comes before them, whichever was posted first. */
#ifndef WEFT_AM_H
#define WEFT_AM_H

#include <weft/conn.h>
#include <weft/mem.h>
#include <weft/op.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_AM_HEADER_MAX 8192          /* bytes, on every transport */
#define WEFT_AM_ANY_ID UINT32_MAX        /* for receives: whatever has no handler. Not the id of a message */
#define WEFT_AM_RESERVED UINT32_C(0xfff00000) /* ids from here on are those of the Weft libraries. Use lower ones */

/* --- sending --------------------------------------------------------------------------------------------------------------- */

/* Send a header and a payload. Both are borrowed until op completes. op NULL: fire and forget; then both are copied, or
 * WEFT_ERR_AGAIN if they would have to wait and 1 MiB of such copies waits already (WEFT_ERR_LIMIT if they alone are more).
 *
 * op completes with WEFT_OK when the buffers may be reused: small messages are copied and are done when this returns; large ones
 * when the peer has taken them; op->len is the length of the payload, op->id the id.
 * WEFT_ERR_REJECTED: the receiver rejected it; op->reason is what it said.
 * It completes with WEFT_ERR_PEER, WEFT_ERR_CLOSED if the endpoint ended before or ends first; WEFT_ERR_SYSTEM if a GPU failed,
 * here or at the peer.
 * Fails:  WEFT_ERR_INVALID (a NULL with a length, id WEFT_AM_ANY_ID), WEFT_ERR_LIMIT (the header is too long); with op NULL also
 * WEFT_ERR_CLOSED, WEFT_ERR_PEER. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_am_send(weft_ep_t *ep, uint32_t id, const void *header, size_t header_len,
                                                    const void *buf, size_t len, weft_op_t *op);

typedef struct weft_am_send_opts {
    size_t size;
    uint32_t id;
    const void *header;
    size_t header_len;
    const void *buf;             /* one buffer, */
    size_t len;
    const weft_iov_t *iov;       /* or several pieces; the array is borrowed like the pieces */
    size_t iov_n;
    const weft_mem_kind_t *kind; /* of the payload, all pieces. Default is: look. Pieces in memory that the processor can touch
                                    and pieces in memory of a device, or of two sorts of device: WEFT_ERR_INVALID */
    weft_release_fn release;  /* the library owns the payload from a successful post on, and calls this once: for a single
                                 buffer with buf, for pieces once per piece. The header stays borrowed */
    void *release_user;
    bool reply;                  /* the receiver gets an endpoint to answer on: weft_am_t.reply */
    bool confirm;                /* complete only when the receiver is done with the message, small ones too: so that a
                                    rejection of any message reaches op. Needs op */
    bool urgent;                 /* a small one (it must fit a record, about 4 KiB) that passes those that wait for the window,
                                    and may use the last of it */
    bool no_wait;                /* WEFT_ERR_AGAIN instead of waiting for the window; from a thread that does not drive the
                                    runtime it comes as the status of op */
} weft_am_send_opts_t;
#define WEFT_AM_SEND_OPTS_INIT WEFT_INIT(weft_am_send_opts_t)

/* Send, with all options. op NULL: fire and forget, as above; where the library owns the payload it is not
 * copied, only the header and the list of its pieces are. On an error nothing was started and release is not called. Fails
 * also with WEFT_ERR_LIMIT (urgent and too long) and WEFT_ERR_INVALID (confirm without op). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_am_send_with(weft_ep_t *ep, const weft_am_send_opts_t *opts, weft_op_t *op);

/* --- a message that arrived ------------------------------------------------------------------------------------------------ */

/* Read only. Valid, with the header and data it points to, until the handler returns, or until it is released where it was
 * kept or taken: it outlives its endpoint and its runtime. A payload that was not pulled or viewed before does not. */
typedef struct weft_am {
    uint32_t id;
    uint32_t header_len;
    const void *header;
    const void *data;    /* the payload, if it is here; NULL: it has none, or it waits at the sender */
    uint64_t len;        /* of the payload */
    weft_ep_id_t from;
    weft_ep_t *ep;       /* the endpoint it came over; good inside a handler, and elsewhere while nobody closes it */
    weft_ep_t *reply;    /* the same if the sender wants an answer, else NULL */
} weft_am_t;

/* A handler. It may read the message, keep it, start a pull, reject it, send, close: everything but wait. If it does none of
 * keep, pull and reject, the message is over when it returns: data that was here is done with, a payload still at the sender
 * counts as rejected (WEFT_AM_NOT_TAKEN). Over shared memory header and data lie where the sender can still write: they may
 * change while the handler looks; their lengths cannot. A handler that relies on what is in them (numbers of something, offsets,
 * text) copies first and checks the copy. weft_am_keep() is such a copy, and so is what weft_am_pull() and receives give. */
typedef void (*weft_am_fn)(weft_am_t *am, void *user);

/* Set the handler of an id, for all endpoints of the runtime; fn NULL takes it away. Messages of that id that wait here are
 * handed to it. From a thread that does not drive the runtime it takes effect soon, and in order with its posts; a handler
 * taken away may still run until then. `done` may be NULL, or an operation that completes when it has taken effect.
 * Fails: WEFT_ERR_STATE (the id has a handler: take it away first), WEFT_ERR_NOMEM, WEFT_ERR_INVALID. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_am_handle(weft_runtime_t *rt, uint32_t id, weft_am_fn fn, void *user,
                                                      weft_op_t *done);

/* From inside its handler: keep the message. The result is a message of its own, header and data with it, until
 * weft_am_release(). Data that is here is copied (it lies in the transport's ring, which goes on); a payload at the sender
 * stays there. Use the result from then on. NULL: no memory. Until it is released it counts against the peer's window. */
WEFT_API weft_am_t *weft_am_keep(weft_am_t *am);

/* Done with a kept or taken message: its memory and window are given back; a payload that still waits at the sender is rejected
 * (WEFT_AM_NOT_TAKEN), one being pulled goes on. Any thread. NULL is allowed. */
WEFT_API void weft_am_release(weft_am_t *am);

/* Pull the payload into a buffer; also when it is here already: then it is copied. Later and from any thread, for a message
 * that was kept or taken; from inside the handler for one that was not. The message can be released meanwhile. Once per
 * message, unless it was WEFT_ERR_TRUNCATED or WEFT_ERR_NOMEM: then, if the message was kept, it can be pulled again.
 *
 * op, which is needed, completes with WEFT_OK and op->len; WEFT_ERR_TRUNCATED if cap is less than the payload (nothing was
 * written; op->len is its length); WEFT_ERR_PEER or WEFT_ERR_CLOSED if the sender went; WEFT_ERR_SYSTEM if a GPU failed, here
 * or at the sender; WEFT_ERR_CANCELLED if it took it back; WEFT_ERR_TIMEOUT if it waited longer than WEFT_AM_HOLD and was
 * rejected; WEFT_ERR_STATE if it was pulled, viewed or rejected before. Once bytes are on their way they end it, whatever was
 * cancelled and whatever its deadline: the buffer is not free before. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_am_pull(weft_am_t *am, void *buf, size_t cap, weft_op_t *op);

typedef struct weft_am_pull_opts {
    size_t size;
    void *buf;
    size_t cap;
    const weft_iov_t *iov;       /* or pieces, filled in order; the array is borrowed */
    size_t iov_n;
    const weft_mem_kind_t *kind; /* of buf or the pieces (default: look; pieces are as for weft_am_send_opts_t); with neither:
                                    allocate in it, op->buf is the buffer (NULL if there are no bytes), to be given to
                                    weft_mem_free(kind, op->buf, op->len). Default then is: host */
} weft_am_pull_opts_t;
#define WEFT_AM_PULL_OPTS_INIT WEFT_INIT(weft_am_pull_opts_t)
WEFT_API WEFT_MUST_CHECK weft_status_t weft_am_pull_with(weft_am_t *am, const weft_am_pull_opts_t *opts, weft_op_t *op);

/* Have the payload where it can be read: completes with op->buf pointing to op->len bytes, read only, until the message is
 * released. Nothing moves if the data is here, or if the sender is on this host and sent it from a pool: then its memory is lent,
 * and the sender's operation completes when the message is released, or the connection ends; no deadline and no cancel of the
 * sender ends it before. Lent bytes are the sender's: an honest one leaves them alone, until the connection breaks; another can
 * change them while they are read. Pull what is to be checked and believed. Otherwise it is pulled into host memory of the
 * message's own. For kept and taken messages. Statuses as for weft_am_pull(). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_am_view(weft_am_t *am, weft_op_t *op);
/* The same for a payload of 512 KiB and more in GPU memory of a process on this host: op->buf is an address that this process's
 * GPU can read, and nothing moves. All that is said above of lent bytes holds. Kernels and copies that read them are to be done
 * before the message is released. Ends with WEFT_ERR_UNSUPPORTED if the payload is in other memory, or cannot be lent: pull it
 * then. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_am_view_device(weft_am_t *am, weft_op_t *op);

/* Refuse the message: a sender whose operation is still under way (large, or `confirm`) completes with WEFT_ERR_REJECTED and
 * this reason, any number of the program's own but 0. A kept or taken message still has to be released. WEFT_ERR_STATE: it was
 * pulled or viewed. */
WEFT_API weft_status_t weft_am_reject(weft_am_t *am, uint32_t reason);
#define WEFT_AM_NOT_TAKEN UINT32_C(0xffffffff) /* reason: released, or handled, without being pulled */
#define WEFT_AM_TOO_LATE  UINT32_C(0xfffffffe) /* reason: nobody pulled it within WEFT_AM_HOLD */
#define WEFT_AM_TOO_LONG  UINT32_C(0xfffffffd) /* reason: it did not fit the receive it met */

/* --- one-shot receives ----------------------------------------------------------------------------------------------------- */

typedef struct weft_am_recv_opts {
    size_t size;
    weft_ep_t *ep;               /* from this one. Default is: from any */
    uint32_t id;                 /* WEFT_AM_ANY_ID: whatever has no handler */
    void *header;                /* where the header goes; a longer one: WEFT_ERR_TRUNCATED. NULL: the header is dropped */
    size_t header_cap;
    void *buf;                   /* where the payload goes, one buffer */
    size_t cap;
    const weft_iov_t *iov;       /* or pieces */
    size_t iov_n;
    const weft_mem_kind_t *kind; /* of them (default: look); with neither: allocate in it. See weft_am_pull_opts_t */
    uint64_t max_len;            /* when allocating: longer ones are rejected with WEFT_AM_TOO_LONG. Default is: 1 GiB */
} weft_am_recv_opts_t;
#define WEFT_AM_RECV_OPTS_INIT WEFT_INIT(weft_am_recv_opts_t)

/* Receive one message, header and payload. Completes with WEFT_OK, op->len, op->id, op->header_len, op->from, op->buf if it
 * was made; WEFT_ERR_TRUNCATED if header or payload did not fit (op->len and op->header_len say how long they were; it is
 * gone, and its sender was told WEFT_AM_TOO_LONG); WEFT_ERR_NOMEM if no buffer could be made, and the message stays for the
 * next receive; WEFT_ERR_PEER or WEFT_ERR_CLOSED if the endpoint ends first. Ids with a handler never get here. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_am_recv(weft_runtime_t *rt, const weft_am_recv_opts_t *opts, weft_op_t *op);

/* Receive one message header first: completes with weft_op_am(op), kept for the caller until weft_am_release(), and op->len,
 * op->id, op->header_len, op->from as above; fails as above. ep NULL: from any. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_am_take(weft_runtime_t *rt, weft_ep_t *ep, uint32_t id, weft_op_t *op);
/* The message of an operation that is complete; NULL if it failed. */
static inline weft_am_t *weft_op_am(const weft_op_t *op) { return op->status ? NULL : (weft_am_t *)op->buf; }

#ifdef __cplusplus
}
#endif
#endif
