/* Marks in the memory of payloads that are awaited: how many there are, and that whatever arrives takes one away. */
#include <sys/mman.h>

#include "rpc/state.h"
#include "test.h"

#define MARK UINT64_C(0x1122334455667788)

static size_t resident(void *at, size_t len)
{
    size_t pages = len / 4096, n = 0;
    unsigned char *in = calloc(1, pages);
    CHECK(in && !mincore(at, len, in));
    for (size_t i = 0; i < pages; i++)
        n += in[i] & 1;
    free(in);
    return n;
}

static void *reserve(size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        SKIP("no room for %zu bytes", len);
    madvise(at, len, MADV_NOHUGEPAGE);
    return at;
}

TEST(a_large_payload_that_was_announced_touches_few_pages)
{
    size_t len = (size_t)8 << 30;
    rpc_fetch_t f = {.stall_ns = WEFT_SECOND};
    weft_iov_t iov = {reserve(len), len};
    wefti_rpc_watch_marks(&f, &iov, 1, MARK);
    size_t n = resident(iov.base, len);
    CHECK(n >= 512 && n <= 1024);
    munmap(iov.base, len);
}

TEST(nothing_is_marked_where_nobody_looks)
{
    size_t len = (size_t)1 << 30;
    rpc_fetch_t f = {.stall_ns = UINT64_MAX};
    weft_iov_t iov = {reserve(len), len};
    wefti_rpc_watch_marks(&f, &iov, 1, MARK);
    CHECK_EQ(resident(iov.base, len), 0);
    CHECK_EQ(f.mark_n, 0);
    munmap(iov.base, len);
}

static size_t marks_in(const uint8_t *at, size_t len)
{
    size_t n = 0;
    uint64_t there;
    for (size_t i = 0; i + sizeof there <= len; i++) {
        memcpy(&there, at + i, sizeof there);
        n += there == MARK;
    }
    return n;
}

TEST(there_is_a_mark_for_every_step_also_in_small_pieces)
{
    enum { PIECES = 400, ROOM = 4096 };
    static uint8_t memory[PIECES * ROOM];
    for (size_t size = 1; size <= ROOM; size += size < 16 ? 1 : 255) {
        weft_iov_t iov[PIECES];
        rpc_fetch_t f = {.stall_ns = WEFT_SECOND};
        size_t n = 0, steps = size * PIECES / 65536;
        memset(memory, 0, sizeof memory);
        for (size_t i = 0; i < PIECES; i++)
            iov[i] = (weft_iov_t){memory + i * ROOM, size};
        wefti_rpc_watch_marks(&f, iov, PIECES, MARK);
        for (size_t i = 0; i < PIECES; i++) {
            n += marks_in(memory + i * ROOM, size);
            for (size_t k = size; k < ROOM; k++)
                CHECK_EQ(memory[i * ROOM + k], 0);
        }
        CHECK(n <= steps && n + 1 >= steps); /* the last may not fit any more */
    }
}
