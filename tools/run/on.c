/* tools/run/on.c - what --on names: machines by ssh, or an engine that has machines; and the key of the run.
 *
 *     ssh://[USER@]HOST[:PORT],...    an agent on each of them
 *     dask://HOST:PORT, dask          a Dask cluster, or one on this machine for the time of the run
 *     openwhisk[://HOST]              an OpenWhisk
 *
 * tests/tools/tools_run_ssh.py and tests/python/test_on_*.py check it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "run.h"

#define KEY_LEAST 16
#define KEY_MAX 65536

static void enlist(run_t *run, char *name, char **argv, bool places)
{
    run_remote_t *r = run_alloc(sizeof *r), **at = &run->remotes;
    r->host.name = name;
    r->argv = argv;
    r->places = places;
    r->lines = r->err = (run_lines_t)RUN_LINES_CLOSED;
    while (*at)
        at = &(*at)->next;
    *at = r;
}

/* --- ssh ------------------------------------------------------------------------------------------------------------------ */

typedef struct ssh_place {
    char *text; /* USER@HOST as ssh wants it; points into what was split */
    char *host; /* its HOST */
    char *port; /* NULL: ssh's own */
} ssh_place_t;

/* [USER@]HOST[:PORT]; an IPv6 address is in brackets. */
static bool ssh_place(char *text, ssh_place_t *at)
{
    char *host = strrchr(text, '@'), *end, *port;
    uint64_t number;
    host = host ? host + 1 : text;
    end = *host == '[' ? strchr(host, ']') : NULL;
    port = strchr(end ? end : host, ':');
    if (port)
        *port++ = '\0';
    if (!*host || *text == '-' || *host == '-' || (port && !tool_parse_count(port, 1, 65535, &number))) {
        tool_error("--on ssh://HOST,HOST...: \"%s%s%s\" is not [USER@]HOST[:PORT]", text, port ? ":" : "", port ? port : "");
        return false;
    }
    if (end) { /* ssh wants it without the brackets */
        *end = '\0';
        memmove(host, host + 1, strlen(host));
    }
    *at = (ssh_place_t){text, host, port};
    return true;
}

static void add_ssh(run_t *run, const ssh_place_t *at)
{
    char *words = run_dup(run->opts.ssh), *rest = words, *word;
    char **argv = run_alloc((strlen(words) + 16) * sizeof *argv); /* as many words as it can have, and what is added */
    unsigned n = 0;
    while ((word = strsep(&rest, " ")))
        if (*word)
            argv[n++] = run_dup(word);
    argv[n++] = run_dup("-o");
    argv[n++] = run_dup("BatchMode=yes");
    argv[n++] = run_dup("-o");
    argv[n++] = run_dup("ConnectTimeout=10");
    argv[n++] = run_dup("-o");
    argv[n++] = run_dup("ServerAliveInterval=5");
    if (at->port) {
        argv[n++] = run_dup("-p");
        argv[n++] = run_dup(at->port);
    }
    argv[n++] = run_dup(at->text);
    argv[n++] = run_dup(run->opts.weft);
    argv[n++] = run_dup("run");
    argv[n++] = run_dup("--agent");
    enlist(run, run_dup(at->host), argv, false);
    free(words);
}

/* Enlists each machine of the list; without a run they are only read. */
static bool on_ssh(run_t *run, const char *list)
{
    char *copy = run_dup(list), *rest = copy, *one;
    ssh_place_t at;
    bool good = true;
    if (!*list) {
        tool_error("--on ssh://HOST,HOST... names the machines");
        good = false;
    }
    while (good && (one = strsep(&rest, ","))) {
        good = ssh_place(one, &at);
        if (good && run)
            add_ssh(run, &at);
    }
    free(copy);
    return good;
}

/* --- engines, which Python speaks with --------------------------------------------------------------------------------- */

static bool on_engine(run_t *run, const char *engine, const char *where)
{
    char **argv = run_alloc(8 * sizeof *argv);
    unsigned n = 0;
    if (!run->python)
        run->python = tool_find_python(run->opts.python);
    if (!run->python) {
        tool_error("there is no interpreter %s; --python PATH names one", run->opts.python);
        free(argv);
        return false;
    }
    argv[n++] = run_dup(run->python);
    argv[n++] = run_dup("-c");
    argv[n++] = run_printf("try:\n"
                           "    from disagg.on.%s import bridge\n"
                           "except ImportError as error:\n"
                           "    raise SystemExit(f'{error}: pip install \".[disagg]\" in the source tree installs disagg for %s; "
                           "--python PATH names another interpreter')\n"
                           "bridge()\n",
                           engine, run->python);
    argv[n++] = run_dup(where);
    enlist(run, run_printf("%s%s%s", engine, *where ? "://" : "", where), argv, true);
    return true;
}

