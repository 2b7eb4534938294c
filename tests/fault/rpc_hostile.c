/* A peer that passed the hello and says anything at all: to a service, and to a client that called it. Heads, kinds, flags,
 * lengths, numbers, codes, items and credit that are wrong, and then any bytes: its endpoint fails with WEFT_ERR_PROTOCOL,
 * or what it said is ignored or refused; calls to it end; and a third party is served all the while.
 *
 * ctest: timeout=300 */
#define TEST_SECONDS 250
#include <weft/service.h>
#include <weft/weft.h>

#include "base/rng.h"
#include "lib/liar.h"
#include "test.h"

/* --- to the service ------------------------------------------------------------------------------------------------ */

static const int32_t two[2] = {1, 2};

static void put_once(uint64_t c, uint64_t seq, uint64_t acked, uint64_t epoch)
{
    rpc_once_t o = {c, seq, acked, epoch};
    liar_put(&o, sizeof o);
}

/* The nth attack; false: there is none. */
static bool attack_service(unsigned n, const char **what, liar_verdict_t *verdict)
{
    *verdict = FAILS;
    switch (n) {
        LIE(0, "no head", FAILS)
        liar_begin(RPC_CALL, 1, LIAR_ADD);
        liar.msg_len = 15;
        break;
        LIE(1, "wrong magic", FAILS)
        liar_begin(RPC_CALL, 1, LIAR_ADD);
        liar_put(two, 8);
        liar.msg[0] ^= 1;
        break;
        LIE(2, "wrong version", FAILS)
        liar_begin(RPC_CALL, 1, LIAR_ADD);
        liar_put(two, 8);
        liar.msg[1] = (uint8_t)(liar.msg[1] + 16);
        break;
        LIE(3, "kind 0", FAILS)
        liar_begin(0, 1, LIAR_ADD);
        break;
        LIE(4, "kind 8", FAILS)
        liar_begin(8, 1, LIAR_ADD);
        break;
        LIE(5, "kind 15", FAILS)
        liar_begin(15, 1, LIAR_ADD);
        break;
        LIE(6, "no such slot", STANDS)
        liar_begin(RPC_CALL, 1, LIAR_FUNCTIONS);
        liar_head()->slot = 65535;
        liar_put(two, 8);
        break;
        LIE(7, "another check", STANDS)
        liar_begin(RPC_CALL, 1, LIAR_ADD);
        liar_head()->check++;
        liar_put(two, 8);
        break;
        LIE(8, "arguments too short", FAILS)
        liar_begin(RPC_CALL, 1, LIAR_ADD);
        liar_put(two, 7);
        break;
        LIE(9, "arguments too long", FAILS)
        liar_begin(RPC_CALL, 1, LIAR_ADD);
        liar_put(two, 8);
        liar_put(two, 1);
        break;
        LIE(10, "a payload that is not spoken of", FAILS)
        liar_begin(RPC_CALL, 1, LIAR_ADD);
        liar_put(two, 8);
        liar.payload_len = 8;
        break;
        LIE(11, "a large payload that is not spoken of", FAILS)
        liar_begin(RPC_CALL, 1, LIAR_ADD);
        liar_put(two, 8);
        liar.payload_len = sizeof liar.payload;
        break;
        LIE(12, "half an extension", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_put(two, 4);
        break;
        LIE(13, "a flag of replies", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_NOT_RUN, 0, 0);
        liar_put(two, 8);
        break;
        LIE(14, "an unknown flag", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(0x8000, 0, 0);
        liar_put(two, 8);
        break;
        LIE(15, "something where zero is", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(0, 1, 0);
        liar_put(two, 8);
        break;
        LIE(16, "a length without a flag", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(0, 0, 8);
        liar_put(two, 8);
        break;
        LIE(17, "bytes that are not there", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_BYTES, 0, 8);
        break;
        LIE(18, "more bytes than there can be", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_BYTES, 0, UINT32_MAX);
        liar.payload_len = 8;
        break;
        LIE(19, "the same with a payload that waits", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_BYTES, 0, UINT32_MAX);
        liar.payload_len = sizeof liar.payload;
        break;
        LIE(20, "bytes here and there", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_BYTES, 0, 8);
        liar_put(two, 8);
        liar.payload_len = 8;
        break;
        LIE(21, "bytes that are no values, in a payload that waits", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_TAKE);
        liar_ext(RPC_F_BYTES, 0, 4096);
        memset(liar.payload, 0xff, sizeof liar.payload);
        liar.payload_len = sizeof liar.payload;
        break;
        LIE(22, "half a deadline", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_DEADLINE, 0, 0);
        liar_put(two, 4);
        break;
        LIE(23, "no time at all", STANDS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_KEEP);
        liar_ext(RPC_F_DEADLINE, 0, 0);
        liar_u64(0);
        liar_put(two, 4);
        break;
        LIE(24, "all the time there is", STANDS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_KEEP);
        liar_ext(RPC_F_DEADLINE, 0, 0);
        liar_u64(UINT64_MAX);
        liar_put(two, 4);
        break;
        LIE(25, "nearly all of it", STANDS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_KEEP);
        liar_ext(RPC_F_DEADLINE, 0, 0);
        liar_u64(UINT64_MAX - 1);
        liar_put(two, 4);
        break;
        LIE(26, "once, of nobody", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_ONCE, 0, 0);
        put_once(0, 1, 1, liar.epochs[LIAR_ADD]);
        liar_put(two, 8);
        break;
        LIE(27, "once, without a number", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_ONCE, 0, 0);
        put_once(1, 0, 1, liar.epochs[LIAR_ADD]);
        liar_put(two, 8);
        break;
        LIE(28, "half of once", FAILS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_ONCE, 0, 0);
        liar_u64(1);
        break;
        LIE(29, "once, the last number", STANDS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_ONCE, 0, 0);
        put_once(77, UINT64_MAX, UINT64_MAX, liar.epochs[LIAR_ADD]);
        liar_put(two, 8);
        break;
        LIE(30, "once, another life", STANDS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_ADD);
        liar_ext(RPC_F_ONCE, 0, 0);
        put_once(78, 1, 1, liar.epochs[LIAR_ADD] + 1);
        liar_put(two, 8);
        break;
        LIE(31, "once, of a stream", STANDS)
        liar_begin(RPC_CALL_EXT, 1, LIAR_COUNT);
        liar_ext(RPC_F_ONCE, 0, 0);
        put_once(79, 1, 1, liar.epochs[LIAR_COUNT]);
        liar_u64(1);
        break;
        LIE(32, "a cancel of nothing", STANDS)
        liar_begin(RPC_CANCEL, 99, LIAR_FUNCTIONS);
        break;
        LIE(33, "a cancel with more", FAILS)
        liar_begin(RPC_CANCEL, 99, LIAR_FUNCTIONS);
        liar_put(two, 1);
        break;
        LIE(34, "a cancel with a payload", FAILS)
        liar_begin(RPC_CANCEL, 99, LIAR_FUNCTIONS);
        liar.payload_len = 8;
        break;
        LIE(35, "an item of nothing", STANDS)
        liar_begin(RPC_ITEM, 99, LIAR_FUNCTIONS);
        liar_ext(0, 0, 0);
        liar_u64(1);
        break;
        LIE(36, "an item for a call without a stream", FAILS)
        liar_begin(RPC_CALL, 5, LIAR_KEEP);
        liar_put(two, 4);
        liar_say(RPC_AM_TO_SERVER);
        liar_begin(RPC_ITEM, 5, LIAR_FUNCTIONS);
        liar_ext(0, 0, 0);
        liar_u64(1);
        break;
        LIE(37, "one number for two calls", FAILS)
        liar_begin(RPC_CALL, 5, LIAR_KEEP);
        liar_put(two, 4);
        liar_say(RPC_AM_TO_SERVER);
        liar_begin(RPC_CALL, 5, LIAR_KEEP);
        liar_put(two, 4);
        break;
        LIE(38, "a stream's item twice", FAILS)
        liar_begin(RPC_CALL, 5, LIAR_TOTAL);
        liar_say(RPC_AM_TO_SERVER);
        liar_begin(RPC_ITEM, 5, LIAR_FUNCTIONS);
        liar_ext(0, 0, 0);
        liar_u64(1);
        liar_say(RPC_AM_TO_SERVER);
        break;
        LIE(39, "an end that counts wrong", EITHER)
        liar_begin(RPC_CALL, 5, LIAR_TOTAL);
        liar_say(RPC_AM_TO_SERVER);
        liar_begin(RPC_END, 5, LIAR_FUNCTIONS);
        liar_head()->check = 3;
        break;
        LIE(40, "more items than there is credit for", FAILS)
        liar_begin(RPC_CALL, 5, LIAR_TOTAL);
        liar_say(RPC_AM_TO_SERVER);
        for (uint32_t i = 0; i <= RPC_STREAM_ITEMS && !liar.failed; i++) {
            liar_begin(RPC_ITEM, 5, LIAR_FUNCTIONS);
            liar_head()->check = i;
            liar_ext(0, 0, 0);
            liar_u64(i);
            if (i < RPC_STREAM_ITEMS)
                liar_say(RPC_AM_TO_SERVER);
        }
        break;
        LIE(41, "an item for who sends", FAILS)
        liar_begin(RPC_CALL, 5, LIAR_COUNT);
        liar_u64(5);
        liar_say(RPC_AM_TO_SERVER);
        liar_begin(RPC_ITEM, 5, LIAR_FUNCTIONS);
        liar_ext(0, 0, 0);
        liar_u64(1);
        break;
        LIE(42, "all the credit there is, and then less", EITHER)
        liar_begin(RPC_CALL, 5, LIAR_COUNT);
        liar_u64(5);
        liar_say(RPC_AM_TO_SERVER);
        liar_begin(RPC_CREDIT, 5, LIAR_FUNCTIONS);
        liar_u64(UINT64_MAX);
        liar_u64(UINT64_MAX);
        liar_say(RPC_AM_TO_SERVER);
        liar_begin(RPC_CREDIT, 5, LIAR_FUNCTIONS);
        liar_u64(1);
        liar_u64(1);
        break;
        LIE(43, "half a credit", FAILS)
        liar_begin(RPC_CALL, 5, LIAR_COUNT);
        liar_u64(5);
        liar_say(RPC_AM_TO_SERVER);
        liar_begin(RPC_CREDIT, 5, LIAR_FUNCTIONS);
        liar_u64(1);
        break;
        LIE(44, "half a question", FAILS)
        liar_begin(RPC_BIND, 5, LIAR_FUNCTIONS);
        liar_u64(1);
        break;
        LIE(45, "a question whose names are longer than it", FAILS)
        liar_begin(RPC_BIND, 5, LIAR_FUNCTIONS);
        liar_put(&(rpc_bind_t){.service_len = 255, .instance_len = 255, .text_len = 65535}, sizeof(rpc_bind_t));
        liar_put("calc", 4);
        break;
        LIE(46, "a question for nothing", STANDS)
        liar_begin(RPC_BIND, 5, LIAR_FUNCTIONS);
        liar_put(&(rpc_bind_t){.number = 0x7fffffff}, sizeof(rpc_bind_t));
        break;
        LIE(47, "a question in no words", EITHER)
        liar_begin(RPC_BIND, 5, LIAR_FUNCTIONS);
        liar_put(&(rpc_bind_t){.hash = 1, .service_len = 4, .text_len = 8}, sizeof(rpc_bind_t));
        liar_put("calc", 4);
        liar_put("\xff\xfe\n\0((()", 8);
        break;
        LIE(48, "a question with a payload", FAILS)
        liar_begin(RPC_BIND, 5, LIAR_FUNCTIONS);
        liar_put(&(rpc_bind_t){.number = 1}, sizeof(rpc_bind_t));
        liar.payload_len = sizeof liar.payload;
        break;
        LIE(49, "a oneway call that says nothing", FAILS)
        liar_begin(RPC_CALL, 0, LIAR_TELL);
        break;
        LIE(50, "a vector without an end", FAILS)
        liar_begin(RPC_CALL, 5, LIAR_TAKE);
        memset(liar.msg + liar.msg_len, 0xff, 64);
        liar.msg_len += 64;
        break;
    default:
        return false;
    }
    return true;
}

TEST(a_service_is_told_nonsense)
{
    const char *what;
    liar_verdict_t verdict;
    liar_open();
    for (unsigned n = 0;; n++) {
        liar_join();
        liar_bind_all();
        if (!attack_service(n, &what, &verdict)) {
            CHECK(n > 50);
            liar_part();
            break;
        }
        liar_say(RPC_AM_TO_SERVER);
        liar_judge(what, verdict);
        liar_part();
    }
    liar_close();
}

/* --- to the client ------------------------------------------------------------------------------------------------- */

/* The victim calls the hostile one. bound: it has been told where; else it still asks. */
typedef struct outgoing {
    weft_op_t op;
    weft_reply_t reply;
    weft_value_t args[2];
    weft_stream_t *stream;
} outgoing_t;

static void answer_bind(const char *text)
{
    rpc_bound_t b = {.number = 1, .epoch = 5};
    liar_begin(RPC_BOUND, liar.asked.call, LIAR_FUNCTIONS);
    liar_head()->slot = 3;
    liar_head()->check = 4;
    liar_put(&b, sizeof b);
    liar_put(text, strlen(text));
    liar_say(RPC_AM_TO_CLIENT);
}

static void call_out(outgoing_t *o, unsigned f, bool bound)
{
    weft_method_t *m;
    memset(o, 0, sizeof *o);
    static const uint64_t numbers[2] = {1, 2};
    CHECK_OK(weft_client_method(liar.client, liar_sigs[f], &m));
    o->args[0] = f == LIAR_TAKE ? weft_vector(WEFT_T_U64, numbers, 2) : f == LIAR_COUNT ? weft_u64(5) : weft_i32(1);
    o->args[1] = f == LIAR_TAKE ? weft_text("text", 4) : weft_i32(2);
    size_t n = f == LIAR_ADD || f == LIAR_TAKE ? 2 : 1;
    if (f == LIAR_COUNT)
        CHECK_OK(weft_call_stream(m, o->args, n, NULL, &o->reply, &o->op, &o->stream));
    else
        CHECK_OK(weft_call(m, o->args, n, &o->reply, &o->op));
    unsigned asked_before = liar.n_asked, called_before = liar.n_called;
    for (double end = test_now() + 20; liar.n_asked == asked_before && test_now() < end;)
        liar_drive();
    CHECK(liar.n_asked > asked_before);
    if (!bound)
        return;
    answer_bind(liar_sigs[f]);
    for (double end = test_now() + 20; liar.n_called == called_before && test_now() < end;)
        liar_drive();
    CHECK(liar.n_called > called_before);
}

static void put_bound(uint32_t code, const char *text, size_t n)
{
    rpc_bound_t b = {.code = code};
    liar_begin(RPC_BOUND, liar.asked.call, LIAR_FUNCTIONS);
    liar_put(&b, sizeof b);
    if (n)
        liar_put(text, n);
}

static bool attack_client(unsigned n, outgoing_t *o, const char **what, liar_verdict_t *verdict)
{
    static const char lots[5000] = {'x'};
    switch (n) {
        LIE(0, "no head", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY, liar.called.call, LIAR_FUNCTIONS);
        liar.msg_len = 8;
        break;
        LIE(1, "kind 0", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(0, liar.called.call, LIAR_FUNCTIONS);
        break;
        LIE(2, "a cancel", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_CANCEL, liar.called.call, LIAR_FUNCTIONS);
        break;
        LIE(3, "half an answer to a question", FAILS)
        call_out(o, LIAR_ADD, false);
        liar_begin(RPC_BOUND, liar.asked.call, LIAR_FUNCTIONS);
        liar_u64(0);
        break;
        LIE(4, "an answer to no question", STANDS)
        call_out(o, LIAR_ADD, false);
        put_bound(0, liar_sigs[LIAR_ADD], strlen(liar_sigs[LIAR_ADD]));
        liar_head()->call += UINT64_C(7) << 32;
        break;
        LIE(5, "an answer with an unknown code", STANDS)
        call_out(o, LIAR_ADD, false);
        put_bound(17, "what", 4);
        break;
        LIE(6, "an answer that is too long", FAILS)
        call_out(o, LIAR_ADD, false);
        put_bound(0, lots, sizeof lots);
        break;
        LIE(7, "an answer with a payload", FAILS)
        call_out(o, LIAR_ADD, false);
        put_bound(0, liar_sigs[LIAR_ADD], strlen(liar_sigs[LIAR_ADD]));
        liar.payload_len = 100;
        break;
        LIE(8, "two answers to one question", STANDS)
        call_out(o, LIAR_ADD, true);
        put_bound(12, "no", 2);
        break;
        LIE(9, "a reply to no call", STANDS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY, liar.called.call + (UINT64_C(5) << 32), LIAR_FUNCTIONS);
        liar_put(two, 4);
        break;
        LIE(10, "results too short", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY, liar.called.call, LIAR_FUNCTIONS);
        liar_put(two, 3);
        break;
        LIE(11, "results too long", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY, liar.called.call, LIAR_FUNCTIONS);
        liar_put(two, 8);
        break;
        LIE(12, "a payload that is not spoken of", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY, liar.called.call, LIAR_FUNCTIONS);
        liar_put(two, 4);
        liar.payload_len = 20;
        break;
        LIE(13, "half an extension", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_put(two, 4);
        break;
        LIE(14, "a flag of calls", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_DEADLINE, 0, 0);
        liar_put(two, 4);
        break;
        LIE(15, "a failure with a payload", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_FAILED, 0, 0);
        liar_failure(5, 4);
        liar.payload_len = 20;
        break;
        LIE(16, "half a failure", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_FAILED, 0, 0);
        liar_u64(5);
        break;
        LIE(17, "a failure that is none", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_FAILED, 0, 0);
        liar_failure(0, 4);
        break;
        LIE(18, "a failure of an unknown code", STANDS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_FAILED, 0, 0);
        liar_failure(17, 4);
        break;
        LIE(19, "a failure of too many words", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_FAILED, 0, 0);
        liar_failure(5, RPC_MESSAGE_MAX + 1);
        break;
        LIE(20, "it is not there, and ran", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_FAILED | RPC_F_UNBOUND, 0, 0);
        liar_failure(12, 0);
        break;
        LIE(21, "it did not run, and may have", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_FAILED | RPC_F_NOT_RUN | RPC_F_MAYBE, 0, 0);
        liar_failure(14, 0);
        break;
        LIE(22, "it is well, and did not run", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_NOT_RUN, 0, 0);
        liar_put(two, 4);
        break;
        LIE(23, "an item for a call without a stream", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_ITEM, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(0, 0, 0);
        liar_u64(1);
        break;
        LIE(24, "an item out of turn", FAILS)
        call_out(o, LIAR_COUNT, true);
        liar_begin(RPC_ITEM, liar.called.call, LIAR_FUNCTIONS);
        liar_head()->check = UINT32_MAX;
        liar_ext(0, 0, 0);
        liar_u64(1);
        break;
        LIE(25, "a vector without an end", FAILS)
        call_out(o, LIAR_TAKE, true);
        liar_begin(RPC_REPLY, liar.called.call, LIAR_FUNCTIONS);
        memset(liar.msg + liar.msg_len, 0xff, 32);
        liar.msg_len += 32;
        break;
        LIE(26, "bytes that are not there", FAILS)
        call_out(o, LIAR_TAKE, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_BYTES, 0, UINT32_MAX);
        liar.payload_len = 100;
        break;
        LIE(27, "bytes that are no values, in a payload that waits", EITHER)
        call_out(o, LIAR_TAKE, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_BYTES, 0, 4096);
        memset(liar.payload, 0xff, sizeof liar.payload);
        liar.payload_len = sizeof liar.payload;
        break;
        LIE(28, "two replies", STANDS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY, liar.called.call, LIAR_FUNCTIONS);
        liar_put(two, 4);
        liar_say(RPC_AM_TO_CLIENT);
        break;
        LIE(29, "something where zero is", FAILS)
        call_out(o, LIAR_ADD, true);
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(0, 1, 0);
        liar_put(two, 4);
        break;
    default:
        return false;
    }
    return true;
}

static void end_call(outgoing_t *o, const char *what)
{
    if (!liar.failed)
        weft_op_cancel(&o->op);
    weft_status_t st = liar_finish(&o->op);
    if (liar.failed && st && (st != WEFT_ERR_PROTOCOL || o->reply.code != WEFT_CODE_INTERNAL))
        FAIL("%s: the call ends with %s", what, weft_status_name(st));
    weft_reply_release(&o->reply);
    weft_stream_release(o->stream);
}

TEST(a_client_is_told_nonsense)
{
    const char *what;
    liar_verdict_t verdict;
    outgoing_t o;
    liar_open();
    for (unsigned n = 0;; n++) {
        liar_join();
        if (!attack_client(n, &o, &what, &verdict)) {
            CHECK(n > 29);
            liar_part();
            break;
        }
        liar_say(RPC_AM_TO_CLIENT);
        liar_judge(what, verdict);
        end_call(&o, what);
        liar_part();
    }
    liar_close();
}

/* A newer server has codes that we do not know: they are failures of that call, and no more. */
TEST(codes_that_only_a_newer_server_knows)
{
    static const uint32_t codes[] = {17, 1000, UINT32_MAX};
    liar_open();
    liar_join();
    for (unsigned i = 0; i < 6; i++) {
        outgoing_t o;
        bool bound = i % 2;
        call_out(&o, LIAR_ADD, !bound);
        if (bound) {
            put_bound(codes[i / 2], "a new word", 10);
        } else {
            liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
            liar_ext(RPC_F_FAILED, 0, 0);
            liar_failure(codes[i / 2], 10);
        }
        liar_say(RPC_AM_TO_CLIENT);
        CHECK_EQ(liar_finish(&o.op), WEFT_ERR_CALL);
        CHECK_EQ(o.reply.code, WEFT_CODE_UNKNOWN);
        CHECK_EQ(strlen(o.reply.message), 10);
        liar_judge("a new code", STANDS);
        weft_reply_release(&o.reply);
        liar_part();
        liar_join();
    }
    liar_part();
    liar_close();
}

/* Whatever it is asked, it says that the function was replaced: that has an end. */
TEST(a_server_whose_functions_are_always_others)
{
    outgoing_t o;
    liar_open();
    liar_join();
    call_out(&o, LIAR_ADD, true);
    unsigned rounds = 0;
    for (double end = test_now() + 20; !weft_op_done(&o.op) && test_now() < end; rounds++) {
        unsigned asked_before = liar.n_asked, called_before = liar.n_called;
        liar_begin(RPC_REPLY_EXT, liar.called.call, LIAR_FUNCTIONS);
        liar_ext(RPC_F_FAILED | RPC_F_NOT_RUN | RPC_F_UNBOUND, 0, 0);
        liar_failure(12, 3);
        liar_say(RPC_AM_TO_CLIENT);
        while (!weft_op_done(&o.op) && liar.n_asked == asked_before && test_now() < end)
            liar_drive();
        if (weft_op_done(&o.op))
            break;
        answer_bind(liar_sigs[LIAR_ADD]);
        while (!weft_op_done(&o.op) && liar.n_called == called_before && test_now() < end)
            liar_drive();
    }
    CHECK_EQ(liar_finish(&o.op), WEFT_ERR_CALL);
    CHECK_EQ(o.reply.ran, WEFT_NOT_RUN);
    CHECK(rounds < 20);
    liar_judge("always others", STANDS);
    weft_reply_release(&o.reply);
    liar_part();
    liar_close();
}

/* --- any bytes ----------------------------------------------------------------------------------------------------- */

static void spoil(wefti_rng_t *rng)
{
    static const uint64_t edges[] = {0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fffffff, 0xffffffff, UINT64_C(1) << 61, UINT64_MAX};
    for (unsigned i = 1 + (unsigned)wefti_rng_below(rng, 3); i; i--) {
        size_t at = 1 + wefti_rng_below(rng, liar.msg_len - 1), n = (size_t)1 << wefti_rng_below(rng, 4);
        uint64_t v = wefti_rng_below(rng, 2) ? edges[wefti_rng_below(rng, 10)] : wefti_rng_next(rng);
        if (at == 1 && wefti_rng_below(rng, 2))
            v = RPC_VERSION << 4 | wefti_rng_below(rng, 9); /* another kind */
        memcpy(liar.msg + at, &v, at + n <= liar.msg_len ? n : liar.msg_len - at);
    }
    if (wefti_rng_below(rng, 4) == 0)
        liar.msg_len = 1 + wefti_rng_below(rng, liar.msg_len);
    else if (wefti_rng_below(rng, 4) == 0)
        liar.msg_len += wefti_rng_below(rng, 64);
    if (wefti_rng_below(rng, 3) == 0)
        liar.payload_len = wefti_rng_below(rng, 2) ? wefti_rng_below(rng, 200) : wefti_rng_below(rng, sizeof liar.payload);
}

TEST(any_bytes_at_all)
{
    enum { ROUNDS = 1500, SAID = 12 };
    outgoing_t outs[3];
    liar_open();
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        wefti_rng_t rng = {seed};
        liar_join();
        liar_bind_all();
        bool calls = wefti_rng_below(&rng, 2);
        static const unsigned fs[3] = {LIAR_ADD, LIAR_TAKE, LIAR_COUNT};
        for (unsigned i = 0; calls && i < 3; i++)
            call_out(&outs[i], fs[i], true);
        for (unsigned i = 0; i < SAID && !liar.failed; i++) {
            liar_verdict_t verdict;
            const char *what;
            memset(liar.msg, 0, sizeof liar.msg);
            if (calls) {
                liar_begin(2 + (unsigned)wefti_rng_below(&rng, 6), liar.called.call - wefti_rng_below(&rng, 3), LIAR_FUNCTIONS);
                if (wefti_rng_below(&rng, 2))
                    liar_ext((unsigned)wefti_rng_below(&rng, 128), 0, 0);
                for (unsigned k = (unsigned)wefti_rng_below(&rng, 8); k; k--)
                    liar_u64(wefti_rng_below(&rng, 3) ? wefti_rng_below(&rng, 20) : wefti_rng_next(&rng));
            } else {
                (void)attack_service((unsigned)wefti_rng_below(&rng, 51), &what, &verdict);
            }
            if (calls || wefti_rng_below(&rng, 3))
                spoil(&rng);
            liar_say(calls ? RPC_AM_TO_CLIENT : RPC_AM_TO_SERVER);
        }
        liar_judge("any bytes", EITHER);
        for (unsigned i = 0; calls && i < 3; i++) {
            weft_op_cancel(&outs[i].op);
            liar_finish(&outs[i].op);
            weft_reply_release(&outs[i].reply);
            weft_stream_release(outs[i].stream);
        }
        liar_part();
    }
    liar_close();
}
