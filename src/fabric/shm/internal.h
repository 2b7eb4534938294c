/* fabric/shm/internal.h - what the files of the transport share: transport, lane, peer, bell, and transfers.
 *
 * Each lane has one region per direction, made by its consumer. Each runtime has one bell, which every peer of it maps: a bit
 * per lane that says "look at this one", and whether its owner sleeps. The consumer polls only the few lanes that are hot;
 * the others are parked, which tells their producers to ring. So the cost of a record does not grow with the number of lanes. */
#ifndef WEFTI_SHM_INTERNAL_H
#define WEFTI_SHM_INTERNAL_H

#include <pthread.h>
#include <sys/types.h>

#include "base/bytes.h"
#include "base/list.h"
#include "base/map.h"
#include "base/slots.h"
#include "base/spares.h"
#include "fabric/cursor.h"
#include "fabric/shm/peer.h"
#include "fabric/shm/ring.h"
#include "fabric/shm/shm.h"

#define WEFTI_SHM_KIND 1u
#define WEFTI_SHM_HOT_MAX 16u        /* lanes polled on every progress, while records flow on them */
#define WEFTI_SHM_QUIET 256u         /* polls that found nothing before a lane is parked */
#define WEFTI_SHM_COOLING_MAX 64u    /* lanes parked with one barrier */
#define WEFTI_SHM_POLL_BUDGET 64u    /* records of one lane per progress */
#define WEFTI_SHM_COPY_BUDGET (256u << 10) /* bytes copied per progress by all lanes together: up to 100 us, of 200 that others
                                              may have to wait */
#define WEFTI_SHM_RELAY_MIN (256u << 10) /* bytes of a payload from which its sender is asked to help */
#define WEFTI_SHM_RELAY_BYTES (2u << 20) /* of a relay: with half of it payloads move a tenth slower */
#define WEFTI_SHM_RELAYS_MAX 16u     /* relays made by one transport at one time */
#define WEFTI_SHM_PIECES 16u         /* pieces of a payload that an announcement carries itself */
#define WEFTI_SHM_SPARES 256u        /* transfers of each kind that are kept to be used again */
#define WEFTI_SHM_TELL_MIN 8192u     /* bytes of a piece that make its arena worth telling the peer of */
#define WEFTI_SHM_TOLD_MAX 1024u     /* arenas that one side tells the other of on one lane, at one time */
#define WEFTI_SHM_SHARES_MAX 65536u  /* ranges shared by one transport */
#define WEFTI_SHM_MAPPED_MAX 1024u   /* arenas of peers mapped by one transport at one time, and their bytes */
#define WEFTI_SHM_MAPPED_BYTES (UINT64_C(256) << 30)

/* Types of records. */
enum {
    WEFTI_SHM_REC = WEFTI_RING_TYPE_MIN, /* a record of the rooms above */
    WEFTI_SHM_RTS,                       /* an announcement */
    WEFTI_SHM_PULL,                      /* stream me that payload through the ring */
    WEFTI_SHM_DATA,                      /* a piece of it */
    WEFTI_SHM_DONE,                      /* finished with that payload */
    WEFTI_SHM_ARENA,                     /* a range of mine that you may map */
    WEFTI_SHM_ARENA_GONE,                /* its addresses mean something else from here on */
    WEFTI_SHM_RELAY,                     /* a second ring, of mine, for chunks of payloads that I read */
    WEFTI_SHM_HELP,                      /* copy that payload there, from its end on down, while I read it from its beginning */
    WEFTI_SHM_END                        /* the last of its channel: its sender closed it, and others use the ring */
};

typedef struct wefti_shm_lane wefti_shm_lane_t;

/* Call it after a copy out of memory that a peer can write: the compiler then uses the copy, and does not read the original
 * again. */
static inline void wefti_shm_copied(void) { __asm__ volatile("" : : : "memory"); }

/* --- transfers: bulk.c, copy.c ------------------------------------------------------------------------------------ */

