/* mem/cuda_waits.c - streams of the program that wait for operations (op.streams, `after`): how many there are, and what is not
 * done meanwhile.
 *
 * A device runs the streams of a process in a few queues: eight for kernels and for copies within the device
 * (CUDA_DEVICE_MAX_CONNECTIONS), four each for copies to it and from it. A stream is put into a queue when it is given work,
 * into a free one where there is one. What waits in a queue holds up all that comes behind it, whatever its priority. So:
 *
 * - Streams that wait are counted for each device. One stream less than there are queues may wait; a post that would make one
 *   more wait fails with WEFT_ERR_LIMIT, because nothing might go on any more.
 * - If less than SPARE queues are left, the device is CROWDED: copies of ours within it go through the queues of the host's
 *   copies instead (cuda_detour.c). Of those some stay free, because further streams wait in a queue of kernels (streams.c).
 * - Calls that free, close or unpin memory wait until every stream of the process has done all of its work, and no other thread
 *   can call the driver until then. They are made while no stream waits (CALM), else put off. Whoever is about to let a stream
 *   wait counts it first, and counting waits for such a call to return.
 *
 * Any thread. Promise: what is put off is done once, by the first who comes when it is calm. tests/wire/msg_stream_queues.c. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/log.h"
#include "mem/cuda.h"

#define QUEUES 8u /* where the environment does not say */
#define QUEUES_MAX 32u
#define SPARE 4u /* two for the copies of a runtime, and two for what else the program does */

typedef struct later {
    struct later *next;
    void (*fn)(void *ptr, size_t n);
    void *ptr;
    size_t n;
} later_t;

struct wefti_cuda_waiting {
    cu_stream_t stream;
    pthread_t thread; /* whose default stream it is, if it is one */
    uint32_t waits;   /* 0: this is none */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct wefti_cuda_waiting waiting[WEFTI_CUDA_DEVICES_MAX][QUEUES_MAX];
static _Atomic uint32_t n_waiting[WEFTI_CUDA_DEVICES_MAX];
static _Atomic uint32_t n_all; /* on all devices */
static later_t *first;
static later_t **last = &first;

static uint32_t queues(void)
{
    const char *said = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    unsigned long n = said ? strtoul(said, NULL, 10) : QUEUES;
    return n < 1 ? QUEUES : n > QUEUES_MAX ? QUEUES_MAX : (uint32_t)n;
}

/* --- counting --------------------------------------------------------------------------------------------------------------- */

/* The place of a stream that waits already, else a free one. */
static struct wefti_cuda_waiting *place_of(int device, cu_stream_t stream)
{
    struct wefti_cuda_waiting *free_one = NULL;
    bool of_thread = (uintptr_t)stream == CU_STREAM_PER_THREAD;
    for (uint32_t i = 0; i < QUEUES_MAX; i++) {
        struct wefti_cuda_waiting *w = &waiting[device][i];
        if (w->waits && w->stream == stream && (!of_thread || pthread_equal(w->thread, pthread_self())))
            return w;
        if (!w->waits && !free_one)
            free_one = w;
    }
    return free_one;
}

weft_status_t wefti_cuda_wait_begin(int device, cu_stream_t stream, struct wefti_cuda_waiting **waiting_out)
{
    weft_status_t st = WEFT_OK;
    uint32_t has = queues(), may = has > 1 ? has - 1 : 1;
    pthread_mutex_lock(&lock);
    struct wefti_cuda_waiting *w = place_of(device, stream);
    uint32_t n = n_waiting[device];
    if (!w || (!w->waits && n >= may)) {
        st = wefti_fail(
            WEFT_ERR_LIMIT,
            "op.streams: %u CUDA streams wait for operations on GPU %d, and with one more its %u queues would be full of "
            "them: use fewer streams, or set CUDA_DEVICE_MAX_CONNECTIONS=%u before CUDA begins",
            n, device, has, QUEUES_MAX);
    } else {
        if (!w->waits++) {
            w->stream = stream;
            w->thread = pthread_self();
            n_waiting[device]++;
            n_all++;
        }
        *waiting_out = w;
    }
    pthread_mutex_unlock(&lock);
    return st;
}

void wefti_cuda_wait_end(int device, struct wefti_cuda_waiting *w)
{
    pthread_mutex_lock(&lock);
    if (!--w->waits) {
        n_waiting[device]--;
        n_all--;
    }
    pthread_mutex_unlock(&lock);
}

uint32_t wefti_cuda_waiting(int device)
{
    return device >= 0 && device < WEFTI_CUDA_DEVICES_MAX ? atomic_load_explicit(&n_waiting[device], memory_order_relaxed) : 0;
}

bool wefti_cuda_crowded(int device)
{
    uint32_t n = wefti_cuda_waiting(device);
    return n && n + SPARE > queues();
}

/* --- calls that wait for all streams ---------------------------------------------------------------------------------------- */

bool wefti_cuda_calm(void)
{
    return !atomic_load_explicit(&n_all, memory_order_relaxed) || !wefti_cuda_in_use();
}

/* With the lock. */
static void do_all(void)
{
    for (later_t *l; (l = first);) {
        first = l->next;
        if (!first)
            last = &first;
        l->fn(l->ptr, l->n);
        wefti_free(l);
    }
}

void wefti_cuda_when_calm(void (*fn)(void *ptr, size_t n), void *ptr, size_t n)
{
    if (!wefti_cuda_in_use()) { /* in a child the lock may be somebody's who is not there */
        fn(ptr, n);
        return;
    }
    pthread_mutex_lock(&lock);
    if (wefti_cuda_calm()) {
        do_all();
        fn(ptr, n);
    } else {
        later_t *l = wefti_calloc(1, sizeof *l);
        if (l) {
            *l = (later_t){.fn = fn, .ptr = ptr, .n = n};
            *last = l;
            last = &l->next;
        } else {
            wefti_error("mem: no memory to give %zu bytes of CUDA memory back later: they stay allocated", n);
        }
    }
    pthread_mutex_unlock(&lock);
}

void wefti_cuda_put_off_done(void)
{
    if (!wefti_cuda_in_use() || !wefti_cuda_calm())
        return;
    pthread_mutex_lock(&lock);
    if (wefti_cuda_calm())
        do_all();
    pthread_mutex_unlock(&lock);
}

static void unpin_free(void *base, size_t n)
{
    (void)n;
    wefti_cuda_unpin(base);
    wefti_free(base);
}

void wefti_cuda_unpin_free(void *base, size_t n)
{
    wefti_cuda_when_calm(unpin_free, base, n);
}
