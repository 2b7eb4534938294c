/* The bytes of the handshake: what is written is read back, what is cut or wrong is refused, and the format does not change by
 * accident. The key: both sides derive the same, and nobody else does. */
#include <sodium.h>

#include "conn/auth.h"
#include "conn/hello.h"
#include "test.h"

static wefti_hello_t sample(void)
{
    wefti_hello_t h;
    memset(&h, 0, sizeof h);
    h.flags = WEFTI_HELLO_KEYED | WEFTI_HELLO_RESUME;
    h.min_version = WEFTI_PROTOCOL_MIN;
    h.max_version = WEFTI_PROTOCOL_MAX;
    for (unsigned i = 0; i < sizeof h.nonce; i++)
        h.nonce[i] = (uint8_t)i;
    memset(h.uuid, 0xaa, sizeof h.uuid);
    memset(h.host, 0xbb, sizeof h.host);
    h.capabilities = 0x0102030405060708;
    h.heartbeat_ns = 5000000000;
    h.recv_window = 262144;
    h.resume_id = 0x300000001;
    memset(h.cookie, 0xcc, sizeof h.cookie);
    h.name_len = 4;
    memcpy(h.name, "left", 5);
    h.n_transports = 2;
    h.transports[0].kind = 1;
    h.transports[0].caps_len = 3;
    memcpy(h.transports[0].caps, "abc", 3);
    h.transports[1].kind = 2;
    memset(h.hint, 0xdd, sizeof h.hint);
    return h;
}

static weft_status_t decode(const uint8_t *bytes, size_t n, wefti_hello_t *h)
{
    const char *what = NULL;
    weft_status_t st = wefti_hello_decode(bytes, n, WEFTI_SHAKE_HELLO, h, &what);
    CHECK(st != WEFT_ERR_PROTOCOL || what);
    return st;
}

TEST(a_hello_is_read_back_as_it_was_written)
{
    wefti_hello_t h = sample(), g;
    uint8_t buf[WEFTI_HELLO_MAX];
    size_t n = wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf);
    memset(&g, 0, sizeof g);
    CHECK_EQ(decode(buf, n, &g), WEFT_OK);
    CHECK(!memcmp(&h, &g, sizeof h));
}

TEST(the_largest_hello_fits_its_buffer)
{
    wefti_hello_t h = sample(), g;
    uint8_t buf[WEFTI_HELLO_MAX];
    h.name_len = WEFTI_NAME_MAX;
    memset(h.name, 'n', WEFTI_NAME_MAX);
    h.n_transports = WEFTI_HELLO_TRANSPORTS_MAX;
    for (unsigned i = 0; i < WEFTI_HELLO_TRANSPORTS_MAX; i++) {
        h.transports[i].kind = (uint8_t)(i + 1);
        h.transports[i].caps_len = WEFTI_CAPS_MAX;
        memset(h.transports[i].caps, (int)i, WEFTI_CAPS_MAX);
    }
    CHECK_EQ(wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf), WEFTI_HELLO_MAX);
    CHECK_EQ(decode(buf, sizeof buf, &g), WEFT_OK);
    CHECK(!memcmp(h.transports, g.transports, sizeof h.transports));
    CHECK_EQ(wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf - 1), 0);
}

TEST(a_hello_cut_anywhere_or_followed_by_anything_is_refused)
{
    wefti_hello_t h = sample(), g;
    uint8_t buf[WEFTI_HELLO_MAX + 1];
    size_t n = wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, WEFTI_HELLO_MAX);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *copy = malloc(cut ? cut : 1); /* so that a sanitizer sees a read past the end */
        memcpy(copy, buf, cut);
        CHECK_EQ(decode(copy, cut, &g), WEFT_ERR_PROTOCOL);
        free(copy);
    }
    buf[n] = 0;
    CHECK_EQ(decode(buf, n + 1, &g), WEFT_ERR_PROTOCOL);
}

