/* element/io.h - what io.c, io_at_once.c and io_post.c share: the first steps of an operation on a transport, on any thread. */
#ifndef WEFTI_ELEMENT_IO_H
#define WEFTI_ELEMENT_IO_H

#include "element/state.h"

/* In the scratch of the program's operation. */
typedef struct io_scratch {
    element_io_t *io;
} io_scratch_t;

/* --- range.c ------------------------------------------------------------------------------------------------------------- */

/* An access, for a sentence. */
typedef struct element_range {
    unsigned what; /* IO_READ, IO_WRITE, IO_ATOMIC */
    size_t size;
    uint64_t addr;
    size_t offset;
    bool buffered; /* offset is one in the registered buffer */
    size_t item, n; /* of a batch; n 0: of none */
} element_range_t;
/* WEFT_ERR_RANGE, with the sentence: outside of the buffer; of the memory, of so many bytes; the memory is smaller than the durl
 * says. */
weft_status_t wefti_range_local(const weft_transport_t *t, const element_range_t *r);
weft_status_t wefti_range_remote(const weft_transport_t *t, const element_range_t *r, uint64_t len);
weft_status_t wefti_range_durl(const weft_transport_t *t); /* driver only */
/* The sentence of an io that ends with WEFT_ERR_RANGE, for weft_ext_op_complete(). Driver only. */
uint64_t wefti_range_sentence(const element_io_t *io);

/* --- io.c ---------------------------------------------------------------------------------------------------------------- */

/* What the end of a connection means to the transport's user. */
weft_status_t wefti_io_cut_off(const weft_transport_t *t, weft_status_t st);
/* It has to end, with `why`; and the same as a weft_op_kind_t has it. On the driver. */
void wefti_io_stop(element_io_t *io, weft_status_t why);
void wefti_io_cancel(weft_op_t *op, weft_status_t why);
void wefti_io_drop(element_io_t *io); /* one that was not started */
/* A thread that posts is inside of the transport from come_in to go_out; come_in with the transport's lock, if it is not
 * RELEASED. come_in_slow: for an io that the driver gets, which is counted. */
static inline void wefti_io_come_in(weft_transport_t *t) { atomic_fetch_add(&t->inside, 1); }
void wefti_io_come_in_slow(weft_transport_t *t);
static inline void wefti_io_go_out(weft_transport_t *t) { atomic_fetch_sub(&t->inside, 1); }
weft_status_t wefti_io_post(element_io_t *io, weft_op_t *op); /* hand an io that is counted to the driver, and go out */

/* --- io_post.c ----------------------------------------------------------------------------------------------------------- */

/* Are transport and operation there, and is the transport a server or not? */
weft_status_t wefti_io_check(const weft_transport_t *t, const weft_op_t *op, bool server);
weft_status_t wefti_io_not_local(const weft_transport_t *t, const element_range_t *r); /* why not */
weft_status_t wefti_io_no_memory(weft_transport_t *t, bool slow); /* for one that came in: it goes out */
weft_status_t wefti_io_released(const weft_transport_t *t);

/* --- inline, for the short path ------------------------------------------------------------------------------------------ */

/* With the lock: is there a buffer, and are these bytes in it? */
static inline weft_status_t wefti_io_check_local(const weft_transport_t *t, const element_range_t *r)
{
    bool in = t->buf && r->offset <= t->buf->len && r->size <= t->buf->len - r->offset;
    return in ? WEFT_OK : wefti_io_not_local(t, r);
}

/* Take an io to be used again, or a new one, with the transport's lock. NULL: no memory. */
static inline element_io_t *wefti_io_take(weft_transport_t *t)
{
    element_io_t *io = t->spare;
    if (!io)
        return (element_io_t *)wefti_calloc(1, sizeof *io);
    t->spare = io->next;
    t->n_spare--;
    return io;
}

/* Put an io back, with the transport's lock. The io, if it is to be freed. */
static inline element_io_t *wefti_io_put_spare(weft_transport_t *t, element_io_t *io)
{
    if (t->n_spare >= ELEMENT_SPARE_IOS)
        return io;
    io->next = t->spare;
    t->spare = io;
    t->n_spare++;
    return NULL;
}

static inline void wefti_io_count(weft_transport_stats_t *s, unsigned what, uint64_t size, weft_status_t st)
{
    if (st) {
        s->failed++;
    } else if (what == IO_READ) {
        s->reads++;
        s->bytes_read += size;
    } else if (what == IO_WRITE) {
        s->writes++;
        s->bytes_written += size;
    } else if (what == IO_ATOMIC) {
        s->atomics++;
    }
}

#endif
