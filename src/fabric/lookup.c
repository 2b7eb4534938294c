/* fabric/lookup.c - names looked up without making anyone wait.
 *
 * getaddrinfo() may take seconds and cannot be cancelled, so each name gets a thread that does nothing else. The job belongs to two, the
 * thread and who asks (a wire of fabric/sock, or a room that talks to a server which is none of ours); whoever lets go last frees it, so
 * asking may end at any time. The thread touches nothing but the job.
 * tests/wire/fabric_sock.c: a_name_is_dialled, a_wire_closed_while_its_name_is_looked_up_is_silent. */
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "fabric/fabric.h"

#define RESOLVER_STACK (512u << 10)

struct wefti_lookup {
    _Atomic unsigned holders;
    int fd;
    int rc;
    struct addrinfo *found;
    char host[256];
};

void wefti_lookup_drop(wefti_lookup_t *job)
{
    if (atomic_fetch_sub_explicit(&job->holders, 1, memory_order_acq_rel) != 1)
        return;
    if (job->found)
        freeaddrinfo(job->found);
    close(job->fd);
    wefti_free(job);
}

static void *look_up(void *arg)
{
    wefti_lookup_t *job = arg;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    job->rc = getaddrinfo(job->host, NULL, &hints, &job->found);
    if (job->rc)
        job->found = NULL;
    uint64_t one = 1;
    ssize_t n = write(job->fd, &one, sizeof one); /* an eventfd with room: cannot fail */
    (void)n;
    wefti_lookup_drop(job);
    return NULL;
}

weft_status_t wefti_lookup_start(const char *host, wefti_lookup_t **job_out)
{
    wefti_lookup_t *job = wefti_calloc(1, sizeof *job);
    if (!job)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to look up \"%s\"", host);
    weft_status_t st = WEFT_OK;
    atomic_init(&job->holders, 2);
    snprintf(job->host, sizeof job->host, "%s", host);
    job->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (job->fd < 0) {
        st = wefti_fail(WEFT_ERR_LIMIT, "no descriptor to look up \"%s\"", host);
        goto err_job;
    }
    pthread_attr_t attr;
    if (pthread_attr_init(&attr)) {
        st = wefti_fail(WEFT_ERR_NOMEM, "no memory to look up \"%s\"", host);
        goto err_fd;
    }
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, RESOLVER_STACK);
    /* The program's signals are not for this thread. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    pthread_t thread;
    int rc = pthread_create(&thread, &attr, look_up, job);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (rc) {
        st = wefti_fail(WEFT_ERR_LIMIT, "no thread to look up \"%s\": %s", host, strerror(rc));
        goto err_fd;
    }
    *job_out = job;
    return WEFT_OK;

err_fd:
    close(job->fd);
err_job:
    wefti_free(job);
    return st;
}

int wefti_lookup_fd(const wefti_lookup_t *job)
{
    return job->fd;
}

weft_status_t wefti_lookup_result(wefti_lookup_t *job, const struct addrinfo **found_out)
{
    uint64_t count;
    if (read(job->fd, &count, sizeof count) != sizeof count)
        return WEFT_ERR_AGAIN;
    if (job->rc) {
        wefti_info("\"%s\" has no address: %s", job->host, gai_strerror(job->rc));
        return job->rc == EAI_MEMORY ? WEFT_ERR_NOMEM : WEFT_ERR_ADDRESS;
    }
    *found_out = job->found;
    return WEFT_OK;
}
