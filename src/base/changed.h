/* base/changed.h - has a file changed since it was last looked at?
 *
 * By its inode, its size and its time of change in nanoseconds; a file that comes or vanishes has changed, too. One thread at a
 * time. tests/unit/base_changed.c. */
#ifndef WEFTI_CHANGED_H
#define WEFTI_CHANGED_H

#include <stdbool.h>
#include <stdint.h>

/* All zero: nobody has looked yet. */
typedef struct wefti_changed {
    uint64_t device, inode, size, mtime_ns, ctime_ns;
    bool looked, there;
} wefti_changed_t;

/* Look at the file now. True if it is another one than at the last look; the first look says false. */
bool wefti_changed_look(wefti_changed_t *c, const char *path);

#endif
