/* tools/run/notice.c - what is said of the elements before anything runs: problems, and warnings about what is ignored.
 *
 * A problem stops the command. A warning does not, unless --strict was given. Each is one line on standard error with the file,
 * the line and what to do. Both are kept, for --json. tests/tools/tools_run_meta.py checks it. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

static char *sentence(const char *fmt, va_list ap)
{
    char *text = NULL;
    return vasprintf(&text, fmt, ap) < 0 ? run_dup(fmt) : text;
}

/* The name of a file without its directory, harmless on a terminal. */
static char *file_of(const run_t *run, const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    char shown[600];
    return path ? run_dup(tool_plain(slash && run->dir ? slash + 1 : path, shown, sizeof shown)) : NULL;
}

static void keep(run_t *run, run_notice_t n, const char *kind, const char *end)
{
    if (n.file && n.line)
        tool_error("%s%s:%u: %s%s", kind, n.file, n.line, n.text, end);
    else if (n.file)
        tool_error("%s%s: %s%s", kind, n.file, n.text, end);
    else
        tool_error("%s%s%s", kind, n.text, end);
    run->notices = run_grow(run->notices, (run->n_notices + 1) * sizeof *run->notices);
    run->notices[run->n_notices++] = n;
}

void run_problem(run_t *run, const char *path, unsigned line, const char *fmt, ...)
{
    run_notice_t n = {.file = file_of(run, path), .line = line};
    va_list ap;
    va_start(ap, fmt);
    n.text = sentence(fmt, ap);
    va_end(ap);
    run->n_problems++;
    keep(run, n, "", "");
}

void run_warn(run_t *run, const char *path, unsigned line, const char *key, const char *fmt, ...)
{
    run_notice_t n = {.file = file_of(run, path), .line = line, .key = key ? run_dup(key) : NULL, .warning = true};
    bool strict = run->opts.strict && !run->started; /* what has run cannot be refused */
    va_list ap;
    va_start(ap, fmt);
    n.text = sentence(fmt, ap);
    va_end(ap);
    run->n_warnings++;
    run->n_problems += strict;
    keep(run, n, strict ? "" : "warning: ", strict ? " (--strict refuses it)" : "");
}

void run_notices_json(const run_t *run, tool_json_t *j, const char *name, bool warnings)
{
    tool_json_open(j, name, '[');
    for (unsigned i = 0; i < run->n_notices; i++) {
        const run_notice_t *n = &run->notices[i];
        if (n->warning != warnings)
            continue;
        tool_json_open(j, NULL, '{');
        tool_json_text(j, "file", n->file);
        tool_json_count(j, "line", n->line);
        if (warnings)
            tool_json_text(j, "key", n->key);
        tool_json_text(j, "text", n->text);
        tool_json_close(j, '}');
    }
    tool_json_close(j, ']');
}

void run_notices_free(run_t *run)
{
    for (unsigned i = 0; i < run->n_notices; i++) {
        free(run->notices[i].file);
        free(run->notices[i].key);
        free(run->notices[i].text);
    }
    free(run->notices);
}
