/* tests/lib/etcds.h - a real etcd on loopback in a directory of its own, gone with the test whatever becomes of it. */
#ifndef WEFT_TEST_ETCDS_H
#define WEFT_TEST_ETCDS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct etcd_server {
    pid_t pid; /* 0: it does not run */
    int port, peer_port;
    char dir[64], uri[64];
    bool tls; /* clients come by TLS */
} etcd_server_t;

/* Is there one on this machine? Debian's package etcd-server has it. */
bool etcd_there(void);
#define ETCD_OR_SKIP() \
    do { \
        if (!etcd_there()) \
            SKIP("there is no etcd here; Debian: apt-get install etcd-server"); \
    } while (0)

/* Start one that is new; returns when it answers. */
void etcd_new(etcd_server_t *s);
/* The same by TLS, with a certificate of its own making, DIR/cert.pem. False: there is no openssl to make it. */
bool etcd_new_tls(etcd_server_t *s);
/* Start it again where it was, with what it had; or after etcd_forget() without. */
void etcd_start(etcd_server_t *s);
void etcd_forget(etcd_server_t *s);
void etcd_kill(etcd_server_t *s);
/* Kill it and remove its directory. Whatever dies before takes both with it, too. */
void etcd_end(etcd_server_t *s);

/* POST to it as any program can; the body of the answer, terminated. False: none came within 5 s. */
bool etcd_post(const etcd_server_t *s, const char *path, const char *body, char *reply, size_t cap);
void etcd_put(const etcd_server_t *s, const char *key, const void *value, size_t n);
void etcd_delete(const etcd_server_t *s, const char *key);
/* Forget all revisions before the present one. */
void etcd_compact(const etcd_server_t *s);

#endif
