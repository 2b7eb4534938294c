/* tests/unit/mem_copies.c - copies of a device that do not wait, against a driver made of paper: pieces and their order, ends
 * that come once and from progress, every failure of the driver, contexts that go, closing.
 * ctest: label=thread timeout=180 */
#include "test.h"

#include "lib/copying.h"
#include "lib/fakedev.h"

static bool starting; /* inside a call that starts a copy */

typedef struct one {
    wefti_copy_t copy;
    unsigned done, order;
    weft_status_t status;
} one_t;

static unsigned ended; /* how many have */

static void one_done(wefti_copy_t *copy, weft_status_t status)
{
    one_t *o = wefti_container_of(copy, one_t, copy);
    if (starting)
        FAIL("a copy ended inside of the call that starts it");
    o->done++;
    o->order = ended++;
    o->status = status;
}

static void one_begin(one_t *o)
{
    *o = (one_t){.copy.done = one_done};
    starting = true;
    CHECK_OK(wefti_copy_begin(rt, &o->copy));
    starting = false;
}

static void one_add(one_t *o, const weft_mem_kind_t *kind, void *to, const void *from, size_t n, int way)
{
    starting = true;
    wefti_copy_add(rt, &o->copy, kind, to, from, n, way);
    starting = false;
}

static void one_end(one_t *o)
{
    starting = true;
    wefti_copy_end(rt, &o->copy);
    starting = false;
}

static void start(one_t *o, void *to, const void *from, size_t n, int way)
{
    one_begin(o);
    one_add(o, cuda, to, from, n, way);
    one_end(o);
}

static void finish(one_t *o)
{
    double until = test_now() + 20;
    while (!o->done) {
        turn();
        if (test_now() > until)
            FAIL("a copy did not end within 20 s");
    }
    CHECK_EQ(o->done, 1);
}

/* --- copies -------------------------------------------------------------------------------------------------------------- */

TEST(pieces_of_a_copy_follow_each_other_whichever_way_they_go)
{
    begin();
    cu.paper->copy_ns_per_kib = 4 * US; /* the first takes 4 ms, what follows it next to nothing */
    uint8_t *in = malloc(MIB), out[100];
    uint8_t *a = device_alloc(MIB), *b = device_alloc(MIB);
    one_t o;
    for (unsigned i = 0; i < 3; i++) {
        fill(in, MIB, i);
        memset(out, 0, sizeof out);
        one_begin(&o);
        one_add(&o, cuda, a, in, MIB, WEFTI_COPY_TO);
        one_add(&o, cuda, b + 5, a + MIB - 100, 100, WEFTI_COPY_WITHIN);
        one_add(&o, cuda, out, b + 5, 100, WEFTI_COPY_FROM);
        one_add(&o, cuda, a, out, 100, WEFTI_COPY_TO);
        one_end(&o);
        turn();
        CHECK_EQ(o.done, 0);
        finish(&o);
        CHECK_OK(o.status);
        CHECK(!memcmp(out, in + MIB - 100, 100));
        peek(out, a, 100);
        CHECK(!memcmp(out, in + MIB - 100, 100));
    }
    CHECK_EQ(cu.paper->waits, 0);
    weft_mem_free(cuda, a, MIB);
    weft_mem_free(cuda, b, MIB);
    free(in);
    end();
}

/* How many of the copies that the driver is asked for go to an engine. */
static unsigned by_engine(size_t n, int way)
{
    if (way == WEFTI_COPY_WITHIN || n == 1)
        return 0;
    return n < 65536 && n % 2 ? 2 : 1;
}

