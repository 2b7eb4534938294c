/* fabric/shm/peer.h - what two processes that share memory know of each other: regions, bells, capabilities and the door. */
#ifndef WEFTI_SHM_PEER_H
#define WEFTI_SHM_PEER_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/bytes.h"
#include "base/map.h"
#include "fabric/shm/ring.h"
#include "fabric/shm/shm.h"

typedef struct wefti_shm_transport wefti_shm_transport_t;

/* --- region.c ----------------------------------------------------------------------------------------------------- */

/* One of ours, as peers find it. */
typedef struct wefti_region {
    int fd; /* -1: there is none, or it is not needed any more */
    uint64_t ino;
} wefti_region_t;

/* A new shared region of `size` bytes, zeroed, of fixed size for ever, mapped. `name` begins with "weft-". */
weft_status_t wefti_region_new(const char *name, size_t size, wefti_region_t *region_out, void **map_out);
/* A new one of fixed size, not mapped: with these bytes for ever, or (NULL) of zeroes that can be written to. */
weft_status_t wefti_region_fixed(const char *name, const void *bytes, size_t n, wefti_region_t *region_out);
/* The first `size` bytes of a region of another process, to read, and to write if `write`: descriptor `fd` of process `pid`,
 * which must be the memfd with inode `ino`, named as ours are, and not of huge pages. Everything may be a lie: what is not that
 * is not opened. WEFT_ERR_UNREACHABLE: it is not there, or not any more; _PROTOCOL: it could shrink, is too short, or sealed
 * against writing; _NOMEM, _LIMIT, _SYSTEM. */
weft_status_t wefti_region_view(pid_t pid, int fd, uint64_t ino, size_t size, bool write, void **map_out);
/* Its first bytes, copied. The same statuses. */
weft_status_t wefti_region_read(pid_t pid, int fd, uint64_t ino, void *buf, size_t n);
/* Is our own descriptor a region that others can view so? Its inode. WEFT_ERR_INVALID: it could shrink, is too short, or sealed
 * against writing; WEFT_ERR_UNSUPPORTED: huge pages, or no memfd at all. */
weft_status_t wefti_region_check(int fd, size_t size, bool write, uint64_t *ino_out);
void wefti_region_unmap(void *map, size_t size);
/* A pipe in one descriptor, not blocking; and that of another process, which must be a pipe with this inode. */
weft_status_t wefti_pipe_new(int *fd_out, uint64_t *ino_out);
weft_status_t wefti_pipe_open(pid_t pid, int fd, uint64_t ino, int *fd_out);

/* --- bell.c ------------------------------------------------------------------------------------------------------- */

#define WEFTI_BELL_BITS 32768u /* lanes beyond that share bits, and are visited together */

/* Every peer can write all of it: nothing here says who we are (that is in the lanes' addresses, which are signed). */
typedef struct wefti_bell {
    _Alignas(128) _Atomic uint64_t top;      /* bit i: look at word[8i .. 8i+7], one line */
    _Alignas(128) _Atomic uint32_t sleeping; /* whoever takes it from 1 to 0 writes a byte to the wake pipe */
    _Alignas(4096) _Atomic uint64_t word[WEFTI_BELL_BITS / 64];
} wefti_bell_t;

/* What the address of a lane says about its runtime. */
typedef struct wefti_shm_peer_addr {
    uint32_t version;
    int32_t pid, bell_fd, wake_fd;
    uint64_t bell_ino, wake_ino;
    uint64_t nonce;      /* names it; stands at probe_at in its memory */
    uint64_t probe_at;
} wefti_shm_peer_addr_t;

/* The address of a lane, its MAC not counted. */
typedef struct wefti_shm_addr {
    wefti_shm_peer_addr_t peer;
    uint32_t flags, index; /* index: of the lane, in its runtime's bell */
    int32_t ring_fd;
    uint32_t ring_bytes;
    uint64_t ring_ino, ring_nonce;
} wefti_shm_addr_t;
#define WEFTI_SHM_ADDR_SIZE sizeof(wefti_shm_addr_t)
_Static_assert(WEFTI_SHM_ADDR_SIZE == 80, "no padding");

