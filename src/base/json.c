/* base/json.c - JSON as RFC 8259 has it, read in place.
 *
 * Strict: strings are UTF-8 without bare control characters, \u escapes that are half a surrogate pair are refused, numbers
 * have JSON's one form, arrays and objects nest at most WEFTI_JSON_DEPTH deep. Skipping recurses to that depth.
 *
 * Promise: any bytes are read or refused, with no byte outside of them touched. tests/unit/base_json.c,
 * tests/fuzz/registry_etcd.c. */
#include "base/json.h"

#include <string.h>

#include "base/ascii.h"
#include "base/utf8.h"

static void blanks(wefti_json_t *j)
{
    while (j->at < j->end && (*j->at == ' ' || *j->at == '\t' || *j->at == '\n' || *j->at == '\r'))
        j->at++;
}

static bool refuse(wefti_json_t *j)
{
    j->bad = true;
    return false;
}

/* The next character that is no blank, which must be this. */
static bool take(wefti_json_t *j, char c)
{
    if (j->bad)
        return false;
    blanks(j);
    if (j->at == j->end || *j->at != c)
        return refuse(j);
    j->at++;
    return true;
}

static bool see(wefti_json_t *j, char c)
{
    if (j->bad)
        return false;
    blanks(j);
    return j->at < j->end && *j->at == c;
}

wefti_json_t wefti_json(char *text, size_t n)
{
    static char nothing[1];
    if (!text)
        text = nothing; /* NULL with n 0 is allowed */
    return (wefti_json_t){.at = text, .end = text + n, .deepest = WEFTI_JSON_DEPTH};
}

/* --- objects and arrays -------------------------------------------------------------------------------------------------- */

static void into(wefti_json_t *j, char open)
{
    if (!take(j, open))
        return;
    j->first = true;
    if (++j->depth > j->deepest)
        refuse(j);
}

/* False: it ended here, or is bad. */
static bool another(wefti_json_t *j, char close)
{
    bool first = j->first;
    if (!j->depth)
        return refuse(j); /* in nothing */
    j->first = false;
    if (see(j, close)) {
        j->at++;
        j->depth--;
        return false;
    }
    return first ? !j->bad : take(j, ',');
}

void wefti_json_object(wefti_json_t *j)
{
    into(j, '{');
}

bool wefti_json_member(wefti_json_t *j, wefti_json_text_t *key_out)
{
    if (j->bad || !another(j, '}'))
        return false;
    *key_out = wefti_json_string(j);
    return take(j, ':');
}

bool wefti_json_member_raw(wefti_json_t *j, wefti_json_text_t *key_out)
{
    if (j->bad || !another(j, '}'))
        return false;
    if (!see(j, '"'))
        return refuse(j);
    *key_out = wefti_json_raw(j);
    return take(j, ':');
}

void wefti_json_array(wefti_json_t *j)
{
    into(j, '[');
}

bool wefti_json_item(wefti_json_t *j)
{
    return !j->bad && another(j, ']');
}

char wefti_json_next(wefti_json_t *j)
{
    if (j->bad)
        return 0;
    blanks(j);
    char c = j->at < j->end ? *j->at : 0;
    if (c == '-' || wefti_is_digit(c))
        return '0';
    return c == '{' || c == '[' || c == '"' || c == 't' || c == 'f' || c == 'n' ? c : 0;
}

/* --- strings ------------------------------------------------------------------------------------------------------------- */

static bool hex4(wefti_json_t *j, uint32_t *out)
{
    uint32_t v = 0;
    if (j->end - j->at < 4)
        return refuse(j);
    for (int i = 0; i < 4; i++) {
        char c = wefti_lower(*j->at++);
        if (!wefti_is_digit(c) && !(c >= 'a' && c <= 'f'))
            return refuse(j);
        v = v << 4 | (uint32_t)(wefti_is_digit(c) ? c - '0' : c - 'a' + 10);
    }
    *out = v;
    return true;
}

/* After "\u": the character. */
static uint32_t unicode(wefti_json_t *j)
{
    uint32_t c, low;
    if (!hex4(j, &c) || c < 0xd800 || c >= 0xe000)
        return j->bad ? 0 : c;
    if (c < 0xdc00 && j->end - j->at >= 2 && j->at[0] == '\\' && j->at[1] == 'u') {
        j->at += 2;
        if (!hex4(j, &low))
            return 0;
        if (low >= 0xdc00 && low < 0xe000)
            return 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        j->at -= 6; /* another character */
    }
    if (!j->halves)
        refuse(j);
    return 0xfffd;
}

/* After "\": the character. */
static uint32_t escape(wefti_json_t *j)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->at < j->end ? *j->at++ : '\0';
    const char *known = c ? strchr(from, c) : NULL;
    if (c == 'u')
        return unicode(j);
    if (!known)
        refuse(j);
    return known ? (uint32_t)to[known - from] : 0;
}

/* Never longer than the escape. */
static char *put_utf8(char *put, uint32_t c)
{
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    *put++ = (char)(lead[more] | c >> (6 * more));
    for (; more > 0; more--)
        *put++ = (char)(0x80 | (c >> (6 * (more - 1)) & 0x3f));
    return put;
}

