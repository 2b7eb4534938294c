/* tools/run/json.c - reading JSON of elements and of people, with the library's reader: checked once as a whole, then looked at
 * where it lies.
 *
 * Results are handed on to other elements as the text that came, so they must be JSON to every reader: no NaN, and no text that
 * is not UTF-8. tests/tools/tools_run_hostile.py checks it. */
#include <stdlib.h>
#include <string.h>

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

run_value_t run_json_get(run_value_t object, const char *name)
{
    run_value_t found = {0}, key, value;
    wefti_json_t at = {0};
    while (run_json_next(object, &at, &key, &value))
        if (run_json_is(key, name))
            found = value;
    return found;
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
    wefti_json_t j;
    char *copy;
    if (!v.p || *v.p != '"')
        return NULL;
    copy = run_dup_n(v.p, v.n);
    j = reader(copy, v.n);
    t = wefti_json_string(&j);
    if (strlen(t.p) != t.n) {
        free(copy);
        return NULL;
    }
    memmove(copy, t.p, t.n + 1);
    return copy;
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
