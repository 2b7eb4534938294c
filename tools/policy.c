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

static int no_policy(const check_opts_t *opt, const char *path, const char *why)
{
    tool_error("%s%s", path, why);
    if (opt->json) {
        tool_json_t j = tool_json_begin(stdout);
        tool_json_raw(&j, "policy", "false");
        tool_json_text(&j, "error", why + strspn(why, ": "));
        tool_json_end(&j);
    }
    return TOOL_FAILED;
}

/* The whole file; NULL, and what is wrong in errno. */
static char *read_file(const char *path, size_t *n_out)
{
    FILE *f = fopen(path, "re");
    char *text = f ? malloc(FILE_MOST + 1) : NULL;
    errno = f && !text ? ENOMEM : errno;
    if (text)
        *n_out = fread(text, 1, FILE_MOST + 1, f);
    int err = errno;
    bool bad = text && ferror(f);
    if (f)
        fclose(f);
    if (bad) {
        free(text);
        text = NULL;
    }
    errno = err;
    return text;
}

/* May somebody connect by this policy? By each rule that lets somebody: does it come to that, or does one before it say no? */
static bool lets_somebody_connect(const char *text, size_t n)
{
    weft_verdict_t v = WEFT_VERDICT_INIT;
    if (!weft_policy_check(text, n, NULL, WEFT_MAY_CONNECT, NULL, &v) && v.allowed)
        return true;
    for (const char *at = text, *end = text + n, *stop; at < end; at = stop + 1) {
        char line[1024], who[256], action[256];
        stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        snprintf(line, sizeof line, "%.*s", (int)(stop - at < 1023 ? stop - at : 1023), at);
        if (!strncmp(line, "default allow", 13))
            return true;
        if (sscanf(line, " allow %255s %255s", who, action) == 2 && (!strcmp(action, "connect") || !strcmp(action, "all")) &&
            !weft_policy_check(text, n, who, WEFT_MAY_CONNECT, NULL, &v) && v.allowed)
            return true;
    }
    return false;
}

static int is_policy(const check_opts_t *opt, bool somebody)
{
    static const char note[] = "nobody may connect by it";
    if (!opt->json) {
        printf("it is a policy%s%s\n", somebody ? "" : ", but ", somebody ? "" : note);
        return TOOL_OK;
    }
    tool_json_t j = tool_json_begin(stdout);
    tool_json_raw(&j, "policy", "true");
    if (!somebody)
        tool_json_text(&j, "note", note);
    tool_json_end(&j);
    return TOOL_OK;
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
    char why[600];
    size_t n = 0;
    if (opt->action && !find_action(opt->action, &action))
        return TOOL_USAGE;
    if (!opt->action && (opt->identity || opt->name)) {
        tool_error("say what it would do: --action call, connect, mem-allocate, mem-read, mem-write or publish");
        return TOOL_USAGE;
    }
    char *text = read_file(path, &n);
    if (!text) {
        snprintf(why, sizeof why, " cannot be read: %s", strerror(errno));
        return no_policy(opt, path, why);
    }
    weft_status_t st = weft_policy_check(text, n, opt->identity, action, opt->name, &v);
    snprintf(why, sizeof why, ": %s", st ? weft_last_error() : "");
    bool somebody = !st && !action && lets_somebody_connect(text, n);
    free(text);
    if (st)
        return no_policy(opt, path, why);
    if (!action)
        return is_policy(opt, somebody);
    say(opt, &v);
    return v.allowed ? TOOL_OK : TOOL_FAILED;
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
