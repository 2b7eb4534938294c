/* rpc/sig.c - signatures: read from text, and written as text in one way.
 *
 *     signature  name '(' [param {',' param}] ')' '->' results {mark}
 *     param      name ':' ['stream'] type
 *     results    'void' | ['stream'] type | '(' result {',' result} ')'
 *     result     [name ':'] ['stream'] type
 *     type       word | '[' word ']'
 *     mark       'idempotent' | 'oneway'
 *
 * Blanks may stand between all of these. A signature is one allocation and never changes: any thread may read it.
 *
 * Promise: text that is no signature is refused with the place and what was expected there, whatever its bytes. What
 * weft_sig_text() gives is read as the same signature. The hash is FNV-1a of the text in wire.md, and never changes.
 * tests/unit/rpc_sig.c, tests/fuzz/rpc_sig.c. */
#include <string.h>

#include "base/alloc.h"
#include "base/ascii.h"
#include "base/log.h"
#include "rpc/codec.h"
#include "rpc/type.h"

#define NAME_MAX_LEN 63

/* A part of the text. */
typedef struct word {
    const char *at;
    size_t len;
} word_t;

typedef struct item {
    word_t name;
    uint32_t type;
    bool stream;
} item_t;

typedef struct list {
    item_t items[WEFT_SIG_PARAMS];
    size_t n;
} list_t;

typedef struct parser {
    const char *text, *at;
    word_t name;
    list_t params, results;
    bool idempotent, oneway;
} parser_t;

struct weft_sig {
    weft_param_t params[WEFT_SIG_PARAMS], results[WEFT_SIG_PARAMS];
    size_t n_params, n_results;
    bool idempotent, oneway;
    uint64_t hash;
    wefti_codec_t codecs[WEFTI_SIG_PARTS];
    char *text, *key, *name; /* key: what has to be the same for two to agree */
    char chars[];
};

/* --- reading ---------------------------------------------------------------------------------------------------------------- */

static bool is_word(char c)
{
    return wefti_is_alnum(c) || c == '_';
}

static void skip_blanks(parser_t *p)
{
    while (wefti_is_space(*p->at))
        p->at++;
}

/* Fail at p->at. expected: the end of the sentence. */
static weft_status_t refuse(const parser_t *p, const char *expected)
{
    int column = (int)(p->at - p->text) + 1, shown = 0;
    while (shown < 24 && (unsigned char)p->at[shown] >= 0x20 && (unsigned char)p->at[shown] < 0x7f)
        shown++;
    if (!*p->at)
        return wefti_fail(WEFT_ERR_INVALID, "the signature ends too early, at column %d: %s", column, expected);
    if (!shown)
        return wefti_fail(WEFT_ERR_INVALID, "the signature has byte 0x%02x at column %d: %s", (unsigned char)*p->at, column,
                          expected);
    return wefti_fail(WEFT_ERR_INVALID, "the signature goes wrong at column %d, at \"%.*s\": %s", column, shown, p->at, expected);
}

/* Letters, digits and '_'; dotted: also '.' between them. Leaves p->at behind it. */
static weft_status_t read_name(parser_t *p, bool dotted, const char *expected, word_t *out)
{
    skip_blanks(p);
    const char *start = p->at, *at = start;
    for (;;) {
        if (!is_word(*at) || wefti_is_digit(*at)) {
            p->at = at;
            return refuse(p, at == start ? expected : "after '.' a name goes on with a letter or '_'");
        }
        while (is_word(*at))
            at++;
        if (!dotted || *at != '.')
            break;
        at++;
    }
    if (at - start > NAME_MAX_LEN)
        return refuse(p, "a name has at most 63 characters");
    p->at = at;
    *out = (word_t){start, (size_t)(at - start)};
    return WEFT_OK;
}

static bool take(parser_t *p, const char *word)
{
    skip_blanks(p);
    size_t n = strlen(word);
    /* whole words only: "streams" is not "stream" */
    if (strncmp(p->at, word, n) != 0 || (is_word(word[0]) && is_word(p->at[n])))
        return false;
    p->at += n;
    return true;
}

static weft_status_t read_type(parser_t *p, item_t *item)
{
    static const char expected[] =
        "expected a type: bool, i8, i16, i32, i64, u8, u16, u32, u64, f32, f64, string, tensor, or a vector such as [i32]";
    item->stream = take(p, "stream");
    bool vector = take(p, "[");
    skip_blanks(p);
    const char *start = p->at, *end = start;
    while (is_word(*end))
        end++;
    if (vector && *start == '[')
        return refuse(p, "a vector's elements are not vectors; pass a tensor");
    if (!wefti_type_find(start, (size_t)(end - start), &item->type))
        return refuse(p, expected);
    if (item->type == WEFT_T_VOID)
        return refuse(p, "void stands alone, as the whole result: \"-> void\"");
    if (vector && item->type == WEFT_T_STRING)
        return refuse(p, "there is no vector of strings; pass a stream of them, or one string with separators");
    p->at = end;
    if (!vector)
        return WEFT_OK;
    item->type |= WEFT_T_VECTOR;
    return take(p, "]") ? WEFT_OK : refuse(p, "expected ']' after the type of a vector's elements");
}

