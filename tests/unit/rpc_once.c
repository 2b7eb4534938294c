/* What a service remembers of calls made with `once`: a book of it, told the time. */
#include <string.h>

#include "base/rng.h"
#include "rpc/serve.h"
#include "test.h"

static rpc_book_t book;
static rpc_share_t *whose;  /* who calls; NULL: anyone */
static rpc_share_t *anyone; /* who may have everything */

__attribute__((constructor)) static void make_anyone(void)
{
    anyone = wefti_rpc_share(wefti_rpc_budget_new(UINT64_MAX, 100), 1);
}
static rpc_request_t someone; /* who runs it: only that there is one matters */

static rpc_once_found_t find(uint64_t client, uint64_t seq, uint64_t acked, uint64_t now, rpc_once_entry_t **e)
{
    rpc_once_t id = {.client = client, .seq = seq, .acked = acked};
    *e = NULL;
    rpc_once_found_t found = wefti_once_find(&book, &id, whose ? whose : anyone, now, e);
    if (found == ONCE_NEW)
        (*e)->request = &someone;
    return found;
}

static void answer(rpc_once_entry_t *e, const char *text, const char *payload, uint64_t room, uint64_t now)
{
    rpc_msg_t msg;
    rpc_msg_init(&msg, rpc_head(RPC_REPLY, 1));
    rpc_msg_put(&msg, text, strlen(text));
    if (*payload) { /* in two pieces */
        msg.iov[0] = (weft_iov_t){(void *)(uintptr_t)payload, 1};
        msg.iov[1] = (weft_iov_t){(void *)(uintptr_t)(payload + 1), strlen(payload) - 1};
        msg.iov_n = 2;
        msg.payload = strlen(payload);
    }
    wefti_once_answered(&book, e, &msg, room, now);
}

TEST(a_call_is_new_once)
{
    rpc_once_entry_t *e, *again;
    wefti_once_init(&book, 100, 1000);
    CHECK_EQ(find(1, 1, 1, 0, &e), ONCE_NEW);
    CHECK_EQ(find(1, 1, 1, 0, &again), ONCE_RUNNING);
    CHECK(again == e);
    CHECK_EQ(find(2, 1, 1, 0, &again), ONCE_NEW); /* another client's */
    answer(e, "hello", "payload", 1000, 0);
    CHECK_EQ(find(1, 1, 1, 10, &again), ONCE_ANSWERED);
    CHECK(again == e);
    CHECK_EQ(e->reply->len, sizeof(rpc_head_t) + 5);
    CHECK(!memcmp(e->reply->header + sizeof(rpc_head_t), "hello", 5));
    CHECK_EQ(e->reply->payload, 7);
    CHECK(!memcmp(e->reply->iov[0].base, "payload", 7));
    CHECK_EQ(book.bytes, 24 + 7);
    CHECK_EQ(book.n, 2);
    wefti_once_free(&book);
    CHECK_EQ(book.n, 0);
    CHECK_EQ(book.bytes, 0);
}

TEST(what_its_client_has_is_forgotten_and_not_run_again)
{
    rpc_once_entry_t *e[10], *x;
    wefti_once_init(&book, 100, 1000);
    for (unsigned i = 1; i < 10; i++) {
        CHECK_EQ(find(1, i, 1, 0, &e[i]), ONCE_NEW);
        if (i != 3)
            answer(e[i], "yes", "", 1000, 0);
    }
    CHECK_EQ(find(1, 10, 8, 0, &x), ONCE_NEW);
    answer(x, "yes", "", 1000, 0);
    CHECK_EQ(book.n, 4); /* 3, which runs, 8, 9, 10 */
    CHECK_EQ(find(1, 7, 8, 0, &x), ONCE_GONE);
    CHECK_EQ(find(1, 8, 8, 0, &x), ONCE_ANSWERED);
    CHECK_EQ(find(1, 3, 8, 0, &x), ONCE_RUNNING);
    answer(x, "late", "", 1000, 0);
    CHECK_EQ(book.n, 3);
    CHECK_EQ(find(1, 3, 8, 0, &x), ONCE_GONE);
    CHECK_EQ(find(1, 7, 1, 0, &x), ONCE_GONE); /* what it once said stays said */
    wefti_once_free(&book);
}

