/* What etcd's replies say, and what is asked of it. */
#include <sodium.h>

#include "registry/etcd.h"
#include "test.h"

typedef struct told {
    unsigned n, entries, named;
    char last[2 * REG_NAME_MAX + 2];
    int64_t revision;
    weft_status_t answer;
} told_t;

static weft_status_t tell(const etcd_kv_t *kv, void *user)
{
    told_t *t = (told_t *)user;
    t->n++;
    t->entries += kv->entry != NULL;
    t->named += kv->service != NULL;
    if (kv->service)
        snprintf(t->last, sizeof t->last, "%s@%s", kv->service, kv->instance);
    t->revision = kv->revision;
    return t->answer;
}

static weft_status_t ask(const char *text, told_t *t, etcd_reply_t *r)
{
    size_t n = strlen(text);
    char *copy = malloc(n ? n : 1);
    CHECK(copy);
    memcpy(copy, text, n);
    weft_status_t answer = t->answer;
    memset(t, 0, sizeof *t);
    t->answer = answer;
    weft_status_t st = wefti_etcd_read(copy, n, tell, t, r);
    free(copy);
    return st;
}

/* The value of an entry, in base64. */
static void value_of(const char *service, const char *instance, char *text, size_t cap)
{
    uint8_t *bytes = malloc(REG_BYTES_MAX);
    weft_entry_t e = WEFT_ENTRY_INIT;
    reg_entry_t *entry;
    CHECK(bytes);
    e.service = service;
    e.address = "tcp://127.0.0.1:1";
    CHECK_OK(wefti_reg_entry_new(&e, instance, &entry));
    sodium_bin2base64(text, cap, bytes, wefti_reg_entry_encode(entry, bytes, REG_BYTES_MAX), sodium_base64_VARIANT_ORIGINAL);
    wefti_reg_entry_unref(entry);
    free(bytes);
}

TEST(replies_of_every_kind_are_read)
{
    told_t t = {0};
    etcd_reply_t r;
    char value[256], text[1024];
    CHECK_OK(
        ask("{\"header\":{\"cluster_id\":\"3\",\"revision\":\"12\",\"raft_term\":\"2\"},\"ID\":\"23\",\"TTL\":\"10\"}", &t, &r));
    CHECK(r.revision == 12 && r.id == 23 && r.ttl == 10 && !t.n && !r.failed);
    CHECK_OK(ask("{\"result\":{\"header\":{\"revision\":\"1\"},\"ID\":\"9\"}}\n", &t, &r));
    CHECK(r.id == 9 && r.ttl == 0);
    CHECK_OK(ask("{\"error\":\"lease\",\"message\":\"no\\nlease\\u001b\",\"code\":5}", &t, &r));
    CHECK(r.failed && r.code == 5);
    CHECK_STR(r.message, "no?lease?");
    value_of("s", "x", value, sizeof value);
    snprintf(
        text, sizeof text,
        "{\"header\":{\"revision\":\"4\"},\"more\":true,\"kvs\":[{\"key\":\"L3dlZnQvcy94\",\"value\":\"%s\",\"lease\":\"77\","
        "\"mod_revision\":\"3\",\"create_revision\":\"2\",\"version\":\"2\"}],\"count\":\"5\"}",
        value);
    CHECK_OK(ask(text, &t, &r));
    CHECK(r.more && t.n == 1 && t.entries == 1 && t.revision == 3 && r.lease == 77 && r.keys == 1);
    CHECK_STR(t.last, "s@x");
    CHECK_EQ(r.start_len, 10);
    CHECK(!memcmp(r.start, "/weft/s/x", 10)); /* and a zero: the first key behind it */
    snprintf(text, sizeof text, "{\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"L3dlZnQvcy94\",\"lease\":\"8\"}]}}]}");
    CHECK_OK(ask(text, &t, &r));
    CHECK(!r.succeeded && t.n == 1 && !t.entries && r.lease == 8);
    CHECK_OK(ask("{\"succeeded\":true,\"responses\":[{\"response_put\":{\"header\":{\"revision\":\"2\"}}}]}", &t, &r));
    CHECK(r.succeeded && !t.n);
    /* of an event the type may follow what it is about */
    snprintf(text, sizeof text,
             "{\"result\":{\"events\":[{\"kv\":{\"key\":\"L3dlZnQvcy94\",\"value\":\"%s\",\"mod_revision\":\"6\"}},"
             "{\"kv\":{\"key\":\"L3dlZnQvcy94\",\"value\":\"%s\",\"mod_revision\":\"7\"},\"type\":\"DELETE\"}]}}",
             value, value);
    CHECK_OK(ask(text, &t, &r));
    CHECK(t.n == 2 && t.entries == 1 && t.revision == 7);
    CHECK_OK(ask("{\"result\":{\"canceled\":true,\"compact_revision\":\"3\"}}", &t, &r));
    CHECK(r.canceled && r.compacted == 3);
    CHECK_OK(ask("{\"ID\":\"1\",\"TTL\":\"4\",\"grantedTTL\":\"5\",\"keys\":[\"L3dlZnQvcy94\",\"L3dlZnQvcy95\"]}", &t, &r));
    CHECK(r.keys == 2 && t.n == 2);
    CHECK_STR(t.last, "s@y");
}

