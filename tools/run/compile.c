/* tools/run/compile.c - compiles the programs before anything runs, so that a syntax error is not found after an hour.
 *
 * The interpreter that will run the programs compiles them and runs none. It says which line of which file is wrong, and
 * which file cannot have a main(). If the interpreter cannot do that, or takes too long, the run goes on. This is done by
 * --check, and by a run in which some elements wait for others. tests/tools/tools_run_check.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

#define PATIENCE 10000 /* milliseconds */
#define ANSWER_MAX ((size_t)1 << 20)

extern char **environ;

/* One line for each file that is wrong: its number, the line, what is wrong. There are other ways to make main() than def. */
static const char program[] =
    "import sys\n"
    "for i, arg in enumerate(sys.argv[1:]):\n"
    "    try:\n"
    "        with open(arg[1:], 'rb') as f:\n"
    "            code = compile(f.read(), arg[1:], 'exec', dont_inherit=True)\n"
    "    except SyntaxError as error:\n"
    "        print(i, error.lineno or 0, f'{type(error).__name__}: {error.msg}', sep='\\t')\n"
    "    except ValueError as error:\n"
    "        print(i, 0, error, sep='\\t')\n"
    "    except (OSError, RecursionError, MemoryError):\n"
    "        pass\n"
    "    else:\n"
    "        odd = {'main', 'exec', 'eval', 'globals', 'locals', 'vars', 'setattr', '__dict__'} & {*code.co_names}\n"
    "        if arg[0] == '+' and not odd and ('*',) not in code.co_consts:\n"
    "            print(i, 0, 'has no function main(params, action)', sep='\\t')\n";

/* What the program says, all of it; false: it cannot be run, or does not end. */
static bool ask(char **argv, run_text_t *out)
{
    posix_spawn_file_actions_t actions;
    struct pollfd wait;
    char piece[4096];
    int ends[2], status = 1;
    bool good;
    pid_t pid;
    ssize_t n = -1;
    if (pipe2(ends, O_CLOEXEC))
        return false;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    good = !posix_spawn(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    wait = (struct pollfd){.fd = ends[0], .events = POLLIN};
    while (good && out->n < ANSWER_MAX && poll(&wait, 1, PATIENCE) > 0 && (n = read(ends[0], piece, sizeof piece)) > 0)
        run_add(out, piece, (size_t)n);
    close(ends[0]);
    if (!good)
        return false;
    if (n)
        kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    return !n && WIFEXITED(status) && !WEXITSTATUS(status);
}

static void tell(run_t *run, char *text, const char **paths, unsigned n_paths)
{
    char *line;
    while ((line = strsep(&text, "\n"))) {
        char *end, shown[300];
        unsigned long which = strtoul(line, &end, 10), number;
        if (*end != '\t' || which >= n_paths)
            continue;
        number = strtoul(end + 1, &end, 10);
        if (*end == '\t')
            run_problem(run, paths[which], (unsigned)number, "%s", tool_plain(end + 1, shown, sizeof shown));
    }
}

void run_compile(run_t *run, const char *python)
{
    unsigned n = 0, n_argv = 0;
    const char **paths;
    run_text_t out = {0};
    char **argv;
    for (unsigned i = 0; i < run->n_elements; i++)
        n += run->elements[i]->memory ? 0 : 1 + run->elements[i]->imports.n;
    paths = run_alloc((n + 1) * sizeof *paths);
    argv = run_alloc((n + 6) * sizeof *argv);
    argv[n_argv++] = run_dup(python);
    argv[n_argv++] = run_dup("-IS");
    argv[n_argv++] = run_dup("-c");
    argv[n_argv++] = run_dup(program);
    n = 0;
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_element_t *e = run->elements[i];
        if (e->memory)
            continue;
        paths[n++] = e->path;
        argv[n_argv++] = run_printf("%c%s", e->imports.n ? '-' : '+', e->path); /* an import may have main() */
        for (unsigned k = 0; k < e->imports.n; k++) {
            paths[n++] = e->imports.at[k].name;
            argv[n_argv++] = run_printf("-%s", e->imports.at[k].name);
        }
    }
    run_add(&out, "", 0);
    if (ask(argv, &out))
        tell(run, out.p, paths, n);
    for (char **s = argv; *s; s++)
        free(*s);
    free(argv);
    free(paths);
    run_free(&out);
}
