/* tools/run/code.c - the files of a program, sent to a machine that does not have them.
 *
 * What travels is the directory of the elements with all folders in it, so also its `lib`. Not what begins with a dot, and not
 * what Python compiled. A program is small; data belongs into memory elements or onto a shared file system.
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

typedef struct parcel {
    run_t *run;
    run_remote_t *to;
    const char *root, *prefix; /* files below root get names below prefix */
    size_t bytes;
    unsigned files;
    bool failed;
} parcel_t;

static parcel_t *parcel; /* nftw() has no argument for its function */

static bool pack(const char *path, const char *name, size_t size)
{
    unsigned char *data = run_alloc(size + 1);
    size_t got = 0, cap;
    ssize_t n = 1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    run_text_t line = {0};
    tool_json_t j;
    char *text;
    while (fd >= 0 && got < size && (n = read(fd, data + got, size - got)) > 0)
        got += (size_t)n;
    if (fd < 0 || n < 0) {
        tool_error("%s cannot be read: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        free(data);
        return false;
    }
    close(fd);
    cap = sodium_base64_encoded_len(got, sodium_base64_VARIANT_ORIGINAL);
    text = run_alloc(cap);
    sodium_bin2base64(text, cap, data, got, sodium_base64_VARIANT_ORIGINAL);
    j = run_json_begin(&line);
    tool_json_open(&j, NULL, '{');
    tool_json_text(&j, "do", "file");
    tool_json_text(&j, "name", name);
    tool_json_text(&j, "data", text);
    tool_json_end(&j);
    run_json_end(&j);
    run_lines_say(&parcel->to->lines, line.p, line.n);
    run_free(&line);
    free(text);
    free(data);
    return true;
}

static int visit(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    const char *base = path + at->base;
    char *name;
    bool good;
    if (at->level && (*base == '.' || !strcmp(base, "__pycache__")))
        return FTW_SKIP_SUBTREE;
    if (kind != FTW_F || !S_ISREG(st->st_mode))
        return FTW_CONTINUE;
    parcel->bytes += (size_t)st->st_size;
    if (parcel->bytes > MOST || ++parcel->files > FILES) {
        tool_error("%s has more than %zu MiB or %d files, which are sent to every machine: keep data elsewhere", parcel->run->dir,
                   MOST >> 20, FILES);
        parcel->failed = true;
        return FTW_STOP;
    }
    name = run_printf("%s%s", parcel->prefix, path + strlen(parcel->root) + 1);
    good = pack(path, name, (size_t)st->st_size);
    free(name);
    parcel->failed |= !good;
    return good ? FTW_CONTINUE : FTW_STOP;
}

bool run_send_code(run_t *run, run_remote_t *r)
{
    parcel_t p = {.run = run, .to = r, .root = run->dir, .prefix = ""};
    parcel = &p;
    if (nftw(run->dir, visit, 32, FTW_ACTIONRETVAL) < 0 && !p.failed) {
        tool_error("%s cannot be read: %s", run->dir, strerror(errno));
        p.failed = true;
    }
    return !p.failed;
}

const char *run_there(const run_proc_t *p, const char *path)
{
    size_t n = strlen(p->run->dir);
    if (p->host == &p->run->here || strncmp(path, p->run->dir, n) != 0)
        return path;
    return path[n] == '/' ? path + n + 1 : path[n] ? path : ".";
}
