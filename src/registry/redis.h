/* registry/redis.h - a Redis server: its address, a connection to it, what it says; what the files of this backend share.
 *
 * Everything waits at most until a deadline (wefti_clock_ns()). `why` gets a few words for the log when something fails. */
#ifndef WEFTI_REGISTRY_REDIS_H
#define WEFTI_REGISTRY_REDIS_H

#include "registry/state.h"

/* --- addresses (redis_address.c) --------------------------------------------------------------------------------------------------- */

typedef struct redis_address {
    char host[256]; /* or the path of a Unix socket, if port is 0 */
    uint16_t port;
    unsigned db;
    char user[64], password[256]; /* "": none */
} redis_address_t;

/* What follows redis:// or redis+unix://. WEFT_ERR_INVALID, with a sentence in which there is no password. */
weft_status_t wefti_redis_address(const char *rest, bool unix_socket, redis_address_t *address_out);

/* --- connections (redis_link.c) ------------------------------------------------------------------------------------------------------ */

enum { REDIS_WHY = 192, REDIS_WORDS_MAX = 512 };
struct redisReply;

typedef struct redis_link {
    int fd; /* -1: none */
    struct redisReader *reader;
    char *out; /* what is still to be sent: [out_at, out_n) of out_cap */
    size_t out_at, out_n, out_cap;
    size_t unread; /* bytes since the last whole reply */
    bool too_many; /* a reply of more parts than anyone needs */
} redis_link_t;

/* One argument of a command. */
typedef struct redis_word {
    const void *at;
    size_t n;
} redis_word_t;
static inline redis_word_t redis_text(const char *text) { return (redis_word_t){text, strlen(text)}; }

/* WEFT_ERR_UNSUPPORTED, with a sentence: the library that speaks the protocol is not there. Once it is it stays. */
weft_status_t wefti_redis_load(void);
/* Connect; link->fd is -1 before. WEFT_ERR_UNREACHABLE, _LIMIT, _NOMEM. */
weft_status_t wefti_redis_dial(redis_link_t *link, const redis_address_t *address, uint64_t deadline, char why[REDIS_WHY]);
void wefti_redis_hang_up(redis_link_t *link);
/* Has the other side hung up, or said what it was not asked? For a link that waits for nothing. */
bool wefti_redis_broken(const redis_link_t *link);
/* A command: at most REDIS_WORDS_MAX words. It is sent by the next wefti_redis_hear(). WEFT_ERR_NOMEM. */
weft_status_t wefti_redis_say(redis_link_t *link, size_t n, const redis_word_t *words);
/* The next reply, to be freed by wefti_redis_forget(). A deadline of 0: only what is there, else WEFT_ERR_AGAIN. WEFT_ERR_UNREACHABLE,
 * _PROTOCOL, _NOMEM: the link is of no more use. */
weft_status_t wefti_redis_hear(redis_link_t *link, uint64_t deadline, struct redisReply **reply_out, char why[REDIS_WHY]);
void wefti_redis_forget(struct redisReply *reply); /* NULL is allowed */

/* --- what there is, as it was last seen (redis_known.c) ---------------------------------------------------------------------------------- */

/* A value is a token of its registry, a count of the changes, and the entry's bytes. What begins with the same head is the same. */
enum { REDIS_TOKEN = 16, REDIS_HEAD = 24, REDIS_NAME_MAX = 2 * REG_NAME_MAX + 1 };

typedef struct redis_seen {
    char name[REDIS_NAME_MAX + 1]; /* SERVICE@INSTANCE */
    uint8_t head[REDIS_HEAD];
    bool fetched;       /* `entry` is what has this head */
    reg_entry_t *entry; /* NULL: that is no entry */
    uint64_t lost_at;   /* not there any more since; 0: it is */
} redis_seen_t;

typedef struct redis_known {
    redis_seen_t *at;
    size_t n, cap;
    uint64_t asked_at; /* when it was last tried to see it all */
} redis_known_t;

/* How long one that has vanished is believed in, as others may be about to put it back: it did not leave, and this server may have been emptied. */
#define REDIS_GRACE_NS (3 * WEFT_SECOND)

/* Note one of those that there are now; head_n 0: it has left. False: no memory. What is strange is left out. */
bool wefti_redis_known_add(redis_known_t *now, const char *name, size_t name_n, const void *head, size_t head_n);
/* `now` is all there is: take over from `old` what is the same, and what may come back. Afterwards `old` is `now`. False: no memory. */
bool wefti_redis_known_turn(redis_known_t *old, redis_known_t *now, uint64_t time);
/* What the server has for a name, whole; n 0: nothing any more. False: no memory. */
bool wefti_redis_known_value(redis_seen_t *seen, const void *value, size_t n);
/* All that there is; and what vanished, if `believed`. */
weft_status_t wefti_redis_known_tell(const redis_known_t *known, bool believed, reg_found_t *found);
void wefti_redis_known_free(redis_known_t *known);

#endif
