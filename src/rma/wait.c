/* rma/wait.c - reading and writing in one call that waits. tests/wire/waiting.c. */
#include "core/core.h"
#include "weft/rma.h"

weft_status_t weft_rma_read_wait(weft_remote_t *remote, uint64_t offset, void *buf, size_t len, uint64_t timeout_ns)
{
    weft_op_t op;
    weft_status_t st = wefti_sync_begin(&op, timeout_ns);
    return st ? st : wefti_sync_end(&op, weft_rma_read(remote, offset, buf, len, &op));
}

weft_status_t weft_rma_write_wait(weft_remote_t *remote, uint64_t offset, const void *buf, size_t len, uint64_t timeout_ns)
{
    weft_op_t op;
    weft_status_t st = wefti_sync_begin(&op, timeout_ns);
    return st ? st : wefti_sync_end(&op, weft_rma_write(remote, offset, buf, len, &op));
}
