/* tools/run/elements.c - what there is to run: which files are elements, and which of their lines describe the element.
 *
 * In a directory `NAME.o.py` is a compute element; its lines that begin with "#@ " are YAML about it. `NAME.o.yaml` is a memory
 * element, and all of it is YAML. A file that looks like either and is not gets a sentence; other files are ignored. If one
 * `NAME.o.py` is to be run, the other programs of its directory are left out, and memory that it does not use. A file of JSON is
 * a whole DAG (dag.c). yaml.c reads the YAML. tests/tools/tools_run_check.py and tests/tools/tools_run_given.py check it. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run.h"

#define FILE_MAX ((off_t)16 << 20)
#define YAML_MAX ((size_t)64 << 10)
#define SIZE_MOST ((double)((uint64_t)1 << 46)) /* 64 TB */

void run_name_add(run_names_t *names, char *name, unsigned line)
{
    names->at = run_grow(names->at, (names->n + 1) * sizeof *names->at);
    names->at[names->n++] = (run_name_t){.name = name, .line = line};
}

bool run_name_ok(const char *name, size_t n)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    return n && n <= RUN_NAME_MAX && strspn(name, allowed) >= n;
}

/* "1.5 GB", "4096 B", "1e3 k" in bytes; without a unit it has the unit `alone`. False: it is no size, or has no unit and `alone`
 * is NULL. */
static bool read_size(const char *text, const char *alone, double *bytes_out)
{
    static const char units[] = "kmgt";
    const char *unit, *at;
    char *end, word[4] = "";
    size_t n;
    double v;
    text += strspn(text, " ");
    if (!isdigit((unsigned char)text[*text == '.']) || !strncasecmp(text, "0x", 2))
        return false; /* strtod() would take a sign, and other words for numbers */
    v = strtod(text, &end);
    unit = end + strspn(end, " ");
    n = strcspn(unit, " ");
    if (n >= sizeof word || unit[n + strspn(unit + n, " ")] || !isfinite(v))
        return false;
    memcpy(word, unit, n);
    unit = n || !alone ? word : alone;
    at = *unit ? strchr(units, tolower((unsigned char)*unit)) : NULL;
    *bytes_out = at ? ldexp(v, 10 * (int)(at - units + 1)) : v;
    unit += at != NULL;
    return !strcasecmp(unit, "b") || (at && (!*unit || !strcasecmp(unit, "ib")));
}

static bool fitting(double bytes, uint64_t *out)
{
    if (bytes < 1 || bytes >= SIZE_MOST)
        return false;
    *out = (uint64_t)bytes;
    return true;
}

bool run_size(const char *text, uint64_t *out)
{
    double bytes;
    return read_size(text, NULL, &bytes) && fitting(bytes, out);
}

bool run_size_mb(const char *text, uint64_t *out)
{
    double bytes;
    return read_size(text, "M", &bytes) && fitting(bytes, out);
}

bool run_size_large(const char *text)
{
    double bytes;
    return read_size(text, "M", &bytes) && bytes >= SIZE_MOST;
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
    for (unsigned i = 0; i < e->n_merged; i++)
        free(e->merged[i].name);
    for (unsigned i = 0; i < e->n_defaults; i++) {
        free(e->defaults[i].name);
        free(e->defaults[i].value);
    }
    if (e->results)
        for (unsigned i = 0; i < e->copies; i++)
            free(e->results[i]);
    free(e->uses);
    free(e->merged);
    free(e->before);
    free(e->after);
    free(e->earlier);
    free(e->later);
    free(e->defaults);
    free(e->code);
    free(e->procs);
    free(e->results);
    free(e->trans);
    free(e->params);
    free(e->name);
    free(e->path);
    free(e);
}

/* --- files ------------------------------------------------------------------------------------------------------- */

bool run_slurp(run_t *run, const char *path, run_text_t *out)
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
            run_problem(run, path, 0, "is longer than 16 MiB");
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

/* Is text[i] the end of a line that LF does not end? It is one to Python and to YAML, and none here. */
static bool lone_return(const run_text_t *text, size_t i)
{
    return text->p[i] == '\r' && i + 1 < text->n && text->p[i + 1] != '\r' && text->p[i + 1] != '\n';
}

