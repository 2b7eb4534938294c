/* tools/mem/get.c - `weft mem get`: a block or a mirror into a file, or into a pipe.
 *
 * A file appears whole or not at all: bytes go to FILE.part, which is renamed to FILE when all are there, and removed
 * otherwise. Only --force overwrites a file that exists, even one that appeared meanwhile. Pipes and devices are written
 * directly. tests/tools/tools_mem.py and tests/tools/tools_mem_loss.py check it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mem.h"

typedef struct get {
    mem_link_t link;
    const mem_opts_t *opts;
    const char *file, *name;
    char *part; /* NULL: written as it is */
    int fd;
    uint64_t len;
    weft_block_t *block;
    weft_mirror_t *mirror;
    mem_flow_t flow;
    mem_meter_t meter;
} get_t;

/* --- the file ----------------------------------------------------------------------------------------------- */

static bool say_errno(get_t *g, const char *what, const char *file)
{
    int err = errno;
    mem_meter_end(&g->meter);
    tool_error("cannot %s %s: %s", what, file, strerror(err));
    return false;
}

/* Before anything is asked of a server: what can be known to fail. */
static bool target_check(get_t *g)
{
    struct stat st;
    if (!strcmp(g->file, "-")) {
        g->fd = STDOUT_FILENO;
        return true;
    }
    if (!stat(g->file, &st)) {
        if (S_ISDIR(st.st_mode)) {
            tool_error("%s is a directory; name the file to write in it", g->file);
            return false;
        }
        if (!S_ISREG(st.st_mode)) {
            g->fd = open(g->file, O_WRONLY | O_CLOEXEC);
            return g->fd >= 0 || say_errno(g, "write", g->file);
        }
        if (!g->opts->force) {
            tool_error("%s is there already; --force overwrites it", g->file);
            return false;
        }
    }
    if (asprintf(&g->part, "%s.part", g->file) < 0) {
        g->part = NULL;
        tool_error("out of memory");
        return false;
    }
    return true;
}

static bool target_open(get_t *g)
{
    if (!g->part)
        return true;
    g->fd = open(g->part, O_WRONLY | O_CREAT | O_CLOEXEC | (g->opts->force ? O_TRUNC : O_EXCL), 0666);
    if (g->fd < 0 && errno == EEXIST) {
        tool_error("%s is there already: another get is writing it, or was killed; --force overwrites it", g->part);
        free(g->part); /* not ours to remove */
        g->part = NULL;
        return false;
    }
    if (g->fd < 0) {
        say_errno(g, "write", g->part);
        free(g->part);
        g->part = NULL;
        return false;
    }
    /* a full disk is reported now, and not after an hour; where fallocate() cannot tell, write() does */
    if (g->len && fallocate(g->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)g->len) && errno == ENOSPC)
        return say_errno(g, "make room for", g->part);
    return true;
}

static bool target_write(get_t *g, const char *buf, size_t n)
{
    while (n) {
        ssize_t done = write(g->fd, buf, n);
        if (tool_signal())
            return false;
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return say_errno(g, "write", g->part ? g->part : g->file);
        buf += done;
        n -= (size_t)done;
    }
    return true;
}

static bool target_finish(get_t *g)
{
    bool whole = !close(g->fd);
    g->fd = -1;
    if (!whole)
        return say_errno(g, "write", g->part);
    if (g->opts->force)
        whole = !rename(g->part, g->file);
    else {
        whole = !renameat2(AT_FDCWD, g->part, AT_FDCWD, g->file, RENAME_NOREPLACE);
        /* a file system without RENAME_NOREPLACE: link() does not replace either; the last resort is rename() */
        if (!whole && errno == EINVAL)
            whole = !link(g->part, g->file) ? !unlink(g->part) : errno != EEXIST && !rename(g->part, g->file);
    }
    if (!whole)
        return say_errno(g, "write", g->file);
    free(g->part);
    g->part = NULL;
    return true;
}

/* Nothing half done is left. */
static void target_free(get_t *g)
{
    if (g->fd > STDERR_FILENO)
        close(g->fd);
    if (g->part && g->fd >= 0)
        unlink(g->part);
    free(g->part);
}

