/* tools/run/window.c - how many compute elements run at a time, if --jobs does not say.
 *
 * A hundred copies at once that all compute take twice as long as a few at a time: they share caches and the time of the
 * processors. But copies may wait for each other through memory, and then all of them must run. Which of the two it is shows
 * while they run. So at first there are twice as many as processors. As long as one ends now and then, another takes its place.
 * If none ends for a while there are twice as many: soon if the processors have time, later if they are busy, since waiting in
 * a loop looks like work. Engines with machines of their own decide for themselves. tests/tools/tools_run_window.py checks it. */
#include <stdio.h>
#include <string.h>

#include "run.h"

#define LOOK (100 * WEFT_MILLISECOND)
#define IDLE 2  /* looks at processors that had time left, and there are more */
#define BUSY 10 /* looks, and there are more all the same */

static unsigned processors(const run_t *run)
{
    unsigned n = 0;
    for (const run_remote_t *r = run->remotes; r; r = r->next) {
        if (r->places)
            return RUN_ELEMENTS_MAX * RUN_COPIES_MAX / 2;
        n += r->lost ? 0 : r->cpus;
    }
    return n ? n : run->n_cpus ? run->n_cpus : 1;
}

/* Compute elements that have not returned. */
static unsigned running(const run_t *run)
{
    return run->n_computing - run->n_lingering;
}

/* Does it run, or wait for a processor? */
static bool runnable(const run_proc_t *p)
{
    char path[40], text[512], *end;
    FILE *f;
    size_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)p->pid);
    f = fopen(path, "re");
    if (f) {
        n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
    }
    text[n] = '\0';
    end = strrchr(text, ')'); /* the name in parentheses may hold any character */
    return end && strlen(end) > 2 && (end[2] == 'R' || end[2] == 'D');
}

/* Are the processors busy with elements? Not known of other machines: then yes. */
static bool busy(const run_t *run)
{
    unsigned most = running(run) < processors(run) ? running(run) : processors(run), n = 0;
    for (const run_proc_t *p = run->procs; p && n < most; p = p->next)
        n += p->host == &run->here && !p->over && !p->returned && !p->element->memory && runnable(p);
    return run->remotes || n == most;
}

bool run_window_full(run_t *run)
{
    if (run->opts.jobs)
        return running(run) >= run->opts.jobs;
    if (!run->window.most)
        run->window.most = 2 * processors(run);
    if (running(run) < run->window.most)
        return false;
    run->window.wanted = true;
    return true;
}

uint64_t run_window_keep(run_t *run, uint64_t now)
{
    run_window_t *w = &run->window;
    uint64_t ended = run->n_procs - run->n_live + run->n_lingering;
    if (!w->wanted || run->opts.jobs || run->failed)
        return UINT64_MAX;
    if (now < w->looked_at + LOOK)
        return w->looked_at + LOOK;
    w->looked_at = now;
    if (ended != w->ended) {
        w->ended = ended;
        w->looks = w->idle = 0;
    } else if (++w->looks >= BUSY || (!busy(run) && ++w->idle >= IDLE)) {
        w->looks = w->idle = 0;
        w->wanted = false;
        w->most *= 2;
        run_start_ready(run);
    }
    return now + LOOK;
}
