/* tools/policy.c - `weft policy check FILE`: is it a policy, and what does it say of somebody?
 *
 * Exit status: 0 it is one, and allows what was asked; 1 it does not allow it, or is none. tests/tools/tools_policy.py. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <weft/policy.h>

#include "common.h"

enum { FILE_MOST = 1 << 20 };

static const tool_command_t check_command;

typedef struct check_opts {
    const char *identity, *action, *name;
    bool json;
} check_opts_t;

/* The whole file; NULL after a sentence. */
static char *read_file(const char *path, size_t *n_out)
{
    FILE *f = fopen(path, "re");
    char *text = f ? malloc(FILE_MOST + 1) : NULL;
    if (!text) {
        tool_error("%s cannot be read: %s", path, strerror(errno));
        if (f)
            fclose(f);
        return NULL;
    }
    *n_out = fread(text, 1, FILE_MOST + 1, f);
    bool bad = ferror(f);
    fclose(f);
    if (!bad)
        return text;
    tool_error("%s cannot be read", path);
    free(text);
    return NULL;
}

static bool find_action(const char *word, weft_may_t *out)
{
    for (int i = WEFT_MAY_CONNECT; i <= WEFT_MAY_PUBLISH; i++)
        if (!strcmp(word, weft_may_name((weft_may_t)i))) {
            *out = (weft_may_t)i;
            return true;
        }
    tool_error("there is no action \"%s\"; there are connect, call, mem-allocate, mem-read, mem-write and publish", word);
    return false;
}

static void say(const check_opts_t *opt, const weft_verdict_t *v)
{
    const char *verdict = v->allowed ? "allowed" : "denied";
    if (opt->json) {
        printf("{\"verdict\": \"%s\", \"line\": %u", verdict, v->line);
        if (v->limit != UINT64_MAX)
            printf(", \"limit\": %llu", (unsigned long long)v->limit);
        printf("}\n");
        return;
    }
    printf("%s by line %u", verdict, v->line);
    if (v->limit != UINT64_MAX)
        printf(", at most %llu bytes in all", (unsigned long long)v->limit);
    putchar('\n');
}

static int check_file(const check_opts_t *opt, const char *path)
{
    weft_verdict_t v = WEFT_VERDICT_INIT;
    weft_may_t action = (weft_may_t)0;
    size_t n;
    if (opt->action && !find_action(opt->action, &action))
        return TOOL_USAGE;
    if (!opt->action && (opt->identity || opt->name)) {
        tool_error("say what it would do: --action call, connect, mem-allocate, mem-read, mem-write or publish");
        return TOOL_USAGE;
    }
    char *text = read_file(path, &n);
    if (!text)
        return TOOL_FAILED;
    weft_status_t st = weft_policy_check(text, n, opt->identity, action, opt->name, &v);
    free(text);
    if (st) {
        tool_error("%s: %s", path, weft_last_error());
        return TOOL_FAILED;
    }
    if (action)
        say(opt, &v);
    else
        printf(opt->json ? "{\"policy\": true}\n" : "it is a policy\n");
    return !action || v.allowed ? TOOL_OK : TOOL_FAILED;
}

static int check(int argc, char **argv)
{
    check_opts_t opts = {0};
    tool_words_t words;
    int rc = tool_options(&check_command, argc, argv, &opts, &words);
    if (rc != TOOL_GO)
        return rc;
    if (words.n != 1) {
        tool_error("say which file, and only one: weft policy check FILE");
        return TOOL_USAGE;
    }
    return check_file(&opts, words.at[0]);
}

#define ABOUT \
    "Reads a policy, as WEFT_POLICY names one, and says whether it is one; with --action, what it says of somebody, and which " \
    "of " \
    "its lines says so. The exit status is 1 if it is none, or does not allow it."

static const tool_opt_t check_options[] = {
    {"identity", "NAME", "who it is; without this, somebody without an identity (anonymous)", TO_TEXT(check_opts_t, identity)},
    {"action", "connect|call|mem-allocate|mem-read|mem-write|publish", "what they would do", TO_TEXT(check_opts_t, action)},
    {"name", "NAME", "with what: a function as SERVICE.FUNCTION, a block, a service", TO_TEXT(check_opts_t, name)},
    {"json", NULL, "one JSON object", TO_FLAG(check_opts_t, json)},
    {0},
};
static const tool_command_t check_command = {
    .name = "check",
    .full_name = "weft policy check",
    .summary = "is FILE a policy, and what does it say of somebody?",
    .usage = "FILE [options]",
    .about = ABOUT,
    .options = check_options,
    .words = true,
    .run = check,
};

static const tool_command_t *const commands[] = {&check_command, NULL};
const tool_command_t tool_policy_command = {
    .name = "policy",
    .full_name = "weft policy",
    .summary = "check the rules who may do what",
    .usage = "check FILE [options]",
    .about = ABOUT,
    .commands = commands,
};
