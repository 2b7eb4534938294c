/* conn/rules.h - the rules of a policy: who may do what. weft/policy.h says how they are written.
 *
 * Text becomes a policy, which never changes, and a policy gives verdicts. Nothing here knows of a runtime or of a file. Any
 * thread. tests/unit/conn_rules.c, tests/fuzz/policy.c. */
#ifndef WEFTI_RULES_H
#define WEFTI_RULES_H

#include <weft/policy.h>

typedef struct wefti_policy wefti_policy_t;

/* WEFT_ERR_INVALID, with a sentence that begins with the number of the line; WEFT_ERR_NOMEM. */
weft_status_t wefti_policy_parse(const char *text, size_t len, wefti_policy_t **out);
void wefti_policy_free(wefti_policy_t *p); /* NULL is allowed */

/* May `identity` ("" or NULL: nobody knows) do that with `name` (NULL: "")? `size` of the verdict is left alone. */
void wefti_policy_ask(const wefti_policy_t *p, const char *identity, weft_may_t action, const char *name,
                      weft_verdict_t *verdict);
/* Is there a name or an identity that may not? False: the policy allows everybody to do that with everything. */
bool wefti_policy_limits(const wefti_policy_t *p, weft_may_t action);

const char *wefti_may_name(weft_may_t action);        /* "mem-allocate"; "?" for none */
bool wefti_may_known(int action);
bool wefti_may_find(const char *word, weft_may_t *out); /* false: there is none of that name */
/* How an identity is written: itself, or WEFT_ANONYMOUS. */
static inline const char *wefti_identity_word(const char *identity)
{
    return identity && *identity ? identity : WEFT_ANONYMOUS;
}

#endif
