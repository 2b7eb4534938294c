/* tools/call/call.h - `weft call`: what its files share.
 *
 *   options.c  the command line                         words.c   words, files and pipes to arguments
 *   target.c   which part of a uri is what              tensor.c  tensors from text and .npy files, and back
 *   link.c     runtime, registry, client                show.c    values as text and as JSON
 *   call.c     a call, and what failures mean           stream.c  calls with streams
 *   repeat.c   many calls, and how long they take       list.c    who offers what, and which functions
 *
 * The runtime's own thread drives, so that a slow file, pipe or terminal does not hold it up. With --repeat, which measures
 * time, the caller drives. */
#ifndef WEFT_TOOLS_CALL_H
#define WEFT_TOOLS_CALL_H

#include "../session.h"

/* Beside those of every command. Ended by a signal: 128 and its number. */
enum { CALL_NOT_THERE = 3, CALL_NO_SERVER = 4 };

/* --- options ----------------------------------------------------------------------------------------------- */

typedef struct call_opts {
    bool list, watch, once, wait, json;
    uint64_t repeat;                 /* 0: one call, nothing is measured */
    uint64_t timeout_ns;             /* 0: not said */
    tool_net_t net;
    const char *registry;            /* NULL: as configured */
    const char *function, *save;     /* NULL: not said */
    const char *uri;                 /* NULL: not said */
    char **words;                    /* arguments */
    size_t n_words;
} call_opts_t;

/* TOOL_GO or the exit status, as tool_options(). */
int call_options(int argc, char **argv, call_opts_t *opts_out);
int call_command(int argc, char **argv);
/* Of one request that is no stream. */
uint64_t call_timeout(const call_opts_t *opts);

/* --- what a uri means ---------------------------------------------------------------------------------------- */

#define CALL_NAME 64 /* of a service or an instance, with the zero at the end */

typedef struct call_target {
    bool by_registry;       /* weft:// */
    char *where;            /* for the library: "weft://calc@mill-3", "tcp://host:port" */
    char service[CALL_NAME], instance[CALL_NAME]; /* "": not said */
    const char *function;   /* a name, "#number" or a signature; "": not said. In `where`, or an option */
} call_target_t;

/* False: after a sentence. Free it in any case. */
bool call_target_parse(const call_opts_t *opts, call_target_t *target_out);
void call_target_free(call_target_t *t);

/* --- the link to a server ------------------------------------------------------------------------------------ */

typedef struct call_link {
    const call_opts_t *opts;
    const call_target_t *target;
    weft_runtime_t *rt;
    weft_registry_t *registry; /* NULL: none is asked */
    weft_ep_t *ep;             /* NULL: the client has its own */
    weft_client_t *client;
    /* who answered last, for people; call_link_answered() sets it */
    char server[512], transport[16], cipher[40], identity[256]; /* the last two: of TLS */
} call_link_t;

/* Open what a call needs. TOOL_OK, or the exit status after a sentence; then nothing is open. */
int call_link_open(call_link_t *l, const call_opts_t *opts, const call_target_t *target);
/* Only the runtime and the registry. */
int call_link_registry(call_link_t *l, const call_opts_t *opts, const call_target_t *target);
void call_link_close(call_link_t *l);
/* The registry that is asked, as text. */
const char *call_registry_name(const call_opts_t *opts, char *buf, size_t cap);

/* An operation that writes down who answered it. Post it, then call_known_wait(). */
typedef struct call_known {
    weft_op_t op;
    call_link_t *link;
    _Atomic bool told;
} call_known_t;
void call_known_init(call_known_t *k, call_link_t *l, uint64_t timeout_ns);
weft_status_t call_known_wait(call_known_t *k);
/* The same for the first one: does not wait for servers that will not let us in. */
weft_status_t call_known_first(call_known_t *k);
/* The same after the operation is complete. */
void call_known_told(call_known_t *k);

/* Who offers an entry, as its callers will know him when he has proved it: the last line of its data may say so. The length. */
size_t call_identity_of(const weft_entry_t *entry, const char **at_out);

