/* tools/run/elements.c - a directory of elements: which files are elements, and which of their lines describe the element.
 *
 * `NAME.o.py` is a compute element; its lines that begin with "#@ " are YAML about it. `NAME.o.yaml` is a memory element, and
 * all of it is YAML. A file that looks like either and is not gets a sentence; other files are ignored. yaml.c reads the
 * YAML. tests/tools/tools_run_check.py checks it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

#define FILE_MAX ((off_t)16 << 20)
#define YAML_MAX ((size_t)64 << 10)

void run_problem(run_t *run, const char *path, unsigned line, const char *fmt, ...)
{
    char *text = NULL, shown[600], *slash = strrchr(path, '/');
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    run->n_problems++;
    tool_plain(slash && run->dir ? slash + 1 : path, shown, sizeof shown);
    if (line)
        tool_error("%s:%u: %s", shown, line, text ? text : fmt);
    else
        tool_error("%s: %s", shown, text ? text : fmt);
    free(text);
}

void run_name_add(run_names_t *names, char *name, unsigned line)
{
    names->at = run_grow(names->at, (names->n + 1) * sizeof *names->at);
    names->at[names->n++] = (run_name_t){.name = name, .line = line};
}

bool run_size(const char *text, uint64_t *out)
{
    char tight[32];
    size_t n = 0;
    for (; *text && n < sizeof tight - 1; text++)
        if (*text != ' ')
            tight[n++] = *text;
    tight[n] = '\0';
    return !*text && n && strspn(tight, "0123456789") < n && tool_parse_size(tight, out) && *out && *out < (uint64_t)1 << 46;
}

static void names_free(run_names_t *names)
{
    for (unsigned i = 0; i < names->n; i++)
        free(names->at[i].name);
    free(names->at);
}

void run_element_free(run_element_t *e)
{
    names_free(&e->parents);
    names_free(&e->dependents);
    names_free(&e->corunning);
    names_free(&e->imports);
    for (unsigned i = 0; i < e->n_uses; i++) {
        free(e->uses[i].memory);
        free(e->uses[i].trans);
    }
    for (unsigned i = 0; i < e->n_merged; i++)
        free(e->merged[i].name);
    if (e->results)
        for (unsigned i = 0; i < e->copies; i++)
            free(e->results[i]);
    free(e->uses);
    free(e->merged);
    free(e->before);
    free(e->after);
    free(e->procs);
    free(e->results);
    free(e->trans);
    free(e->params);
    free(e->name);
    free(e->path);
    free(e);
}

/* --- files ------------------------------------------------------------------------------------------------------- */

/* All of a file; false after a sentence. */
static bool slurp(run_t *run, const char *path, run_text_t *out)
{
    char piece[16384];
    struct stat st;
    ssize_t n = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not wait for a pipe of that name */
    if (fd >= 0 && !fstat(fd, &st) && !S_ISREG(st.st_mode)) {
        run_problem(run, path, 0, "is not a file");
        close(fd);
        return false;
    }
    while (fd >= 0 && (n = read(fd, piece, sizeof piece)) > 0) {
        run_add(out, piece, (size_t)n);
        if ((off_t)out->n > FILE_MAX) {
            run_problem(run, path, 0, "is longer than an element may be (16 MiB)");
            close(fd);
            return false;
        }
    }
    if (n < 0)
        run_problem(run, path, 0, "cannot be read: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return n == 0;
}

typedef struct lines {
    run_text_t yaml;
    unsigned *numbers, n, cap;
} lines_t;

static void add_line(lines_t *l, const char *text, size_t n, unsigned number)
{
    if (l->n == l->cap)
        l->numbers = run_grow(l->numbers, (l->cap = l->cap ? 2 * l->cap : 32) * sizeof *l->numbers);
    l->numbers[l->n++] = number;
    run_add(&l->yaml, text, n);
    run_add(&l->yaml, "\n", 1);
}

/* The lines of a program that begin with "#@ ", or all of them. */
static void cut(run_t *run, const run_element_t *e, const run_text_t *text, lines_t *l)
{
    const char *p = text->p, *end = text->p + text->n;
    unsigned number = 1;
    run_add(&l->yaml, "", 0);
    for (; p && p < end; number++) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((newline ? newline : end) - p);
        if (n && p[n - 1] == '\r')
            n--;
        if (e->memory)
            add_line(l, p, n, number);
        else if (n >= 2 && p[0] == '#' && p[1] == '@') {
            if (n == 2 || p[2] == ' ')
                add_line(l, p + (n > 3 ? 3 : n), n > 3 ? n - 3 : 0, number);
            else
                run_problem(run, e->path, number, "a line about the element begins with \"#@ \": a blank is missing after #@");
        }
        p = newline ? newline + 1 : end;
    }
}

