/* What a caller is told besides the result: over which endpoint a call went, and in words what is wrong with an argument,
 * whichever thread finds out.
 * ctest: tls timeout=60 */
#include <string.h>

#include "lib/desk.h"
#include "test.h"

static desk_t desk;

TEST(a_call_tells_which_endpoint_it_was_sent_over)
{
    each_way(way) {
        desk_open(&desk, way, NULL);
        desk_add(&desk, DESK_ADD, desk_adds, NULL);
        weft_method_t *add = desk_method(&desk, DESK_ADD);
        weft_value_t args[2] = {weft_i32(1), weft_i32(2)};
        for (int i = 0; i < 3; i++) { /* the first one asks for the function before it is sent, the others do not */
            weft_op_t op = WEFT_OP_INIT;
            weft_reply_t reply = WEFT_REPLY_INIT;
            op.from = 12345;
            CHECK_OK(weft_call(add, args, 2, &reply, &op));
            CHECK_OK(pair_wait(&desk.pair, &op, 10));
            CHECK_EQ(op.from, weft_ep_id(desk.pair.ep[1]));
            weft_reply_release(&reply);
        }
        desk_close(&desk);
    }
}

TEST(what_is_wrong_with_an_argument_is_said)
{
    each_way(way) {
        desk_open(&desk, way, NULL);
        desk_add(&desk, "upper(text: string) -> string", desk_echoes, NULL);
        weft_method_t *upper = desk_method(&desk, "upper(text: string) -> string");
        weft_value_t good = weft_text("abc", 3), bad = weft_text("\xff", 1);
        for (int i = 0; i < 2; i++) { /* before the function is known, and after */
            weft_op_t op = WEFT_OP_INIT;
            weft_reply_t reply = WEFT_REPLY_INIT;
            weft_status_t st = weft_call(upper, &bad, 1, &reply, &op);
            const char *words = st ? weft_last_error() : NULL;
            if (!st) {
                st = pair_wait(&desk.pair, &op, 10);
                words = reply.message;
                CHECK_EQ(reply.ran, WEFT_NOT_RUN);
                CHECK_EQ(op.from, 0);
            }
            CHECK_EQ(st, WEFT_ERR_INVALID);
            CHECK(strstr(words, "UTF-8"));
            weft_reply_release(&reply);
            CHECK_OK(desk_call(&desk, upper, &good, 1));
        }
        desk_close(&desk);
    }
}
