/* weft/registry.h - who offers what, where: services, and the instances behind each.
 *
 * A registry is a place that several processes know. A server enters itself: the name of its service, its own name, its
 * addresses, its load, and bytes for those who look (signatures). The library keeps the entry alive, and removes it at the end;
 * the entry of a process that died disappears by itself. Clients look, or watch.
 *
 *     memory://NAME               within this process: for tests, and for programs that are one process
 *     dir:///run/weft             a directory of this machine; dir:// is the default one (WEFT_REGISTRY_DIR, else the user's own)
 *     redis://HOST                a Redis server: redis://[[USER]:PASSWORD@]HOST[:PORT][/DB],
 *                                 redis+unix://[[USER]:PASSWORD@]/PATH[?db=DB]
 *     etcd://host:2379,host2      etcd, one or several hosts of it; needs libcurl at run time. etcd+https:// is the same by TLS
 *                                 (WEFT_REGISTRY_CA)
 *
 * Nothing that runs depends on a registry: while it is out of reach, what was found stays known, and our entries come back with
 * it.
 *
 * A call on a registry that was closed, or a watch that has ended (as all do with their registry), returns WEFT_ERR_CLOSED.
 *
 * Threads: any; functions given here are called in progress. */
#ifndef WEFT_REGISTRY_H
#define WEFT_REGISTRY_H

#include <weft/op.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weft_registry weft_registry_t;

typedef struct weft_registry_opts {
    size_t size;
    uint64_t lease_ns; /* how long an entry outlives its process, 1 s to an hour; 0: 10 s. memory:// and dir:// need no lease */
} weft_registry_opts_t;
#define WEFT_REGISTRY_OPTS_INIT WEFT_INIT(weft_registry_opts_t)

/* Open a registry; uri NULL: as configured (WEFT_REGISTRY), dir:// if it is not. Returns at once, whether it can be reached or
 * not. opts may be NULL. Fails: WEFT_ERR_INVALID (the uri), WEFT_ERR_UNSUPPORTED (a kind of registry that this build does not
 * have), WEFT_ERR_NOMEM, WEFT_ERR_LIMIT (file descriptors, threads). */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_registry_open(weft_runtime_t *rt, const char *uri, const weft_registry_opts_t *opts,
                                                          weft_registry_t **registry_out);
/* Take our entries away, end watches (no function is called after op completes), and close. op may be NULL. Before the runtime
 * closes. */
WEFT_API weft_status_t weft_registry_close(weft_registry_t *registry, weft_op_t *op);
/* The instance that NULL stands for when entering and leaving: made up when the registry was opened, with the host and the
 * process in it for people to see, and nobody else's. Valid until it is closed. */
WEFT_API const char *weft_registry_name(const weft_registry_t *registry);
/* What the last attempt to use it came to: WEFT_OK; WEFT_ERR_UNREACHABLE (it is not there, or may not be used); WEFT_ERR_LIMIT
 * (the disk is full, no file descriptors). The log says why, once. */
WEFT_API weft_status_t weft_registry_state(const weft_registry_t *registry);

/* An instance of a service. Strings and data are the caller's when given to the library, and valid during the call when given
 * by it. */
typedef struct weft_entry {
    size_t size;
    const char *service;  /* letters, digits, '.', '-', '_': at most 63 */
    const char *instance; /* the same; unique within the service. NULL when entering: weft_registry_name() */
    const char *address;  /* URIs joined by commas, for weft_ep_open(): at most 511 bytes */
    uint32_t load;        /* 0 idle to 1000 full */
    const void *data;     /* at most 65536 bytes */
    size_t data_len;
} weft_entry_t;
#define WEFT_ENTRY_INIT WEFT_INIT(weft_entry_t)

/* Enter: op (may be NULL) completes when others can find it. WEFT_ERR_STATE: another process has that instance. If the registry
 * is not there now it completes with WEFT_ERR_UNREACHABLE or _LIMIT, and the entry is made as soon as it is. An entry of ours
 * that is there is changed. Cancelling ends the wait, not the entry. In a directory each costs a file descriptor for as long as
 * it is there. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_registry_enter(weft_registry_t *registry, const weft_entry_t *entry, weft_op_t *op);
/* Take one of ours away; instance NULL: weft_registry_name(). WEFT_ERR_NOTFOUND. op may be NULL. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_registry_leave(weft_registry_t *registry, const char *service, const char *instance,
                                                           weft_op_t *op);

typedef void (*weft_entry_fn)(const weft_entry_t *entry, void *user);
/* Look: fn for every instance of `service` (NULL: of all), then op completes, op->count how many. WEFT_ERR_UNREACHABLE. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_registry_find(weft_registry_t *registry, const char *service, weft_entry_fn fn,
                                                          void *user, weft_op_t *op);

typedef enum weft_change { WEFT_CAME = 1, WEFT_CHANGED = 2, WEFT_WENT = 3 } weft_change_t;
typedef void (*weft_watch_fn)(weft_change_t change, const weft_entry_t *entry, void *user);
typedef struct weft_watch weft_watch_t;
/* Watch a service (NULL: all): fn for every instance there is (CAME), and then for every change, until weft_watch_end(). An
 * instance that is not seen because the registry is out of reach has not gone. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_registry_watch(weft_registry_t *registry, const char *service, weft_watch_fn fn,
                                                           void *user, weft_watch_t **watch_out);
/* No call of fn begins after this returns, if called on the driving thread; else after op (may be NULL) completes. */
WEFT_API weft_status_t weft_watch_end(weft_watch_t *watch, weft_op_t *op);

#ifdef __cplusplus
}
#endif
#endif
