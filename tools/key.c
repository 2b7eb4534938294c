/* tools/key.c - `weft key new FILE`: makes a random key that nobody can guess, so that nothing has to stretch it.
 *
 * The file is "weft-key-1 " and 64 hex digits (src/core/key.c reads it), for its owner alone. One that exists is never replaced: it may be a
 * key that is in use. tests/tools/tools_key.py holds it. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common.h"

enum { OPT_HELP = 1 };
enum { KEY_BYTES = 32 };

static const tool_opt_t options[] = {
    {OPT_HELP, "help", NULL, "this"},
    {0, NULL, NULL, NULL},
};

void tool_key_help(FILE *f)
{
    fputs("Usage: weft key new FILE\n\n"
          "Makes a file with a random key of 256 bits, which only its owner can read. Give every process that\n"
          "is to connect a copy, with --key-file or WEFT_KEY_FILE. A file that is there already is not touched.\n\n",
          f);
    tool_args_help(options, f);
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

int tool_key(int argc, char **argv)
{
    static const char *const verbs[] = {"new"};
    const char *words[2];
    size_t n = 0;
    tool_args_t args;
    int id;
    tool_args_init(&args, argc, argv, options);
    args.words = true;
    while ((id = tool_args_next(&args)) > 0) {
        if (id == OPT_HELP) {
            tool_key_help(stdout);
            return TOOL_OK;
        }
        if (n == 2) {
            tool_error("\"%s\" is one word too many: weft key new FILE", args.value);
            return TOOL_USAGE;
        }
        words[n++] = args.value;
    }
    if (id < 0)
        return TOOL_USAGE;
    if (!n) {
        tool_error("say what to do: weft key new FILE");
        return TOOL_USAGE;
    }
    if (strcmp(words[0], verbs[0]) != 0) {
        tool_no_command(words[0], verbs, 1, "weft key");
        return TOOL_USAGE;
    }
    if (n < 2 || !*words[1]) {
        tool_error("say which file to make: weft key new FILE");
        return TOOL_USAGE;
    }
    return make_file(words[1]);
}
