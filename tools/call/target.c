/* tools/call/target.c - which part of a uri is the server's address, and which the service and the function.
 *
 *     weft://calc/add   weft://calc@mill-3/add            the name of a service has no '/'
 *     tcp://host:port/calc/add   tls://host:port/add      an address has no '/' either; the service may be left out
 *     unix:///run/calc.sock#calc/add                      a path has: what is behind the first '#' is the function
 *     unix:///run/odd#name --function calc/add            with --function the uri is an address and nothing else
 *
 * '#' works for all of them, and for several addresses joined by commas. Nothing is connected to yet. tests/tools/tools_call.py
 * checks it. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "call.h"

static bool begins(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

static bool is_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("._-", s[i]))
            return false;
    return n && n < CALL_NAME;
}

/* "calc" or "calc@mill-3". */
static bool take_service(call_target_t *t, const char *s, size_t n)
{
    const char *at = memchr(s, '@', n);
    size_t service = at ? (size_t)(at - s) : n, instance = at ? n - service - 1 : 0;
    if (!is_name(s, service) || (at && !is_name(at + 1, instance))) {
        tool_error("\"%.*s\" is not the name of a service: letters, digits, '.', '-' and '_', at most 63; and perhaps @INSTANCE",
                   (int)n, s);
        return false;
    }
    snprintf(t->service, sizeof t->service, "%.*s", (int)service, s);
    snprintf(t->instance, sizeof t->instance, "%.*s", (int)instance, at ? at + 1 : "");
    return true;
}

/* "calc/add", "add"; also "calc/add(a: i32, b: i32) -> i32", and with --list "calc". */
static bool take_function(call_target_t *t, const char *s, bool list)
{
    const char *slash = strchr(s, '/'), *paren = strchr(s, '(');
    if (slash && paren && paren < slash)
        slash = NULL;
    if (slash || list) {
        if (!take_service(t, s, slash ? (size_t)(slash - s) : strlen(s)))
            return false;
        s = slash ? slash + 1 : "";
    }
    t->function = s;
    return true;
}

/* Where the function begins in a uri, with the character before it made the end of the address; NULL: it is not in there. */
static char *cut(char *uri)
{
    char *after = strstr(uri, "://") + 3, *at;
    if (begins(uri, "weft://") || ((begins(uri, "tcp://") || begins(uri, "tls://")) && !strchr(after, ','))) {
        at = after + strcspn(after, "/#");
    } else {
        at = strchr(after, '#');
    }
    if (!at || !*at)
        return NULL;
    *at = '\0';
    return at + 1;
}

static bool take_weft(call_target_t *t, const char *uri)
{
    const char *service = uri + strlen("weft://");
    t->by_registry = true;
    if (take_service(t, service, strlen(service)))
        return true;
    return false;
}

static bool take_uri(const call_opts_t *opts, call_target_t *t)
{
    char *function = opts->function && !begins(t->where, "weft://") ? NULL : cut(t->where);
    bool weft = begins(t->where, "weft://");
    if (weft && !take_weft(t, t->where))
        return false;
    if (function && *function && !opts->function) {
        if (weft)
            t->function = function;
        else if (!take_function(t, function, opts->list))
            return false;
    } else if (function && *function) {
        tool_error("the function is given twice: \"%s\" in the URI, and --function %s", function, opts->function);
        return false;
    }
    if (!opts->function)
        return true;
    if (weft)
        t->function = opts->function;
    return weft || take_function(t, opts->function, false);
}

#define CALLED "weft://SERVICE/FUNCTION, tcp://HOST:PORT/SERVICE/FUNCTION or unix://PATH#SERVICE/FUNCTION is what is called"

static bool is_uri(const char *uri)
{
    static const char *const schemes[] = {"weft://", "tcp://", "tls://", "unix://"};
    const char *end = strstr(uri, "://");
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (!strncasecmp(uri, schemes[i], strlen(schemes[i])))
            return true;
    if (end)
        tool_error("\"%.*s\" in \"%s\" is not a scheme of a server; " CALLED, (int)(end - uri), uri, uri);
    else
        tool_error("\"%s\" is not a URI; " CALLED, uri);
    return false;
}

bool call_target_parse(const call_opts_t *opts, call_target_t *target_out)
{
    call_target_t *t = target_out;
    *t = (call_target_t){.function = ""};
    if (!opts->uri)
        return true;
    if (!is_uri(opts->uri))
        return false;
    t->where = strdup(opts->uri);
    if (!t->where) {
        tool_error("out of memory");
        return false;
    }
    if (!take_uri(opts, t))
        return false;
    if (!opts->list && !*t->function) {
        const char *service = *t->service ? t->service : "SERVICE";
        tool_error("which function? Name it behind %s%s%s/, or with --function; weft call --list %s shows them", t->where,
                   t->by_registry ? "" : "#", t->by_registry ? "" : service, t->where);
        return false;
    }
    if (opts->list && *t->function) {
        tool_error("--list shows all functions of a service; leave \"%s\" out", t->function);
        return false;
    }
    return true;
}

void call_target_free(call_target_t *t)
{
    free(t->where);
}
