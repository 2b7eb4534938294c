/* tools/common.c - sentences, numbers, words and terminals for the commands.
 *
 * No state but tool_name. Parsers take the whole string or nothing, and leave their output alone when they fail.
 * tests/tools/tools_options.py holds the parsers and the sentences. */
#include "common.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

const char *tool_name = "weft";

void tool_error(const char *fmt, ...)
{
    va_list ap;
    fflush(stdout);
    fprintf(stderr, "%s: ", tool_name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

void tool_error_status(weft_status_t st, const char *fmt, ...)
{
    /* Read before anything else may call the library. */
    const char *detail = weft_last_error();
    va_list ap;
    fflush(stdout);
    fprintf(stderr, "%s: ", tool_name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, ": %s%s%s%s\n", weft_status_text(st), *detail ? " (" : "", detail, *detail ? ")" : "");
}

const char *tool_advice(weft_status_t st)
{
    switch (st) {
    case WEFT_ERR_AUTH:
        return "; give both sides the same --key-file";
    case WEFT_ERR_VERSION:
        return "; use the same version of weft on both sides";
    case WEFT_ERR_UNREACHABLE:
        return "; check the address, and that --tls allows both sides a common transport";
    case WEFT_ERR_TIMEOUT:
    case WEFT_ERR_PENDING:
        return "; a longer --timeout waits longer";
    default:
        return "";
    }
}

/* --- numbers --------------------------------------------------------------------------------------------- */

bool tool_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    char *end;
    unsigned long long v;
    if (!isdigit((unsigned char)*text))
        return false; /* strtoull would take a sign or blanks */
    errno = 0;
    v = strtoull(text, &end, 10);
    if (errno || *end || v < min || v > max)
        return false;
    *out = v;
    return true;
}

bool tool_parse_size(const char *text, uint64_t *out)
{
    static const char units[] = "kmgt";
    char *end;
    unsigned shift = 0;
    unsigned long long v;
    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    v = strtoull(text, &end, 10);
    if (errno)
        return false;
    if (*end) {
        const char *unit = strchr(units, tolower((unsigned char)*end));
        if (!unit)
            return false;
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (!strcasecmp(end, "ib") || !strcasecmp(end, "b"))
            end = strchr(end, '\0');
    }
    if (*end || (v << shift) >> shift != v)
        return false;
    *out = (uint64_t)v << shift;
    return true;
}

bool tool_parse_time(const char *text, uint64_t *ns_out)
{
    static const struct {
        const char *name;
        double ns;
    } units[] = {{"", 1e9}, {"s", 1e9}, {"ms", 1e6}, {"us", 1e3}, {"ns", 1}, {"m", 60e9}, {"h", 3600e9}};
    char *end;
    double v;
    if (!isdigit((unsigned char)*text) && *text != '.')
        return false;
    v = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (!strcmp(end, units[i].name)) {
            v *= units[i].ns;
            if (!(v >= 0 && v < 1e18))
                return false;
            *ns_out = (uint64_t)(v + 0.5);
            return true;
        }
    }
    return false;
}

const char *tool_size_text(uint64_t size, char *buf, size_t cap)
{
    static const char units[] = " KMGT";
    unsigned u = 0;
    while (u < 4 && size && !(size & 1023)) {
        size >>= 10;
        u++;
    }
    if (u)
        snprintf(buf, cap, "%llu%c", (unsigned long long)size, units[u]);
    else
        snprintf(buf, cap, "%llu", (unsigned long long)size);
    return buf;
}

/* --- limits ---------------------------------------------------------------------------------------------- */