/* A control record that could wait for space, and what ends when it is sent. */
enum { WEFTI_SHM_ENDS_NOTHING, WEFTI_SHM_ENDS_PULL, WEFTI_SHM_ENDS_TOLD };
typedef struct wefti_shm_ctl {
    wefti_list_t link; /* lane->out */
    uint32_t type;
    uint64_t id, arg;
    uint32_t ends;     /* embedded in something that ends with it */
} wefti_shm_ctl_t;

/* An announcement of ours. */
typedef struct wefti_shm_send {
    wefti_list_t link;      /* lane->sends or lane->streams */
    wefti_xfer_t *x;
    uint64_t id, total, left;
    wefti_cursor_t from;
    size_t iov_n;
    wefti_list_t help_link; /* lane->helps: `left` bytes of it are not in the relay */
    bool streamed;          /* the peer asked for it through the ring */
    bool helped;            /* the peer asked for help */
} wefti_shm_send_t;

/* One of theirs: WAITING (for pull, lend or refuse) -> COPYING (we read it) or ARRIVING (it comes through the ring) -> ANSWERED
 * (until DONE is on its way). */
enum { WEFTI_SHM_WAITING, WEFTI_SHM_COPYING, WEFTI_SHM_ARRIVING, WEFTI_SHM_ANSWERED };
typedef struct wefti_shm_arena wefti_shm_arena_t;
typedef struct wefti_shm_piece {
    uint64_t base, len;
} wefti_shm_piece_t;
typedef struct wefti_shm_pull {
    wefti_pull_t pull;
    wefti_shm_lane_t *lane;
    wefti_list_t link;      /* lane->waiting or lane->pulls */
    wefti_shm_ctl_t ctl;
    wefti_xfer_t *x;
    uint64_t id, total, left;
    uint64_t back;                   /* bytes from here on came through the relay; `left` are missing before it */
    wefti_cursor_t to;
    weft_iov_t own_iov[4];
    wefti_shm_arena_t *arena;        /* held: the one that piece[at_here] is in, if it is in any */
    uint32_t state;
    bool stream;                     /* too large to be worth the cache */
    bool unproved;                   /* bytes were read from a process that may not have been the sender any more */
    bool helped;                     /* the sender was asked to help */
    uint8_t unhelped;                /* pieces read since it last did */
    uint32_t n_pieces, next_piece;   /* next_piece: of all; the first one beyond piece[] */
    uint32_t n_here, at_here;        /* piece[at_here .. n_here) are known */
    uint64_t piece_off, pieces_at;
    wefti_shm_piece_t piece[WEFTI_SHM_PIECES];
} wefti_shm_pull_t;

weft_status_t wefti_shm_announce(wefti_lane_t *lane, const void *rec, size_t n, const weft_iov_t *iov, size_t iov_n,
                                 uint64_t total, wefti_xfer_t *x);
weft_status_t wefti_shm_pull(wefti_pull_t *p, const weft_iov_t *iov, size_t iov_n, uint64_t want, wefti_xfer_t *x);
void wefti_shm_refuse(wefti_pull_t *p, bool taken);
/* A record that is not WEFTI_SHM_REC. WEFT_ERR_NOMEM: leave it in the ring and come again; WEFT_ERR_PROTOCOL. */
weft_status_t wefti_shm_control(wefti_shm_lane_t *lane, const wefti_ring_rec_t *rec);
/* Move what can be moved: control records that waited, and at most *budget bytes of payloads. Number of events. */
unsigned wefti_shm_bulk_work(wefti_shm_lane_t *lane, uint64_t *budget);
bool wefti_shm_bulk_waits_for_space(const wefti_shm_lane_t *lane);
/* End the pulls under way. quietly: nobody is told. */
void wefti_shm_pulls_end(wefti_shm_lane_t *lane, weft_status_t status, bool quietly);
/* The lane is closed: end everything. */
void wefti_shm_bulk_end(wefti_shm_lane_t *lane, bool quietly);

/* copy.c: read more of a payload from the sender's memory. WEFT_OK: whole; _AGAIN: more is left or memory was short; _PEER. */
weft_status_t wefti_shm_copy(wefti_shm_pull_t *p, uint64_t *budget);
/* n bytes to where the cursor is. past_cache: they are part of very many. */
void wefti_shm_scatter(wefti_cursor_t *to, const uint8_t *bytes, size_t n, bool past_cache);

