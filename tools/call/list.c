/* tools/call/list.c - `weft call --list`: who offers what, and which functions.
 *
 * Without a URI, and for weft://, the registry is asked: servers enter their functions there, and nothing is connected to. A
 * server at an address is asked itself. With --watch each change of the registry is a line, until a signal.
 * tests/tools/tools_call.py checks it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "call.h"

/* --- instances --------------------------------------------------------------------------------------------------------- */

/* identity: as call_entry_t has it. */
static void instance_json(const char *change, const char *service, const char *instance, const char *address,
                          const char *identity, uint32_t load)
{
    tool_json_t j = tool_json_begin(stdout);
    if (change)
        tool_json_text(&j, "change", change);
    tool_json_text(&j, "service", service);
    tool_json_text(&j, "instance", instance);
    tool_json_text(&j, "address", address);
    if (*identity)
        tool_json_text(&j, "identity", identity);
    tool_json_count(&j, "load", load);
    tool_json_end(&j);
}

static void instance_line(const char *service, const char *instance, int width, uint32_t load, const char *address,
                          const char *identity)
{
    char both[2 * CALL_NAME + 2], plain[1024], who[512];
    snprintf(both, sizeof both, "%s@%s", service, instance);
    printf("%-*s  load %5.1f %%  %s%s%s\n", width, both, load / 10.0, tool_plain(address, plain, sizeof plain),
           *identity ? "  as " : "", *identity ? tool_plain(identity, who, sizeof who) : "");
}

static int width_of(const call_entries_t *e)
{
    size_t width = 0;
    for (size_t i = 0; i < e->n; i++) {
        size_t n = strlen(e->at[i].service) + 1 + strlen(e->at[i].instance);
        width = n > width ? n : width;
    }
    return (int)width;
}

static int list_all(call_link_t *l)
{
    call_entries_t e;
    char name[256];
    int rc = call_entries_find(l, NULL, &e);
    if (rc)
        return rc;
    for (size_t i = 0; i < e.n; i++) {
        const call_entry_t *x = &e.at[i];
        if (l->opts->json)
            instance_json(NULL, x->service, x->instance, x->address, x->identity, x->load);
        else
            instance_line(x->service, x->instance, width_of(&e), x->load, x->address, x->identity);
    }
    if (!e.n && !l->opts->json)
        tool_error("nobody offers anything in the registry %s", call_registry_name(l->opts, name, sizeof name));
    call_entries_free(&e);
    return TOOL_OK;
}

/* --- functions ----------------------------------------------------------------------------------------------------------- */

/* Lines of number and signature. */
static void show_functions(const call_opts_t *o, const char *service, const char *instances, const char *lines)
{
    while (*lines) {
        size_t n = strcspn(lines, "\n"), digits = strspn(lines, "0123456789");
        char line[WEFT_SIG_TEXT + 32], plain[2 * WEFT_SIG_TEXT];
        const char *sig;
        snprintf(line, sizeof line, "%.*s", (int)(n < sizeof line ? n : sizeof line - 1), lines);
        lines += n + (lines[n] == '\n');
        sig = line + digits + strspn(line + digits, " ");
        if (!*sig)
            continue;
        if (!o->json) {
            printf("  %s\n", tool_plain(sig, plain, sizeof plain));
            continue;
        }
        tool_json_t j = tool_json_begin(stdout);
        tool_json_text(&j, "service", service);
        tool_json_text(&j, "instances", instances);
        tool_json_count(&j, "number", strtoull(line, NULL, 10));
        tool_json_text(&j, "signature", sig);
        tool_json_end(&j);
    }
}

/* Instances with the same functions share one list of them. */
static void show_group(const call_opts_t *o, const call_entries_t *e, size_t first, bool *seen)
{
    const call_entry_t *x = &e->at[first];
    size_t cap = e->n * (CALL_NAME + 1) + 1, n = 0;
    char *instances = malloc(cap);
    if (!instances)
        return;
    for (size_t i = first; i < e->n; i++) {
        const call_entry_t *y = &e->at[i];
        if (seen[i] || strcmp(y->functions, x->functions) != 0)
            continue;
        seen[i] = true;
        n += (size_t)snprintf(instances + n, cap - n, "%s%s", n ? " " : "", y->instance);
        if (!o->json)
            instance_line(y->service, y->instance, width_of(e), y->load, y->address, y->identity);
    }
    if (*x->functions)
        show_functions(o, x->service, instances, x->functions);
    else if (!o->json)
        printf("  (its functions are not in the registry)\n");
    free(instances);
}

static int list_service(call_link_t *l)
{
    call_entries_t e;
    bool *seen;
    size_t shown = 0;
    int rc = call_entries_find(l, l->target->service, &e);
    if (rc)
        return rc;
    seen = calloc(e.n + 1, sizeof *seen);
    if (!seen) {
        call_entries_free(&e);
        tool_error("out of memory");
        return TOOL_FAILED;
    }
    for (size_t i = 0; i < e.n; i++)
        seen[i] = *l->target->instance && strcmp(e.at[i].instance, l->target->instance) != 0;
    for (size_t i = 0; i < e.n; i++) {
        if (!seen[i]) {
            show_group(l->opts, &e, i, seen);
            shown++;
        }
    }
    free(seen);
    call_entries_free(&e);
    if (shown)
        return TOOL_OK;
    rc = call_nobody(l);
    if (rc)
        return rc;
    tool_error("the service \"%s\" has come just now; ask again", l->target->service);
    return CALL_NO_SERVER;
}

