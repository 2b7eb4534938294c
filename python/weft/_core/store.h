/* _core/store.h - what servers, stores, blocks and mirrors share. */
#ifndef WEFT_PY_STORE_H
#define WEFT_PY_STORE_H

#include <weft/elements.h>

#include "handle.h"

/* A name for the library, borrowed from its object: -1 with an exception. arg NULL or None: *name_out stays. */
int weftpy_store_name(weftpy_state_t *st, PyObject *arg, const char **name_out);
/* The statistics of a server, as a dict. */
PyObject *weftpy_store_stats(const weft_store_stats_t *stats);
/* block.c: the operation that allocates or opens a block of a store or a transport. It holds that. The caller posts it. */
weftpy_op_t *weftpy_block_coming(weftpy_runtime_t *run, PyObject *whose, uint64_t timeout);
weftpy_handle_t *weftpy_block_new(weftpy_runtime_t *run, PyObject *whose); /* for operations that are not an Op */
/* remote_many.c: methods of Remote */
PyObject *weftpy_remote_readv(FAST_ARGS);
PyObject *weftpy_remote_writev(FAST_ARGS);
PyObject *weftpy_remote_read_many(FAST_ARGS);
PyObject *weftpy_remote_write_many(FAST_ARGS);
/* remote.c: a Remote for the memory of a block or a transport, which it holds. weftpy_handle_take() ends it. */
PyObject *weftpy_remote_borrow(weftpy_runtime_t *run, PyObject *whose, weft_remote_t *remote);

#endif
