/* tests/lib/cuda/paper.c - the CUDA driver made of paper, see paper.h: starting, failures that were asked for, devices.
 *
 * The functions and numbers are those of CUDA's driver interface. parts.h says what its other files have. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "parts.h"

typedef struct rule {
    struct rule *next;
    char function[48];
    unsigned after;
    int error, times;
} rule_t;

paper_t paper = {.lock = PTHREAD_MUTEX_INITIALIZER, .memory = (size_t)1 << 30};
int pp_devices = 2;
bool pp_strict;
static rule_t *rules;
static unsigned look_every; /* microseconds; 0: only when somebody else looks */
static atomic_int started;  /* the process */
static _Thread_local int thread;
static _Thread_local bool calling;

void *pp_new(size_t n)
{
    void *p = calloc(1, n);
    if (!p)
        abort();
    return p;
}

int64_t pp_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int pp_thread(void)
{
    static int last;
    if (!thread)
        thread = ++last;
    return thread;
}

/* --- failures that were asked for ----------------------------------------------------------------------------------------- */

static void rule_add(const char *function, size_t length, unsigned after, int error, int times)
{
    rule_t **at = &rules, *r = pp_new(sizeof *r);
    while (*at)
        at = &(*at)->next;
    *r = (rule_t){.after = after, .error = error, .times = times};
    memcpy(r->function, function, length < sizeof r->function ? length : sizeof r->function - 1);
    *at = r;
}

static void rule_forget(const char *function)
{
    for (rule_t **at = &rules, *r; (r = *at);) {
        if (!strcmp(r->function, function)) {
            *at = r->next;
            free(r);
        } else {
            at = &r->next;
        }
    }
}

int pp_fails(const char *what)
{
    for (rule_t *r = rules; r; r = r->next) {
        if (strcmp(r->function, what) || (!r->after && !r->times))
            continue;
        if (r->after) {
            r->after--;
            return OK;
        }
        r->times -= r->times > 0;
        return r->error;
    }
    return OK;
}

void paper_fail(const char *function, unsigned after, int error, int times)
{
    pthread_mutex_lock(&paper.lock);
    if (times)
        rule_add(function, strlen(function), after, error, times);
    else
        rule_forget(function);
    pthread_mutex_unlock(&paper.lock);
}

static unsigned long long number_of(const char *name, unsigned long long otherwise)
{
    const char *value = getenv(name);
    return value && *value ? strtoull(value, NULL, 0) : otherwise;
}

__attribute__((constructor)) static void read_environment(void)
{
    paper.copy_ns = number_of("PAPER_COPY_NS", 0);
    paper.copy_ns_per_kib = number_of("PAPER_COPY_NS_PER_KIB", 0);
    paper.memory = (size_t)number_of("PAPER_MEMORY", paper.memory);
    paper.queues = (unsigned)number_of("PAPER_QUEUES", 0);
    look_every = (unsigned)number_of("PAPER_THREAD", 0);
    paper.no_peer = number_of("PAPER_NO_PEER", 0) != 0;
    pp_strict = number_of("PAPER_STRICT", 0) != 0;
    pp_devices = (int)number_of("PAPER_DEVICES", 2);
    if (pp_devices < 0 || pp_devices > DEVICES_MAX)
        pp_devices = DEVICES_MAX;
    for (const char *at = getenv("PAPER_FAIL"); at && *at; at += strcspn(at, ","), at += *at == ',') {
        size_t length = strcspn(at, ":,");
        unsigned after;
        int error, times;
        if (sscanf(at + length, ":%u:%d:%d", &after, &error, &times) == 3) {
            rule_add(at, length, after, error, times);
        } else {
            fprintf(stderr, "paper: PAPER_FAIL has no function:after:error:times at \"%s\"\n", at);
            abort();
        }
    }
}

/* --- calls ---------------------------------------------------------------------------------------------------------------- */

static void check_process(void)
{
    if (started && started != getpid()) {
        fputs("paper: called in a child of the process that started it\n", stderr);
        abort();
    }
}

int pp_begin(const char *function)
{
    check_process();
    if (calling)
        return NOT_PERMITTED;
    pthread_mutex_lock(&paper.lock);
    int r = pp_fails(function);
    return r ? r : started ? OK : NOT_INITIALIZED;
}

int pp_begin_in(const char *function)
{
    int r = pp_begin(function);
    return r ? r : pp_need_context();
}