/* --- relay.c: the sender copies the back of a payload while the receiver reads its front -------------------------- */

typedef struct wefti_shm_relay_in {
    wefti_ring_rx_t rx;
    wefti_region_t region;  /* fd until the peer has mapped it */
    void *map;
    uint64_t taken;         /* bytes that came this way, ever: for tests */
} wefti_shm_relay_in_t;

typedef struct wefti_shm_relay_out {
    wefti_ring_tx_t tx;
    void *map;
    size_t map_size;
} wefti_shm_relay_out_t;

/* Ask the sender to help, if it can and it pays. The pull has begun. */
void wefti_shm_help_wanted(wefti_shm_pull_t *p, size_t iov_n);
/* Take what is in the relay, for whichever pull: one that is whole has `left` 0. WEFT_ERR_PROTOCOL. */
weft_status_t wefti_shm_relay_take(wefti_shm_lane_t *lane, uint64_t *budget);
/* How many bytes of the front to read next, of `most`; the sender is told. */
uint64_t wefti_shm_front_next(wefti_shm_pull_t *p, uint64_t most);
weft_status_t wefti_shm_relay_control(wefti_shm_lane_t *lane, const wefti_ring_rec_t *rec); /* RELAY and HELP */
/* Copy chunks of what the peer wants help with, as far as there is space. Number of chunks. */
unsigned wefti_shm_relay_help(wefti_shm_lane_t *lane, uint64_t *budget);
void wefti_shm_relays_end(wefti_shm_lane_t *lane);

/* --- arena.c: memory that one side shares and the other maps ------------------------------------------------------ */

/* A range of memory that is a memfd, as ARENA tells of it. */
typedef struct wefti_shm_range {
    uint64_t id, base, n, ino;
    int32_t fd;
    uint32_t zero;
} wefti_shm_range_t;
static inline bool wefti_shm_range_has(const wefti_shm_range_t *r, uint64_t at, uint64_t n)
{
    return at >= r->base && at - r->base <= r->n && n <= r->n - (at - r->base);
}

/* Some of them, by address. They do not overlap. */
typedef struct wefti_shm_ranges {
    wefti_shm_range_t **at;
    uint32_t n;
    size_t cap;
} wefti_shm_ranges_t;

/* A range of ours. */
typedef struct wefti_shm_share {
    wefti_shm_range_t range; /* first */
    wefti_list_t link;       /* transport->gone */
    bool told;               /* to some lane, once */
} wefti_shm_share_t;

/* That a lane was told of it. */
typedef struct wefti_shm_told {
    wefti_shm_ctl_t ctl; /* ARENA_GONE */
    wefti_shm_range_t range;
} wefti_shm_told_t;

/* A range of theirs. It lives while a lane knows it or someone holds it. */
struct wefti_shm_arena {
    wefti_shm_range_t range; /* first */
    wefti_list_t link;      /* transport->mapped, if it is: least recently used first */
    wefti_shm_transport_t *transport; /* NULL: closed, while this was lent */
    wefti_shm_peer_t *peer; /* NULL: no lane knows it */
    bool hopeless;          /* not to be mapped, whatever we do */
    uint8_t *map;
    uint32_t known;         /* lanes */
    _Atomic uint32_t holds; /* lent or being copied; borrowers give back from any thread once the transport is closed */
};

