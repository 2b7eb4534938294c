/* tools/perf/memory.c - kinds of memory for the buffers of a run: finding them, filling them, and checking what arrived.
 *
 * "host" is pages from mmap() that are unmapped after the run, so that resident memory before and after it can be compared.
 * "pool" is one pool a session, so that what the peer has mapped stays mapped from run to run. The library is asked for other
 * kinds by name, and may not have them. All bytes are written before the clock starts. Progress is made meanwhile, so that a
 * lost peer is noticed while gigabytes are cleared. tests/tools/tools_perf.py checks it. */
#include <string.h>
#include <sys/mman.h>

#include "perf.h"

#define TOUCH_STEP ((size_t)16 << 20)
#define STAGE_STEP ((size_t)1 << 20)
#define GPU_STEP ((size_t)16 << 20)

const char *const perf_kinds[PERF_KINDS] = {"host",       "huge",     "pinned",  "cuda", "cuda-managed",
                                            "cuda-async", "cuda-vmm", "cuda-fd", "pool"};

static const char *refuse(const char *fmt, const char *kind, const char *why)
{
    static char text[160];
    snprintf(text, sizeof text, fmt, kind, why);
    return text;
}

static const char *host_pages(size_t size, perf_pages_t *out)
{
    void *at;
    size = (size + 4095) & ~(size_t)4095;
    if (!size)
        size = 4096;
    at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return refuse("there is not enough %s memory%s", "host", "");
    memset(out, 0, sizeof *out);
    out->at = at;
    out->size = size;
    return NULL;
}

/* The kind of that name, or NULL after *fault. */
static const weft_mem_kind_t *find_kind(perf_link_t *l, const char *name, const char **fault)
{
    const weft_mem_kind_t *kind;
    if (strcmp(name, "pool")) {
        kind = weft_mem_kind_find(name);
        if (!kind)
            *fault = refuse("there is no %s memory here: %s", name, weft_last_error());
        return kind;
    }
    if (!l->pool) {
        weft_pool_opts_t po = WEFT_POOL_OPTS_INIT;
        weft_status_t st;
        po.max_bytes = (size_t)1 << 46; /* --size is bounded already */
        st = weft_pool_new(l->rt, &po, &l->pool);
        if (st) {
            *fault = refuse("there can be no %s: %s", name, weft_status_text(st));
            return NULL;
        }
    }
    return weft_pool_kind(l->pool);
}

static bool is_cuda(const char *kind)
{
    return !strncmp(kind, "cuda", 4);
}

void perf_memory_begin(const perf_plan_t *plan)
{
    if (is_cuda(plan->send_kind) || is_cuda(plan->recv_kind))
        (void)weft_mem_kind_find("cuda"); /* a side that needs it and does not have it says so when it allocates */
}

static bool touchable(const perf_pages_t *p)
{
    return !p->kind || p->kind->flags & WEFT_MEM_CPU;
}

/* Memory that the processor cannot write is filled by copies. */
static weft_status_t fill_from_afar(perf_link_t *l, const perf_pages_t *p, int fill)
{
    perf_pages_t stage;
    weft_status_t st = WEFT_OK;
    if (host_pages(STAGE_STEP, &stage))
        return WEFT_ERR_NOMEM;
    memset(stage.at, fill, STAGE_STEP);
    for (size_t done = 0; done < p->size && !st; done += STAGE_STEP) {
        size_t n = p->size - done < STAGE_STEP ? p->size - done : STAGE_STEP;
        st = weft_mem_copy((char *)p->at + done, p->kind, stage.at, weft_mem_host(), n);
        weft_runtime_progress(l->rt);
    }
    perf_memory_put(&stage);
    return st;
}

/* Managed memory is where it was used last: let the GPU read it, so that it begins there, as if a kernel had filled it. */
static weft_status_t let_gpu_read(perf_link_t *l, const perf_pages_t *p)
{
    const weft_mem_kind_t *cuda = weft_mem_kind_find("cuda");
    void *at = NULL;
    weft_status_t st = cuda ? weft_mem_alloc(cuda, GPU_STEP, &at) : WEFT_ERR_UNSUPPORTED;
    for (size_t done = 0; done < p->size && !st; done += GPU_STEP) {
        st = weft_mem_copy(at, cuda, (char *)p->at + done, p->kind, p->size - done < GPU_STEP ? p->size - done : GPU_STEP);
        weft_runtime_progress(l->rt);
    }
    if (at)
        weft_mem_free(cuda, at, GPU_STEP);
    return st;
}

weft_status_t perf_memory_fill(perf_link_t *l, const perf_pages_t *p, int fill)
{
    if (!touchable(p))
        return fill_from_afar(l, p, fill);
    for (size_t done = 0; done < p->size; done += TOUCH_STEP) {
        memset((char *)p->at + done, fill, p->size - done < TOUCH_STEP ? p->size - done : TOUCH_STEP);
        weft_runtime_progress(l->rt);
    }
    return p->kind && !strcmp(p->kind->name, "cuda-managed") ? let_gpu_read(l, p) : WEFT_OK;
}

