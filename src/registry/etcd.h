/* registry/etcd.h - what the files of the etcd backend share: words on the wire, the backend, what it knows from its watch. */
#ifndef WEFTI_REGISTRY_ETCD_H
#define WEFTI_REGISTRY_ETCD_H

#include "base/rng.h"
#include "registry/http.h"
#include "registry/state.h"

#define ETCD_PREFIX "/weft/"
#define ETCD_PREFIX_END "/weft0" /* the first key behind all that begin with the prefix */
enum {
    ETCD_HOSTS_MAX = 16,
    ETCD_KEY_MAX = (int)sizeof ETCD_PREFIX + 2 * REG_NAME_MAX + 1,
    ETCD_START_MAX = 200,                   /* of a key at which a page begins; all of ours are shorter */
    ETCD_BODY_MAX = 4 * REG_BYTES_MAX / 3 + 4096,
    ETCD_REPLY_MAX = 4 << 20,
    ETCD_ENTRIES_MAX = 65536,
    ETCD_MESSAGE_MAX = 160,
};
#define ETCD_ALL_MAX ((size_t)256 << 20)    /* bytes of all entries together */

/* --- words on the wire (etcd_wire.c) ----------------------------------------------------------------------------------- */

/* A key of etcd's and what is under it. Valid during the call it is given to. */
typedef struct etcd_kv {
    const char *service, *instance; /* what the key says; NULL: it is none of ours */
    reg_entry_t *entry;             /* NULL: the key is not there (any more), or its value is no entry of that name */
    int64_t revision;
    size_t bytes;
} etcd_kv_t;
/* WEFT_OK, or why to stop. */
typedef weft_status_t (*etcd_kv_fn)(const etcd_kv_t *kv, void *user);

/* What we want to know of any reply. */
typedef struct etcd_reply {
    int64_t revision, id, ttl, compacted, code;
    bool succeeded, more, canceled, failed; /* failed: it is about an error */
    bool fresh;                                      /* it came over a new connection */
    size_t keys;                                     /* how many there were */
    int64_t lease;                                   /* of the last of them */
    char start[ETCD_START_MAX + 1];                  /* where the next page begins */
    size_t start_len;
    char message[ETCD_MESSAGE_MAX];
} etcd_reply_t;

/* `text` changes. fn may be NULL. WEFT_ERR_PROTOCOL: it is no reply; some may have been told to fn already. */
weft_status_t wefti_etcd_read(char *text, size_t n, etcd_kv_fn fn, void *user, etcd_reply_t *reply_out);

/* Write a request; each gives its length. `body` has ETCD_BODY_MAX bytes. */
size_t wefti_etcd_grant(char *body, uint64_t seconds);
size_t wefti_etcd_lease(char *body, int64_t lease, bool keys); /* keep it alive, revoke it; what is under it */
/* Put the entry if the key is not there (mine: if it is under that lease); else say what is there. 0: no memory. */
size_t wefti_etcd_put(char *body, const reg_entry_t *e, int64_t lease, bool mine);
size_t wefti_etcd_delete(char *body, const char *service, const char *instance, int64_t lease);
/* Up to `limit` keys from `start` on, as they were at that revision (0: as they are). */
size_t wefti_etcd_range(char *body, const char *start, size_t start_len, unsigned limit, int64_t revision);
size_t wefti_etcd_count(char *body);
size_t wefti_etcd_watch(char *body, int64_t revision);

/* --- the backend (etcd.c) ---------------------------------------------------------------------------------------------- */

typedef struct etcd {
    weft_registry_t *registry;
    reg_http_t *http;
    char *hosts[ETCD_HOSTS_MAX];        /* "http://host:port" */
    unsigned n_hosts, at;

    /* trouble */
    reg_pause_t pause;                  /* nothing is tried before it is over */
    uint64_t full_until;                /* nothing is put before */
    weft_status_t down, full;           /* what to say until then */
    wefti_rng_t rng;
    const char *bad_path;               /* the kind of request that was last complained of */
    char why[320];                      /* and why; "": all is well */

    /* the lease. Of ours, those with `held` may be under it; the `sure` ones are */
    uint64_t lease_s, ttl_ns, kept;     /* as asked for, as given; when it was last renewed */
    int64_t lease;                      /* 0: none */
    wefti_list_t owed;                  /* reg_own_t: still to be taken away */

    /* what the watch knows (etcd_watch.c) */
    reg_found_t *mirror;                /* in order; NULL: nothing */
    int64_t revision, line_revision;    /* of the mirror; the highest in the line that is being read */
    size_t mirror_bytes;
    reg_found_t *before;                /* what was known when the connection was lost; NULL: nothing, or too long ago */
    uint64_t before_until;
    uint64_t heard, asked;              /* when etcd last gave a sign of life; when someone last wanted to know */
    reg_pause_t stream_pause;           /* no new stream before it is over */
    uint64_t stream_began;
    bool streams, news, doubt;          /* there is a stream, going or over; something changed; the mirror may be wrong */
    char *line;                         /* of the stream, as far as it is here */
    size_t line_n, line_cap;

    char body[ETCD_BODY_MAX];
} etcd_t;

/* Send a request, the n bytes of `body`. WEFT_ERR_NOTFOUND: it is about something that is not there; _TRUNCATED: too long an
 * answer; _STALE: too old a revision. All other trouble is logged: _UNREACHABLE, _LIMIT, _NOMEM. */
weft_status_t wefti_etcd_ask(etcd_t *e, const char *path, size_t n, uint64_t ns, etcd_kv_fn fn, void *user,
                             etcd_reply_t *reply_out);
/* All entries as they are now, and as of which revision. */
weft_status_t wefti_etcd_all(etcd_t *e, reg_found_t *found, int64_t *revision_out);

extern const char wefti_etcd_path_range[];

/* --- the watch (etcd_watch.c) ------------------------------------------------------------------------------------------ */

weft_status_t wefti_etcd_known(void *backend, reg_found_t *found);
bool wefti_etcd_wait(void *backend, uint64_t ns);
void wefti_etcd_watch_end(etcd_t *e);

#endif