TEST(every_length_arrives_whole_and_by_an_engine_where_one_can)
{
    static const size_t more[] = {4095, 4097, 8191, 65533, 65534, 65535, 65536, 65537, 65538, 131071, 524287, 524288, 524289};
    begin();
    uint8_t *in = malloc(MIB), *out = malloc(MIB), *a = device_alloc(MIB), *b = device_alloc(MIB);
    one_t o;
    for (size_t i = 0; i < 17 + sizeof more / sizeof *more; i++) {
        size_t n = i < 17 ? i + 1 : more[i - 17];
        for (unsigned shift = 0; shift < 3; shift++) {
            unsigned engine = cu.paper->copies_by_engine;
            fill(in, n + 8, (unsigned)n + shift);
            memset(out, 0xee, n + 8);
            poke(a, out, n + 8);
            poke(b, out, n + 8);
            start(&o, a + shift, in + 1, n, WEFTI_COPY_TO);
            finish(&o);
            CHECK_OK(o.status);
            CHECK_EQ(cu.paper->copies_by_engine - engine, by_engine(n, WEFTI_COPY_TO));
            start(&o, b + 2, a + shift, n, WEFTI_COPY_WITHIN);
            finish(&o);
            CHECK_OK(o.status);
            CHECK_EQ(cu.paper->copies_by_engine - engine, by_engine(n, WEFTI_COPY_TO));
            start(&o, out + 3, b + 2, n, WEFTI_COPY_FROM);
            finish(&o);
            CHECK_OK(o.status);
            CHECK_EQ(cu.paper->copies_by_engine - engine, 2 * by_engine(n, WEFTI_COPY_TO));
            CHECK(!memcmp(out + 3, in + 1, n));
            CHECK(out[2] == 0xee && out[n + 3] == 0xee);
            peek(out, a, n + 8);
            for (size_t at = 0; at < n + 8; at++)
                if ((at < shift || at >= n + shift) && out[at] != 0xee)
                    FAIL("%zu bytes to an offset of %u changed the one at %zu", n, shift, at);
        }
    }
    CHECK_EQ(cu.paper->waits, 0);
    weft_mem_free(cuda, a, MIB);
    weft_mem_free(cuda, b, MIB);
    free(in);
    free(out);
    end();
}

TEST(a_copy_ends_once_and_from_progress)
{
    begin();
    uint8_t in[64], *a = device_alloc(64);
    one_t o;
    fill(in, 64, 1);
    start(&o, a, in, 64, WEFTI_COPY_TO);
    (void)cu.EventQuery(NULL); /* done on the device */
    CHECK_EQ(o.done, 0);
    CHECK_EQ(wefti_mem_of(rt)->copies.n, 1);
    finish(&o);
    CHECK_EQ(wefti_mem_of(rt)->copies.n, 0);
    /* nothing in it */
    one_begin(&o);
    one_end(&o);
    CHECK_EQ(o.done, 0);
    finish(&o);
    CHECK_OK(o.status);
    /* one that fails when it is given to the driver */
    weft_log_set_sink(say_nothing, NULL);
    cu.fail("cuMemcpy2DAsync_v2", 0, UNKNOWN, 1);
    start(&o, a, in, 64, WEFTI_COPY_TO);
    CHECK_EQ(o.done, 0);
    finish(&o);
    CHECK_EQ(o.status, WEFT_ERR_SYSTEM);
    turn_for(2 * MS);
    CHECK_EQ(o.done, 1);
    CHECK_EQ(cu.paper->waits, 0);
    weft_mem_free(cuda, a, 64);
    end();
}

TEST(short_copies_pass_long_ones_and_directions_pass_each_other)
{
    begin();
    cu.paper->copy_ns_per_kib = 100 * US;
    uint8_t *in = malloc(MIB), *out = malloc(MIB), *a = device_alloc(MIB), *b = device_alloc(MIB);
    one_t slow, quick, back, within;
    memset(in, 1, MIB);
    start(&slow, a, in, MIB, WEFTI_COPY_TO); /* a tenth of a second */
    start(&quick, b, in, 64, WEFTI_COPY_TO);
    start(&back, out, b + 100, 64, WEFTI_COPY_FROM);
    start(&within, b + 200, b + 300, 64, WEFTI_COPY_WITHIN);
    finish(&quick);
    finish(&back);
    finish(&within);
    CHECK_EQ(slow.done, 0);
    finish(&slow);
    CHECK(!slow.status && !quick.status && !back.status && !within.status);
    CHECK_EQ(cu.paper->waits, 0);
    weft_mem_free(cuda, a, MIB);
    weft_mem_free(cuda, b, MIB);
    free(in);
    free(out);
    end();
}

