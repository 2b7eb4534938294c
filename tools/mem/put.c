/* tools/mem/put.c - `weft mem put`: a file, or what comes from a pipe, into a block or a mirror.
 *
 * All or nothing: the block belongs to this client alone until it is whole, and only then gets its name. With --replace it
 * takes the name from another block. If anything fails before, nobody sees the block, and it is freed with the lease. A
 * mirror is made under its name and removed if it could not be filled; a client that is killed leaves it behind. The length
 * of a file is taken when it is opened. A pipe has no length, so its block grows as bytes come. A mirror needs the length
 * first, so a pipe goes to a temporary file then. tests/tools/tools_mem.py and tests/tools/tools_mem_loss.py check it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mem.h"

#define UNDOING (3 * WEFT_SECOND)

typedef struct put {
    mem_link_t link;
    const mem_opts_t *opts;
    const char *file, *name;
    int fd;
    bool stream;
    uint64_t len; /* of a file that is no stream */
    weft_block_t *block;
    weft_mirror_t *mirror;
    mem_flow_t flow;
    mem_meter_t meter;
} put_t;

/* --- the source --------------------------------------------------------------------------------------------- */

static bool source_open(put_t *p)
{
    struct stat st;
    bool is_stdin = !strcmp(p->file, "-");
    p->fd = is_stdin ? STDIN_FILENO : open(p->file, O_RDONLY | O_CLOEXEC);
    if (p->fd < 0 || fstat(p->fd, &st)) {
        tool_error("cannot read %s: %s", p->file, strerror(errno));
        return false;
    }
    if (S_ISDIR(st.st_mode)) {
        tool_error("%s is a directory; tar -c %s | weft mem put - NAME puts all of it", p->file, p->file);
        return false;
    }
    p->stream = is_stdin || !S_ISREG(st.st_mode);
    p->len = p->stream ? 0 : (uint64_t)st.st_size;
    return true;
}

/* Bytes to read within a moment, the end, or a signal. */
static bool readable(const put_t *p)
{
    struct pollfd pfd = {.fd = p->fd, .events = POLLIN};
    while (p->stream && !tool_signal() && poll(&pfd, 1, 100) <= 0)
        continue;
    return !tool_signal();
}

/* As much as there is up to cap; less only at the end. -1 after a sentence, or for a signal. */
static ssize_t source_read(put_t *p, char *buf, size_t cap)
{
    size_t at = 0;
    while (at < cap && readable(p)) {
        ssize_t n = read(p->fd, buf + at, cap - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            mem_meter_end(&p->meter);
            tool_error("cannot read %s: %s", p->file, strerror(errno));
            return -1;
        }
        if (!n)
            break;
        at += (size_t)n;
    }
    return tool_signal() ? -1 : (ssize_t)at;
}

/* Keep a stream in a temporary file, to know its length. */
static bool source_keep(put_t *p)
{
    FILE *kept = tmpfile();
    char *buf = malloc(MEM_CHUNK);
    ssize_t n = -1;
    if (!kept || !buf)
        tool_error("%s has no length, so it has to be kept in a temporary file first, which cannot be made: %s", p->file,
                   strerror(errno));
    while (kept && buf && (n = source_read(p, buf, MEM_CHUNK)) > 0) {
        p->len += (uint64_t)n;
        if (fwrite(buf, 1, (size_t)n, kept) != (size_t)n) {
            tool_error("cannot keep %s in a temporary file: %s", p->file, strerror(errno));
            n = -1;
            break;
        }
    }
    free(buf);
    if (n == 0 && !fflush(kept)) {
        if (p->fd != STDIN_FILENO)
            close(p->fd);
        p->fd = fcntl(fileno(kept), F_DUPFD_CLOEXEC, 3);
        p->stream = false;
    } else {
        n = -1;
    }
    if (kept)
        fclose(kept);
    return n == 0 && p->fd >= 0 && !lseek(p->fd, 0, SEEK_SET);
}

/* --- the block ---------------------------------------------------------------------------------------------- */