TEST(what_did_not_run_may_come_again)
{
    rpc_once_entry_t *e;
    wefti_once_init(&book, 100, 1000);
    CHECK_EQ(find(1, 4, 1, 0, &e), ONCE_NEW);
    wefti_once_forget(&book, e, 0);
    CHECK_EQ(find(1, 4, 1, 0, &e), ONCE_NEW);
    wefti_once_free(&book);
}

TEST(a_reply_that_is_too_long_is_remembered_without_its_bytes)
{
    rpc_once_entry_t *e;
    wefti_once_init(&book, 100, 1000);
    CHECK_EQ(find(1, 1, 1, 0, &e), ONCE_NEW);
    answer(e, "hello", "payload", 30, 0);
    CHECK_EQ(book.bytes, 0);
    CHECK_EQ(find(1, 1, 1, 0, &e), ONCE_GONE);
    wefti_once_free(&book);
}

TEST(age_and_number_are_bounds)
{
    rpc_once_entry_t *e;
    wefti_once_init(&book, 3, 1000);
    CHECK_EQ(wefti_once_age(&book, 5), UINT64_MAX);
    for (unsigned i = 1; i <= 3; i++) {
        CHECK_EQ(find(1, i, 1, i, &e), ONCE_NEW);
        answer(e, "yes", "", 1000, i * 100);
    }
    CHECK_EQ(find(1, 4, 1, 300, &e), ONCE_FULL);
    CHECK_EQ(wefti_once_age(&book, 1000), 1100);
    CHECK_EQ(book.n, 3);
    CHECK_EQ(wefti_once_age(&book, 1250), 1300);
    CHECK_EQ(book.n, 1);
    CHECK_EQ(find(1, 2, 1, 1250, &e), ONCE_GONE); /* it ran, and is too old */
    CHECK_EQ(find(1, 4, 1, 1250, &e), ONCE_NEW);
    wefti_once_forget(&book, e, 1250);
    /* the client is remembered as long as a call, and then it is a stranger */
    CHECK_EQ(wefti_once_age(&book, 1300), 2300);
    CHECK_EQ(book.n_clients, 1);
    CHECK_EQ(wefti_once_age(&book, 2300), UINT64_MAX);
    CHECK_EQ(book.n_clients, 0);
    /* so many clients, and no more */
    for (unsigned i = 1; i <= 3; i++) {
        CHECK_EQ(find(i, 1, 1, 3000, &e), ONCE_NEW);
        wefti_once_forget(&book, e, 3000);
    }
    CHECK_EQ(find(4, 1, 1, 3000, &e), ONCE_FULL);
    CHECK_EQ(find(3, 1, 1, 3000, &e), ONCE_NEW);
    wefti_once_free(&book);
}

TEST(a_repeat_that_comes_when_its_reply_is_forgotten_does_not_run)
{
    rpc_once_entry_t *e;
    wefti_once_init(&book, 1, 10);
    book.stay_ns = 1000;
    book.max_clients = book.peer_clients = 2;
    CHECK_EQ(find(1, 1, 1, 0, &e), ONCE_NEW);
    answer(e, "yes", "", 1000, 0);
    CHECK_EQ(wefti_once_age(&book, 500), 1500);
    CHECK_EQ(find(1, 1, 1, 500, &e), ONCE_GONE);
    CHECK_EQ(find(2, 1, 1, 500, &e), ONCE_NEW); /* more clients than calls */
    CHECK_EQ(find(3, 1, 1, 500, &e), ONCE_FULL);
    wefti_once_free(&book);
}

static int left;
static int fails(size_t n)
{
    (void)n;
    return left-- <= 0;
}

TEST(without_memory_it_is_full_and_nothing_is_lost)
{
    rpc_once_entry_t *e;
    for (int budget = 0; budget < 12; budget++) {
        wefti_once_init(&book, 100, 1000);
        left = budget;
        wefti_alloc_fails = fails;
        rpc_once_found_t found = find(1, 1, 1, 0, &e);
        if (found == ONCE_NEW)
            answer(e, "yes", "payload", 1000, 0);
        else
            CHECK_EQ(found, ONCE_FULL);
        wefti_alloc_fails = NULL;
        if (found == ONCE_NEW) /* whether its reply could be kept or not, it is not new again */
            CHECK(find(1, 1, 1, 0, &e) != ONCE_NEW);
        else
            CHECK_EQ(find(1, 1, 1, 0, &e), ONCE_NEW);
        wefti_once_free(&book);
    }
}

