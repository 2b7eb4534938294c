/* registry/redis.h - what the files of the Redis backend share: addresses, connections, what the server had last.
 *
 * Every call waits at most until a deadline (wefti_clock_ns()). `why` gets a few words for the log when something fails. */
#ifndef WEFTI_REGISTRY_REDIS_H
#define WEFTI_REGISTRY_REDIS_H

#include "registry/state.h"

/* --- addresses (redis_address.c) --------------------------------------------------------------------------------------- */

typedef struct redis_address {
    char host[256]; /* or the path of a Unix socket, if port is 0 */
    uint16_t port;
    unsigned db;
    char user[64], password[256]; /* "": none */
} redis_address_t;

/* Parse what follows redis:// or redis+unix://. WEFT_ERR_INVALID, with a sentence that does not show the password. */
weft_status_t wefti_redis_address(const char *rest, bool unix_socket, redis_address_t *address_out);

/* --- connections (redis_conn.c) ---------------------------------------------------------------------------------------- */

enum { REDIS_WHY = 192, REDIS_WORDS_MAX = 512 };
struct redisReply;

typedef struct redis_conn {
    int fd;                       /* -1: not connected */
    struct redisContext *context; /* hiredis's */
    size_t unread;                /* bytes since the last whole reply */
    bool too_many;                /* the server sent an array longer than allowed */
} redis_conn_t;

/* One argument of a command. */
typedef struct redis_word {
    const void *at;
    size_t n;
} redis_word_t;
static inline redis_word_t redis_text(const char *text) { return (redis_word_t){text, strlen(text)}; }

/* Load hiredis, which then stays loaded. WEFT_ERR_UNSUPPORTED, with a sentence. */
weft_status_t wefti_redis_load(void);
/* Connect; c->fd is -1 before. WEFT_ERR_UNREACHABLE, _LIMIT, _NOMEM. */
weft_status_t wefti_redis_connect(redis_conn_t *c, const redis_address_t *address, uint64_t deadline, char why[REDIS_WHY]);
void wefti_redis_disconnect(redis_conn_t *c);
/* Of a connection that waits for no reply: has the server closed it, or sent something? */
bool wefti_redis_broken(const redis_conn_t *c);
/* Queue a command of at most REDIS_WORDS_MAX words; the next wefti_redis_receive() sends it. WEFT_ERR_NOMEM. */
weft_status_t wefti_redis_send(redis_conn_t *c, size_t n, const redis_word_t *words);
/* The next reply, to be freed by wefti_redis_reply_free(). A deadline of 0: only what is here already, else WEFT_ERR_AGAIN. After
 * WEFT_ERR_UNREACHABLE, _PROTOCOL and _NOMEM the connection is of no use. */
weft_status_t wefti_redis_receive(redis_conn_t *c, uint64_t deadline, struct redisReply **reply_out, char why[REDIS_WHY]);
void wefti_redis_reply_free(struct redisReply *reply); /* NULL is allowed */

/* --- the backend (redis.c) --------------------------------------------------------------------------------------------- */

#define REDIS_PREFIX "weft:"
#define REDIS_CALL_NS (2 * WEFT_SECOND)
enum { REDIS_OWNER = 16 };

typedef struct redis redis_t;

/* The connection to ask, if it works as far as can be known; else connect. */
weft_status_t wefti_redis_ready(redis_t *b);
/* Log in over a new connection, and choose the database: commands that are not sent yet, and get so many replies. */
weft_status_t wefti_redis_log_in(redis_t *b, redis_conn_t *c, int *replies_out);
/* Run a script, whose one key is the index. */
weft_status_t wefti_redis_eval(redis_t *b, const char *script, size_t n, const redis_word_t *args, struct redisReply **reply_out);
weft_status_t wefti_redis_reply(redis_t *b, uint64_t deadline, struct redisReply **reply_out);
/* A reply other than expected: complain, and give a status. */
weft_status_t wefti_redis_refused(redis_t *b, const struct redisReply *r);
/* The connection failed: disconnect, complain and pause. Gives a status. */
weft_status_t wefti_redis_failed(redis_t *b, weft_status_t st, const char *why);
void wefti_redis_down(redis_t *b); /* disconnect */

/* redis_list.c: list(), known() and wait() of the backend */
weft_status_t wefti_redis_list(void *backend, reg_found_t *found);
weft_status_t wefti_redis_known(void *backend, reg_found_t *found);
bool wefti_redis_wait(void *backend, uint64_t ns);

/* --- what the server had when it was last listed (redis_known.c) ------------------------------------------------------- */

/* A value is a random id of its registry, a count of its changes, and the entry's bytes. Values with the same head are the
 * same. */
enum { REDIS_HEAD = 24, REDIS_NAME_MAX = REG_FULL_NAME - 1 };

typedef struct redis_seen {
    char name[REG_FULL_NAME];
    uint8_t head[REDIS_HEAD];
    bool fetched;       /* `entry` is the value with this head */
    reg_entry_t *entry; /* NULL: the value is no entry */
    uint64_t lost_at;   /* since when it is missing; 0: it is there */
} redis_seen_t;

typedef struct redis_known {
    redis_seen_t *at;
    size_t n, cap;
    uint64_t asked_at; /* of the last attempt to list all */
} redis_known_t;

/* How long watches keep an entry that disappeared without leaving: its server may have been emptied, and its process puts it
 * back. */
#define REDIS_GRACE_NS (3 * WEFT_SECOND)

/* Add one of those that are there now; head_n 0: it has left. Leaves out what is strange. False: no memory. */
bool wefti_redis_known_add(redis_known_t *now, const char *name, size_t name_n, const void *head, size_t head_n);
/* `now` is all there is: take over from `old` what is the same, and what may come back. Then `old` is `now`. False: no memory. */
bool wefti_redis_known_turn(redis_known_t *old, redis_known_t *now, uint64_t time);
/* The whole value of a name; n 0: it is gone. False: no memory. */
bool wefti_redis_known_value(redis_seen_t *seen, const void *value, size_t n);
/* Add all that are there to `found`; and those that disappeared, if `believed`. */
weft_status_t wefti_redis_known_tell(const redis_known_t *known, bool believed, reg_found_t *found);
void wefti_redis_known_free(redis_known_t *known);

struct redis {
    weft_registry_t *registry;
    redis_address_t address;
    char lease_ms[24], channel[40], pattern[48];
    uint8_t owner[REDIS_OWNER];  /* the id of this registry */
    uint64_t changes;
    wefti_rng_t rng;

    redis_conn_t conn, ear;      /* to ask, to listen */
    reg_pause_t pause;
    bool nudged;                 /* wait() has said that it is time to try again */
    weft_status_t status;        /* while there is no connection: why */

    bool fresh, left;            /* nothing was renewed over this connection yet; all of ours have left */
    uint64_t renewed_at, listened_at;
    redis_known_t known;
    uint8_t value[REDIS_HEAD + REG_BYTES_MAX];
};

#endif