/* Is there a name and a ':' here, and not a type? */
static bool named(const parser_t *p)
{
    const char *at = p->at;
    while (wefti_is_space(*at))
        at++;
    while (is_word(*at))
        at++;
    while (wefti_is_space(*at))
        at++;
    return *at == ':';
}

/* One more of a list whose '(' is read. */
static weft_status_t read_item(parser_t *p, list_t *list, bool must_have_name)
{
    static const item_t empty = {{"", 0}, 0, false};
    skip_blanks(p);
    if (list->n == WEFT_SIG_PARAMS)
        return refuse(p, "a function has at most 32 parameters, and as many results");
    item_t *item = &list->items[list->n];
    *item = empty;
    if (must_have_name || named(p)) {
        const char *start = p->at;
        weft_status_t st =
            read_name(p, false, must_have_name ? "expected a parameter such as \"a: i32\"" : "expected a name", &item->name);
        if (st)
            return st;
        for (size_t i = 0; i < list->n; i++) {
            const word_t *other = &list->items[i].name;
            if (other->len == item->name.len && !memcmp(other->at, item->name.at, other->len)) {
                p->at = start;
                return refuse(p, "that name is there already");
            }
        }
        if (!take(p, ":"))
            return refuse(p, "expected ':' and a type after a parameter's name");
    }
    list->n++;
    return read_type(p, item);
}

static weft_status_t read_params(parser_t *p)
{
    if (!take(p, "("))
        return refuse(p, "expected '(' after the function's name");
    if (take(p, ")"))
        return WEFT_OK;
    for (;;) {
        weft_status_t st = read_item(p, &p->params, true);
        if (st)
            return st;
        if (take(p, ")"))
            return WEFT_OK;
        if (p->params.items[p->params.n - 1].stream)
            return refuse(p, "a stream is the last parameter: expected ')'");
        if (!take(p, ","))
            return refuse(p, "expected ',' or ')' after a parameter");
    }
}

static weft_status_t read_results(parser_t *p)
{
    if (!take(p, "->"))
        return refuse(p, "expected \"->\" and what the function gives, or \"-> void\"");
    if (take(p, "void"))
        return WEFT_OK;
    if (!take(p, "(")) {
        p->results.items[0].name = (word_t){"", 0};
        p->results.n = 1;
        return read_type(p, &p->results.items[0]);
    }
    for (;;) {
        const char *start = p->at;
        weft_status_t st = read_item(p, &p->results, false);
        if (st)
            return st;
        bool end = take(p, ")");
        if (p->results.items[p->results.n - 1].stream && (!end || p->results.n > 1)) {
            p->at = start;
            return refuse(p, "a stream is the only result");
        }
        if (end)
            return WEFT_OK;
        if (!take(p, ","))
            return refuse(p, "expected ',' or ')' after a result");
    }
}

static weft_status_t read_marks(parser_t *p)
{
    for (skip_blanks(p); *p->at; skip_blanks(p)) {
        const char *start = p->at;
        bool *mark = take(p, "idempotent") ? &p->idempotent : take(p, "oneway") ? &p->oneway : NULL;
        const char *wrong = !mark                                ? "expected \"idempotent\", \"oneway\" or the end"
                            : *mark                              ? "that mark is there already"
                            : mark == &p->oneway && p->results.n ? "nobody waits for a oneway function: its result is void"
                                                                 : NULL;
        if (wrong) {
            p->at = start;
            return refuse(p, wrong);
        }
        *mark = true;
    }
    return WEFT_OK;
}

/* --- writing ---------------------------------------------------------------------------------------------------------------- */

static void put_text(wefti_text_t *t, const char *s)
{
    wefti_text_put(t, s, strlen(s));
}

static void put_items(wefti_text_t *t, const list_t *list, bool names)
{
    put_text(t, "(");
    for (size_t i = 0; i < list->n; i++) {
        const item_t *item = &list->items[i];
        if (i)
            put_text(t, names ? ", " : ",");
        if (names && item->name.len) {
            wefti_text_put(t, item->name.at, item->name.len);
            put_text(t, ": ");
        }
        put_text(t, item->stream ? "stream " : "");
        put_text(t, weft_type_name(item->type));
    }
    put_text(t, ")");
}

/* With names: for people. Without: what two sides compare, and the text of the hash (docs/design/wire.md). With a zero at the
 * end. */
