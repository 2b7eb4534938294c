/* tools/key/key.c - `weft key`: its commands, and `weft key new FILE` and `weft key add FILE`, which make random keys that nobody
 * can guess.
 *
 * The file has lines of "weft-key-1 ", 64 hex digits, and perhaps a name (src/core/key.c reads it), and only its owner can
 * read it. `new` never replaces a file: its key may be in use. `add` writes a whole new file beside it, with one line more at its
 * end, and renames that over the old one, since processes may be reading it; the old one is locked meanwhile (flock(), which ends
 * with the process), so that of several that add nobody loses a key. tests/tools/tools_key.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <weft/policy.h>

#include "key.h"

#define MARK "weft-key-1 "
enum { KEY_BYTES = 32, NAME_MOST = 63, LINE_MOST = 2 * KEY_BYTES + NAME_MOST + 32, FILE_MOST = 65536, KEYS_MOST = 256 };
enum { LOCK_TRIES = 1500, LOCK_PAUSE_MS = 20 }; /* half a minute */

static const tool_command_t new_command, add_command;

typedef struct key_opts {
    const char *name;
} key_opts_t;

static key_opts_t o;

static bool good_name(void)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t n = o.name ? strlen(o.name) : 1;
    if (o.name && !strcasecmp(o.name, WEFT_ANONYMOUS)) {
        tool_error("\"%s\" is no name for a key: in a policy it stands for everybody without a name", o.name);
        return false;
    }
    if (n && n <= NAME_MOST && (!o.name || strspn(o.name, allowed) == n))
        return true;
    tool_error("\"%.80s\" is no name for a key: at most %d of A-Z a-z 0-9 . _ -", o.name, NAME_MOST);
    return false;
}

/* A line with the key; false if there is no randomness. */
static bool make_line(char *line, size_t cap)
{
    uint8_t bytes[KEY_BYTES];
    ssize_t got;
    do
        got = getrandom(bytes, sizeof bytes, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof bytes)
        return false;
    int n = snprintf(line, cap, MARK);
    for (size_t i = 0; i < sizeof bytes; i++)
        n += snprintf(line + n, cap - (size_t)n, "%02x", bytes[i]);
    snprintf(line + n, cap - (size_t)n, "%s%s\n", o.name ? " " : "", o.name ? o.name : "");
    explicit_bzero(bytes, sizeof bytes);
    return true;
}

static int make_file(const char *path)
{
    char line[LINE_MOST];
    if (!make_line(line, sizeof line)) {
        tool_error("%s cannot be made, there is no randomness: %s", path, strerror(errno));
        return TOOL_FAILED;
    }
    bool made = key_file_new(path, line, strlen(line), 0600);
    explicit_bzero(line, sizeof line);
    if (!made)
        return TOOL_FAILED;
    printf("%s has a new key: give it to every process that is to connect (--key-file, WEFT_KEY_FILE)\n", path);
    return TOOL_OK;
}

/* Open the file and lock it, until it is closed. Others replace the file while they have the lock, so after we waited for it, it
 * may not be the file any more: then the new one is locked. -1 after a sentence. */
static int open_locked(const char *path, struct stat *info)
{
    const struct timespec pause = {.tv_nsec = LOCK_PAUSE_MS * 1000000};
    for (int i = 0; i < LOCK_TRIES; i++) {
        struct stat there;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 || fstat(fd, info)) {
            tool_error("%s cannot be read: %s", path, strerror(errno));
            if (fd >= 0)
                close(fd);
            return -1;
        }
        if (!S_ISREG(info->st_mode)) {
            tool_error("%s is not a regular file", path);
            close(fd);
            return -1;
        }
        bool locked = !flock(fd, LOCK_EX | LOCK_NB);
        int err = errno;
        if (locked && !stat(path, &there) && there.st_dev == info->st_dev && there.st_ino == info->st_ino && !fstat(fd, info))
            return fd;
        close(fd);
        if (!locked && err != EWOULDBLOCK && err != EINTR) {
            tool_error("%s cannot be locked, so that others do not add to it at the same time: %s", path, strerror(err));
            return -1;
        }
        if (!locked)
            nanosleep(&pause, NULL);
    }
    tool_error("%s was locked by others for %d seconds, and has no new key", path, LOCK_TRIES * LOCK_PAUSE_MS / 1000);
    return -1;
}

/* What processes refuse to read, they must not be told to use. */
static bool is_kept_from_others(const char *path, const struct stat *info)
{
    if (!(info->st_mode & S_IRWXO))
        return true;
    tool_error("%s has mode %03o, and processes refuse such a key file: others must not have access to it (chmod o= %s). Whoever "
               "could read it may know its keys",
               path, (unsigned)info->st_mode & 0777, path);
    return false;
}

static unsigned count_keys(const char *text, size_t n)
{
    unsigned keys = 0;
    for (const char *at = text, *end = text + n; at && at < end;) {
        keys += (size_t)(end - at) > strlen(MARK) && !memcmp(at, MARK, strlen(MARK));
        at = memchr(at, '\n', (size_t)(end - at));
        at = at ? at + 1 : NULL;
    }
    return keys;
}

