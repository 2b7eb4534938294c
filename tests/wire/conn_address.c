/* Address blobs: found without a listener, over the machine's addresses or its Unix socket, and only by whom it is of. */
#include <stdatomic.h>

#include "base/uri.h"
#include "conn/conn.h"
#include "lib/two.h"
#include "test.h"

static atomic_int n_taken;
static _Atomic(weft_ep_t *) taken;

static void take(weft_listener_t *l, weft_ep_t *ep, void *user)
{
    (void)l, (void)user;
    taken = ep;
    n_taken++;
}

static size_t address_of(weft_runtime_t *rt, void *buf, size_t cap)
{
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    size_t len = 0;
    lo.accept = take;
    CHECK_OK(weft_runtime_address(rt, &lo, NULL, &len));
    CHECK(len > 40 && len <= cap);
    CHECK_OK(weft_runtime_address(rt, NULL, buf, &len));
    return len;
}

static weft_ep_t *call(const void *blob, size_t len, weft_op_t *op)
{
    weft_ep_opts_t o = two_ep_opts();
    weft_ep_t *ep;
    o.address = blob;
    o.address_len = len;
    CHECK_OK(weft_ep_open(two.client, NULL, &o, op, &ep));
    return ep;
}

TEST(a_runtime_is_found_by_its_address)
{
    for (int threads = 0; threads < 2; threads++) {
        char blob[4096];
        weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
        weft_op_t op = WEFT_OP_INIT, send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        weft_ep_info_t info = WEFT_EP_INFO_INIT;
        char got[8];
        n_taken = 0;
        ro.progress = threads ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_CALLER;
        two_open(&ro, &ro);
        size_t len = address_of(two.server, blob, sizeof blob);
        weft_ep_t *ep = call(blob, len, &op);
        CHECK_OK(two_wait(&op, 5));
        TWO_UNTIL(n_taken == 1, 2);
        CHECK_OK(weft_ep_get_info(ep, &info));
        CHECK(!strncmp(info.peer_address, "unix://@", 8)); /* the nearest way first */
        CHECK_OK(weft_msg_send(ep, "found", 6, 1, &send));
        CHECK_OK(weft_msg_recv(taken, got, sizeof got, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(two_wait(&recv, 5));
        CHECK_STR(got, "found");
        two_close();
    }
}

TEST(the_tcp_parts_of_an_address_work_from_another_machine)
{
    char blob[4096];
    weft_op_t op = WEFT_OP_INIT;
    weft_ep_info_t info = WEFT_EP_INFO_INIT;
    n_taken = 0;
    two_open(NULL, NULL);
    size_t len = address_of(two.server, blob, sizeof blob);
    blob[24] ^= 1; /* as if its host were another */
    weft_ep_t *ep = call(blob, len, &op);
    CHECK_OK(two_wait(&op, 5));
    CHECK_OK(weft_ep_get_info(ep, &info));
    CHECK(!strncmp(info.peer_address, "tcp://", 6));
    two_close();
}

TEST(someone_else_at_that_address_is_hung_up_on)
{
    char blob[4096];
    weft_op_t op = WEFT_OP_INIT;
    n_taken = 0;
    two_open(NULL, NULL);
    size_t len = address_of(two.server, blob, sizeof blob);
    blob[8] ^= 1; /* another runtime had that port before */
    call(blob, len, &op);
    CHECK_EQ(two_wait(&op, 5), WEFT_ERR_UNREACHABLE);
    two_run(0.05);
    CHECK_EQ(n_taken, 0);
    two_close();
}

TEST(an_address_cut_or_changed_is_refused_with_a_sentence)
{
    char blob[4096];
    weft_ep_opts_t o = WEFT_EP_OPTS_INIT;
    weft_ep_t *ep;
    two_open(NULL, NULL);
    size_t len = address_of(two.server, blob, sizeof blob);
    o.address = blob;
    for (o.address_len = 0; o.address_len < len; o.address_len++) {
        CHECK_EQ(weft_ep_open(two.client, NULL, &o, NULL, &ep), WEFT_ERR_INVALID);
        CHECK(*weft_last_error());
    }
    blob[4] = 9;
    o.address_len = len;
    CHECK_EQ(weft_ep_open(two.client, NULL, &o, NULL, &ep), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "version 9"));
    two_close();
}

TEST(a_buffer_too_small_is_told_how_much_it_takes_and_the_first_call_needs_a_callback)
{
    char blob[4096];
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    size_t len = sizeof blob;
    two_open(NULL, NULL);
    CHECK_EQ(weft_runtime_address(two.server, NULL, blob, &len), WEFT_ERR_INVALID);
    lo.accept = take;
    len = 10;
    CHECK_EQ(weft_runtime_address(two.server, &lo, blob, &len), WEFT_ERR_LIMIT);
    CHECK(len > 40);
    CHECK_OK(weft_runtime_address(two.server, NULL, blob, &len));
    two_close();
}

TEST(a_device_that_does_not_exist_is_named)
{
    char blob[4096];
    weft_runtime_opts_t so = WEFT_RUNTIME_OPTS_INIT;
    weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
    size_t len = sizeof blob;
    so.interfaces = "nosuch0";
    so.transports = "shm";
    two_open(&so, &so);
    lo.accept = take;
    CHECK_EQ(weft_runtime_address(two.server, &lo, blob, &len), WEFT_ERR_ADDRESS);
    CHECK(strstr(weft_last_error(), "nosuch0"));
    two_close();
}

/* Every part parses and names neither every address nor port 0; how many there are of each scheme. */
static void reach_of(weft_runtime_t *rt, char *text, int *tcp, int *unix_)
{
    wefti_conn_reach(rt, text);
    *tcp = *unix_ = 0;
    for (const char *at = text; *at;) {
        wefti_uri_t uri;
        CHECK_OK(wefti_uri_parse(&at, &uri));
        CHECK(strcmp(uri.host, "0.0.0.0") && strcmp(uri.host, "::"));
        CHECK(uri.scheme == WEFTI_URI_UNIX || uri.port);
        CHECK(uri.scheme == WEFTI_URI_UNIX || !*unix_); /* TCP first */
        *(uri.scheme == WEFTI_URI_TCP ? tcp : unix_) += 1;
    }
}

TEST(all_listeners_are_told_to_who_asks_for_them_and_closed_ones_are_not)
{
    for (int threads = 0; threads < 2; threads++) {
        weft_runtime_opts_t ro = WEFT_RUNTIME_OPTS_INIT;
        weft_listen_opts_t lo = WEFT_LISTEN_OPTS_INIT;
        weft_runtime_t *rt;
        weft_listener_t *one, *two_, *any, *many;
        char text[WEFTI_REACH_MAX], name[64], uris[1024] = "tcp://127.0.0.1:0";
        int tcp, unix_;
        ro.progress = threads ? WEFT_PROGRESS_THREAD : WEFT_PROGRESS_CALLER;
        lo.accept = take;
        CHECK_OK(weft_runtime_open(&ro, &rt));
        reach_of(rt, text, &tcp, &unix_);
        CHECK_STR(text, "");
        snprintf(name, sizeof name, "unix://@weft-test-reach-%d", (int)getpid());
        CHECK_OK(weft_listen(rt, name, &lo, &one));
        reach_of(rt, text, &tcp, &unix_);
        CHECK_STR(text, name);
        CHECK_OK(weft_listen(rt, "tcp://127.0.0.1:0", &lo, &two_));
        reach_of(rt, text, &tcp, &unix_);
        CHECK(tcp == 1 && unix_ == 1 && strstr(text, weft_listener_uri(two_)) == text);
        CHECK_OK(weft_listen(rt, "tcp://0.0.0.0:0", &lo, &any));
        reach_of(rt, text, &tcp, &unix_);
        CHECK(tcp >= 2); /* the machine's addresses, or its loopback */
        CHECK_OK(weft_listener_close(any, NULL));
        CHECK_OK(weft_listener_close(one, NULL));
        double end = test_now() + 5; /* a thread does it in its own time */
        do {
            reach_of(rt, text, &tcp, &unix_);
            CHECK(test_now() < end);
        } while (tcp != 1 || unix_);
        CHECK_STR(text, weft_listener_uri(two_));
        /* as many as fit, and each of them whole */
        for (int i = 1; i < 40; i++)
            strcat(uris, ",tcp://127.0.0.1:0");
        CHECK_OK(weft_listen(rt, uris, &lo, &many));
        reach_of(rt, text, &tcp, &unix_);
        CHECK(strlen(text) < sizeof text && tcp >= (int)(sizeof text / sizeof "tcp://127.0.0.1:65535") && tcp < 40);
        CHECK_OK(weft_runtime_close(rt));
    }
}
