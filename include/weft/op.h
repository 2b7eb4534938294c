/* weft/op.h - operations: everything that takes time is one, and each completes exactly once.
 *
 * Threads:  posting, cancelling and waiting are allowed from any thread. The fields of an operation belong to the
 *           library from the post until the completion, and to the caller otherwise.
 * Promises: 1. An error returned by the posting call means that nothing was started and no completion comes. It is about the call
 *              itself: an argument, the state of an object, a lack of memory, a closed runtime, a stream that CUDA does not take.
 *              Otherwise the operation completes exactly once, with a status. What depends on the peer or on time (lost, closed,
 *              refused, cancelled, too late) always comes by the operation, also if the endpoint was lost before the post. A call
 *              that takes NULL for its operation returns every error that it knows.
 *           2. It completes only after the library has released every buffer it was given.
 *           3. It completes in bounded time: by its deadline where it has one, and within the heartbeat bound when
 *              its peer is gone; posted receives included. But promise 2 comes first, whatever a deadline or a cancel says:
 *              bytes that are on their way end it when the fabric or a GPU is done with its buffer, and a large send or write
 *              ends when the peer, driving its runtime, has taken it or given it back: what it was lent (weft_am_view,
 *              weft_am_view_device) when it releases the message. The end of the endpoint, or weft_ep_abort(), ends these too,
 *              except that a GPU which copies is always waited for.
 *           4. Posting a small message neither allocates nor enters the kernel. The caller owns the storage.
 *           5. The completion reaches the caller in the way the caller chose (below).
 *
 * An operation is used like this:
 *
 *     weft_op_t op = WEFT_OP_INIT;
 *     op.timeout_ns = 2 * WEFT_SECOND;
 *     weft_status_t st = weft_msg_send(ep, "hi", 2, 7, &op);
 *     if (!st) st = weft_op_wait(&op, WEFT_FOREVER);
 *
 * How a completion is delivered, by what is set before posting:
 *     fn != NULL      fn(op, user) is called once, from progress: never from inside the posting call.
 *     queue != NULL   the operation appears in the queue (see weft_queue_pop).
 *     neither         weft_op_done() turns true; weft_op_wait*() return.
 * fn and queue exclude each other. Waiting is allowed with either, and returns once the operation is complete and
 * before or after fn ran. */
#ifndef WEFT_OP_H
#define WEFT_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weft/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_MICROSECOND UINT64_C(1000)
#define WEFT_MILLISECOND UINT64_C(1000000)
#define WEFT_SECOND      UINT64_C(1000000000)
#define WEFT_FOREVER     UINT64_MAX

typedef struct weft_runtime weft_runtime_t;
typedef struct weft_op weft_op_t;
typedef struct weft_queue weft_queue_t;
typedef struct weft_token weft_token_t;

/* A piece of a scattered buffer. */
typedef struct weft_iov {
    void *base;
    size_t len;
} weft_iov_t;

/* Called once when the library has released an owned buffer, whether the message was sent or not. Runs in progress or in the
 * posting call. */
typedef void (*weft_release_fn)(void *buf, void *user);

/* Index and generation of an endpoint: never reused while anyone could still hold the old one. 0 is no endpoint. */
typedef uint64_t weft_ep_id_t;

/* Streams of a GPU in which an operation takes its turn: read in the post, which costs a few microseconds more then. What is NULL
 * is none. CUDA's default streams are (void *)1, the legacy one, and (void *)2, the calling thread's. With a handle that CUDA
 * does not know the post fails with WEFT_ERR_INVALID, and weft_last_error() names the field.
 *
 * before, before_event: the operation begins when everything is done that this stream (a CUstream) was given until the post, or
 * this event (a CUevent) was recorded behind. So a buffer that kernels still write can be sent, and one that they still read can
 * be received into, without waiting for them. Sends keep their place among the other sends of an endpoint; anything else is as if
 * it was posted at that moment.
 *
 * after: what this stream is given after the post waits until the operation is complete, however it ends. The program looks at
 * op.status all the same: kernels that run after a failed receive find what was there before. The runtime has to be driven
 * meanwhile, so a thread that alone drives it must not wait for such a stream.
 *
 * A GPU has eight queues for the streams of a process, or as many as CUDA_DEVICE_MAX_CONNECTIONS says (at most 32), and a stream
 * that waits holds up all that is behind it in its queue. So one stream less than there are queues can wait for operations at a
 * time: with one more the post fails with WEFT_ERR_LIMIT. Up to four less (four of eight) they cost nothing; with more, copies
 * within the GPU go through host memory. While a stream waits, no thread may call what waits for the whole GPU: cudaFree,
 * cudaFreeHost, cudaHostUnregister, cudaIpcCloseMemHandle. CUDA lets no other thread copy meanwhile, so the operation would never
 * be complete. weft_mem_free() can be called: the memory goes when no stream waits. */
