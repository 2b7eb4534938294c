/* base/utf8.h - is it text? */
#ifndef WEFTI_UTF8_H
#define WEFTI_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of the character at p, of which there are at most n (not 0), and its code point; 0: it is none. */
size_t wefti_utf8_char(const uint8_t *p, size_t n, uint32_t *c_out);
/* n bytes are UTF-8, zeroes and control characters included. */
bool wefti_utf8_ok(const void *p, size_t n);

#endif
