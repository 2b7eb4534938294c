/* fabric/ucx/facts.c - which transports UCX finds on this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucp/api/ucp.h>

#include "fabric/ucx/internal.h"

static void add_transport(char *buf, size_t cap, const char *name)
{
    size_t at = strlen(buf), n = strlen(name);
    for (const char *p = buf; (p = strstr(p, name)); p += n) {
        bool starts = p == buf || p[-1] == ' ';
        if (starts && (p[n] == ' ' || !p[n]))
            return;
    }
    if (at + n + 2 <= cap)
        snprintf(buf + at, cap - at, "%s%s", at ? " " : "", name);
}

/* The transports of a context, separated by spaces. UCX tells them only to a stream. */
static void transports_of(ucp_context_h context, char *buf, size_t cap)
{
    char *text = NULL, *save = NULL;
    size_t n = 0;
    buf[0] = 0;
    FILE *stream = open_memstream(&text, &n);
    if (!stream)
        return;
    ucp_context_print_info(context, stream);
    fclose(stream);
    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        /* "#      resource 0  :  md 0  dev 0  flags -- tcp/lo" */
        char *slash = strrchr(line, '/');
        if (!slash || !strstr(line, "resource") || !strstr(line, " flags "))
            continue;
        *slash = 0;
        char *space = strrchr(line, ' ');
        if (space)
            add_transport(buf, cap, space + 1);
    }
    free(text);
}

void wefti_ux_transports(char *buf, size_t cap)
{
    ucp_context_h context;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    buf[0] = 0;
    wefti_ux_hush();
    if (ucp_init(&params, NULL, &context) != UCS_OK)
        return;
    transports_of(context, buf, cap);
    ucp_cleanup(context);
}

bool wefti_ux_only_tcp(ucp_context_h context)
{
    char buf[256], *save = NULL;
    bool tcp = false;
    transports_of(context, buf, sizeof buf);
    for (char *one = strtok_r(buf, ", ", &save); one; one = strtok_r(NULL, ", ", &save)) {
        if (!strncmp(one, "cuda", 4) || !strcmp(one, "gdr_copy"))
            continue; /* ways to and from a GPU, and none to a peer elsewhere */
        if (strcmp(one, "tcp"))
            return false;
        tcp = true;
    }
    return tcp;
}
