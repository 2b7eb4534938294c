/* tools/common.c - sentences, numbers, words and terminals for the commands.
 *
 * A parser takes the whole string or fails, and then leaves its output alone. tests/tools/tools_options.py checks them. */
#include "session.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/nearest.h"
#include "base/utf8.h"

const char *tool_name = "weft";

static void begin_error(const char *fmt, va_list ap)
{
    fflush(stdout);
    fprintf(stderr, "%s: ", tool_name);
    vfprintf(stderr, fmt, ap);
}

void tool_error(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    begin_error(fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

void tool_error_status(weft_status_t st, const char *fmt, ...)
{
    const char *detail = weft_last_error(); /* first: another call of the library could change it */
    va_list ap;
    va_start(ap, fmt);
    begin_error(fmt, ap);
    va_end(ap);
    fprintf(stderr, ": %s%s%s%s\n", weft_status_text(st), *detail ? " (" : "", detail, *detail ? ")" : "");
}

bool tool_no_server(weft_status_t st)
{
    return st == WEFT_ERR_PEER || st == WEFT_ERR_CLOSED || st == WEFT_ERR_REFUSED || st == WEFT_ERR_UNREACHABLE ||
           st == WEFT_ERR_ADDRESS || st == WEFT_ERR_TIMEOUT || st == WEFT_ERR_UNSUPPORTED;
}

const char *tool_advice(weft_status_t st)
{
    switch (st) {
    case WEFT_ERR_AUTH:
        return tool_has_certificate()
                   ? "; each side needs a certificate of an authority that the other accepts, and that of the server the host by "
                     "which it was called (weft key cluster makes them); and where one side has a key, the other needs it, too"
                   : "; give both sides the same --key-file, or certificates (--tls-cert, --tls-key, --tls-ca), or both of these";
    case WEFT_ERR_VERSION:
        return "; use the same version of weft on both sides";
    case WEFT_ERR_UNREACHABLE:
        return "; check the address, and that --transports allows both sides a common transport";
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

const char *tool_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t len = strlen(word), best_distance = 0;
    for (size_t i = 0; i < n; i++) {
        size_t distance = wefti_word_distance(word, names[i]);
        /* the beginning of a name is near to it, however much is missing */
        if (len >= 2 && strlen(names[i]) > len && !strncasecmp(word, names[i], len))
            distance = 1;
        if (len && distance <= 1 + len / 3 && (!best || distance < best_distance)) {
            best = names[i];
            best_distance = distance;
        }
    }
    return best;
}

size_t tool_utf8_len(const char *s)
{
    uint32_t c;
    return *s ? wefti_utf8_char((const uint8_t *)s, strnlen(s, 4), &c) : 0;
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

void tool_put_plain(FILE *f, const char *s, size_t n)
{
    while (n) {
        size_t plain = 0, len;
        while (plain < n && (len = tool_harmless(s + plain, n - plain, true)))
            plain += len;
        fwrite(s, 1, plain, f); /* as much as can be: stderr has no buffer */
        if (plain < n)
            fprintf(f, "\\x%02x", (unsigned char)s[plain++]);
        s += plain;
        n -= plain;
    }
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
    return 80;
}

/* Where a line goes on after a break: below its second column if it is indented and has one, below its beginning if it has
 * none. */
static unsigned hanging(const char *line, size_t n)
{
    size_t at = strspn(line, " ");
    for (size_t i = at; at && i + 2 < n; i++)
        if (line[i] == ' ' && line[i + 1] == ' ')
            return (unsigned)(i + strspn(line + i, " "));
    return (unsigned)at;
}

static void wrap_line(FILE *f, const char *line, size_t n, unsigned indent, unsigned width)
{
    unsigned hang = hanging(line, n), left = width > indent + 20 ? width - indent : 20;
    if (indent + hang + 20 > width) /* too narrow for the second column */
        hang = (unsigned)strspn(line, " ") + (hang ? 4 : 0);
    size_t from = hang; /* no break before */
    while (n > left) {
        size_t take = left;
        while (take > from && line[take] != ' ')
            take--;
        if (take <= from)
            take = from + strcspn(line + from, " \n"); /* a word that is longer than the line */
        if (take >= n)
            break;
        fprintf(f, "%.*s\n%*s", (int)take, line, (int)(indent + hang), "");
        take += strspn(line + take, " ");
        line += take;
        n -= take;
        left = width > indent + hang + 20 ? width - indent - hang : 20;
        from = 0;
    }
    fprintf(f, "%.*s\n", (int)n, line);
}

void tool_wrap(FILE *f, const char *text, unsigned indent, unsigned width)
{
    while (*text) {
        size_t n = strcspn(text, "\n");
        wrap_line(f, text, n, indent, width);
        text += n + (text[n] == '\n');
        if (*text && *text != '\n')
            fprintf(f, "%*s", (int)indent, "");
    }
}
