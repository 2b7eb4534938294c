/* tools/run/channel.c - the three streams of a process on this machine: lines to and from the launcher, and what it prints.
 *
 * Sending never waits: what does not fit stays in `say` until epoll reports space. A line to the launcher is at most
 * RUN_LINE_MAX bytes; a printed line is cut after PRINTED bytes. tests/tools/tools_run_hostile.py checks it. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "run.h"

#define PRINTED ((size_t)1 << 16)

/* Bytes that can be read now. */
static size_t waiting(const run_source_t *s)
{
    int n = 0;
    return s->fd >= 0 && !ioctl(s->fd, FIONREAD, &n) && n > 0 ? (size_t)n : 0;
}

/* --- lines to the launcher and back ----------------------------------------------------------------------------------- */

static void send_some(run_proc_t *p)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &p->control};
    while (p->said < p->say.n) {
        ssize_t n = send(p->control.fd, p->say.p + p->said, p->say.n - p->said, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            p->said += (size_t)n;
        } else if (errno == EAGAIN) {
            ev.events |= EPOLLOUT;
            break;
        } else if (errno != EINTR) {
            p->said = p->say.n; /* it does not listen any more: its exit status will say why */
        }
    }
    if (p->said > p->say.n / 2) { /* not every time: the text may be long */
        run_drop(&p->say, p->said);
        p->said = 0;
    }
    epoll_ctl(p->run->epoll, EPOLL_CTL_MOD, p->control.fd, &ev);
}

void run_channel_tell(run_proc_t *p, const char *line, size_t n)
{
    if (p->control.fd < 0)
        return;
    run_add(&p->say, line, n);
    send_some(p);
}

/* How many bytes; 0 at the end of what is there for now, or for ever. */
static size_t hear_some(run_proc_t *p)
{
    char piece[65536], *newline;
    ssize_t n = read(p->control.fd, piece, sizeof piece);
    size_t from = 0, look = p->heard.n; /* before that there is no end of line */
    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            run_unwatch(&p->control);
        return 0;
    }
    if (p->flooded)
        return (size_t)n; /* it is read and ignored, so that the process is not held up */
    run_add(&p->heard, piece, (size_t)n);
    while ((newline = memchr(p->heard.p + look, '\n', p->heard.n - look))) {
        size_t to = (size_t)(newline - p->heard.p);
        p->run->news->heard(p, p->heard.p + from, to - from);
        from = look = to + 1;
    }
    if (from)
        run_drop(&p->heard, from);
    if (p->heard.n > RUN_LINE_MAX) {
        p->flooded = true;
        run_free(&p->heard);
    }
    return (size_t)n;
}

void run_channel_ready(run_source_t *s, uint32_t events)
{
    run_proc_t *p = s->proc;
    if (events & EPOLLOUT && p->say.n)
        send_some(p);
    if (events & ~(uint32_t)EPOLLOUT)
        hear_some(p);
}

static void hear_rest(run_proc_t *p)
{
    size_t left = waiting(&p->control), n;
    while (left && p->control.fd >= 0 && (n = hear_some(p)))
        left -= n < left ? n : left;
    run_unwatch(&p->control);
}

/* --- what it prints ---------------------------------------------------------------------------------------------------- */

/* How many bytes; 0 at the end of what is there for now, or for ever. */
static size_t output_some(run_proc_t *p, unsigned which)
{
    run_source_t *s = &p->out[which];
    run_text_t *lines = &p->lines[which];
    char piece[65536], *newline;
    ssize_t n = read(s->fd, piece, sizeof piece);
    size_t from = 0;
    if (n <= 0) {
        if (n == 0 || (errno != EAGAIN && errno != EINTR))
            run_unwatch(s);
        return 0;
    }
    run_add(lines, piece, (size_t)n);
    while ((newline = memchr(lines->p + from, '\n', lines->n - from))) {
        size_t to = (size_t)(newline - lines->p);
        p->run->news->printed(p, which, lines->p + from, to - from);
        from = to + 1;
    }
    while (lines->n - from > PRINTED) {
        p->run->news->printed(p, which, lines->p + from, PRINTED);
        from += PRINTED;
    }
    if (from)
        run_drop(lines, from);
    return (size_t)n;
}

void run_channel_printed(run_source_t *s, uint32_t events)
{
    (void)events;
    output_some(s->proc, s == &s->proc->out[1]);
}

static void printed_rest(run_proc_t *p)
{
    for (unsigned which = 0; which < 2; which++) {
        size_t left = waiting(&p->out[which]), n; /* now: others may go on writing to the pipe */
        while (left && p->out[which].fd >= 0 && (n = output_some(p, which)))
            left -= n < left ? n : left;
        if (p->lines[which].n)
            p->run->news->printed(p, which, p->lines[which].p, p->lines[which].n);
        run_free(&p->lines[which]);
        run_unwatch(&p->out[which]);
    }
}

void run_channel_rest(run_proc_t *p)
{
    hear_rest(p);
    printed_rest(p);
}