/* The first such line of a memory element, or of a program at a line that begins with "#@"; 0: there is none. */
static unsigned old_line_end(const run_element_t *e, const run_text_t *text)
{
    unsigned number = 1;
    bool head = false;
    for (size_t i = 0; i < text->n; i++) {
        bool begins = !i || text->p[i - 1] == '\n', after = i && lone_return(text, i - 1);
        if (begins || after)
            head = text->n - i >= 2 && !memcmp(text->p + i, "#@", 2);
        if ((after && head) || (lone_return(text, i) && (head || e->memory)))
            return number;
        number += text->p[i] == '\n';
    }
    return 0;
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

/* In the directory, and where modules are found: Scad has them in a folder lib of its own. */
static void find_imports(run_t *run, run_element_t *e)
{
    for (unsigned i = 0; i < e->imports.n; i++) {
        run_name_t *import = &e->imports.at[i];
        char *path = *import->name == '/' ? run_dup(import->name) : NULL;
        for (unsigned k = 0; *import->name != '/' && k < run->n_paths && (!path || access(path, R_OK)); k++) {
            free(path);
            path = run_printf("%s/%s", run->paths[k], import->name);
        }
        if (access(path, R_OK))
            run_problem(run, e->path, import->line, "import: %s cannot be read: %s%s", import->name, strerror(errno),
                        run->n_paths > 1 ? "; it is neither in the directory nor in lib or a --path" : "");
        free(import->name);
        import->name = path;
    }
}

static void read_element(run_t *run, run_element_t *e)
{
    run_text_t text = {0};
    lines_t l = {0};
    unsigned line;
    if (run_slurp(run, e->path, &text)) {
        if (text.n && memchr(text.p, '\0', text.n)) {
            run_problem(run, e->path, 0, "is not text: there is a zero byte in it");
        } else if ((line = old_line_end(e, &text))) {
            run_problem(
                run, e->path, line,
                "a line ends in a carriage return (CR) alone, as in files of old Macs: save the file with line ends LF or "
                "CRLF (tr '\\r' '\\n' changes them)");
        } else {
            cut(run, e, &text, &l);
            if (l.yaml.n > YAML_MAX)
                run_problem(run, e->path, 0, "says more than %zu bytes about the element", YAML_MAX);
            else
                run_yaml(run, e, &l.yaml, l.numbers, l.n);
        }
    }
    find_imports(run, e);
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

run_element_t *run_element_new(run_t *run, const char *name, size_t n, const char *path, bool memory)
{
    run_element_t *e;
    if (run->n_elements == RUN_ELEMENTS_MAX) {
        run_problem(run, path, 0, "is one element too many: %d is the most", RUN_ELEMENTS_MAX);
        return NULL;
    }
    e = run_alloc(sizeof *e);
    e->name = run_dup_n(name, n);
    e->path = run_dup(path);
    e->memory = memory;
    e->copies = e->replicas = 1;
    run->elements = run_grow(run->elements, (run->n_elements + 1) * sizeof(run_element_t *));
    run->elements[run->n_elements++] = e;
    return e;
}

/* A name of the form NAME.o.EXT that is no element: Scad takes every such file for one. */
static void look_at_other(run_t *run, const char *file)
{
    const char *dot = strrchr(file, '.');
    size_t n = strlen(file);
    char shown[300];
    if (file[0] == '.' || !dot || dot - file < 3 || memcmp(dot - 2, ".o", 2) != 0 || !dot[1] ||
        strspn(dot + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") < strlen(dot + 1))
        return;
    tool_plain(file, shown, sizeof shown);
    if (ends(file, n, ".o.yml"))
        run_problem(run, shown, 0, "memory elements are named NAME.o.yaml");
    else
        run_warn(run, shown, 0, NULL, "is ignored: elements are NAME.o.py (a program) and NAME.o.yaml (memory)");
}

/* only: the one program that is to be run; NULL: all of them. */
static void look_at(run_t *run, const char *file, const char *only)
{
    size_t stem = 0;
    char kind = kind_of(file, &stem), shown[300], *path;
    if (!kind) {
        if (!only)
            look_at_other(run, file);
        return;
    }
    if (only && kind == 'c' && strcmp(file, only) != 0)
        return;
    if (!run_name_ok(file, stem)) {
        run_problem(run, tool_plain(file, shown, sizeof shown), 0,
                    "is no name for an element: at most %d letters, digits, '-', '_' and '.' make one", RUN_NAME_MAX);
        return;
    }
    path = run_printf("%s/%s", run->dir, file);
    (void)run_element_new(run, file, stem, path, kind == 'm');
    free(path);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(run_element_t *const *)a)->name, (*(run_element_t *const *)b)->name);
}

static void look_into(run_t *run, const char *shown, const char *only)
{
    struct dirent *entry;
    DIR *dir = opendir(run->dir);
    if (!dir) {
        run_problem(run, NULL, 0, "%s cannot be read: %s", shown, strerror(errno));
        return;
    }
    /* cppcheck-suppress readdirCalled ; there is one thread */
    while ((entry = readdir(dir)))
        look_at(run, entry->d_name, only);
    closedir(dir);
    if (!run->n_elements && !run->n_problems)
        run_problem(run, NULL, 0,
                    "there are no elements in %s: they are files named NAME.o.py (a program) and NAME.o.yaml (memory)", shown);
}

/* The directory, lib in it, and those of --path. */
static void find_paths(run_t *run)
{
    struct stat st;
    char *lib = run_printf("%s/lib", run->dir);
    run->paths = run_alloc((run->opts.n_paths + 2) * sizeof *run->paths);
    run->paths[run->n_paths++] = run_dup(run->dir);
    if (!stat(lib, &st) && S_ISDIR(st.st_mode))
        run->paths[run->n_paths++] = run_dup(lib);
    for (unsigned i = 0; i < run->opts.n_paths; i++)
        run->paths[run->n_paths++] = run_dup(run->opts.paths[i]);
    free(lib);
}

/* What opts.dir is: run->dir, and of a file run->file. False after a sentence. */
static bool find_place(run_t *run, const char *shown)
{
    char *whole = realpath(run->opts.dir, NULL), *folder, *slash;
    struct stat st;
    if (!whole || stat(whole, &st)) {
        run_problem(run, NULL, 0, "%s cannot be read: %s", shown, strerror(errno));
        free(whole);
        return false;
    }
    if (S_ISDIR(st.st_mode)) {
        run->dir = whole;
        return true;
    }
    free(whole);
    /* a link to a file is where the link is */
    folder = run_dup(run->opts.dir);
    slash = strrchr(folder, '/');
    run->file = run_dup(slash ? slash + 1 : folder);
    if (slash)
        slash[slash == folder] = '\0';
    run->dir = realpath(slash ? folder : ".", NULL);
    free(folder);
    if (!run->dir)
        run_problem(run, NULL, 0, "the directory of %s cannot be read: %s", shown, strerror(errno));
    return run->dir != NULL;
}

/* In order of their names, each described by its file. False: names could not be resolved. */
static bool read_all(run_t *run)
{
    bool twice = false;
    if (run->n_elements)
        qsort(run->elements, run->n_elements, sizeof *run->elements, by_name);
    run->n_static = run->n_elements;
    for (unsigned i = 0; i < run->n_elements; i++) {
        run_element_t *e = run->elements[i];
        e->index = i;
        if (i && !strcmp(e->name, run->elements[i - 1]->name)) {
            const char *other = strrchr(run->elements[i - 1]->path, '/');
            twice = true;
            run_problem(run, e->path, 0, "there are two elements \"%s\": the other is %s", e->name,
                        other ? other + 1 : run->elements[i - 1]->path);
        }
        if (!e->described)
            read_element(run, e);
    }
    return !twice;
}

bool run_read(run_t *run)
{
    char shown[300];
    size_t n;
    tool_plain(run->opts.dir, shown, sizeof shown);
    if (!find_place(run, shown))
        return false;
    find_paths(run);
    n = run->file ? strlen(run->file) : 0;
    if (run->file && ends(run->file, n, ".json"))
        run_dag(run);
    else if (run->file && !ends(run->file, n, ".o.py"))
        run_problem(run, NULL, 0,
                    ends(run->file, n, ".o.yaml") ? "%s is memory: \"weft element memory\" serves some without a run"
                                                  : "%s is neither a directory of elements, nor a program "
                                                    "(NAME.o.py), nor a DAG (NAME.json)",
                    shown);
    else
        look_into(run, shown, run->file);
    if (!run->n_elements)
        return false;
    run_given_elements(run);
    return read_all(run);
}