static one_t many[600];
static uint8_t *many_in, *many_out, *many_device;
static unsigned begun;

static void next_done(wefti_copy_t *copy, weft_status_t status)
{
    one_done(copy, status);
    if (begun == sizeof many / sizeof *many)
        return;
    one_t *o = &many[begun];
    size_t at = (size_t)begun++ * 1024;
    o->copy.done = next_done;
    CHECK_OK(wefti_copy_begin(rt, &o->copy));
    wefti_copy_add(rt, &o->copy, cuda, many_device + at, many_in + at, 1024, WEFTI_COPY_TO);
    wefti_copy_add(rt, &o->copy, cuda, many_out + at, many_device + at, 1000, WEFTI_COPY_FROM);
    wefti_copy_end(rt, &o->copy);
}

/* Hundreds are under way, each of which starts the next from its end. */
static void copies_from_ends(void)
{
    enum { N = sizeof many / sizeof *many };
    memset(many, 0, sizeof many);
    begun = ended = 0;
    many_in = malloc(N * 1024);
    many_out = calloc(N, 1024);
    many_device = device_alloc(N * 1024);
    fill(many_in, N * 1024, 9);
    one_t seed[200];
    for (unsigned i = 0; i < 200; i++) {
        one_begin(&seed[i]);
        seed[i].copy.done = next_done;
        one_end(&seed[i]);
    }
    for (double until = test_now() + 30; ended < N + 200;) {
        turn();
        if (test_now() > until)
            FAIL("%u of %u copies ended within 30 s", ended, N + 200);
    }
    turn_for(MS);
    for (unsigned i = 0; i < N; i++) {
        CHECK(many[i].done == 1 && !many[i].status);
        CHECK(!memcmp(many_out + i * 1024, many_in + i * 1024, 1000));
    }
    CHECK_EQ(wefti_mem_of(rt)->copies.n, 0);
    weft_mem_free(cuda, many_device, N * 1024);
    free(many_in);
    free(many_out);
}

TEST(copies_are_started_from_the_ends_of_others)
{
    begin();
    cu.paper->copy_ns = 3 * US;
    copies_from_ends();
    CHECK_EQ(cu.paper->waits, 0);
    end();
}

/* --- drivers that cannot do everything ----------------------------------------------------------------------------------- */

static void ends_are_told_by_events(void)
{
    cu.paper->copy_ns = 3 * US;
    copies_from_ends();
    CHECK(cu.paper->events > 0);
    CHECK(cu.paper->events < 600); /* they are used again */
    uint8_t in[8192], *a = device_alloc(8192);
    one_t o[40];
    ended = 0;
    for (unsigned i = 0; i < 40; i++)
        start(&o[i], a + i, in + i, 100, WEFTI_COPY_TO);
    for (unsigned i = 0; i < 40; i++) {
        finish(&o[i]);
        CHECK_OK(o[i].status);
        CHECK_EQ(o[i].order, i); /* those of a stream in order */
    }
    CHECK_EQ(cu.paper->waits, 0);
    weft_mem_free(cuda, a, 8192);
    end();
}

TEST(a_driver_that_writes_no_values_tells_ends_by_events)
{
    begin();
    wefti_cu.stream_write = NULL;
    wefti_cu.ctx_id = NULL;
    ends_are_told_by_events();
}

TEST(a_device_that_writes_no_values_tells_ends_by_events)
{
    begin();
    cu.fail("cuStreamWriteValue32_v2", 0, 801, -1);
    ends_are_told_by_events();
}

TEST(a_device_that_stops_writing_values_goes_on_with_events)
{
    begin();
    cu.fail("cuStreamWriteValue32_v2", 20, 801, -1);
    ends_are_told_by_events();
}

