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
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "run.h"

#define PATIENCE 10000 /* milliseconds */
#define ANSWER_MAX ((size_t)1 << 20)

extern char **environ;

/* Arguments: how many directories of modules there are, those, and the programs, each after '+' or '-': must it have a main(), as
 * far as that can be told? There are other ways to make one than def. "=N" is the next N bytes of standard input. Modules that a
 * program imports whatever happens, and that lie in those directories, are compiled too. One line for each file that is wrong:
 * number of the program, path of the module or nothing, line, what is wrong. */
static const char program[] =
    "import os, sys, _ast\n"
    "sys.stdout.reconfigure(encoding='utf-8', errors='surrogateescape')\n"
    "n = 2 + int(sys.argv[1])\n"
    "paths, seen = sys.argv[2:n], set()\n"
    "def find(bases, name):\n"
    "    for part in name.split('.'):\n"
    "        for base in bases:\n"
    "            for path, inside in (f'{base}/{part}/__init__.py', [f'{base}/{part}']), (f'{base}/{part}.py', []):\n"
    "                try:\n"
    "                    with open(path, 'rb') as f:\n"
    "                        yield path, f.read(), inside\n"
    "                except (OSError, ValueError):\n"
    "                    continue\n"
    "                break\n"
    "            else:\n"
    "                continue\n"
    "            break\n"
    "        else:\n"
    "            return\n"
    "        bases = inside\n"
    "def look(i, path, source, package):\n"
    "    try:\n"
    "        tree = compile(source, path or 'element', 'exec', 0x400, dont_inherit=True)\n"
    "        code = compile(tree, path or 'element', 'exec', dont_inherit=True)\n"
    "    except SyntaxError as error:\n"
    "        print(i, path, error.lineno or 0, f'{type(error).__name__}: {error.msg}', sep='\\t')\n"
    "        return\n"
    "    except ValueError as error:\n"
    "        print(i, path, 0, error, sep='\\t')\n"
    "        return\n"
    "    except (RecursionError, MemoryError):\n"
    "        return\n"
    "    for node in tree.body:\n"
    "        names = []\n"
    "        if isinstance(node, _ast.Import):\n"
    "            names = [(paths, one.name) for one in node.names if one.name.split('.')[0] not in sys.modules]\n"
    "        elif isinstance(node, _ast.ImportFrom) and node.level < 2:\n"
    "            if node.level or node.module.split('.')[0] not in sys.modules:\n"
    "                inside = node.module + '.' if node.module else ''\n"
    "                names = [(package if node.level else paths, inside + one.name) for one in node.names]\n"
    "        for bases, name in names:\n"
    "            todo.extend((i, *found) for found in find(bases, name) if '\\t' not in found[0] and '\\n' not in found[0])\n"
    "    return code\n"
    "for i, arg in enumerate(sys.argv[n:]):\n"
    "    try:\n"
    "        if arg[1] == '=':\n"
    "            source = sys.stdin.buffer.read(int(arg[2:]))\n"
    "        else:\n"
    "            with open(arg[1:], 'rb') as f:\n"
    "                source = f.read()\n"
    "    except OSError:\n"
    "        continue\n"
    "    todo = []\n"
    "    code = look(i, '', source, [])\n"
    "    if code and arg[0] == '+':\n"
    "        odd = {'main', 'exec', 'eval', 'globals', 'locals', 'vars', 'setattr', '__dict__'} & {*code.co_names}\n"
    "        if not odd and ('*',) not in code.co_consts:\n"
    "            print(i, '', 0, 'has no function main(params, action)', sep='\\t')\n"
    "    while todo:\n"
    "        one = todo.pop()\n"
    "        if one[1] not in seen:\n"
    "            seen.add(one[1])\n"
    "            look(*one)\n";

/* What the program says, all of it; false: it cannot be run, or does not end. */
static bool ask(char **argv, int in, run_text_t *out)
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
    if (in >= 0)
        posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
    else
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

