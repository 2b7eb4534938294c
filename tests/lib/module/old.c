/* tests/lib/module/old.c - a libweft_ucx.so of another version: it says which interface it has, and must be asked nothing
 * more. */
#include <stdint.h>

extern const struct {
    uint32_t version, size;
    void *rest[64];
} weft_ucx_module;

__attribute__((visibility("default"))) const __typeof__(weft_ucx_module) weft_ucx_module = {.version = 77, .size = 4};
