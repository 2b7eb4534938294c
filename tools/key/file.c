/* tools/key/file.c - makes files with secrets.
 *
 * A file that exists is never replaced: what is in it may be in use. It is read by its owner alone from its first moment, and
 * half a file is not left behind. tests/tools/tools_key.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "key.h"

bool key_write_all(int fd, const char *text, size_t n)
{
    while (n) {
        ssize_t put = write(fd, text, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        text += put;
        n -= (size_t)put;
    }
    return !fsync(fd) || errno == EINVAL || errno == EROFS; /* a file system that has no fsync() */
}

bool key_file_new(const char *path, const char *text, size_t n, unsigned mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, (mode_t)mode);
    if (fd < 0 && errno == EEXIST)
        tool_error("%s is there already, and is not replaced: it may be in use", path);
    else if (fd < 0)
        tool_error("%s cannot be made: %s", path, strerror(errno));
    if (fd < 0)
        return false;
    bool made = key_write_all(fd, text, n);
    int err = errno;
    if (close(fd) && made) {
        made = false;
        err = errno;
    }
    if (!made) {
        unlink(path);
        tool_error("%s cannot be written: %s", path, strerror(err));
    }
    return made;
}