/* What the file has, with a line more at its end, in `text`. Its length; 0: it was told what is wrong. */
static size_t read_and_add(const char *path, int fd, char *text, size_t cap)
{
    size_t at = 0;
    ssize_t n = 1;
    while (at < FILE_MOST && n) {
        n = read(fd, text + at, FILE_MOST - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            tool_error("%s cannot be read: %s", path, strerror(errno));
            return 0;
        }
        at += (size_t)n;
    }
    unsigned keys = count_keys(text, at);
    if (at + LINE_MOST > FILE_MOST || !keys || keys >= KEYS_MOST) {
        tool_error("%s has no keys as weft key new makes them, or too many: at most %d", path, KEYS_MOST);
        return 0;
    }
    if (text[at - 1] != '\n')
        text[at++] = '\n';
    if (!make_line(text + at, cap - at)) {
        tool_error("there is no randomness");
        return 0;
    }
    return at + strlen(text + at);
}

/* Put a file with these bytes in its place: its owner, its group and its mode are as they were, since those who read it are. */
static bool replace(const char *path, const struct stat *info, const char *text, size_t n)
{
    char fresh[PATH_MAX + 8];
    struct stat made;
    if (snprintf(fresh, sizeof fresh, "%s.XXXXXX", path) >= (int)sizeof fresh) {
        tool_error("%s is too long a name", path);
        return false;
    }
    int fd = mkostemp(fresh, O_CLOEXEC); /* only its owner can read it */
    if (fd < 0) {
        tool_error("%s cannot be made: %s", fresh, strerror(errno));
        return false;
    }
    bool same = !fstat(fd, &made) && made.st_uid == info->st_uid && made.st_gid == info->st_gid;
    bool good =
        (same || !fchown(fd, info->st_uid, info->st_gid)) && !fchmod(fd, info->st_mode & 0777) && key_write_all(fd, text, n);
    int err = errno;
    if (close(fd) && good) {
        good = false;
        err = errno;
    }
    if (good && rename(fresh, path)) {
        good = false;
        err = errno;
    }
    if (good)
        return true;
    tool_error("%s cannot be written: %s", path, strerror(err));
    unlink(fresh);
    return false;
}

static int add_key(const char *named)
{
    static char text[FILE_MOST + LINE_MOST + 1];
    struct stat info;
    int rc = TOOL_FAILED, fd = -1;
    size_t n;
    char *path = realpath(named, NULL); /* a link stays one: what it names is replaced */
    if (!path) {
        tool_error("%s cannot be read: %s", named, strerror(errno));
        return rc;
    }
    fd = open_locked(path, &info);
    if (fd < 0)
        goto err_path;
    n = is_kept_from_others(named, &info) ? read_and_add(named, fd, text, sizeof text) : 0;
    if (n && replace(path, &info, text, n)) {
        printf("%s has a new key at its end: who has this file accepts it, and proves the first one as before\n", named);
        rc = TOOL_OK;
    }
    explicit_bzero(text, sizeof text);
    close(fd);
err_path:
    free(path);
    return rc;
}

static int with_file(const tool_command_t *command, int argc, char **argv, int (*run)(const char *path))
{
    tool_words_t words;
    int rc = tool_options(command, argc, argv, &o, &words);
    if (rc != TOOL_GO)
        return rc;
    if (!words.n || !*words.at[0]) {
        tool_error("say which file: %s FILE", command->full_name);
        return TOOL_USAGE;
    }
    if (words.n > 1) {
        tool_error("\"%s\" is one word too many: %s FILE", words.at[1], command->full_name);
        return TOOL_USAGE;
    }
    return good_name() ? run(words.at[0]) : TOOL_USAGE;
}

static int key_new(int argc, char **argv)
{
    return with_file(&new_command, argc, argv, make_file);
}

static int key_add(int argc, char **argv)
{
    return with_file(&add_command, argc, argv, add_key);
}

#define ABOUT \
    "new makes a file with a random key of 256 bits, which only its owner can read. Give every process that is to connect a " \
    "copy, " \
    "with --key-file or WEFT_KEY_FILE. A file that is there already is not touched. add puts one more key at the end of a " \
    "file: " \
    "processes accept all keys of a file, and prove the first. The name of a key is what the peers of its owner know him by."

static const tool_opt_t options[] = {
    {"name", "NAME", "of whoever has the key: what others know him by (default: none)", TO_TEXT(key_opts_t, name)},
    {0},
};
static const tool_command_t new_command = {
    .name = "new",
    .full_name = "weft key new",
    .summary = "make a file with a new key: weft key new FILE",
    .usage = "FILE [--name NAME]",
    .about = ABOUT,
    .options = options,
    .words = true,
    .run = key_new,
};
static const tool_command_t add_command = {
    .name = "add",
    .full_name = "weft key add",
    .summary = "add a new key to a file: weft key add FILE",
    .usage = "FILE [--name NAME]",
    .about = ABOUT,
    .options = options,
    .words = true,
    .run = key_add,
};

static const tool_command_t *const commands[] = {&new_command, &add_command, &key_cluster_command, NULL};
const tool_command_t tool_key_command = {
    .name = "key",
    .full_name = "weft key",
    .summary = "make a key or certificates with which processes know each other",
    .usage = "new FILE\nadd FILE\ncluster DIR NAME[=HOST,...]...",
    .commands = commands,
};