/* After the first quote, to behind the last one. Written to `put` without escapes, unless that is NULL; returns its end. */
static char *characters(wefti_json_t *j, char *put)
{
    while (!j->bad && j->at < j->end && *j->at != '"') {
        unsigned char c = (unsigned char)*j->at;
        uint32_t point;
        size_t n;
        if (c == '\\') {
            j->at++;
            point = escape(j);
            if (put && !j->bad)
                put = put_utf8(put, point);
            continue;
        }
        n = c < 0x20 ? 0 : c < 0x80 ? 1 : wefti_utf8_char((const uint8_t *)j->at, (size_t)(j->end - j->at), &point);
        if (!n)
            refuse(j);
        if (put) {
            memmove(put, j->at, n);
            put += n;
        }
        j->at += n;
    }
    if (j->bad || j->at == j->end)
        refuse(j);
    else
        j->at++;
    return put;
}

wefti_json_text_t wefti_json_string(wefti_json_t *j)
{
    static char nothing[1];
    char *start = take(j, '"') ? j->at : nothing, *end;
    if (j->bad)
        return (wefti_json_text_t){nothing, 0};
    end = characters(j, start);
    if (j->bad)
        return (wefti_json_text_t){nothing, 0};
    *end = 0; /* where the quote was, or before it */
    return (wefti_json_text_t){start, (size_t)(end - start)};
}

bool wefti_json_is(const wefti_json_text_t *t, const char *word)
{
    return t->n == strlen(word) && !memcmp(t->p, word, t->n);
}

/* --- numbers and words --------------------------------------------------------------------------------------------------- */

/* Past the digits at *p. False: there is none. */
static bool digits(const wefti_json_t *j, char **p)
{
    char *from = *p;
    while (*p < j->end && wefti_is_digit(**p))
        (*p)++;
    return *p > from;
}

/* A number as JSON has it; is it a whole one? */
static bool number(wefti_json_t *j, bool *whole_out)
{
    char *p = j->at, *end = j->end;
    bool whole = true;
    if (p < end && *p == '-')
        p++;
    char *first = p;
    if (!digits(j, &p) || (*first == '0' && p > first + 1))
        return refuse(j);
    if (p < end && *p == '.') {
        whole = false;
        p++;
        if (!digits(j, &p))
            return refuse(j);
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        whole = false;
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            p++;
        if (!digits(j, &p))
            return refuse(j);
    }
    j->at = p;
    *whole_out = whole;
    return true;
}

int64_t wefti_json_i64(wefti_json_t *j)
{
    bool whole, negative;
    uint64_t v = 0, most = (uint64_t)INT64_MAX;
    if (wefti_json_next(j) == '"') {
        wefti_json_text_t t = wefti_json_string(j);
        wefti_json_t in = wefti_json(t.p, t.n);
        int64_t value = wefti_json_next(&in) == '0' ? wefti_json_i64(&in) : 0;
        if (!t.n || in.at != in.end || in.bad || wefti_is_space(*t.p))
            refuse(j);
        return j->bad ? 0 : value;
    }
    if (wefti_json_next(j) != '0') {
        refuse(j);
        return 0;
    }
    const char *p = j->at;
    if (!number(j, &whole) || !whole) {
        refuse(j);
        return 0;
    }
    negative = *p == '-';
    for (p += negative; p < j->at; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        if (v > (most + negative - digit) / 10) {
            refuse(j);
            return 0;
        }
        v = 10 * v + digit;
    }
    return negative ? (int64_t)(0 - v) : (int64_t)v;
}

static bool word(wefti_json_t *j, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(j->end - j->at) < n || memcmp(j->at, text, n) != 0)
        return refuse(j);
    j->at += n;
    return true;
}

bool wefti_json_bool(wefti_json_t *j)
{
    switch (wefti_json_next(j)) {
    case 't':
        return word(j, "true");
    case 'f':
        word(j, "false");
        return false;
    default:
        return refuse(j);
    }
}

void wefti_json_skip(wefti_json_t *j)
{
    wefti_json_text_t key;
    bool whole;
    switch (wefti_json_next(j)) {
    case '{':
        for (wefti_json_object(j); wefti_json_member_raw(j, &key);)
            wefti_json_skip(j);
        break;
    case '[':
        for (wefti_json_array(j); wefti_json_item(j);)
            wefti_json_skip(j);
        break;
    case '"':
        take(j, '"');
        characters(j, NULL);
        break;
    case '0':
        number(j, &whole);
        break;
    case 'n':
        word(j, "null");
        break;
    default:
        wefti_json_bool(j);
    }
}

wefti_json_text_t wefti_json_raw(wefti_json_t *j)
{
    blanks(j);
    char *from = j->at;
    wefti_json_skip(j);
    return (wefti_json_text_t){from, j->bad ? 0 : (size_t)(j->at - from)};
}

bool wefti_json_end(wefti_json_t *j)
{
    blanks(j);
    return !j->bad && !j->depth && j->at == j->end;
}
