/* tools/json.c - JSON, one value a line: what a program reads of the commands.
 *
 * Control characters, quotes and backslashes are escaped; all else is passed on, since texts are UTF-8.
 * tests/tools/tools_perf.py and tests/tools/tools_info.py parse every line. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common.h"

static void put_quoted(FILE *f, const char *s, size_t n)
{
    fputc('"', f);
    for (; n; s++, n--) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            fprintf(f, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", f);
        else if (c < 0x20 || c == 0x7f)
            fprintf(f, "\\u%04x", c);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

static void put_name(tool_json_t *j, const char *name)
{
    if (j->comma)
        fputs(", ", j->f);
    j->comma = true;
    if (name) {
        put_quoted(j->f, name, strlen(name));
        fputs(": ", j->f);
    }
}

tool_json_t tool_json_begin(FILE *f)
{
    tool_json_t j = {.f = f};
    tool_json_open(&j, NULL, '{');
    return j;
}

void tool_json_open(tool_json_t *j, const char *name, char bracket)
{
    put_name(j, name);
    fputc(bracket, j->f);
    j->comma = false;
}

void tool_json_close(tool_json_t *j, char bracket)
{
    fputc(bracket, j->f);
    j->comma = true;
}

void tool_json_text(tool_json_t *j, const char *name, const char *value)
{
    put_name(j, name);
    if (value)
        put_quoted(j->f, value, strlen(value));
    else
        fputs("null", j->f);
}

void tool_json_bytes(tool_json_t *j, const char *name, const char *value, size_t n)
{
    put_name(j, name);
    put_quoted(j->f, value, n);
}

void tool_json_raw(tool_json_t *j, const char *name, const char *json)
{
    put_name(j, name);
    fputs(json, j->f);
}

void tool_json_number(tool_json_t *j, const char *name, double value, int digits)
{
    put_name(j, name);
    if (isfinite(value))
        fprintf(j->f, "%.*f", digits, value);
    else
        fputs("null", j->f);
}

void tool_json_count(tool_json_t *j, const char *name, uint64_t value)
{
    put_name(j, name);
    fprintf(j->f, "%" PRIu64, value);
}

void tool_json_end(tool_json_t *j)
{
    fputs("}\n", j->f);
    fflush(j->f);
}
