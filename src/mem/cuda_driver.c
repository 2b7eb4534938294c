/* mem/cuda_driver.c - finding and starting the CUDA driver.
 *
 * The driver (libcuda.so.1) is loaded at run time; what is needed of its interface is declared in cuda.h, so neither building
 * nor running needs it. States, for the whole process:
 *
 *     UNKNOWN --asked for--> READY   the driver is there and has a device; for the life of the process
 *                       \--> ABSENT  it is not; the reason is kept for the next who asks
 *     READY --fork--> FORKED         in the child: a driver that was started cannot be used there, and is not called again
 *
 * Only wefti_cuda_use() leaves UNKNOWN, and only if WEFT_CUDA is not off. tests/unit/mem_cuda.c. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "mem/cuda.h"

wefti_cu_t wefti_cu;
int wefti_cuda_devices;

enum { UNKNOWN, READY, ABSENT, FORKED };
static _Atomic int state;
static _Atomic int starting; /* inside the driver's first call: a fork then has a driver that is half started */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of leaving UNKNOWN */
static char why_absent[256];

const char *wefti_cuda_words(cu_result_t r)
{
    const char *name = NULL;
    return wefti_cu.error_name && !wefti_cu.error_name(r, &name) && name ? name : "an error without a name";
}

/* In the child a started driver cannot be used, and the lock may belong to a thread that is not here. */
static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    if (atomic_load(&state) == READY) {
        atomic_fetch_sub(&wefti_mem_devices, 1);
        atomic_fetch_sub(&wefti_mem_askable, 1);
    } else if (!atomic_load(&starting)) {
        return;
    }
    atomic_store(&state, FORKED);
}

static void watch_forks(void)
{
    if (pthread_atfork(NULL, NULL, in_child))
        wefti_error("no memory to notice forks: a forked child must not use CUDA memory");
}

static bool resolve(void *library)
{
    /* through a copy of the bytes: ISO C has no cast from an object pointer to a function pointer */
#define CUDA_RESOLVE(member, symbol, args) \
    { \
        void *found = dlsym(library, symbol); \
        if (!found) { \
            snprintf(why_absent, sizeof why_absent, "the CUDA driver of this machine is too old: it has no " symbol); \
            return false; \
        } \
        memcpy(&wefti_cu.member, &found, sizeof found); \
    }
    CUDA_CALLS(CUDA_RESOLVE)
#undef CUDA_RESOLVE
#define CUDA_RESOLVE(member, symbol, args) \
    { \
        void *found = dlsym(library, symbol); \
        memcpy(&wefti_cu.member, &found, sizeof found); \
    }
    CUDA_MORE_CALLS(CUDA_RESOLVE)
#undef CUDA_RESOLVE
    return true;
}

static bool start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *said = dlerror();
        snprintf(why_absent, sizeof why_absent, "there is no CUDA driver on this machine: %s", said ? said : "it does not load");
        return false;
    }
    if (!resolve(library)) {
        dlclose(library);
        return false;
    }
    cu_result_t r = wefti_cu.init(0);
    if (r == CU_SUCCESS)
        r = wefti_cu.device_count(&wefti_cuda_devices);
    if (r != CU_SUCCESS || wefti_cuda_devices < 1) {
        snprintf(why_absent, sizeof why_absent, "the CUDA driver of this machine %s%s",
                 r ? "does not start: " : "knows no device", r ? wefti_cuda_words(r) : "");
        return false;
    }
    if (wefti_cuda_devices > WEFTI_CUDA_DEVICES_MAX)
        wefti_cuda_devices = WEFTI_CUDA_DEVICES_MAX;
    return true;
}

/* Does WEFT_CUDA allow it? `said` as in wefti_cuda_use(). */
static weft_status_t allowed(const char *said)
{
    wefti_config_t config;
    weft_status_t st = WEFT_OK;
    memset(&config, 0, sizeof config);
    if (!said) {
        st = wefti_config_read(&config);
        if (st)
            return st;
        said = config.cuda;
    }
    if (said && !strcmp(said, "off"))
        st = wefti_fail(WEFT_ERR_UNSUPPORTED, "CUDA memory is switched off: WEFT_CUDA is \"off\"");
    wefti_config_free(&config);
    return st;
}

static weft_status_t fail_forked(void)
{
    return wefti_fail(WEFT_ERR_FORKED, "this process was forked after CUDA was started, and CUDA cannot be used in the child: "
                                       "start the child with exec, or use CUDA only there");
}

weft_status_t wefti_cuda_use(const char *said)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now == READY)
        return WEFT_OK;
    if (now == FORKED)
        return fail_forked();
    weft_status_t st = allowed(said);
    if (st)
        return st;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    if (atomic_load(&state) == UNKNOWN) {
        atomic_store(&starting, 1);
        bool there = start();
        atomic_store(&starting, 0);
        if (there) {
            wefti_debug("mem: CUDA has %d device%s", wefti_cuda_devices, wefti_cuda_devices == 1 ? "" : "s");
            atomic_fetch_add(&wefti_mem_devices, 1);
            atomic_fetch_add(&wefti_mem_askable, 1);
        } else {
            wefti_debug("mem: %s", why_absent);
        }
        atomic_store(&state, there ? READY : ABSENT);
    }
    pthread_mutex_unlock(&lock);
    return atomic_load(&state) == READY ? WEFT_OK : wefti_fail(WEFT_ERR_UNSUPPORTED, "%s", why_absent);
}

bool wefti_cuda_in_use(void)
{
    return atomic_load_explicit(&state, memory_order_acquire) == READY;
}

weft_status_t wefti_cuda_usable(void)
{
    if (__builtin_expect(wefti_cuda_in_use(), 1))
        return WEFT_OK;
    return atomic_load(&state) == FORKED ? fail_forked()
                                         : wefti_fail(WEFT_ERR_UNSUPPORTED, "CUDA is not in use: ask weft_mem_kind_find() first");
}
