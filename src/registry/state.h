/* registry/state.h - what the room keeps: entries, what a look found, backends, an open registry, its requests and watches.
 *
 * Three owners. The registry's thread has everything that can block: the backend and the entries that are ours. The driver has the watches and the
 * operations. `lock` is between them: requests go one way, what became of them and what was found the other. Entries and snapshots are never changed
 * once made, and counted. */
#ifndef WEFTI_REGISTRY_STATE_H
#define WEFTI_REGISTRY_STATE_H

#include <pthread.h>
#include <string.h>
#include <sys/types.h>
#include <weft/registry.h>

#include "base/alloc.h"
#include "base/opts.h"
#include "base/rarely.h"
#include "core/core.h"

#define REG_LEASE_NS (10 * WEFT_SECOND)
#define REG_LEASE_MIN_NS WEFT_SECOND
#define REG_LEASE_MAX_NS (3600 * WEFT_SECOND)
enum { REG_NAME_MAX = 63, REG_ADDRESS_MAX = 511, REG_DATA_MAX = 65536, REG_LOAD_MAX = 1000 };

/* --- entries (entry.c) ---------------------------------------------------------------------------------------------------------- */

typedef struct reg_entry {
    _Atomic uint32_t refs;
    uint32_t load, data_len;
    char service[REG_NAME_MAX + 1], instance[REG_NAME_MAX + 1], address[REG_ADDRESS_MAX + 1];
    uint8_t data[];
} reg_entry_t;

/* The bytes of an entry in a file: a head, then service, instance, address, data. */
enum { REG_HEAD = 24, REG_BYTES_MAX = REG_HEAD + 2 * REG_NAME_MAX + REG_ADDRESS_MAX + REG_DATA_MAX };

bool wefti_reg_name_ok(const char *name);
/* Check what a program gave and copy it. `instance` stands for entry->instance. WEFT_ERR_INVALID, _NOMEM. */
weft_status_t wefti_reg_entry_new(const weft_entry_t *entry, const char *instance, reg_entry_t **entry_out);
void wefti_reg_entry_unref(reg_entry_t *e);
static inline reg_entry_t *wefti_reg_entry_ref(reg_entry_t *e)
{
    atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    return e;
}
/* As the program sees it; lives as long as `e`. */
weft_entry_t wefti_reg_entry_view(const reg_entry_t *e);
bool wefti_reg_entry_same(const reg_entry_t *a, const reg_entry_t *b);
int wefti_reg_entry_order(const reg_entry_t *a, const reg_entry_t *b);
/* cap at least REG_BYTES_MAX; how many it took. */
size_t wefti_reg_entry_encode(const reg_entry_t *e, uint8_t *bytes, size_t cap);
/* Bytes that anyone may have written. WEFT_ERR_PROTOCOL: they are no entry; _NOMEM. */
weft_status_t wefti_reg_entry_decode(const void *bytes, size_t n, reg_entry_t **entry_out);

/* --- what a look found: in order, each instance once (entry.c) ------------------------------------------------------------------ */

typedef struct reg_found {
    _Atomic uint32_t refs;
    size_t n, cap;
    reg_entry_t **at;
} reg_found_t;