/* Ranges were unshared: queue ARENA_GONE on the lanes that were told of them. Writes to no ring. */
unsigned wefti_shm_shares_gone(wefti_shm_transport_t *r);
/* Tell the peer of the arenas these pieces are in, as far as it was not and there is space. */
void wefti_shm_tell(wefti_shm_lane_t *lane, const weft_iov_t *iov, size_t iov_n);
/* ARENA and ARENA_GONE from the peer. */
weft_status_t wefti_shm_on_arena(wefti_shm_lane_t *lane, const uint8_t *bytes, uint32_t n);
weft_status_t wefti_shm_on_arena_gone(wefti_shm_lane_t *lane, uint64_t id);
/* The arena in which these bytes of the peer lie, if it told us of one that we have or could have mapped. */
wefti_shm_arena_t *wefti_shm_arena_find(const wefti_shm_lane_t *lane, uint64_t at, uint64_t n);
/* The same, mapped, and to be dropped by the caller. */
wefti_shm_arena_t *wefti_shm_arena_hold(wefti_shm_lane_t *lane, uint64_t at, uint64_t n);
void wefti_shm_arena_drop(wefti_shm_arena_t *a);
weft_status_t wefti_shm_lend(wefti_pull_t *p, const void **ptr_out, void **lent_out);
void wefti_shm_unlend(wefti_transport_t *transport, void *lent);
void wefti_shm_arenas_lane_end(wefti_shm_lane_t *lane);
void wefti_shm_arenas_close(wefti_shm_transport_t *r);

/* --- expose.c: memory that the peer maps to read and write -------------------------------------------------------- */

size_t wefti_shm_expose(wefti_lane_t *lane, int fd, size_t n, void *map_handle);
int wefti_shm_take_fd(wefti_lane_t *lane, int fd);
weft_status_t wefti_shm_map(wefti_lane_t *lane, const void *map_handle, size_t map_handle_n, size_t n, void **ptr_out);

/* --- lane.c ------------------------------------------------------------------------------------------------------- */

/* NEW --connect--> UP --> FAILED; CLOSING from any of them, by lane_close() only; freed by the next progress. */
enum { WEFTI_SHM_LANE_NEW, WEFTI_SHM_LANE_UP, WEFTI_SHM_LANE_FAILED, WEFTI_SHM_LANE_CLOSING };

typedef struct wefti_shm_guests wefti_shm_guests_t; /* guest.h */

struct wefti_shm_lane {
    wefti_lane_t lane;
    wefti_ring_rx_t rx;
    uint32_t state;
    uint32_t quiet;       /* polls in a row that found nothing */
    wefti_ring_tx_t tx;
    wefti_shm_peer_t *peer;
    uint32_t peer_index;  /* its bit in the peer's bell */
    bool hot;
    bool light;           /* both sides have barriers: see park.c */
    bool starved;         /* reserve() or announce() failed: owes `space` */
    bool told;            /* lane_failed was called */
    bool helps_us;        /* the peer's process understands HELP, and we want it */
    bool relay_told;      /* RELAY came */
    weft_status_t why;

    wefti_list_t cool_link;  /* transport->cooling */
    wefti_list_t work_link;  /* transport->work */
    wefti_list_t close_link; /* transport->closing */
    wefti_list_t out;        /* control records that wait for space */
    wefti_list_t sends;      /* announced, or streamed: wait for DONE */
    wefti_list_t streams;    /* being streamed, in the order asked for */
    wefti_list_t helps;      /* of both, those that the peer wants help with */
    wefti_list_t waiting;    /* announcements nobody has pulled */
    wefti_list_t pulls;      /* being copied or arriving, in order */
    wefti_slots_t send_ids;  /* id -> wefti_shm_send_t */
    wefti_map_t pull_ids;    /* the peer's id -> wefti_shm_pull_t */

    wefti_map_t told_ids;         /* id of an arena of ours -> wefti_shm_told_t */
    wefti_shm_told_t *last_told;  /* most likely the next one too */
    uint32_t n_gone_out;          /* ARENA_GONEs in `out`: no announcement may overtake them */
    wefti_shm_ranges_t known;     /* of wefti_shm_arena_t: those that the peer told us of */
    wefti_shm_relay_in_t *relay_in;   /* NULL: none */
    wefti_shm_relay_out_t *relay_out;

    uint64_t id;             /* in transport->lanes */
    uint64_t nonce, peer_nonce; /* of our ring, of the peer's */
    void *rx_map, *tx_map;
    size_t rx_map_size, tx_map_size;
    wefti_region_t region;   /* ours: fd until the peer has mapped it */
    wefti_shm_pass_t *pass;  /* until it is connected */

