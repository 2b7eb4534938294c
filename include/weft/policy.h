/* weft/policy.h - who may do what: rules for peers, by their identity.
 *
 * An authenticated peer has an identity (weft_ep_info_t): the first DNS name, email address or URI in the SAN of its
 * certificate, else the name of its key. A policy is a text with a rule a line, and the first one that fits decides. Without a
 * policy everybody who is connected may do all.
 *
 *     # who        may           what
 *     allow  ops-*    all
 *     deny   old-*    connect
 *     allow  *        connect
 *     allow  web      call          calc.*
 *     allow  web      call          users.get
 *     allow  batch    mem-allocate  scratch-*  4G
 *     allow  batch    mem-read      *
 *     allow  calc-1   publish       calc
 *     default deny
 *
 *     connect       become an endpoint. Asked in the hello, of a listener, before its admit hook
 *     call          call a function: its name is SERVICE.FUNCTION
 *     mem-allocate  allocate a block at a memory server (weft/store.h), or give one a name. The word behind the name is how
 *                   many bytes at most the identity may have in such blocks, of whatever name: 4096, 64k, 4G. Whoever may
 *                   allocate some name may allocate blocks without one, up to the largest of these limits. A name that reads
 *                   as a number of bytes is refused where none follows: "mem-allocate * 4G" is meant
 *     mem-read      open a block by its name, to read it
 *     mem-write     open one to read and write it, make it longer, or remove it. Blocks of its own, which it has not shared,
 *                   a client may read, write, make longer (as far as mem-allocate lets it) and free without these two. A shared
 *                   one is nobody's own: of it they are asked of its maker too, except for what that has open already
 *     publish       be the server of a service: a client that looks one up in a registry uses nobody who may not
 *     all           all of these
 *
 * `who` is an identity, or "anonymous": a peer that proved no name of its own, as one who only has a key without a name. What is
 * "anonymous" or has a `*` is no name of a certificate. In
 * who and in names a `*` stands for any text, none included; everything else, small and large letters too, is what it is. A rule
 * without a name is about every name. A `#` at the beginning of a word begins a comment.
 *
 * The last line has to be `default deny` or `default allow`: so a file that was written only in part is no policy. Since
 * everything begins with a connection, `default deny` without a rule that allows `connect` lets nobody do anything: it is still a
 * policy, for a process that only connects to others.
 *
 * Not covered: messages, active messages and remote memory that a program exposes itself. Who may connect may use those, and the
 * program has to ask (weft_ep_may(), weft_ep_get_info()). A peer that has opened a block keeps what it may do with it until it
 * drops it. A list of names has only what the identity may read or write.
 *
 * Each process judges the peers that come to it, and, for `publish`, the servers that it finds, by its own policy. A verdict is
 * asked for once for each binding of a client to a function and once for each request to a memory server, and not for each call.
 * When the policy changes, connections and bindings that are no longer allowed end within a second, and calls that run go on. */
#ifndef WEFT_POLICY_H
#define WEFT_POLICY_H

#include <stdbool.h>
#include <weft/conn.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_ANONYMOUS "anonymous" /* who has no identity, as rules and sentences call it */

typedef enum weft_may {
    WEFT_MAY_CONNECT = 1,
    WEFT_MAY_CALL = 2,
    WEFT_MAY_ALLOCATE = 3,
    WEFT_MAY_READ = 4,
    WEFT_MAY_WRITE = 5,
    WEFT_MAY_PUBLISH = 6
} weft_may_t;

typedef struct weft_verdict {
    size_t size;
    bool allowed;
    uint32_t line;  /* of the rule that decided, counted from 1; 0: there is no policy */
    uint64_t limit; /* bytes, of WEFT_MAY_ALLOCATE that is allowed; UINT64_MAX: the policy sets none */
} weft_verdict_t;
#define WEFT_VERDICT_INIT WEFT_INIT(weft_verdict_t)

/* What would a policy say? identity and name may be NULL, for "". action 0: only look whether the text is a policy; verdict_out
 * may be NULL then, and is not touched.
 *
 * Threads: any. Nothing is kept.
 * Fails:   WEFT_ERR_INVALID: the text is no policy: weft_last_error() says which line, and what is wrong with it; or there is no
 *          such action. WEFT_ERR_NOMEM. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_policy_check(const char *text, size_t len, const char *identity, weft_may_t action,
                                                         const char *name, weft_verdict_t *verdict_out);
/* "mem-allocate" for WEFT_MAY_ALLOCATE; "?" for what is none. Static storage. */
WEFT_API const char *weft_may_name(weft_may_t action);

/* Give a runtime another policy, or none (text NULL), in place of the one that it has, also of the one of WEFT_POLICY, whose
 * file is not looked at any more. It counts for everything that is asked from then on, and connections and bindings that it does
 * not allow end soon. The text is copied. A runtime gets its first one by the variable WEFT_POLICY, the path of a file: it is
 * read when the runtime is opened, which fails if it is no policy, and again within a second after it has changed; one that is no
 * policy then, or is gone, is warned about, and the old one stays.
 *
 * Threads: any. All shards have it.
 * Fails:   WEFT_ERR_INVALID (weft_last_error() says which line, and what is wrong with it), WEFT_ERR_NOMEM, WEFT_ERR_CLOSED,
 *          WEFT_ERR_FORKED: the policy is as before. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_runtime_set_policy(weft_runtime_t *rt, const char *text, size_t len);

/* May the peer of an endpoint do that, by the policy of the endpoint's runtime? For programs and libraries with services of
 * their own. name may be NULL, for "". WEFT_OK: it may, also without a policy; *limit_out (may be NULL) is how many bytes it may
 * allocate, UINT64_MAX if nobody says. WEFT_ERR_PERMISSION: it may not; weft_last_error() names who, what and which line said
 * so, and it is counted (weft_runtime_stats_t.policy_refused).
 *
 * Threads: any. Takes a lock, and looks at each rule: not for each message.
 * Fails:   WEFT_ERR_INVALID (a NULL, no such action), WEFT_ERR_CLOSED, WEFT_ERR_FORKED; *limit_out is untouched. */
WEFT_API WEFT_MUST_CHECK weft_status_t weft_ep_may(weft_ep_t *ep, weft_may_t action, const char *name, uint64_t *limit_out);

/* The same, and nothing is counted, and there is no sentence. False also where weft_ep_may() fails. */
WEFT_API bool weft_ep_allowed(weft_ep_t *ep, weft_may_t action, const char *name);

#ifdef __cplusplus
}
#endif
#endif
