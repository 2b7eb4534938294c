/* tools/options.h - commands and their options as tables. The parser, --help and shell completion all read the same tables. */
#ifndef WEFT_TOOLS_OPTIONS_H
#define WEFT_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* --- options ----------------------------------------------------------------------------------------------- */

typedef enum tool_kind {
    TOOL_TAKE,  /* take() gets the value */
    TOOL_FLAG,  /* bool: becomes true */
    TOOL_TEXT,  /* const char * */
    TOOL_TEXTS, /* tool_texts_t: the option may be given several times */
    TOOL_COUNT, /* uint64_t, from min to max */
    TOOL_SIZE,  /* uint64_t: bytes, from min to max */
    TOOL_TIME,  /* uint64_t: nanoseconds, from min to max */
    TOOL_GROUP  /* the options of another table, whose struct lies at `to` */
} tool_kind_t;

typedef struct tool_opt tool_opt_t;

struct tool_opt {
    const char *name; /* "size": given as --size VALUE or --size=VALUE; "l": also given as -l */
    const char *arg;  /* NULL: takes no value; "[URI]": may have one; "N": must have one */
    const char *help; /* NULL: not shown */
    tool_kind_t kind;
    size_t to;        /* where the value goes: the offset in the command's options */
    uint64_t min, max;
    bool (*take)(void *opts, const char *value); /* false after a sentence */
    const tool_opt_t *group;                     /* ends with a row of zeros, as every table does */
};

#define TO_TAKE(fn)                    .kind = TOOL_TAKE, .take = (fn)
#define TO_FLAG(type, field)           .kind = TOOL_FLAG, .to = offsetof(type, field)
#define TO_TEXT(type, field)           .kind = TOOL_TEXT, .to = offsetof(type, field)
#define TO_TEXTS(type, field)          .kind = TOOL_TEXTS, .to = offsetof(type, field)
#define TO_COUNT(type, field, lo, hi)  .kind = TOOL_COUNT, .to = offsetof(type, field), .min = (lo), .max = (hi)
#define TO_SIZE(type, field, lo, hi)   .kind = TOOL_SIZE, .to = offsetof(type, field), .min = (lo), .max = (hi)
#define TO_TIME(type, field, lo, hi)   .kind = TOOL_TIME, .to = offsetof(type, field), .min = (lo), .max = (hi)
#define TO_GROUP(type, field, options) .kind = TOOL_GROUP, .to = offsetof(type, field), .group = (options)

#define TOOL_TEXTS_MAX 16
#define TOOL_SIZE_MAX  ((uint64_t)1 << 46)
#define TOOL_DAY       (UINT64_C(86400) * 1000000000)

typedef struct tool_texts {
    const char *at[TOOL_TEXTS_MAX];
    unsigned n;
} tool_texts_t;

/* Values of TOOL_TAKE options that are like those of another kind. False after a sentence. */
bool tool_take_count(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool tool_take_time(const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool tool_texts_add(tool_texts_t *texts, const char *name, const char *text);

/* --- commands ---------------------------------------------------------------------------------------------- */

typedef struct tool_command tool_command_t;

/* It has either commands of its own, or options and a function. */
struct tool_command {
    const char *name, *full_name; /* "put", "weft mem put" */
    const char *summary;
    const char *usage;            /* what follows the full name, one form a line */
    const char *about, *footer;   /* of its help, before and after the table; NULL: nothing. tool_wrap() wraps them */
    const tool_command_t *const *commands; /* ends with NULL */
    const tool_opt_t *options;
    bool words;                   /* it takes words that are no options. "-" is one, and so is all that follows "--" */
    bool numbers;                 /* -5 and -.5 are words too */
    int (*run)(int argc, char **argv);
};

typedef struct tool_words {
    char **at;
    size_t n;
} tool_words_t;

enum { TOOL_GO = -1 }; /* of tool_options(): go on */

/* Read argv[1...] into *opts. The words are moved to the front of argv, and *words_out has them (NULL: it takes none). TOOL_GO,
 * or the exit status: TOOL_OK after --help, TOOL_USAGE after a sentence. */
int tool_options(const tool_command_t *command, int argc, char **argv, void *opts, tool_words_t *words_out);
/* Run a command, or one of its commands. */
int tool_command_run(const tool_command_t *command, int argc, char **argv);
void tool_command_help(const tool_command_t *command, FILE *f);

#endif
