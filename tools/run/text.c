/* tools/run/text.c - text that grows, and memory that is there or ends the command.
 *
 * A launcher without memory reports that and ends, and the kernel ends what it started (PR_SET_PDEATHSIG).
 * tests/tools/tools_run.py uses all of it. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

static void *must(void *p)
{
    if (!p) {
        tool_error("out of memory");
        exit(TOOL_FAILED);
    }
    return p;
}

void *run_alloc(size_t n)
{
    return must(calloc(1, n ? n : 1));
}

void *run_grow(void *p, size_t n)
{
    return must(realloc(p, n ? n : 1));
}

char *run_dup(const char *s)
{
    return must(strdup(s));
}

char *run_dup_n(const char *s, size_t n)
{
    char *copy = run_alloc(n + 1);
    memcpy(copy, s, n);
    return copy;
}

static char *vprintf_must(const char *fmt, va_list ap)
{
    char *text;
    return must(vasprintf(&text, fmt, ap) < 0 ? NULL : text);
}

char *run_printf(const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    text = vprintf_must(fmt, ap);
    va_end(ap);
    return text;
}

static void reserve(run_text_t *t, size_t n)
{
    size_t cap = t->cap ? t->cap : 256;
    while (cap < t->n + n + 1)
        cap *= 2;
    if (cap != t->cap)
        t->p = run_grow(t->p, t->cap = cap);
}

void run_add(run_text_t *t, const char *s, size_t n)
{
    reserve(t, n);
    memcpy(t->p + t->n, s, n);
    t->n += n;
    t->p[t->n] = '\0';
}

void run_addf(run_text_t *t, const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    text = vprintf_must(fmt, ap);
    va_end(ap);
    run_add(t, text, strlen(text));
    free(text);
}

tool_json_t run_json_begin(run_text_t *t)
{
    return (tool_json_t){.f = must(open_memstream(&t->p, &t->n))};
}

void run_json_end(tool_json_t *j)
{
    bool good = !ferror(j->f);
    must(fclose(j->f) || !good ? NULL : j);
}

void run_drop(run_text_t *t, size_t n)
{
    t->n -= n;
    memmove(t->p, t->p + n, t->n + 1);
}

void run_free(run_text_t *t)
{
    free(t->p);
    *t = (run_text_t){0};
}