/* A cluster of this machine: its workers need no command but this one, wherever it is installed. */
static void take_this_command(run_t *run)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (strcmp(run->opts.weft, "weft") != 0 || n < 0)
        return;
    self[n] = '\0';
    run->opts.weft = run->self = run_dup(self);
}

static const char *after(const char *text, const char *scheme)
{
    size_t n = strlen(scheme);
    if (strncmp(text, scheme, n) != 0)
        return NULL;
    return !text[n] ? "" : !strncmp(text + n, "://", 3) ? text + n + 3 : NULL;
}

/* --- the key --------------------------------------------------------------------------------------------------------------- */

static char *as_base64(const uint8_t *bytes, size_t n)
{
    size_t cap = sodium_base64_encoded_len(n, sodium_base64_VARIANT_ORIGINAL);
    return sodium_bin2base64(run_alloc(cap), cap, bytes, n, sodium_base64_VARIANT_ORIGINAL);
}

/* Of the user: the bytes of the file, as they are, so that memory outside of the run which uses it is reached. */
static char *key_in(const char *path)
{
    uint8_t *bytes = run_alloc(KEY_MAX + 1);
    size_t n = 0;
    ssize_t got = 1;
    char *key = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && n <= KEY_MAX && (got = read(fd, bytes + n, KEY_MAX + 1 - n)) > 0)
        n += (size_t)got;
    if (fd < 0 || got < 0)
        tool_error("the key file %s cannot be read: %s", path, strerror(errno));
    else if (n < KEY_LEAST || n > KEY_MAX)
        tool_error("the key file %s has %s%zu bytes, but should have %d to %d; \"weft key new FILE\" makes one", path,
                   n > KEY_MAX ? "more than " : "", n > KEY_MAX ? (size_t)KEY_MAX : n, KEY_LEAST, KEY_MAX);
    else
        key = as_base64(bytes, n);
    if (fd >= 0)
        close(fd);
    explicit_bzero(bytes, KEY_MAX + 1);
    free(bytes);
    return key;
}

/* For this run alone: whoever reaches a port of it must have it. */
static char *new_key(void)
{
    uint8_t random[32];
    char text[96];
    int n;
    ssize_t got;
    while ((got = getrandom(random, sizeof random, 0)) < 0 && errno == EINTR)
        ;
    if (got != (ssize_t)sizeof random) {
        tool_error("there is no randomness for the key of the run: %s", strerror(errno));
        return NULL;
    }
    n = snprintf(text, sizeof text, "weft-key-1 ");
    for (size_t i = 0; i < sizeof random; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%02x", random[i]);
    text[n++] = '\n';
    char *key = as_base64((const uint8_t *)text, (size_t)n);
    explicit_bzero(random, sizeof random);
    explicit_bzero(text, sizeof text);
    return key;
}

static bool find_key(run_t *run)
{
    const char *path = getenv("WEFT_KEY_FILE"); /* --key-file sets it; the configuration does not tell where a key is */
    if (path && *path)
        run->key = key_in(path);
    else if (tool_has_key())
        tool_error("the key file of the configuration file is not used with --on: name it with --key-file PATH");
    else
        run->key = new_key();
    return run->key != NULL;
}

bool run_on(run_t *run)
{
    const char *on = run->opts.on, *where;
    if (!on)
        return true;
    if (run->opts.n_transports && !tool_has_key()) {
        tool_error("--transport with --on: elements elsewhere use a key of the run, which other memory does not have; --key-file "
                   "names the key that both shall use");
        return false;
    }
    if (!find_key(run))
        return false;
    if ((where = after(on, "ssh")))
        return on_ssh(run, where);
    if ((where = after(on, "dask")) && !*where)
        take_this_command(run);
    if (where)
        return on_engine(run, "dask", where);
    return on_engine(run, "openwhisk", after(on, "openwhisk"));
}

/* An option without an effect would hide that another was forgotten or misspelt. */
static bool misplaced(bool said, bool counts, const char *option, const char *where)
{
    if (said && !counts)
        tool_error("%s is for %s, and would do nothing here", option, where);
    return said && !counts;
}

bool run_on_check(const run_opts_t *o)
{
    const char *on = o->on ? o->on : "", *ssh = after(on, "ssh"), *openwhisk = after(on, "openwhisk");
    if (o->on && !ssh && !openwhisk && !after(on, "dask")) {
        tool_error("--on %s is none of ssh://HOST,HOST..., dask://HOST:PORT, dask, openwhisk", on);
        return false;
    }
    return !misplaced(o->ssh, ssh, "--ssh", "--on ssh://HOST") && !misplaced(o->weft, o->on, "--weft", "--on") &&
           !misplaced(o->image, openwhisk, "--image", "--on openwhisk") &&
           !misplaced(o->address, openwhisk || o->agent, "--address", "--on openwhisk and --agent") &&
           (!ssh || on_ssh(NULL, ssh));
}
