/* element/state.h - what the room keeps: actions, their transports, the routes of these, ios; buffers; memory elements.
 *
 * The program has a transport (an element transport, not one of shm, tcp and ucx). A route is its connection to where its durl
 * leads, or several with replicas. A route that is lost is never repaired: the transport makes another. An io is one operation
 * on a transport.
 *
 * Actions, transports and memory elements are handles (base/handle.h). Their locks stay with their memory, so that any thread may
 * take one: the object is closed (`ended`, RELEASED), or stays until it is unlocked. No lock is taken in a forked child, where it
 * may be held for ever.
 *
 * Everything else belongs to the driver. Counted objects are freed with their last reference, on any thread. */
#ifndef WEFTI_ELEMENT_STATE_H
#define WEFTI_ELEMENT_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <weft/config.h>
#include <weft/element.h>
#include <weft/extend.h>
#include <weft/runtime.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/handle.h"
#include "base/opts.h"
#include "base/rng.h"

#define ELEMENT_AT_ONCE (UINT64_C(1) << 20) /* bytes of mapped memory that weft/rma.h moves within the post */
#define ELEMENT_SHM_URI "unix://@weft-element-%s" /* where a shm_id is */
enum { ELEMENT_SPARE_IOS = 64 };

typedef struct element_io element_io_t;
typedef struct element_route element_route_t;

typedef struct element_state {
    weft_runtime_t *rt;
    _Atomic uint64_t under_way; /* operations of this room that libweft and the store have */
    wefti_list_t actions;        /* the driver's */
    pthread_mutex_t lock;
    wefti_list_t memories, routes; /* all there are; under the lock */
    wefti_rng_t rng;            /* the driver's */
} element_state_t;

extern const weft_ext_t wefti_element_ext; /* element.c */
/* Of a runtime that stays for as long as this is looked at. NULL: it was opened before this library was loaded. */
static inline element_state_t *element_state(const weft_runtime_t *rt)
{
    return (element_state_t *)weft_ext_state(rt, &wefti_element_ext);
}
/* Any thread: keep the runtime and this room's state of it until weft_ext_leave(), to open something. WEFT_ERR_CLOSED, _STATE. */
weft_status_t wefti_element_enter(weft_runtime_t *rt, element_state_t **es_out);

/* The close of an action or a memory element, with an operation or without one. */
typedef struct element_close {
    void (*begin)(struct element_close *close); /* on the driver, once */
    weft_op_t *op;               /* NULL: nobody waits, or not any more */
    weft_ext_call_t call;
} element_close_t;
/* Have `begin` called. The operation, if there is one, is prepared. Any thread. */
weft_status_t wefti_element_close(weft_runtime_t *rt, element_close_t *close, weft_op_t *op);
/* Of the weft_op_kind_t of such an operation. */
weft_status_t wefti_element_close_start(weft_op_t *op);
void wefti_element_close_cancel(weft_op_t *op, weft_status_t why);

/* A time so far from now, or the end of time. */
static inline uint64_t element_after(uint64_t now, uint64_t ns) { return ns < UINT64_MAX - now ? now + ns : UINT64_MAX; }
static inline void element_begin(element_state_t *es) { atomic_fetch_add_explicit(&es->under_way, 1, memory_order_relaxed); }
static inline void element_end(element_state_t *es) { atomic_fetch_sub_explicit(&es->under_way, 1, memory_order_relaxed); }
/* Make an operation of this room's ready to be posted: it is under way until element_end(). */
static inline void element_op(element_state_t *es, weft_op_t *op, weft_op_fn fn, void *user)
{
    *op = (weft_op_t){.fn = fn, .user = user};
    element_begin(es);
}

/* --- durl.c  ---------------------------------------------------------------------------------------------------------- */

/* Is it "KEY,VALUE;..." without a name and an IMPL, which Scad's launchers configure transports with? Read into a durl that has
 * those. */
bool wefti_durl_is_keys(const char *text);
weft_status_t wefti_durl_parse_keys(const char *text, weft_durl_t *durl);
/* What memory is called to those who know only where it is, as Scad's durls do: by the first address of a durl; and by the next
 * one of *uris, which goes on behind it. "" if that leaves the port to the system, or there is none. */
#define ELEMENT_PLACE_MAX 160
void wefti_durl_place(const weft_durl_t *durl, char place[ELEMENT_PLACE_MAX]);
void wefti_uri_place(const char **uris, char place[ELEMENT_PLACE_MAX]);
bool wefti_durl_same(const weft_durl_t *a, const weft_durl_t *b);

