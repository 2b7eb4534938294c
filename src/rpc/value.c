/* rpc/value.c - values as people write and read them.
 *
 * Numbers are read and written as in C, whatever locale the program has set: the locale of the calling thread is changed during a
 * call.
 *
 * Promise: what weft_value_format() writes of a scalar, a string or a vector is read by weft_value_parse() as the same value (a
 * NaN as some NaN), with as few digits as that needs. Text that is refused is refused with a sentence. tests/unit/rpc_value.c. */
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ascii.h"
#include "base/log.h"
#include "base/utf8.h"
#include "rpc/type.h"

#define NUMBER_MAX 400 /* characters: the longest double, written out, has 310 before the point */

/* --- reading ---------------------------------------------------------------------------------------------------------------- */

static weft_status_t refuse(uint32_t type, const char *text, size_t len, const char *why)
{
    return wefti_fail(WEFT_ERR_INVALID, "\"%.*s\" %s %s", (int)(len < 40 ? len : 40), text, why, weft_type_name(type));
}

static weft_status_t read_bool(const char *text, size_t len, bool *out)
{
    *out = len == 4 && !memcmp(text, "true", 4);
    return *out || (len == 5 && !memcmp(text, "false", 5)) ? WEFT_OK
                                                           : refuse(WEFT_T_BOOL, text, len, "is neither true nor false, so no");
}

/* Digits, decimal or after 0x. False: not a number. *fits: it has at most 64 bits. */
static bool read_digits(const char *text, size_t len, uint64_t *out, bool *fits)
{
    bool hex = len > 2 && text[0] == '0' && wefti_lower(text[1]) == 'x';
    uint64_t v = 0, base = hex ? 16 : 10;
    *fits = true;
    if (hex)
        text += 2, len -= 2;
    for (size_t i = 0; i < len; i++) {
        char c = wefti_lower(text[i]);
        uint64_t d = wefti_is_digit(c) ? (uint64_t)(c - '0') : hex && c >= 'a' && c <= 'f' ? (uint64_t)(c - 'a' + 10) : base;
        if (d == base)
            return false;
        *fits = *fits && !__builtin_mul_overflow(v, base, &v) && !__builtin_add_overflow(v, d, &v);
    }
    *out = v;
    return len != 0;
}

static weft_status_t read_int(uint32_t type, const char *text, size_t len, weft_value_t *v)
{
    bool is_signed = type <= WEFT_T_I64, minus = len && text[0] == '-', sign = minus || (len && text[0] == '+'), fits;
    unsigned bits = (unsigned)weft_type_size(type) * 8 - is_signed;
    uint64_t most = UINT64_MAX >> (64 - bits), n;
    if (!read_digits(text + sign, len - sign, &n, &fits))
        return refuse(type, text, len, "is not a whole number, as asked for by");
    if (!fits || n > most + (minus && is_signed) || (minus && !is_signed && n))
        return refuse(type, text, len, "is out of the range of");
    v->u64 = minus ? (uint64_t)0 - n : n;
    return WEFT_OK;
}

static weft_status_t read_float(uint32_t type, const char *text, size_t len, weft_value_t *v)
{
    static const char *const words[] = {"inf", "infinity", "nan"};
    char buf[NUMBER_MAX + 1], *end;
    size_t sign = len && (text[0] == '-' || text[0] == '+');
    bool word = false;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        word = word || (strlen(words[i]) == len - sign && wefti_same_text(text + sign, words[i], len - sign));
    /* strtod also takes blanks and nan(...), so the beginning is checked here */
    if (!word && (len == sign || (!wefti_is_digit(text[sign]) && text[sign] != '.')))
        return refuse(type, text, len, "is not a number, as asked for by");
    if (len > NUMBER_MAX)
        return refuse(type, text, len, "has too many digits for");
    memcpy(buf, text, len);
    buf[len] = 0;
    double d = type == WEFT_T_F32 ? (double)strtof(buf, &end) : strtod(buf, &end);
    if (end != buf + len)
        return refuse(type, text, len, "is not a number, as asked for by");
    if (isinf(d) && !word)
        return refuse(type, text, len, "is out of the range of");
    if (type == WEFT_T_F32)
        v->f32 = (float)d;
    else
        v->f64 = d;
    return WEFT_OK;
}