typedef struct weft_op_streams {
    size_t size;
    void *before, *before_event;
    void *after;
} weft_op_streams_t;
#define WEFT_OP_STREAMS_INIT WEFT_INIT(weft_op_streams_t)

/* Runs in progress: on the runtime's own thread, or on the thread that drives it. It may post, cancel and free
 * operations (this one included); it may not wait. */
typedef void (*weft_op_fn)(weft_op_t *op, void *user);

/* One operation. 336 bytes, kept by the caller, zeroed by WEFT_OP_INIT before its first use; it may be posted again
 * as it is after each completion. */
struct weft_op {
    /* Set before posting; left alone by the library. */
    weft_op_fn fn;
    void *user;
    weft_queue_t *queue;
    weft_token_t *token;     /* cancelled together with it; NULL for none */
    uint64_t timeout_ns;     /* from the post on; 0 for none */
    const weft_op_streams_t *streams; /* of a GPU; NULL for none. Taken by sends and receives of weft/msg.h and weft/am.h
                                (weft_am_take() too), weft_am_pull*(), and reads, writes, atomics and batches of weft/rma.h. All
                                others refuse them with WEFT_ERR_UNSUPPORTED, also weft_msg_recv_claimed(), weft_am_view() and
                                weft_am_view_device(); so does each where no GPU is in use */

    /* Valid after completion. Each posting call says which ones it sets, and by which name. */
    weft_status_t status;
    union {
        uint32_t header_len; /* of an active message received */
        uint32_t reason;     /* of WEFT_ERR_REJECTED */
    };
    union {
        uint64_t len;        /* bytes: of the message, the transfer, the memory */
        uint64_t count;      /* how many: members of a group or of a batch that succeeded, entries of a list */
    };
    union {
        uint64_t tag;        /* of a message */
        uint64_t id;         /* of an active message */
        uint64_t value;      /* of the word before an atomic */
        uint64_t winner;     /* index of the member with which WEFT_GROUP_ANY succeeded */
    };
    weft_ep_id_t from;       /* the endpoint it came from */
    void *buf;               /* bytes. An object (endpoint, remote, store, ...) is in here, too: weft_op_ep(), weft_op_remote(),
                                ... return it, or NULL if the operation failed */

    uint64_t priv[31];       /* the library's */
};

#define WEFT_OP_INIT WEFT_ZERO(weft_op_t)
/* For those who count nanoseconds: it is enough to zero the first bytes of an operation before its first use. */
#define WEFT_OP_FRESH 144

/* True once the operation is complete, and true for one never posted, or NULL. Any thread; does not drive progress. */
WEFT_API bool weft_op_done(const weft_op_t *op);

/* Why an operation failed, in a sentence that names what it was, the address and the peer: "connect: tcp://trainer-3:13337:
 * the peer refused the connection". "" if it succeeded or is not complete. weft_op_wait() and weft_op_wait_all() also leave it
 * in weft_last_error(). Valid until this thread asks for another. The library remembers the last thousand failures of the
 * process; of an older one the sentence is that of its status. Any thread. */
WEFT_API const char *weft_op_error(const weft_op_t *op);

/* Ask for an operation to end early. It completes with WEFT_ERR_CANCELLED, or with its result if that was sooner; one whose
 * buffer is with the fabric, a GPU or the peer completes when they let go of it (promise 3). A cancel of an operation that was
 * never posted sticks: its first post starts nothing, and it completes with WEFT_ERR_CANCELLED (closes and other endings are
 * carried out all the same); WEFT_OP_INIT undoes that. Cancelling a complete operation does nothing. Any thread. */
WEFT_API void weft_op_cancel(weft_op_t *op);

/* Have fn(op, op->user) called when an operation is complete that was posted with neither fn nor queue: for layers that only
 * know after the post who wants to be told. WEFT_OK: it will be called once, from progress, as if it had been set before.
 * WEFT_ERR_DONE: the operation is complete already, and fn is not called. WEFT_ERR_STATE: there is a callback or a queue
 * already. Any thread. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_op_attach(weft_op_t *op, weft_op_fn fn);

/* Wait until an operation is complete and return its status, or WEFT_ERR_PENDING after timeout_ns with the operation
 * still under way (one whose own time was over completes with WEFT_ERR_TIMEOUT). Drives progress on a caller-driven runtime.
 * Fails at once with WEFT_ERR_STATE from inside a callback and WEFT_ERR_FORKED in a forked child. */
