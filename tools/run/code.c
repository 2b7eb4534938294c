/* tools/run/code.c - the files of a program, sent to a machine that does not have them.
 *
 * What travels is the directory of the elements with all folders in it, so also its `lib`; what --path and `import` name; and
 * for a single element or a DAG in one file the modules beside it and `lib`. Links are followed. Not the folders of git and the
 * like, not what Python compiled, and nothing that is neither a file nor a folder. A program is small; data belongs into memory
 * elements or onto a shared file system.
 * tests/tools/tools_run_ssh.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

#define MOST ((size_t)64 << 20)
#define FILES 10000
#define OUTSIDE ".weft/outside" /* and the whole path: what is not in the directory */
#define WRITTEN ".weft/written" /* programs that have no file */

typedef struct parcel {
    run_t *run;
    run_remote_t *to;
    const char *root, *prefix; /* files below root get names that begin with prefix */
    bool deep;                 /* with the folders in it */
    size_t bytes;
    unsigned files;
    bool failed;
} parcel_t;

static parcel_t *parcel; /* nftw() has no argument for its function */

static void send_folder_name(const char *name)
{
    run_text_t line = {0};
    tool_json_t j = run_line_begin(&line, "do", "file", 0);
    tool_json_text(&j, "name", name);
    tool_json_raw(&j, "folder", "true");
    run_line_end(&line, &j, &parcel->to->lines);
}

static void send_bytes(const char *name, const unsigned char *data, size_t n, bool runs)
{
    size_t cap = sodium_base64_encoded_len(n, sodium_base64_VARIANT_ORIGINAL);
    char *text = run_alloc(cap);
    run_text_t line = {0};
    tool_json_t j = run_line_begin(&line, "do", "file", 0);
    sodium_bin2base64(text, cap, data, n, sodium_base64_VARIANT_ORIGINAL);
    tool_json_text(&j, "name", name);
    tool_json_text(&j, "data", text);
    if (runs)
        tool_json_raw(&j, "runs", "true");
    run_line_end(&line, &j, &parcel->to->lines);
    free(text);
}

static bool pack(const char *path, const char *name, const struct stat *st)
{
    size_t size = (size_t)st->st_size, got = 0;
    unsigned char *data = run_alloc(size + 1);
    ssize_t n = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (fd >= 0 && got < size && (n = read(fd, data + got, size - got)) > 0)
        got += (size_t)n;
    if (fd < 0 || n < 0)
        tool_error("%s cannot be read: %s", path, strerror(errno));
    else
        send_bytes(name, data, got, st->st_mode & S_IXUSR);
    if (fd >= 0)
        close(fd);
    free(data);
    return fd >= 0 && n >= 0;
}

static bool is_python(const char *name)
{
    size_t n = strlen(name);
    return n > 3 && !strcmp(name + n - 3, ".py");
}

/* Folders that are about the program, and not of it. */
static bool is_left(const char *base)
{
    static const char *const left[] = {".git", ".hg", ".svn", "__pycache__"};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (!strcmp(base, left[i]))
            return true;
    return false;
}

static int visit(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    const char *base = path + at->base;
    char *name;
    bool good;
    if (at->level && (is_left(base) || (kind == FTW_D && !parcel->deep)))
        return FTW_SKIP_SUBTREE;
    if (!(kind == FTW_D && at->level) && (kind != FTW_F || !S_ISREG(st->st_mode) || (!parcel->deep && !is_python(base))))
        return FTW_CONTINUE;
    parcel->bytes += kind == FTW_F ? (size_t)st->st_size : 0;
    if (parcel->bytes > MOST || ++parcel->files > FILES) {
        tool_error("%s: what is sent to every machine is %zu MiB and %d files and folders at most, with --path; keep data "
                   "elsewhere",
                   path, MOST >> 20, FILES);
        parcel->failed = true;
        return FTW_STOP;
    }
    name = run_printf("%s%s", parcel->prefix, path + strlen(parcel->root) + 1);
    good = kind == FTW_D || pack(path, name, st);
    if (kind == FTW_D)
        send_folder_name(name);
    free(name);
    parcel->failed |= !good;
    return good ? FTW_CONTINUE : FTW_STOP;
}

static bool send_folder(parcel_t *p, const char *folder, bool deep)
{
    p->deep = deep;
    p->root = folder;
    parcel = p;
    if (!p->failed && nftw(folder, visit, 32, FTW_ACTIONRETVAL) < 0) {
        tool_error("%s cannot be read: %s", folder, strerror(errno));
        p->failed = true;
    }
    return !p->failed;
}

/* A file that is not in the directory. */
static bool send_outside(parcel_t *p, const char *path)
{
    char *name = run_printf(OUTSIDE "%s", path);
    struct stat st;
    bool good = !stat(path, &st);
    parcel = p;
    good = good && pack(path, name, &st);
    if (!good)
        tool_error("%s cannot be read", path);
    free(name);
    return good;
}

static bool is_below(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return !strncmp(path, folder, n) && (!path[n] || path[n] == '/');
}

static bool is_sent(const run_t *run, const char *path)
{
    bool sent = is_below(path, run->dir);
    for (unsigned i = 0; !sent && i < run->n_paths; i++)
        sent = is_below(path, run->paths[i]);
    return sent;
}

bool run_send_code(run_t *run, run_remote_t *r)
{
    parcel_t p = {.run = run, .to = r, .prefix = ""};
    char *lib = run_printf("%s/lib", run->dir);
    bool good = send_folder(&p, run->dir, !run->file);
    if (good && run->file && !access(lib, R_OK)) {
        p.prefix = "lib/";
        good = send_folder(&p, lib, true);
    }
    free(lib);
    for (unsigned i = 0; good && i < run->n_paths; i++)
        if (!is_below(run->paths[i], run->dir)) {
            char *prefix = run_printf(OUTSIDE "%s/", run->paths[i]);
            p.prefix = prefix;
            good = send_folder(&p, run->paths[i], true);
            free(prefix);
        }
    for (unsigned i = 0; good && i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        for (unsigned k = 0; good && k < e->imports.n; k++)
            if (!is_sent(run, e->imports.at[k].name))
                good = send_outside(&p, e->imports.at[k].name);
        if (good && e->code) { /* of a DAG in one file */
            char *name = run_printf(WRITTEN "/%s.o.py", e->name);
            parcel = &p;
            send_bytes(name, (const unsigned char *)e->code, strlen(e->code), false);
            free(e->path);
            e->path = run_printf("%s/%s", run->dir, name);
            free(name);
        }
    }
    parcel = NULL;
    return good;
}

char *run_there(const run_proc_t *p, const char *path)
{
    const char *dir = p->run->dir;
    if (p->host == &p->run->here)
        return run_dup(path);
    if (!is_below(path, dir))
        return run_printf(OUTSIDE "%s", path);
    return run_dup(path[strlen(dir)] ? path + strlen(dir) + 1 : ".");
}
