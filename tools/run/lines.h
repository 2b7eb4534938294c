/* tools/run/lines.h - lines of text from one descriptor and to another, which epoll watches.
 *
 * Saying never waits: what does not fit stays in `say` until epoll reports space. */
#ifndef WEFT_TOOLS_RUN_LINES_H
#define WEFT_TOOLS_RUN_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct run run_t;

/* Something that epoll watches. fd -1: closed; events that epoll still reports are ignored. */
typedef struct run_source {
    int fd;
    void (*ready)(struct run_source *s, uint32_t events);
    void *user;
    run_t *run;
} run_source_t;

bool run_watch(run_t *run, run_source_t *s, int fd, uint32_t events, void (*ready)(run_source_t *s, uint32_t events));
void run_unwatch(run_source_t *s); /* and close it */

/* Text that grows. Always ends with a zero that is not counted. */
typedef struct run_text {
    char *p;
    size_t n, cap;
} run_text_t;

typedef struct run_lines {
    run_source_t in, out;
    run_text_t heard, say; /* what came without an end of line yet; what is to be sent, of which `said` bytes are */
    size_t said;
    size_t most;           /* bytes of the longest line; set before it is opened, as are the next four */
    bool cut;              /* a longer one comes in pieces; otherwise it is dropped with all that follows, and `flooded` is set */
    void (*line)(struct run_lines *l, const char *text, size_t n); /* without its end; the text is gone afterwards */
    void (*ended)(struct run_lines *l);                            /* no more will come; may be NULL */
    void *user;
    bool flooded;
    bool held; /* nothing is read */
} run_lines_t;

#define RUN_LINES_CLOSED {.in.fd = -1, .out.fd = -1}

/* Watch both descriptors, which are closed with it, also if this fails; they do not block. Either may be -1. */
bool run_lines_open(run_t *run, run_lines_t *l, int in, int out);
void run_lines_say(run_lines_t *l, const char *text, size_t n); /* with the end of line; lost if nobody listens any more */
void run_lines_hold(run_lines_t *l, bool held);                 /* whether to read on */
/* Tell what came and is not told yet, and what comes within it is the last line; then close it. `ended` is not called. */
void run_lines_rest(run_lines_t *l);
void run_lines_close(run_lines_t *l);

#endif
