/* tests/fault/lib/raw.h - a peer that is none: a bare socket that speaks as much of the protocol as a test wants. */
#ifndef WEFT_TEST_RAW_H
#define WEFT_TEST_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <weft/weft.h>

#include "conn/hello.h"

int raw_connect(uint16_t port);              /* to 127.0.0.1; ends the test if that fails */
int raw_listen(uint16_t *port_out);
int raw_accept(int listener);                /* waits up to 5 s */
/* One framed message. */
void raw_send(int fd, const void *bytes, size_t n);
/* The next framed message, driving rt (may be NULL) meanwhile: its length, 0 if the peer hung up, -1 after `seconds`. */
long raw_recv(int fd, void *buf, size_t cap, double seconds, weft_runtime_t *rt);
/* A well-formed hello of a peer without transports. */
wefti_hello_t raw_hello(void);
/* Drive a runtime for a while. */
void raw_run(weft_runtime_t *rt, double seconds);

#endif