static void read_element(run_t *run, run_element_t *e)
{
    run_text_t text = {0};
    lines_t l = {0};
    if (slurp(run, e->path, &text)) {
        if (text.n && memchr(text.p, '\0', text.n)) {
            run_problem(run, e->path, 0, "is not text: there is a zero byte in it");
        } else {
            cut(run, e, &text, &l);
            if (l.yaml.n > YAML_MAX)
                run_problem(run, e->path, 0, "says more than %zu bytes about the element", YAML_MAX);
            else
                run_yaml(run, e, &l.yaml, l.numbers, l.n);
        }
    }
    for (unsigned i = 0; i < e->imports.n; i++) {
        char *path = e->imports.at[i].name[0] == '/' ? run_dup(e->imports.at[i].name)
                                                     : run_printf("%s/%s", run->dir, e->imports.at[i].name);
        if (access(path, R_OK))
            run_problem(run, e->path, e->imports.at[i].line, "import: %s cannot be read: %s", e->imports.at[i].name,
                        strerror(errno));
        free(e->imports.at[i].name);
        e->imports.at[i].name = path;
    }
    free(l.numbers);
    run_free(&l.yaml);
    run_free(&text);
}

/* --- the directory ----------------------------------------------------------------------------------------------- */

static bool ends(const char *s, size_t n, const char *with)
{
    size_t m = strlen(with);
    return n > m && !memcmp(s + n - m, with, m);
}

/* 'c' compute, 'm' memory, 0 neither. *stem is how much of the name is the element's. */
static char kind_of(const char *file, size_t *stem)
{
    size_t n = strlen(file);
    if (file[0] == '.')
        return 0;
    if (ends(file, n, ".o.py")) {
        *stem = n - 5;
        return 'c';
    }
    if (ends(file, n, ".o.yaml")) {
        *stem = n - 7;
        return 'm';
    }
    return 0;
}

static void look_at(run_t *run, const char *file)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    size_t stem = 0, n = strlen(file);
    char kind = kind_of(file, &stem), shown[300];
    run_element_t *e;
    if (!kind) {
        if (file[0] != '.' && ends(file, n, ".o.yml"))
            run_problem(run, file, 0, "memory elements are named NAME.o.yaml");
        return;
    }
    if (stem > RUN_NAME_MAX || strspn(file, allowed) < stem) {
        run_problem(run, tool_plain(file, shown, sizeof shown), 0,
                    "is no name for an element: at most %d letters, digits, '-', '_' and '.' make one", RUN_NAME_MAX);
        return;
    }
    if (run->n_elements == RUN_ELEMENTS_MAX) {
        run_problem(run, file, 0, "is one element too many: %d is the most", RUN_ELEMENTS_MAX);
        return;
    }
    e = run_alloc(sizeof *e);
    e->name = run_dup_n(file, stem);
    e->path = run_printf("%s/%s", run->dir, file);
    e->memory = kind == 'm';
    e->copies = e->replicas = 1;
    run->elements = run_grow(run->elements, (run->n_elements + 1) * sizeof(run_element_t *));
    run->elements[run->n_elements++] = e;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(run_element_t *const *)a)->name, (*(run_element_t *const *)b)->name);
}

bool run_read(run_t *run)
{
    char shown[300];
    struct dirent *entry;
    bool twice = false;
    DIR *dir;
    run->dir = realpath(run->opts.dir, NULL);
    dir = run->dir ? opendir(run->dir) : NULL;
    tool_plain(run->opts.dir, shown, sizeof shown);
    if (!dir) {
        tool_error("%s cannot be read: %s", shown, strerror(errno));
        return false;
    }
    /* cppcheck-suppress readdirCalled ; there is one thread */
    while ((entry = readdir(dir)))
        look_at(run, entry->d_name);
    closedir(dir);
    if (!run->n_elements && !run->n_problems) {
        tool_error("there are no elements in %s: they are files named NAME.o.py (a program) and NAME.o.yaml (memory)", shown);
        return false;
    }
    if (run->n_elements)
        qsort(run->elements, run->n_elements, sizeof *run->elements, by_name);
    run->n_static = run->n_elements;
    for (unsigned i = 0; i < run->n_elements; i++) {
        run_element_t *e = run->elements[i];
        e->index = i;
        if (i && !strcmp(e->name, run->elements[i - 1]->name)) {
            twice = true;
            run_problem(run, e->path, 0, "there are two elements \"%s\": the other is %s", e->name,
                        strrchr(run->elements[i - 1]->path, '/') + 1);
        }
        read_element(run, e);
    }
    return !twice; /* names could not be resolved */
}
