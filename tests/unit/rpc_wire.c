/* The bytes of calls, as docs/design/wire.md has them. */
#include <string.h>

#include "rpc/state.h"
#include "test.h"

static rpc_msg_t msg;

/* The message, and nothing else, is these bytes (hex, spaces between words of four). */
static void is(const char *hex)
{
    static const char digits[] = "0123456789abcdef";
    size_t n = 0;
    for (const char *p = hex; *p; p++) {
        if (*p == ' ')
            continue;
        unsigned byte = (unsigned)(strchr(digits, p[0]) - digits) << 4 | (unsigned)(strchr(digits, p[1]) - digits);
        CHECK(n < msg.len);
        CHECK_EQ(msg.header[n], byte);
        n++;
        p++;
    }
    CHECK_EQ(n, msg.len);
}

static rpc_head_t head_of(unsigned kind)
{
    rpc_head_t head = rpc_head(kind, UINT64_C(0x0000000100000007));
    head.slot = kind == RPC_CANCEL ? 0 : 3;
    head.check = kind == RPC_CANCEL ? 0 : 0x11223344;
    return head;
}

TEST(a_call_of_add_and_its_reply)
{
    weft_sig_t *sig;
    weft_value_t args[2] = {weft_i32(25), weft_i32(17)}, sum = weft_i32(42);
    CHECK_OK(weft_sig_parse("add(a: i32, b: i32) -> i32", &sig));
    rpc_msg_init(&msg, head_of(RPC_CALL));
    CHECK_OK(wefti_rpc_pack(&msg, wefti_sig_codec(sig, WEFTI_SIG_ARGS), args, 2, NULL));
    is("57120300 44332211 07000000 01000000 19000000 11000000");

    rpc_msg_init(&msg, rpc_head(RPC_REPLY, UINT64_C(0x0000000100000007)));
    CHECK_OK(wefti_rpc_pack(&msg, wefti_sig_codec(sig, WEFTI_SIG_RESULTS), &sum, 1, NULL));
    is("57120000 00000000 07000000 01000000 2a000000");

    rpc_ext_t ext = {.flags = RPC_F_DEADLINE};
    uint64_t second = WEFT_SECOND;
    rpc_msg_init(&msg, head_of(RPC_CALL_EXT));
    rpc_ext_t *at = (rpc_ext_t *)rpc_msg_put(&msg, &ext, sizeof ext);
    rpc_msg_put(&msg, &second, sizeof second);
    CHECK_OK(wefti_rpc_pack(&msg, wefti_sig_codec(sig, WEFTI_SIG_ARGS), args, 2, at));
    is("57130300 44332211 07000000 01000000 01000000 00000000 00ca9a3b 00000000 19000000 11000000");
    weft_sig_free(sig);
}

TEST(a_failure_and_a_cancel)
{
    rpc_ext_t ext = {.flags = RPC_F_NOT_RUN | RPC_F_FAILED};
    rpc_failure_t failure = {.code = WEFT_CODE_UNAVAILABLE};
    rpc_msg_init(&msg, rpc_head(RPC_REPLY_EXT, UINT64_C(0x0000000100000007)));
    rpc_msg_put(&msg, &ext, sizeof ext);
    rpc_msg_put(&msg, &failure, sizeof failure);
    rpc_msg_put(&msg, "closing", 7);
    is("57130000 00000000 07000000 01000000 28000000 00000000 0e000000 00000000 00000000 00000000 636c6f73 696e67");

    rpc_msg_init(&msg, head_of(RPC_CANCEL));
    is("57140000 00000000 07000000 01000000");
}

/* What does not fit the header goes ahead of the pieces. */
TEST(more_values_than_a_header_holds)
{
    enum { N = 12 };
    static uint8_t small[1000], large[5000];
    weft_sig_t *sig;
    weft_value_t args[N];
    rpc_ext_t ext = {0};
    CHECK_OK(weft_sig_parse(
        "f(a: [u8], b: [u8], c: [u8], d: [u8], e: [u8], f: [u8], g: [u8], h: [u8], i: [u8], j: [u8], k: [u8], l: [u8]) -> void",
        &sig));
    for (unsigned i = 0; i < N; i++)
        args[i] = weft_vector(WEFT_T_U8, i == 5 ? large : small, i == 5 ? sizeof large : sizeof small);
    rpc_msg_init(&msg, head_of(RPC_CALL));
    CHECK_EQ(wefti_rpc_pack(&msg, wefti_sig_codec(sig, WEFTI_SIG_ARGS), args, N, NULL), WEFT_ERR_LIMIT);
    rpc_msg_init(&msg, head_of(RPC_CALL_EXT));
    rpc_ext_t *at = (rpc_ext_t *)rpc_msg_put(&msg, &ext, sizeof ext);
    CHECK_OK(wefti_rpc_pack(&msg, wefti_sig_codec(sig, WEFTI_SIG_ARGS), args, N, at));
    CHECK_EQ(at->flags, RPC_F_BYTES);
    CHECK_EQ(msg.len, sizeof(rpc_head_t) + sizeof(rpc_ext_t));
    CHECK_EQ(msg.iov_n, 2);
    CHECK(at->bytes_len > 11000 && msg.iov[0].len == ((at->bytes_len + 7u) & ~7u) && msg.iov[0].base == msg.bytes);
    CHECK(msg.iov[1].base == large && msg.iov[1].len == sizeof large);
    CHECK_EQ(msg.payload, msg.iov[0].len + sizeof large);
    wefti_rpc_msg_free(&msg);
    weft_sig_free(sig);
}
