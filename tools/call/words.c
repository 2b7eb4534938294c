/* tools/call/words.c - arguments of a function from the words of a command line.
 *
 *     25            the next parameter that has none yet          b=17      the one of that name
 *     @FILE   -     what is in a file, or comes from stdin         @@x       the text @x
 *
 * "b=17" is a name only if the function has a parameter b, so that text may contain a '='. Numbers from files may have blanks
 * around them, and a vector needs no brackets there: the output of seq is one. Text is taken as it is, with the newline at its
 * end. The other words are values of the stream, if there is one.
 *
 * Promise: a word that does not fit gets one sentence with the signature, the parameter and what is wrong, and nothing is
 * called. tests/tools/tools_call.py checks it. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call.h"

#define READ_MAX ((size_t)1 << 30) /* what a server takes by default */

/* --- memory ----------------------------------------------------------------------------------------------------- */

static bool keep(call_args_t *a, void *block)
{
    if (a->n_blocks == a->cap_blocks) {
        size_t cap = a->cap_blocks ? 2 * a->cap_blocks : 16;
        void **more = reallocarray(a->blocks, cap, sizeof *more);
        if (!more) {
            free(block);
            tool_error("out of memory");
            return false;
        }
        a->blocks = more;
        a->cap_blocks = cap;
    }
    a->blocks[a->n_blocks++] = block;
    return true;
}

void *call_args_alloc(call_args_t *a, size_t n)
{
    void *block = malloc(n ? n : 1);
    if (!block) {
        tool_error("out of memory: %zu bytes for an argument", n);
        return NULL;
    }
    return keep(a, block) ? block : NULL;
}

void call_args_free(call_args_t *a)
{
    for (size_t i = 0; i < a->n_blocks; i++)
        free(a->blocks[i]);
    free(a->blocks);
    free(a->items);
    *a = (call_args_t){0};
}

/* --- files and pipes --------------------------------------------------------------------------------------------- */

static char *read_fd(int fd, const char *what, size_t *n_out)
{
    size_t cap = 65536, n = 0;
    char *text = malloc(cap);
    while (text) {
        ssize_t got = read(fd, text + n, cap - n - 1);
        if (got < 0 && errno == EINTR && !tool_signal())
            continue;
        if (got < 0) {
            if (!tool_signal())
                tool_error("%s cannot be read: %s", what, strerror(errno));
            goto err_text;
        }
        if (!got) {
            text[n] = '\0';
            *n_out = n;
            return text;
        }
        n += (size_t)got;
        if (n > READ_MAX) {
            tool_error("%s is more than %zu bytes, and no argument has more", what, READ_MAX);
            goto err_text;
        }
        if (cap - n < 2) {
            char *more = realloc(text, cap *= 2);
            if (!more)
                break;
            text = more;
        }
    }
    tool_error("out of memory: %s does not fit", what);
err_text:
    free(text);
    return NULL;
}

char *call_read_all(const char *path, size_t *n_out)
{
    char *text;
    int fd;
    if (!strcmp(path, "-"))
        return read_fd(STDIN_FILENO, "standard input", n_out);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        tool_error("%s cannot be opened: %s", path, strerror(errno));
        return NULL;
    }
    text = read_fd(fd, path, n_out);
    close(fd);
    return text;
}

/* --- one value --------------------------------------------------------------------------------------------------- */

static char *trim(char *text, size_t *n)
{
    while (*n && isspace((unsigned char)text[*n - 1]))
        text[--*n] = '\0';
    while (*n && isspace((unsigned char)*text))
        text++, --*n;
    return text;
}

/* Numbers between blanks and commas as a vector is written; NULL after a sentence. */
static char *bracketed(call_args_t *a, const char *text, size_t n)
{
    char *out = call_args_alloc(a, 2 * n + 3), *to = out;
    if (!out)
        return NULL;
    *to++ = '[';
    while (*text) {
        size_t len = strcspn(text, " \t\r\n\f\v,");
        memcpy(to, text, len);
        to += len;
        text += len;
        len = strspn(text, " \t\r\n\f\v,");
        if (len && text[len])
            *to++ = ',';
        text += len;
    }
    *to++ = ']';
    *to = '\0';
    return out;
}

static bool wrong(char *why, size_t cap, const char *words)
{
    snprintf(why, cap, "%s", words);
    return false;
}

static bool read_tensors(call_args_t *a, uint32_t type, char *text, size_t n, weft_value_t *out, char *why, size_t why_cap)
{
    weft_tensor_t *t;
    if (type & WEFT_T_VECTOR)
        return wrong(why, why_cap, "a vector of tensors cannot be written here; call it from a program");
    t = call_args_alloc(a, sizeof *t);
    if (!t || !call_tensor_read(a, text, n, t, why, why_cap))
        return false;
    *out = weft_tensor(t);
    return true;
}

bool call_value_read(call_args_t *a, uint32_t type, char *text, size_t n, weft_value_t *out, char *why, size_t why_cap)
{
    size_t cap = 0;
    void *buf = NULL;
    *why = '\0';
    if ((type & ~(uint32_t)WEFT_T_VECTOR) == WEFT_T_TENSOR)
        return read_tensors(a, type, text, n, out, why, why_cap);
    if (type == WEFT_T_STRING) { /* it may have zeros; the library checks that it is UTF-8 */
        *out = weft_text(text, n);
        return true;
    }
    if (memchr(text, 0, n))
        return wrong(why, why_cap, "there is a zero byte in it");
    text = trim(text, &n);
    if (type & WEFT_T_VECTOR) {
        if (*text != '[' && !(text = bracketed(a, text, n)))
            return false;
        n = strlen(text);
        cap = (n / 2 + 2) * weft_type_size(type & ~(uint32_t)WEFT_T_VECTOR);
        buf = call_args_alloc(a, cap);
        if (!buf)
            return false;
    }
    if (weft_value_parse(type, text, buf, cap, out))
        return wrong(why, why_cap, weft_last_error());
    return true;
}

