/* tools/key.c - `weft key new FILE`: makes a random key that nobody can guess, so that nothing has to stretch it.
 *
 * The file has "weft-key-1 " and 64 hex digits (src/core/key.c reads it), and only its owner can read it. A file that exists is
 * never replaced: its key may be in use. tests/tools/tools_key.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common.h"

enum { KEY_BYTES = 32 };

static const tool_command_t new_command;

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
    int n = snprintf(line, cap, "weft-key-1 ");
    for (size_t i = 0; i < sizeof bytes; i++)
        n += snprintf(line + n, cap - (size_t)n, "%02x", bytes[i]);
    snprintf(line + n, cap - (size_t)n, "\n");
    explicit_bzero(bytes, sizeof bytes);
    return true;
}

static bool write_all(int fd, const char *text, size_t n)
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

static int make_file(const char *path)
{
    char line[2 * KEY_BYTES + 32];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST)
        tool_error("%s is there already, and is not replaced: it may be a key that is in use", path);
    else if (fd < 0)
        tool_error("%s cannot be made: %s", path, strerror(errno));
    if (fd < 0)
        return TOOL_FAILED;
    bool made = make_line(line, sizeof line) && write_all(fd, line, strlen(line));
    int err = errno;
    explicit_bzero(line, sizeof line);
    if (close(fd) && made) {
        made = false;
        err = errno;
    }
    if (!made) {
        unlink(path);
        tool_error("%s cannot be written: %s", path, strerror(err));
        return TOOL_FAILED;
    }
    printf("%s has a new key: give it to every process that is to connect (--key-file, WEFT_KEY_FILE)\n", path);
    return TOOL_OK;
}

static int key_new(int argc, char **argv)
{
    tool_words_t words;
    int rc = tool_options(&new_command, argc, argv, NULL, &words);
    if (rc != TOOL_GO)
        return rc;
    if (!words.n || !*words.at[0]) {
        tool_error("say which file to make: weft key new FILE");
        return TOOL_USAGE;
    }
    if (words.n > 1) {
        tool_error("\"%s\" is one word too many: weft key new FILE", words.at[1]);
        return TOOL_USAGE;
    }
    return make_file(words.at[0]);
}

#define ABOUT \
    "Makes a file with a random key of 256 bits, which only its owner can read. Give every process that is to connect a copy, " \
    "with --key-file or " \
    "WEFT_KEY_FILE. A file that is there already is not touched."

static const tool_opt_t no_options[] = {{0}};
static const tool_command_t new_command = {
    .name = "new",
    .full_name = "weft key new",
    .summary = "make a file with a new key: weft key new FILE",
    .usage = "FILE",
    .about = ABOUT,
    .options = no_options,
    .words = true,
    .run = key_new,
};

static const tool_command_t *const commands[] = {&new_command, NULL};
const tool_command_t tool_key_command = {
    .name = "key",
    .full_name = "weft key",
    .summary = "make a key with which processes know each other",
    .usage = "new FILE",
    .about = ABOUT,
    .commands = commands,
};
