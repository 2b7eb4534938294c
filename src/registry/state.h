/* registry/state.h - what the room keeps: entries, lists of them, backends, an open registry, its requests and watches.
 *
 * The registry's thread owns everything that can block: the backend, and the entries that are ours. The driver owns the watches
 * and the operations. `lock` is between the two: requests go one way, results the other. Entries and lists are counted, and are
 * not changed once they are shared. */
#ifndef WEFTI_REGISTRY_STATE_H
#define WEFTI_REGISTRY_STATE_H

#include <pthread.h>
#include <string.h>
#include <sys/types.h>
#include <weft/registry.h>

#include "base/alloc.h"
#include "base/opts.h"
#include "base/rarely.h"
#include "base/uri.h"
#include "core/core.h"

#define REG_LEASE_NS (10 * WEFT_SECOND)
#define REG_LEASE_MIN_NS WEFT_SECOND
#define REG_LEASE_MAX_NS (3600 * WEFT_SECOND)
enum { REG_NAME_MAX = 63, REG_ADDRESS_MAX = 511, REG_DATA_MAX = 65536, REG_LOAD_MAX = 1000 };

/* --- entries, and lists of them (entry.c) ------------------------------------------------------------------------------ */

typedef struct reg_entry {
    _Atomic uint32_t refs;
    uint32_t load, data_len;
    char service[REG_NAME_MAX + 1], instance[REG_NAME_MAX + 1], address[REG_ADDRESS_MAX + 1];
    uint8_t data[];
} reg_entry_t;

/* The longest entry as bytes: a head, then service, instance, address, data. */
enum { REG_HEAD = 24, REG_BYTES_MAX = REG_HEAD + 2 * REG_NAME_MAX + REG_ADDRESS_MAX + REG_DATA_MAX };
enum { REG_FULL_NAME = 2 * REG_NAME_MAX + 2 }; /* bytes of "SERVICE@INSTANCE" */

bool wefti_reg_name_ok(const char *name);
weft_status_t wefti_reg_check_service(const char *service); /* WEFT_ERR_INVALID, with a sentence */
/* Check what a program gave and copy it. `instance` stands for entry->instance. WEFT_ERR_INVALID, _NOMEM. */
weft_status_t wefti_reg_entry_new(const weft_entry_t *entry, const char *instance, reg_entry_t **entry_out);
void wefti_reg_entry_unref(reg_entry_t *e); /* NULL is allowed */
static inline reg_entry_t *wefti_reg_entry_ref(reg_entry_t *e)
{
    atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    return e;
}
weft_entry_t wefti_reg_entry_view(const reg_entry_t *e); /* as the program sees it; valid as long as `e` */
bool wefti_reg_entry_same(const reg_entry_t *a, const reg_entry_t *b);
int wefti_reg_entry_order(const reg_entry_t *a, const reg_entry_t *b);
void wefti_reg_entry_name(const reg_entry_t *e, char name[REG_FULL_NAME]);
/* cap: at least REG_BYTES_MAX. Gives the length. */
size_t wefti_reg_entry_encode(const reg_entry_t *e, uint8_t *bytes, size_t cap);
/* Decode bytes that anyone may have written. WEFT_ERR_PROTOCOL: they are no entry; _NOMEM. */
weft_status_t wefti_reg_entry_decode(const void *bytes, size_t n, reg_entry_t **entry_out);
/* The same for bytes that were found under a name: an entry of another name counts as no entry. */
weft_status_t wefti_reg_entry_decode_as(const char *name, const void *bytes, size_t n, reg_entry_t **entry_out);

typedef struct reg_found {
    _Atomic uint32_t refs;
    size_t n, cap;
    reg_entry_t **at;
} reg_found_t;