/* --- buffer.c  -------------------------------------------------------------------------------------------------------- */

/* A pool, for as long as an action or a buffer has it. */
typedef struct element_pool {
    _Atomic uint32_t refs;
    weft_pool_t *pool;
} element_pool_t;
void wefti_element_pool_unref(element_pool_t *pool); /* NULL is allowed */

struct weft_buffer {
    _Atomic uint32_t refs;
    element_pool_t *pool;        /* NULL: a server's memory, which is the whole of a mapping */
    void *map;
    size_t map_len;
    uint8_t *base;
    size_t len;
};
weft_status_t wefti_element_buffer_new(weft_action_t *a, size_t len, weft_buffer_t **buffer_out);
/* The memory of a region, which outlives it: drop the one hold that there is when the region has ended, and not before. NULL:
 * no memory. */
weft_buffer_t *wefti_element_buffer_of(weft_region_t *region, size_t len);

/* --- action.c  -------------------------------------------------------------------------------------------------------- */

struct weft_action {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    char id[128];
    _Atomic bool terminated;
    pthread_mutex_t lock;        /* ended, the lists, the pool */
    bool ended;                  /* it is being closed, or its runtime: the program's reference goes after that */
    element_state_t *es;         /* the first of what begins as zero */
    wefti_list_t link;           /* es->actions */
    bool shut;                   /* the runtime closes, and has ended its transports */
    uint64_t connect_ns, retry_ns, spare;
    wefti_list_t transports;     /* by weft_transport_t.link: those that have their name */
    wefti_list_t all;            /* by weft_transport_t.all: those that had it, too. It only grows, so that it can be walked
                                    without the lock */
    element_pool_t *pool;
    _Atomic uint32_t refs;       /* the program, calls on their way to the driver, routes, ios */
    weft_ext_call_t list_call, terminate_call, gone_call;
    element_close_t close;
};
static inline void wefti_action_ref(weft_action_t *a) { atomic_fetch_add_explicit(&a->refs, 1, memory_order_relaxed); }
void wefti_action_unref(weft_action_t *a);
void wefti_actions_shutdown(element_state_t *es);
bool wefti_actions_idle(element_state_t *es);
void wefti_actions_free(element_state_t *es); /* those that the program forgot */

/* --- transport.c  ----------------------------------------------------------------------------------------------------- */

struct weft_transport {
    wefti_handle_t handle;
    weft_runtime_t *rt;
    weft_action_t *action;       /* it is there as long as this is not RELEASED */
    char name[WEFT_DURL_NAME_MAX + 1];
    bool server;
    weft_impl_t impl; /* that it was added with */

    pthread_mutex_t lock;        /* from here ... */
    _Atomic uint32_t inside;     /* threads that use it beside the driver: counted up with the lock, and not once it is
                                    RELEASED. shutdown waits for them */
    _Atomic weft_transport_state_t state; /* changed with the lock, by the driver; RELEASED by anyone */
    _Atomic weft_status_t why;
    element_state_t *es;         /* the first of what begins as zero */
    wefti_list_t link, all;      /* with the action's lock */
    element_route_t *route;          /* of READY; counted. Changed by the driver only */
    wefti_list_t pins;           /* routes whose remote the program has */
    weft_buffer_t *buf;
    weft_memory_t *memory;       /* of a server, and of rdma_local: its own */
    element_io_t *spare;         /* ios to be used again */
    unsigned n_spare;
    uint32_t slow;               /* ios between their post and their end: nobody may pass them */
    uint64_t timeout_ns;         /* of operations without a deadline; 0: none. Changed by the driver only */
    weft_transport_stats_t stats; /* ... to here */

