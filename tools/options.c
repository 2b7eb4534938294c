/* tools/options.c - reads a command line by a table of options, with getopt_long().
 *
 * getopt_long() accepts abbreviations and takes "--json" as the value of the option before it. Both would hide mistakes, so
 * this file refuses them. An option that is wrong gets a sentence with the nearest name. tests/tools/tools_options.py checks
 * it. */
#include "options.h"

#include <getopt.h>
#include <string.h>

#include "common.h"

enum { MAX_OPTS = 64, FIRST = 256 }; /* FIRST + i: what getopt_long() returns for row i */

typedef struct row {
    const tool_opt_t *opt;
    char *base; /* the struct that opt->to is an offset in */
} row_t;

typedef struct reader {
    const tool_command_t *command;
    row_t rows[MAX_OPTS];
    struct option longs[MAX_OPTS + 1];
    char shorts[MAX_OPTS + 4]; /* "-:h": words come in order, a missing value is ':', and -h is --help */
    int n;
} reader_t;

static const tool_opt_t help_row = {.name = "help"};

static void add_row(reader_t *r, const tool_opt_t *opt, char *base)
{
    int has_arg = !opt->arg ? no_argument : *opt->arg == '[' ? optional_argument : required_argument;
    if (r->n == MAX_OPTS)
        return;
    r->longs[r->n] = (struct option){.name = opt->name, .has_arg = has_arg, .val = FIRST + r->n};
    r->rows[r->n++] = (row_t){opt, base};
    if (!opt->name[1])
        strncat(r->shorts, opt->name, 1);
}

static void add_rows(reader_t *r, const tool_opt_t *opts, char *base)
{
    for (; opts->name || opts->kind == TOOL_GROUP; opts++) {
        if (opts->kind == TOOL_GROUP)
            add_rows(r, opts->group, base + opts->to);
        else
            add_row(r, opts, base);
    }
}

/* --- what is wrong ----------------------------------------------------------------------------------------- */

static int no_option(const reader_t *r, const char *word)
{
    if (!strcmp(word, "--")) {
        tool_error("\"--\" ends the options, and %s takes nothing but options; %s --help lists them", tool_name, tool_name);
        return TOOL_USAGE;
    }
    for (int i = 0; i < r->n && strstr(word, "://"); i++)
        if (r->rows[i].opt->arg && !strcmp(r->rows[i].opt->arg, "URI")) {
            tool_error("\"%s\" is not an option; give it as --%s %s", word, r->rows[i].opt->name, word);
            return TOOL_USAGE;
        }
    tool_error("\"%s\" is not an option; options begin with --, and %s --help lists them", word, tool_name);
    return TOOL_USAGE;
}

static int unknown(const reader_t *r, const char *word)
{
    const char *names[MAX_OPTS], *near;
    char name[64];
    size_t n = 0;
    for (int i = 0; i < r->n; i++)
        if (r->rows[i].opt->help || r->rows[i].opt == &help_row)
            names[n++] = r->rows[i].opt->name;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    near = tool_nearest(name, names, n);
    if (near)
        tool_error("there is no option --%s; did you mean --%s? (%s --help lists all)", name, near, tool_name);
    else
        tool_error("there is no option --%s; %s --help lists all", name, tool_name);
    return TOOL_USAGE;
}

static int no_value(const tool_opt_t *opt)
{
    tool_error("--%s needs a value: --%s %s", opt->name, opt->name, opt->arg);
    return TOOL_USAGE;
}

/* --- values ------------------------------------------------------------------------------------------------ */

bool tool_take_count(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    if (tool_parse_count(text, min, max, out))
        return true;
    tool_error("--%s %s is not a number between %llu and %llu", name, text, (unsigned long long)min, (unsigned long long)max);
    return false;
}

static bool take_size(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    uint64_t v;
    if (tool_parse_size(text, &v) && v >= min && v <= max) {
        *out = v;
        return true;
    }
    tool_error("--%s %s is not a size; give bytes like 8, 4k, 64M or 4G, at most 64T", name, text);
    return false;
}