TEST(keys_and_values_that_are_none_of_ours_are_told_without_names_or_without_entries)
{
    static const struct {
        const char *key;
        bool named;
    } all[] = {
        {"/weft/s/x", true},    {"/weft/s", false},    {"/weft/", false},     {"/weft/s/", false}, {"/weft//x", false},
        {"/weft/s/x/y", false}, {"/weft/s/x ", false}, {"/wefts/x/y", false}, {"", false},         {"x", false},
    };
    told_t t = {0};
    etcd_reply_t r;
    char text[2048], key[1400], value[256];
    value_of("s", "x", value, sizeof value);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        sodium_bin2base64(key, sizeof key, (const unsigned char *)all[i].key, strlen(all[i].key), sodium_base64_VARIANT_ORIGINAL);
        snprintf(text, sizeof text, "{\"kvs\":[{\"key\":\"%s\",\"value\":\"%s\"}]}", key, value);
        CHECK_OK(ask(text, &t, &r));
        if (t.n != 1 || t.named != all[i].named || t.entries != all[i].named)
            FAIL("\"%s\" was taken for what it is not", all[i].key);
    }
    /* the entry of another key, no entry, no base64, half of it */
    const char *values[] = {"", "AAAA", "####", "d2VmdHJlZzE=", "d2VmdHJlZzE"};
    value_of("s", "y", value, sizeof value);
    for (size_t i = 0; i < sizeof values / sizeof *values + 1; i++) {
        snprintf(text, sizeof text, "{\"kvs\":[{\"key\":\"L3dlZnQvcy94\",\"value\":\"%s\"}]}", i ? values[i - 1] : value);
        CHECK_OK(ask(text, &t, &r));
        CHECK(t.named == 1 && !t.entries);
    }
    /* keys that are long: the next page begins behind all that begin like them */
    unsigned char longest[1000];
    memset(longest, 'k', sizeof longest);
    memset(longest + 190, 0xff, 20);
    sodium_bin2base64(key, sizeof key, longest, sizeof longest, sodium_base64_VARIANT_ORIGINAL);
    snprintf(text, sizeof text, "{\"kvs\":[{\"key\":\"%s\"}]}", key);
    CHECK_OK(ask(text, &t, &r));
    CHECK(t.n == 1 && !t.named);
    CHECK_EQ(r.start_len, 190);
    CHECK(!memcmp(r.start, longest, 189) && r.start[189] == 'l');
}