static size_t write_sig(const parser_t *p, bool names, char *buf)
{
    wefti_text_t t = wefti_text(buf, buf ? SIZE_MAX : 0);
    const item_t *only = p->results.n == 1 ? &p->results.items[0] : NULL;
    wefti_text_put(&t, p->name.at, p->name.len);
    put_items(&t, &p->params, names);
    put_text(&t, names ? " -> " : "->");
    if (!p->results.n) {
        put_text(&t, "void");
    } else if (names && only && !only->name.len) {
        put_text(&t, only->stream ? "stream " : "");
        put_text(&t, weft_type_name(only->type));
    } else {
        put_items(&t, &p->results, names);
    }
    put_text(&t, p->idempotent ? " idempotent" : "");
    put_text(&t, p->oneway ? " oneway" : "");
    return t.len + 1;
}

/* --- making ----------------------------------------------------------------------------------------------------------------- */

static char *keep(char **chars, const word_t *word)
{
    char *at = *chars;
    memcpy(at, word->at, word->len);
    at[word->len] = 0;
    *chars += word->len + 1;
    return at;
}

static size_t fill(weft_param_t *out, const list_t *list, char **chars, wefti_codec_t *plain, wefti_codec_t *item)
{
    uint32_t types[WEFT_SIG_PARAMS];
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        const item_t *from = &list->items[i];
        out[i] = (weft_param_t){keep(chars, &from->name), from->type, from->stream};
        if (from->stream)
            wefti_codec_init(item, &from->type, 1);
        else
            types[n++] = from->type;
    }
    wefti_codec_init(plain, types, n);
    return list->n;
}

static uint64_t fnv1a(const char *s)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
    return h;
}

static weft_status_t make(const parser_t *p, weft_sig_t **sig_out)
{
    size_t text = write_sig(p, true, NULL), key = write_sig(p, false, NULL);
    /* text that was given without blanks gets longer */
    if (text - 1 > WEFT_SIG_TEXT)
        return wefti_fail(WEFT_ERR_INVALID, "the signature has %zu bytes, and %d are possible: use shorter names", text - 1,
                          WEFT_SIG_TEXT);
    /* names with a zero behind each take less than the text: there, punctuation and a type follow every name */
    weft_sig_t *sig = wefti_calloc(1, sizeof *sig + text + key + text);
    if (!sig)
        return WEFT_ERR_NOMEM;
    char *chars = sig->chars;
    sig->text = chars;
    chars += write_sig(p, true, chars);
    sig->key = chars;
    chars += write_sig(p, false, chars);
    sig->name = keep(&chars, &p->name);
    sig->n_params = fill(sig->params, &p->params, &chars, &sig->codecs[WEFTI_SIG_ARGS], &sig->codecs[WEFTI_SIG_ARG_ITEM]);
    sig->n_results =
        fill(sig->results, &p->results, &chars, &sig->codecs[WEFTI_SIG_RESULTS], &sig->codecs[WEFTI_SIG_RESULT_ITEM]);
    sig->idempotent = p->idempotent;
    sig->oneway = p->oneway;
    sig->hash = fnv1a(sig->key);
    *sig_out = sig;
    return WEFT_OK;
}

weft_status_t weft_sig_parse(const char *text, weft_sig_t **sig_out)
{
    if (!text || !sig_out)
        return wefti_fail(WEFT_ERR_INVALID, "a signature is read from a text, to a pointer");
    if (strnlen(text, WEFT_SIG_TEXT + 1) > WEFT_SIG_TEXT)
        return wefti_fail(WEFT_ERR_INVALID, "the signature is longer than %d bytes", WEFT_SIG_TEXT);
    parser_t p = {.text = text, .at = text};
    weft_status_t st = read_name(&p, true, "expected a function's name, such as \"add\" or \"calc.add\"", &p.name);
    if (!st)
        st = read_params(&p);
    if (!st)
        st = read_results(&p);
    if (!st)
        st = read_marks(&p);
    return st ? st : make(&p, sig_out);
}

void weft_sig_free(weft_sig_t *sig)
{
    wefti_free(sig);
}

/* --- asking ----------------------------------------------------------------------------------------------------------------- */

const char *weft_sig_text(const weft_sig_t *sig)
{
    return sig ? sig->text : "";
}

const char *weft_sig_name(const weft_sig_t *sig)
{
    return sig ? sig->name : "";
}

const weft_param_t *weft_sig_params(const weft_sig_t *sig, size_t *n_out)
{
    if (n_out)
        *n_out = sig ? sig->n_params : 0;
    return sig ? sig->params : NULL;
}

const weft_param_t *weft_sig_results(const weft_sig_t *sig, size_t *n_out)
{
    if (n_out)
        *n_out = sig ? sig->n_results : 0;
    return sig ? sig->results : NULL;
}

bool weft_sig_idempotent(const weft_sig_t *sig)
{
    return sig && sig->idempotent;
}

bool weft_sig_oneway(const weft_sig_t *sig)
{
    return sig && sig->oneway;
}

uint64_t weft_sig_hash(const weft_sig_t *sig)
{
    return sig ? sig->hash : 0;
}

const wefti_codec_t *wefti_sig_codec(const weft_sig_t *sig, wefti_sig_part_t part)
{
    return &sig->codecs[part];
}
