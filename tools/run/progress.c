/* tools/run/progress.c - a line per element on a terminal while the run goes on, drawn again as it changes.
 *
 * Nothing of it goes to a pipe. Code that writes something else wipes it first, and it is drawn again below. It has at most
 * as many lines as the terminal, less a few; running elements come first. tests/tools/tools_run.py checks it. */
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "run.h"

#define EVERY (100 * WEFT_MILLISECOND)

const char *run_time_text(uint64_t ns, char *buf, size_t cap)
{
    double s = (double)ns / 1e9;
    if (s < 1)
        snprintf(buf, cap, "%.0f ms", s * 1e3);
    else if (s < 60)
        snprintf(buf, cap, "%.2f s", s);
    else
        snprintf(buf, cap, "%u:%04.1f", (unsigned)(s / 60), s - 60 * (double)(unsigned)(s / 60));
    return buf;
}

const char *run_state_text(const run_t *run, const run_element_t *e)
{
    switch (e->state) {
    case RUN_WAITING:
        return e->memory && !e->n_users && !e->started ? "unused" : run->ended ? "not started" : "waiting";
    case RUN_RUNNING:
        return e->memory ? "serving" : "running";
    case RUN_DONE:
        return "done";
    case RUN_FAILED:
        return "failed";
    default:
        return "stopped";
    }
}

const run_proc_t *run_over_limit(const run_t *run, const run_element_t *e)
{
    for (const run_proc_t *p = run->procs; p; p = p->next)
        if (p->element == e && p->limit.name && e->state == RUN_FAILED)
            return p;
    return NULL;
}

uint64_t run_ended_after(const run_t *run, const run_element_t *e)
{
    uint64_t most = 0;
    for (const run_proc_t *p = run->procs; p; p = p->next)
        if (p->element == e && p->asked >= RUN_TERMINATED && p->grace > most)
            most = p->grace;
    return most;
}

char *run_state_whole(const run_t *run, const run_element_t *e)
{
    const run_proc_t *over = run_over_limit(run, e);
    const char *word = run_state_text(run, e);
    uint64_t grace = run_ended_after(run, e);
    char text[32];
    if (over && !strcmp(over->limit.name, "time"))
        return run_printf("%s: time limit %s", word, run_time_text(over->limit.most, text, sizeof text));
    if (over)
        return run_printf("%s: %s limit %s", word, !strcmp(over->limit.name, "mem") ? "memory" : over->limit.name,
                          run_bytes_text(over->limit.most, text, sizeof text));
    if (grace)
        return run_printf("%s, ended after %s", word, run_time_text(grace, text, sizeof text));
    return run_dup(word);
}

void run_progress_wipe(run_t *run)
{
    if (!run->shown)
        return;
    fprintf(stderr, "\033[%uA\r\033[J", run->shown);
    fflush(stderr);
    run->shown = 0;
    run->shown_at = 0; /* draw it again soon */
}

static unsigned rows(void)
{
    struct winsize size;
    if (!ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_row > 8)
        return size.ws_row - 4u;
    return 12;
}

static void draw_line(run_t *run, const run_element_t *e, uint64_t now, unsigned columns)
{
    char line[256], time[32], copies[48] = "";
    if (e->copies > 1)
        snprintf(copies, sizeof copies, " %u/%u", e->n_returned, e->copies);
    snprintf(line, sizeof line, "  %-20s %-8s%-8s %s", e->name, run_state_text(run, e), copies,
             e->started ? run_time_text((e->ended && e->state != RUN_RUNNING ? e->ended : now) - e->started, time, sizeof time)
                        : "");
    fprintf(stderr, "%.*s\n", (int)(columns - 1), line);
}

void run_progress(run_t *run, uint64_t now)
{
    unsigned room, left = 0, columns;
    if (!run->terminal || (run->shown_at && now - run->shown_at < EVERY))
        return;
    run_progress_wipe(run);
    run->shown_at = now;
    room = rows();
    columns = tool_columns(stderr);
    for (int running = 1; running >= 0; running--)
        for (unsigned i = 0; i < run->n_elements; i++) {
            if ((run->elements[i]->state == RUN_RUNNING) != running)
                continue;
            if (run->shown < room) {
                draw_line(run, run->elements[i], now, columns);
                run->shown++;
            } else {
                left++;
            }
        }
    if (left) {
        fprintf(stderr, "  ... and %u more\n", left);
        run->shown++;
    }
    fflush(stderr);
}
