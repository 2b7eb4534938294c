/* tools/session.h - what commands with a runtime share: opening it, signals, waiting, listening. */
#ifndef WEFT_TOOLS_SESSION_H
#define WEFT_TOOLS_SESSION_H

#include <signal.h>
#include <weft/weft.h>

#include "common.h"

/* Options of every command that opens a runtime. */
typedef struct tool_net {
    const char *transports; /* NULL: as configured */
    uint64_t heartbeat_ns;  /* 0: as configured */
    uint32_t shards;        /* of a server: 0: one, or as configured (WEFT_SHARDS) with configured_shards */
    bool configured_shards;
} tool_net_t;
extern const tool_opt_t tool_net_options[];    /* --key-file, --tls-cert, --transports, --heartbeat ... */
extern const tool_opt_t tool_shards_options[]; /* --shards, for servers */

/* Open a runtime. Signals are blocked in its threads, SIGPIPE is ignored. TOOL_OK, or the exit status after a sentence. */
int tool_runtime_open(weft_progress_mode_t progress, const tool_net_t *net, weft_runtime_t **rt_out);

/* A variable's value as it is configured, yours to free; NULL if it is empty or none. */
char *tool_configured(const char *name);
/* Is a key file configured, or given with --key-file? */
bool tool_has_key(void);
/* Is a certificate configured, or given with --tls-cert? */
bool tool_has_certificate(void);
/* What is opened from now on uses this key file. False, after a sentence: out of memory. */
bool tool_use_key_file(const char *path);

/* --- signals and waiting ----------------------------------------------------------------------------------- */

/* The signals that ask a program to end, without those that were ignored when it started, as nohup does. */
void tool_signals(sigset_t *set);
/* From now on they only set what tool_signal() says: the number of the one that came, 0 for none yet. */
void tool_handle_signals(void);
int tool_signal(void);

/* Wait for an operation until it is complete or a signal came; then it is cancelled, and waited for to its end. */
weft_status_t tool_wait(weft_op_t *op);
/* The same, but a signal does not cut it short: for what must not be left open. Its timeout bounds it. */
static inline weft_status_t tool_wait_through(weft_op_t *op)
{
    return weft_op_wait(op, WEFT_FOREVER);
}
/* Cancel it and wait for its end. */
static inline weft_status_t tool_cancel(weft_op_t *op)
{
    weft_op_cancel(op);
    return weft_op_wait(op, WEFT_FOREVER);
}
/* Of a call that has just posted `op`: its error, or what waiting came to. */
static inline weft_status_t tool_do(weft_status_t posted, weft_op_t *op)
{
    return posted ? posted : tool_wait(op);
}
static inline weft_status_t tool_do_through(weft_status_t posted, weft_op_t *op)
{
    return posted ? posted : tool_wait_through(op);
}

/* Nanoseconds of the clock that only goes forward. */
uint64_t tool_now(void);

/* --- listening --------------------------------------------------------------------------------------------- */

/* Is there a key or a certificate, or can only this machine connect to all of them? If not: a sentence; `harm` is what anyone
 * who connects could do. */
bool tool_may_listen(const tool_texts_t *uris, const char *harm);
/* Listen. The services of the runtime serve every peer, and its endpoint is closed when the peer is gone. TOOL_OK, or the exit
 * status after a sentence. */
int tool_listen(weft_runtime_t *rt, const char *uri, weft_listener_t **listener_out);

#endif