/* --- a server at an address ------------------------------------------------------------------------------------------------ */

/* Call one of the functions that every server has. TOOL_OK and *text_out, yours to free, or the exit status after a sentence. */
static int ask(call_link_t *l, const char *signature, const char *argument, char **text_out)
{
    call_made_t m = {.link = l};
    weft_reply_t reply = WEFT_REPLY_INIT;
    weft_op_t op = WEFT_OP_INIT;
    weft_value_t arg = weft_text(argument ? argument : "", argument ? strlen(argument) : 0);
    weft_status_t st = weft_client_method(l->client, signature, &m.method);
    int rc;
    op.timeout_ns = call_timeout(l->opts);
    if (!st) {
        m.sig = weft_method_sig(m.method);
        st = tool_do(weft_call(m.method, &arg, argument ? 1 : 0, &reply, &op), &op);
    }
    rc = st ? call_failed(&m, st, &reply, 0) : TOOL_OK;
    if (!st) {
        *text_out = strndup(reply.values[0].view.n ? reply.values[0].view.data : "", reply.values[0].view.n);
        if (!*text_out) {
            tool_error("out of memory");
            rc = TOOL_FAILED;
        }
    }
    weft_reply_release(&reply);
    return rc;
}

static int show_service(call_link_t *l, const char *service, const char *instance, const char *version)
{
    char *functions, plain[256];
    int rc = ask(l, WEFT_RPC_FUNCTIONS, service, &functions);
    if (rc)
        return rc;
    if (!l->opts->json)
        printf("%s@%s%s%s%s\n", service, instance, *version ? "  (weft " : "", tool_plain(version, plain, sizeof plain),
               *version ? ")" : "");
    show_functions(l->opts, service, instance, functions);
    free(functions);
    return TOOL_OK;
}

static int list_server(call_link_t *l)
{
    char *services, *save = NULL;
    const char *names[64], *near;
    size_t n = 0, shown = 0;
    int rc = ask(l, WEFT_RPC_SERVICES, NULL, &services);
    if (rc)
        return rc;
    for (char *line = strtok_r(services, "\n", &save); line && !rc; line = strtok_r(NULL, "\n", &save)) {
        char service[CALL_NAME], instance[CALL_NAME], version[64] = "";
        if (sscanf(line, "%63s %63s %63s", service, instance, version) < 2)
            continue;
        line[strcspn(line, " ")] = '\0';
        if (n < sizeof names / sizeof *names)
            names[n++] = line;
        if (*l->target->service && strcmp(service, l->target->service) != 0)
            continue;
        if (*l->target->instance && strcmp(instance, l->target->instance) != 0)
            continue;
        rc = show_service(l, service, instance, version);
        shown++;
    }
    if (!rc && !shown && *l->target->service) {
        near = tool_nearest(l->target->service, names, n);
        tool_error("the server at %s has no service \"%s\"%s%s%s", l->target->where, l->target->service,
                   near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
        rc = CALL_NOT_THERE;
    } else if (!rc && !shown && !l->opts->json) {
        tool_error("the server at %s offers no service", l->target->where);
    }
    free(services);
    return rc;
}

/* --- watching ------------------------------------------------------------------------------------------- */

/* In progress, on the runtime's thread: this command has nothing else to drive. */
static void changed(weft_change_t change, const weft_entry_t *entry, void *user)
{
    static const char *const words[] = {"?", "came", "changed", "went"};
    const call_link_t *l = user;
    if (*l->target->instance && strcmp(entry->instance, l->target->instance) != 0)
        return;
    const char *at;
    size_t n = call_identity_of(entry, &at);
    char identity[512];
    snprintf(identity, sizeof identity, "%.*s", (int)n, at);
    if (l->opts->json) {
        instance_json(words[change], entry->service, entry->instance, entry->address, identity, entry->load);
        return;
    }
    printf("%-7s  ", words[change]);
    instance_line(entry->service, entry->instance, 0, entry->load, entry->address, identity);
    fflush(stdout);
}

static int watch(call_link_t *l)
{
    weft_watch_t *w;
    weft_op_t op = WEFT_OP_INIT;
    weft_status_t st = weft_registry_watch(l->registry, l->target->by_registry ? l->target->service : NULL, changed, l, &w);
    if (st) {
        tool_error_status(st, "the registry cannot be watched");
        return TOOL_FAILED;
    }
    while (!tool_signal() && !ferror(stdout)) {
        struct timespec slice = {.tv_nsec = 50 * 1000 * 1000};
        nanosleep(&slice, NULL);
    }
    if (!weft_watch_end(w, &op))
        tool_wait_through(&op);
    return TOOL_OK; /* a signal is its normal end */
}

int call_list(const call_opts_t *opts, const call_target_t *target)
{
    bool server = opts->uri && !target->by_registry;
    call_link_t l;
    int rc;
    if (opts->watch && server) {
        tool_error("a registry is watched, and %s is a server; weft call --list --watch", opts->uri);
        return TOOL_USAGE;
    }
    rc = server ? call_link_open(&l, opts, target) : call_link_registry(&l, opts, target);
    if (rc)
        return rc;
    rc = server ? list_server(&l) : opts->watch ? watch(&l) : target->by_registry ? list_service(&l) : list_all(&l);
    call_link_close(&l);
    return rc;
}