    /* guest.h */
    wefti_shm_lane_t *carrier;    /* the lane whose rings it uses: itself, or it is a guest */
    wefti_shm_guests_t *guests;   /* of a carrier; else NULL */
    uint32_t rx_number, tx_number; /* of its channel: as records to us have it, and records to the peer */
    wefti_list_t wait_link;       /* a guest that has no space, or whose END has none: guests->starving, ->ends */
    bool shares;                  /* both sides know of guests */
    bool ended;                   /* the peer's END arrived */
    bool gone;                    /* everybody was told; only its END is to be sent */
    uint8_t peer_uuid[WEFTI_PEER_ID_SIZE]; /* of a lane that was offered; and which of its doors */
    uint64_t peer_door;
};

extern const wefti_transport_ops_t wefti_shm_ops;
void wefti_shm_lane_close(wefti_lane_t *lane);
/* What every lane begins with, but for its rings. */
weft_status_t wefti_shm_lane_make(wefti_shm_transport_t *r, const wefti_meeting_t *with, void *user, wefti_shm_lane_t **lane_out);
void wefti_shm_lane_unmake(wefti_shm_lane_t *lane);
/* Sign an address of ours, and write it: its length. Read one of the peer's, once. WEFT_ERR_PROTOCOL, _UNREACHABLE. */
size_t wefti_shm_sign_address(const wefti_shm_lane_t *lane, wefti_shm_addr_t *addr, uint8_t *buf);
weft_status_t wefti_shm_read_address(wefti_shm_lane_t *lane, const void *bytes, size_t n, wefti_shm_addr_t *addr_out);
bool wefti_shm_peer_open(wefti_lane_t *lane);
/* Space for an internal record; NULL: none now, and the lane's bell rings when there is. */
void *wefti_shm_lane_reserve(wefti_shm_lane_t *lane, size_t n);
/* Poll a lane that is UP: number of records, at most the budget. */
unsigned wefti_shm_lane_poll(wefti_shm_lane_t *lane);
/* Would a visit find anything to do, or may it? */
bool wefti_shm_lane_has_something(wefti_shm_lane_t *lane);
/* Its bell rang: poll it, and look at everything that is not in the ring. */
unsigned wefti_shm_lane_visit(wefti_shm_lane_t *lane);
void wefti_shm_lane_fail(wefti_shm_lane_t *lane, weft_status_t why);
/* Work on the work list. */
unsigned wefti_shm_lane_work(wefti_shm_lane_t *lane, uint64_t *budget);
/* Free a CLOSING lane and say so, unless quietly. */
void wefti_shm_lane_end(wefti_shm_lane_t *lane, bool quietly);

static inline uint32_t wefti_shm_lane_index(const wefti_shm_lane_t *lane) { return (uint32_t)lane->id; }

/* Publish what was reserved on rings of its own, and ring if nobody polls. */
static inline void wefti_shm_ring_commit(wefti_shm_lane_t *lane, size_t n, uint32_t type)
{
    wefti_ring_commit(&lane->tx, n, type);
    if (WEFTI_UNLIKELY(atomic_load(&lane->tx.page->parked)))
        wefti_bell_ring(lane->peer, lane->peer_index);
}
/* The same, of any lane. */
static inline void wefti_shm_lane_commit(wefti_shm_lane_t *lane, size_t n, uint32_t type)
{
    wefti_shm_ring_commit(lane->carrier, n, type | lane->tx_number << 8);
}
/* Has the peer closed its half, whether or not we have read to its end? */
static inline bool wefti_shm_peer_closed(const wefti_shm_lane_t *lane)
{
    wefti_ring_page_t *page = lane->carrier->rx.page;
    return atomic_load(&page->closed) || atomic_load(&page->ended[lane->rx_number % WEFTI_RING_CHANNELS]) ==
                                             lane->rx_number / WEFTI_RING_CHANNELS + 1;
}

/* --- transport.c -------------------------------------------------------------------------------------------------- */

