/* rpc/type.h - types, tensors and their text, beyond weft/types.h. */
#ifndef WEFTI_RPC_TYPE_H
#define WEFTI_RPC_TYPE_H

#include <string.h>
#include <weft/types.h>

/* Can a value have this type? Not void, nor a number that is no type. */
bool wefti_type_ok(uint32_t type);
/* The type with that name ("i32", "[i32]", "void"); false: there is none. */
bool wefti_type_find(const char *name, size_t len, uint32_t *type_out);

/* Where the elements of a tensor lie: `bytes` of memory, the first element `first` bytes from their beginning. A compact one
 * without elements has none. What is no tensor (weft_tensor_bytes() says why), and strides that reach too far:
 * WEFT_ERR_INVALID. */
weft_status_t wefti_tensor_span(const weft_tensor_t *t, uint64_t *bytes_out, uint64_t *first_out);
/* Bytes to which an element has to be aligned: 1, 2, 4 or 8. */
size_t wefti_tensor_align(const weft_tensor_t *t);
/* Can the processor touch the memory of that device? */
bool wefti_tensor_on_host(int32_t device_type);

/* value.c: text that is written as far as its memory goes, with a zero behind it, and counted beyond. */
typedef struct wefti_text {
    char *buf; /* cap + 1 bytes; NULL: it is only counted */
    size_t cap, len;
} wefti_text_t;
wefti_text_t wefti_text(char *buf, size_t bytes);
void wefti_text_put(wefti_text_t *t, const char *s, size_t n);
void wefti_text_putf(wefti_text_t *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
