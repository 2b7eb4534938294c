/* tools/run/lines.c - lines of text from one descriptor and to another, which epoll watches.
 *
 * Reading stops at the end of a stream, at `hold`, and never in the middle of a callback: `line` may close what it was called
 * for. tests/tools/tools_run_hostile.py checks it. */
#include "lines.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "run.h"

/* --- to the other side ------------------------------------------------------------------------------------------------- */

static void write_some(run_lines_t *l)
{
    bool full = false;
    while (l->said < l->say.n && !full) {
        ssize_t n = write(l->out.fd, l->say.p + l->said, l->say.n - l->said);
        if (n > 0)
            l->said += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            full = true;
        else if (n >= 0 || errno != EINTR)
            l->said = l->say.n; /* it does not listen any more: how it ended will say why */
    }
    if (l->said > l->say.n / 2) { /* not every time: the text may be long */
        run_drop(&l->say, l->said);
        l->said = 0;
    }
    /* epoll also reports an end of the other side, so it looks only while there is something to send */
    struct epoll_event ev = {.events = EPOLLOUT, .data.ptr = &l->out};
    epoll_ctl(l->out.run->epoll, full ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, l->out.fd, &ev);
}

static void writable(run_source_t *s, uint32_t events)
{
    (void)events;
    write_some(s->user);
}

void run_lines_say(run_lines_t *l, const char *text, size_t n)
{
    if (l->out.fd < 0)
        return;
    run_add(&l->say, text, n);
    write_some(l);
}

/* --- from the other side ----------------------------------------------------------------------------------------------- */

/* Every whole line, and pieces of one that is too long. */
static void tell_lines(run_lines_t *l, size_t look)
{
    size_t from = 0;
    char *newline;
    while (l->in.fd >= 0 && (newline = memchr(l->heard.p + look, '\n', l->heard.n - look))) {
        size_t to = (size_t)(newline - l->heard.p);
        l->line(l, l->heard.p + from, to - from);
        from = look = to + 1;
    }
    if (l->in.fd < 0)
        return; /* closed by what it told */
    while (l->cut && l->heard.n - from > l->most) {
        l->line(l, l->heard.p + from, l->most);
        from += l->most;
    }
    if (from)
        run_drop(&l->heard, from);
    if (l->heard.n > l->most) {
        l->flooded = true;
        run_free(&l->heard);
    }
}

/* How many bytes came; 0 at the end of what is there for now, -1 for ever. */
static ssize_t read_some(run_lines_t *l)
{
    char piece[65536];
    ssize_t n = read(l->in.fd, piece, sizeof piece);
    size_t look = l->heard.n; /* before that there is no end of line */
    if (n <= 0)
        return n == 0 || (errno != EAGAIN && errno != EINTR) ? -1 : 0;
    if (l->flooded)
        return n; /* it is read and ignored, so that the other side is not held up */
    run_add(&l->heard, piece, (size_t)n);
    tell_lines(l, look);
    return n;
}

static void readable(run_source_t *s, uint32_t events)
{
    run_lines_t *l = s->user;
    (void)events;
    if (read_some(l) >= 0 || l->in.fd < 0)
        return;
    run_unwatch(&l->in);
    if (l->ended)
        l->ended(l);
}

void run_lines_hold(run_lines_t *l, bool held)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = &l->in};
    if (l->in.fd >= 0 && held != l->held)
        epoll_ctl(l->in.run->epoll, held ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, l->in.fd, &ev);
    l->held = held;
}

/* --- beginning and end --------------------------------------------------------------------------------------------------- */

bool run_lines_open(run_t *run, run_lines_t *l, int in, int out)
{
    l->in.user = l->out.user = l;
    l->in.fd = -1;
    l->out = (run_source_t){.fd = out, .ready = writable, .user = l, .run = run};
    return in < 0 || run_watch(run, &l->in, in, EPOLLIN, readable);
}

void run_lines_rest(run_lines_t *l)
{
    int left = 0; /* now: others may go on writing */
    ssize_t n = 0;
    if (l->in.fd >= 0 && ioctl(l->in.fd, FIONREAD, &left))
        left = 0;
    while (left > 0 && l->in.fd >= 0 && (n = read_some(l)) > 0)
        left -= n < left ? (int)n : left;
    if (l->cut && l->heard.n)
        l->line(l, l->heard.p, l->heard.n);
    run_lines_close(l);
}

void run_lines_close(run_lines_t *l)
{
    run_unwatch(&l->in);
    run_unwatch(&l->out);
    run_free(&l->heard);
    run_free(&l->say);
    l->said = 0;
}
