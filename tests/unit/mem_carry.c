/* tests/unit/mem_carry.c - carries and bounce buffers, against a driver made of paper. ctest: label=thread timeout=120 */
#include "test.h"

#include "lib/copying.h"

/* --- carries ------------------------------------------------------------------------------------------------------------- */

static weft_status_t carried[WEFTI_CARRIES_MAX];
static unsigned carries_done;

static void carry_done(wefti_carry_t *carry, weft_status_t status)
{
    carried[(uintptr_t)carry->user] = status;
    carries_done++;
}

TEST(as_many_carries_as_there_may_be_are_out_and_have_their_own_bytes)
{
    begin();
    static wefti_carry_t *c[WEFTI_CARRIES_MAX];
    uint8_t bytes[WEFTI_CARRY_MAX], *a = device_alloc((size_t)WEFTI_CARRIES_MAX * WEFTI_CARRY_MAX);
    CHECK(!wefti_carry_get(rt, 0));
    CHECK(!wefti_carry_get(rt, WEFTI_CARRY_MAX + 1));
    cu.paper->copy_ns = 2 * US;
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < WEFTI_CARRIES_MAX; i++) {
            size_t n = i * 32 + 1;
            uint8_t *at = a + (size_t)i * WEFTI_CARRY_MAX;
            weft_iov_t iov[4] = {{at, n / 3}, {NULL, 0}, {at + n / 3, n / 2}, {at + n / 3 + n / 2, n}};
            c[i] = wefti_carry_get(rt, n);
            CHECK(c[i]);
            CHECK_EQ(c[i]->iov.len, n);
            fill(c[i]->iov.base, n, i + round);
            c[i]->done = carry_done;
            c[i]->user = (void *)(uintptr_t)i;
            CHECK_OK(wefti_carry_to(rt, c[i], cuda, iov));
        }
        CHECK(!wefti_carry_get(rt, 1));
        carries_done = 0;
        for (double until = test_now() + 20; carries_done < WEFTI_CARRIES_MAX && test_now() < until;)
            turn();
        CHECK_EQ(carries_done, WEFTI_CARRIES_MAX);
        for (unsigned i = 0; i < WEFTI_CARRIES_MAX; i++) {
            size_t n = i * 32 + 1;
            uint8_t *at = a + (size_t)i * WEFTI_CARRY_MAX;
            weft_iov_t one = {at, n};
            CHECK_OK(carried[i]);
            memset(c[i]->iov.base, 0, n);
            CHECK_OK(wefti_carry_from(rt, c[i], cuda, &one));
        }
        carries_done = 0;
        for (double until = test_now() + 20; carries_done < WEFTI_CARRIES_MAX && test_now() < until;)
            turn();
        CHECK_EQ(carries_done, WEFTI_CARRIES_MAX);
        for (unsigned i = 0; i < WEFTI_CARRIES_MAX; i++) {
            fill(bytes, sizeof bytes, i + round);
            CHECK(!memcmp(bytes, c[i]->iov.base, i * 32 + 1));
            wefti_carry_put(rt, c[i]);
        }
    }
    CHECK_EQ(cu.paper->waits, 0);
    CHECK_EQ(cu.paper->registered_bytes, (size_t)WEFTI_CARRIES_MAX * WEFTI_CARRY_MAX + 4096);
    weft_mem_free(cuda, a, (size_t)WEFTI_CARRIES_MAX * WEFTI_CARRY_MAX);
    end();
}

/* --- bounce buffers ------------------------------------------------------------------------------------------------------ */

static void pass(uint64_t ns)
{
    fake_of(rt)->now += ns;
    for (unsigned i = 0; i < 10; i++)
        weft_runtime_progress(rt);
}

static void begin_virtual(void)
{
    use_paper();
    cuda = weft_mem_kind_find("cuda");
    CHECK(cuda);
    rt = fake_open_virtual();
    CHECK_OK(wefti_mem_attach(rt));
    wefti_bounce_bytes = 1000;
}

