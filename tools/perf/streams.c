/* tools/perf/streams.c - streams of a GPU in which the operations of a run take their turn (--stream).
 *
 * The library takes streams and makes none, so they come from the CUDA driver itself, which is loaded here as it is there. They
 * belong to the context that this thread has, else to the primary one of device 0, in which the library allocates too. A run
 * makes its streams before its operations, and destroys them when none of those is under way. None of them waits for the default
 * stream.
 *
 * A stream that waits holds a bounded number of waits: with more, the driver makes the caller wait, who may be the one that has
 * to drive. So a run that could have more than PERF_HELD operations in a stream is refused, whoever asks for it.
 * tests/tools/tools_perf.py checks it. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

#define NON_BLOCKING 1u /* CU_STREAM_NON_BLOCKING */

const char *const perf_stream_names[PERF_STREAM_WORDS] = {"none", "before", "after", "both"};

struct perf_streams {
    unsigned n;
    weft_op_streams_t at[PERF_MAX_STREAMS];
    void *handles[PERF_MAX_STREAMS];
};

/* --- the driver ------------------------------------------------------------------------------------------------------------- */

static struct {
    int (*device_get)(int *out, int ordinal);
    int (*primary_retain)(void **out, int device);
    int (*ctx_current)(void **out);
    int (*ctx_push)(void *ctx);
    int (*ctx_pop)(void **out);
    int (*stream_new)(void **out, unsigned flags);
    int (*stream_free)(void *stream);
    int (*stream_until)(void *stream, uintptr_t at, uint32_t value,
                        unsigned flags); /* NULL: before CUDA 12; the library calls it */
} cu;
static void *context; /* of the streams; NULL: the driver is not loaded yet */

static bool find(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    memcpy(to, &found, sizeof found);
    return found;
}

/* The library has started it already: it is there. */
static bool load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *ctx = NULL;
    int device;
    if (!library)
        return false;
    if (!find(library, "cuDeviceGet", &cu.device_get) || !find(library, "cuDevicePrimaryCtxRetain", &cu.primary_retain) ||
        !find(library, "cuCtxGetCurrent", &cu.ctx_current) || !find(library, "cuCtxPushCurrent_v2", &cu.ctx_push) ||
        !find(library, "cuCtxPopCurrent_v2", &cu.ctx_pop) || !find(library, "cuStreamCreate", &cu.stream_new) ||
        !find(library, "cuStreamDestroy_v2", &cu.stream_free)) {
        dlclose(library);
        return false;
    }
    find(library, "cuStreamWaitValue32_v2", &cu.stream_until);
    if (cu.ctx_current(&ctx) || (!ctx && (cu.device_get(&device, 0) || cu.primary_retain(&ctx, device)))) {
        dlclose(library);
        return false;
    }
    context = ctx;
    return true;
}

/* --- the streams of a run --------------------------------------------------------------------------------------------------- */

/* Could there be more in a stream than it holds? The loops of tag_lat have two receives and two sends there at most. */
static bool too_many(const perf_run_t *run)
{
    const uint64_t most = run->n_sends > run->n_recvs ? run->n_sends : run->n_recvs;
    return run->plan.test != PERF_TAG_LAT && most > PERF_HELD * run->plan.streams;
}

static bool make_all(perf_run_t *run)
{
    struct perf_streams *s = run->streams;
    void *gone;
    if (cu.ctx_push(context))
        return false;
    while (s->n < run->plan.streams && !cu.stream_new(&s->handles[s->n], NON_BLOCKING)) {
        weft_op_streams_t *one = &s->at[s->n];
        *one = (weft_op_streams_t)WEFT_OP_STREAMS_INIT;
        if (run->plan.stream & PERF_BEFORE)
            one->before = s->handles[s->n];
        if (run->plan.stream & PERF_AFTER)
            one->after = s->handles[s->n];
        s->n++;
    }
    cu.ctx_pop(&gone);
    return s->n == run->plan.streams;
}

static bool refuse(perf_run_t *run, const char *why, const char *more)
{
    snprintf(run->refusal, sizeof run->refusal, "%s%s", why, more);
    run->advice = "";
    return false;
}

bool perf_streams_new(perf_run_t *run)
{
    if (!run->plan.stream)
        return true;
    if (too_many(run))
        return refuse(
            run, "there would be more than 512 operations in a stream; use a smaller --window, --outstanding or --endpoints", "");
    if (!weft_mem_kind_find("cuda"))
        return refuse(run, "--stream needs CUDA, which is not here: ", weft_last_error());
    if (!context && !load())
        return refuse(run, "--stream needs a context of CUDA, and the driver gives none", "");
    if (run->plan.stream & PERF_AFTER && !cu.stream_until)
        return refuse(
            run, "this CUDA driver is older than CUDA 12, and lets no stream wait for an operation; use --stream before", "");
    run->streams = calloc(1, sizeof *run->streams);
    if (run->streams && make_all(run))
        return true;
    perf_streams_free(run);
    return refuse(run, "the CUDA driver makes no streams", "");
}

void perf_streams_set(perf_run_t *run, weft_op_t *op, uint64_t nth)
{
    op->streams = run->streams ? &run->streams->at[nth % run->streams->n] : NULL;
}

void perf_streams_free(perf_run_t *run)
{
    struct perf_streams *s = run->streams;
    void *gone;
    if (s && s->n && !cu.ctx_push(context)) {
        for (unsigned i = 0; i < s->n; i++)
            cu.stream_free(s->handles[i]);
        cu.ctx_pop(&gone);
    }
    free(s);
    run->streams = NULL;
}
