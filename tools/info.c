/* tools/info.c - `weft info`: what this build is, what this machine offers, and every variable with its value and where that
 * came from.
 *
 * Nothing is opened and nothing is changed. A value that does not parse is still shown, and what is wrong with it is said.
 * tests/tools/tools_info.py holds it. */
#include <stdlib.h>
#include <string.h>
#include <weft/config.h>

#include "common.h"

enum { OPT_JSON = 1, OPT_HELP };

static const tool_opt_t options[] = {
    {OPT_JSON, "json", NULL, "one JSON object with \"info\", \"config\" and \"unknown\""},
    {OPT_HELP, "help", NULL, "this"},
    {0, NULL, NULL, NULL},
};

typedef struct view {
    tool_json_t json;
    unsigned columns;
    unsigned seen;
} view_t;

void tool_info_help(FILE *f)
{
    fputs("Usage: weft info [--json]\n\n"
          "Shows the build, UCX's version and transports, the kinds of memory this machine has, and every\n"
          "configuration variable with its documentation, the value in force and where that comes from. A\n"
          "WEFT_ variable that Weft does not know is listed with the nearest name that it does.\n\n",
          f);
    tool_args_help(options, f);
}

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
    if (var->value)
        printf("  %-22s did you mean %s?\n", var->name, var->value);
    else
        printf("  %-22s no variable of Weft has a name like it\n", var->name);
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
    puts("\nConfiguration: the environment beats the file that WEFT_CONFIG_FILE names, which beats the default");
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
    view_t v = {.json = {.f = stdout}};
    weft_status_t facts, variables, unknown;
    tool_json_open(&v.json, NULL, '{');
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
    tool_json_close(&v.json, '}');
    tool_json_end(&v.json);
    return facts || variables || unknown ? TOOL_FAILED : TOOL_OK;
}

int tool_info(int argc, char **argv)
{
    tool_args_t args;
    bool json = false;
    int id;
    tool_args_init(&args, argc, argv, options);
    while ((id = tool_args_next(&args)) > 0) {
        if (id == OPT_JSON)
            json = true;
        if (id == OPT_HELP) {
            tool_info_help(stdout);
            return TOOL_OK;
        }
    }
    if (id < 0)
        return TOOL_USAGE;
    /* The list at the end says it better than the log. */
    if (!getenv("WEFT_LOG"))
        weft_log_set_level(WEFT_LOG_ERROR);
    return json ? show_json() : show_text();
}
