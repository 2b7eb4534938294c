/* tests/lib/ports.h - TCP ports that a test may name before anyone listens there.
 *
 * A port that the system gave out and that was closed again can be anyone's a moment later. These are below those that the
 * system gives out, and nobody else who asks here has them while this process lives. */
#ifndef TEST_PORTS_H
#define TEST_PORTS_H

#include <stdint.h>

/* A port that nobody listens at, for as long as this process lives; ends the test where there is none. */
uint16_t ports_take(void);

#endif