/* One of the files that are compiled. */
typedef struct source {
    const run_element_t *e;
    const char *path; /* NULL: its code is in a DAG */
} source_t;

static void tell(run_t *run, char *text, const source_t *sources, unsigned n)
{
    char *line;
    while ((line = strsep(&text, "\n"))) {
        char *fields[4], shown[300], name[300];
        unsigned k = 0;
        unsigned long which, number;
        for (; k < 3 && line; k++)
            fields[k] = strsep(&line, "\t");
        fields[3] = line;
        which = line ? strtoul(fields[0], NULL, 10) : n;
        if (which >= n)
            continue;
        number = strtoul(fields[2], NULL, 10);
        tool_plain(fields[3], shown, sizeof shown);
        tool_plain(sources[which].e->name, name, sizeof name);
        if (*fields[1])
            run_problem(run, fields[1], (unsigned)number, "%s; \"%s\" imports it", shown, name);
        else if (sources[which].path)
            run_problem(run, sources[which].path, (unsigned)number, "%s", shown);
        else if (number)
            run_problem(run, sources[which].e->path, 0, "line %lu of the code of \"%s\": %s", number, name, shown);
        else
            run_problem(run, sources[which].e->path, 0, "the code of \"%s\" %s", name, shown);
    }
}

/* Programs that are not files yet, one after the other; -1: there are none. */
static int code_of_all(const run_t *run)
{
    int fd = -1;
    for (unsigned i = 0; i < run->n_elements; i++) {
        const char *code = run->elements[i]->code;
        size_t left = code ? strlen(code) : 0;
        if (code && fd < 0)
            fd = memfd_create("weft-code", MFD_CLOEXEC);
        while (left && fd >= 0) {
            ssize_t n = write(fd, code, left);
            if (n <= 0) {
                close(fd);
                return -1;
            }
            code += n;
            left -= (size_t)n;
        }
    }
    if (fd >= 0)
        lseek(fd, 0, SEEK_SET);
    return fd;
}

void run_compile(run_t *run, const char *python)
{
    unsigned n = 0, n_argv = 0;
    int code = code_of_all(run);
    source_t *sources;
    run_text_t out = {0};
    char **argv;
    for (unsigned i = 0; i < run->n_elements; i++)
        n += run->elements[i]->memory ? 0 : 1 + run->elements[i]->imports.n;
    sources = run_alloc((n + 1) * sizeof *sources);
    argv = run_alloc((n + run->n_paths + 7) * sizeof *argv);
    argv[n_argv++] = run_dup(python);
    argv[n_argv++] = run_dup("-IS");
    argv[n_argv++] = run_dup("-c");
    argv[n_argv++] = run_dup(program);
    argv[n_argv++] = run_printf("%u", run->n_paths);
    for (unsigned i = 0; i < run->n_paths; i++)
        argv[n_argv++] = run_dup(run->paths[i]);
    n = 0;
    for (unsigned i = 0; i < run->n_elements; i++) {
        const run_element_t *e = run->elements[i];
        if (e->memory || (e->code && code < 0))
            continue;
        sources[n++] = (source_t){e, e->code ? NULL : e->path};
        argv[n_argv++] = e->code ? run_printf("+=%zu", strlen(e->code))
                                 : run_printf("%c%s", e->imports.n ? '-' : '+', e->path); /* an import may have main() */
        for (unsigned k = 0; k < e->imports.n; k++) {
            sources[n++] = (source_t){e, e->imports.at[k].name};
            argv[n_argv++] = run_printf("-%s", e->imports.at[k].name);
        }
    }
    run_add(&out, "", 0);
    if (ask(argv, code, &out))
        tell(run, out.p, sources, n);
    if (code >= 0)
        close(code);
    for (char **s = argv; *s; s++)
        free(*s);
    free(argv);
    free(sources);
    run_free(&out);
}