void tool_raise_file_limit(void)
{
    struct rlimit r;
    if (!getrlimit(RLIMIT_NOFILE, &r) && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

/* --- words ----------------------------------------------------------------------------------------------- */

/* Edits (one letter put in, left out, changed, or swapped with its neighbour) from a to b; both shorter than 63. */
static unsigned edits(const char *a, const char *b)
{
    unsigned rows[3][64], *before = rows[0], *above = rows[1], *row = rows[2];
    size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        above[j] = (unsigned)j;
    memset(before, 0, sizeof rows[0]);
    for (size_t i = 1; a[i - 1]; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned best = above[j - 1] + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            if (above[j] + 1 < best)
                best = above[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
        unsigned *spare = before;
        before = above;
        above = row;
        row = spare;
    }
    return above[n];
}

const char *tool_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t len = strlen(word);
    unsigned best_edits = 0;
    if (!len || len > 60)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t name_len = strlen(names[i]);
        if (name_len > 60)
            continue;
        unsigned e = edits(word, names[i]);
        /* A word that someone began to type is near, however much of it is missing. */
        if (len >= 2 && name_len > len && !strncasecmp(word, names[i], len))
            e = 1;
        if (e <= 1 + len / 3 && (!best || e < best_edits)) {
            best = names[i];
            best_edits = e;
        }
    }
    return best;
}

void tool_no_command(const char *word, const char *const *names, size_t n, const char *whose)
{
    const char *near = tool_nearest(word, names, n);
    if (near)
        tool_error("there is no command \"%s\"; did you mean \"%s\"? (%s --help lists all)", word, near, whose);
    else
        tool_error("there is no command \"%s\"; %s --help lists all", word, whose);
}

size_t tool_utf8_len(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t n = s[0] < 0x80 ? (s[0] != 0) : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : s[0] >= 0xe0 ? 3 : s[0] >= 0xc2 ? 2 : 0;
    if (s[0] >= 0xf5)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    /* longer than it need be, a surrogate, or past the last character there is */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

size_t tool_harmless(const char *s, size_t n, bool lines)
{
    unsigned char c = (unsigned char)*s;
    char buf[5] = {0};
    size_t len;
    if (c < 0x20 || c == 0x7f)
        return lines && (c == '\n' || c == '\t');
    memcpy(buf, s, n < 4 ? n : 4);
    len = tool_utf8_len(buf);
    return len == 2 && c == 0xc2 && (unsigned char)s[1] < 0xa0 ? 0 : len; /* C1 */
}

const char *tool_plain(const char *text, char *buf, size_t cap)
{
    size_t at = 0, n = strlen(text);
    while (n) {
        size_t len = tool_harmless(text, n, false);
        if (at + (len ? len : 4) + 4 >= cap) {
            memcpy(buf + at, "...", 3);
            at += 3;
            break;
        }
        if (len)
            memcpy(buf + at, text, len);
        else if (*text == '\n')
            buf[at] = ' ';
        else
            snprintf(buf + at, cap - at, "\\x%02x", (unsigned char)*text);
        at += len ? len : *text == '\n' ? 1 : 4;
        text += len ? len : 1;
        n -= len ? len : 1;
    }
    buf[at] = '\0';
    return buf;
}

/* --- terminals ------------------------------------------------------------------------------------------- */

bool tool_is_terminal(FILE *f)
{
    const char *term = getenv("TERM");
    return isatty(fileno(f)) && !(term && !strcmp(term, "dumb"));
}

unsigned tool_columns(FILE *f)
{
    struct winsize size;
    if (isatty(fileno(f)) && !ioctl(fileno(f), TIOCGWINSZ, &size) && size.ws_col >= 40)
        return size.ws_col;
    return 100;
}

void tool_wrap(FILE *f, const char *text, unsigned indent, unsigned width)
{
    unsigned room = width > indent + 20 ? width - indent : 20;
    while (*text) {
        size_t n = strcspn(text, "\n");
        size_t take = n;
        if (n > room) {
            take = room;
            while (take && text[take] != ' ')
                take--;
            if (!take)
                take = strcspn(text, " \n"); /* a word longer than the line: let it stand out */
        }
        fprintf(f, "%.*s\n", (int)take, text);
        text += take;
        while (*text == ' ' || (*text == '\n' && take == n)) {
            bool newline = *text++ == '\n';
            if (newline)
                break;
        }
        if (*text)
            fprintf(f, "%*s", (int)indent, "");
    }
}
