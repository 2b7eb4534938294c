/* fabric/lookup.c - names looked up without making anyone wait.
 *
 * getaddrinfo() may take a minute and cannot be cancelled, so threads of their own call it, at most WORKERS in the process. A
 * question starts a thread if there are fewer; a thread ends when no question is left. Whoever asks (a wire of fabric/sock, or a
 * registry that talks to a foreign server) has a lookup. Lookups of one name at one time share a query:
 *
 *     QUEUED --a worker takes it--> RUNNING --getaddrinfo() returns--> DONE
 *
 * A lookup may be dropped at any time. A query without lookups leaves the queue. A running one cannot be stopped: its result is
 * thrown away, and it is freed with the last of its lookups and its worker. So while no name server answers, there are WORKERS
 * threads, and one entry for each lookup that somebody still waits for.
 *
 * A forked child has none of the threads: the parent's questions are never answered there, and the child's own start new
 * threads. tests/wire/fabric_sock.c: a_name_is_dialled, a_wire_closed_while_its_name_is_looked_up_is_silent;
 * tests/fault/conn_lookup.c: a resolver that never answers. */
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/list.h"
#include "base/log.h"
#include "base/stack.h"
#include "fabric/fabric.h"

#define RESOLVER_STACK (512u << 10)
#define WORKERS 8u

typedef enum query_state { QUEUED, RUNNING, DONE } query_state_t;

typedef struct query {
    wefti_list_t link;    /* queue, or running */
    wefti_list_t lookups; /* that wait for it */
    query_state_t state;
    unsigned holders; /* lookups that have not been dropped */
    int rc;
    struct addrinfo *found;
    char host[256];
} query_t;

struct wefti_lookup {
    wefti_list_t link; /* query->lookups */
    query_t *query;
    int fd;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all that follows, and of every query */
static wefti_list_t queue = {&queue, &queue}, running = {&running, &running};
static wefti_list_t lost = {&lost, &lost}; /* in a forked child: queries whose worker is not here and that nobody holds */
static unsigned n_workers;

/* --- forks -------------------------------------------------------------------------------------------------------- */

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    wefti_list_t *it;
    n_workers = 0;
    wefti_list_splice(&queue, &running);
    while ((it = wefti_list_pop(&queue))) {
        query_t *q = wefti_container_of(it, query_t, link);
        q->state = DONE;
        if (!q->holders)
            wefti_list_push_back(&lost, &q->link);
    }
    pthread_mutex_unlock(&lock); /* the thread that forked has it, and is here */
}

static void watch_forks(void)
{
    if (pthread_atfork(before_fork, in_parent, in_child))
        wefti_error("no memory to notice forks: a forked child must not look names up");
}

/* --- queries: under the lock -------------------------------------------------------------------------------------- */

static void query_free(query_t *q)
{
    if (q->found)
        freeaddrinfo(q->found);
    wefti_free(q);
}

/* The one that asks for this name already. */
static query_t *query_find(const char *host)
{
    wefti_list_t *lists[] = {&queue, &running};
    for (int i = 0; i < 2; i++)
        wefti_list_each(it, lists[i]) {
            query_t *q = wefti_container_of(it, query_t, link);
            if (!strcmp(q->host, host))
                return q;
        }
    return NULL;
}

static void query_done(query_t *q, int rc, struct addrinfo *found)
{
    wefti_list_remove(&q->link);
    q->state = DONE;
    q->rc = rc;
    q->found = found;
    wefti_list_t *it;
    while ((it = wefti_list_pop(&q->lookups))) {
        uint64_t one = 1;
        ssize_t n = write(wefti_container_of(it, wefti_lookup_t, link)->fd, &one, sizeof one);
        (void)n; /* an eventfd with space: cannot fail */
    }
    if (!q->holders)
        query_free(q);
}

/* --- workers ------------------------------------------------------------------------------------------------------ */