TEST(the_bytes_of_a_hello_are_those_of_the_document)
{
    static const uint8_t head[] = {1, 0, 3, 0, 'W', 'E', 'F', 'T', 2, 0, 2, 0, 0, 1, 2, 3};
    static const uint8_t tail[] = {4, 'l', 'e', 'f', 't', 2, 1, 3, 'a', 'b', 'c', 2, 0};
    wefti_hello_t h = sample();
    uint8_t buf[WEFTI_HELLO_MAX];
    size_t n = wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf);
    CHECK_EQ(n, 124 + sizeof tail + 16);
    CHECK(buf[n - 16] == 0xdd && buf[n - 1] == 0xdd);
    CHECK_EQ(wefti_hello_encode(&h, WEFTI_SHAKE_WELCOME, buf, sizeof buf), n - 16);
    h.flags = WEFTI_HELLO_RESUME; /* it has no key */
    CHECK_EQ(wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf), n - 16);
    h.flags |= WEFTI_HELLO_KEYED;
    CHECK_EQ(wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf), n);
    CHECK(!memcmp(buf, head, sizeof head));
    CHECK(!memcmp(buf + 124, tail, sizeof tail));
    CHECK_EQ(buf[44], 0xaa);
    CHECK_EQ(buf[60], 0xbb);
    CHECK_EQ(buf[76], 8);
    CHECK_EQ(buf[100], 1);
    CHECK_EQ(buf[104], 3);
    CHECK_EQ(buf[108], 0xcc);
}

TEST(versions_that_do_not_meet_are_told_apart_from_nonsense)
{
    wefti_hello_t h = sample(), g;
    uint8_t buf[WEFTI_HELLO_MAX];
    memset(&g, 0, sizeof g);
    h.min_version = WEFTI_PROTOCOL_MAX + 1;
    h.max_version = WEFTI_PROTOCOL_MAX + 4;
    wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf);
    CHECK_EQ(decode(buf, 12, &g), WEFT_ERR_VERSION); /* whatever follows the head may be anything in another version */
    CHECK_EQ(g.min_version, WEFTI_PROTOCOL_MAX + 1);
    CHECK_EQ(g.max_version, WEFTI_PROTOCOL_MAX + 4);
    h.min_version = 5;
    h.max_version = 4;
    wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf);
    CHECK_EQ(decode(buf, 12, &g), WEFT_ERR_PROTOCOL);
    h.min_version = 1;
    h.max_version = 900; /* a newer one that still speaks ours */
    size_t n = wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf);
    CHECK_EQ(decode(buf, n, &g), WEFT_OK);
}

TEST(hostile_values_in_a_hello_are_refused)
{
    struct {
        size_t at;
        uint8_t value;
    } bad[] = {{0, 2}, {0, 9}, {1, 1}, {2, 7}, {3, 0x80}, {4, 'w'}, {124, 128}, {124, 255}, {129, 9}, {129, 255}, {131, 129}};
    wefti_hello_t h = sample(), g;
    uint8_t buf[WEFTI_HELLO_MAX];
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t n = wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf);
        buf[bad[i].at] = bad[i].value;
        if (decode(buf, n, &g) != WEFT_ERR_PROTOCOL)
            FAIL("byte %zu = %u was accepted", bad[i].at, bad[i].value);
    }
    static const uint64_t beats[] = {0, 1, 1000000, 99999999, UINT64_MAX};
    for (unsigned i = 0; i < 5; i++) {
        h = sample();
        h.heartbeat_ns = beats[i];
        CHECK_EQ(decode(buf, wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf), &g), WEFT_ERR_PROTOCOL);
    }
    static const uint64_t windows[] = {0, 1023, UINT64_C(0x100000000), UINT64_MAX};
    for (unsigned i = 0; i < 4; i++) {
        h = sample();
        h.recv_window = windows[i];
        CHECK_EQ(decode(buf, wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf), &g), WEFT_ERR_PROTOCOL);
    }
}

TEST(a_name_from_outside_cannot_forge_log_lines)
{
    wefti_hello_t h = sample(), g;
    uint8_t buf[WEFTI_HELLO_MAX];
    memcpy(h.name, "a\n\x1b\xff", 5);
    CHECK_EQ(decode(buf, wefti_hello_encode(&h, WEFTI_SHAKE_HELLO, buf, sizeof buf), &g), WEFT_OK);
    CHECK_STR(g.name, "a???");
}

