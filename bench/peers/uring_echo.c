/* bench/peers/uring_echo.c - the server of epoll_echo.c on io_uring: the same clients, the same answers, other system calls.
 *
 *     uring_echo [options of epoll_echo] [--ring plain|coop|defer|sqpoll] [--send copy|zc] [--batch N] [--buffer BYTES]
 *
 * Each thread has a ring. A connection has one receive that stays armed (multishot) and takes its memory from a ring of provided
 * buffers; an answer is sent out of that memory, and a system call submits up to N sends and waits for what comes next. Sockets
 * are in the table of registered files, and the ring itself is registered. A connection has one send under way at a time, so that
 * answers stay in order; what arrives meanwhile waits in a chain.
 *
 *   --ring plain    no flag              --ring defer    SINGLE_ISSUER and DEFER_TASKRUN (the default; Linux 6.1)
 *   --ring coop     COOP_TASKRUN         --ring sqpoll   a thread of the kernel submits, on a core of its own
 *   --send zc       sends out of registered memory, without a copy where the network can (over loopback it cannot)
 *
 * docs/design/io-uring.md has the figures that it gave. It is built on the system calls alone, with the kernel's headers of Linux
 * 6.1 or later: gcc -O2 -pthread -D_GNU_SOURCE uring_echo.c. tests/tools/tools_echo.py runs it. */
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>

#include "load.h"

#ifndef IORING_RECVSEND_FIXED_BUF
#define IORING_RECVSEND_FIXED_BUF (1U << 2)
#endif

#define SQ_ENTRIES 4096u
#define CQ_ENTRIES 32768u
#define FILES_MAX 65536u
#define NONE UINT32_MAX
#define HANDED 64

enum { RECV = 1, SEND, HAND }; /* what a completion is of: in the first byte, then a buffer in three, then the descriptor */

typedef struct conn {
    uint32_t first, last; /* buffers to send, in a chain; NONE: none */
    bool sending, receiving, over;
} conn_t;

typedef struct ring {
    load_thread_t *t;
    int fd;
    unsigned enter_fd, enter_flags; /* by its number in the table of registered rings */
    unsigned *sq_head, *sq_tail, *sq_flags, *cq_head, *cq_tail, sq_mask, cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    unsigned tail, submitted; /* of the submission queue */
    unsigned sends;           /* since the last system call */
    struct io_uring_buf_ring *provided;
    unsigned buffers, returned; /* how many there are; the tail of the ring of buffers */
    char *memory;
    uint32_t *next, *length; /* of each buffer that waits to be sent */
    conn_t *conns;           /* by descriptor */
    unsigned files;
    int handed[HANDED];
} ring_t;

static struct {
    unsigned flags, batch, buffer;
    bool zc;
    const char *ring, *send;
} how = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, .batch = 64, .ring = "defer", .send = "copy"};

static bool option(const char *name, const char *value)
{
    static const struct {
        const char *name;
        unsigned flags;
    } rings[] = {{"plain", 0},
                 {"coop", IORING_SETUP_COOP_TASKRUN},
                 {"defer", IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN},
                 {"sqpoll", IORING_SETUP_SQPOLL}};
    if (!strcmp(name, "--ring")) {
        for (unsigned i = 0; i < sizeof rings / sizeof rings[0]; i++)
            if (!strcmp(value, rings[i].name)) {
                how.ring = rings[i].name;
                how.flags = rings[i].flags;
                return true;
            }
        return false;
    }
    if (!strcmp(name, "--send")) {
        how.zc = !strcmp(value, "zc");
        how.send = how.zc ? "zc" : "copy";
        return how.zc || !strcmp(value, "copy");
    }
    if (!strcmp(name, "--batch"))
        return (how.batch = (unsigned)atoi(value)) >= 1 && how.batch <= SQ_ENTRIES / 2;
    if (!strcmp(name, "--buffer"))
        return (how.buffer = (unsigned)atoi(value)) >= 8 && how.buffer <= LOAD_BYTES;
    return false;
}

/* --- the ring -------------------------------------------------------------------------------------------- */

static long do_register(const ring_t *r, unsigned what, const void *arg, unsigned n)
{
    return syscall(SYS_io_uring_register, r->fd, what, arg, n);
}

