/* tools/run/invoke.c - runtime.invoke and runtime.release: elements that other elements start while they run.
 *
 * A Unix socket in the private directory of the run. A client sends one line and gets one back. The kernel says who it is: it
 * must be the same user, in the process group of a running compute element. A memory element that was invoked belongs to the
 * process that invoked it, and ends with it. The client gets its answer when the element serves, or when it cannot. A line
 * that is too long ends the connection. tests/tools/tools_run_invoke.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "run.h"

#define LINE_MAX_BYTES ((size_t)1 << 20)
#define CLIENTS_MAX 1024

typedef struct client {
    run_source_t source; /* first: epoll has it */
    run_proc_t *who;     /* NULL: not an element of this run; it is refused after its request */
    run_text_t heard;
    struct client *next;
} client_t;

static client_t *clients;
static unsigned n_clients;

static void client_free(client_t *c)
{
    client_t **at = &clients;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    n_clients--;
    run_unwatch(&c->source);
    run_free(&c->heard);
    c->source.fd = -1;
    c->next = NULL;
    free(c);
}

/* {"ok": ok, name: value} */
static void say(int fd, bool ok, const char *name, const char *value)
{
    run_text_t line = {0};
    tool_json_t j = run_json_begin(&line);
    tool_json_open(&j, NULL, '{');
    tool_json_raw(&j, "ok", ok ? "true" : "false");
    if (name)
        tool_json_text(&j, name, value);
    tool_json_end(&j);
    run_json_end(&j);
    /* a line of this length fits into an empty socket; a client that does not read it does not need it */
    (void)!send(fd, line.p, line.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    run_free(&line);
}

static void refuse(int fd, const char *why)
{
    say(fd, false, "error", why);
}

static void accept_it(int fd)
{
    say(fd, true, NULL, NULL);
}

/* --- what was invoked -------------------------------------------------------------------------------------------------- */

void run_invoked_ready(run_element_t *e)
{
    char *durl;
    if (e->asked < 0)
        return;
    durl = run_durl(e, 0);
    say(e->asked, true, "durl", durl);
    close(e->asked);
    e->asked = -1;
    free(durl);
}

void run_invoked_failed(run_element_t *e)
{
    if (e->asked < 0)
        return;
    refuse(e->asked, "the memory element ended before it served");
    close(e->asked);
    e->asked = -1;
}

void run_owner_over(run_proc_t *p)
{
    for (unsigned i = p->run->n_static; i < p->run->n_elements; i++) {
        run_element_t *e = p->run->elements[i];
        if (e->memory && e->owner == p && !e->stopping)
            run_stop_memory(e);
    }
}

static run_element_t *find_invoked(run_t *run, const run_proc_t *owner, const char *trans)
{
    for (unsigned i = run->n_static; i < run->n_elements; i++) {
        run_element_t *e = run->elements[i];
        if (e->owner == owner && !e->stopping && e->memory && !strcmp(e->trans, trans))
            return e;
    }
    return NULL;
}

/* A new element like `from`, of which there is one copy. */
static run_element_t *copy_of(const run_element_t *from, run_proc_t *owner, const char *trans)
{
    run_element_t *e = run_alloc(sizeof *e);
    e->name = run_invoked_name(owner, trans, from->memory);
    e->path = run_dup(from->path);
    e->trans = run_dup(trans);
    e->memory = from->memory;
    e->copies = 1;
    e->replicas = from->replicas;
    e->limits = from->limits;
    e->spare = from->spare;
    e->owner = owner;
    e->asked = -1;
    for (unsigned i = 0; i < from->imports.n; i++)
        run_name_add(&e->imports, run_dup(from->imports.at[i].name), 0);
    for (unsigned i = 0; i < from->n_uses; i++) {
        e->uses = run_grow(e->uses, (i + 1) * sizeof *e->uses);
        e->uses[e->n_uses++] = (run_use_t){.element = from->uses[i].element};
    }
    for (unsigned i = 0; i < from->n_merged; i++) {
        e->merged = run_grow(e->merged, (i + 1) * sizeof *e->merged);
        e->merged[e->n_merged++] = (run_merged_t){.name = run_dup(from->merged[i].name), .bytes = from->merged[i].bytes};
    }
    e->procs = run_alloc(e->replicas * sizeof(run_proc_t *));
    e->results = run_alloc(sizeof(char *));
    return e;
}

static void enlist(run_t *run, run_element_t *e)
{
    e->index = run->n_elements;
    run->elements = run_grow(run->elements, (run->n_elements + 1) * sizeof(run_element_t *));
    run->elements[run->n_elements++] = e;
}

/* --- invoke --------------------------------------------------------------------------------------------- */

/* A size as a number of bytes, or as text with a unit. */
static bool take_bytes(run_value_t v, uint64_t *out)
{
    char *text = run_json_string(v);
    uint64_t bytes = 0;
    bool good = text ? run_size(text, &bytes) : run_json_count(v, &bytes) && bytes && bytes < (uint64_t)1 << 46;
    free(text);
    if (good)
        *out = bytes;
    return good;
}

/* NULL, or what is wrong. */
static const char *take_props(run_element_t *e, run_value_t props)
{
    run_value_t size, mem, params;
    if (!props.p || *props.p == 'n')
        return NULL;
    if (*props.p != '{')
        return "props is not an object";
    size = run_json_get(props, "size");
    mem = run_json_get(run_json_get(props, "limits"), "mem");
    params = run_json_get(props, "params");
    if (size.p && !take_bytes(size, &e->limits.mem))
        return "props: size is neither a number of bytes nor a text such as \"64M\"";
    if (mem.p && !take_bytes(mem, &e->limits.mem))
        return "props: limits.mem is neither a number of bytes nor a text such as \"64M\"";
    if (params.p && *params.p != '{')
        return "props: params is not an object";
    if (!e->memory)
        e->params = params.p ? run_dup_n(params.p, params.n) : run_dup("{}");
    return NULL;
}

static bool memory_is_there(const run_element_t *e)
{
    for (unsigned i = 0; i < e->n_uses; i++)
        if (e->uses[i].element->stopping || e->uses[i].element->state > RUN_RUNNING)
            return false;
    return true;
}

static void invoke(run_t *run, client_t *c, const char *template, const char *trans, run_value_t props)
{
    run_element_t *from = template ? run_find(run, template) : NULL, *e;
    const char *wrong;
    char *text;
    int fd = c->source.fd;
    if (!template || !trans || !*trans || strlen(trans) > RUN_NAME_MAX || strpbrk(trans, ";,@\n/")) {
        refuse(fd, "invoke needs a template and a name for the transport, without any of ; , @ and /");
        return;
    }
    if (!from) {
        text = run_printf("there is no element \"%s\"%s", template, run_did_you_mean(run, template, true));
        refuse(fd, text);
        free(text);
        return;
    }
    if (from->memory && find_invoked(run, c->who, trans)) {
        text = run_printf("\"%s\" is invoked already: release it first, or take another name", trans);
        refuse(fd, text);
        free(text);
        return;
    }
    if (from->memory && run_has_transport(c->who, trans)) {
        text = run_printf("this element has a transport \"%s\" already, to other memory: take another name", trans);
        refuse(fd, text);
        free(text);
        return;
    }
    e = copy_of(from, c->who, trans);
    wrong = run_props_wrong(from, props);
    if (!wrong)
        wrong = take_props(e, props);
    if (!wrong && run->n_elements >= 2 * RUN_ELEMENTS_MAX)
        wrong = "too many elements have been invoked";
    if (!wrong && !memory_is_there(e))
        wrong = "memory that the element uses has ended: nobody else used it any more";
    if (wrong) {
        refuse(fd, wrong);
        run_element_free(e);
        return;
    }
    enlist(run, e);
    for (unsigned i = 0; i < e->n_uses; i++)
        e->uses[i].element->n_users++;
    if (!e->memory) {
        accept_it(fd);
        run_start_ready(run);
    } else if (run_start_memory(run, e)) {
        e->asked = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* the answer comes when it serves */
    } else {
        refuse(fd, "the memory element could not be started");
    }
}

static void release(run_t *run, client_t *c, const char *name)
{
    run_element_t *e = name ? find_invoked(run, c->who, name) : NULL;
    char *text;
    if (e) {
        run_stop_memory(e);
        accept_it(c->source.fd);
        return;
    }
    for (unsigned i = 0; name && i < c->who->element->n_uses; i++)
        if (!strcmp(c->who->element->uses[i].element->name, name)) {
            accept_it(c->source.fd); /* others may use it; it ends with the last of them */
            return;
        }
    text = run_printf("there is no element \"%s\" to release here", name ? name : "");
    refuse(c->source.fd, text);
    free(text);
}

static void answer(run_t *run, client_t *c, const char *line, size_t n)
{
    run_value_t all, doing;
    char *template, *trans, *name;
    if (!run_json(line, n, &all) || *all.p != '{') {
        refuse(c->source.fd, "the request is not a JSON object");
        return;
    }
    if (!c->who) {
        refuse(c->source.fd, "only elements of this run are answered");
        return;
    }
    if (run->failed || c->who->over || c->who->asked) {
        refuse(c->source.fd, "the run is being taken down");
        return;
    }
    doing = run_json_get(all, "do");
    template = run_json_string(run_json_get(all, "template"));
    trans = run_json_string(run_json_get(all, "trans"));
    name = run_json_string(run_json_get(all, "name"));
    if (run_json_is(doing, "invoke"))
        invoke(run, c, template, trans, run_json_get(all, "props"));
    else if (run_json_is(doing, "release"))
        release(run, c, name);
    else
        refuse(c->source.fd, "\"do\" is invoke or release");
    free(template);
    free(trans);
    free(name);
}

/* --- clients -------------------------------------------------------------------------------------------- */

static void client_ready(run_source_t *s, uint32_t events)
{
    client_t *c = (client_t *)s;
    char piece[16384], *newline;
    ssize_t n = recv(s->fd, piece, sizeof piece, MSG_DONTWAIT);
    (void)events;
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        run_add(&c->heard, piece, (size_t)n);
    newline = c->heard.n ? memchr(c->heard.p, '\n', c->heard.n) : NULL;
    if (newline) {
        answer(s->run, c, c->heard.p, (size_t)(newline - c->heard.p));
        client_free(c); /* a client that waits for a durl has a descriptor of its own */
    } else if (n <= 0 || c->heard.n > LINE_MAX_BYTES) {
        client_free(c);
    }
}

/* Which element is it? */
static run_proc_t *who_is(run_t *run, int fd)
{
    struct ucred cred;
    socklen_t len = sizeof cred;
    pid_t group;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) || cred.uid != geteuid() || cred.pid <= 0)
        return NULL;
    group = getpgid(cred.pid);
    for (run_proc_t *p = run->procs; p; p = p->next)
        if (!p->over && !p->element->memory && p->pid == group)
            return p;
    return NULL;
}

