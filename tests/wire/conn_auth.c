/* The pre-shared key: who has it gets in and knows that the other has it; who has not, or another one, does not, and both sides
 * hear why. */
#include "lib/two.h"
#include "test.h"

static char last_warning[512];

static void sink(weft_log_level_t level, const char *line, void *user)
{
    (void)user;
    if (level <= WEFT_LOG_WARN)
        snprintf(last_warning, sizeof last_warning, "%s", line);
}

static const char key_a[] = "sixteen bytes and a few more", key_b[] = "sixteen bytes, but other ones";

static weft_runtime_opts_t with_key(const char *key)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    o.key = key;
    o.key_len = key ? strlen(key) : 0;
    return o;
}

static void expect(const char *server_key, const char *client_key, const char *words)
{
    weft_runtime_opts_t so = with_key(server_key), co = with_key(client_key);
    weft_op_t op = WEFT_OP_INIT, waiting = WEFT_OP_INIT;
    weft_ep_t *ep;
    char buf[8];
    last_warning[0] = 0;
    weft_log_set_sink(sink, NULL);
    two_open(&so, &co);
    CHECK_OK(weft_ep_open(two.client, weft_listener_uri(two.listener), NULL, &op, &ep));
    CHECK_OK(weft_msg_recv(ep, buf, sizeof buf, 1, WEFT_TAG_FULL, &waiting));
    CHECK_EQ(two_wait(&op, 5), WEFT_ERR_AUTH);
    CHECK_EQ(two_wait(&waiting, 5), WEFT_ERR_AUTH);
    CHECK_EQ(weft_ep_get_state(ep), WEFT_EP_FAILED);
    two_run(0.02);
    CHECK_EQ(two.n_accepted, 0);
    if (!strstr(last_warning, words))
        FAIL("the log says \"%s\", not \"%s\"", last_warning, words);
    two_close();
    weft_log_set_sink(NULL, NULL);
}

TEST(the_same_key_on_both_sides_connects_and_is_known_as_proof)
{
    static const char *transports[] = {"shm", "tcp"};
    for (int t = 0; t < 2; t++) {
        weft_runtime_opts_t o = with_key(key_a);
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        char buf[8];
        o.transports = transports[t];
        two_open(&o, &o);
        weft_ep_t *ep = two_connect(NULL);
        CHECK_OK(weft_ep_get_info(ep, &info));
        CHECK(info.authenticated);
        CHECK_OK(weft_ep_get_info(two.accepted[0], &info));
        CHECK(info.authenticated);
        CHECK_OK(weft_msg_send(ep, "secret", 7, 1, &send));
        CHECK_OK(weft_msg_recv(two.accepted[0], buf, sizeof buf, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(two_wait(&recv, 5));
        CHECK_STR(buf, "secret");
        two_close();
    }
}

TEST(another_key_is_refused_on_both_sides)
{
    expect(key_a, key_b, "keys differ");
    expect(key_b, key_a, "keys differ");
}

TEST(a_key_on_the_listener_alone_is_refused_with_a_sentence_that_says_so)
{
    expect(key_a, NULL, "the listener has a key and the dialler has none");
}

TEST(a_key_on_the_dialler_alone_is_refused_with_a_sentence_that_says_so)
{
    expect(NULL, key_a, "the dialler has a key and the listener has none");
}

TEST(a_listener_that_refused_strangers_still_takes_friends)
{
    weft_runtime_opts_t so = with_key(key_a), co = with_key(key_b);
    weft_runtime_t *stranger;
    two_open(&so, &so);
    CHECK_OK(weft_runtime_open(&co, &stranger));
    for (int i = 0; i < 20; i++) {
        weft_op_t op = WEFT_OP_INIT;
        weft_ep_t *ep;
        weft_log_set_level(WEFT_LOG_ERROR);
        CHECK_OK(weft_ep_open(stranger, weft_listener_uri(two.listener), NULL, &op, &ep));
        while (!weft_op_done(&op)) {
            weft_runtime_progress(stranger);
            two_drive();
        }
        CHECK_EQ(op.status, WEFT_ERR_AUTH);
    }
    CHECK_OK(weft_runtime_close(stranger));
    two_connect(NULL);
    CHECK_EQ(two.n_accepted, 1);
    two_close();
}