/* Another runtime on this host (or this one), shared by all lanes to it. */
typedef struct wefti_shm_peer {
    wefti_bell_t *bell;
    int wake_fd;         /* ours, of its pipe */
    wefti_shm_peer_addr_t at;
    bool readable;       /* process_vm_readv works on it */
    uint32_t refs;
    wefti_map_t arenas;  /* those it told us of: id -> wefti_shm_arena_t, the first of that id */
} wefti_shm_peer_t;

weft_status_t wefti_bell_open(wefti_shm_transport_t *r); /* once; fills r->self */
void wefti_bell_close(wefti_shm_transport_t *r);
void wefti_bell_wake(wefti_shm_peer_t *peer);
weft_status_t wefti_shm_peer_hold(wefti_shm_transport_t *r, const wefti_shm_peer_addr_t *addr, wefti_shm_peer_t **peer_out);
void wefti_shm_peer_drop(wefti_shm_transport_t *r, wefti_shm_peer_t *peer);
/* Does its nonce stand in the memory of that process? WEFT_OK, _UNSUPPORTED (not allowed to look), _PEER (no, or gone). */
weft_status_t wefti_shm_probe(const wefti_shm_peer_addr_t *peer);

/* Say "look at lane `index`" to a runtime. What was published before is visible first (the exchange is a fence). A bit of the
 * upper level that is found set has not been looked at yet, since the owner clears it before it looks below. Where the lower
 * word was empty the upper bit is most likely clear, and looking first would fetch its line twice. */
static inline void wefti_bell_ring(wefti_shm_peer_t *peer, uint32_t index)
{
    wefti_bell_t *bell = peer->bell;
    uint32_t bit = index % WEFTI_BELL_BITS;
    uint64_t in_word = UINT64_C(1) << (bit % 64), in_top = UINT64_C(1) << (bit / 512);
    uint64_t before = atomic_fetch_or(&bell->word[bit / 64], in_word);
    if (!before || !(atomic_load(&bell->top) & in_top))
        atomic_fetch_or(&bell->top, in_top);
    if (WEFTI_UNLIKELY(atomic_load(&bell->sleeping)))
        wefti_bell_wake(peer);
}

/* --- caps.c ------------------------------------------------------------------------------------------------------- */

#define WEFTI_SHM_CAPS_SIZE 80u /* bytes of the capabilities; the listener's door follows */

void wefti_shm_boot_id(wefti_shm_transport_t *r);
size_t wefti_shm_caps(wefti_transport_t *transport, int side, void *buf);
bool wefti_shm_match(wefti_transport_t *transport, const void *caps, size_t n);

/* --- door.c ------------------------------------------------------------------------------------------------------- */

/* Where it is. */
typedef struct wefti_shm_door_at {
    int32_t pid, fd;
    uint64_t ino;
} wefti_shm_door_at_t;
#define WEFTI_SHM_DOOR_SIZE sizeof(wefti_shm_door_at_t)

/* With what the two ends of one lane sign their addresses. */
typedef struct wefti_shm_pass {
    uint8_t side; /* ours */
    uint8_t key[WEFTI_SECRET_SIZE], binding[WEFTI_SECRET_SIZE];
} wefti_shm_pass_t;

weft_status_t wefti_shm_door_open(wefti_shm_transport_t *r); /* if it is not. WEFT_ERR_LIMIT, _NOMEM, _SYSTEM */
void wefti_shm_door_close(wefti_shm_transport_t *r);
void wefti_shm_door_put(const wefti_shm_transport_t *r, wefti_writer_t *w);
/* The key of the listener's door: ours, or read from the one that the peer's capabilities name. WEFT_ERR_UNREACHABLE, or as
 * above. */
weft_status_t wefti_shm_door_meet(wefti_shm_transport_t *r, const wefti_meeting_t *with, wefti_shm_pass_t *pass_out);
/* The MAC of an address of at most WEFTI_SHM_ADDR_SIZE bytes, as the one on `side` makes it; and is this what the other side
 * makes? */
void wefti_shm_pass_sign(const wefti_shm_pass_t *pass, int side, const void *addr, size_t n, uint8_t *mac_out);
bool wefti_shm_pass_good(const wefti_shm_pass_t *pass, const void *addr, size_t n, const uint8_t *mac);

#endif
