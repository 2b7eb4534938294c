/* tests/fuzz/policy.c - any bytes are refused with a line, or are a policy: its verdicts name a line of it, and what it says that
 * it does not limit is allowed to everybody. */
#include "conn/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int fact)
{
    if (!fact)
        abort();
}

static const char *const who[] = {"", "web", "ops-1", "a", "**", "anonymous"};
static const char *const names[] = {"", "calc.add", "x", "scratch-1", "*", "a.b.c.d"};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    wefti_policy_t *p = NULL;
    uint32_t lines = 1;
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    weft_status_t st = wefti_policy_parse((const char *)data, size, &p);
    if (st) {
        unsigned line = 0;
        must(st == WEFT_ERR_INVALID && !p);
        must(size > 1 << 20 || (sscanf(weft_last_error(), "line %u:", &line) == 1 && line >= 1 && line <= lines));
        return 0;
    }
    for (int a = WEFT_MAY_CONNECT; a <= WEFT_MAY_PUBLISH; a++)
        for (size_t i = 0; i < sizeof who / sizeof *who; i++)
            for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
                weft_verdict_t v = WEFT_VERDICT_INIT, again = WEFT_VERDICT_INIT;
                wefti_policy_ask(p, who[i], (weft_may_t)a, names[k], &v);
                wefti_policy_ask(p, who[i], (weft_may_t)a, names[k], &again);
                must(v.line >= 1 && v.line <= lines && v.line == again.line && v.allowed == again.allowed);
                must(v.limit == UINT64_MAX || (v.allowed && a == WEFT_MAY_ALLOCATE));
                must(v.allowed || wefti_policy_limits(p, (weft_may_t)a));
            }
    wefti_policy_free(p);
    return 0;
}
