/* tools/run/json.c - reading JSON of elements and of people, with the library's reader: checked once as a whole, then looked at
 * where it lies.
 *
 * Results are handed on to other elements as the text that came, so they must be JSON to every reader: no NaN, and no text that
 * is not UTF-8. tests/tools/tools_run_hostile.py checks it. */
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

#include "run.h"

enum { DEEPEST = 500 };

static wefti_json_t reader(const char *text, size_t n)
{
    wefti_json_t j = wefti_json((char *)text, n); /* only raw values are read: nothing is changed */
    j.deepest = DEEPEST;
    j.halves = true; /* names of files that are not UTF-8 come as such, in tracebacks of Python */
    return j;
}

bool run_json(const char *text, size_t n, run_value_t *value_out)
{
    wefti_json_t j = reader(text, n);
    run_value_t value = wefti_json_raw(&j);
    if (!wefti_json_end(&j))
        return false;
    *value_out = value;
    return true;
}

bool run_json_next(run_value_t object, wefti_json_t *at, run_value_t *name_out, run_value_t *value_out)
{
    if (!at->at) {
        *at = reader(object.p, object.n);
        wefti_json_object(at);
    }
    if (!wefti_json_member_raw(at, name_out))
        return false;
    *value_out = wefti_json_raw(at);
    return !at->bad;
}

bool run_json_item(run_value_t array, wefti_json_t *at, run_value_t *value_out)
{
    if (!at->at) {
        *at = reader(array.p, array.n);
        wefti_json_array(at);
    }
    if (!wefti_json_item(at))
        return false;
    *value_out = wefti_json_raw(at);
    return !at->bad;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Of the object itself. */
static char *twice_here(run_value_t object)
{
    run_value_t key, value;
    wefti_json_t at = {0};
    char **names = NULL, *twice = NULL;
    size_t n = 0, cap = 0;
    while (run_json_next(object, &at, &key, &value)) {
        char *name = run_json_string(key);
        if (n == cap)
            names = run_grow(names, (cap = cap ? 2 * cap : 16) * sizeof *names);
        names[n++] = name ? name : run_dup_n(key.p, key.n); /* one with a zero: as it stands there */
    }
    if (n)
        qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; i < n && !twice; i++)
        if (!strcmp(names[i - 1], names[i]))
            twice = run_dup(names[i]);
    for (size_t i = 0; i < n; i++)
        free(names[i]);
    free(names);
    return twice;
}

char *run_json_twice(run_value_t v)
{
    run_value_t key, value;
    wefti_json_t at = {0};
    char *twice = NULL;
    if (v.p && *v.p == '{') {
        twice = twice_here(v);
        while (!twice && run_json_next(v, &at, &key, &value))
            twice = run_json_twice(value);
    } else if (v.p && *v.p == '[') {
        while (!twice && run_json_item(v, &at, &value))
            twice = run_json_twice(value);
    }
    return twice;
}

run_value_t run_json_get(run_value_t object, const char *name)
{
    run_value_t found = {0}, key, value;
    wefti_json_t at = {0};
    while (run_json_next(object, &at, &key, &value))
        if (run_json_is(key, name))
            found = value;
    return found;
}

tool_json_t run_line_begin(run_text_t *line, const char *who, const char *what, uint64_t n)
{
    tool_json_t j = run_json_begin(line);
    tool_json_open(&j, NULL, '{');
    tool_json_text(&j, who, what);
    if (n)
        tool_json_count(&j, "n", n);
    return j;
}

void run_line_end(run_text_t *line, tool_json_t *j, run_lines_t *to)
{
    tool_json_end(j);
    run_json_end(j);
    run_lines_say(to, line->p, line->n);
    run_free(line);
}

void run_json_add_bytes(tool_json_t *j, const char *text, size_t n)
{
    size_t cap = sodium_base64_encoded_len(n, sodium_base64_VARIANT_ORIGINAL);
    char *coded;
    if (wefti_utf8_ok(text, n)) {
        tool_json_bytes(j, "line", text, n);
        return;
    }
    coded = run_alloc(cap);
    sodium_bin2base64(coded, cap, (const unsigned char *)text, n, sodium_base64_VARIANT_ORIGINAL);
    tool_json_text(j, "base64", coded);
    free(coded);
}

/* The characters of a string, which lie in the memory that is returned; NULL if the value is no string. */
static char *read_string(run_value_t v, wefti_json_text_t *t)
{
    wefti_json_t j;
    char *copy;
    if (!v.p || *v.p != '"')
        return NULL;
    copy = run_dup_n(v.p, v.n);
    j = reader(copy, v.n);
    *t = wefti_json_string(&j);
    return copy;
}

bool run_json_bytes(run_value_t object, run_text_t *out)
{
    run_value_t v = run_json_get(object, "line"), coded = run_json_get(object, "base64");
    wefti_json_text_t t;
    char *copy;
    bool good = true;
    if (!v.p)
        v = coded;
    copy = read_string(v, &t);
    if (!copy)
        return false;
    run_add(out, t.p, t.n);
    if (v.p == coded.p) {
        size_t n = 0;
        good = !sodium_base642bin((unsigned char *)out->p, out->n, t.p, t.n, NULL, &n, NULL, sodium_base64_VARIANT_ORIGINAL);
        out->n = n;
        out->p[n] = '\0';
    }
    free(copy);
    return good;
}

bool run_json_is(run_value_t v, const char *text)
{
    char *s = run_json_string(v);
    bool is = s && !strcmp(s, text);
    free(s);
    return is;
}

char *run_json_string(run_value_t v)
{
    wefti_json_text_t t;
    char *copy = read_string(v, &t);
    if (!copy)
        return NULL;
    if (strlen(t.p) != t.n) {
        free(copy);
        return NULL;
    }
    memmove(copy, t.p, t.n + 1);
    return copy;
}

char *run_json_shown(run_value_t v)
{
    wefti_json_text_t t;
    run_text_t shown = {0};
    char *copy = read_string(v, &t);
    if (!copy)
        return NULL;
    run_add(&shown, "", 0);
    for (size_t at = 0, n; at < t.n; at += n + 1) {
        n = strlen(t.p + at);
        run_add(&shown, t.p + at, n);
        if (at + n < t.n)
            run_add(&shown, "\\0", 2);
    }
    free(copy);
    return shown.p;
}

bool run_json_count(run_value_t v, uint64_t *out)
{
    char digits[24];
    if (!v.p || !v.n || v.n >= sizeof digits)
        return false;
    memcpy(digits, v.p, v.n);
    digits[v.n] = '\0';
    return tool_parse_count(digits, 0, UINT64_MAX, out);
}
