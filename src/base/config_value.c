/* base/config_value.c - the value of a variable, from text to the snapshot. */
#include "base/config_value.h"

#include <stdio.h>
#include <string.h>

#include "base/ascii.h"
#include "base/log.h"
#include "base/units.h"

void wefti_config_env_name(const var_t *var, char name[NAME_CAP])
{
    size_t n = strlen(var->field);
    memcpy(name, PREFIX, PREFIX_LEN);
    for (size_t i = 0; i <= n; i++)
        name[PREFIX_LEN + i] = wefti_upper(var->field[i]);
}

void wefti_config_where(const char *source, unsigned line, char *buf, size_t cap)
{
    char at[16] = "";
    if (line)
        snprintf(at, sizeof at, ":%u", line);
    snprintf(buf, cap, "%.200s%s", source, at);
}

/* Copy the next word of a range; false at its end. */
static bool next_word(const char **at, char word[WORD_CAP])
{
    while (*at && **at == ' ')
        (*at)++;
    size_t n = strcspn(*at, " ");
    if (!n || n >= WORD_CAP)
        return false;
    memcpy(word, *at, n);
    word[n] = '\0';
    *at += n;
    return true;
}

int wefti_config_choice(const var_t *var, const char *text, char word[WORD_CAP])
{
    const char *at = var->range;
    for (int i = 0; next_word(&at, word); i++)
        if (strlen(word) == strlen(text) && wefti_same_text(word, text, strlen(text)))
            return i;
    return -1;
}

static bool parse_number(kind_t kind, const char *text, uint64_t *out)
{
    return !(kind == SIZE   ? wefti_parse_size(text, out)
             : kind == TIME ? wefti_parse_time(text, out)
                            : wefti_parse_number(text, out));
}

static bool may_be_auto(const var_t *var)
{
    return !strcmp(var->def, "auto");
}

static bool convert_number(const var_t *var, const char *text, uint64_t *out)
{
    uint64_t v, least, most;
    char word[WORD_CAP];
    const char *at = var->range;
    if (may_be_auto(var) && strlen(text) == 4 && wefti_same_text(text, "auto", 4)) {
        *out = UINT64_MAX;
        return true;
    }
    if (!parse_number(var->kind, text, &v))
        return false;
    if (!next_word(&at, word) || !parse_number(var->kind, word, &least) || !next_word(&at, word) ||
        !parse_number(var->kind, word, &most))
        return false; /* a range of the list that does not parse: base_config.c finds it */
    bool pow2 = next_word(&at, word);
    if (v < least || v > most || (pow2 && (v & (v - 1))))
        return false;
    *out = v;
    return true;
}

/* "a time from 100ms to 1h, such as 5s" */
static void describe(const var_t *var, char *buf, size_t cap)
{
    char least[WORD_CAP] = "", most[WORD_CAP] = "", pow2[WORD_CAP] = "";
    const char *at = var->range;
    if (var->kind == CHOICE) {
        snprintf(buf, cap, "one of: %s", var->range);
        return;
    }
    (void)(next_word(&at, least) && next_word(&at, most) && next_word(&at, pow2));
    snprintf(buf, cap, "%s%s%s from %s to %s%s%s", may_be_auto(var) ? "auto, or " : "", *pow2 ? "a power of two, " : "",
             var->kind == SIZE   ? "a size"
             : var->kind == TIME ? "a time"
                                 : "a number",
             least, most, may_be_auto(var) ? "" : ", such as ", may_be_auto(var) ? "" : var->def);
}

/* A value from outside is not valid. */
static weft_status_t unfit(const var_t *var, const given_t *given)
{
    char name[NAME_CAP], where[240], right[160];
    wefti_config_env_name(var, name);
    describe(var, right, sizeof right);
    wefti_config_where(given->source, given->line, where, sizeof where);
    return wefti_fail(WEFT_ERR_INVALID, "%s is \"%.80s\" (%s), but should be %s", name, given->text, where, right);
}

weft_status_t wefti_config_convert(const var_t *var, const given_t *given, wefti_config_t *config)
{
    void *field = (char *)config + var->offset;
    char word[WORD_CAP];
    const char *text = given->text;
    uint64_t number;
    switch (var->kind) {
    case SIZE:
    case TIME:
    case NUMBER:
        if (!convert_number(var, text, &number))
            return unfit(var, given);
        memcpy(field, &number, sizeof number);
        return WEFT_OK;
    case CHOICE:
        if (wefti_config_choice(var, text, word) < 0)
            return unfit(var, given);
        text = word;
        break;
    case TEXT:
    case PATH:
        break;
    }
    text = wefti_config_keep(config, text);
    if (!text)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the configuration");
    memcpy(field, &text, sizeof text);
    return WEFT_OK;
}
