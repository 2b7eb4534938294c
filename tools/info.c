/* tools/info.c - `weft info`: what this build is, what this machine offers, and every variable with its value and where that
 * came from.
 *
 * It opens nothing and changes nothing. A value that does not parse is shown too, with what is wrong with it.
 * tests/tools/tools_info.py checks it. */
#include <stdlib.h>
#include <string.h>
#include <weft/config.h>

#include "common.h"

typedef struct view {
    tool_json_t json;
    unsigned columns;
    unsigned seen;
} view_t;

static void fact_text(const weft_config_var_t *var, void *user)
{
    view_t *v = user;
    printf("  %-16s ", var->name);
    tool_wrap(stdout, var->value && *var->value ? var->value : "-", 19, v->columns);
}

static void fact_json(const weft_config_var_t *var, void *user)
{
    tool_json_text(&((view_t *)user)->json, var->name, var->value);
}

static void variable_text(const weft_config_var_t *var, void *user)
{
    view_t *v = user;
    bool standard = !var->source || !strcmp(var->source, "default");
    printf("  %-22s %s", var->name, var->value && *var->value ? var->value : "(empty)");
    if (!standard)
        printf("   [%s]", var->source);
    fputs("\n      ", stdout);
    tool_wrap(stdout, var->doc ? var->doc : "", 6, v->columns);
    v->seen++;
}

static void variable_json(const weft_config_var_t *var, void *user)
{
    tool_json_t *j = &((view_t *)user)->json;
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "name", var->name);
    tool_json_text(j, "value", var->value);
    tool_json_text(j, "source", var->source);
    tool_json_text(j, "doc", var->doc);
    tool_json_close(j, '}');
}

static void unknown_text(const weft_config_var_t *var, void *user)
{
    view_t *v = user;
    if (!v->seen++)
        puts("\nUnknown variables, which have no effect:");
    char text[128] = "no variable of Weft has a name like it";
    if (var->value)
        snprintf(text, sizeof text, "did you mean %s?", var->value);
    printf("  %-22s ", var->name);
    tool_wrap(stdout, text, 25, v->columns);
}

static void unknown_json(const weft_config_var_t *var, void *user)
{
    tool_json_t *j = &((view_t *)user)->json;
    tool_json_open(j, NULL, '{');
    tool_json_text(j, "name", var->name);
    tool_json_text(j, "nearest", var->value);
    tool_json_close(j, '}');
}

static int show_text(void)
{
    view_t v = {.columns = tool_columns(stdout)};
    int rc = TOOL_OK;
    weft_status_t st;
    puts("Build and machine");
    st = weft_info_each(fact_text, &v);
    if (st) {
        tool_error_status(st, "the facts of this machine cannot all be read");
        rc = TOOL_FAILED;
    }
    putchar('\n');
    tool_wrap(stdout, "Configuration: the environment beats the file that WEFT_CONFIG_FILE names, which beats the default", 0,
              v.columns);
    st = weft_config_each(variable_text, &v);
    if (st) {
        tool_error_status(st, "the configuration cannot be used");
        rc = TOOL_FAILED;
    }
    v.seen = 0;
    st = weft_config_unknown_each(unknown_text, &v);
    if (st) {
        tool_error_status(st, "the configuration cannot be searched for unknown names");
        rc = TOOL_FAILED;
    }
    return rc;
}

static int show_json(void)
{
    view_t v = {.json = tool_json_begin(stdout)};
    weft_status_t facts, variables, unknown;
    tool_json_open(&v.json, "info", '{');
    facts = weft_info_each(fact_json, &v);
    tool_json_close(&v.json, '}');
    tool_json_open(&v.json, "config", '[');
    variables = weft_config_each(variable_json, &v);
    if (variables)
        tool_error_status(variables, "the configuration cannot be used");
    tool_json_close(&v.json, ']');
    tool_json_open(&v.json, "unknown", '[');
    unknown = weft_config_unknown_each(unknown_json, &v);
    tool_json_close(&v.json, ']');
    tool_json_end(&v.json);
    return facts || variables || unknown ? TOOL_FAILED : TOOL_OK;
}

typedef struct info_opts {
    bool json;
} info_opts_t;

static int info(int argc, char **argv)
{
    info_opts_t opts = {0};
    int rc = tool_options(&tool_info_command, argc, argv, &opts, NULL);
    if (rc != TOOL_GO)
        return rc;
    /* the list at the end says it better than the log */
    if (!getenv("WEFT_LOG"))
        weft_log_set_level(WEFT_LOG_ERROR);
    return opts.json ? show_json() : show_text();
}

static const tool_opt_t options[] = {
    {"json", NULL, "one JSON object with \"info\", \"config\" and \"unknown\"", TO_FLAG(info_opts_t, json)},
    {0},
};

const tool_command_t tool_info_command = {
    .name = "info",
    .full_name = "weft info",
    .summary = "what this build, this machine and this configuration are",
    .usage = "[--json]",
    .about = "Shows the build, UCX's version and transports, the kinds of memory this machine has, and every configuration "
             "variable with its "
             "documentation, the value in force and where that comes from. A WEFT_ variable that Weft does not know is listed "
             "with the nearest "
             "name that it does.",
    .options = options,
    .run = info,
};
