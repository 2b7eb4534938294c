/* tools/perf/plan.c - the control messages, checked before anything in them is believed.
 *
 * Any process that can connect may send them, so a server must survive all of them. Fixed structs, little-endian as the
 * library's own wire. A plan out of bounds is answered with PERF_REFUSED and the sentence below. tests/tools/tools_perf.py
 * runs it. */
#include <string.h>
#include <unistd.h>

#include "perf.h"

bool perf_hello_ok(const perf_hello_t *h, uint64_t len)
{
    return len == sizeof *h && h->magic == PERF_MAGIC && h->total >= 1 && h->total <= PERF_MAX_ENDPOINTS && h->index < h->total;
}

bool perf_reply_ok(const perf_reply_t *r, uint64_t len)
{
    return len == sizeof *r && r->magic == PERF_MAGIC && memchr(r->text, '\0', sizeof r->text) &&
           r->offer.len <= sizeof r->offer.key;
}

/* Half of the machine's memory, so that a client cannot make the server the victim of the out-of-memory killer. */
static uint64_t memory_bound(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages / 2 * (uint64_t)size : UINT64_C(1) << 30;
}

static const char *rma_fault(const perf_plan_t *p)
{
    if (p->region < p->size || p->region < 1 || p->region > memory_bound() / 2)
        return "the region is shorter than an access, or does not fit into half of the server's memory; use another --region";
    if (perf_is_atomic(p->test) && p->size != 4 && p->size != 8)
        return "an atomic is of 4 or 8 bytes; use --size 4 or --size 8";
    if (p->test == PERF_RMA_PUT_LAT && (p->size < 1 || p->region != p->size || p->window != 1))
        return "rma_put_lat writes one byte or more, and always to the same place";
    if (p->batch < 1 || p->batch > PERF_MAX_BATCH || p->batch > PERF_MAX_WINDOW / p->window)
        return "the batches are out of bounds; use a smaller --batch or --window";
    if (p->path > WEFT_RMA_NATIVE || p->offer.len > sizeof p->offer.key)
        return "the server does not know that path; use the same version of weft on both sides";
    return NULL;
}

static const char *stream_fault(const perf_plan_t *p)
{
    if (p->stream >= PERF_STREAM_WORDS || p->streams < 1 || p->streams > PERF_MAX_STREAMS)
        return "the server does not know such streams; use the same version of weft on both sides";
    if (perf_is_rpc(p->test) || p->test == PERF_IDLE || p->view)
        return "only messages that are taken, and remote memory, take their turn in streams";
    return NULL;
}

static const char *rpc_fault(const perf_plan_t *p)
{
    if (p->size && p->window > memory_bound() / 2 / p->size)
        return "the arguments of all calls under way do not fit into half of the server's memory; use a smaller --size or "
               "--window";
    if (p->test == PERF_RPC_LAT && p->window != 1)
        return "rpc_lat makes one call at a time";
    return NULL;
}

const char *perf_plan_fault(const perf_plan_t *p, uint64_t len)
{
    const char *fault;
    if (len != sizeof *p || p->magic != PERF_MAGIC)
        return "the two sides are different versions of weft perf";
    if (p->test >= PERF_TESTS)
        return "the server does not know that test; use the same version of weft on both sides";
    if (p->size > memory_bound() / 2 || p->answer > memory_bound() / 2)
        return "the message does not fit into half of the server's memory; use a smaller --size or --answer";
    if (p->window < 1 || p->window > PERF_MAX_WINDOW || p->outstanding < 1 || p->outstanding > PERF_MAX_WINDOW)
        return "the window is out of bounds; use a smaller --window or --outstanding";
    if (p->test != PERF_AM_LAT && p->answer != p->size)
        return "only am_lat has answers of another size";
    if (p->header > WEFT_AM_HEADER_MAX)
        return "the header is too long; use a smaller --header";
    if (perf_is_rma(p->test) && (fault = rma_fault(p)))
        return fault;
    if (perf_is_rpc(p->test) && (fault = rpc_fault(p)))
        return fault;
    if (p->stream && (fault = stream_fault(p)))
        return fault;
    if (!memchr(p->send_kind, '\0', sizeof p->send_kind) || !memchr(p->recv_kind, '\0', sizeof p->recv_kind))
        return "the kinds of memory have no end";
    if (p->idle_ns > 3600 * WEFT_SECOND)
        return "the server does not idle for longer than an hour";
    if (p->run > UINT32_MAX)
        return "too many runs in one session";
    return NULL;
}
