/* tools/key/key.h - what the files of `weft key` share: writing files with secrets, and making certificates. */
#ifndef WEFT_TOOLS_KEY_H
#define WEFT_TOOLS_KEY_H

#include "common.h"

extern const tool_command_t key_cluster_command;

/* Make a file with these n bytes. One that is there already is not replaced, and half a file is not left behind. False after a
 * sentence. */
bool key_file_new(const char *path, const char *text, size_t n, unsigned mode);
/* Write all of it, to the disk. False: errno. */
bool key_write_all(int fd, const char *text, size_t n);

/* --- certificates: tools/key/x509.c ------------------------------------------------------------------------------ */

enum {
    KEY_CA_DAYS = 3653,  /* ten years */
    KEY_NAME_MAX = 63,   /* bytes of a name: what the common name of a certificate can hold */
    KEY_HOSTS_MAX = 32,  /* of one certificate */
    KEY_PEM_MAX = 65536, /* bytes of a file that is read */
};

/* A certificate and its private key as text, to be let go of with key_pem_free(). */
typedef struct key_pem {
    char *cert, *key;
    char until[16]; /* "2027-11-18": its last day, UTC */
} key_pem_t;

void key_pem_free(key_pem_t *pem); /* the key is wiped. One that was never made is allowed */

/* Are certificates possible here? Loads OpenSSL. False after a sentence. */
bool key_x509_ready(void);

/* An authority: a certificate and its key. All of them give NULL or false after a sentence. After key_x509_ready(). */
typedef struct key_ca key_ca_t;
key_ca_t *key_ca_new(key_pem_t *pem_out);
/* One that was made before; the paths are for sentences. Of *pem_out only `until` is set. */
key_ca_t *key_ca_read(const char *cert, const char *cert_path, const char *key, const char *key_path, key_pem_t *pem_out);
void key_ca_free(key_ca_t *ca); /* NULL is allowed */

/* Is this a name or an address that a certificate can be for? */
bool key_is_host(const char *host);
/* A certificate for `name` and these hosts, each a name or an address, for both ends of connections. It is not valid for longer
 * than its authority. */
bool key_cert_new(key_ca_t *ca, const char *name, const char *const *hosts, size_t n_hosts, unsigned days, key_pem_t *pem_out);

#endif