/* Submit what was prepared, and wait for `wait` completions. */
static void enter(ring_t *r, unsigned wait)
{
    unsigned n = r->tail - r->submitted, flags = IORING_ENTER_GETEVENTS | r->enter_flags;
    __atomic_store_n(r->sq_tail, r->tail, __ATOMIC_RELEASE);
    r->sends = 0;
    if (how.flags & IORING_SETUP_SQPOLL) {
        __atomic_thread_fence(__ATOMIC_SEQ_CST); /* the tail is out before its thread's flags are read */
        r->submitted = r->tail;
        if (__atomic_load_n(r->sq_flags, __ATOMIC_RELAXED) & IORING_SQ_NEED_WAKEUP)
            flags |= IORING_ENTER_SQ_WAKEUP;
        else if (!wait)
            return;
    }
    const long did = syscall(SYS_io_uring_enter, r->enter_fd, n, wait, flags, NULL, 0);
    load_must(r->t->load, did >= 0 || errno == EINTR || errno == EAGAIN || errno == EBUSY, "io_uring_enter");
    if (did > 0 && !(how.flags & IORING_SETUP_SQPOLL))
        r->submitted += (unsigned)did;
}

static struct io_uring_sqe *prepare(ring_t *r, unsigned op, unsigned kind, int fd)
{
    while (r->tail - __atomic_load_n(r->sq_head, __ATOMIC_ACQUIRE) > r->sq_mask)
        enter(r, 0);
    struct io_uring_sqe *s = &r->sqes[r->tail++ & r->sq_mask];
    memset(s, 0, sizeof *s);
    s->opcode = (uint8_t)op;
    s->fd = fd;
    s->user_data = (uint64_t)kind << 56 | (unsigned)fd;
    return s;
}

static void *map(const ring_t *r, int fd, size_t size, off_t at)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED | MAP_POPULATE, fd, at);
    load_must(r->t->load, p != MAP_FAILED, "memory");
    return p;
}