TEST(joins_lanes_retries_and_refusals_are_read_back_and_not_when_cut)
{
    uint8_t buf[WEFTI_LANE_HEAD + 64], addr[32];
    const char *what = "";
    memset(addr, 7, sizeof addr);
    wefti_lane_msg_t j = {.type = WEFTI_SHAKE_JOIN, .attempt = 2, .kind = 1, .addr = addr, .addr_len = sizeof addr}, j2;
    size_t n = wefti_lane_msg_encode(&j, buf, sizeof buf);
    CHECK_EQ(n, WEFTI_JOIN_HEAD + sizeof addr);
    CHECK_OK(wefti_lane_msg_decode(buf, n, WEFTI_SHAKE_JOIN, &j2, &what));
    CHECK(j2.attempt == 2 && j2.kind == 1 && j2.addr_len == sizeof addr && !memcmp(j2.addr, addr, sizeof addr));
    for (size_t cut = 0; cut < n; cut++)
        CHECK_EQ(wefti_lane_msg_decode(buf, cut, WEFTI_SHAKE_JOIN, &j2, &what), WEFT_ERR_PROTOCOL);
    CHECK_EQ(wefti_lane_msg_decode(buf, n + 1, WEFTI_SHAKE_JOIN, &j2, &what), WEFT_ERR_PROTOCOL);
    memset(buf + 4, 0xff, 4); /* a length that would wrap */
    CHECK_EQ(wefti_lane_msg_decode(buf, n, WEFTI_SHAKE_JOIN, &j2, &what), WEFT_ERR_PROTOCOL);

    wefti_lane_msg_t l = {.type = WEFTI_SHAKE_LANE,
                          .attempt = 3,
                          .resumed = true,
                          .id = 0x100000009,
                          .addr = addr,
                          .addr_len = sizeof addr},
                     l2;
    memset(l.cookie, 9, sizeof l.cookie);
    n = wefti_lane_msg_encode(&l, buf, sizeof buf);
    CHECK_EQ(n, WEFTI_LANE_HEAD + sizeof addr);
    CHECK_OK(wefti_lane_msg_decode(buf, n, WEFTI_SHAKE_LANE, &l2, &what));
    CHECK(l2.attempt == 3 && l2.resumed && l2.id == l.id && !memcmp(l2.cookie, l.cookie, 16));
    CHECK(!memcmp(l2.addr, addr, sizeof addr));
    for (size_t cut = 0; cut < n; cut++)
        CHECK_EQ(wefti_lane_msg_decode(buf, cut, WEFTI_SHAKE_LANE, &l2, &what), WEFT_ERR_PROTOCOL);

    wefti_refuse_t t2;
    n = wefti_refuse_encode(4, WEFT_ERR_SYSTEM, "", buf, sizeof buf);
    CHECK_EQ(n, WEFTI_RETRY_SIZE);
    CHECK_OK(wefti_refuse_decode(buf, n, WEFTI_SHAKE_RETRY, &t2, &what));
    CHECK(t2.attempt == 4 && t2.status == WEFT_ERR_SYSTEM);
    for (size_t cut = 0; cut < n; cut++)
        CHECK_EQ(wefti_refuse_decode(buf, cut, WEFTI_SHAKE_RETRY, &t2, &what), WEFT_ERR_PROTOCOL);

    uint8_t rbuf[WEFTI_REFUSE_MAX + 1];
    wefti_refuse_t r;
    n = wefti_refuse_encode(0, WEFT_ERR_AUTH, "no\tkey", rbuf, sizeof rbuf);
    CHECK_OK(wefti_refuse_decode(rbuf, n, WEFTI_SHAKE_REFUSE, &r, &what));
    CHECK_EQ(r.status, WEFT_ERR_AUTH);
    CHECK_STR(r.text, "no?key");
    for (size_t cut = 0; cut < n; cut++)
        CHECK_EQ(wefti_refuse_decode(rbuf, cut, WEFTI_SHAKE_REFUSE, &r, &what), WEFT_ERR_PROTOCOL);
}

TEST(a_refusal_is_never_a_success_and_never_an_unknown_status)
{
    static const int32_t told[] = {0, 1, 77, -1000, INT32_MIN, INT32_MAX};
    uint8_t buf[WEFTI_REFUSE_MAX];
    char text[1000];
    const char *what = "";
    wefti_refuse_t r;
    for (unsigned i = 0; i < sizeof told / sizeof *told; i++) {
        size_t n = wefti_refuse_encode(0, (weft_status_t)told[i], "why", buf, sizeof buf);
        CHECK_OK(wefti_refuse_decode(buf, n, WEFTI_SHAKE_REFUSE, &r, &what));
        CHECK_EQ(r.status, WEFT_ERR_REFUSED);
    }
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    CHECK_EQ(wefti_refuse_encode(0, WEFT_ERR_AUTH, text, buf, sizeof buf), WEFTI_REFUSE_MAX);
}

/* --- the key --------------------------------------------------------------------------------------------------------------- */

static const uint8_t key[32] = "0123456789abcdef0123456789abcde", other[32] = "0123456789abcdef0123456789abcdX";
static const uint8_t hello[] = "hello", welcome[] = "welcome", nc[32] = {1}, ns[32] = {2};

static wefti_auth_t auth(const uint8_t *k, const uint8_t *dialler, const uint8_t *listener)
{
    wefti_auth_t a;
    wefti_auth_begin(&a, k, hello, sizeof hello, welcome, sizeof welcome, dialler, listener);
    return a;
}