TEST(words_that_cannot_be_page_locked_make_way_for_events)
{
    begin();
    cu.paper->register_fails = 1;
    ends_are_told_by_events();
}

/* --- failures ------------------------------------------------------------------------------------------------------------ */

static const char *const functions[] = {
    "cuMemcpyAsync",        "cuMemcpy2DAsync_v2",     "cuStreamCreate",    "cuStreamWriteValue32_v2",
    "cuEventCreate",        "cuEventRecord",          "cuStreamWaitEvent", "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",   "cuPointerGetAttributes", "cuCtxGetCurrent",   "cuCtxGetId",
    "cuMemHostRegister_v2", "cuStreamQuery",          "cuEventQuery",      "cuCtxGetDevice",
};

/* Three pieces, with one failure on the way: the copy ends once, and after that nobody touches anything. */
static void trial(const char *function, unsigned after, int error, bool events, uint8_t *a, uint8_t *b)
{
    static uint8_t in[2001], out[2001];
    one_t o;
    rt = fake_open(WEFT_PROGRESS_CALLER, 0);
    CHECK_OK(wefti_mem_attach(rt));
    fill(in, sizeof in, after);
    memset(out, 0, sizeof out);
    if (events)
        cu.fail("cuStreamWriteValue32_v2", 0, 801, -1);
    cu.fail(function, after, error, 1);
    start(&o, a, in, sizeof in, WEFTI_COPY_TO); /* this one may be hit as well */
    one_t p;
    one_begin(&p);
    one_add(&p, cuda, a, in, sizeof in, WEFTI_COPY_TO);
    one_add(&p, cuda, b, a, 70000, WEFTI_COPY_WITHIN);
    one_add(&p, cuda, out, b, sizeof in, WEFTI_COPY_FROM);
    one_end(&p);
    finish(&p);
    if (!o.done)
        finish(&o);
    unsigned copies = cu.paper->copies;
    if (p.status == WEFT_OK && memcmp(in, out, sizeof in))
        FAIL("%s, after %u, error %d%s: ends well, and the bytes are not there", function, after, error,
             events ? ", events" : "");
    for (unsigned i = 0; i < 3; i++) {
        struct timespec moment = {0, 60000};
        nanosleep(&moment, NULL);
        turn();
    }
    if (cu.paper->copies != copies)
        FAIL("%s, after %u, error %d%s: the device copies after the end", function, after, error, events ? ", events" : "");
    CHECK(o.done == 1 && p.done == 1);
    /* the next one does well */
    cu.fail(function, 0, 0, 0);
    if (events)
        cu.fail("cuStreamWriteValue32_v2", 0, 801, -1);
    memset(out, 0, sizeof out);
    one_begin(&p);
    one_add(&p, cuda, a, in, sizeof in, WEFTI_COPY_TO);
    one_add(&p, cuda, out, a, sizeof in, WEFTI_COPY_FROM);
    one_end(&p);
    finish(&p);
    CHECK_OK(p.status);
    CHECK(!memcmp(in, out, sizeof in));
    CHECK_OK(weft_runtime_close(rt));
    cu.fail("cuStreamWriteValue32_v2", 0, 0, 0);
}

static void trials(bool events)
{
    static const int errors[] = {1, 2, 201, 400, DESTROYED, UNKNOWN};
    begin();
    weft_log_set_sink(say_nothing, NULL);
    uint8_t *a = device_alloc(70000), *b = device_alloc(70000);
    CHECK_OK(weft_runtime_close(rt));
    cu.paper->copy_ns = 20 * US;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++)
        for (unsigned after = 0; after < 12; after++)
            for (size_t e = 0; e < sizeof errors / sizeof *errors; e++)
                if (strcmp(functions[f], "cuCtxPopCurrent_v2")) /* a context that stays current is the driver's own fault */
                    trial(functions[f], after, errors[e], events, a, b);
    weft_mem_free(cuda, a, 70000);
    weft_mem_free(cuda, b, 70000);
}

TEST(whatever_call_of_the_driver_fails_a_copy_ends_once_and_nobody_copies_after_that)
{
    trials(false);
}