/* --- all of them --------------------------------------------------------------------------------------------------- */

typedef struct reading {
    call_args_t *a;
    const weft_sig_t *sig;
    const weft_param_t *params;
    size_t n_params; /* without the stream */
    bool have[WEFT_SIG_PARAMS];
    bool stdin_taken;
} reading_t;

static int bad_argument(const reading_t *r, size_t index, const char *word, const char *why)
{
    char plain[512];
    if (tool_signal())
        return 128 + tool_signal();
    if (!*why)
        return TOOL_FAILED; /* a sentence was written */
    /* "c=3" where there is no c: a name was meant */
    size_t name = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    if (name && word[name] == '=' && !isdigit((unsigned char)*word) && r->params[index].type != WEFT_T_STRING)
        tool_error("%s has no parameter \"%.*s\"", weft_sig_text(r->sig), (int)name, word);
    else
        tool_error("argument %zu of %s, \"%s\": %s", index + 1, weft_sig_text(r->sig), r->params[index].name,
                   tool_plain(why, plain, sizeof plain));
    return TOOL_USAGE;
}

static int take_word(reading_t *r, size_t index, const char *word, const char *value)
{
    char why[512] = "", *text;
    size_t n;
    if (!strcmp(value, "-") || (value[0] == '@' && value[1] != '@')) {
        if (!strcmp(value, "-") && r->stdin_taken) {
            tool_error("standard input is one argument, and \"-\" is given twice");
            return TOOL_USAGE;
        }
        r->stdin_taken = r->stdin_taken || !strcmp(value, "-");
        text = call_read_all(value[0] == '@' ? value + 1 : value, &n);
        if (!text)
            return tool_signal() ? 128 + tool_signal() : value[0] == '@' ? TOOL_USAGE : TOOL_FAILED;
        if (!keep(r->a, text))
            return TOOL_FAILED;
    } else {
        value += value[0] == '@';
        n = strlen(value);
        text = call_args_alloc(r->a, n + 1);
        if (!text)
            return TOOL_FAILED;
        memcpy(text, value, n + 1);
    }
    r->have[index] = true;
    if (call_value_read(r->a, r->params[index].type, text, n, &r->a->values[index], why, sizeof why))
        return TOOL_OK;
    return bad_argument(r, index, word, why);
}

/* The parameter a word names, and *value_out what is behind the '='; n_params if it names none. */
static size_t named(const reading_t *r, const char *word, const char **value_out)
{
    size_t i = 0;
    for (; i < r->n_params; i++) {
        size_t len = strlen(r->params[i].name);
        if (len && !strncmp(word, r->params[i].name, len) && word[len] == '=') {
            *value_out = word + len + 1;
            break;
        }
    }
    return i;
}

static int too_many(const reading_t *r, const char *word, size_t n_words)
{
    char plain[128];
    tool_error("%s takes %zu argument%s, and %zu are given; \"%s\" is one too many", weft_sig_text(r->sig), r->n_params,
               r->n_params == 1 ? "" : "s", n_words, tool_plain(word, plain, sizeof plain));
    return TOOL_USAGE;
}

static int missing(const reading_t *r)
{
    for (size_t i = 0; i < r->n_params; i++) {
        if (!r->have[i]) {
            tool_error("argument %zu of %s is missing: \"%s\", %s", i + 1, weft_sig_text(r->sig), r->params[i].name,
                       weft_type_name(r->params[i].type));
            return TOOL_USAGE;
        }
    }
    return TOOL_OK;
}

int call_args_read(call_args_t *a, const call_opts_t *opts, const weft_sig_t *sig)
{
    reading_t r = {.a = a, .sig = sig};
    *a = (call_args_t){0};
    r.params = weft_sig_params(sig, &r.n_params);
    if (r.n_params && r.params[r.n_params - 1].stream)
        a->stream = r.params + --r.n_params;
    a->n = r.n_params;
    a->items = calloc(opts->n_words + 1, sizeof *a->items);
    if (!a->items) {
        tool_error("out of memory");
        return TOOL_FAILED;
    }
    for (size_t w = 0, next = 0; w < opts->n_words; w++) {
        const char *word = opts->words[w], *value = word;
        size_t index = named(&r, word, &value);
        int rc;
        if (index < r.n_params && r.have[index]) {
            tool_error("\"%s\" is given twice to %s", r.params[index].name, weft_sig_text(sig));
            return TOOL_USAGE;
        }
        if (index == r.n_params) {
            while (next < r.n_params && r.have[next])
                next++;
            index = next;
        }
        if (index == r.n_params && !a->stream)
            return too_many(&r, word, opts->n_words);
        if (index == r.n_params) {
            a->items[a->n_items++] = word;
            continue;
        }
        rc = take_word(&r, index, word, value);
        if (rc)
            return rc;
    }
    if (a->n_items == 1 && !strcmp(a->items[0], "-"))
        a->n_items = 0;
    if (a->stream && !a->n_items && r.stdin_taken) {
        tool_error("standard input is an argument, and the stream \"%s\" is read from there too; give one of them as @FILE",
                   a->stream->name);
        return TOOL_USAGE;
    }
    return missing(&r);
}