/* --- getting ------------------------------------------------------------------------------------------------ */

static weft_status_t source_open(get_t *g)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_mirror_info_t info = WEFT_MIRROR_INFO_INIT;
    weft_status_t st;
    if (g->opts->mirror) {
        st = mem_mirror_open(&g->link, g->name, 0, false, &g->mirror);
        if (!st)
            st = weft_mirror_get_info(g->mirror, &info);
        g->flow.mirror = g->mirror;
        g->len = info.len;
        return st;
    }
    op.timeout_ns = g->opts->timeout_ns;
    st = tool_do(weft_block_open(g->link.servers[0].store, g->name, &op), &op);
    if (!st) {
        g->block = weft_op_block(&op);
        g->len = op.len;
        g->flow.remote = weft_block_remote(g->block);
    }
    return st;
}

/* TOOL_OK, or the exit status after a sentence. */
static int copy(get_t *g)
{
    uint64_t asked = 0;
    mem_slot_t *slot;
    weft_status_t st;
    do {
        while (asked < g->len && mem_flow_free_slot(&g->flow)) {
            size_t n = g->len - asked < MEM_CHUNK ? (size_t)(g->len - asked) : MEM_CHUNK;
            st = mem_flow_read(&g->flow, asked, n);
            if (st)
                goto err_read;
            asked += n;
        }
        st = mem_flow_next(&g->flow, &slot);
        if (st)
            goto err_read;
        if (slot && !target_write(g, slot->buf, slot->len))
            return tool_signal() ? 128 + tool_signal() : TOOL_FAILED;
        if (slot)
            mem_meter_show(&g->meter, slot->offset + slot->len);
    } while (slot);
    return TOOL_OK;

err_read:
    mem_meter_end(&g->meter);
    return mem_failed(st, "getting %s failed", g->name);
}

static int get(get_t *g)
{
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    weft_status_t st;
    int rc;
    if (!mem_flow_init(&g->flow, &g->link))
        return TOOL_FAILED;
    st = source_open(g);
    if (st == WEFT_ERR_STATE && !tool_signal())
        rc = (tool_error("%s was put %s --mirror, so get it %s", g->name, g->opts->mirror ? "without" : "with",
                         g->opts->mirror ? "without it" : "with it, and name its servers"),
              TOOL_FAILED);
    else if (st)
        rc = mem_failed(st, "getting %s failed", g->name);
    else if (!target_open(g))
        rc = TOOL_FAILED;
    else {
        mem_meter_start(&g->meter, "get", g->name, g->len, g->opts->json || g->fd == STDOUT_FILENO);
        rc = copy(g);
    }
    mem_flow_free(&g->flow);
    if (!rc && g->part && !target_finish(g))
        rc = TOOL_FAILED;
    if (!rc) {
        /* if stdout has the bytes, the report goes to stderr, and only with --json */
        FILE *f = g->fd == STDOUT_FILENO ? stderr : stdout;
        const char *path = "mirror";
        double seconds = mem_meter_end(&g->meter);
        if (g->block)
            path = weft_remote_get_info(g->flow.remote, &info) ? "?" : weft_rma_path_name(info.path);
        if (f == stdout || g->opts->json)
            mem_report_transfer(g->opts, f, "get", g->name, g->len, seconds, path);
    }
    weft_block_drop(g->block);
    if (g->mirror) {
        weft_op_t op = WEFT_OP_INIT;
        op.timeout_ns = g->opts->timeout_ns;
        tool_do_through(weft_mirror_close(g->mirror, &op), &op);
    }
    return rc;
}

int mem_get(const mem_opts_t *opts)
{
    get_t g = {.opts = opts, .name = opts->words.at[0], .file = opts->words.at[1], .fd = -1};
    int rc = TOOL_FAILED;
    if (target_check(&g)) {
        rc = mem_link_open(&g.link, opts, opts->mirror);
        if (!rc) {
            rc = get(&g);
            mem_link_close(&g.link, true);
        }
    }
    target_free(&g);
    return rc;
}