static weft_status_t read_scalar(uint32_t type, const char *text, size_t len, weft_value_t *v)
{
    if (type == WEFT_T_BOOL)
        return read_bool(text, len, &v->b);
    return type == WEFT_T_F32 || type == WEFT_T_F64 ? read_float(type, text, len, v) : read_int(type, text, len, v);
}

static weft_status_t read_string(const char *text, void *buf, size_t cap, weft_value_t *v)
{
    size_t n = strlen(text);
    if (!wefti_utf8_ok(text, n))
        return wefti_fail(WEFT_ERR_INVALID, "the text is not UTF-8, as asked for by string");
    if (n > cap)
        return wefti_fail(WEFT_ERR_LIMIT, "a string of %zu bytes does not fit in %zu", n, cap);
    if (n)
        memcpy(buf, text, n);
    v->view.data = n ? buf : NULL;
    v->view.n = n;
    return WEFT_OK;
}

static const char *after_blanks(const char *at)
{
    while (wefti_is_space(*at))
        at++;
    return at;
}

static weft_status_t read_vector(uint32_t type, const char *text, void *buf, size_t cap, weft_value_t *v)
{
    uint32_t element = type & ~(uint32_t)WEFT_T_VECTOR;
    size_t size = weft_type_size(element), skip = -(uintptr_t)buf & (size - 1);
    uint8_t *to = (uint8_t *)buf + (skip < cap ? skip : cap);
    size_t most = (cap - (size_t)(to - (uint8_t *)buf)) / size, n = 0;
    const char *at = after_blanks(text);
    if (*at != '[')
        return refuse(type, text, strlen(text), "does not begin with '[', as does a");
    at = after_blanks(at + 1);
    for (bool more = *at != ']'; more; n++) {
        size_t len = strcspn(at, ",]");
        const char *next = at + len;
        more = *next == ',';
        if (!*next)
            return refuse(type, text, strlen(text), "does not end with ']', as does a");
        while (len && wefti_is_space(at[len - 1]))
            len--;
        weft_value_t e = {.type = element};
        weft_status_t st = read_scalar(element, at, len, &e);
        if (st)
            return st;
        if (n >= most)
            return wefti_fail(WEFT_ERR_LIMIT, "a %s of more than %zu elements does not fit in %zu bytes", weft_type_name(type), n,
                              cap);
        memcpy(to + n * size, &e.u64, size);
        at = more ? after_blanks(next + 1) : next;
    }
    if (*after_blanks(at + 1))
        return refuse(type, at + 1, strlen(at + 1), "follows the end of a");
    v->view.data = n ? to : NULL;
    v->view.n = n;
    return WEFT_OK;
}

weft_status_t weft_value_parse(uint32_t type, const char *text, void *buf, size_t cap, weft_value_t *value_out)
{
    weft_value_t v = {.type = type};
    weft_status_t st;
    if (!text || !value_out || (cap && !buf))
        return wefti_fail(WEFT_ERR_INVALID, "a value is read from a text, to a pointer, with cap bytes of memory");
    if (!wefti_type_ok(type))
        return wefti_fail(WEFT_ERR_INVALID, "type %u is none that a value can have", type);
    if ((type & ~(uint32_t)WEFT_T_VECTOR) == WEFT_T_TENSOR)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "a tensor has no text; make one in a program");
    locale_t before = uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); /* a constant of the C library: no allocation */
    if (type == WEFT_T_STRING)
        st = read_string(text, buf, cap, &v);
    else if (type & WEFT_T_VECTOR)
        st = read_vector(type, text, buf, cap, &v);
    else
        st = read_scalar(type, text, strlen(text), &v);
    uselocale(before);
    if (!st)
        *value_out = v;
    return st;
}

/* --- writing ---------------------------------------------------------------------------------------------------------------- */

wefti_text_t wefti_text(char *buf, size_t bytes)
{
    if (bytes && buf)
        buf[0] = 0;
    return (wefti_text_t){bytes ? buf : NULL, bytes ? bytes - 1 : 0, 0};
}

void wefti_text_put(wefti_text_t *t, const char *s, size_t n)
{
    if (t->buf && t->len < t->cap && n) {
        size_t left = t->cap - t->len, fits = n < left ? n : left;
        memcpy(t->buf + t->len, s, fits);
        t->buf[t->len + fits] = 0;
    }
    t->len += n;
}