TEST(the_same_where_events_tell_the_end)
{
    trials(true);
}

TEST(the_second_half_of_an_odd_copy_fails)
{
    begin();
    weft_log_set_sink(say_nothing, NULL);
    cu.paper->copy_ns = 5 * MS;
    uint8_t in[101], *a = device_alloc(101), out[101];
    one_t o;
    memset(in, 1, sizeof in);
    memset(out, 2, sizeof out);
    poke(a, out, 101);
    cu.fail("cuMemcpy2DAsync_v2", 1, UNKNOWN, 1);
    start(&o, a, in, 101, WEFTI_COPY_TO);
    finish(&o);
    CHECK_EQ(o.status, WEFT_ERR_SYSTEM);
    unsigned copies = cu.paper->copies;
    turn_for(20 * MS);
    CHECK_EQ(cu.paper->copies, copies); /* the first half was waited for */
    weft_mem_free(cuda, a, 101);
    end();
}

static unsigned late; /* lines about a copy that failed on the device: nobody knows by then how many bytes those were */

static void hear_late(weft_log_level_t level, const char *line, void *user)
{
    (void)level, (void)user;
    late += strstr(line, "copying CUDA memory: CUDA_ERROR_ILLEGAL_ADDRESS") != NULL;
    if (strstr(line, " 0 bytes"))
        FAIL("\"%s\" has a number that says nothing", line);
}

/* sure: those that ended before it are known to have ended well. */
static void a_failure_comes_late(bool sure)
{
    weft_log_set_sink(hear_late, NULL);
    uint8_t in[8192], *a = device_alloc(8192);
    one_t o[5];
    for (unsigned i = 0; i < 5; i++) {
        one_begin(&o[i]);
        for (unsigned k = 0; k < 3; k++)
            one_add(&o[i], cuda, a + 100 * k, in + 100 * k, 100, WEFTI_COPY_TO);
        one_end(&o[i]);
    }
    cu.fail("copy", 7, 700, 1); /* in the third */
    for (unsigned i = 0; i < 5; i++)
        finish(&o[i]);
    CHECK(!sure || (!o[0].status && !o[1].status));
    CHECK(o[2].status == WEFT_ERR_SYSTEM && o[3].status == WEFT_ERR_SYSTEM && o[4].status == WEFT_ERR_SYSTEM);
    CHECK(late >= 3);
    start(&o[0], a, in, 100, WEFTI_COPY_TO); /* everything in that context fails from now on */
    finish(&o[0]);
    CHECK_EQ(o[0].status, WEFT_ERR_SYSTEM);
    void *other;
    CHECK_EQ(cu.CtxCreate(&other, 0, 1), 0);
    uint8_t *b = device_alloc(8192), out[8192];
    CHECK_EQ(cu.CtxPopCurrent(&other), 0);
    fill(in, sizeof in, 4);
    one_begin(&o[0]);
    one_add(&o[0], cuda, b, in, 8192, WEFTI_COPY_TO);
    one_add(&o[0], cuda, out, b, 8192, WEFTI_COPY_FROM);
    one_end(&o[0]);
    finish(&o[0]);
    CHECK_OK(o[0].status);
    CHECK(!memcmp(in, out, 8192));
    CHECK_EQ(cu.paper->waits, 0);
    CHECK_OK(weft_runtime_close(rt));
}

TEST(a_copy_that_fails_on_the_device_ends_with_a_status)
{
    begin();
    a_failure_comes_late(true);
}

TEST(a_copy_that_fails_on_the_device_ends_with_a_status_by_events)
{
    begin();
    wefti_cu.stream_write = NULL;
    a_failure_comes_late(false); /* an event says how its context is */
}

/* --- contexts ------------------------------------------------------------------------------------------------------------ */