struct wefti_shm_transport {
    wefti_transport_t transport;
    wefti_bell_t *bell;          /* ours; NULL before the first lane */
    uint32_t n_hot;
    uint32_t bell_rest;
    uint32_t until_sweep;        /* progress calls */
    bool armed;
    wefti_list_t work, closing;
    wefti_shm_lane_t *hot[WEFTI_SHM_HOT_MAX];
    wefti_list_t cooling;        /* parked without a barrier since */
    uint32_t n_cooling, ticks;
    bool barriers;

    wefti_slots_t lanes;
    wefti_map_t peers;           /* nonce -> wefti_shm_peer_t; the first that used it */
    wefti_shm_peer_t self;       /* to ring our own bell. Peers are told self.at, and find self.at.nonce here if they may read
                                    our memory */
    wefti_region_t door;
    uint8_t door_key[WEFTI_SECRET_SIZE];
    uint32_t ring_bytes, frame_max;
    bool copy_ring;              /* never read the peer's memory */
    bool copy_alone;             /* never ask a sender to help */
    uint32_t n_relays;
    wefti_spares_t spare_sends, spare_pulls;
    uint64_t swept;              /* before a sleep: when, ns */
    char boot_id[36];
    bool has_boot_id;

    /* Shared ranges. The counts are for looking without the lock, which guards the rest. */
    _Atomic uint32_t n_shares, n_gone;
    pthread_mutex_t share_lock;
    wefti_shm_ranges_t shares;   /* of wefti_shm_share_t */
    uint64_t last_share;         /* id */
    wefti_list_t gone;           /* unshared, and the lanes do not know it yet */
    /* Ranges of peers. */
    wefti_list_t mapped;
    uint32_t n_mapped, max_mapped;
    uint64_t mapped_bytes, max_mapped_bytes;
    uint64_t mapped_copies;      /* bytes copied out of them, ever: for tests */

    bool sharing;                /* lanes to one peer may share rings: guest.h */
    wefti_map_t offers;          /* first bytes of a peer's uuid -> the lane that later ones may be guests of */
};

static inline wefti_shm_transport_t *wefti_shm_transport_of(const wefti_shm_lane_t *lane)
{
    return (wefti_shm_transport_t *)lane->lane.transport;
}
/* By the low half of its id, which is what a bell knows. */
static inline wefti_shm_lane_t *wefti_shm_lane_at(const wefti_shm_transport_t *r, uint32_t index)
{
    return r->lanes.at[index].generation & 1 ? r->lanes.at[index].value : NULL;
}
_Static_assert(WEFTI_REC_MAX <= WEFTI_RING_LONGEST(WEFTI_RING_SMALLEST), "every ring takes the records that every lane takes");
/* Longest record for a ring of that size: large enough that a system call per payload pays beyond it. */
static inline uint32_t wefti_shm_frame_max(uint32_t ring)
{
    return ring / 8 < WEFTI_REC_MAX ? WEFTI_REC_MAX : ring / 8 < 8192 ? ring / 8 : 8192;
}
/* Put a lane on the work list. An armed transport is woken: its owner may be about to sleep. */
void wefti_shm_work(wefti_shm_lane_t *lane);

/* --- park.c ------------------------------------------------------------------------------------------------------- */

/* Can this process make others execute a barrier, and be made to? Sets r->barriers. */
void wefti_shm_barriers_open(wefti_shm_transport_t *r);
void wefti_shm_barriers_early(void); /* when a transport is opened: cheap only while the process has one thread */
/* Poll the hot lanes; number of records. */
unsigned wefti_shm_poll_hot(wefti_shm_transport_t *r);
/* A parked lane had something: poll it from now on, if there is a place. */
void wefti_shm_heat(wefti_shm_lane_t *lane);
/* It goes away, or has failed: forget it. */
void wefti_shm_forget(wefti_shm_lane_t *lane);
void wefti_shm_replace(wefti_shm_lane_t *lane, wefti_shm_lane_t *by); /* it has the rings now */
/* Before sleep: true when every ring is empty and every producer knows that it must ring. */
bool wefti_shm_park_all(wefti_shm_transport_t *r);
void wefti_shm_unpark_hot(wefti_shm_transport_t *r);

#endif