/* Instances in a registry, by service and instance. */
typedef struct call_entry {
    char *service, *instance, *address, *functions; /* functions: number and signature, a line each; or "" */
    char *identity; /* see call_identity_of(); "": it says none */
    uint32_t load;
} call_entry_t;
typedef struct call_entries {
    call_entry_t *at;
    size_t n, cap;
    bool no_memory;
} call_entries_t;
/* Those of a service, or all (NULL). TOOL_OK, or the exit status after a sentence. */
int call_entries_find(call_link_t *l, const char *service, call_entries_t *entries_out);
void call_entries_free(call_entries_t *e);
/* After target->service was not found: a sentence, and the exit status; TOOL_OK if it has appeared meanwhile. */
int call_nobody(call_link_t *l);

/* --- values --------------------------------------------------------------------------------------------------- */

typedef struct call_args {
    weft_value_t values[WEFT_SIG_PARAMS]; /* without a stream */
    size_t n;
    const weft_param_t *stream;           /* NULL: the arguments have none */
    const char **items;                   /* words for the stream; none of them: standard input */
    size_t n_items;
    void **blocks;                        /* memory of values */
    size_t n_blocks, cap_blocks;
} call_args_t;

/* Arguments of a signature from the words. TOOL_OK, or the exit status after a sentence. Free it in any case. */
int call_args_read(call_args_t *a, const call_opts_t *opts, const weft_sig_t *sig);
void call_args_free(call_args_t *a);
/* Memory of a value, freed with it; NULL after a sentence. */
void *call_args_alloc(call_args_t *a, size_t n);
/* A value of a type from text of n bytes (and a zero behind it). False: `why` has a sentence. */
bool call_value_read(call_args_t *a, uint32_t type, char *text, size_t n, weft_value_t *out, char *why, size_t why_cap);
/* All of a file, or of standard input ("-"), with a zero behind it. NULL after a sentence, or a signal. */
char *call_read_all(const char *path, size_t *n_out);

/* A tensor from text, or from the bytes of a .npy file. As call_value_read(). */
bool call_tensor_read(call_args_t *a, char *text, size_t n, weft_tensor_t *out, char *why, size_t why_cap);
/* The type of its elements as a value's, 0 if there is none; and one element, by its place in the order of rows. */
uint32_t call_tensor_type(const weft_tensor_t *t);
weft_value_t call_tensor_element(const weft_tensor_t *t, uint64_t index);
uint64_t call_tensor_count(const weft_tensor_t *t);
/* Elements are here, and of a type that can be shown. */
bool call_tensor_shown(const weft_tensor_t *t);
bool call_tensor_save(const weft_tensor_t *t, FILE *f);

/* A value on a line of its own; characters that would move a terminal's cursor are escaped if f is one. */
void call_show(FILE *f, const weft_value_t *v);
void call_show_json(tool_json_t *j, const char *name, const weft_value_t *v);
void call_show_results(const weft_sig_t *sig, const weft_reply_t *reply);
/* To the file of --save. False after a sentence. */
bool call_save(const char *path, const weft_value_t *v);

/* --- calls ----------------------------------------------------------------------------------------------------- */

/* A function that was found. */
typedef struct call_made {
    call_link_t *link;
    weft_method_t *method;
    const weft_sig_t *sig;
    call_args_t args;
    weft_call_opts_t call_opts;
} call_made_t;

/* What a call came to: results, or a sentence, or an object with --json; the exit status. `number`: of --repeat, 0 if it is the
 * only one. */
int call_report(const call_made_t *m, weft_status_t st, const weft_reply_t *reply, double seconds, uint64_t number);
/* A sentence about a call that failed, and the exit status. */
int call_failed(const call_made_t *m, weft_status_t st, const weft_reply_t *reply, uint64_t number);

int call_stream(call_made_t *m);
int call_repeat(call_made_t *m);
int call_list(const call_opts_t *opts, const call_target_t *target);

#endif