static int say(put_t *p, weft_status_t st)
{
    mem_meter_end(&p->meter);
    if (st == WEFT_ERR_STATE && !tool_signal()) {
        tool_error("%s is there already; --replace puts %s in its place, unless it belongs to another client", p->name, p->file);
        return TOOL_FAILED;
    }
    return mem_failed(st, "putting %s into %s failed", p->file, p->name);
}

static weft_status_t remove_old(put_t *p)
{
    for (unsigned i = 0; i < p->link.n_servers; i++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_status_t st;
        op.timeout_ns = p->opts->timeout_ns;
        st = tool_do_through(weft_store_remove(p->link.servers[i].store, p->name, &op), &op);
        if (st && st != WEFT_ERR_NOTFOUND)
            return st;
    }
    return WEFT_OK;
}

/* A signal does not cut it short: the server may have made the block already, and it would stay. */
static weft_status_t make(put_t *p, uint64_t len)
{
    weft_block_opts_t bo = WEFT_BLOCK_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    if (p->opts->mirror) {
        st = mem_mirror_open(&p->link, p->name, len, true, &p->mirror);
        p->flow.mirror = p->mirror;
        return st;
    }
    bo.len = len;
    bo.max_len = p->stream ? 0 : len;
    op.timeout_ns = p->opts->timeout_ns;
    st = tool_do_through(weft_block_alloc(p->link.servers[0].store, &bo, &op), &op);
    if (!st) {
        p->block = weft_op_block(&op);
        p->flow.remote = weft_block_remote(p->block);
    }
    return st;
}

static weft_status_t grow(put_t *p, uint64_t len)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    op.timeout_ns = p->opts->timeout_ns;
    st = tool_do_through(weft_block_extend(p->block, len, &op), &op);
    if (!st)
        p->flow.remote = weft_block_remote(p->block); /* writes under way keep the old one */
    return st;
}

/* The same for who may not read a block of that name: take it, and give it back. */
static weft_status_t name_free_to_take(put_t *p)
{
    weft_block_opts_t bo = WEFT_BLOCK_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    bo.name = p->name;
    bo.len = 1;
    op.timeout_ns = p->opts->timeout_ns;
    weft_status_t st = tool_do_through(weft_block_alloc(p->link.servers[0].store, &bo, &op), &op);
    return st ? st : tool_do_through(weft_block_free(weft_op_block(&op), &op), &op);
}

/* Is the name free? Asked before the bytes are sent. If another client takes it meanwhile, the end of the transfer fails. */
static weft_status_t name_free(put_t *p)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st;
    op.timeout_ns = p->opts->timeout_ns;
    st = tool_do_through(weft_block_open(p->link.servers[0].store, p->name, &op), &op);
    if (!st)
        weft_block_drop(weft_op_block(&op));
    if (st == WEFT_ERR_PERMISSION) /* to read it, and that is not what is wanted */
        return name_free_to_take(p);
    return st == WEFT_ERR_NOTFOUND ? WEFT_OK : st ? st : WEFT_ERR_STATE;
}

static weft_status_t publish(put_t *p)
{
    weft_op_t op = WEFT_OP_INIT;
    op.timeout_ns = p->opts->timeout_ns;
    return tool_do_through(weft_block_share(p->block, p->name, p->opts->replace, &op), &op);
}

/* Take back what was made, and tell if that cannot be done. */
static void undo(put_t *p)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = WEFT_OK;
    op.timeout_ns = UNDOING;
    if (p->block) {
        tool_do_through(weft_block_free(p->block, &op), &op); /* or mem_link_close() frees it, with the lease */
    } else if (p->mirror) {
        tool_do_through(weft_mirror_close(p->mirror, &op), &op);
        st = remove_old(p);
    }
    p->block = NULL;
    p->mirror = NULL;
    if (st && st != WEFT_ERR_STALE && st != WEFT_ERR_NOTFOUND)
        tool_error("%s may be left half written at the server, if that lives on; weft mem rm %s removes it", p->name, p->name);
}

/* --- putting ------------------------------------------------------------------------------------------------- */

