/* tests/fuzz/config.c - any bytes are refused with words that name the file, or are a snapshot in which every value is in its
 * range.
 *
 * A snapshot is written out as a file of its own and read again: it must be the same. The bytes also go through the parsers of
 * sizes, times and numbers, whose results must come back from their plain digits. */
#include "base/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char source[] = "the.conf";

static void must(int fact)
{
    if (!fact)
        abort();
}

/* Is `word` one of the words of the range? */
static int is_word(const char *range, const char *word)
{
    size_t n = strlen(word);
    for (const char *at = range; (at = strstr(at, word)); at++)
        if ((at == range || at[-1] == ' ') && (at[n] == ' ' || !at[n]))
            return 1;
    return 0;
}

static uint64_t parsed(const char *kind, const char *text)
{
    uint64_t v = 0;
    must(!(*kind == 'S' ? wefti_parse_size : *kind == 'T' ? wefti_parse_time : wefti_parse_number)(text, &v));
    return v;
}

static void check_number(const char *kind, const char *def, const char *range, uint64_t v)
{
    char least[32], most[32], more[32] = "";
    if (v == UINT64_MAX) {
        must(!strcmp(def, "auto"));
        return;
    }
    must(sscanf(range, "%31s %31s %31s", least, most, more) >= 2);
    must(v >= parsed(kind, least) && v <= parsed(kind, most));
    must(!*more || (v & (v - 1)) == 0);
}

static void check_text(const char *text)
{
    must(text != NULL && !strchr(text, '\n'));
}

static void write_number(FILE *f, const char *field, const char *unit, uint64_t v)
{
    if (v == UINT64_MAX)
        fprintf(f, "%s = auto\n", field);
    else
        fprintf(f, "%s = %" PRIu64 "%s\n", field, v, unit);
}

#define CHECK_TEXT(field, def, range) check_text(c.field)
#define CHECK_PATH(field, def, range) check_text(c.field)
#define CHECK_CHOICE(field, def, range) must(is_word(range, c.field))
#define CHECK_SIZE(field, def, range) check_number("SIZE", def, range, c.field)
#define CHECK_TIME(field, def, range) check_number("TIME", def, range, c.field)
#define CHECK_NUMBER(field, def, range) check_number("NUMBER", def, range, c.field)

#define WRITE_TEXT(field) fprintf(f, "%s = %s\n", #field, c.field)
#define WRITE_PATH(field) fprintf(f, "%s = %s\n", #field, c.field)
#define WRITE_CHOICE(field) fprintf(f, "%s = %s\n", #field, c.field)
#define WRITE_SIZE(field) write_number(f, #field, "", c.field)
#define WRITE_TIME(field) write_number(f, #field, "ns", c.field)
#define WRITE_NUMBER(field) write_number(f, #field, "", c.field)

#define SAME_TEXT(field) must(!strcmp(c.field, d.field))
#define SAME_PATH(field) must(!strcmp(c.field, d.field))
#define SAME_CHOICE(field) must(!strcmp(c.field, d.field))
#define SAME_SIZE(field) must(c.field == d.field)
#define SAME_TIME(field) must(c.field == d.field)
#define SAME_NUMBER(field) must(c.field == d.field)

static void check_file(const uint8_t *data, size_t size)
{
    wefti_config_t c, d;
    if (wefti_config_parse(source, data, size, &c)) {
        must(strstr(weft_last_error(), source) != NULL);
        return;
    }
#define CHECK_FIELD(field, kind, def, range, doc) CHECK_##kind(field, def, range);
    WEFTI_CONFIG_LIST(CHECK_FIELD)
    must(!*c.config_file);

    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    must(f != NULL);
#define WRITE_FIELD(field, kind, def, range, doc) \
    if (strcmp(#field, "config_file")) \
        WRITE_##kind(field);
    WEFTI_CONFIG_LIST(WRITE_FIELD)
    must(!fclose(f));
    must(!wefti_config_parse(source, text, n, &d));
#define SAME_FIELD(field, kind, def, range, doc) SAME_##kind(field);
    WEFTI_CONFIG_LIST(SAME_FIELD)
    free(text);
    wefti_config_free(&d);
    wefti_config_free(&c);
}

static void check_units(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), digits[32];
    uint64_t v;
    must(text != NULL);
    if (size)
        memcpy(text, data, size);
    text[size] = '\0';
    if (!wefti_parse_size(text, &v)) {
        snprintf(digits, sizeof digits, "%" PRIu64, v);
        must(v != UINT64_MAX && parsed("SIZE", digits) == v);
    }
    if (!wefti_parse_time(text, &v)) {
        snprintf(digits, sizeof digits, "%" PRIu64 "ns", v);
        must(v != UINT64_MAX && parsed("TIME", digits) == v);
    }
    if (!wefti_parse_number(text, &v))
        must(v <= UINT32_MAX && strtoull(text, NULL, 10) == v);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_file(data, size);
    check_units(data, size);
    return 0;
}
