/* fabric/transports.c - what the text of "transports" asks for: "all", or words separated by commas.
 *
 * shm and tcp are our own. Every other word is UCX's: `ucx` is all that UCX has, `ucx_tcp` is its TCP (its port trusts everybody
 * who reaches it, see docs/design/security.md), and any other is a name that UCX knows. `all` is shm, tcp, and UCX without TCP
 * where there is hardware for it; words of UCX's beside `all` say what UCX gets instead. tests/unit/fabric_transports.c. */
#include "fabric/transports.h"

#include <string.h>

#include "base/log.h"

/* Our own shared memory and TCP are better than UCX's, and UCX's loopback delivers inside the sending call. */
#define UCX_RDMA "^shm,self,tcp"

static bool is_word(const char *at, size_t n, const char *word)
{
    return strlen(word) == n && !memcmp(at, word, n);
}

/* UCX only warns about a name that it does not know, and goes on without it. These are the names that its releases know, aliases
 * included. "self" is left out, since it delivers inside the sending call. */
static const char *const known[] = {
    "sm",       "shm",     "mm",        "posix",    "sysv",      "cma",  "knem",      "xpmem",     "ib",
    "rc",       "rc_v",    "rc_x",      "rc_verbs", "rc_mlx5",   "ud",   "ud_v",      "ud_x",      "ud_verbs",
    "ud_mlx5",  "dc",      "dc_x",      "dc_mlx5",  "gga_mlx5",  "srd",  "ugni",      "ugni_rdma", "ugni_smsg",
    "ugni_udt", "cuda",    "cuda_copy", "cuda_ipc", "gdr_copy",  "rocm", "rocm_copy", "rocm_ipc",  "rocm_gdr",
    "ze",       "ze_copy", "ze_ipc",    "gaudi",    "gaudi_gdr",
};

static bool ucx_knows(const char *at, size_t n)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (is_word(at, n, known[i]))
            return true;
    }
    return false;
}

static weft_status_t add_word(const char *at, size_t n, bool *all, bool *whole, wefti_transports_t *t)
{
    int shown = n < 80 ? (int)n : 80;
    if (is_word(at, n, "all")) {
        *all = true;
        return WEFT_OK;
    }
    if (is_word(at, n, "shm") || is_word(at, n, "tcp")) {
        t->shm = t->shm || *at == 's';
        t->tcp = t->tcp || *at == 't';
        return WEFT_OK;
    }
    if (is_word(at, n, "ucx")) {
        *whole = t->ucx = true;
        return WEFT_OK;
    }
    if (is_word(at, n, "self"))
        return wefti_fail(WEFT_ERR_INVALID, "transport \"self\" cannot be chosen: shm does what it does");
    if (is_word(at, n, "ucx_tcp")) {
        at += 4;
        n -= 4;
    } else if (!ucx_knows(at, n)) {
        return wefti_fail(WEFT_ERR_INVALID,
                          "\"%.*s\" is no transport: all, shm, tcp, ucx, ucx_tcp, or a name that UCX knows, such as rc or ud",
                          shown, at);
    }
    size_t used = strlen(t->tls);
    if (used + n + 2 > sizeof t->tls)
        return wefti_fail(WEFT_ERR_INVALID, "more transports than %zu bytes of names", sizeof t->tls - 1);
    if (used)
        t->tls[used++] = ',';
    memcpy(t->tls + used, at, n);
    t->tls[used + n] = 0;
    t->ucx = true;
    return WEFT_OK;
}

weft_status_t wefti_transports_parse(const char *text, wefti_transports_t *out)
{
    wefti_transports_t t = {0};
    bool all = false, whole = false;
    const char *at = text;
    for (;;) {
        at += strspn(at, " \t");
        size_t n = strcspn(at, ",");
        const char *next = at + n;
        while (n && (at[n - 1] == ' ' || at[n - 1] == '\t'))
            n--;
        if (!n)
            return wefti_fail(WEFT_ERR_INVALID, "transports \"%.80s\" has an empty word: give all, shm, tcp, or a list", text);
        weft_status_t st = add_word(at, n, &all, &whole, &t);
        if (st)
            return st;
        if (!*next)
            break;
        at = next + 1;
    }
    if (whole)
        t.tls[0] = 0;
    if (all) {
        t.shm = t.tcp = t.rdma = true;
        if (!t.ucx)
            memcpy(t.tls, UCX_RDMA, sizeof UCX_RDMA);
    }
    *out = t;
    return WEFT_OK;
}
