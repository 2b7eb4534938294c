/* Addresses of Redis servers; and what is known of one: what vanishes, what leaves, what is strange. */
#include "registry/redis.h"
#include "test.h"

static redis_address_t read_address(const char *rest, bool unix_socket)
{
    redis_address_t a;
    CHECK_OK(wefti_redis_address(rest, unix_socket, &a));
    return a;
}

TEST(addresses_are_read)
{
    redis_address_t a = read_address("localhost", false);
    CHECK_STR(a.host, "localhost");
    CHECK_EQ(a.port, 6379);
    CHECK_EQ(a.db, 0);
    CHECK_STR(a.user, "");
    CHECK_STR(a.password, "");
    a = read_address("me:p%40ss%25@[::1]:7000/12", false);
    CHECK_STR(a.host, "::1");
    CHECK_EQ(a.port, 7000);
    CHECK_EQ(a.db, 12);
    CHECK_STR(a.user, "me");
    CHECK_STR(a.password, "p@ss%");
    a = read_address(":a@b@host/", false);
    CHECK_STR(a.password, "a@b");
    CHECK_STR(a.host, "host");
    a = read_address("/run/redis/redis.sock", true);
    CHECK_STR(a.host, "/run/redis/redis.sock");
    CHECK_EQ(a.port, 0);
    a = read_address(":secret@/run/r.sock?db=3", true);
    CHECK_STR(a.host, "/run/r.sock");
    CHECK_STR(a.password, "secret");
    CHECK_EQ(a.db, 3);
}

TEST(what_is_no_address_is_refused_without_its_password)
{
    static const char *const bad[] = {"",
                                      ":",
                                      ":7000",
                                      "host:0",
                                      "host:65536",
                                      "host:x",
                                      "host:",
                                      "[::1",
                                      "[::1]x",
                                      "[]",
                                      "host/x",
                                      "host/-1",
                                      "host/99999999",
                                      "hunter2@host",
                                      ":@host",
                                      ":hunter2%4@host",
                                      ":hunter2%zz@host",
                                      ":hunter2%00@host",
                                      ":hunter2@",
                                      "ho st",
                                      "ho\tst",
                                      ":hun/ter2@host"};
    redis_address_t a;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (wefti_redis_address(bad[i], false, &a) != WEFT_ERR_INVALID)
            FAIL("\"%s\" is taken for an address", bad[i]);
        CHECK(*weft_last_error() && !strstr(weft_last_error(), "hun"));
    }
    static const char *const bad_paths[] = {
        "",
        "relative",
        ":hunter2@relative",
        "/s?x=1",
        "/s?db=",
        "/s?db=x",
        "/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
        "aaaaaaaaaaaaaaaaaaaaaaaaa"};
    for (size_t i = 0; i < sizeof bad_paths / sizeof *bad_paths; i++)
        CHECK_EQ(wefti_redis_address(bad_paths[i], true, &a), WEFT_ERR_INVALID);
}

/* --- what is known ---------------------------------------------------------------------------------------------------------- */

static redis_known_t known;

static void head_of(char version, uint8_t head[REDIS_HEAD])
{
    memset(head, version, REDIS_HEAD);
}

/* A look at `time` that finds these: "a1 b2 c-": a in its version 1, c has left. */
static void look(uint64_t time, const char *found)
{
    redis_known_t now = {0};
    uint8_t head[REDIS_HEAD];
    char name[] = "s@?";
    for (; *found; found += found[2] ? 3 : 2) {
        head_of(found[1], head);
        name[2] = found[0];
        CHECK(wefti_redis_known_add(&now, name, 3, head, found[1] == '-' ? 0 : REDIS_HEAD));
    }
    CHECK(wefti_redis_known_turn(&known, &now, time));
}

/* Fetch what is to be fetched: how many. */
static int fetch(void)
{
    static uint8_t value[REDIS_HEAD + REG_BYTES_MAX];
    int n = 0;
    for (size_t i = 0; i < known.n; i++) {
        redis_seen_t *s = &known.at[i];
        reg_entry_t *e;
        weft_entry_t v = WEFT_ENTRY_INIT;
        if (s->fetched)
            continue;
        v.service = "s";
        v.address = "a";
        CHECK_OK(wefti_reg_entry_new(&v, s->name + 2, &e));
        memcpy(value, s->head, REDIS_HEAD);
        CHECK(wefti_redis_known_value(s, value, REDIS_HEAD + wefti_reg_entry_encode(e, value + REDIS_HEAD, REG_BYTES_MAX)));
        wefti_reg_entry_unref(e);
        n++;
    }
    return n;
}

