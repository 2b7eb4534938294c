/* tests/lib/ports.h - addresses that a test may name before anyone listens there.
 *
 * A port that the system gave out and that was closed again can be anyone's a moment later. These are below those that the
 * system gives out, and nobody else who asks here has them while this process lives. */
#ifndef TEST_PORTS_H
#define TEST_PORTS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Is this the run over TLS? ctest says so (TEST_WEFT_TLS) for tests with the word `tls`, and WEFT_KEY_FILE names their key. */
bool ports_tls(void);

/* Where a test listens over TCP: "tcp://127.0.0.1:0", and in the run over TLS "tls://127.0.0.1:0". */
const char *ports_tcp(void);

/* A port that nobody listens at, for as long as this process lives; ends the test where there is none. */
uint16_t ports_take(void);

/* "unix://@weft-test-NAME-" and this process's number: the same program may run twice at once. The fourth call after this one
 * uses its buffer again. */
const char *ports_local(const char *name);

/* A socket at such an address, connected or listening, which leaves unread what comes. They end the test where there is none. */
int ports_connect(const char *local);
int ports_listen(const char *local, int backlog);

#ifdef __cplusplus
}
#endif
#endif