bool tool_take_time(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    char range[64] = ", such as 30s";
    uint64_t ns;
    if (tool_parse_time(text, &ns) && ns >= min && ns <= max) {
        *out = ns;
        return true;
    }
    if (max == TOOL_DAY)
        snprintf(range, sizeof range, " between %g s and a day", (double)min / 1e9);
    else if (max != UINT64_MAX)
        snprintf(range, sizeof range, " between %g s and %g s", (double)min / 1e9, (double)max / 1e9);
    tool_error("--%s %s is not a time%s; write it like 250ms, 2s or 0.5", name, text, range);
    return false;
}

bool tool_texts_add(tool_texts_t *texts, const char *name, const char *text)
{
    if (texts->n < TOOL_TEXTS_MAX) {
        texts->at[texts->n++] = text;
        return true;
    }
    tool_error("--%s is given more than %d times", name, TOOL_TEXTS_MAX);
    return false;
}

static bool store(const row_t *row, const char *v)
{
    const tool_opt_t *o = row->opt;
    void *to = row->base + o->to;
    switch (o->kind) {
    case TOOL_FLAG:
        *(bool *)to = true;
        return true;
    case TOOL_TEXT:
        *(const char **)to = v;
        return true;
    case TOOL_TEXTS:
        return tool_texts_add(to, o->name, v);
    case TOOL_COUNT:
        return tool_take_count(o->name, v, o->min, o->max, to);
    case TOOL_SIZE:
        return take_size(o->name, v, o->min, o->max, to);
    case TOOL_TIME:
        return tool_take_time(o->name, v, o->min, o->max, to);
    default:
        return o->take(row->base, v);
    }
}

/* --- the command line -------------------------------------------------------------------------------------- */

static bool is_number(const char *word)
{
    return word[0] == '-' && word[1] && strchr("0123456789.", word[1]);
}

/* One option: `word` is where it stands, `id` what getopt_long() said of it. TOOL_GO or the exit status. */
static int take(reader_t *r, int argc, char **argv, const char *word, int id)
{
    bool is_long = !strncmp(word, "--", 2);
    int val = id == '?' || id == ':' ? optopt : id;
    const char *value = optarg;
    const row_t *row = NULL;
    for (int i = 0; i < r->n; i++)
        if (val == FIRST + i || (!is_long && val == r->rows[i].opt->name[0] && !r->rows[i].opt->name[1]))
            row = &r->rows[i];
    if (!is_long && id == 'h')
        row = &r->rows[r->n - 1];
    if (!row || (is_long && strcspn(word + 2, "=") != strlen(row->opt->name))) /* unknown, or an abbreviation */
        return is_long ? unknown(r, word + 2) : no_option(r, word);
    if (id == '?') {
        tool_error("--%s takes no value, and got \"%s\"", row->opt->name, strchr(word, '=') + 1);
        return TOOL_USAGE;
    }
    if (row->opt == &help_row) {
        tool_command_help(r->command, stdout);
        return TOOL_OK;
    }
    if (row->opt->arg && *row->opt->arg == '[' && !value && optind < argc && strncmp(argv[optind], "--", 2) != 0)
        value = argv[optind++];
    else if (row->opt->arg && *row->opt->arg != '[' &&
             (id == ':' || !*value || (value == argv[optind - 1] && !strncmp(value, "--", 2))))
        return no_value(row->opt);
    return store(row, value) ? TOOL_GO : TOOL_USAGE;
}

int tool_options(const tool_command_t *command, int argc, char **argv, void *opts, tool_words_t *words_out)
{
    reader_t r = {.command = command, .shorts = "-:h"};
    size_t n_words = 0;
    add_rows(&r, command->options, opts);
    add_row(&r, &help_row, NULL);
    optind = 1;
    while (optind < argc) {
        char *word = argv[optind];
        int id = 1, rc;
        if (command->numbers && is_number(word))
            optind++;
        else
            id = getopt_long(argc, argv, r.shorts, r.longs, NULL);
        if (id == -1 && command->words) /* after "--" all are words */
            break;
        if (id == 1 && command->words) {
            argv[1 + n_words++] = word;
            continue;
        }
        rc = id == -1 || id == 1 ? no_option(&r, word) : take(&r, argc, argv, word, id);
        if (rc != TOOL_GO)
            return rc;
    }
    while (optind < argc)
        argv[1 + n_words++] = argv[optind++];
    if (words_out)
        *words_out = (tool_words_t){argv + 1, n_words};
    return TOOL_GO;
}
