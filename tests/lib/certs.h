/* tests/lib/certs.h - certificates for tests, good ones and bad ones, made with libcrypto: the word `openssl` in a test's
 * ctest line. */
#ifndef TEST_CERTS_H
#define TEST_CERTS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct cert {
    const char *name;   /* of the files, NAME.crt and NAME.key */
    const char *by;     /* who signs it; NULL: itself */
    const char *san;    /* "DNS:node.example,IP:127.0.0.1"; NULL: none */
    const char *usage;  /* "serverAuth,clientAuth"; NULL: says nothing of it */
    const char *chain;  /* this certificate follows it in its file; NULL: none does */
    const char *common; /* its name of old, the CN; NULL: `name` */
    int from, to;       /* days from now; both 0: from yesterday on, for two days */
    int seconds;        /* and not for two days, but for so many seconds from now; 0: days */
    int rsa;            /* bits of an RSA key; 0: P-256 */
    bool ca, sha1;
    unsigned nul;       /* the byte of the first name of `san` in whose place is a NUL; 0: none */
    unsigned names;     /* and so many names "DNS:n.example" more, for a large one */
} cert_t;

/* Where the files are, made with the first call; it goes with the process that made it. */
const char *certs_folder(void);
/* "FOLDER/NAME.END"; the eighth call after this one uses its buffer again. */
const char *certs_file(const char *name, const char *end);
void certs_make(const cert_t *c);
/* "ca", and "node" of it for 127.0.0.1, ::1, localhost and node.example. */
void certs_usual(void);
/* WEFT_TLS_CERT, _KEY and _CA for runtimes that are opened from now on; NULL: without. */
void certs_use(const char *name, const char *ca);

#endif
