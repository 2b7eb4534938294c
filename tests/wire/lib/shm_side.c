/* tests/wire/lib/shm_side.c - see shm_side.h. */
#include "shm_side.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DIE(what) shm_die(__FILE__, __LINE__, what)

double shm_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

void shm_die(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: pid %d: failed: %s (%s)\n", file, line, (int)getpid(), what, weft_last_error());
    exit(1);
}

/* --- upcalls ------------------------------------------------------------------------------------------------------------ */

static shm_end_t *end_of(void *user)
{
    shm_end_t *e = user;
    if (!e->side->in_progress)
        DIE("an upcall outside progress");
    if (e->closed)
        DIE("an upcall after lane_closed");
    return e;
}

static void on_record(void *user, const void *rec, size_t n)
{
    shm_end_t *e = end_of(user);
    e->records++;
    if (e->on_record) {
        e->on_record(e, rec, n);
        return;
    }
    e->last_n = n < sizeof e->last ? n : sizeof e->last;
    memcpy(e->last, rec, e->last_n);
}

static void on_announced(void *user, const void *rec, size_t n, uint64_t total, wefti_pull_t *p)
{
    shm_end_t *e = end_of(user);
    p->user = e;
    if (e->on_announced) {
        e->announced++;
        e->on_announced(e, p, total);
        return;
    }
    if (e->announced >= SHM_OFFERS)
        DIE("too many announcements");
    e->offer[e->announced] = p;
    e->offer_total[e->announced++] = total;
    e->last_n = n < sizeof e->last ? n : sizeof e->last;
    memcpy(e->last, rec, e->last_n);
}

static void on_withdrawn(wefti_pull_t *p)
{
    shm_end_t *e = end_of(p->user);
    e->withdrawn++;
    for (unsigned i = 0; i < SHM_OFFERS; i++)
        if (e->offer[i] == p)
            e->offer[i] = NULL;
}

static void on_room(void *user)
{
    shm_end_t *e = end_of(user);
    e->rooms++;
    if (e->on_room)
        e->on_room(e);
}

static void on_lane_failed(void *user, weft_status_t why)
{
    shm_end_t *e = end_of(user);
    if (e->failed++)
        DIE("lane_failed twice");
    e->why = why;
}

static void on_lane_closed(void *user)
{
    end_of(user)->closed++;
}

static void give_random(wefti_fabric_t *f, void *buf, size_t n)
{
    (void)f;
    if (getrandom(buf, n, 0) != (ssize_t)n)
        DIE("getrandom");
}

static const wefti_fabric_up_t up = {.record = on_record,
                                     .announced = on_announced,
                                     .withdrawn = on_withdrawn,
                                     .space = on_room,
                                     .lane_failed = on_lane_failed,
                                     .lane_closed = on_lane_closed};
static const wefti_fabric_ops_t ops = {.name = "shm alone", .random = give_random};

/* --- sides -------------------------------------------------------------------------------------------------------------- */

void shm_side_open(shm_side_t *s, uint64_t ring, const char *copy)
{
    wefti_config_t config;
    memset(&config, 0, sizeof config);
    memset(s, 0, sizeof *s);
    config.shm_ring = ring;
    config.shm_copy = copy;
    s->fabric.ops = &ops;
    s->fabric.up = &up;
    if (wefti_shm_open(&s->fabric, &config, &s->transport))
        DIE("wefti_shm_open");
}

void shm_side_close(shm_side_t *s)
{
    wefti_shm_close(s->transport);
}

unsigned shm_progress(shm_side_t *s)
{
    s->in_progress = true;
    unsigned n = wefti_shm_progress(s->transport);
    s->in_progress = false;
    return n;
}

void shm_sleep(shm_side_t *s, int ms)
{
    struct pollfd p = {.fd = s->transport->fd, .events = POLLIN};
    if (wefti_shm_arm(s->transport))
        return;
    s->sleeps++;
    s->slept_out += poll(&p, 1, ms) == 0;
    wefti_shm_disarm(s->transport);
}

/* --- ends --------------------------------------------------------------------------------------------------------------- */

/* Two that have met: what the hello would have told both. */
static wefti_meeting_t meeting(int side, const uint8_t *caps, size_t caps_n)
{
    return (wefti_meeting_t){.side = (uint8_t)side, .binding = "met", .caps = caps, .caps_n = caps_n};
}

weft_status_t shm_end_try(shm_side_t *s, shm_end_t *e, shm_side_t *listener)
{
    static uint8_t addr[WEFTI_LANE_ADDR_MAX];
    uint8_t caps[WEFTI_CAPS_MAX];
    size_t n = listener ? listener->transport->ops->caps(listener->transport, WEFTI_SIDE_LISTENER, caps) : 0;
    wefti_meeting_t with = meeting(listener ? WEFTI_SIDE_DIALLER : WEFTI_SIDE_LISTENER, caps, n);
    memset(e, 0, sizeof *e);
    e->side = s;
    weft_status_t st = s->transport->ops->lane_new(s->transport, &with, e, addr, &e->addr_n, &e->lane);
    if (!st && e->addr_n > sizeof e->addr)
        DIE("an address too long");
    memcpy(e->addr, addr, st ? 0 : e->addr_n);
    return st;
}

