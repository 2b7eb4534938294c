/* An access outside of a buffer or of an element's memory: the sentence has the transport's name and all of the numbers, whoever
 * finds it; and a transport knows since when it is usable.
 *
 * ctest: label=thread timeout=600 shards */
#define TEST_SECONDS 200
#include "lib/elements.h"
#include "test.h"

static elements_t e;

/* Whether the post or the operation said it. */
static const char *said(weft_status_t posted)
{
    return posted ? weft_last_error() : weft_op_error(&e.op);
}

static void check_says(weft_status_t posted, const char *a, const char *b)
{
    CHECK_EQ(posted ? posted : elements_end(&e, posted), WEFT_ERR_RANGE);
    const char *text = said(posted);
    if (!strstr(text, "mem: ") || !strstr(text, a) || !strstr(text, b))
        FAIL("\"%s\" and \"%s\" are not in: %s", a, b, text);
}

#define MEMORY "outside of the element's memory, which has 64 bytes"
#define BUFFER "outside of the registered buffer, which has 100 bytes"

TEST(a_sentence_has_all_of_the_numbers)
{
    each_way(way) {
        uint8_t own[80];
        elements_open(&e, way, 64, NULL, NULL);
        weft_transport_t *t = elements_add(&e, "mem", 100);
        CHECK_OK(elements_ready(&e, t));
        e.op = (weft_op_t)WEFT_OP_INIT;
        check_says(weft_transport_read(t, 50, 7, 90, &e.op), "a read of 50 bytes at addr 7 and offset 90", BUFFER);
        check_says(weft_transport_write(t, 101, 0, 0, &e.op), "a write of 101 bytes at addr 0 and offset 0", BUFFER);
        check_says(weft_transport_read(t, 50, 60, 3, &e.op), "a read of 50 bytes at addr 60 and offset 3", MEMORY);
        check_says(weft_transport_write(t, 1, 64, 99, &e.op), "a write of 1 bytes at addr 64 and offset 99", MEMORY);
        check_says(weft_transport_fetch_add(t, 64, 1, &e.op), "an atomic of 8 bytes at addr 64", MEMORY);
        weft_transport_item_t items[] = {{.what = WEFT_RMA_DO_READ, .size = 8},
                                         {.what = WEFT_RMA_DO_WRITE, .size = 8, .addr = 60, .offset = 9},
                                         {.what = WEFT_RMA_DO_WRITE, .size = 8, .addr = 99}};
        check_says(weft_transport_batch(t, items, 3, &e.op), "item 1 of 3, a write of 8 bytes at addr 60 and offset 9", MEMORY);
        items[1].offset = 95;
        check_says(weft_transport_batch(t, items, 3, &e.op), "item 1 of 3, a write of 8 bytes at addr 60 and offset 95", BUFFER);
        items[1] = (weft_transport_item_t){.what = WEFT_RMA_DO_READ, .size = 80, .own = own};
        check_says(weft_transport_batch(t, items, 2, &e.op), "item 1 of 2, a read of 80 bytes at addr 0 is", MEMORY);
        elements_close(&e);
    }
}

TEST(memory_that_is_shorter_than_its_durl_says_both_lengths)
{
    each_way(way) {
        char durl[WEFT_DURL_MAX + 32];
        elements_open(&e, way, 64, NULL, NULL);
        char *size = strstr(e.durl, "size,64;");
        CHECK(size);
        snprintf(durl, sizeof durl, "%.*ssize,640;%s", (int)(size - e.durl), e.durl, size + strlen("size,64;"));
        CHECK_OK(weft_action_add(e.action, durl));
        weft_transport_t *t = elements_get(&e, "mem", "rdma");
        CHECK_OK(weft_transport_reg(t, 100, NULL));
        e.op = (weft_op_t)WEFT_OP_INIT;
        check_says(weft_transport_read(t, 8, 0, 0, &e.op), "memory has 64 bytes", "the durl says 640"); /* it waited */
        check_says(weft_transport_read(t, 8, 0, 0, &e.op), "memory has 64 bytes", "the durl says 640");
        elements_close(&e);
    }
}

TEST(a_transport_knows_since_when_it_is_usable)
{
    each_way(way) {
        elements_open(&e, way, 64, NULL, NULL);
        CHECK_OK(weft_action_add(e.action, "later;rdma_tcp;"));
        weft_transport_t *t = elements_get(&e, "later", "rdma");
        uint64_t before = weft_now(NULL);
        CHECK_EQ(elements_stats(t).ready_at, 0);
        CHECK_OK(weft_action_configure(e.action, "later", e.durl));
        CHECK_OK(elements_ready(&e, t));
        CHECK(elements_stats(t).ready_at >= before);
        CHECK(elements_stats(t).ready_at <= weft_now(NULL));
        elements_close(&e);
    }
}