TEST(what_one_side_seals_the_other_accepts_once_and_in_order)
{
    wefti_auth_t d = auth(key, nc, ns), l = auth(key, nc, ns);
    uint8_t one[64] = "first", two[64] = "second";
    size_t n;
    size_t n1 = wefti_auth_seal(&d, WEFTI_SIDE_DIALLER, one, 6), n2 = wefti_auth_seal(&d, WEFTI_SIDE_DIALLER, two, 7);
    CHECK_EQ(n1, 6 + WEFTI_MAC_SIZE);
    wefti_auth_t skip = l;
    CHECK(!wefti_auth_check(&skip, WEFTI_SIDE_DIALLER, two, n2, &n));
    CHECK(wefti_auth_check(&l, WEFTI_SIDE_DIALLER, one, n1, &n));
    CHECK_EQ(n, 6);
    wefti_auth_t again = l;
    CHECK(!wefti_auth_check(&again, WEFTI_SIDE_DIALLER, one, n1, &n));
    CHECK(wefti_auth_check(&l, WEFTI_SIDE_DIALLER, two, n2, &n));
}

TEST(another_key_another_nonce_the_wrong_side_or_a_changed_bit_are_refused)
{
    wefti_auth_t d = auth(key, nc, ns);
    uint8_t m[64] = "message";
    size_t n, len = wefti_auth_seal(&d, WEFTI_SIDE_DIALLER, m, 8);
    wefti_auth_t a = auth(other, nc, ns);
    CHECK(!wefti_auth_check(&a, WEFTI_SIDE_DIALLER, m, len, &n));
    a = auth(key, ns, nc);
    CHECK(!wefti_auth_check(&a, WEFTI_SIDE_DIALLER, m, len, &n));
    a = auth(key, nc, ns);
    CHECK(!wefti_auth_check(&a, WEFTI_SIDE_LISTENER, m, len, &n)); /* reflected */
    for (size_t bit = 0; bit < len * 8; bit += 3) {
        m[bit / 8] ^= (uint8_t)(1u << bit % 8);
        a = auth(key, nc, ns);
        CHECK(!wefti_auth_check(&a, WEFTI_SIDE_DIALLER, m, len, &n));
        m[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    a = auth(key, nc, ns);
    CHECK(!wefti_auth_check(&a, WEFTI_SIDE_DIALLER, m, WEFTI_MAC_SIZE - 1, &n));
    a = auth(key, nc, ns);
    CHECK(wefti_auth_check(&a, WEFTI_SIDE_DIALLER, m, len, &n));
}

TEST(without_a_key_nothing_is_added)
{
    wefti_auth_t a = auth(NULL, nc, ns);
    uint8_t m[8] = "message";
    size_t n = 0;
    CHECK_EQ(wefti_auth_seal(&a, WEFTI_SIDE_DIALLER, m, 8), 8);
    CHECK(wefti_auth_check(&a, WEFTI_SIDE_DIALLER, m, 8, &n));
    CHECK_EQ(n, 8);
}

TEST(the_proof_is_the_one_of_the_document)
{
    wefti_auth_t a = auth(key, nc, ns);
    uint8_t m[64] = "welcome";
    char hex[2 * WEFTI_MAC_SIZE + 1];
    wefti_auth_seal(&a, WEFTI_SIDE_LISTENER, m, 8);
    sodium_bin2hex(hex, sizeof hex, m + 8, WEFTI_MAC_SIZE);
    CHECK_STR(hex, "25064bb624195fab4ba491d79b5d2e2b6dbec987f9045f64f09aa5e5137ac848");
}

TEST(the_secret_of_the_lanes_is_the_one_of_the_document_and_needs_a_key)
{
    wefti_auth_t a = auth(key, nc, ns), without = auth(NULL, nc, ns), wrong = auth(other, nc, ns);
    uint8_t secret[32], zeroes[32] = {0};
    char hex[65];
    CHECK_STR(sodium_bin2hex(hex, sizeof hex, a.transcript, 32),
              "a68515668aa7963c71882de762ea118b04b31581c8cb28507bf0586dc776711b");
    wefti_auth_lane_secret(&a, secret);
    CHECK_STR(sodium_bin2hex(hex, sizeof hex, secret, 32), "1a9e0cf82fb581628a6cd84d962a5e465648018d51a1ad2edfe8fff945ae8499");
    CHECK(!memcmp(without.transcript, a.transcript, 32));
    wefti_auth_lane_secret(&without, secret);
    CHECK(!memcmp(secret, zeroes, 32));
    wefti_auth_lane_secret(&wrong, secret);
    CHECK_STR(sodium_bin2hex(hex, sizeof hex, secret, 4), "4ba3762a");
}