void shm_end_new(shm_side_t *s, shm_end_t *e)
{
    if (shm_end_try(s, e, NULL))
        DIE("lane_new");
}

void shm_end_call(shm_side_t *s, shm_end_t *e, shm_side_t *listener)
{
    if (shm_end_try(s, e, listener))
        DIE("lane_new");
}

void shm_end_sign(shm_end_t *as, uint8_t *addr)
{
    const wefti_shm_pass_t *pass = ((wefti_shm_lane_t *)as->lane)->pass;
    wefti_shm_pass_sign(pass, pass->side, addr, WEFTI_SHM_ADDR_SIZE, addr + WEFTI_SHM_ADDR_SIZE);
}

void shm_join(shm_side_t *a, shm_end_t *ea, shm_side_t *b, shm_end_t *eb)
{
    shm_end_call(a, ea, b);
    shm_end_new(b, eb);
    if (ea->lane->ops->lane_connect(ea->lane, eb->addr, eb->addr_n) ||
        eb->lane->ops->lane_connect(eb->lane, ea->addr, ea->addr_n))
        DIE("lane_connect");
}

static void swap(int fd, const void *ours, void *theirs, size_t n)
{
    if (write(fd, ours, n) != (ssize_t)n || recv(fd, theirs, n, MSG_WAITALL) != (ssize_t)n)
        DIE("exchange with the other process");
}

void shm_meet(shm_side_t *s, shm_end_t *e, int fd)
{
    uint8_t own[WEFTI_CAPS_MAX], caps[WEFTI_CAPS_MAX], theirs[256], addr[WEFTI_LANE_ADDR_MAX];
    size_t n = s->transport->ops->caps(s->transport, WEFTI_SIDE_LISTENER, own);
    swap(fd, own, caps, n);
    wefti_meeting_t with = meeting(memcmp(own, caps, n) < 0 ? WEFTI_SIDE_DIALLER : WEFTI_SIDE_LISTENER, caps, n);
    memset(e, 0, sizeof *e);
    e->side = s;
    if (s->transport->ops->lane_new(s->transport, &with, e, addr, &e->addr_n, &e->lane))
        DIE("lane_new");
    memcpy(e->addr, addr, e->addr_n);
    swap(fd, e->addr, theirs, e->addr_n);
    if (e->lane->ops->lane_connect(e->lane, theirs, e->addr_n))
        DIE("lane_connect");
}

void shm_end_close(shm_end_t *e)
{
    e->lane->ops->lane_close(e->lane);
    if (e->closed)
        DIE("lane_closed from inside lane_close");
    SHM_UNTIL(e->side, e->closed);
}

bool shm_send(shm_end_t *e, const void *rec, size_t n)
{
    void *p = e->lane->ops->reserve(e->lane, n);
    if (!p)
        return false;
    memcpy(p, rec, n);
    e->lane->ops->commit(e->lane, n);
    return true;
}

static void xfer_done(wefti_xfer_t *x, weft_status_t status)
{
    shm_xfer_t *s = (shm_xfer_t *)x;
    if (s->done++)
        DIE("a transfer was done twice");
    s->status = status;
}

void shm_xfer_init(shm_xfer_t *x)
{
    memset(x, 0, sizeof *x);
    x->x.done = xfer_done;
}

weft_status_t shm_announce(shm_end_t *e, const weft_iov_t *iov, size_t iov_n, shm_xfer_t *x)
{
    uint64_t total = 0;
    for (size_t i = 0; i < iov_n; i++)
        total += iov[i].len;
    shm_xfer_init(x);
    return e->lane->ops->announce(e->lane, "announced", 9, iov, iov_n, total, &x->x);
}

void shm_pull(shm_end_t *e, unsigned i, const weft_iov_t *iov, size_t iov_n, uint64_t want, shm_xfer_t *x)
{
    wefti_pull_t *p = e->offer[i];
    e->offer[i] = NULL;
    shm_xfer_init(x);
    if (!p || p->ops->pull(p, iov, iov_n, want, &x->x))
        DIE("pull");
}

/* --- processes ---------------------------------------------------------------------------------------------------------- */

pid_t shm_child(void (*fn)(int fd, void *arg), void *arg, int *fd_out)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        DIE("socketpair");
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        DIE("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        alarm(120);
        fn(ends[1], arg);
        exit(0);
    }
    close(ends[1]);
    *fd_out = ends[0];
    return pid;
}

void shm_child_end(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        DIE("the other process failed");
}

void shm_tell(int fd)
{
    if (write(fd, "", 1) != 1)
        DIE("write to the other process");
}

void shm_hear(int fd)
{
    char c;
    if (read(fd, &c, 1) != 1)
        DIE("read from the other process");
}

unsigned shm_open_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        DIE("/proc/self/fd");
    while (readdir(d))
        n++;
    closedir(d);
    return n - 3; /* . and .. and its own */
}

unsigned shm_maps(void)
{
    unsigned n = 0;
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    if (!f)
        DIE("/proc/self/maps");
    while (fgets(line, sizeof line, f))
        n += strstr(line, "memfd:weft-") != NULL;
    fclose(f);
    return n;
}