    weft_durl_t durl;            /* where it leads; the driver's from here on */
    element_route_t *coming;       /* a route that is being made; counted */
    wefti_list_t ios;            /* in the order of their posts */
    weft_ext_timer_t retry;
    uint64_t pause, give_up_at;  /* between tries; when CONNECTING becomes LOST */
    bool walking;                /* someone goes through ios: flushes wait until that is done */
    uint64_t orders;             /* given, under the lock */
    uint64_t obeyed;             /* ... carried out; changed by the driver only */
    weft_ext_call_t release_call;
};
weft_status_t wefti_transport_new(weft_action_t *a, const weft_durl_t *durl, weft_transport_t **trans_out);
void wefti_transport_free(weft_transport_t *t);
/* Any thread: begin to use it, with a reference of its action's; end that. WEFT_ERR_CLOSED, _FORKED. */
weft_status_t wefti_transport_enter(weft_transport_t *t);
void wefti_transport_leave(weft_transport_t *t);
/* Does the durl say where to go? */
bool wefti_transport_leads(const weft_durl_t *durl);
bool wefti_transport_is_own(const weft_durl_t *durl); /* to memory of this process */
/* Have the driver go there. Any thread. WEFT_ERR_NOMEM, and what opening memory of its own came to. */
weft_status_t wefti_transport_send(weft_transport_t *t, const weft_durl_t *durl);
/* From now on every use fails; the driver ends what is under way. Any thread. */
void wefti_transport_release(weft_transport_t *t);
/* The driver's: the same, whether it was released or not; the action was terminated. */
void wefti_transport_end(weft_transport_t *t);
void wefti_transport_terminated(weft_transport_t *t);
/* From a route: it is up; it came to nothing, or is lost. */
void wefti_transport_up(weft_transport_t *t, element_route_t *route);
void wefti_transport_down(weft_transport_t *t, element_route_t *route, weft_status_t why);
void wefti_transport_count(weft_transport_t *t, uint64_t *counter);
void wefti_transport_has(weft_transport_t *t, uint64_t len); /* so long is the memory, which is of no use to it */

/* --- lease.c  --------------------------------------------------------------------------------------------------------- */

typedef struct element_lease element_lease_t;

/* Those that a route has over one endpoint. */
typedef struct element_leases {
    element_route_t *route;
    wefti_list_t all;
    unsigned n;
} element_leases_t;
void wefti_leases_init(element_leases_t *leases, element_route_t *route);
/* Carry out an IO_ALLOC: `moved` ends it when io->inner is over; until that is posted it is HELD. */
void wefti_lease_alloc(element_leases_t *leases, weft_ep_t *ep, element_io_t *io, weft_op_fn moved);
/* For `moved`: its lease turned out to be over, and it was begun again, for another one. */
bool wefti_lease_again(element_io_t *io);
void wefti_leases_end(element_leases_t *leases); /* their endpoint is about to be hung up */

/* --- routes  ---------------------------------------------------------------------------------------------------------- */

typedef struct element_route_ops {
    void (*begin)(element_route_t *route);
    /* Carry it out: ends it, now or later, with wefti_io_end(). */
    void (*move)(element_route_t *route, element_io_t *io);
    /* One that is HELD or MOVING has to end, with io->why: have it do so soon. */
    void (*stop)(element_route_t *route, element_io_t *io);
    /* Give the connections up: whatever is under way ends now. */
    void (*abort)(element_route_t *route);
    /* The transport has gone elsewhere, and nothing is under way here any more: hang up. Once. */
    void (*leave)(element_route_t *route);
} element_route_ops_t;

/* The first member of single_t and replicas_t, which end with it. */
struct element_route {
    const element_route_ops_t *ops;
    element_state_t *es;
    wefti_list_t link;           /* es->routes */
    _Atomic uint32_t refs;
    weft_action_t *action;       /* counted */
    weft_transport_t *t;         /* NULL: it has gone elsewhere */
    uint32_t n_ios;              /* MOVING or HELD */
    wefti_list_t pin;            /* t->pins, with a reference */
    bool up, over, left;         /* over: lost, or came to nothing */
    weft_status_t why;           /* of over */
    uint64_t len;                /* of the memory */
    weft_remote_t *remote;       /* of one without replicas; stays until the last reference goes */
    weft_rma_path_t path;
};
void wefti_route_init(element_route_t *route, const element_route_ops_t *ops, weft_transport_t *t);
static inline void wefti_route_ref(element_route_t *route) { atomic_fetch_add_explicit(&route->refs, 1, memory_order_relaxed); }
void wefti_route_unref(element_route_t *route); /* NULL is allowed */
/* Its transport has no more use for it; takes the transport's reference. NULL is allowed. */
void wefti_route_part(element_route_t *route);
void wefti_route_leave_if_idle(element_route_t *route);
/* An operation of the route's own begins and ends: it counts. */
void wefti_route_op(element_route_t *route, weft_op_t *op, weft_op_fn fn, void *user);
void wefti_route_op_done(element_route_t *route);
/* Open an endpoint, which has a reference of the route's until `op` of its hang-up is over. `op` ends with `connected`; `lost` is
 * told of its end. On an error *ep_out is NULL. */
weft_status_t wefti_route_dial(element_route_t *route, const char *uri, weft_op_t *op, weft_op_fn connected,
                               void (*lost)(weft_ep_t *ep, weft_status_t why, void *user), void *user, weft_ep_t **ep_out);
