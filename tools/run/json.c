/* tools/run/json.c - reading JSON that elements say and people give: checked once as a whole, then looked at where it lies.
 *
 * Results are handed on to other elements as the text they came as, so what is let through here must be JSON to every reader: no
 * NaN, no text that is not UTF-8, no more than DEPTH brackets in each other. Nothing is read past its end, whatever the text.
 * tests/tools/tools_run_hostile.py holds it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "run.h"

#define DEPTH 500u

typedef struct cursor {
    const char *p, *end;
    unsigned depth;
} cursor_t;

static void blanks(cursor_t *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

static bool eat(cursor_t *c, char what)
{
    if (c->p >= c->end || *c->p != what)
        return false;
    c->p++;
    return true;
}

static bool is_hex(char ch)
{
    return (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'f') || (ch >= 'A' && ch <= 'F');
}

static bool digits(cursor_t *c)
{
    const char *from = c->p;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9')
        c->p++;
    return c->p > from;
}

static bool skip_escape(cursor_t *c)
{
    if (c->p >= c->end)
        return false;
    if (*c->p == 'u') {
        c->p++;
        for (int i = 0; i < 4; i++)
            if (c->p >= c->end || !is_hex(*c->p++))
                return false;
        return true;
    }
    return strchr("\"\\/bfnrt", *c->p) && *c->p++;
}

static bool skip_string(cursor_t *c)
{
    if (!eat(c, '"'))
        return false;
    while (c->p < c->end) {
        unsigned char ch = (unsigned char)*c->p;
        char piece[5] = {0};
        size_t left = (size_t)(c->end - c->p), len;
        if (ch == '"') {
            c->p++;
            return true;
        }
        if (ch < 0x20)
            return false;
        if (ch == '\\') {
            c->p++;
            if (!skip_escape(c))
                return false;
            continue;
        }
        memcpy(piece, c->p, left < 4 ? left : 4);
        len = ch < 0x80 ? 1 : tool_utf8_len(piece);
        if (!len || len > left)
            return false;
        c->p += len;
    }
    return false;
}

static bool skip_number(cursor_t *c)
{
    eat(c, '-');
    if (!eat(c, '0') && !digits(c))
        return false;
    if (eat(c, '.') && !digits(c))
        return false;
    if (c->p < c->end && (*c->p == 'e' || *c->p == 'E')) {
        c->p++;
        if (!eat(c, '+'))
            eat(c, '-');
        return digits(c);
    }
    return true;
}

static bool skip_word(cursor_t *c, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(c->end - c->p) < n || memcmp(c->p, word, n) != 0)
        return false;
    c->p += n;
    return true;
}

static bool skip_value(cursor_t *c);

static bool skip_many(cursor_t *c, char close, bool named)
{
    c->p++;
    if (++c->depth > DEPTH)
        return false;
    blanks(c);
    if (!eat(c, close)) {
        do {
            blanks(c);
            if (named) {
                if (!skip_string(c))
                    return false;
                blanks(c);
                if (!eat(c, ':'))
                    return false;
            }
            if (!skip_value(c))
                return false;
            blanks(c);
        } while (eat(c, ','));
        if (!eat(c, close))
            return false;
    }
    c->depth--;
    return true;
}

static bool skip_value(cursor_t *c)
{
    blanks(c);
    if (c->p >= c->end)
        return false;
    switch (*c->p) {
    case '{':
        return skip_many(c, '}', true);
    case '[':
        return skip_many(c, ']', false);
    case '"':
        return skip_string(c);
    case 't':
        return skip_word(c, "true");
    case 'f':
        return skip_word(c, "false");
    case 'n':
        return skip_word(c, "null");
    default:
        return skip_number(c);
    }
}

bool run_json(const char *text, size_t n, run_value_t *value_out)
{
    cursor_t c = {.p = text, .end = text + n};
    const char *from, *to;
    blanks(&c);
    from = c.p;
    if (!skip_value(&c))
        return false;
    to = c.p;
    blanks(&c);
    if (c.p != c.end)
        return false;
    *value_out = (run_value_t){from, (size_t)(to - from)};
    return true;
}

bool run_json_next(run_value_t object, size_t *at, run_value_t *name_out, run_value_t *value_out)
{
    cursor_t c = {0};
    if (!object.p || *object.p != '{')
        return false;
    c.p = object.p + *at;
    c.end = object.p + object.n;
    if (!*at)
        c.p++;
    blanks(&c);
    eat(&c, ',');
    blanks(&c);
    name_out->p = c.p;
    if (!skip_string(&c))
        return false; /* the bracket at the end */
    name_out->n = (size_t)(c.p - name_out->p);
    blanks(&c);
    eat(&c, ':');
    blanks(&c);
    value_out->p = c.p;
    if (!skip_value(&c))
        return false;
    value_out->n = (size_t)(c.p - value_out->p);
    *at = (size_t)(c.p - object.p);
    return true;
}

run_value_t run_json_get(run_value_t object, const char *name)
{
    run_value_t found = {0}, key, value;
    size_t at = 0;
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

static unsigned hex4(const char *p)
{
    unsigned v = 0;
    for (int i = 0; i < 4; i++)
        v = v << 4 | (unsigned)(p[i] <= '9' ? p[i] - '0' : (p[i] | 32) - 'a' + 10);
    return v;
}

static char *put_utf8(char *to, unsigned code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xc0 | code >> 6);
        *to++ = (char)(0x80 | (code & 63));
    } else if (code < 0x10000) {
        *to++ = (char)(0xe0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 63));
        *to++ = (char)(0x80 | (code & 63));
    } else {
        *to++ = (char)(0xf0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 63));
        *to++ = (char)(0x80 | (code >> 6 & 63));
        *to++ = (char)(0x80 | (code & 63));
    }
    return to;
}

/* After "\u": the character, also of a pair; half a pair is U+FFFD. */
static const char *take_unicode(const char *p, const char *end, unsigned *code_out)
{
    unsigned code = hex4(p), low;
    p += 4;
    if (code >= 0xd800 && code < 0xdc00 && end - p >= 6 && p[0] == '\\' && p[1] == 'u') {
        low = hex4(p + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            *code_out = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            return p + 6;
        }
    }
    *code_out = code >= 0xd800 && code < 0xe000 ? 0xfffd : code;
    return p;
}

char *run_json_string(run_value_t v)
{
    static const char from[] = "bfnrt", into[] = "\b\f\n\r\t";
    const char *p, *end;
    char *text, *to;
    if (!v.p || v.n < 2 || *v.p != '"')
        return NULL;
    p = v.p + 1;
    end = v.p + v.n - 1;
    to = text = run_alloc(v.n);
    while (p < end) {
        unsigned code;
        if (*p != '\\') {
            *to++ = *p++;
            continue;
        }
        p++;
        if (*p == 'u') {
            p = take_unicode(p + 1, end, &code);
            if (!code) {
                free(text);
                return NULL;
            }
            to = put_utf8(to, code);
        } else {
            const char *known = strchr(from, *p);
            *to++ = known ? into[known - from] : *p;
            p++;
        }
    }
    *to = '\0';
    return text;
}

bool run_json_count(run_value_t v, uint64_t *out)
{
    char digits_of[24];
    if (!v.p || !v.n || v.n >= sizeof digits_of)
        return false;
    memcpy(digits_of, v.p, v.n);
    digits_of[v.n] = '\0';
    return tool_parse_count(digits_of, 0, UINT64_MAX, out);
}