static void open_ring(ring_t *r)
{
    struct io_uring_params p = {.flags = how.flags | IORING_SETUP_CQSIZE, .cq_entries = CQ_ENTRIES, .sq_thread_idle = 1000};
    struct io_uring_rsrc_update itself = {.offset = NONE};
    const load_t *l = r->t->load;
    r->fd = (int)syscall(SYS_io_uring_setup, SQ_ENTRIES, &p);
    load_must(l, r->fd >= 0, "io_uring_setup");
    itself.data = (unsigned)r->fd;
    load_must(l, do_register(r, IORING_REGISTER_RING_FDS, &itself, 1) == 1, "registering the ring");
    r->enter_fd = itself.offset;
    r->enter_flags = IORING_ENTER_REGISTERED_RING;
    char *sq = map(r, r->fd, p.sq_off.array + p.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = map(r, r->fd, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    r->sqes = map(r, r->fd, p.sq_entries * sizeof *r->sqes, IORING_OFF_SQES);
    r->cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
    r->sq_head = (unsigned *)(sq + p.sq_off.head);
    r->sq_tail = (unsigned *)(sq + p.sq_off.tail);
    r->sq_flags = (unsigned *)(sq + p.sq_off.flags);
    r->cq_head = (unsigned *)(cq + p.cq_off.head);
    r->cq_tail = (unsigned *)(cq + p.cq_off.tail);
    r->sq_mask = p.sq_entries - 1;
    r->cq_mask = p.cq_entries - 1;
    for (unsigned i = 0; i < p.sq_entries; i++)
        ((unsigned *)(sq + p.sq_off.array))[i] = i;
}

/* --- buffers and files ----------------------------------------------------------------------------------- */

/* The receives may fill it again, as soon as publish() says so. */
static void give_back(ring_t *r, uint32_t id)
{
    struct io_uring_buf *b = &r->provided->bufs[r->returned++ & (r->buffers - 1)];
    b->addr = (uintptr_t)(r->memory + (size_t)id * how.buffer);
    b->len = how.buffer;
    b->bid = (uint16_t)id;
}

static void publish(const ring_t *r)
{
    __atomic_store_n(&r->provided->tail, (uint16_t)r->returned, __ATOMIC_RELEASE);
}

static void open_buffers(ring_t *r)
{
    const load_t *l = r->t->load;
    /* two for each connection of this thread; smaller ones and fewer stay in the caches */
    const uint64_t want = 2 * (l->clients * l->connections / l->threads + 1);
    struct io_uring_buf_reg reg = {0};
    for (r->buffers = 64; r->buffers < want && r->buffers < 32768; r->buffers *= 2)
        ;
    const size_t bytes = (size_t)r->buffers * how.buffer;
    r->memory = map(r, -1, bytes, 0);
    r->provided = map(r, -1, r->buffers * sizeof(struct io_uring_buf), 0);
    r->next = calloc(r->buffers, sizeof *r->next);
    r->length = calloc(r->buffers, sizeof *r->length);
    load_must(l, r->next && r->length, "memory");
    reg.ring_addr = (uintptr_t)r->provided;
    reg.ring_entries = r->buffers;
    load_must(l, !do_register(r, IORING_REGISTER_PBUF_RING, &reg, 1), "a ring of buffers");
    for (uint32_t i = 0; i < r->buffers; i++)
        give_back(r, i);
    publish(r);
    if (how.zc) {
        const struct iovec all = {.iov_base = r->memory, .iov_len = bytes};
        load_must(l, !do_register(r, IORING_REGISTER_BUFFERS, &all, 1), "registered memory");
    }
}

static void open_files(ring_t *r)
{
    struct rlimit limit;
    struct io_uring_rsrc_register reg = {.flags = IORING_RSRC_REGISTER_SPARSE};
    const load_t *l = r->t->load;
    load_must(l, !getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
    r->files = reg.nr = limit.rlim_cur < FILES_MAX ? (unsigned)limit.rlim_cur : FILES_MAX;
    load_must(l, !do_register(r, IORING_REGISTER_FILES2, &reg, sizeof reg), "a table of files");
    r->conns = calloc(r->files, sizeof *r->conns);
    load_must(l, r->conns != NULL, "memory");
}

static void set_file(const ring_t *r, int slot, int fd)
{
    const struct io_uring_files_update u = {.offset = (unsigned)slot, .fds = (uintptr_t)&fd};
    load_must(r->t->load, do_register(r, IORING_REGISTER_FILES_UPDATE, &u, 1) == 1, "a registered file");
}

/* --- connections ----------------------------------------------------------------------------------------- */

static void receive(ring_t *r, int fd)
{
    struct io_uring_sqe *s = prepare(r, IORING_OP_RECV, RECV, fd);
    s->flags = IOSQE_FIXED_FILE | IOSQE_BUFFER_SELECT;
    s->ioprio = IORING_RECV_MULTISHOT;
    r->conns[fd].receiving = true;
}

static void send_first(ring_t *r, int fd)
{
    conn_t *c = &r->conns[fd];
    struct io_uring_sqe *s = prepare(r, how.zc ? IORING_OP_SEND_ZC : IORING_OP_SEND, SEND, fd);
    s->user_data |= (uint64_t)c->first << 32;
    s->flags = IOSQE_FIXED_FILE;
    s->addr = (uintptr_t)(r->memory + (size_t)c->first * how.buffer);
    s->len = r->length[c->first];
    s->msg_flags = MSG_NOSIGNAL | MSG_WAITALL;
    if (how.zc)
        s->ioprio = IORING_RECVSEND_FIXED_BUF;
    c->sending = true;
    if (++r->sends >= how.batch)
        enter(r, 0);
}

/* The descriptor goes when nothing is under way that names it. */
static void end_if_idle(ring_t *r, int fd)
{
    conn_t *c = &r->conns[fd];
    if (!c->over || c->sending || c->receiving)
        return;
    for (uint32_t id = c->first; id != NONE; id = r->next[id])
        give_back(r, id);
    set_file(r, fd, -1);
    close(fd);
    atomic_fetch_sub(&r->t->connections, 1);
}

static void end(ring_t *r, int fd)
{
    r->conns[fd].over = true;
    shutdown(fd, SHUT_RDWR); /* ends its receive */
    end_if_idle(r, fd);
}

static void on_recv(ring_t *r, int fd, const struct io_uring_cqe *e)
{
    conn_t *c = &r->conns[fd];
    c->receiving = e->flags & IORING_CQE_F_MORE;
    if (e->res <= 0 && e->res != -ENOBUFS) {
        end(r, fd);
        return;
    }
    if (e->res > 0) {
        const uint32_t id = e->flags >> IORING_CQE_BUFFER_SHIFT;
        r->length[id] = (uint32_t)e->res;
        r->next[id] = NONE;
        if (c->first == NONE)
            c->first = id;
        else
            r->next[c->last] = id;
        c->last = id;
        if (!c->sending && !c->over)
            send_first(r, fd);
    }
    if (!c->receiving && !c->over) {
        publish(r);
        receive(r, fd);
    }
    end_if_idle(r, fd);
}

static void on_send(ring_t *r, int fd, const struct io_uring_cqe *e)
{
    conn_t *c = &r->conns[fd];
    const uint32_t id = e->user_data >> 32 & 0xffffff;
    const bool whole = e->res == (int)r->length[id];
    if (!(e->flags & IORING_CQE_F_MORE)) /* nobody reads this memory any more */
        give_back(r, id);
    if (e->flags & IORING_CQE_F_NOTIF)
        return;
    c->sending = false;
    c->first = r->next[id];
    if (!whole)
        end(r, fd);
    else if (c->over)
        end_if_idle(r, fd);
    else if (c->first != NONE)
        send_first(r, fd);
}

static void wait_for_hand(ring_t *r)
{
    struct io_uring_sqe *s = prepare(r, IORING_OP_READ, HAND, r->t->fd);
    s->addr = (uintptr_t)r->handed;
    s->len = sizeof r->handed;
}

static void on_hand(ring_t *r, const struct io_uring_cqe *e)
{
    load_must(r->t->load, e->res > 0 && e->res % (int)sizeof(int) == 0, "a connection that was handed over");
    for (int i = 0; i < e->res / (int)sizeof(int); i++) {
        const int fd = r->handed[i];
        load_must(r->t->load, (unsigned)fd < r->files, "too many connections");
        r->conns[fd] = (conn_t){.first = NONE, .last = NONE};
        set_file(r, fd, fd);
        receive(r, fd);
    }
    wait_for_hand(r);
}

/* --- a thread of the server ------------------------------------------------------------------------------ */

static void open_pipe(load_thread_t *t)
{
    int fds[2];
    load_must(t->load, !pipe2(fds, O_CLOEXEC), "a pipe");
    t->fd = fds[0];
    t->far = fds[1];
}

static void take(load_thread_t *t, int fd)
{
    load_must(t->load, write(t->far, &fd, sizeof fd) == (ssize_t)sizeof fd, "a pipe");
}

static void serve(load_thread_t *t)
{
    ring_t r = {.t = t};
    open_ring(&r);
    open_buffers(&r);
    open_files(&r);
    wait_for_hand(&r);
    while (true) {
        enter(&r, t->load->spin ? 0 : 1);
        unsigned head = *r.cq_head;
        while (head != __atomic_load_n(r.cq_tail, __ATOMIC_ACQUIRE)) {
            const struct io_uring_cqe e = r.cqes[head & r.cq_mask];
            const int fd = (int)(uint32_t)e.user_data;
            __atomic_store_n(r.cq_head, ++head, __ATOMIC_RELEASE);
            switch (e.user_data >> 56) {
            case RECV:
                on_recv(&r, fd, &e);
                break;
            case SEND:
                on_send(&r, fd, &e);
                break;
            default:
                on_hand(&r, &e);
                break;
            }
        }
        publish(&r);
    }
}

int main(int argc, char **argv)
{
    static load_t l = {.peer = {.name = "uring_echo"}, .option = option, .open = open_pipe, .take = take, .serve = serve};
    char kind[64];
    l.more = " [--ring plain|coop|defer|sqpoll] [--send copy|zc] [--batch N] [--buffer BYTES]";
    load_options(&l, argc, argv);
    if (!how.buffer) { /* what one connection has under way fits into one */
        how.buffer = (unsigned)(l.peer.size * l.peer.window);
        how.buffer = how.buffer < 64 ? 64 : how.buffer;
    }
    snprintf(kind, sizeof kind, "io_uring, %s, %s", how.ring, how.send);
    return load_run(&l, kind);
}
