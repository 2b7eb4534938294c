/* tools/call/show.c - values as people read them, and as JSON.
 *
 * Text of a server may not move the terminal's cursor: control characters are shown as \x1b there, and passed on to a file or
 * a pipe. In JSON "nan" and "inf" are text. Programs read the JSON: names may be added to it, and none may be renamed.
 * tests/tools/tools_call.py checks it. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

#define TENSOR_SHOWN 1000 /* elements; of larger ones only the shape */

/* --- text ----------------------------------------------------------------------------------------------------------- */

/* As the library writes it; yours to free. */
static char *formatted(const weft_value_t *v)
{
    size_t n = weft_value_format(v, NULL, 0);
    char *text = malloc(n + 1);
    if (text)
        weft_value_format(v, text, n + 1);
    return text;
}

static void put_element(FILE *f, const weft_tensor_t *t, uint64_t index, bool json)
{
    weft_value_t v = call_tensor_element(t, index);
    char buf[512];
    bool odd = json && ((v.type == WEFT_T_F32 && !isfinite(v.f32)) || (v.type == WEFT_T_F64 && !isfinite(v.f64)));
    weft_value_format(&v, buf, sizeof buf);
    fprintf(f, odd ? "\"%s\"" : "%s", buf);
}

static void put_rows(FILE *f, const weft_tensor_t *t, int32_t depth, uint64_t *index, bool json)
{
    if (depth == t->ndim) {
        put_element(f, t, (*index)++, json);
        return;
    }
    fputc('[', f);
    for (int64_t i = 0; i < t->shape[depth]; i++) {
        if (i)
            fputs(", ", f);
        put_rows(f, t, depth + 1, index, json);
    }
    fputc(']', f);
}

static bool small(const weft_tensor_t *t)
{
    uint64_t n = call_tensor_count(t);
    /* not [1000000, 0]: a million empty rows */
    return call_tensor_shown(t) && n <= TENSOR_SHOWN && (n || t->ndim <= 1);
}

static void put_value(FILE *f, const weft_value_t *v)
{
    if (v->type == WEFT_T_STRING) {
        if (tool_is_terminal(f))
            tool_put_plain(f, v->view.data, v->view.n);
        else if (v->view.n)
            fwrite(v->view.data, 1, v->view.n, f);
        return;
    }
    if (v->type == WEFT_T_TENSOR && small(v->tensors.at)) {
        uint64_t index = 0;
        fprintf(f, "%s ", weft_type_name(call_tensor_type(v->tensors.at)));
        put_rows(f, v->tensors.at, 0, &index, false);
        return;
    }
    char *text = formatted(v);
    fputs(text ? text : "(out of memory)", f);
    free(text);
}

void call_show(FILE *f, const weft_value_t *v)
{
    put_value(f, v);
    fputc('\n', f);
}

/* --- JSON ------------------------------------------------------------------------------------------------------------- */

static bool json_number(const weft_value_t *v)
{
    return v->type == WEFT_T_F32 ? isfinite(v->f32) : v->type != WEFT_T_F64 || isfinite(v->f64);
}

static void tensor_json(tool_json_t *j, const char *name, const weft_tensor_t *t)
{
    weft_value_t whole = weft_tensor(t);
    char *text = formatted(&whole);
    tool_json_open(j, name, '{');
    tool_json_text(j, "type", text && !strncmp(text, "tensor ", 7) ? (*strchr(text + 7, ' ') = '\0', text + 7) : "?");
    tool_json_open(j, "shape", '[');
    for (int32_t i = 0; i < t->ndim; i++)
        tool_json_count(j, NULL, (uint64_t)t->shape[i]);
    tool_json_close(j, ']');
    if (small(t)) {
        uint64_t index = 0;
        tool_json_raw(j, "data", "");
        put_rows(j->f, t, 0, &index, true);
    } else {
        tool_json_raw(j, "data", "null");
    }
    tool_json_close(j, '}');
    free(text);
}

static void vector_json(tool_json_t *j, const char *name, const weft_value_t *v)
{
    uint32_t type = v->type & ~(uint32_t)WEFT_T_VECTOR;
    uint64_t n = type == WEFT_T_TENSOR ? v->tensors.n : v->view.n;
    tool_json_open(j, name, '[');
    for (uint64_t i = 0; i < n; i++) {
        weft_value_t e = {.type = type};
        if (type == WEFT_T_TENSOR)
            e = weft_tensor(&v->tensors.at[i]);
        else
            memcpy(&e.u64, (const uint8_t *)v->view.data + i * weft_type_size(type), weft_type_size(type));
        call_show_json(j, NULL, &e);
    }
    tool_json_close(j, ']');
}

void call_show_json(tool_json_t *j, const char *name, const weft_value_t *v)
{
    char buf[512];
    if (v->type == WEFT_T_STRING) {
        tool_json_bytes(j, name, v->view.data, v->view.n);
    } else if (v->type & WEFT_T_VECTOR) {
        vector_json(j, name, v);
    } else if (v->type == WEFT_T_TENSOR) {
        tensor_json(j, name, v->tensors.at);
    } else {
        weft_value_format(v, buf, sizeof buf);
        if (json_number(v))
            tool_json_raw(j, name, buf);
        else
            tool_json_text(j, name, buf);
    }
}

/* --- results ------------------------------------------------------------------------------------------------------------ */

void call_show_results(const weft_sig_t *sig, const weft_reply_t *reply)
{
    size_t n;
    const weft_param_t *results = weft_sig_results(sig, &n);
    for (size_t i = 0; i < reply->n; i++) {
        if (reply->n > 1 && i < n && *results[i].name)
            printf("%s: ", results[i].name);
        call_show(stdout, &reply->values[i]);
    }
}

bool call_save(const char *path, const weft_value_t *v)
{
    FILE *f = fopen(path, "wb");
    bool ok;
    if (!f) {
        tool_error("%s cannot be written: %s", path, strerror(errno));
        return false;
    }
    if (v->type == WEFT_T_TENSOR) {
        ok = call_tensor_save(v->tensors.at, f);
    } else if (v->type == WEFT_T_STRING) {
        ok = !v->view.n || fwrite(v->view.data, 1, v->view.n, f) == v->view.n;
    } else {
        call_show(f, v);
        ok = true;
    }
    ok = !ferror(f) && ok;
    if (fclose(f) || !ok) {
        tool_error("%s could not be written whole%s%s", path, errno ? ": " : "", errno ? strerror(errno) : "");
        return false;
    }
    return true;
}
