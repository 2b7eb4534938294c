/* tools/completion.c - `weft completion bash|zsh`: a script that completes commands, options and values, made from the tables
 * of options.
 *
 * Where nothing of ours fits, the shell completes names of files. tests/tools/tools_completion.py runs the script in bash, and
 * in zsh where it is. */
#include <string.h>

#include "common.h"

/* Each shell brings its words into `before` (all up to the current one) and `current`, and offers what the cases leave in
 * `names` and `values`. `help` is set behind the word help, which only names of commands follow. */
static const char bash_begin[] =
    "# bash completion for weft: made by `weft completion bash`.\n"
    "_weft()\n"
    "{\n"
    "    local command=weft previous= help= values= names= word current=\"${COMP_WORDS[COMP_CWORD]}\"\n"
    "    local -a before=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n";
static const char bash_end[] = "    COMPREPLY=()\n"
                               "    if [[ $values && $current != -* ]]; then\n"
                               "        [[ $values == files ]] || COMPREPLY=($(compgen -W \"$values\" -- \"$current\"))\n"
                               "    else\n"
                               "        COMPREPLY=($(compgen -W \"$names\" -- \"$current\"))\n"
                               "    fi\n"
                               "}\n"
                               "complete -o default -F _weft weft\n";
static const char zsh_begin[] = "#compdef weft\n"
                                "# zsh completion for weft: made by `weft completion zsh`.\n"
                                "_weft()\n"
                                "{\n"
                                "    local command=weft previous= help= values= word current=\"${words[CURRENT]}\"\n"
                                "    local -a names before=(\"${(@)words[2,CURRENT-1]}\")\n";
static const char zsh_end[] = "    if [[ -n $values && $current != -* ]]; then\n"
                              "        if [[ $values == files ]]; then _files; else compadd -- ${=values}; fi\n"
                              "    else\n"
                              "        _describe weft names\n"
                              "    fi\n"
                              "}\n"
                              "_weft \"$@\"\n";

typedef void each_fn_t(const tool_command_t *command, const tool_opt_t *opt, bool zsh);

static void each_option(const tool_command_t *c, const tool_opt_t *o, bool zsh, each_fn_t *fn)
{
    for (; o && (o->name || o->kind == TOOL_GROUP); o++) {
        if (o->kind == TOOL_GROUP)
            each_option(c, o->group, zsh, fn);
        else if (o->help)
            fn(c, o, zsh);
    }
}

/* A name to offer, in single quotes; for zsh with its description, a colon between them. */
static void put_name(const char *dashes, const char *name, const char *help, bool zsh)
{
    printf(zsh ? " '%s%s:" : " %s%s", dashes, name);
    for (; zsh && *help; help++)
        printf(*help == '\'' ? "'\\''" : "%c", *help);
    if (zsh)
        putchar('\'');
}

static void put_option(const tool_command_t *c, const tool_opt_t *o, bool zsh)
{
    (void)c;
    put_name(o->name[1] ? "--" : "-", o->name, o->help, zsh);
}

/* What follows an option that takes a value: the words of "any|mapped|checked", or a file. */
static void put_values(const tool_command_t *c, const tool_opt_t *o, bool zsh)
{
    (void)zsh;
    if (!o->arg)
        return;
    printf("    (\"%s --%s\") values=\"", c->full_name, o->name);
    for (const char *s = o->arg; strchr(o->arg, '|') && *s; s++)
        if (!strchr("[]", *s))
            putchar(*s == '|' ? ' ' : *s);
    printf("%s\" ;;\n", strchr(o->arg, '|') ? "" : "files");
}

static void put_command(const tool_command_t *c, const tool_opt_t *o, bool zsh)
{
    (void)o;
    (void)zsh;
    printf("        (\"%s\") command=\"%s\" ;;\n", c->full_name, c->full_name);
    if (c->commands)
        printf("        (\"%s help\") help=yes ;;\n", c->full_name);
}

/* A word behind one of these is a command of it. If there is no such command, nothing is offered. */
static void put_group(const tool_command_t *c, const tool_opt_t *o, bool zsh)
{
    (void)o;
    (void)zsh;
    if (c->commands)
        printf(" (\"%s\") command= ;;", c->full_name);
}

static void put_case(const tool_command_t *c, const tool_opt_t *o, bool zsh)
{
    (void)o;
    printf("    (\"%s\") names=%c", c->full_name, zsh ? '(' : '"');
    for (const tool_command_t *const *sub = c->commands; sub && *sub; sub++)
        put_name("", (*sub)->name, (*sub)->summary, zsh);
    printf("%c; [[ -n $help ]] || names+=%c", zsh ? ')' : '"', zsh ? '(' : '"');
    if (c == &tool_root)
        put_name("--", "version", "the version of the library", zsh);
    each_option(c, c->options, zsh, put_option);
    if (c->commands)
        put_name("", "help", "what it does", zsh);
    put_name("--", "help", "what it does", zsh);
    printf("%c%s ;;\n", zsh ? ')' : '"', c->words ? "; values=\"${values:-files}\"" : "");
}

static void put_all_values(const tool_command_t *c, const tool_opt_t *o, bool zsh)
{
    (void)o;
    each_option(c, c->options, zsh, put_values);
}

static void each_command(const tool_command_t *c, bool zsh, each_fn_t *fn)
{
    fn(c, NULL, zsh);
    for (const tool_command_t *const *sub = c->commands; sub && *sub; sub++)
        each_command(*sub, zsh, fn);
}

static void put_script(bool zsh)
{
    fputs(zsh ? zsh_begin : bash_begin, stdout);
    puts("    for word in \"${before[@]}\"; do\n"
         "        previous=\"$word\"\n"
         "        case \"$command $word\" in");
    each_command(&tool_root, zsh, put_command);
    printf("        (*) case \"$command\" in");
    each_command(&tool_root, zsh, put_group);
    puts(" esac ;;\n"
         "        esac\n"
         "    done\n"
         "    case \"$command $previous\" in");
    each_command(&tool_root, zsh, put_all_values);
    puts("    (\"weft completion completion\") values=\"bash zsh\" ;;\n"
         "    esac\n"
         "    case \"$command\" in");
    each_command(&tool_root, zsh, put_case);
    puts("    esac");
    fputs(zsh ? zsh_end : bash_end, stdout);
}

static int completion(int argc, char **argv)
{
    tool_words_t words;
    int rc = tool_options(&tool_completion_command, argc, argv, NULL, &words);
    if (rc != TOOL_GO)
        return rc;
    if (words.n != 1 || (strcmp(words.at[0], "bash") != 0 && strcmp(words.at[0], "zsh") != 0)) {
        tool_error("say for which shell: weft completion bash, or weft completion zsh");
        return TOOL_USAGE;
    }
    put_script(!strcmp(words.at[0], "zsh"));
    return TOOL_OK;
}

static const tool_opt_t no_options[] = {{0}};

const tool_command_t tool_completion_command = {
    .name = "completion",
    .full_name = "weft completion",
    .summary = "print a script with which bash or zsh completes weft's commands",
    .usage = "bash|zsh",
    .about = "Prints a script for the shell. make install puts it where the shells look for it; without that:\n"
             "  bash  source <(weft completion bash)\n"
             "  zsh   weft completion zsh > ~/.zsh/_weft, where ~/.zsh is a directory of fpath",
    .options = no_options,
    .words = true,
    .run = completion,
};
