/* element/memory_info.c - what a program may ask of a memory element. Any thread. */
#include "element/memory.h"

weft_status_t weft_memory_durl(weft_memory_t *memory, char *buf, size_t *len)
{
    weft_durl_t d = WEFT_DURL_INIT;
    if (!memory || !len)
        return weft_fail(WEFT_ERR_INVALID, memory ? "the length is NULL" : "the memory is NULL");
    weft_status_t st = wefti_memory_lock(memory);
    if (st)
        return st;
    memcpy(d.name, memory->name, sizeof d.name);
    d.impl = strncmp(memory->uri, "unix:", 5) != 0 ? WEFT_IMPL_TCP : WEFT_IMPL_SHARED;
    d.bytes = memory->bytes;
    if (memory->mirrored) {
        memcpy(d.replica[0], memory->uri, sizeof d.replica[0]);
        d.n_replicas = 1;
    } else {
        memcpy(d.url, memory->uri, sizeof d.url);
        memcpy(d.region_key, memory->key, memory->key_len);
        d.region_key_len = memory->key_len;
    }
    pthread_mutex_unlock(&memory->lock);
    return weft_durl_format(&d, buf, len);
}

bool wefti_memory_key(weft_memory_t *memory, uint8_t key[WEFT_REGION_KEY_MAX], size_t *len)
{
    if (wefti_memory_lock(memory))
        return false;
    memcpy(key, memory->key, memory->key_len);
    *len = memory->key_len;
    pthread_mutex_unlock(&memory->lock);
    return *len != 0;
}

const char *weft_memory_uri(const weft_memory_t *memory)
{
    weft_memory_t *m = (weft_memory_t *)(uintptr_t)memory;
    if (!m || wefti_memory_lock(m))
        return "";
    pthread_mutex_unlock(&m->lock);
    return m->uri;
}

void *weft_memory_base(const weft_memory_t *memory)
{
    weft_memory_t *m = (weft_memory_t *)(uintptr_t)memory;
    if (!m || wefti_memory_lock(m))
        return NULL;
    weft_region_t *region = m->region;
    pthread_mutex_unlock(&m->lock);
    return weft_region_base(region);
}

weft_buffer_t *wefti_memory_buffer(weft_memory_t *memory)
{
    if (wefti_memory_lock(memory))
        return NULL;
    if (!memory->buffer && memory->region)
        memory->buffer = wefti_element_buffer_of(memory->region, memory->bytes);
    weft_buffer_t *buffer = memory->buffer;
    weft_buffer_hold(buffer);
    pthread_mutex_unlock(&memory->lock);
    return buffer;
}

static weft_status_t count(weft_memory_t *memory, weft_memory_stats_t *all)
{
    weft_region_info_t r = WEFT_REGION_INFO_INIT;
    weft_store_stats_t s = WEFT_STORE_STATS_INIT;
    weft_status_t st = wefti_memory_lock(memory);
    if (st)
        return st;
    weft_region_t *region = memory->region;
    weft_store_server_t *store = memory->store;
    bool mirrored = memory->mirrored;
    uint64_t bytes = memory->bytes;
    all->bytes = bytes + memory->spare;
    all->connections = memory->n_guests;
    all->accepted = memory->accepted;
    pthread_mutex_unlock(&memory->lock);
    /* these are handles: one that is closed meanwhile says so */
    if (region && !weft_region_get_info(region, &r)) {
        all->used_bytes = bytes;
        all->users = r.attached;
        all->mapped = r.mapped;
    }
    if (store && !weft_store_server_get_stats(store, &s)) {
        all->used_bytes += s.used_bytes;
        all->users = mirrored ? s.clients : all->users;
    }
    all->reads = r.reads + s.reads;
    all->writes = r.writes + s.writes;
    all->atomics = r.atomics + s.atomics;
    all->bytes_read = r.bytes_read + s.bytes_read;
    all->bytes_written = r.bytes_written + s.bytes_written;
    all->refused = r.refused + s.refused;
    return WEFT_OK;
}

weft_status_t weft_memory_get_stats(weft_memory_t *memory, weft_memory_stats_t *stats_out)
{
    weft_memory_stats_t all = WEFT_MEMORY_STATS_INIT;
    if (!memory || !stats_out || stats_out->size < sizeof stats_out->size)
        return weft_fail(WEFT_ERR_INVALID,
                         memory ? "statistics go to a struct made with WEFT_MEMORY_STATS_INIT" : "the memory is NULL");
    weft_runtime_t *rt = memory->rt;
    weft_status_t st = weft_ext_enter(rt); /* its region and its store are the runtime's */
    if (st)
        return st;
    st = count(memory, &all);
    weft_ext_leave(rt);
    if (st)
        return st;
    wefti_opts_write(stats_out, &all, sizeof all);
    return WEFT_OK;
}
