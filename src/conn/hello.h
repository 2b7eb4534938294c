/* conn/hello.h - the messages of the first acquaintance, as bytes. docs/design/wire.md has them byte by byte.
 *
 * Pure functions over bytes: no runtime, no socket, no key. Everything decoded comes from a stranger, so every length and value
 * is checked here, once, and what is handed out is within the bounds of these structs. tests/unit/conn_hello.c and
 * tests/fuzz/hello.c hold us to it. */
#ifndef WEFTI_CONN_HELLO_H
#define WEFTI_CONN_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weft/status.h>

#include "base/keys.h"
#include "fabric/fabric.h" /* WEFTI_CAPS_MAX, WEFTI_LANE_ADDR_MAX */

#define WEFTI_HELLO_MAGIC 0x54464557u /* "WEFT" */
#define WEFTI_PROTOCOL_MIN 2u         /* the oldest protocol this library speaks */
#define WEFTI_PROTOCOL_MAX 2u         /* the newest */

enum {
    WEFTI_SHAKE_HELLO = 1,   /* dialler: who I am */
    WEFTI_SHAKE_WELCOME = 2, /* listener: who I am */
    WEFTI_SHAKE_JOIN = 3,    /* dialler: this transport, my half of a lane */
    WEFTI_SHAKE_LANE = 4,    /* listener: my half of it */
    WEFTI_SHAKE_REFUSE = 5,  /* either: no, and why */
    WEFTI_SHAKE_RETRY = 6    /* listener: not over this transport; try another */
};

#define WEFTI_NONCE_SIZE 32
#define WEFTI_UUID_SIZE 16
#define WEFTI_COOKIE_SIZE 16
#define WEFTI_MAC_SIZE 32
#define WEFTI_NAME_MAX 127
#define WEFTI_HELLO_TRANSPORTS_MAX 8
#define WEFTI_REFUSE_TEXT_MAX 240
/* The largest message of each kind, its MAC not counted. */
#define WEFTI_HELLO_MAX (124 + 1 + WEFTI_NAME_MAX + 1 + WEFTI_HELLO_TRANSPORTS_MAX * (2 + WEFTI_CAPS_MAX) + WEFTI_KEY_HINT_SIZE)
#define WEFTI_JOIN_HEAD 8
#define WEFTI_LANE_HEAD 32
#define WEFTI_REFUSE_MAX (8 + WEFTI_REFUSE_TEXT_MAX)
#define WEFTI_RETRY_SIZE 8

#define WEFTI_HELLO_HINT "weft hello hint" /* the label of `hint`, which is of the dialler's nonce */

enum { WEFTI_HELLO_KEYED = 1 /* has a key and wants proof */, WEFTI_HELLO_RESUME = 2 /* resume_id and cookie mean something */ };

typedef struct wefti_hello_transport {
    uint8_t kind, caps_len;
    uint8_t caps[WEFTI_CAPS_MAX];
} wefti_hello_transport_t;

typedef struct wefti_hello {
    uint16_t flags;
    uint16_t min_version, max_version;
    uint8_t nonce[WEFTI_NONCE_SIZE];
    uint8_t uuid[WEFTI_UUID_SIZE]; /* of the runtime */
    uint8_t host[WEFTI_UUID_SIZE]; /* of the machine and its network namespace */
    uint64_t capabilities;
    uint64_t heartbeat_ns;
    uint64_t recv_window;
    uint64_t resume_id; /* the listener's id of the endpoint the dialler wants back */
    uint8_t cookie[WEFTI_COOKIE_SIZE];
    uint8_t name_len, n_transports;
    char name[WEFTI_NAME_MAX + 1]; /* printable, terminated */
    uint8_t hint[WEFTI_KEY_HINT_SIZE]; /* of a HELLO that is keyed: which key the dialler proves (base/keys.h) */
    wefti_hello_transport_t transports[WEFTI_HELLO_TRANSPORTS_MAX];
} wefti_hello_t;

/* JOIN and LANE: where one side of a lane is. */
typedef struct wefti_lane_msg {
    uint8_t type;
    uint8_t attempt; /* counts the transports tried, so that answers to an earlier try are known as such */
    uint8_t kind;    /* JOIN: of the transport */
    bool resumed;    /* LANE; and so are the next two */
    uint64_t id;     /* the listener's id of the endpoint: resume_id of a later hello */
    uint8_t cookie[WEFTI_COOKIE_SIZE];
    const uint8_t *addr; /* inside the message */
    size_t addr_len;
} wefti_lane_msg_t;

/* REFUSE and RETRY. */
typedef struct wefti_refuse {
    uint8_t attempt; /* RETRY */
    weft_status_t status;
    char text[WEFTI_REFUSE_TEXT_MAX + 1]; /* printable, terminated; RETRY: empty */
} wefti_refuse_t;

/* Encoders return the length written; buf is large enough by the constants above. The type (HELLO or WELCOME) is the caller's.
 * attempt: of a RETRY, which has no text; 0: a REFUSE. */
size_t wefti_hello_encode(const wefti_hello_t *h, uint8_t type, void *buf, size_t cap);
size_t wefti_lane_msg_encode(const wefti_lane_msg_t *h, void *buf, size_t cap);
size_t wefti_refuse_encode(uint8_t attempt, weft_status_t status, const char *text, void *buf, size_t cap);

/* Decoders take one whole message without its MAC. WEFT_OK, or WEFT_ERR_PROTOCOL with *what_out a sentence (static) about the
 * flaw; nothing else is set then. wefti_hello_decode may also say WEFT_ERR_VERSION: then min_version and max_version of *h_out
 * are set, and nothing else, because only those are the same in every version. */
weft_status_t wefti_hello_decode(const void *bytes, size_t n, uint8_t type, wefti_hello_t *h_out, const char **what_out);
weft_status_t wefti_lane_msg_decode(const void *bytes, size_t n, uint8_t type, wefti_lane_msg_t *h_out, const char **what_out);
weft_status_t wefti_refuse_decode(const void *bytes, size_t n, uint8_t type, wefti_refuse_t *r_out, const char **what_out);

/* What a message claims to be: its first byte, 0 for an empty one. */
static inline uint8_t wefti_shake_type(const void *bytes, size_t n) { return n ? *(const uint8_t *)bytes : 0; }

#endif
