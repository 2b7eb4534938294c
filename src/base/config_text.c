/* base/config_text.c - reading a configuration file, and splitting it into lines.
 *
 *     # a comment, also after a value
 *     heartbeat = 2s          # the same as WEFT_HEARTBEAT = 2s
 *
 * A '#' begins a comment where a line or a value would begin and after a blank, so that a path may contain one. Lines end with
 * \n or \r\n. There are no quotes and no continuation lines: a value is what is left without the blanks at both ends.
 *
 * Promise: any bytes give lines or problems, every line is given once, and nothing is read or written outside the copy.
 * tests/unit/base_config.c and tests/fuzz/config.c. */
#include "base/config_text.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/ascii.h"

enum { FILE_MAX_LEN = 1 << 20 };

weft_status_t wefti_config_file_from(const void *bytes, size_t n, wefti_config_file_t *file_out)
{
    char *text = wefti_malloc(n + 1);
    if (!text)
        return WEFT_ERR_NOMEM;
    if (n)
        memcpy(text, bytes, n);
    text[n] = '\0';
    *file_out = (wefti_config_file_t){.text = text, .n = n};
    return WEFT_OK;
}

static weft_status_t system_said(int error, const char **why_out)
{
    const char *words = strerrordesc_np(error);
    *why_out = words ? words : "it cannot be read";
    return error == ENOMEM ? WEFT_ERR_NOMEM : error == EMFILE || error == ENFILE ? WEFT_ERR_LIMIT : WEFT_ERR_INVALID;
}

static weft_status_t unfit(const char *why, const char **why_out)
{
    *why_out = why;
    return WEFT_ERR_INVALID;
}

static weft_status_t load_fd(int fd, wefti_config_file_t *file_out, const char **why_out)
{
    struct stat info;
    if (fstat(fd, &info))
        return system_said(errno, why_out);
    if (!S_ISREG(info.st_mode))
        return unfit("it is not a regular file", why_out);
    if (info.st_size > FILE_MAX_LEN)
        return unfit("it is larger than 1 MiB", why_out);
    size_t cap = (size_t)info.st_size, n = 0;
    char *text = wefti_malloc(cap + 1);
    if (!text)
        return system_said(ENOMEM, why_out);
    while (n < cap) {
        ssize_t got = read(fd, text + n, cap - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            int error = errno;
            wefti_free(text);
            return system_said(error, why_out);
        }
        if (!got)
            break; /* it shrank meanwhile */
        n += (size_t)got;
    }
    text[n] = '\0';
    *file_out = (wefti_config_file_t){.text = text, .n = n};
    return WEFT_OK;
}

weft_status_t wefti_config_file_load(const char *path, wefti_config_file_t *file_out, const char **why_out)
{
    /* not blocking: a fifo must not stop the program here */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return system_said(errno, why_out);
    weft_status_t st = load_fd(fd, file_out, why_out);
    close(fd);
    return st;
}

void wefti_config_file_free(wefti_config_file_t *file)
{
    wefti_free(file->text);
    memset(file, 0, sizeof *file);
}

/* [at, end) without the blanks at both ends: where it begins, and ends. */
static char *inside(char *at, char **end)
{
    while (at < *end && wefti_is_space(*at))
        at++;
    while (*end > at && wefti_is_space((*end)[-1]))
        (*end)--;
    return at;
}

/* The same, terminated in place. *end is writable. */
static char *trim(char *at, char *end)
{
    at = inside(at, &end);
    *end = '\0';
    return at;
}

/* What is wrong with [at, end) as a name, blanks at its ends aside; NULL: nothing. */
static const char *name_problem(char *at, char *end)
{
    at = inside(at, &end);
    if (at == end)
        return "has no name before the =";
    for (; at < end; at++)
        if (!wefti_is_alnum(*at) && *at != '_')
            return "has a name with something else than letters, digits and _ in it";
    return NULL;
}

/* [at, end) is one line, without its newline. 0: nothing on it. */
static int cut_line(char *at, char *end, wefti_config_line_t *line_out)
{
    const char *problem = NULL;
    char *equals = NULL;
    for (char *p = at; p < end; p++) {
        if (*p == '#' && (p == at || wefti_is_space(p[-1]) || (equals && equals == p - 1)))
            end = p;
        else if (*p == '=' && !equals)
            equals = p;
        else if (!*p)
            problem = "has a zero byte";
    }
    at = inside(at, &end);
    if (at == end)
        return 0;
    if (!problem)
        problem = equals ? name_problem(at, equals) : "is not NAME = value";
    line_out->problem = problem;
    line_out->value = problem ? NULL : trim(equals + 1, end);
    line_out->name = trim(at, problem ? end : equals);
    return 1;
}

int wefti_config_file_next(wefti_config_file_t *file, wefti_config_line_t *line_out)
{
    static const char mark[] = "\xef\xbb\xbf"; /* UTF-8's byte order mark, which some editors write */
    if (!file->at && file->n >= sizeof mark - 1 && !memcmp(file->text, mark, sizeof mark - 1))
        file->at = sizeof mark - 1;
    while (file->at < file->n) {
        char *at = file->text + file->at, *end = memchr(at, '\n', file->n - file->at);
        if (!end)
            end = file->text + file->n;
        file->at = (size_t)(end - file->text) + 1;
        file->line++;
        if (cut_line(at, end, line_out))
            return 1;
    }
    return 0;
}