static void server_ready(run_source_t *s, uint32_t events)
{
    struct sockaddr_un from;
    socklen_t n = sizeof from;
    int fd = accept4(s->fd, (struct sockaddr *)&from, &n, SOCK_CLOEXEC | SOCK_NONBLOCK);
    run_proc_t *who = fd >= 0 ? who_is(s->run, fd) : NULL;
    client_t *c;
    (void)events;
    if (fd < 0)
        return;
    if (n_clients == CLIENTS_MAX) {
        refuse(fd, "too many ask at once");
        close(fd);
        return;
    }
    c = run_alloc(sizeof *c);
    c->who = who;
    c->next = clients;
    clients = c;
    n_clients++;
    if (!run_watch(s->run, &c->source, fd, EPOLLIN, client_ready))
        client_free(c);
}

bool run_serve_open(run_t *run)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    run->socket_path = run_printf("%s/launcher", run->scratch);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", run->socket_path);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 64) ||
        !run_watch(run, &run->server, fd, EPOLLIN, server_ready)) {
        tool_error("no socket for elements can be made at %s: %s", run->socket_path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return false;
    }
    return true;
}

void run_serve_close(run_t *run)
{
    while (clients)
        client_free(clients);
    run_unwatch(&run->server);
    for (unsigned i = run->n_static; i < run->n_elements; i++)
        if (run->elements[i]->asked >= 0)
            run_invoked_failed(run->elements[i]);
    if (run->socket_path)
        unlink(run->socket_path);
}
