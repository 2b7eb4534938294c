/* tests/matrix/lib/row_policy.c - rows of weft/policy.h. */
#include "row.h"

static const char policy[] = "default allow\n";

ROW(weft_runtime_set_policy, ON_RUNTIME)
{
    turn_status(t, weft_runtime_set_policy(s->rt, policy, sizeof policy - 1));
}

ROW(weft_ep_may, NEEDS_EP)
{
    uint64_t limit;
    turn_status(t, weft_ep_may(s->ep, WEFT_MAY_CALL, "calc.add", &limit));
}

ROW(weft_ep_allowed, NEEDS_EP)
{
    weft_ep_allowed(s->ep, WEFT_MAY_CALL, "calc.add");
}

ROW(weft_policy_check, ON_NOTHING)
{
    weft_verdict_t v = WEFT_VERDICT_INIT;
    turn_status(t, weft_policy_check(policy, sizeof policy - 1, "web", WEFT_MAY_CALL, "calc.add", &v));
}

ROW(weft_may_name, ON_NOTHING)
{
    turn_text(t, weft_may_name(WEFT_MAY_CALL));
}