/* Against a plain table of what happened: never NEW twice, whatever order things come in. */
TEST(no_order_of_things_makes_a_call_new_twice)
{
    enum { CLIENTS = 4, SEQS = 64 };
    for (uint64_t seed = 0; seed < 300; seed++) {
        wefti_rng_t rng = {seed};
        bool ran[CLIENTS][SEQS] = {{false}};
        rpc_once_entry_t *runs[CLIENTS][SEQS] = {{NULL}}, *e;
        uint64_t now = 1, acked[CLIENTS] = {1, 1, 1, 1};
        wefti_once_init(&book, 40, 50);
        for (unsigned step = 0; step < 600; step++) {
            unsigned c = (unsigned)(wefti_rng_next(&rng) % CLIENTS), s = 1 + (unsigned)(wefti_rng_next(&rng) % (SEQS - 1));
            unsigned what = (unsigned)(wefti_rng_next(&rng) % 10);
            if (what == 0)
                acked[c] += wefti_rng_next(&rng) % 4;
            if (what == 1) {
                now += wefti_rng_next(&rng) % 10; /* less than it takes to forget a client */
                wefti_once_age(&book, now);
            }
            if (what < 6) {
                rpc_once_found_t found = find(c + 1, s, acked[c], now, &e);
                if (found == ONCE_NEW) {
                    CHECK(!ran[c][s]);
                    CHECK(s >= acked[c]);
                    ran[c][s] = true;
                    runs[c][s] = e;
                } else if (found == ONCE_RUNNING) {
                    CHECK(runs[c][s] == e);
                }
            } else if (runs[c][s]) {
                if (what == 9) {
                    wefti_once_forget(&book, runs[c][s], now);
                    ran[c][s] = false;
                } else {
                    answer(runs[c][s], "yes", "", wefti_rng_next(&rng) % 2 ? 1000 : 0, now);
                }
                runs[c][s] = NULL;
            }
            CHECK(book.n <= 40);
        }
        wefti_once_free(&book);
        CHECK_EQ(book.bytes, 0);
        CHECK_EQ(book.n_clients, 0);
    }
}

/* One that takes all it can get, under as many names as it likes: others are remembered too. */
TEST(a_peer_has_its_part_of_the_book)
{
    rpc_budget_t *budget = wefti_rpc_budget_new(1000, 50);
    rpc_share_t *greedy = wefti_rpc_share(budget, 1), *other = wefti_rpc_share(budget, 2);
    rpc_once_entry_t *e;
    wefti_once_init(&book, 10, 1000);
    book.peer_max = 5;
    book.peer_clients = 3;
    whose = greedy;
    for (unsigned i = 1; i <= 5; i++)
        CHECK_EQ(find(1, i, 1, 0, &e), ONCE_NEW);
    CHECK_EQ(find(1, 6, 1, 0, &e), ONCE_FULL);
    CHECK_EQ(find(1, 3, 1, 0, &e), ONCE_RUNNING);
    answer(e, "yes", "its payload", wefti_rpc_space(greedy), 0);
    CHECK_EQ(greedy->bytes, book.bytes);
    CHECK_EQ(wefti_rpc_budget_used(budget), book.bytes);
    CHECK_EQ(find(2, 1, 1, 0, &e), ONCE_FULL);
    CHECK_EQ(find(3, 1, 1, 0, &e), ONCE_FULL);
    CHECK_EQ(find(4, 1, 1, 0, &e), ONCE_FULL);
    CHECK_EQ(greedy->clients, 3);
    whose = other;
    for (unsigned i = 1; i <= 5; i++)
        CHECK_EQ(find(5, i, 1, 0, &e), ONCE_NEW);
    CHECK_EQ(find(5, 3, 4, 0, &e), ONCE_RUNNING); /* what is below 4 and was answered goes, and 3 runs */
    wefti_once_free(&book);
    whose = NULL;
    CHECK_EQ(greedy->bytes, 0);
    CHECK_EQ(greedy->entries + greedy->clients + other->entries + other->clients, 0);
    CHECK_EQ(wefti_rpc_budget_used(budget), 0);
    wefti_rpc_budget_leave(budget);
    wefti_rpc_share_put(greedy);
    wefti_rpc_share_put(other); /* and with the last of them the budget goes */
}