TEST(four_bounce_buffers_are_out_at_most_and_go_back_to_the_device_after_a_second)
{
    begin_virtual();
    void *near = device_alloc(10), *b[4];
    size_t n = 0;
    for (unsigned i = 0; i < 4; i++) {
        b[i] = wefti_bounce_get(rt, near, &n);
        CHECK(b[i]);
        CHECK_EQ(n, 1000);
        for (unsigned k = 0; k < i; k++)
            CHECK(b[k] != b[i]);
    }
    CHECK(!wefti_bounce_get(rt, near, &n));
    CHECK_EQ(cu.paper->live, 5);
    wefti_bounce_put(rt, b[2]);
    pass(WEFT_SECOND / 2);
    CHECK(wefti_bounce_get(rt, near, &n) == b[2]); /* the same again, without the device */
    CHECK_EQ(cu.paper->live, 5);
    wefti_export_t x;
    CHECK(wefti_mem_export(cuda, b[0], 1000, &x));
    wefti_bounce_put(rt, b[0]);
    wefti_bounce_put(rt, b[1]);
    pass(WEFT_SECOND * 3 / 4);
    CHECK(cu.paper->live == 5 || cu.paper->live == 3);
    pass(WEFT_SECOND);
    pass(WEFT_SECOND);
    CHECK_EQ(cu.paper->live, 3); /* those that are out stay */
    b[0] = wefti_bounce_get(rt, near, &n);
    CHECK(b[0]);
    for (unsigned i = 0; i < 4; i++)
        if (i != 1)
            wefti_bounce_put(rt, b[i]);
    pass(2 * WEFT_SECOND);
    pass(2 * WEFT_SECOND);
    CHECK_EQ(cu.paper->live, 1);
    /* larger ones are made anew */
    b[0] = wefti_bounce_get(rt, near, &n);
    wefti_bounce_put(rt, b[0]);
    wefti_bounce_bytes = 5000;
    b[0] = wefti_bounce_get(rt, near, &n);
    CHECK(b[0] && n == 5000);
    wefti_bounce_put(rt, b[0]);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(cu.paper->live, 1);
    weft_mem_free(cuda, near, 10);
}

TEST(bounce_buffers_are_on_the_device_of_the_payload)
{
    begin_virtual();
    void *near[2], *b;
    size_t n;
    for (int i = 0; i < 2; i++) {
        CHECK(!wefti_cuda_enter_primary(i));
        near[i] = device_alloc(10);
        wefti_cuda_leave(true);
    }
    for (unsigned round = 0; round < 6; round++)
        for (int i = 0; i < 2; i++) {
            b = wefti_bounce_get(rt, near[i], &n);
            CHECK(b);
            CHECK_EQ(weft_mem_device(b), i);
            wefti_bounce_put(rt, b);
        }
    CHECK(cu.paper->live <= 6);
    /* all four places on one device, then the other one wants one */
    void *all[4];
    for (unsigned i = 0; i < 4; i++)
        CHECK((all[i] = wefti_bounce_get(rt, near[0], &n)));
    CHECK(!wefti_bounce_get(rt, near[1], &n));
    wefti_bounce_put(rt, all[3]);
    b = wefti_bounce_get(rt, near[1], &n);
    CHECK(b);
    CHECK_EQ(weft_mem_device(b), 1);
    wefti_bounce_put(rt, b);
    for (unsigned i = 0; i < 3; i++)
        wefti_bounce_put(rt, all[i]);
    /* page-locked memory has no device: the home device's */
    int host;
    b = wefti_bounce_get(rt, &host, &n);
    CHECK(b);
    CHECK_EQ(weft_mem_device(b), 0);
    wefti_bounce_put(rt, b);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(cu.paper->live, 2);
    for (int i = 0; i < 2; i++)
        weft_mem_free(cuda, near[i], 10);
}

TEST(without_device_memory_there_are_no_bounce_buffers)
{
    begin_virtual();
    void *near = device_alloc(10);
    size_t n;
    cu.fail("cuMemAlloc_v2", 1, 2, 3);
    void *b = wefti_bounce_get(rt, near, &n);
    CHECK(b);
    for (unsigned i = 0; i < 3; i++)
        CHECK(!wefti_bounce_get(rt, near, &n));
    void *c = wefti_bounce_get(rt, near, &n);
    CHECK(c && c != b);
    wefti_bounce_put(rt, c);
    wefti_bounce_put(rt, b);
    CHECK_OK(weft_runtime_close(rt));
    CHECK_EQ(cu.paper->live, 1);
    weft_mem_free(cuda, near, 10);
}
