/* tests/unit/lib/owner.c - see owner.h. */
#include "owner.h"

#include <stdio.h>

#include "conn/ep.h"
#include "fake_fabric.h"

static void must(bool fact, const char *what)
{
    if (fact)
        return;
    fprintf(stderr, "owner: %s: %s\n", what, weft_last_error());
    abort();
}

/* --- the runtime ---------------------------------------------------------------------------------------------------------- */

static void shutdown_room(weft_runtime_t *rt)
{
    wefti_rma_regions_shutdown(rma_state(rt));
}

static bool idle(weft_runtime_t *rt)
{
    return wefti_rma_regions_idle(rma_state(rt));
}

static void free_room(weft_runtime_t *rt)
{
    rma_state_t *rs = rma_state(rt);
    wefti_conn_t *conn = wefti_conn_of(rt);
    wefti_rma_key_end(rs);
    for (size_t i = 0; i < sizeof rs->secret; i++)
        must(!rs->secret[i], "the secret was not wiped");
    wefti_rma_regions_free(rs);
    free(rs);
    pthread_mutex_destroy(&conn->lock);
    free(conn);
    rt->room_state[WEFTI_ROOM_CONN] = NULL;
}

static const wefti_room_t room = {.shutdown = shutdown_room, .idle = idle, .free = free_room};

static weft_runtime_t *with_rooms(weft_runtime_t *rt)
{
    wefti_conn_t *conn = calloc(1, sizeof *conn);
    rma_state_t *rs = calloc(1, sizeof *rs);
    must(conn && rs, "no memory");
    pthread_mutex_init(&conn->lock, NULL);
    conn->rt = rt;
    rt->room_state[WEFTI_ROOM_CONN] = conn; /* beside the fake room's functions */
    rs->rt = rt;
    wefti_rma_regions_init(rs);
    must(!wefti_rma_key_init(rs), "wefti_rma_key_init");
    wefti_runtime_attach(rt, WEFTI_ROOM_RMA, &room, rs);
    return rt;
}

weft_runtime_t *owner_open(weft_progress_mode_t mode)
{
    return with_rooms(fake_open(mode, 0));
}

weft_runtime_t *owner_open_virtual(void)
{
    return with_rooms(fake_open_virtual());
}

void owner_pass(weft_runtime_t *rt, uint64_t ns)
{
    fake_fabric_t *f = fake_of(rt);
    while (ns) {
        uint64_t step = ns < WEFT_MILLISECOND ? ns : WEFT_MILLISECOND;
        atomic_fetch_add(&f->now, step);
        weft_runtime_progress(rt);
        ns -= step;
    }
}

void owner_reach(weft_runtime_t *rt, const char *uris)
{
    wefti_conn_t *conn = wefti_conn_of(rt);
    must(strlen(uris) < sizeof conn->reach, "too many addresses");
    strcpy(conn->reach, uris);
}

/* --- peers ---------------------------------------------------------------------------------------------------------------- */

weft_ep_t *owner_peer(weft_runtime_t *rt)
{
    weft_ep_t *ep = calloc(1, sizeof *ep);
    rma_ep_t *e = calloc(1, sizeof *e);
    must(ep && e, "no memory");
    ep->rt = rt;
    ep->traffic[WEFTI_TRAFFIC_RMA] = e;
    wefti_slots_init(&e->grants, RMA_GRANTS);
    return ep;
}

void owner_peer_free(weft_ep_t *ep)
{
    rma_ep_t *e = rma_ep(ep);
    wefti_rma_grants_down(ep);
    must(!e->grants.taken, "grants are left");
    wefti_slots_free(&e->grants);
    free(e);
    free(ep);
}

/* --- regions -------------------------------------------------------------------------------------------------------------- */

weft_region_t *owner_region(weft_runtime_t *rt, uint64_t len, const char *name)
{
    weft_region_opts_t o = WEFT_REGION_OPTS_INIT;
    weft_region_t *region = NULL;
    o.len = len;
    o.name = name;
    must(!weft_region_new(rt, &o, &region), "weft_region_new");
    return region;
}

rma_claim_t owner_claim(const weft_region_t *region)
{
    return (rma_claim_t){.region = region->id,
                         .generation = atomic_load(&region->generation),
                         .len = atomic_load(&region->len),
                         .rights = region->rights};
}

rma_grant_t *owner_grant(weft_ep_t *ep, const weft_region_t *region, bool map)
{
    rma_claim_t claim = owner_claim(region);
    rma_grant_t *g = NULL;
    must(!wefti_rma_grant_new(ep, &claim, map ? F_MAP : 0, &g), "wefti_rma_grant_new");
    return g;
}

/* --- memory that runs out ------------------------------------------------------------------------------------------------- */

static _Atomic uint64_t allocs = UINT64_MAX;

static int fails(size_t n)
{
    (void)n;
    uint64_t left = atomic_load(&allocs);
    while (left && left != UINT64_MAX && !atomic_compare_exchange_weak(&allocs, &left, left - 1))
        ;
    return !left;
}

void owner_allocs(uint64_t n)
{
    atomic_store(&allocs, n);
    wefti_alloc_fails = n == UINT64_MAX ? NULL : fails;
}

uint64_t owner_allocs_left(void)
{
    return atomic_load(&allocs);
}
