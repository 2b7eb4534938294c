/* registry/memory.c - memory://NAME: a registry within this process.
 *
 * The first that opens a name makes its hub, and the last that closes it frees it. A hub has the entries and the registries,
 * which it wakes at each change. A forked child gets a hub of its own under the same name: that of its parent belongs to
 * threads that the child does not have.
 *
 * All hubs share the lock that is held during a fork, so that a child finds them whole. Nothing here blocks.
 * tests/wire/registry_basic.c. */
#include <poll.h>

#include "registry/state.h"

typedef struct hub {
    wefti_list_t link;
    uint32_t generation; /* of forks */
    unsigned users;
    wefti_list_t entries, members;
    char name[REG_NAME_MAX + 1];
} hub_t;

typedef struct member {
    wefti_list_t link;
    hub_t *hub;
    weft_registry_t *registry;
    bool changed, due; /* there was a change since it last looked; it is to be woken */
} member_t;

typedef struct kept {
    wefti_list_t link;
    reg_entry_t *entry;
} kept_t;

static wefti_list_t hubs = {&hubs, &hubs};

static weft_status_t memory_open(weft_registry_t *registry, const char *rest, void **backend_out)
{
    if (!wefti_reg_name_ok(rest))
        return wefti_fail(WEFT_ERR_INVALID,
                          "memory://%.80s: write memory://NAME, a name of 1 to %d letters, digits, '.', '-' and '_'", rest,
                          REG_NAME_MAX);
    hub_t *hub = NULL, *spare = (hub_t *)wefti_calloc(1, sizeof *spare);
    member_t *m = (member_t *)wefti_calloc(1, sizeof *m);
    if (!spare || !m) {
        wefti_free(spare);
        wefti_free(m);
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for a registry");
    }
    wefti_reg_fork_lock();
    wefti_list_each(l, &hubs) {
        hub_t *h = wefti_container_of(l, hub_t, link);
        if (h->generation == wefti_fork_generation && !strcmp(h->name, rest))
            hub = h;
    }
    if (!hub) {
        hub = spare;
        spare = NULL;
        hub->generation = wefti_fork_generation;
        memcpy(hub->name, rest, strlen(rest));
        wefti_list_init(&hub->entries);
        wefti_list_init(&hub->members);
        wefti_list_push_back(&hubs, &hub->link);
    }
    hub->users++;
    m->hub = hub;
    m->registry = registry;
    wefti_list_push_back(&hub->members, &m->link);
    wefti_reg_fork_unlock();
    wefti_free(spare);
    *backend_out = m;
    return WEFT_OK;
}

/* With the lock, so that no registry of another thread is freed meanwhile. */
static void changed(hub_t *hub)
{
    wefti_list_each(l, &hub->members) {
        member_t *m = wefti_container_of(l, member_t, link);
        m->changed = true;
        m->due = !m->registry->threaded;
        if (!m->due)
            wefti_reg_wake(m->registry);
    }
}

/* Without the lock: a registry without a thread does its work when it is woken, and that may even be to leave. All of those
 * belong to the calling thread, as does `hub`. */
static void wake_due(hub_t *hub)
{
    for (weft_registry_t *r = NULL;; r = NULL) {
        wefti_reg_fork_lock();
        wefti_list_each(l, &hub->members) {
            member_t *m = wefti_container_of(l, member_t, link);
            if (m->due) {
                m->due = false;
                r = m->registry;
                break;
            }
        }
        wefti_reg_fork_unlock();
        if (!r)
            return;
        wefti_reg_wake(r);
    }
}

static weft_status_t memory_enter(void *backend, reg_own_t *own)
{
    member_t *m = (member_t *)backend;
    kept_t *spare = own->held ? NULL : (kept_t *)wefti_calloc(1, sizeof *spare);
    weft_status_t st = WEFT_OK;
    if (!own->held && !spare)
        return WEFT_ERR_NOMEM;
    wefti_reg_fork_lock();
    wefti_list_each(l, &m->hub->entries) {
        kept_t *k = wefti_container_of(l, kept_t, link);
        if (k != own->held && !wefti_reg_entry_order(k->entry, own->entry))
            st = WEFT_ERR_STATE;
    }
    if (!st) {
        kept_t *k = own->held ? (kept_t *)own->held : spare;
        if (!own->held) {
            wefti_list_push_back(&m->hub->entries, &k->link);
            own->held = k;
            spare = NULL;
        }
        wefti_reg_entry_unref(k->entry);
        k->entry = wefti_reg_entry_ref(own->entry);
        changed(m->hub);
    }
    wefti_reg_fork_unlock();
    wefti_free(spare);
    wake_due(m->hub);
    return st;
}

static bool memory_leave(void *backend, reg_own_t *own)
{
    member_t *m = (member_t *)backend;
    kept_t *k = (kept_t *)own->held;
    if (!k)
        return true;
    wefti_reg_fork_lock();
    wefti_list_remove(&k->link);
    changed(m->hub);
    wefti_reg_fork_unlock();
    wefti_reg_entry_unref(k->entry);
    wefti_free(k);
    wake_due(m->hub);
    return true;
}

static weft_status_t memory_list(void *backend, reg_found_t *found)
{
    member_t *m = (member_t *)backend;
    weft_status_t st = WEFT_OK;
    wefti_reg_fork_lock();
    m->changed = false;
    for (wefti_list_t *l = m->hub->entries.next; !st && l != &m->hub->entries; l = l->next)
        st = wefti_reg_found_add(found, wefti_reg_entry_ref(wefti_container_of(l, kept_t, link)->entry));
    wefti_reg_fork_unlock();
    return st;
}

static bool memory_wait(void *backend, uint64_t ns)
{
    member_t *m = (member_t *)backend;
    struct pollfd p = {m->registry->wake_fd, POLLIN, 0};
    poll(&p, 1, wefti_reg_ms(ns));
    wefti_reg_fork_lock();
    bool news = m->changed;
    m->changed = false; /* say it once: without a watch there is no list() to clear it */
    wefti_reg_fork_unlock();
    return news;
}

static void memory_close(void *backend)
{
    member_t *m = (member_t *)backend;
    hub_t *hub = m->hub;
    wefti_reg_fork_lock();
    wefti_list_remove(&m->link);
    if (!--hub->users)
        wefti_list_remove(&hub->link);
    else
        hub = NULL;
    wefti_reg_fork_unlock();
    wefti_free(hub);
    wefti_free(m);
}

const reg_backend_t wefti_reg_memory = {
    .scheme = "memory",
    .instant = true,
    .open = memory_open,
    .enter = memory_enter,
    .leave = memory_leave,
    .list = memory_list,
    .wait = memory_wait,
    .close = memory_close,
};
