/* tools/command.c - runs the command that was meant, and prints the help of one.
 *
 * Help is wrapped to the terminal, and to 80 columns where there is none. tests/tools/tools_options.py checks it. */
#include <string.h>

#include "common.h"

enum { NAMES = 16, MARGIN = 25, WIDEST = 100 };

/* --- help -------------------------------------------------------------------------------------------------- */

static void help_option(const tool_opt_t *o, FILE *f, unsigned width)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s%s", o->name[1] ? "--" : "-", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    fprintf(f, "  %-22s ", left);
    if (strlen(left) > 22)
        fprintf(f, "\n%*s", MARGIN, "");
    tool_wrap(f, o->help, MARGIN, width);
}

static void help_options(const tool_opt_t *o, FILE *f, unsigned width)
{
    for (; o->name || o->kind == TOOL_GROUP; o++) {
        if (o->kind == TOOL_GROUP)
            help_options(o->group, f, width);
        else if (o->help)
            help_option(o, f, width);
    }
}

static void help_commands(const tool_command_t *command, FILE *f, unsigned width)
{
    static const tool_opt_t help = {.name = "help", .help = "this"};
    if (command->options) {
        help_options(command->options, f, width);
        help_option(&help, f, width);
        return;
    }
    for (const tool_command_t *const *c = command->commands; *c; c++) {
        fprintf(f, "  %-10s ", (*c)->name);
        tool_wrap(f, (*c)->summary, 13, width);
    }
}

void tool_command_help(const tool_command_t *command, FILE *f)
{
    unsigned width = tool_columns(f) < WIDEST ? tool_columns(f) : WIDEST;
    const char *before = "Usage:";
    for (const char *form = command->usage; *form; form += strcspn(form, "\n"), form += *form == '\n') {
        char line[256];
        snprintf(line, sizeof line, "%s %.*s", command->full_name, (int)strcspn(form, "\n"), form);
        fprintf(f, "%-6s ", before);
        tool_wrap(f, line, 7, width);
        before = "";
    }
    fputc('\n', f);
    if (command->about) {
        tool_wrap(f, command->about, 0, width);
        fputc('\n', f);
    }
    help_commands(command, f, width);
    if (command->footer) {
        fputc('\n', f);
        tool_wrap(f, command->footer, 0, width);
    }
}

/* --- which command ----------------------------------------------------------------------------------------- */

/* NULL after a sentence. */
static const tool_command_t *find(const tool_command_t *command, const char *name)
{
    const char *names[NAMES] = {"help"};
    size_t n = 1;
    for (const tool_command_t *const *c = command->commands; *c; c++) {
        if (!strcmp((*c)->name, name))
            return *c;
        names[n++] = (*c)->name;
    }
    const char *near = tool_nearest(name, names, n);
    if (near)
        tool_error("there is no command \"%s\"; did you mean \"%s\"? (%s --help lists all)", name, near, command->full_name);
    else
        tool_error("there is no command \"%s\"; %s --help lists all", name, command->full_name);
    return NULL;
}

static int no_word(const tool_command_t *command)
{
    const tool_command_t *const *c = command->commands;
    char names[256] = "";
    if (!c[1]) {
        tool_error("say what to do: %s %s", c[0]->full_name, c[0]->usage);
        return TOOL_USAGE;
    }
    for (size_t n = 0; *c; c++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", (*c)->name, !c[1] ? "" : c[2] ? ", " : " or ");
    tool_error("say what to do: %s; %s --help tells more", names, command->full_name);
    return TOOL_USAGE;
}

static int help_of(const tool_command_t *command, char **words, int n)
{
    for (; n && command->commands; words++, n--) {
        command = find(command, *words);
        if (!command)
            return TOOL_USAGE;
    }
    tool_command_help(command, stdout);
    return TOOL_OK;
}

int tool_command_run(const tool_command_t *command, int argc, char **argv)
{
    tool_name = command->full_name;
    if (!command->commands)
        return command->run(argc, argv);
    if (argc < 2)
        return no_word(command);
    if (!strcmp(argv[1], "help") || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return help_of(command, argv + 2, argc - 2);
    command = find(command, argv[1]);
    return command ? tool_command_run(command, argc - 1, argv + 1) : TOOL_USAGE;
}