reg_found_t *wefti_reg_found_new(void);
weft_status_t wefti_reg_found_add(reg_found_t *f, reg_entry_t *e); /* takes the reference, also if it fails */
void wefti_reg_found_sort(reg_found_t *f);
bool wefti_reg_found_same(const reg_found_t *a, const reg_found_t *b);
void wefti_reg_found_unref(reg_found_t *f); /* NULL is allowed */
static inline reg_found_t *wefti_reg_found_ref(reg_found_t *f)
{
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

/* --- backends -------------------------------------------------------------------------------------------------------------------- */

/* One of ours, on the registry's thread. */
typedef struct reg_own {
    wefti_list_t link;
    reg_entry_t *entry;
    void *held;           /* the backend's: what makes others believe in it. NULL: it is not there */
    bool stale;           /* what is held is not `entry` yet */
    weft_status_t status; /* of the last attempt to make it */
    uint64_t again_at;    /* it failed, and is not tried before */
} reg_own_t;

/* What a place must be able to do. Everything but open() runs on the registry's thread and may block, for a while. A status that is none of
 * WEFT_ERR_STATE and _NOMEM is what the registry's state becomes; whoever decides it has logged why. */
typedef struct reg_backend {
    const char *scheme;
    /* An attempt to enter changes the place even if it fails, so that all who watch look again: it is made once a second, not after every change. */
    bool noisy;
    /* It never blocks, and calls wefti_reg_wake() when something has changed: so it can do without a thread, on a simulated network. */
    bool instant;
    /* Check `rest` (what follows "scheme://") and make the backend; does not touch the place. Of `registry` there are rt, ops, uri, lease_ns and
     * wake_fd, an eventfd that ends wait(). */
    weft_status_t (*open)(weft_registry_t *registry, const char *rest, void **backend_out);
    /* Make own->entry to be found, instead of what is held, if anything is. WEFT_ERR_STATE: another has that instance. */
    weft_status_t (*enter)(void *backend, reg_own_t *own);
    void (*leave)(void *backend, reg_own_t *own);
    /* Before the keep()s of a look: everything that can be done for all of `ours` (reg_own_t) at once, such as renewing a lease. What is found to
     * be lost has held = NULL afterwards. It fails: no keep() follows. NULL: there is nothing of the kind. */
    weft_status_t (*renew)(void *backend, wefti_list_t *ours);
    /* Is it still there? If not, make it again. */
    weft_status_t (*keep)(void *backend, reg_own_t *own);
    weft_status_t (*list)(void *backend, reg_found_t *found);
    /* Until something may have changed (true), someone wakes us, or `ns` have passed (false). Leaves wake_fd as it is. */
    bool (*wait)(void *backend, uint64_t ns);
    void (*close)(void *backend);
    /* What watches are to know, without asking the place again if it tells of changes by itself. NULL: list() */
    weft_status_t (*known)(void *backend, reg_found_t *found);
    /* Leave with everything (reg_own_t); leave() and close() follow. NULL: they do it */
    void (*leave_all)(void *backend, wefti_list_t *ours);
} reg_backend_t;

extern const reg_backend_t wefti_reg_memory, wefti_reg_directory, wefti_reg_redis, wefti_reg_redis_unix, wefti_reg_etcd, wefti_reg_etcds;

/* --- trouble (thread.c), the thread's ------------------------------------------------------------------------------------------------ */

/* Why the place of a registry was of no use last: the log hears of each kind rarely, and requests that fail say it. */
typedef struct reg_trouble {
    wefti_rarely_t rarely;
    char last[WEFTI_DETAIL_MAX];
} reg_trouble_t;
void wefti_reg_trouble(reg_trouble_t *t, uint64_t kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* --- requests (request.c) --------------------------------------------------------------------------------------------------------- */

typedef enum reg_what { REG_ENTER, REG_LEAVE, REG_FIND, REG_CLOSE } reg_what_t;

typedef struct reg_request {
    wefti_list_t link;       /* of the registry: to do, or done */
    weft_registry_t *registry;
    reg_what_t what;
    weft_op_t *op;           /* NULL: it was cancelled, and nobody waits */
    weft_op_t own;           /* where the caller gave none */
    reg_entry_t *entry;      /* ENTER */
    char service[REG_NAME_MAX + 1], instance[REG_NAME_MAX + 1];
    weft_entry_fn fn;
    void *user;
    reg_found_t *found;
    weft_status_t status;
    uint64_t detail;         /* why it failed: base/detail.h; 0: the status says it */
    bool came;               /* to the driver */
} reg_request_t;

/* On the driver, in progress: tell what became of it, and free it. */
void wefti_reg_request_done(reg_request_t *q);

/* --- watches (watch.c), the driver's ------------------------------------------------------------------------------------------------ */

struct weft_watch {
    wefti_handle_t handle;   /* open until the program ends it */
    weft_runtime_t *rt;      /* up to here it can be read when it was freed */
    _Atomic uint32_t coming; /* calls that are on their way to the driver: it stays until then */
    wefti_list_t link;
    weft_registry_t *registry;
    wefti_call_t call;       /* to its beginning */
    weft_op_t own;
    char service[REG_NAME_MAX + 1]; /* "": all */
    weft_watch_fn fn;
    void *user;
    reg_found_t *told;       /* what fn knows; NULL: nothing yet */
    bool busy, ended;        /* fn runs; it is not to be called again */
};

/* Tell every watch what has changed since it was last told. In progress. */
void wefti_reg_watches_tell(weft_registry_t *registry);
void wefti_reg_watches_end(weft_registry_t *registry);

/* --- an open registry (registry.c), its thread (thread.c) ---------------------------------------------------------------------------- */

struct weft_registry {
    wefti_handle_t handle;   /* open until the program closes it */
    weft_runtime_t *rt;
    char name[REG_NAME_MAX + 1]; /* the instance that NULL stands for. Up to here it can be read when it was freed */
    _Atomic uint32_t coming; /* calls that are on their way to the driver: it stays until then */
    wefti_list_t link;       /* of the runtime */
    const reg_backend_t *ops;
    void *backend;
    char *uri;               /* for people: without a password */
    uint64_t lease_ns, look_ns; /* how often what is ours is looked after, at least */
    _Atomic int state;       /* weft_status_t */
    bool closing;            /* the driver's: it ends */
    bool over;               /* the driver's: it has ended, but somebody comes */
    _Atomic uint32_t watching; /* how many watches there are */

    bool threaded;           /* else the driver does what the thread would, in turns */
    pthread_t thread;
    int wake_fd;
    wefti_call_t turn;
    bool turning, again;     /* a turn is due or under way; and another after it */
    pthread_mutex_t lock;
    pthread_cond_t called;
    wefti_list_t todo, done; /* requests */
    reg_found_t *fresh;      /* what the last look found, if it is news */
    bool look;               /* a watch wants to be told what there is, although it may be no news */
    bool telling;            /* the driver was called and did not come yet */
    bool calling, orphan;    /* the thread calls the driver now; the runtime is gone */
    bool late;               /* the thread's: its call found the runtime about to close, and is made again */
    bool shut;               /* the thread takes no more requests */

    /* the thread's */
    wefti_list_t ours;
    reg_trouble_t trouble;   /* that there was with this registry */
    reg_found_t *last;

    /* the driver's */
    wefti_call_t call;
    weft_op_t tell;          /* through which what there is to tell reaches progress */
    wefti_list_t watches;
    reg_found_t *current;
    reg_request_t closer;    /* REG_CLOSE, which must not fail for want of memory */
};

typedef struct reg_state {
    pthread_mutex_t lock;
    wefti_list_t registries;
} reg_state_t;

static inline reg_state_t *reg_state(weft_runtime_t *rt) { return (reg_state_t *)rt->room_state[WEFTI_ROOM_REGISTRY]; }

/* WEFT_ERR_LIMIT: no thread. */
weft_status_t wefti_reg_thread_start(weft_registry_t *registry);
bool wefti_reg_is_own_thread(const weft_registry_t *registry); /* is this its thread? */
/* Hand a request to the thread; false: it takes none any more. Any thread. */
bool wefti_reg_thread_do(weft_registry_t *registry, reg_request_t *q);
/* A watch was begun: look soon, and say what there is. Any thread. */
void wefti_reg_thread_look(weft_registry_t *registry);
/* The backend has news, or there is something to do. Any thread; not with a lock of the backend's, unless the registry is threaded. */
void wefti_reg_wake(weft_registry_t *registry);
/* For calls of any thread: it is open, and stays until wefti_reg_leave(). WEFT_ERR_INVALID, _CLOSED, _FORKED. For moments. What is handed
 * to the driver
 * is counted as coming before. */
weft_status_t wefti_reg_enter(const weft_registry_t *registry);
static inline void wefti_reg_leave(const weft_registry_t *registry)
{
    wefti_handle_leave(&((weft_registry_t *)(uintptr_t)registry)->handle);
}
/* On the driver: it has arrived, and is done with. The registry may be gone then. */
void wefti_reg_came(weft_registry_t *registry);
/* Free it. Its thread has ended, or never began, or is what calls. */
void wefti_reg_free(weft_registry_t *registry);

/* --- files that are locked for as long as this process lives (hold.c) ------------------------------------------------------------------ */

/* A file of a directory whose lock this process has, and none of its children. */
typedef struct reg_hold {
    wefti_list_t link;
    int fd;
    dev_t dev;
    ino_t ino;
} reg_hold_t;

/* Make a file that was not there, and lock it. errno or 0; EAGAIN: someone took it for litter; try again. */
int wefti_reg_hold_make(int dir, const char *name, reg_hold_t **hold_out);
/* Lock a file that is there, if nobody has it: EAGAIN if someone does. */
int wefti_reg_hold_take(int dir, const char *name, reg_hold_t **hold_out);
/* Does the name mean this file? */
bool wefti_reg_hold_is(const reg_hold_t *hold, int dir, const char *name);
void wefti_reg_hold_drop(reg_hold_t *hold);
/* Has anyone locked it? Asks, and locks nothing. -1: it cannot be told (errno). */
int wefti_reg_locked(int fd);

/* From now on forks are noticed; before anything is held. */
void wefti_reg_fork_watch(void);
/* Held while a fork copies this process, and by whoever changes what its child is to find whole. memory.c. */
void wefti_reg_fork_lock(void);
void wefti_reg_fork_unlock(void);

#endif