WEFT_API weft_status_t weft_op_wait(weft_op_t *op, uint64_t timeout_ns);

/* Wait until one of n operations is complete: WEFT_OK and its index in *index_out, or WEFT_ERR_PENDING. All n belong
 * to one runtime. NULL entries are skipped; if all are NULL: WEFT_ERR_INVALID. */
WEFT_API weft_status_t weft_op_wait_any(weft_op_t *const *ops, size_t n, uint64_t timeout_ns, size_t *index_out);

/* Wait until all of n are complete: WEFT_OK if all succeeded, else the status of the first that did not (in the order
 * of the array), or WEFT_ERR_PENDING with some still under way. All n belong to one runtime. With n 0 it says whether this
 * thread may wait: WEFT_OK, or WEFT_ERR_STATE inside a callback. */
WEFT_API weft_status_t weft_op_wait_all(weft_op_t *const *ops, size_t n, uint64_t timeout_ns);

/* --- timers ------------------------------------------------------------------------------------------------- */

/* Complete `op` with WEFT_OK after delay_ns. It can be cancelled like any operation. Of a runtime with several shards it is on
 * the shard whose callback this is, else on the first. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_timer_start(weft_runtime_t *rt, uint64_t delay_ns, weft_op_t *op);

/* --- composition -------------------------------------------------------------------------------------------- */

typedef enum weft_group_mode {
    WEFT_GROUP_ALL = 1,        /* completes when all have; WEFT_OK if all succeeded, else the first failure's status */
    WEFT_GROUP_ANY = 2,        /* completes at the first success, cancelling the rest; the last failure if all fail */
    WEFT_GROUP_ALL_OR_NONE = 3 /* like ALL, and the first failure cancels the rest */
} weft_group_mode_t;

/* Make `group` complete as a function of its members. Members are added before or after they are posted and before the group
 * is posted with weft_group_start(); each must have neither fn nor queue set, since the group is told. The group never
 * completes before all of its members have (a cancelled member still has to release its buffers); one that was not posted yet
 * when the group is cancelled leaves it. A member belongs to the library until the group is complete: neither free it nor post
 * it again before. One that is there twice is WEFT_ERR_STATE; so is one that belongs to another group, though the group may
 * complete with that (on a runtime with several shards, whose members may be of any of them, when the others have ended).
 * op->count of the group is the number of members that succeeded; with ANY, op->winner is the index of the first. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_group_start(weft_runtime_t *rt, weft_group_mode_t mode,
                                                        weft_op_t *const *members, size_t n, weft_op_t *group);

/* --- cancellation tokens -------------------------------------------------------------------------------------- */

/* A token cancels every operation posted with it, on whichever shard of its runtime, and every child token, once. Counted:
 * hold/drop; made with one reference. A child keeps its parent alive. parent may be NULL. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_token_new(weft_runtime_t *rt, weft_token_t *parent, weft_token_t **token_out);
WEFT_API void weft_token_hold(weft_token_t *token);
WEFT_API void weft_token_drop(weft_token_t *token);
/* Cancel it. Operations posted with a cancelled token complete with WEFT_ERR_CANCELLED and start nothing. Any thread;
 * idempotent. */
WEFT_API void weft_token_cancel(weft_token_t *token);
WEFT_API bool weft_token_cancelled(const weft_token_t *token);

/* --- completion queues ------------------------------------------------------------------------------------------ */

/* A queue collects the completions of operations whose `queue` it is, of all shards of its runtime. The event fd
 * (weft_queue_fd) is readable while the queue is not empty; it exists from the first call of weft_queue_fd on, and costs one
 * system call per burst, not per completion. Pop from one thread at a time. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_queue_new(weft_runtime_t *rt, weft_queue_t **queue_out);
/* Take up to n completed operations, waiting up to timeout_ns for the first (0: do not wait). Returns how many; drives
 * progress on a caller-driven runtime. 0 in a forked child, where the queue is the parent's. */
WEFT_API size_t weft_queue_pop(weft_queue_t *queue, weft_op_t **ops_out, size_t n, uint64_t timeout_ns);
/* The event fd, or a negative status. Yours to poll, not to read or close. */
WEFT_API int weft_queue_fd(weft_queue_t *queue);
/* Free an empty queue that no operation under way names; WEFT_ERR_STATE otherwise. WEFT_ERR_CLOSED if it was freed before, by
 * this thread or another. */
WEFT_API weft_status_t weft_queue_free(weft_queue_t *queue);

/* Release a buffer the library made (op->buf). NULL is allowed. Any thread. */
WEFT_API void weft_buf_free(void *buf);

#ifdef __cplusplus
}
#endif
#endif