static void context_destroyed_in_the_middle(bool events)
{
    begin();
    weft_log_set_sink(say_nothing, NULL);
    if (events)
        wefti_cu.stream_write = NULL;
    cu.paper->copy_ns = 200 * MS; /* so that they are under way when the context goes, however busy the machine is */
    uint8_t in[1000], *home = device_alloc(1000), out[1000];
    for (unsigned round = 0; round < 3; round++) {
        void *mine;
        one_t gone[3], stays;
        CHECK_EQ(cu.CtxCreate(&mine, 0, 0), 0);
        uint8_t *a = device_alloc(1000);
        CHECK_EQ(cu.CtxPopCurrent(&mine), 0);
        fill(in, sizeof in, round);
        for (unsigned i = 0; i < 3; i++)
            start(&gone[i], a, in, 100 + i, WEFTI_COPY_TO);
        start(&stays, home, in, 1000, WEFTI_COPY_TO);
        turn();
        CHECK_EQ(cu.CtxDestroy(mine), 0);
        for (unsigned i = 0; i < 3; i++) {
            finish(&gone[i]);
            CHECK_EQ(gone[i].status, WEFT_ERR_SYSTEM);
        }
        finish(&stays);
        CHECK_OK(stays.status);
        peek(out, home, 1000);
        CHECK(!memcmp(out, in, 1000));
    }
    CHECK_EQ(cu.paper->waits, 0);
    weft_mem_free(cuda, home, 1000);
    end();
}

TEST(copies_of_a_context_that_is_destroyed_end_and_others_go_on)
{
    context_destroyed_in_the_middle(false);
}

TEST(copies_of_a_context_that_is_destroyed_end_and_others_go_on_by_events)
{
    context_destroyed_in_the_middle(true);
}

/* The context goes between two pieces, or between the last piece and the end. What is under way in another one goes on. */
static void context_destroyed_between(bool pieces)
{
    begin();
    weft_log_set_sink(say_nothing, NULL);
    cu.paper->copy_ns = 30 * MS;
    uint8_t in[1000], *home = device_alloc(1000);
    void *mine;
    one_t gone, stays;
    fill(in, sizeof in, 3);
    CHECK_EQ(cu.CtxCreate(&mine, 0, 0), 0);
    uint8_t *a = device_alloc(1000);
    CHECK_EQ(cu.CtxPopCurrent(&mine), 0);
    start(&stays, home, in, 1000, WEFTI_COPY_TO);
    one_begin(&gone);
    one_add(&gone, cuda, a, in, 100, WEFTI_COPY_TO);
    if (pieces) {
        CHECK_EQ(cu.CtxDestroy(mine), 0);
        one_add(&gone, cuda, a + 100, in + 100, 100, WEFTI_COPY_TO);
        one_add(&gone, cuda, a + 200, in + 200, 100, WEFTI_COPY_TO);
    } else {
        CHECK_EQ(cu.CtxDestroy(mine), 0);
    }
    one_end(&gone);
    finish(&gone);
    CHECK_EQ(gone.status, WEFT_ERR_SYSTEM);
    finish(&stays);
    CHECK_OK(stays.status);
    uint8_t out[1000];
    peek(out, home, 1000);
    CHECK(!memcmp(in, out, 1000));
    weft_mem_free(cuda, home, 1000);
    end();
}

TEST(a_context_goes_between_two_pieces_of_a_copy)
{
    context_destroyed_between(true);
}

TEST(a_context_goes_before_the_end_of_a_copy)
{
    context_destroyed_between(false);
}

TEST(pieces_of_one_copy_are_on_two_devices)
{
    begin();
    uint8_t in[3000], out[3000], *a[2];
    one_t o;
    for (int i = 0; i < 2; i++) {
        CHECK(!wefti_cuda_enter_primary(i));
        a[i] = device_alloc(3000);
        wefti_cuda_leave(true);
    }
    cu.paper->copy_ns = 20 * US;
    for (unsigned round = 0; round < 10; round++) {
        fill(in, 3000, round);
        one_begin(&o);
        for (unsigned i = 0; i < 6; i++)
            one_add(&o, cuda, a[i % 2] + 500 * i, in + 500 * i, 500, WEFTI_COPY_TO);
        one_end(&o);
        finish(&o);
        CHECK_OK(o.status);
        memset(out, 0, 3000);
        one_begin(&o);
        for (unsigned i = 0; i < 6; i++)
            one_add(&o, cuda, out + 500 * i, a[i % 2] + 500 * i, 500, WEFTI_COPY_FROM);
        one_end(&o);
        finish(&o);
        CHECK_OK(o.status);
        CHECK(!memcmp(in, out, 3000));
    }
    CHECK_EQ(cu.paper->waits, 0);
    for (int i = 0; i < 2; i++)
        weft_mem_free(cuda, a[i], 3000);
    end();
}

