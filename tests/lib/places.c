/* tests/lib/places.c - see places.h. */
#include "places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

static void die(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

void place_new(char uri[128])
{
    char path[64] = "/tmp/weft-test-XXXXXX";
    if (!mkdtemp(path))
        die("no directory for a test");
    snprintf(uri, 128, "dir://%s", path);
}

void place_remove(const char *uri)
{
    char command[256], gone[160];
    if (strncmp(uri, "dir:///tmp/weft-test-", 21) != 0)
        die("that is no directory of a test");
    /* at once: whoever has entries there puts them back while it is emptied */
    snprintf(gone, sizeof gone, "%s.gone", uri + 6);
    snprintf(command, sizeof command, "rm -rf '%s'", gone);
    if (rename(uri + 6, gone) || system(command))
        die("the directory of a test cannot be removed");
}

void place_open(place_t *p, const char *uri, weft_progress_mode_t mode)
{
    place_open_lease(p, uri, mode, 0);
}

void place_open_lease(place_t *p, const char *uri, weft_progress_mode_t mode, uint64_t lease_ns)
{
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    weft_registry_opts_t how = WEFT_REGISTRY_OPTS_INIT;
    how.lease_ns = lease_ns;
    opts.progress = mode;
    opts.transports = "shm";
    must(weft_runtime_open(&opts, &p->rt), "weft_runtime_open");
    snprintf(p->uri, sizeof p->uri, "%s", uri);
    must(weft_registry_open(p->rt, uri, &how, &p->registry), "weft_registry_open");
}

void place_close(place_t *p)
{
    weft_op_t op = WEFT_OP_INIT;
    must(weft_registry_close(p->registry, &op), "weft_registry_close");
    must(place_wait(&op), "closing a registry");
    must(weft_runtime_close(p->rt), "weft_runtime_close");
}

weft_status_t place_wait(weft_op_t *op)
{
    weft_status_t st = weft_op_wait(op, 20 * WEFT_SECOND);
    if (!weft_op_done(op))
        die("an operation on a registry did not complete");
    return st;
}

weft_status_t place_enter(place_t *p, const char *service, const char *instance, uint32_t load)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_entry_t e = WEFT_ENTRY_INIT;
    e.service = service;
    e.instance = instance;
    e.address = "tcp://127.0.0.1:7000";
    e.load = load;
    e.data = "signatures";
    e.data_len = 10;
    weft_status_t st = weft_registry_enter(p->registry, &e, &op);
    return st ? st : place_wait(&op);
}

weft_status_t place_leave(place_t *p, const char *service, const char *instance)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_registry_leave(p->registry, service, instance, &op);
    return st ? st : place_wait(&op);
}

static void count(const weft_entry_t *entry, void *user)
{
    if (strcmp(entry->address, "tcp://127.0.0.1:7000") != 0 || entry->data_len != 10 ||
        memcmp(entry->data, "signatures", 10) != 0)
        die("an entry is not what was entered");
    ++*(long *)user;
}

long place_count(place_t *p, const char *service)
{
    weft_op_t op = WEFT_OP_INIT;
    long n = 0;
    weft_status_t st = weft_registry_find(p->registry, service, count, &n, &op);
    if (!st)
        st = place_wait(&op);
    if (!st && op.len != (uint64_t)n)
        die("op->len is not how many were found");
    return st ? (long)st : n;
}

pid_t place_born(const char *uri, uint64_t lease_ns, place_life_t life, int *from_out)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
        die("no socket to talk to a process");
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0)
        die("no process");
    if (!pid) {
        place_t p;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        place_open_lease(&p, uri, WEFT_PROGRESS_CALLER, lease_ns);
        life(&p, fds[1]);
        _exit(0);
    }
    close(fds[1]);
    *from_out = fds[0];
    return pid;
}

void place_say(int out, char c)
{
    if (write(out, &c, 1) != 1)
        _exit(1);
}

char place_heard(int from)
{
    char c = 0;
    return read(from, &c, 1) == 1 ? c : 0;
}

void place_end_of(pid_t pid, int from)
{
    kill(pid, SIGKILL);
    if (waitpid(pid, NULL, 0) != pid)
        die("a process cannot be waited for");
    close(from);
}

void seen_change(weft_change_t change, const weft_entry_t *entry, void *user)
{
    seen_t *s = (seen_t *)user;
    unsigned i = 0;
    while (i < s->there && strcmp(s->names[i], entry->instance) != 0)
        i++;
    if ((change == WEFT_CAME) == (i < s->there))
        die("a watch was told what cannot be");
    s->load = entry->load;
    if (change == WEFT_CAME) {
        if (s->there == sizeof s->names / sizeof *s->names)
            die("too many for a test");
        snprintf(s->names[s->there++], sizeof *s->names, "%s", entry->instance);
        s->came++;
    } else if (change == WEFT_CHANGED) {
        s->changed++;
    } else {
        memmove(s->names[i], s->names[--s->there], sizeof *s->names);
        s->went++;
    }
}
