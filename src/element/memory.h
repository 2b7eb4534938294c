/* element/memory.h - a memory element, as memory.c and memory_info.c see it. */
#ifndef WEFTI_ELEMENT_MEMORY_H
#define WEFTI_ELEMENT_MEMORY_H

#include "element/state.h"

struct weft_memory {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    char uri[512];
    pthread_mutex_t lock;
    bool ended;          /* it is being closed, or is; under the lock */
    element_state_t *es; /* the first of what begins as zero */
    wefti_list_t link;   /* es->memories */
    char name[WEFT_DURL_NAME_MAX + 1];
    uint64_t bytes, spare;
    bool mirrored;
    _Atomic bool abandoned; /* the runtime closes, and takes what is left */
    weft_region_t *region;
    weft_buffer_t *buffer; /* of the region's memory, once somebody looked at it; under the lock */
    weft_store_server_t *store;
    weft_listener_t *listener;
    wefti_list_t guests;         /* connections; under the lock, changed by the drivers of their shards */
    wefti_list_t leaving;        /* those that the close hangs up; likewise */
    uint64_t n_guests, accepted; /* now, and since it was opened */
    /* closing */
    bool closing;                /* under the lock */
    _Atomic uint32_t left;
    weft_ext_call_t last_call;   /* the last one of another shard was hung up */
    element_close_t close;
    weft_op_t region_op, store_op, listener_op;
    uint8_t key[WEFT_REGION_KEY_MAX];
    size_t key_len;
};

/* Any thread: one that is open, and stays until it is unlocked. WEFT_ERR_CLOSED, _FORKED. */
weft_status_t wefti_memory_lock(weft_memory_t *m);

#endif
