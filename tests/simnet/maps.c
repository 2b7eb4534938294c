/* tests/simnet/maps.c - memory of one simulated host that another maps.
 *
 * Hosts live in one process, so a map handle names the owner's memfd and map() maps it once more: two addresses, one memory, as
 * between real processes. Which two hosts share memory is the world's: by the seed, or as wefti_sim_shares_memory() says. As
 * there, a map handle is good for as long as its owner lives and has the descriptor open: closing it while a map handle is on
 * its way is nobody's fault, and the mapper is told WEFT_ERR_UNREACHABLE. What is mapped stays, whatever becomes of lane and
 * owner.
 *
 * A mapping lies behind a page of ours that says whose it is, and its addresses are kept until the world goes: whoever touches
 * it after unmap() faults instead of reading what came there next. Unmapping twice, with another length, or never is a
 * violation, and so is exposing what is no sealed memory. Called by whoever runs the world, from one thread.
 * tests/sim/fabric_checks.c shows it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/bytes.h"
#include "base/log.h"
#include "simnet/world.h"

#define MAP_HANDLE_MAGIC UINT32_C(0x544b4954)
#define MAP_MAGIC UINT64_C(0x7061724d6d697373)

struct sim_map {
    uint64_t magic;
    sim_map_t *next;
    sim_host_t *host;
    uint32_t id;
    bool gone;
    size_t n, reserved; /* bytes; those of the page before them and of the last page included */
};

static size_t page(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void wefti_sim_shares_memory(wefti_fabric_t *fa, wefti_fabric_t *fb, bool yes)
{
    const sim_host_t *a = sim_host_of(fa), *b = sim_host_of(fb);
    sim_each_fabric(i, a)
        sim_each_fabric(k, b)
            a->world->one_memory[i][k] = a->world->one_memory[k][i] = yes;
}

static bool one_memory(const sim_lane_t *lane)
{
    return lane->host->world->one_memory[lane->host->index][lane->peer->host->index];
}

size_t wefti_sim_expose(wefti_lane_t *base, int fd, size_t n, void *map_handle)
{
    sim_lane_t *lane = wefti_container_of(base, sim_lane_t, base);
    sim_host_t *h = lane->host;
    struct stat info;
    wefti_sim_lane_usable(lane, "expose");
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &info) || !n || (uint64_t)info.st_size < n)
        wefti_sim_violation(h->world, "host %s exposes %zu bytes that are no sealed memory", h->name, n);
    if (!one_memory(lane))
        return 0;
    wefti_sim_trace(h->world, h, SIM_T_EXPOSE, lane->id, n);
    wefti_writer_t wr = wefti_writer(map_handle, WEFTI_MAP_HANDLE_MAX);
    wefti_put_u32(&wr, MAP_HANDLE_MAGIC);
    wefti_put_u32(&wr, h->index);
    wefti_put_u32(&wr, (uint32_t)fd);
    wefti_put_u64(&wr, (uint64_t)info.st_ino);
    wefti_put_u64(&wr, n);
    return (size_t)(wr.at - (uint8_t *)map_handle);
}

/* The machine itself at its end is no event of the run. */
static void must(bool mapped)
{
    if (mapped)
        return;
    perror("sim: the machine itself cannot map memory");
    abort();
}

/* Addresses at which nothing is. */
#define NOTHING (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

static void *map_new(sim_host_t *h, int fd, size_t n)
{
    size_t reserved = page() + (n + page() - 1) / page() * page();
    uint8_t *at = mmap(NULL, reserved, PROT_NONE, NOTHING, -1, 0);
    must(at != MAP_FAILED);
    must(!mprotect(at, page(), PROT_READ | PROT_WRITE));
    void *bytes = mmap(at + page(), n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    must(bytes != MAP_FAILED);
    sim_map_t *m = (sim_map_t *)(void *)at;
    *m = (sim_map_t){MAP_MAGIC, h->maps, h, h->maps ? h->maps->id + 1 : 1, false, n, reserved};
    h->maps = m;
    h->mapped++;
    wefti_sim_trace(h->world, h, SIM_T_MAP, m->id, n);
    return bytes;
}

weft_status_t wefti_sim_map(wefti_lane_t *base, const void *map_handle, size_t map_handle_n, size_t n, void **ptr_out)
{
    static const weft_status_t statuses[] = {WEFT_ERR_NOMEM, WEFT_ERR_LIMIT, WEFT_ERR_UNREACHABLE, WEFT_OK};
    sim_lane_t *lane = wefti_container_of(base, sim_lane_t, base);
    sim_host_t *h = lane->host;
    struct stat info;
    wefti_sim_lane_usable(lane, "map");
    wefti_reader_t rd = wefti_reader(map_handle, map_handle_n);
    uint32_t magic = wefti_get_u32(&rd), owner = wefti_get_u32(&rd), fd = wefti_get_u32(&rd);
    uint64_t ino = wefti_get_u64(&rd), bytes = wefti_get_u64(&rd);
    if (rd.bad || wefti_reader_left(&rd) || magic != MAP_HANDLE_MAGIC || fd > INT32_MAX || !n || bytes != n)
        return wefti_fail(WEFT_ERR_PROTOCOL, "%zu bytes that are no map_handle for a mapping of %zu bytes", map_handle_n, n);
    const sim_host_t *from = lane->peer->host;
    if (owner != from->index || !one_memory(lane) || from->dead || from->closed || lane->failed || fstat((int)fd, &info) ||
        (uint64_t)info.st_ino != ino)
        return wefti_fail(WEFT_ERR_UNREACHABLE, "the memory of the simulated host %s is not there", from->name);
    int seals = fcntl((int)fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || (uint64_t)info.st_size < n)
        return wefti_fail(WEFT_ERR_PROTOCOL, "the memory of the simulated host %s is not sealed memory of %zu bytes", from->name,
                          n);
    weft_status_t st = wefti_sim_fault(h, WEFTI_SIM_AT_MAP, h->world->faults.map_fails, statuses);
    void *charge = st ? NULL : wefti_malloc(32); /* memory runs out where the library's does */
    if (!charge)
        return wefti_fail(st ? st : WEFT_ERR_NOMEM, "the simulated host %s maps nothing", h->name);
    wefti_free(charge);
    *ptr_out = map_new(h, (int)fd, n);
    return WEFT_OK;
}

void wefti_sim_unmap(void *ptr, size_t n)
{
    sim_map_t *m = (sim_map_t *)(void *)((uint8_t *)ptr - page());
    if (m->magic != MAP_MAGIC) {
        fputs("sim: unmap of what was never mapped\n", stderr);
        abort();
    }
    sim_host_t *h = m->host;
    if (m->gone || h->closed || m->n != n)
        wefti_sim_violation(h->world, "host %s unmaps %zu bytes %s", h->name, n,
                            m->gone     ? "a second time"
                            : h->closed ? "after it was closed"
                                        : "of a mapping of another length");
    m->gone = true;
    h->mapped--;
    void *nothing = mmap(ptr, m->reserved - page(), PROT_NONE, NOTHING | MAP_FIXED, -1, 0);
    must(nothing != MAP_FAILED);
    wefti_sim_trace(h->world, h, SIM_T_UNMAP, m->id, 0);
}

void wefti_sim_maps_free(sim_host_t *h)
{
    for (sim_map_t *m; (m = h->maps);) {
        h->maps = m->next;
        munmap(m, m->reserved);
    }
}