/* Wait for the oldest transfer, and show the progress. */
static weft_status_t reap(put_t *p, bool *any)
{
    mem_slot_t *slot;
    weft_status_t st = mem_flow_next(&p->flow, &slot);
    *any = slot != NULL;
    if (slot)
        mem_meter_show(&p->meter, slot->offset + slot->len);
    return st;
}

/* TOOL_OK and *bytes_out, or the exit status after a sentence. */
static int fill(put_t *p, uint64_t *bytes_out)
{
    uint64_t at = 0;
    weft_status_t st = p->stream ? WEFT_OK : make(p, p->len);
    bool any = true, made = !p->stream;
    while (!st && (p->stream || at < p->len)) {
        mem_slot_t *slot = mem_flow_free_slot(&p->flow);
        size_t cap = p->stream || p->len - at > MEM_CHUNK ? MEM_CHUNK : (size_t)(p->len - at);
        ssize_t n;
        if (!slot) {
            st = reap(p, &any);
            continue;
        }
        n = source_read(p, slot->buf, cap);
        if (n < 0)
            return tool_signal() ? 128 + tool_signal() : TOOL_FAILED;
        if (!p->stream && (size_t)n < cap) {
            mem_meter_end(&p->meter);
            tool_error("%s became shorter while it was read", p->file);
            return TOOL_FAILED;
        }
        if (!n && made)
            break;
        if (p->stream)
            st = made ? grow(p, at + (uint64_t)n) : make(p, (uint64_t)n);
        made = true;
        if (!st && n)
            st = mem_flow_write(&p->flow, at, (size_t)n);
        at += (uint64_t)n;
        if (p->stream && (size_t)n < cap)
            break;
    }
    while (!st && any)
        st = reap(p, &any);
    *bytes_out = at;
    return st ? say(p, st) : TOOL_OK;
}

static int put(put_t *p)
{
    weft_remote_info_t info = WEFT_REMOTE_INFO_INIT;
    const char *path = "mirror";
    uint64_t bytes = 0;
    double seconds;
    weft_status_t st;
    int rc;
    if (!mem_flow_init(&p->flow, &p->link))
        return TOOL_FAILED;
    st = p->opts->mirror ? p->opts->replace ? remove_old(p) : WEFT_OK : p->opts->replace ? WEFT_OK : name_free(p);
    if (st) {
        mem_flow_free(&p->flow);
        return say(p, st);
    }
    mem_meter_start(&p->meter, "put", p->name, p->len, p->opts->json);
    rc = fill(p, &bytes);
    if (!rc && p->block && (st = publish(p)))
        rc = say(p, st);
    mem_flow_free(&p->flow);
    if (rc) {
        mem_meter_end(&p->meter);
        undo(p);
        return rc;
    }
    if (p->block) {
        path = weft_remote_get_info(weft_block_remote(p->block), &info) ? "?" : weft_rma_path_name(info.path);
        weft_block_drop(p->block);
    } else {
        weft_op_t op = WEFT_OP_INIT;
        op.timeout_ns = p->opts->timeout_ns;
        st = tool_do_through(weft_mirror_close(p->mirror, &op), &op);
        if (st)
            return mem_failed(st, "%s is written, but the mirror did not close", p->name);
    }
    seconds = mem_meter_end(&p->meter);
    mem_report_transfer(p->opts, stdout, "put", p->name, bytes, seconds, path);
    return TOOL_OK;
}

int mem_put(const mem_opts_t *opts)
{
    put_t p = {.opts = opts, .file = opts->words.at[0], .name = opts->words.at[1], .fd = -1};
    int rc = TOOL_FAILED;
    if (!source_open(&p))
        goto out;
    rc = mem_link_open(&p.link, opts, false);
    if (rc)
        goto out;
    if (opts->mirror && p.stream && !source_keep(&p))
        rc = tool_signal() ? 128 + tool_signal() : TOOL_FAILED;
    else if (opts->mirror && !p.len)
        rc = (tool_error("%s is empty, and a mirror cannot be", p.file), TOOL_FAILED);
    else
        rc = put(&p);
    mem_link_close(&p.link, true);
out:
    if (p.fd > STDIN_FILENO)
        close(p.fd);
    return rc;
}
