/* tools/run/output.c - what elements print: whole lines, with their names before them on a terminal, and without secrets.
 *
 * Lines of several elements never mix. A pipe gets the bytes as they came; a terminal gets
 * nothing that could move its cursor. With --json standard output belongs to the launcher, and elements have standard error.
 * A reader that does not read, such as a pager, holds up the elements, but neither signals nor --timeout.
 * tests/tools/tools_run.py checks it. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define PIECE ((size_t)4096)
#define LOOK 20  /* milliseconds between two looks for a signal, while nobody reads */
#define DEAF 500 /* milliseconds: a reader that has not read for so long while the run ends is not waited for again */

void run_secret(run_t *run, const char *durl)
{
    const char *token = strstr(durl, ";token,");
    size_t n;
    if (!token)
        return;
    token += strlen(";token,");
    n = strcspn(token, ";");
    if (n < 16)
        return; /* too short to be a secret, and hiding it would hide other text */
    run->secrets = run_grow(run->secrets, (run->n_secrets + 1) * sizeof *run->secrets);
    run->secrets[run->n_secrets++] = run_dup_n(token, n);
}

void run_hide(const run_t *run, run_text_t *text)
{
    static const char instead[] = "(token)"; /* shorter than any secret */
    for (unsigned i = 0; i < run->n_secrets && text->n; i++) {
        size_t n = strlen(run->secrets[i]);
        const char *from = text->p, *end = text->p + text->n, *found;
        char *to = text->p;
        while ((found = memmem(from, (size_t)(end - from), run->secrets[i], n))) { /* each byte is moved once */
            memmove(to, from, (size_t)(found - from));
            to += found - from;
            memcpy(to, instead, sizeof instead - 1);
            to += sizeof instead - 1;
            from = found + n;
        }
        memmove(to, from, (size_t)(end - from) + 1);
        text->n = (size_t)(to - text->p) + (size_t)(end - from);
    }
}

/* Has a signal come that ends the run? They are blocked, so it stays pending until the loop reads it. */
static bool signal_waits(void)
{
    sigset_t ours, pending;
    tool_signals(&ours);
    sigpending(&pending);
    for (int number = 1; number < NSIG; number++)
        if (sigismember(&ours, number) == 1 && sigismember(&pending, number) == 1)
            return true;
    return false;
}

bool run_takes(run_t *run, FILE *f)
{
    struct pollfd p = {.fd = fileno(f), .events = POLLOUT};
    for (unsigned looks = 0;; looks++) {
        int n = poll(&p, 1, looks ? LOOK : 0);
        if (n > 0 || (n < 0 && errno != EINTR))
            return true; /* or it is broken, and write() will fail */
        (void)run_limits_look(run, tool_now());
        run_remotes_ping(run, tool_now());
        if (run->deaf)
            return false;
        if (run->failed && looks * LOOK > DEAF)
            run->deaf = true;
        if (!run->failed && (signal_waits() || tool_now() >= run_deadline(run, NULL)))
            return false;
    }
}

/* All of it, piece by piece: a pipe that can be written to takes as much without waiting. */
static void put(run_t *run, FILE *f, const run_text_t *text)
{
    for (size_t at = 0, n; at < text->n; at += n) {
        n = text->n - at < PIECE ? text->n - at : PIECE;
        if (!run_takes(run, f))
            return;
        fwrite(text->p + at, 1, n, f);
        fflush(f);
    }
}

void run_printed(run_proc_t *p, unsigned which, const char *line, size_t n)
{
    run_t *run = p->run;
    FILE *f = which || run->opts.json ? stderr : stdout;
    run_text_t text = {0}, shown = {0};
    run_progress_wipe(run);
    run_add(&text, line, n);
    run_hide(run, &text);
    if (!tool_is_terminal(f)) {
        run_add(&shown, text.p, text.n);
    } else {
        run_addf(&shown, "%s | ", p->label);
        for (size_t at = 0; at < text.n;) {
            size_t len = tool_harmless(text.p + at, text.n - at, true);
            if (len)
                run_add(&shown, text.p + at, len);
            else if (text.p[at] != '\r')
                run_addf(&shown, "\\x%02x", (unsigned char)text.p[at]);
            at += len ? len : 1;
        }
    }
    run_add(&shown, "\n", 1);
    put(run, f, &shown);
    run_free(&text);
    run_free(&shown);
}
