/* One message past 4 GiB: lengths are 64-bit all the way.
 * ctest: long timeout=1700 */
#define TEST_SECONDS 800
#include <sys/mman.h>
#include <sys/sysinfo.h>

#include "lib/pair.h"
#include "test.h"

static pair_t pair;

static void one_huge(const pair_way_t *way)
{
    const size_t len = (UINT64_C(4) << 30) + 12345;
    struct sysinfo info;
    weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
    if (sysinfo(&info) || (info.freeram + info.bufferram) * (uint64_t)info.mem_unit < 2 * len + (UINT64_C(1) << 30))
        SKIP("needs 9 GiB of free memory");
    uint8_t *out = (uint8_t *)mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *in = (uint8_t *)mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(out != MAP_FAILED && in != MAP_FAILED);
    for (size_t at = 0; at < len; at += 4096) /* one mark a page */
        *(uint64_t *)(void *)(out + at) = at ^ 0x5555;
    out[len - 1] = 0x99;
    pair_open(&pair, way, NULL);
    CHECK_OK(weft_msg_recv(pair.ep[0], in, len, 1, WEFT_TAG_FULL, &recv));
    CHECK_OK(weft_msg_send(pair.ep[1], out, len, 1, &send));
    CHECK_OK(pair_wait(&pair, &recv, 350));
    CHECK_OK(pair_wait(&pair, &send, 350));
    CHECK_EQ(recv.len, len);
    for (size_t at = 0; at < len; at += 4096)
        CHECK_EQ(*(uint64_t *)(void *)(in + at), at ^ 0x5555);
    CHECK_EQ(in[len - 1], 0x99);
    pair_close(&pair);
}

TEST(a_message_past_4_gib_arrives_over_shared_memory)
{
    one_huge(&pair_ways[0]);
}
TEST(a_message_past_4_gib_arrives_over_tcp)
{
    one_huge(&pair_ways[1]);
}
