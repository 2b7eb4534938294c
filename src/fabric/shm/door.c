/* fabric/shm/door.c - how two processes show each other that they are of one host and one user, before either opens anything of
 * the other's.
 *
 * Capabilities say who their owner claims to be, and anybody can repeat them. So every runtime that answers hellos has a door: a
 * memfd that is sealed against writing, with a random key in it. Only processes that the kernel lets open the descriptors of
 * that process can read the key; and the same rule decides who can share its memory. The listener's capabilities say where its
 * door is.
 *
 *     dialler                                          listener
 *                                               <---   caps: process, descriptor and inode of its door
 *     reads the key there (region.c: what is not
 *     a memfd of Weft's is not opened)
 *     JOIN: its half of a lane, MAC under the key --->  checks the MAC, then opens what the address names
 *                                               <---   LANE: its half, MAC under the key
 *     checks the MAC, then opens what it names
 *
 * The MAC covers the address, the side it comes from, and the binding of the meeting. So a stranger makes us open nothing: not
 * as a dialler, since it cannot read our key; nor as a listener, which can name a door on our host, but neither answer for it
 * nor send back our own address. It makes no difference over which wire, or through how many translated addresses, the two have
 * met.
 *
 * Promise: before a peer has shown that it can read the key of this meeting's door, nothing it names is opened but a memfd of
 * Weft's, to read. tests/fault/conn_proc_fds.c, conn_rogue.c and tests/wire/fabric_shm_door.c hold us to it. */
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "fabric/shm/internal.h"

#define DOOR_MAGIC UINT64_C(0x31726f6f64746677) /* "wftdoor1" */

typedef struct door {
    uint64_t magic;
    uint8_t key[WEFTI_SECRET_SIZE];
} door_t;

static const char *const labels[] = {[WEFTI_SIDE_DIALLER] = "weft shm join", [WEFTI_SIDE_LISTENER] = "weft shm lane"};

weft_status_t wefti_shm_door_open(wefti_shm_transport_t *r)
{
    door_t door = {.magic = DOOR_MAGIC};
    if (r->door.fd >= 0)
        return WEFT_OK;
    r->transport.fabric->ops->random(r->transport.fabric, door.key, sizeof door.key);
    weft_status_t st = wefti_region_fixed("weft-door", &door, sizeof door, &r->door);
    if (!st)
        memcpy(r->door_key, door.key, sizeof r->door_key);
    explicit_bzero(&door, sizeof door);
    return st;
}

void wefti_shm_door_close(wefti_shm_transport_t *r)
{
    if (r->door.fd >= 0)
        close(r->door.fd);
    r->door.fd = -1;
    explicit_bzero(r->door_key, sizeof r->door_key);
}

void wefti_shm_door_put(const wefti_shm_transport_t *r, wefti_writer_t *w)
{
    wefti_shm_door_at_t at = {getpid(), r->door.fd, r->door.ino};
    wefti_put_bytes(w, &at, sizeof at);
}

static weft_status_t read_key(const uint8_t *bytes, uint8_t *key_out)
{
    door_t door;
    wefti_shm_door_at_t at;
    memcpy(&at, bytes, sizeof at);
    if (at.pid <= 0 || at.fd < 0)
        return wefti_fail(WEFT_ERR_UNREACHABLE, "the peer's door, descriptor %u of process %u, cannot be", (unsigned)at.fd,
                          (unsigned)at.pid);
    weft_status_t st = wefti_region_read(at.pid, at.fd, at.ino, &door, sizeof door);
    if (!st && door.magic != DOOR_MAGIC)
        st = wefti_fail(WEFT_ERR_UNREACHABLE, "descriptor %d of process %d is no door", at.fd, at.pid);
    if (!st)
        memcpy(key_out, door.key, sizeof door.key);
    explicit_bzero(&door, sizeof door);
    return st;
}

weft_status_t wefti_shm_door_meet(wefti_shm_transport_t *r, const wefti_meeting_t *with, wefti_shm_pass_t *pass_out)
{
    weft_status_t st;
    if (with->side == WEFTI_SIDE_LISTENER) {
        st = wefti_shm_door_open(r);
        if (!st)
            memcpy(pass_out->key, r->door_key, sizeof pass_out->key);
    } else if (with->caps_n != WEFTI_SHM_CAPS_SIZE + WEFTI_SHM_DOOR_SIZE) {
        st = wefti_fail(WEFT_ERR_UNREACHABLE, "the listener's caps has no door");
    } else {
        st = read_key((const uint8_t *)with->caps + WEFTI_SHM_CAPS_SIZE, pass_out->key);
    }
    pass_out->side = with->side;
    memcpy(pass_out->binding, with->binding, sizeof pass_out->binding);
    return st;
}

void wefti_shm_pass_sign(const wefti_shm_pass_t *pass, int side, const void *addr, size_t n, uint8_t *mac_out)
{
    uint8_t bytes[WEFTI_SECRET_SIZE + WEFTI_SHM_ADDR_SIZE];
    memcpy(bytes, pass->binding, WEFTI_SECRET_SIZE);
    memcpy(bytes + WEFTI_SECRET_SIZE, addr, n);
    wefti_mac(pass->key, labels[side], bytes, WEFTI_SECRET_SIZE + n, mac_out);
}

bool wefti_shm_pass_good(const wefti_shm_pass_t *pass, const void *addr, size_t n, const uint8_t *mac)
{
    uint8_t own[WEFTI_SECRET_SIZE];
    wefti_shm_pass_sign(pass, pass->side == WEFTI_SIDE_DIALLER ? WEFTI_SIDE_LISTENER : WEFTI_SIDE_DIALLER, addr, n, own);
    return wefti_mac_same(own, mac, sizeof own);
}
