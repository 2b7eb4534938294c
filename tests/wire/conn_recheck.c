/* tests/wire/conn_recheck.c - conn/recheck.h: peers that were welcome once and are no longer lose their connections, and nobody
 * else does. */
#include "conn/conn.h"

#include "lib/two.h"
#include "test.h"

typedef struct source {
    bool changed;
    weft_ep_t *unwelcome;
    bool nobody; /* is welcome */
    unsigned asked, looked;
} source_t;

static source_t source, second;

static bool changed(void *user)
{
    source_t *s = user;
    bool was = s->changed;
    s->changed = false;
    s->looked++;
    return was;
}

static weft_status_t welcome(void *user, weft_ep_t *ep)
{
    source_t *s = user;
    s->asked++;
    if (!s->nobody && ep != s->unwelcome)
        return WEFT_OK;
    return wefti_fail(WEFT_ERR_AUTH, "the key \"tuesday\" of this peer was taken back");
}

static void add(weft_runtime_t *rt, source_t *s)
{
    *s = (source_t){0};
    CHECK_OK(wefti_recheck_add(rt, &(wefti_recheck_t){changed, welcome, s}));
}

TEST(who_is_no_longer_welcome_is_ended_with_a_sentence)
{
    char buf[8];
    weft_op_t here = WEFT_OP_INIT, there = WEFT_OP_INIT, other = WEFT_OP_INIT, sent = WEFT_OP_INIT;
    two_open(NULL, NULL);
    add(two.server, &source);
    add(two.server, &second);
    weft_ep_t *a = two_connect(NULL), *b = two_connect(NULL);
    CHECK_OK(weft_msg_recv(two.accepted[0], buf, sizeof buf, 1, WEFT_TAG_FULL, &here));
    CHECK_OK(weft_msg_recv(two.accepted[1], buf, sizeof buf, 1, WEFT_TAG_FULL, &other));
    CHECK_OK(weft_msg_recv(a, buf, sizeof buf, 1, WEFT_TAG_FULL, &there));
    source.unwelcome = two.accepted[0];
    TWO_UNTIL(source.looked > 1, 20);
    CHECK(!weft_op_done(&here)); /* nothing has changed, so nobody was asked */
    source.changed = true;
    CHECK_EQ(two_wait(&here, 20), WEFT_ERR_AUTH);
    if (!strstr(weft_op_error(&here), "\"tuesday\" of this peer was taken back"))
        FAIL("%s", weft_op_error(&here));
    CHECK_EQ(two_wait(&there, 20), WEFT_ERR_PEER);
    TWO_UNTIL(two.closed[0] == 1 && two.closed[1] == 1, 20);
    CHECK_EQ(two.closed_why[0], WEFT_ERR_AUTH);
    CHECK(!weft_op_done(&other)); /* the other one is where it was */
    CHECK_OK(weft_msg_send(b, "word", 5, 1, &sent));
    CHECK_OK(two_wait(&other, 20));
    CHECK_STR(buf, "word");
    two_close();
}

TEST(what_changed_during_the_hello_counts)
{
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_opts_t o = two_ep_opts();
    weft_ep_t *ep;
    weft_log_set_level(WEFT_LOG_ERROR);
    two_open(NULL, NULL);
    add(two.server, &source);
    source.nobody = true;
    o.no_retry = true;
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(two.listener), &o, &op, &ep));
    weft_status_t st = two_wait(&op, 20);
    CHECK(st == WEFT_ERR_AUTH || st == WEFT_ERR_REFUSED || st == WEFT_OK); /* OK: it was up a moment before the listener's end */
    TWO_UNTIL(weft_ep_get_state(ep) == WEFT_EP_FAILED, 20);
    CHECK_EQ(two.n_accepted, 0);
    CHECK(source.asked > 0);
    two_close();
}

TEST(many_end_at_once_and_now_means_now)
{
    enum { MANY = 40 };
    two_open(NULL, NULL);
    add(two.server, &source);
    for (int i = 0; i < MANY; i++)
        two_connect(NULL);
    source.nobody = true;
    wefti_recheck_now(two.server);
    TWO_UNTIL(two.closed[0] == MANY && two.closed[1] == MANY, 20);
    CHECK_EQ(two.closed_why[0], WEFT_ERR_AUTH);
    two_close();
}

TEST(there_is_an_end_to_the_table)
{
    int n = 0;
    two_open(NULL, NULL);
    source = (source_t){0};
    while (!wefti_recheck_add(two.server, &(wefti_recheck_t){changed, welcome, &source}))
        CHECK(++n < WEFTI_RECHECK_MOST); /* some are the library's own */
    CHECK_EQ(weft_last_error_status(), WEFT_ERR_LIMIT);
    CHECK(n >= 4);
    two_connect(NULL);
    two_close();
}