/* --- kinds of a program, closing ----------------------------------------------------------------------------------------- */

TEST(memory_of_a_programs_own_kind_is_copied_at_once)
{
    begin();
    fakedev_install();
    uint8_t in[5000], out[5000];
    void *p;
    one_t o;
    fill(in, 5000, 8);
    CHECK_OK(weft_mem_alloc(fakedev(), 5000, &p));
    one_begin(&o);
    one_add(&o, fakedev(), p, in, 5000, WEFTI_COPY_TO);
    fakedev_peek(p, out, 5000);
    CHECK(!memcmp(in, out, 5000));
    one_end(&o);
    CHECK_EQ(o.done, 0);
    finish(&o);
    CHECK_OK(o.status);
    fakedev_fail_copies(1);
    one_begin(&o);
    for (unsigned i = 0; i < 3; i++)
        one_add(&o, fakedev(), out, p, 10, WEFTI_COPY_FROM);
    one_end(&o);
    finish(&o);
    CHECK_EQ(o.status, WEFT_ERR_SYSTEM);
    fakedev_fail_copies(UINT64_MAX);
    weft_mem_free(fakedev(), p, 5000);
    fakedev_remove();
    CHECK_EQ(cu.paper->copies, 0);
    end();
}

TEST(a_runtime_that_is_closed_waits_for_its_copies)
{
    setenv("PAPER_THREAD", "10", 1);
    begin();
    cu.paper->copy_ns = 30 * MS;
    static uint8_t in[1000], out[1000];
    uint8_t *a = device_alloc(1000);
    one_t o[3];
    fill(in, 1000, 5);
    for (unsigned i = 0; i < 3; i++) {
        one_begin(&o[i]);
        one_add(&o[i], cuda, a, in, 1000, WEFTI_COPY_TO);
        one_add(&o[i], cuda, out, a, 1000, WEFTI_COPY_FROM);
        one_end(&o[i]);
    }
    end();
    for (unsigned i = 0; i < 3; i++)
        CHECK(o[i].done == 1 && !o[i].status);
    CHECK(!memcmp(in, out, 1000));
    unsigned copies = cu.paper->copies;
    usleep(50000);
    CHECK_EQ(cu.paper->copies, copies);
    CHECK_EQ(cu.paper->waits, 0);
    CHECK_EQ(cu.paper->live_streams, 0);
    weft_mem_free(cuda, a, 1000);
}

TEST(a_device_that_is_slow_is_not_missed)
{
    setenv("PAPER_THREAD", "10", 1);
    begin();
    uint8_t in[100], *a = device_alloc(100);
    one_t o;
    for (unsigned i = 0; i < 20; i++) {
        cu.paper->copy_ns = (uint64_t)(i % 5) * 2 * MS;
        start(&o, a, in, 100, WEFTI_COPY_TO);
        double began = test_now();
        while (!o.done) {
            weft_op_t none = WEFT_OP_INIT; /* asleep, as far as the runtime lets us */
            CHECK_OK(weft_timer_start(rt, WEFT_SECOND, &none));
            (void)weft_op_wait(&none, WEFT_MILLISECOND);
            weft_op_cancel(&none);
            while (!weft_op_done(&none))
                weft_runtime_progress(rt);
            if (test_now() - began > 20)
                FAIL("a copy was missed");
        }
        CHECK_OK(o.status);
    }
    weft_mem_free(cuda, a, 100);
    end();
}