TEST(what_is_no_reply_is_refused)
{
    const char *wrong[] = {"",
                           "[]",
                           "x",
                           "{",
                           "{}{}",
                           "{\"kvs\":{}}",
                           "{\"kvs\":[1]}",
                           "{\"ID\":\"x\"}",
                           "{\"ID\":1.5}",
                           "{\"TTL\":[]}",
                           "{\"header\":[]}",
                           "{\"header\":{\"revision\":\"99999999999999999999\"}}",
                           "{\"more\":1}",
                           "{\"result\":7}",
                           "{\"events\":[{\"kv\":[]}]}",
                           "{\"events\":[{\"type\":1}]}",
                           "{\"keys\":[1]}",
                           "{\"kvs\":[{\"key\":7}]}",
                           "{\"responses\":[[]]}"};
    told_t t = {0};
    etcd_reply_t r;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (ask(wrong[i], &t, &r) != WEFT_ERR_PROTOCOL)
            FAIL("%s was taken", wrong[i]);
    char deep[20 * 40 + 1] = "";
    for (int i = 0; i < 40; i++)
        strcat(deep, "{\"result\":");
    CHECK_EQ(ask(deep, &t, &r), WEFT_ERR_PROTOCOL);
    /* whoever is told may say stop */
    t.answer = WEFT_ERR_LIMIT;
    CHECK_EQ(ask("{\"keys\":[\"L3dlZnQvcy94\",\"L3dlZnQvcy95\"]}", &t, &r), WEFT_ERR_LIMIT);
    CHECK_EQ(t.n, 1);
}

TEST(requests_are_as_etcd_has_them)
{
    static char body[ETCD_BODY_MAX];
    weft_entry_t e = WEFT_ENTRY_INIT;
    reg_entry_t *entry;
    char value[256], expected[1024];
    wefti_etcd_grant(body, 10);
    CHECK_STR(body, "{\"TTL\":\"10\"}");
    wefti_etcd_lease(body, 12, false);
    CHECK_STR(body, "{\"ID\":\"12\"}");
    wefti_etcd_lease(body, 12, true);
    CHECK_STR(body, "{\"ID\":\"12\",\"keys\":true}");
    wefti_etcd_range(body, "/weft/", 6, 5, 0);
    CHECK_STR(body, "{\"key\":\"L3dlZnQv\",\"range_end\":\"L3dlZnQw\",\"limit\":\"5\",\"revision\":\"0\"}");
    wefti_etcd_watch(body, 8);
    CHECK_STR(body, "{\"create_request\":{\"key\":\"L3dlZnQv\",\"range_end\":\"L3dlZnQw\",\"start_revision\":\"8\"}}");
    e.service = "s";
    e.address = "tcp://127.0.0.1:1";
    CHECK_OK(wefti_reg_entry_new(&e, "x", &entry));
    value_of("s", "x", value, sizeof value);
    CHECK_EQ(wefti_etcd_put(body, entry, 3, false), strlen(body));
    snprintf(expected, sizeof expected,
             "{\"compare\":[{\"key\":\"L3dlZnQvcy94\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"}],"
             "\"success\":[{\"request_put\":{\"key\":\"L3dlZnQvcy94\",\"value\":\"%s\",\"lease\":\"3\"}}],"
             "\"failure\":[{\"request_range\":{\"key\":\"L3dlZnQvcy94\"}}]}",
             value);
    CHECK_STR(body, expected);
    wefti_etcd_put(body, entry, 3, true);
    CHECK(strstr(body, "{\"key\":\"L3dlZnQvcy94\",\"target\":\"LEASE\",\"result\":\"EQUAL\",\"lease\":\"3\"}") != NULL);
    wefti_etcd_delete(body, "s", "x", 3);
    CHECK_STR(body, "{\"compare\":[{\"key\":\"L3dlZnQvcy94\",\"target\":\"LEASE\",\"result\":\"EQUAL\",\"lease\":\"3\"}],"
                    "\"success\":[{\"request_delete_range\":{\"key\":\"L3dlZnQvcy94\"}}]}");
    wefti_reg_entry_unref(entry);
}