static void *work(void *arg)
{
    wefti_list_t *it;
    (void)arg;
    pthread_mutex_lock(&lock);
    while ((it = wefti_list_pop(&queue))) {
        query_t *q = wefti_container_of(it, query_t, link);
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG}, *found = NULL;
        q->state = RUNNING;
        wefti_list_push_back(&running, &q->link);
        pthread_mutex_unlock(&lock);
        int rc = getaddrinfo(q->host, NULL, &hints, &found); /* the host's name does not change */
        pthread_mutex_lock(&lock);
        query_done(q, rc, rc ? NULL : found);
    }
    n_workers--;
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* One more thread: 0, or an errno. */
static int new_worker(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, old;
    int rc = pthread_attr_init(&attr);
    if (rc)
        return rc;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    wefti_stack_set(&attr, RESOLVER_STACK);
    /* The program's signals are not for this thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    rc = pthread_create(&thread, &attr, work, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    n_workers += !rc;
    return rc;
}

/* --- lookups ------------------------------------------------------------------------------------------------------ */

static weft_status_t ask(wefti_lookup_t *l, const char *host)
{
    query_t *q = query_find(host);
    if (!q) {
        q = wefti_calloc(1, sizeof *q);
        if (!q)
            return wefti_fail(WEFT_ERR_NOMEM, "no memory to look up \"%s\"", host);
        snprintf(q->host, sizeof q->host, "%s", host);
        wefti_list_init(&q->lookups);
        wefti_list_push_back(&queue, &q->link);
        int rc = n_workers < WORKERS ? new_worker() : 0;
        if (rc && !n_workers) {
            wefti_list_remove(&q->link);
            query_free(q);
            return wefti_fail(WEFT_ERR_LIMIT, "no thread to look up \"%s\": %s", host, strerror(rc));
        }
    }
    l->query = q;
    q->holders++;
    wefti_list_push_back(&q->lookups, &l->link);
    return WEFT_OK;
}

weft_status_t wefti_lookup_start(const char *host, wefti_lookup_t **lookup_out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    wefti_lookup_t *l = wefti_calloc(1, sizeof *l);
    if (!l)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory to look up \"%s\"", host);
    weft_status_t st;
    pthread_once(&once, watch_forks);
    l->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->fd < 0) {
        st = wefti_fail(WEFT_ERR_LIMIT, "no descriptor to look up \"%s\"", host);
        goto err_lookup;
    }
    pthread_mutex_lock(&lock);
    st = ask(l, host);
    pthread_mutex_unlock(&lock);
    if (st)
        goto err_fd;
    *lookup_out = l;
    return WEFT_OK;

err_fd:
    close(l->fd);
err_lookup:
    wefti_free(l);
    return st;
}

int wefti_lookup_fd(const wefti_lookup_t *l)
{
    return l->fd;
}

weft_status_t wefti_lookup_result(wefti_lookup_t *l, const struct addrinfo **found_out)
{
    uint64_t count;
    if (read(l->fd, &count, sizeof count) != sizeof count)
        return WEFT_ERR_AGAIN;
    pthread_mutex_lock(&lock);
    int rc = l->query->rc;
    *found_out = rc ? *found_out : l->query->found;
    pthread_mutex_unlock(&lock);
    if (!rc)
        return WEFT_OK;
    wefti_info("\"%s\" has no address: %s", l->query->host, gai_strerror(rc));
    return rc == EAI_MEMORY ? WEFT_ERR_NOMEM : WEFT_ERR_ADDRESS;
}

void wefti_lookup_drop(wefti_lookup_t *l)
{
    query_t *q = l->query;
    pthread_mutex_lock(&lock);
    wefti_list_remove(&l->link);
    if (!--q->holders && q->state != RUNNING) {
        wefti_list_remove(&q->link); /* where it waited, if it did */
        query_free(q);
    }
    pthread_mutex_unlock(&lock);
    close(l->fd);
    wefti_free(l);
}