reg_found_t *wefti_reg_found_new(void);
weft_status_t wefti_reg_found_add(reg_found_t *f, reg_entry_t *e); /* takes the reference, also if it fails */
weft_status_t wefti_reg_found_add_all(reg_found_t *f, const reg_found_t *more);
void wefti_reg_found_sort(reg_found_t *f);                         /* in order, each instance once */
bool wefti_reg_found_same(const reg_found_t *a, const reg_found_t *b);
void wefti_reg_found_unref(reg_found_t *f);                        /* NULL is allowed */
static inline reg_found_t *wefti_reg_found_ref(reg_found_t *f)
{
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

/* --- backends ---------------------------------------------------------------------------------------------------------- */

/* One of our entries. */
typedef struct reg_own {
    wefti_list_t link;
    reg_entry_t *entry;
    void *held;           /* the backend's: what makes others find it. NULL: it is not there */
    bool sure;            /* the backend's: the place has confirmed it */
    bool stale;           /* what is held is not `entry` yet */
    weft_status_t status; /* of the last attempt to enter it */
    uint64_t again_at;    /* the next attempt is not made before */
} reg_own_t;

/* What a place must be able to do. Everything but open() runs on the registry's thread and may block for a while. Each status but
 * WEFT_ERR_STATE and _NOMEM becomes the registry's state; the backend has logged the reason. */
typedef struct reg_backend {
    const char *scheme;
    /* An attempt to enter changes the place even if it fails, and then every watch looks again: try once a second only. */
    bool noisy;
    /* It never blocks, and calls wefti_reg_wake() after a change: so it needs no thread, as on a simulated network. */
    bool instant;
    /* Check `rest` (what follows "scheme://") and make the backend; do not touch the place. Set in `registry` are rt, ops, uri,
     * lease_ns and wake_fd, an eventfd that ends wait(). */
    weft_status_t (*open)(weft_registry_t *registry, const char *rest, void **backend_out);
    /* Make own->entry visible, instead of what is held. WEFT_ERR_STATE: another process has that instance. */
    weft_status_t (*enter)(void *backend, reg_own_t *own);
    /* Take it away. False: the backend keeps `own`, which is on no list, to try again, and frees it with wefti_reg_own_free(). */
    bool (*leave)(void *backend, reg_own_t *own);
    /* Before the keep()s of a look: do what can be done for all of `ours` (reg_own_t) at once, such as renewing a lease, and set
     * held = NULL where an entry is lost. No keep() follows a failure. NULL: nothing to do. */
    weft_status_t (*renew)(void *backend, wefti_list_t *ours);
    /* Make sure that it is there; if not, enter it again. NULL: it is there if it is held. */
    weft_status_t (*keep)(void *backend, reg_own_t *own);
    weft_status_t (*list)(void *backend, reg_found_t *found);
    /* Wait for a change (true), a wake-up, or `ns` (false). Leaves wake_fd as it is. */
    bool (*wait)(void *backend, uint64_t ns);
    void (*close)(void *backend);
    /* list() for watches, from what the place has told by itself. NULL: list() */
    weft_status_t (*known)(void *backend, reg_found_t *found);
    /* Leave with all of `ours` at once; leave() and close() follow. NULL: they do it */
    void (*leave_all)(void *backend, wefti_list_t *ours);
} reg_backend_t;

extern const reg_backend_t wefti_reg_memory, wefti_reg_directory;
extern const reg_backend_t wefti_reg_redis, wefti_reg_redis_unix; /* with hiredis's header: WEFT_HIREDIS */
extern const reg_backend_t wefti_reg_etcd, wefti_reg_etcds;       /* with libcurl's header: WEFT_CURL */

/* --- what backends share (backend.c) ----------------------------------------------------------------------------------- */

/* Log why the place is of no use, rarely for each kind of trouble; requests that fail tell it too. */
void wefti_reg_trouble(weft_registry_t *r, uint64_t kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void wefti_reg_complain(weft_registry_t *r, const char *why); /* "the registry URI: WHY; it is tried again" */

/* A pause before the next attempt: `min` after the first failure, twice as long after each further one, at most `max`, less up to
 * a quarter at random, so that many clients do not come back at once. All zero: there was no failure. */
typedef struct reg_pause {
    uint64_t until, ns;
} reg_pause_t;
void wefti_reg_pause(reg_pause_t *p, wefti_rng_t *rng, uint64_t min, uint64_t max);

/* Read "HOST", "HOST:PORT", "[V6]" or "[V6]:PORT", of n bytes. WEFT_ERR_INVALID, with a sentence. */
weft_status_t wefti_reg_host(const char *part, size_t n, unsigned usual_port, wefti_uri_t *uri_out);
int wefti_reg_ms(uint64_t ns); /* for poll(): rounded up, at most a minute; WEFT_FOREVER: -1 */

typedef struct reg_symbol {
    const char *name;
    void *at; /* a pointer to a function */
} reg_symbol_t;
/* Load the first of `files` (up to NULL) that is here, and find its functions. False: none is here, or it has no *missing_out. */
bool wefti_reg_load(const char *const *files, const reg_symbol_t *symbols, size_t n, const char **missing_out);

/* Call `load` until it has succeeded once. Any thread; its status. */
typedef struct reg_once {
    pthread_mutex_t lock;
    bool done;
} reg_once_t;
#define REG_ONCE_INIT {PTHREAD_MUTEX_INITIALIZER, false}
weft_status_t wefti_reg_once(reg_once_t *once, weft_status_t (*load)(void));

/* --- requests (request.c) ---------------------------------------------------------------------------------------------- */

typedef enum reg_what { REG_ENTER, REG_LEAVE, REG_FIND, REG_CLOSE } reg_what_t;

typedef struct reg_request {
    wefti_list_t link;  /* of the registry: to do, or done */
    weft_registry_t *registry;
    reg_what_t what;
    weft_op_t *op;      /* NULL: it was cancelled, and nobody waits */
    weft_op_t own;      /* where the caller gave none */
    reg_entry_t *entry; /* ENTER */
    char service[REG_NAME_MAX + 1], instance[REG_NAME_MAX + 1];
    weft_entry_fn fn;
    void *user;
    reg_found_t *found;
    weft_status_t status;
    uint64_t detail;    /* why it failed: base/detail.h; 0: the status says it */
    bool came;          /* to the driver */
} reg_request_t;

/* On the driver, in progress: complete its operation, and free it. */
void wefti_reg_request_done(reg_request_t *q);

/* Post an operation of `kind` that ends `object`, which becomes its scratch. It counts in *coming until it reaches the driver.
 * The caller is inside of the handle before, and no longer after. twice: what to say if it is ended already. */
weft_status_t wefti_reg_post_end(weft_runtime_t *rt, wefti_handle_t *handle, _Atomic uint32_t *coming,
                                 const wefti_op_kind_t *kind, void *object, weft_op_t *op, const char *twice);
/* For kinds of operations that take moments, or cannot be cut short. */
void wefti_reg_no_cancel(weft_op_t *op, weft_status_t why);

/* --- watches (watch.c), the driver's ----------------------------------------------------------------------------------- */

struct weft_watch {
    wefti_handle_t handle;   /* open until the program ends it */
    weft_runtime_t *rt;      /* the fields up to here stay readable after it was freed */
    _Atomic uint32_t coming; /* calls on their way to the driver: it is not freed before they arrive */
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

/* --- an open registry (registry.c), its thread (thread.c) -------------------------------------------------------------- */

struct weft_registry {
    wefti_handle_t handle;       /* open until the program closes it */
    weft_runtime_t *rt;
    char name[REG_NAME_MAX + 1]; /* the instance that NULL stands for. The fields up to here stay readable after it was freed */
    _Atomic uint32_t coming;     /* calls on their way to the driver: it is not freed before they arrive */
    wefti_list_t link;           /* of the runtime */
    const reg_backend_t *ops;
    void *backend;
    char *uri;                   /* for people: without a password */
    uint64_t lease_ns, look_ns;  /* look_ns: the longest time between two looks */
    _Atomic int state;           /* weft_status_t */
    bool closing;                /* the driver's: it is being closed */
    bool over;                   /* the driver's: it is closed, and freed when `coming` is 0 */
    _Atomic uint32_t watching;   /* how many watches there are */

    bool threaded;               /* false: the driver does the thread's work, in turns */
    pthread_t thread;
    int wake_fd;
    wefti_call_t turn;
    bool turning, again;         /* a turn is due or runs; another one has to follow */
    pthread_mutex_t lock;
    pthread_cond_t called;
    wefti_list_t todo, done;     /* requests */
    reg_found_t *fresh;          /* what the last look found, if it is news */
    bool look;                   /* a new watch wants to be told what there is, even if it is no news */
    bool telling;                /* the driver was called and did not come yet */
    bool calling, orphan;        /* the thread calls the driver now; the runtime is gone */
    bool late;                   /* the thread's: its call found the runtime about to close, and is made again */
    bool shut;                   /* the thread takes no more requests */

    /* the thread's */
    wefti_list_t ours;
    wefti_rarely_t rarely;
    char trouble[WEFTI_DETAIL_MAX]; /* the last that there was with the place */
    reg_found_t *last;

    /* the driver's */
    wefti_call_t call;
    weft_op_t tell;              /* its completion calls told() in progress */
    wefti_list_t watches;
    reg_found_t *current;
    reg_request_t closer;        /* REG_CLOSE, which must not fail for lack of memory */
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
/* A watch was begun: look soon, and tell what there is. Any thread. */
void wefti_reg_thread_look(weft_registry_t *registry);
/* The backend has news, or there is something to do. Any thread; not with a lock of the backend's unless `threaded`. */
void wefti_reg_wake(weft_registry_t *registry);
/* On the thread. */
reg_own_t *wefti_reg_own_find(wefti_list_t *owns, const char *service, const char *instance); /* NULL: none */
void wefti_reg_own_free(reg_own_t *own);
/* For calls of any thread: it is open, and stays so until wefti_reg_leave(), which follows soon. Before that, count in `coming`
 * what is handed to the driver. WEFT_ERR_INVALID, _CLOSED, _FORKED. */
weft_status_t wefti_reg_enter(const weft_registry_t *registry);
static inline void wefti_reg_leave(const weft_registry_t *registry)
{
    wefti_handle_leave(&((weft_registry_t *)(uintptr_t)registry)->handle);
}
/* On the driver: one of those in `coming` has arrived, and is done with. The registry may be freed then. */
void wefti_reg_came(weft_registry_t *registry);
/* Free it. Its thread has ended, never began, or is the caller. */
void wefti_reg_free(weft_registry_t *registry);

/* --- files that are locked as long as this process lives (hold.c) ------------------------------------------------------ */

/* A file of a directory that is locked by this process, and by none of its children. */
typedef struct reg_hold {
    wefti_list_t link;
    int fd;
    dev_t dev;
    ino_t ino;
} reg_hold_t;

/* Lock a file that is there, or (make) a new one. errno or 0; EAGAIN: another has it, or took the new one for litter: try
 * again. */
int wefti_reg_hold(int dir, const char *name, bool make, reg_hold_t **hold_out);
/* Does the name mean this file? */
bool wefti_reg_hold_is(const reg_hold_t *hold, int dir, const char *name);
void wefti_reg_hold_drop(reg_hold_t *hold);
/* Has anyone locked it? Locks nothing. -1: it cannot be told (errno). */
int wefti_reg_locked(int fd);

/* From now on forks are noticed; call it before anything is held. */
void wefti_reg_fork_watch(void);
/* Held while the process forks, and by whoever changes what the child must find whole: memory.c. */
void wefti_reg_fork_lock(void);
void wefti_reg_fork_unlock(void);

#endif