int pp_end(int r)
{
    if (!calling)
        pthread_mutex_unlock(&paper.lock);
    return r;
}

void pp_calling(bool on)
{
    if (on)
        pthread_mutex_unlock(&paper.lock);
    else
        pthread_mutex_lock(&paper.lock);
    calling = on;
}

void pp_pause(void)
{
    struct timespec moment = {0, 20000};
    pthread_mutex_unlock(&paper.lock);
    nanosleep(&moment, NULL);
    pthread_mutex_lock(&paper.lock);
}

/* PAPER_THREAD: a device works by itself. */
static void *work(void *unused)
{
    (void)unused;
    for (;;) {
        struct timespec pause = {0, (long)look_every * 1000};
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&paper.lock);
        pp_run();
        pthread_mutex_unlock(&paper.lock);
    }
    return NULL;
}

static void work_begins(void)
{
    pthread_t worker;
    if (!look_every || started)
        return;
    if (pthread_create(&worker, NULL, work, NULL)) {
        fputs("paper: no thread\n", stderr);
        abort();
    }
    pthread_detach(worker);
}

int cuInit(unsigned flags)
{
    check_process();
    pthread_mutex_lock(&paper.lock);
    int r = flags ? INVALID_VALUE : paper.init_fails ? paper.init_fails : pp_fails(__func__);
    paper.inits++;
    if (!r) {
        work_begins();
        started = getpid();
    }
    return pp_end(r);
}

int cuGetErrorName(int error, const char **out)
{
    static const struct {
        int error;
        const char *name;
    } names[] = {{OK, "CUDA_SUCCESS"},
                 {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                 {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
                 {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
                 {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
                 {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
                 {PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
                 {OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM"},
                 {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
                 {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
                 {NOT_READY, "CUDA_ERROR_NOT_READY"},
                 {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                 {PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
                 {CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
                 {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
                 {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
                 {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
                 {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
                 {719, "CUDA_ERROR_LAUNCH_FAILED"},
                 {999, "CUDA_ERROR_UNKNOWN"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) {
            *out = names[i].name;
            return OK;
        }
    *out = NULL;
    return INVALID_VALUE;
}

/* --- devices -------------------------------------------------------------------------------------------------------------- */

int pp_check_device(int device)
{
    return device < 0 || device >= pp_devices ? INVALID_DEVICE : OK;
}

int cuDeviceGetCount(int *out)
{
    int r = pp_begin(__func__);
    if (!r)
        *out = paper.no_devices ? 0 : pp_devices;
    return pp_end(r);
}

int cuDeviceGet(int *out, int ordinal)
{
    int r = pp_begin(__func__);
    if (!r)
        r = pp_check_device(ordinal);
    if (!r)
        *out = ordinal;
    return pp_end(r);
}

int cuDeviceGetAttribute(int *out, int attribute, int device)
{
    int r = pp_begin(__func__);
    if (!r)
        r = pp_check_device(device);
    if (r)
        return pp_end(r);
    switch (attribute) {
    case 83: /* managed memory */
        *out = !paper.no_managed;
        break;
    case 40: /* copy engines */
        *out = 3;
        break;
    case 11: /* the greatest pitch */
        *out = 0x7fffffff;
        break;
    case 75: /* compute capability 9.0 */
        *out = 9;
        break;
    case 41:  /* one address space */
    case 92:  /* waiting for and writing values, in its first version */
    case 102: /* virtual memory */
    case 103: /* file descriptors of it */
    case 115: /* memory pools */
    case 122: /* waiting for and writing values */
        *out = 1;
        break;
    default:
        *out = 0;
    }
    return pp_end(OK);
}

static int uuid(int r, void *out, int device)
{
    char text[24];
    if (!r)
        r = pp_check_device(device);
    if (!r) {
        snprintf(text, sizeof text, "paper device %03d", device);
        memcpy(out, text, 16);
    }
    return pp_end(r);
}

int cuDeviceGetUuid(void *out, int device)
{
    return uuid(pp_begin(__func__), out, device);
}

int cuDeviceGetUuid_v2(void *out, int device)
{
    return uuid(pp_begin(__func__), out, device);
}

int cuDeviceCanAccessPeer(int *out, int device, int peer)
{
    int r = pp_begin(__func__);
    if (!r)
        r = pp_check_device(device);
    if (!r)
        r = pp_check_device(peer);
    if (!r)
        *out = device != peer && !paper.no_peer;
    return pp_end(r);
}
