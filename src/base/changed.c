/* base/changed.c - see changed.h.
 *
 * The time of the last write alone does not do: a file that is written twice within one tick of the file system's clock has the
 * same one, and `cp -p` brings an older one along. The time of the inode's change is set by the system in both cases. */
#include "base/changed.h"

#include <sys/stat.h>

static uint64_t ns(struct timespec t)
{
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

bool wefti_changed_look(wefti_changed_t *c, const char *path)
{
    struct stat st;
    wefti_changed_t was = *c;
    *c = (wefti_changed_t){.looked = true};
    if (!stat(path, &st)) {
        c->there = true;
        c->device = (uint64_t)st.st_dev;
        c->inode = (uint64_t)st.st_ino;
        c->size = (uint64_t)st.st_size;
        c->mtime_ns = ns(st.st_mtim);
        c->ctime_ns = ns(st.st_ctim);
    }
    return was.looked && (was.there != c->there || was.device != c->device || was.inode != c->inode || was.size != c->size ||
                          was.mtime_ns != c->mtime_ns || was.ctime_ns != c->ctime_ns);
}