void wefti_text_putf(wefti_text_t *t, const char *fmt, ...)
{
    bool fits = t->buf && t->len < t->cap;
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(fits ? t->buf + t->len : NULL, fits ? t->cap - t->len + 1 : 0, fmt, args);
    va_end(args);
    t->len += n > 0 ? (size_t)n : 0;
}

/* With as few digits as it needs to be read as the same value, but 1500 and not 1.5e+03 where that is exact. */
static void put_double(wefti_text_t *t, double d, int digits, bool single)
{
    char buf[64], *e;
    int n = 0;
    if (isnan(d)) {
        wefti_text_put(t, "nan", 3);
        return;
    }
    for (int precision = 1; precision <= digits; precision++) {
        n = snprintf(buf, sizeof buf, "%.*g", precision, d);
        if (single ? strtof(buf, NULL) == (float)d : strtod(buf, NULL) == d)
            break;
    }
    e = strchr(buf, 'e');
    if (e && e[1] == '+' && strtol(e + 2, NULL, 10) < (single ? 7 : 15))
        n = snprintf(buf, sizeof buf, "%.0f", d);
    wefti_text_put(t, buf, (size_t)n);
}

static void put_scalar(wefti_text_t *t, uint32_t type, const void *p)
{
    weft_value_t v = {.type = type};
    memcpy(&v.u64, p, weft_type_size(type));
    unsigned unused = 64 - 8 * (unsigned)weft_type_size(type);
    if (type == WEFT_T_BOOL)
        wefti_text_putf(t, "%s", v.u8 ? "true" : "false");
    else if (type == WEFT_T_F32)
        put_double(t, (double)v.f32, 9, true);
    else if (type == WEFT_T_F64)
        put_double(t, v.f64, 17, false);
    else if (type <= WEFT_T_I64)
        wefti_text_putf(t, "%lld", (long long)(v.u64 << unused) >> unused); /* the sign of the type is that of 64 bits */
    else
        wefti_text_putf(t, "%llu", (unsigned long long)v.u64);
}

static void put_tensor(wefti_text_t *t, const weft_tensor_t *tensor)
{
    static const char *const codes[] = {"i", "u", "f", "?", "bf", "c", "bool"};
    wefti_text_putf(t, "tensor %s", tensor->code < sizeof codes / sizeof codes[0] ? codes[tensor->code] : "?");
    if (tensor->code != 6)
        wefti_text_putf(t, "%u", tensor->bits);
    if (tensor->lanes > 1)
        wefti_text_putf(t, "x%u", tensor->lanes);
    wefti_text_put(t, " [", 2);
    for (int32_t i = 0; i < tensor->ndim && tensor->shape; i++)
        wefti_text_putf(t, "%s%lld", i ? ", " : "", (long long)tensor->shape[i]);
    wefti_text_put(t, "]", 1);
    if (tensor->device_type != 1)
        wefti_text_putf(t, " on device %d:%d", tensor->device_type, tensor->device_id);
}

static void put_value(wefti_text_t *t, const weft_value_t *v)
{
    uint32_t element = v->type & ~(uint32_t)WEFT_T_VECTOR;
    bool vector = v->type & WEFT_T_VECTOR;
    if (v->type == WEFT_T_STRING) {
        wefti_text_put(t, v->view.data, v->view.n);
    } else if (!wefti_type_ok(v->type)) {
        wefti_text_put(t, weft_type_name(v->type), strlen(weft_type_name(v->type)));
    } else if (!vector && element != WEFT_T_TENSOR) {
        put_scalar(t, v->type, &v->u64);
    } else {
        wefti_text_put(t, "[", vector);
        for (uint64_t i = 0; i < (element == WEFT_T_TENSOR ? v->tensors.n : v->view.n); i++) {
            wefti_text_put(t, ", ", i ? 2 : 0);
            if (element == WEFT_T_TENSOR)
                put_tensor(t, &v->tensors.at[i]);
            else
                put_scalar(t, element, (const uint8_t *)v->view.data + i * weft_type_size(element));
        }
        wefti_text_put(t, "]", vector);
    }
}

size_t weft_value_format(const weft_value_t *value, char *buf, size_t cap)
{
    wefti_text_t t = wefti_text(buf, buf ? cap : 0);
    locale_t before = uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
    if (value)
        put_value(&t, value);
    uselocale(before);
    return t.len;
}