static const char *tell(bool believed)
{
    static char text[64];
    size_t n = 0;
    reg_found_t *f = wefti_reg_found_new();
    CHECK_OK(wefti_redis_known_tell(&known, believed, f));
    for (size_t i = 0; i < f->n; i++)
        n += (size_t)sprintf(text + n, "%s", f->at[i]->instance);
    text[n] = 0;
    wefti_reg_found_unref(f);
    return text;
}

TEST(only_what_has_changed_is_fetched)
{
    look(WEFT_SECOND, "b1 a1 a1");
    CHECK_EQ(fetch(), 2);
    CHECK_STR(tell(true), "ab");
    look(2 * WEFT_SECOND, "a1 b2 c1");
    CHECK_EQ(fetch(), 2);
    CHECK_STR(tell(true), "abc");
    look(3 * WEFT_SECOND, "a1 b2 c1");
    CHECK_EQ(fetch(), 0);
    wefti_redis_known_free(&known);
}

TEST(what_vanishes_is_believed_for_a_while_and_what_leaves_is_not)
{
    look(1 * WEFT_SECOND, "a1 b1 c1");
    fetch();
    look(2 * WEFT_SECOND, "a1 b-");
    CHECK_STR(tell(true), "ac");
    CHECK_STR(tell(false), "a");
    look(3 * WEFT_SECOND, "a1");
    CHECK_STR(tell(true), "ac");
    look(4 * WEFT_SECOND, "a1 c1"); /* it is back, as it was */
    CHECK_EQ(fetch(), 0);
    CHECK_STR(tell(false), "ac");
    look(5 * WEFT_SECOND, "");
    CHECK_STR(tell(true), "ac");
    look(5 * WEFT_SECOND + REDIS_GRACE_NS - 1, "");
    CHECK_STR(tell(true), "ac");
    look(5 * WEFT_SECOND + REDIS_GRACE_NS, "");
    CHECK_STR(tell(true), "");
    CHECK_EQ(known.n, 0);
    /* who has not looked for long knows nothing of what was */
    look(20 * WEFT_SECOND, "a1");
    fetch();
    look(20 * WEFT_SECOND + REDIS_GRACE_NS, "b1");
    fetch();
    CHECK_STR(tell(true), "b");
    wefti_redis_known_free(&known);
}

TEST(strange_values_are_remembered_as_such)
{
    uint8_t bytes[REDIS_HEAD + REG_BYTES_MAX];
    redis_known_t now = {0};
    memset(bytes, 'x', sizeof bytes);
    CHECK(wefti_redis_known_add(&now, "", 0, bytes, REDIS_HEAD));
    CHECK(wefti_redis_known_add(&now, "s@\0x", 4, bytes, REDIS_HEAD));
    CHECK(wefti_redis_known_add(&now, "s@x", 3, bytes, REDIS_HEAD - 1));
    CHECK(wefti_redis_known_add(&now, (char *)bytes, REDIS_NAME_MAX + 1, bytes, REDIS_HEAD));
    CHECK_EQ(now.n, 0);
    look(WEFT_SECOND, "a1 b1");
    CHECK(wefti_redis_known_value(&known.at[0], bytes, sizeof bytes));
    CHECK(wefti_redis_known_value(&known.at[1], bytes, 5));
    CHECK_STR(tell(true), "");
    look(2 * WEFT_SECOND, "bx");
    CHECK_EQ(fetch(), 1); /* it has changed, and is an entry now */
    CHECK_STR(tell(true), "b");
    /* gone before it could be fetched */
    look(3 * WEFT_SECOND, "b2");
    CHECK(wefti_redis_known_value(&known.at[0], "", 0));
    CHECK_STR(tell(true), "");
    look(4 * WEFT_SECOND, "b2");
    CHECK_EQ(fetch(), 1);
    wefti_redis_known_free(&known);
}
