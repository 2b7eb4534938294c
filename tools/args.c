/* tools/args.c - options from a table: the parser and the help come from the same lines, so that they cannot differ.
 *
 * Long options with `--name value` or `--name=value`, and `-l` for those whose name is a letter, which take no value. A wrong one gets a sentence
 * with the nearest name. Commands that take words besides options say so, and get them one by one; after `--` everything is a word.
 * tests/tools/tools_options.py holds it. */
#include <string.h>

#include "common.h"

#define MAX_OPTS 64

void tool_args_init(tool_args_t *a, int argc, char **argv, const tool_opt_t *opts)
{
    *a = (tool_args_t){.argc = argc, .at = 1, .argv = argv, .opts = opts};
}

static const tool_opt_t *find_opt(const tool_opt_t *opts, const char *name, size_t len)
{
    for (; opts->name; opts++)
        if (strlen(opts->name) == len && !strncmp(opts->name, name, len))
            return opts;
    return NULL;
}

static void say_unknown(const tool_args_t *a, const char *word, size_t len)
{
    const char *names[MAX_OPTS], *near;
    char name[64];
    size_t n = 0;
    for (const tool_opt_t *o = a->opts; o->name && n < MAX_OPTS; o++)
        names[n++] = o->name;
    snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), word);
    near = tool_nearest(name, names, n);
    if (near)
        tool_error("there is no option --%s; did you mean --%s? (%s --help lists all)", name, near, tool_name);
    else
        tool_error("there is no option --%s; %s --help lists all", name, tool_name);
}

static bool is_number(const char *word)
{
    return word[0] == '-' && word[1] && strchr("0123456789.", word[1]);
}

int tool_args_next(tool_args_t *a)
{
    const char *word, *equals;
    const tool_opt_t *o;
    size_t len;
    a->value = NULL;
    if (a->words && !a->only_words && a->at < a->argc && !strcmp(a->argv[a->at], "--")) {
        a->only_words = true;
        a->at++;
    }
    if (a->at >= a->argc)
        return 0;
    word = a->argv[a->at++];
    if (a->words && (a->only_words || word[0] != '-' || !word[1] || (a->numbers && is_number(word)))) {
        a->value = word;
        return TOOL_WORD;
    }
    if (!strcmp(word, "-h"))
        word = "--help";
    if (word[0] == '-' && word[1] && !word[2] && find_opt(a->opts, word + 1, 1))
        return find_opt(a->opts, word + 1, 1)->id;
    if (strncmp(word, "--", 2) || !word[2]) {
        tool_error("\"%s\" is not an option; options begin with --, and %s --help lists them", word, tool_name);
        return -1;
    }
    word += 2;
    equals = strchr(word, '=');
    len = equals ? (size_t)(equals - word) : strlen(word);
    o = find_opt(a->opts, word, len);
    if (!o) {
        say_unknown(a, word, len);
        return -1;
    }
    if (equals && !o->arg) {
        tool_error("--%s takes no value, and got \"%s\"", o->name, equals + 1);
        return -1;
    }
    if (equals)
        a->value = equals + 1;
    else if (o->arg && a->at < a->argc && strncmp(a->argv[a->at], "--", 2))
        a->value = a->argv[a->at++];
    if (o->arg && *o->arg != '[' && (!a->value || !*a->value)) {
        tool_error("--%s needs a value: --%s %s", o->name, o->name, o->arg);
        return -1;
    }
    return o->id;
}

void tool_args_help(const tool_opt_t *opts, FILE *f)
{
    for (; opts->name; opts++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s", opts->name[1] ? "--" : "-", opts->name, opts->arg ? " " : "",
                 opts->arg ? opts->arg : "");
        fprintf(f, "  %-22s ", left);
        if (strlen(left) > 22)
            fprintf(f, "\n%25s", "");
        tool_wrap(f, opts->help, 25, 100);
    }
}