const char *perf_memory_get(perf_link_t *l, const char *name, uint64_t size, int fill, perf_pages_t *out, bool *none_out)
{
    const char *fault = NULL;
    weft_status_t st = WEFT_OK;
    perf_pages_t p = {.size = size ? size : 1};
    *none_out = false;
    if (!strcmp(name, "host")) {
        fault = host_pages(size, &p);
    } else {
        p.kind = find_kind(l, name, &fault);
        *none_out = !p.kind;
        st = p.kind ? weft_mem_alloc(p.kind, p.size, &p.at) : WEFT_OK;
        if (st)
            fault = refuse("there is not enough %s memory: %s", name, weft_status_text(st));
    }
    if (fault)
        return fault;
    if ((st = perf_memory_fill(l, &p, fill))) {
        perf_memory_put(&p);
        return refuse("no copy reaches %s memory: %s", name, weft_status_text(st));
    }
    *out = p;
    return NULL;
}

void perf_memory_put(perf_pages_t *p)
{
    if (p->kind)
        weft_mem_free(p->kind, p->at, p->size);
    else
        munmap(p->at, p->size);
    memset(p, 0, sizeof *p);
}

bool perf_memory_check(const perf_pages_t *p, uint64_t size, int fill)
{
    char ends[2];
    if (!size)
        return true;
    if (touchable(p)) {
        ends[0] = *(char *)p->at;
        ends[1] = ((char *)p->at)[size - 1];
    } else if (weft_mem_copy(&ends[0], weft_mem_host(), p->at, p->kind, 1) ||
               weft_mem_copy(&ends[1], weft_mem_host(), (char *)p->at + size - 1, p->kind, 1)) {
        return false;
    }
    return ends[0] == (char)fill && ends[1] == (char)fill;
}

static bool all_are(const char *at, size_t n, int fill)
{
    return at[0] == (char)fill && !memcmp(at, at + 1, n - 1);
}

bool perf_memory_check_all(perf_link_t *l, const perf_pages_t *p, uint64_t size, int fill)
{
    perf_pages_t stage = {0};
    const bool direct = touchable(p);
    bool good = direct || !host_pages(STAGE_STEP, &stage);
    const size_t step = direct ? TOUCH_STEP : STAGE_STEP;
    for (size_t done = 0; done < size && good; done += step) {
        size_t n = size - done < step ? size - done : step;
        char *at = (char *)p->at + done;
        if (!direct && weft_mem_copy(stage.at, weft_mem_host(), at, p->kind, n))
            good = false;
        else
            good = all_are(direct ? at : stage.at, n, fill);
        weft_runtime_progress(l->rt);
    }
    if (stage.at)
        perf_memory_put(&stage);
    return good;
}

/* --- the way of payloads on a GPU ------------------------------------------------------------------------------------------- */

bool perf_on_gpu(const char *kind)
{
    return is_cuda(kind) && strcmp(kind, "cuda-managed"); /* that is moved as the processor's own, if it is short */
}

const char *perf_region_kind(const perf_plan_t *plan)
{
    return plan->test == PERF_RMA_GET || plan->test == PERF_RMA_BATCH ? plan->send_kind : plan->recv_kind;
}

perf_ways_t perf_ways_now(perf_link_t *l)
{
    weft_runtime_stats_t s = WEFT_RUNTIME_STATS_INIT;
    if (weft_runtime_get_stats(l->rt, &s))
        return (perf_ways_t){0};
    return (perf_ways_t){s.device_copies, s.device_direct, s.device_relayed, s.device_bounced, s.device_staged, s.rma_mapped};
}

perf_ways_t perf_ways_since(perf_link_t *l, const perf_ways_t *then)
{
    perf_ways_t now = perf_ways_now(l);
    return (perf_ways_t){now.copies - then->copies,   now.direct - then->direct, now.relayed - then->relayed,
                         now.bounced - then->bounced, now.staged - then->staged, now.mapped - then->mapped};
}

const char *perf_ways_text(const perf_ways_t *here, const perf_ways_t *there, char *buf, size_t n)
{
    const struct {
        bool used;
        const char *name;
    } ways[] = {{here->mapped, "mapped"},
                {here->direct || there->direct, "direct"},
                {here->relayed || there->relayed, "relay"},
                {here->bounced || there->bounced, "bounce"},
                {here->staged || there->staged, "staging"}};
    size_t at = 0;
    *buf = '\0';
    for (unsigned i = 0; i < sizeof ways / sizeof *ways && at < n; i++)
        if (ways[i].used)
            at += (size_t)snprintf(buf + at, n - at, "%s%s", at ? "+" : "", ways[i].name);
    if (!at)
        snprintf(buf, n, "%s", here->copies || there->copies ? "carry" : "record");
    return buf;
}

static bool used_gpu(const perf_ways_t *w)
{
    return w->copies || w->direct || w->relayed || w->bounced || w->staged;
}

bool perf_ways_on_gpu(const perf_plan_t *plan, const perf_ways_t *here, const perf_ways_t *there)
{
    if (perf_on_gpu(plan->send_kind) || perf_on_gpu(plan->recv_kind))
        return true;
    /* The processor can move managed memory too: so what happened is the answer. */
    return (is_cuda(plan->send_kind) || is_cuda(plan->recv_kind)) && (used_gpu(here) || used_gpu(there));
}