/* Hang up: `closed` is called, and drops the endpoint's reference. False: it is not, the runtime closes. Until it has, the
 * endpoint may call its hook, and keeps its reference. */
bool wefti_route_hang_up(element_route_t *route, weft_ep_t *ep, bool now, weft_op_t *op, weft_op_fn closed, void *user);
void wefti_routes_free(element_state_t *es);

/* single.c: to one element. replicas.c: to several. NULL: no memory. */
element_route_t *wefti_single_new(weft_transport_t *t);
void wefti_single_moved(weft_op_t *inner, void *user); /* io->inner is over */
element_route_t *wefti_replicas_new(weft_transport_t *t);

/* --- io.c  ------------------------------------------------------------------------------------------------------------ */

enum { IO_READ = 1, IO_WRITE, IO_BATCH, IO_ATOMIC, IO_ALLOC, IO_READY, IO_FLUSH, IO_SERVE };
enum {
    IO_NEW,
    IO_WAITING, /* for its transport to be READY */
    IO_HELD,    /* by its route, which waits for something else first */
    IO_MOVING   /* inner is under way */
};

struct element_io {
    weft_op_t inner;             /* the operation of libweft or the store */
    weft_op_t *op;               /* the program's; NULL: of a batch, or given up before it was begun */
    weft_transport_t *t;
    wefti_list_t link;           /* t->ios */
    wefti_list_t held;           /* the route's */
    element_route_t *route;          /* from HELD or MOVING on; counted */
    weft_buffer_t *buf;          /* counted; NULL: it needs none */
    uint8_t *own;                /* memory of the caller's instead: of one item of a batch */
    weft_ext_timer_t timer;         /* of an operation without a deadline */
    weft_ext_call_t call;
    uint8_t what, state;
    bool timed;
    uint32_t tries;              /* how often it was begun again */
    weft_status_t why;           /* it was asked to end, with this */
    size_t size, offset;
    uint64_t addr;
    /* IO_ALLOC */
    uint64_t bytes, lease_ns;
    /* IO_ATOMIC */
    uint64_t operand, compare;
    uint32_t which, width;
    /* IO_BATCH */
    weft_transport_item_t *items;
    weft_rma_item_t *rma_items;  /* on a single route */
    size_t n, at, left, ok;      /* on replicas: the next, those under way, those that succeeded */
    bool stepping;
    wefti_list_t children;       /* by their link */
    element_io_t *parent;        /* of one item of it. Every other io has a reference of the action, and is one of t->slow */
    size_t item;
    element_io_t *next;          /* t->spare */
};
/* End it: the program's operation completes, and the io is gone. */
void wefti_io_end(element_io_t *io, weft_status_t status);
/* Call fn for each io of a transport: one of those below. */
void wefti_ios_each(weft_transport_t *t, void (*fn)(element_io_t *io, weft_status_t st), weft_status_t st);
void wefti_io_go_if_waiting(element_io_t *io, weft_status_t st); /* the transport is READY */
void wefti_io_end_if_waiting(element_io_t *io, weft_status_t why);
void wefti_io_end_if_serving(element_io_t *io, weft_status_t why);
void wefti_io_stop_unless_flush(element_io_t *io, weft_status_t why); /* it may be under way */
void wefti_ios_limit(weft_transport_t *t); /* the durl has a timeout now */
/* For routes: io->inner is about to be posted, and counts in es->under_way. */
void wefti_io_inner(element_io_t *io, weft_op_fn fn);
/* On replicas: an io for an item of a batch; NULL: no memory. It has ended. */
element_io_t *wefti_io_child(element_io_t *batch, size_t item);
void wefti_io_child_ended(element_io_t *batch, size_t item, weft_status_t st);
/* What a status from below means to the program: its own cancel, or what became of the transport. */
weft_status_t wefti_io_status(const element_io_t *io, weft_status_t status);

/* --- memory.c  -------------------------------------------------------------------------------------------------------- */

void wefti_memories_free(element_state_t *es);
weft_buffer_t *wefti_memory_buffer(weft_memory_t *memory); /* held, for as long as somebody looks at it. NULL: mirrored, or no
                                                              memory */
/* weft_memory_open(); with a place (wefti_durl_place()) it goes by that, and not by its name. */
weft_status_t wefti_memory_open(weft_runtime_t *rt, const weft_memory_opts_t *opts, const char *place,
                                weft_memory_t **memory_out);
bool wefti_memory_key(weft_memory_t *memory, uint8_t key[WEFT_REGION_KEY_MAX], size_t *len);

#endif
