/* Durls: what is read, what is refused and with which words, and that everything that is read can be written and read again. */
#include <weft/element.h>

#include "test.h"

static weft_durl_t parse(const char *text)
{
    weft_durl_t d = WEFT_DURL_INIT;
    CHECK_OK(weft_durl_parse(text, &d));
    return d;
}

/* Refused, and the words have `word` in them. */
static void refused(const char *text, const char *word)
{
    weft_durl_t d, before;
    memset(&d, 0x5a, sizeof d);
    d.size = sizeof d;
    before = d;
    weft_status_t st = weft_durl_parse(text, &d);
    if (st != WEFT_ERR_INVALID)
        FAIL("\"%s\" is %s", text, weft_status_name(st));
    if (!strstr(weft_last_error(), word))
        FAIL("\"%s\": \"%s\" does not say \"%s\"", text, weft_last_error(), word);
    CHECK(!memcmp(&d, &before, sizeof d));
}

static void round_trip(const char *text, const char *expected)
{
    char out[WEFT_DURL_MAX + 1];
    size_t len = sizeof out;
    weft_durl_t d = parse(text);
    CHECK_OK(weft_durl_format(&d, out, &len));
    CHECK_STR(out, expected);
    CHECK_EQ(len, strlen(expected));
    weft_durl_t again = parse(out);
    CHECK(!memcmp(&d, &again, sizeof d));
}

TEST(a_durl_is_taken_apart)
{
    weft_durl_t d =
        parse("mem1@3;rdma_tcp;size,4096;url,tcp://10.0.0.1:80,tcp://[::1]:81;shm_id,a-b_c.9;peerinfo,a,b|c;token,00fFaB;"
              "timeout_ms,250;replicas,tcp://h:1|unix://@x,tcp://h:2;");
    CHECK_STR(d.name, "mem1@3");
    CHECK_EQ(d.impl, WEFT_IMPL_TCP);
    CHECK(!d.server);
    CHECK_EQ(d.bytes, 4096);
    CHECK_STR(d.url, "tcp://10.0.0.1:80,tcp://[::1]:81");
    CHECK_STR(d.shm_id, "a-b_c.9");
    CHECK_STR(d.peerinfo, "a,b|c");
    CHECK_EQ(d.region_key_len, 3);
    CHECK_EQ(d.region_key[1], 0xff);
    CHECK_EQ(d.timeout_ms, 250);
    CHECK_EQ(d.n_replicas, 2);
    CHECK_STR(d.replica[0], "tcp://h:1");
    CHECK_STR(d.replica[1], "unix://@x,tcp://h:2");
    d = parse("m;rdma_local;");
    CHECK(!d.bytes && !*d.url && !d.region_key_len && !d.timeout_ms && !d.n_replicas);
}

TEST(every_impl_is_known_and_has_its_name)
{
    static const struct {
        const char *text;
        weft_impl_t impl;
        bool server;
    } all[] = {
        {"rdma_local", WEFT_IMPL_LOCAL, false},
        {"rdma_local_server", WEFT_IMPL_LOCAL, true},
        {"rdma_shared", WEFT_IMPL_SHARED, false},
        {"rdma_shared_server", WEFT_IMPL_SHARED, true},
        {"rdma_tcp", WEFT_IMPL_TCP, false},
        {"rdma_tcp_server", WEFT_IMPL_TCP, true},
        {"rdma_uverbs", WEFT_IMPL_UVERBS, false},
        {"rdma_uverbs_server", WEFT_IMPL_UVERBS, true},
        {"rdma_uverbs_proxy", WEFT_IMPL_UVERBS_PROXY, false},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char text[64];
        snprintf(text, sizeof text, "m;%s;", all[i].text);
        weft_durl_t d = parse(text);
        CHECK_EQ(d.impl, all[i].impl);
        CHECK_EQ(d.server, all[i].server);
        CHECK_STR(weft_impl_name(d.impl, d.server), all[i].text);
    }
    CHECK_STR(weft_impl_name(WEFT_IMPL_UVERBS_PROXY, true), "?");
    CHECK_STR(weft_impl_name((weft_impl_t)0, false), "?");
    CHECK_STR(weft_impl_name((weft_impl_t)6, true), "?");
}

TEST(what_people_leave_out_is_taken_as_it_is_meant)
{
    round_trip("m;rdma_tcp", "m;rdma_tcp;");
    round_trip("m;rdma_tcp;size,64k", "m;rdma_tcp;size,65536;");
    round_trip("m;rdma_tcp;url,;size,;token,;replicas,;timeout_ms,;", "m;rdma_tcp;");
    round_trip("m\xc3\xbc;rdma_uverbs_server;size,1G;", "m\xc3\xbc;rdma_uverbs_server;size,1073741824;");
    round_trip("m;rdma_tcp;replicas,tcp://a:1|tcp://b:2|tcp://c:3;token,00;",
               "m;rdma_tcp;token,00;replicas,tcp://a:1|tcp://b:2|tcp://c:3;");
}

TEST(a_server_may_listen_on_every_address_as_scad_writes_it)
{
    weft_durl_t d = WEFT_DURL_INIT;
    char text[2048];
    CHECK_OK(weft_durl_parse("mem;rdma_tcp_server;url,tcp://*:2333;size,64;", &d));
    CHECK_STR(d.url, "tcp://0.0.0.0:2333");
    CHECK_EQ(weft_durl_parse("mem;rdma_tcp;url,tcp://*:2333;", &d), WEFT_ERR_INVALID); /* nobody connects to all of them */
    CHECK_EQ(weft_durl_parse("mem;rdma_tcp_server;url,tcp://*;", &d), WEFT_ERR_INVALID);
    CHECK_EQ(weft_durl_parse("mem;rdma_tcp_server;url,tcp://*:;", &d), WEFT_ERR_INVALID);
    int n = snprintf(text, sizeof text, "mem;rdma_tcp_server;url,tcp://*:1,");
    memset(text + n, 'x', 1000);
    text[n + 1000] = 0;
    CHECK_EQ(weft_durl_parse(text, &d), WEFT_ERR_INVALID);
}

TEST(what_makes_no_sense_is_refused_with_the_part_that_does_not)
{
    char long_text[WEFT_DURL_MAX + 100];
    weft_durl_t d = WEFT_DURL_INIT;
    CHECK_EQ(weft_durl_parse(NULL, &d), WEFT_ERR_INVALID);
    CHECK_EQ(weft_durl_parse("m;rdma_tcp;", NULL), WEFT_ERR_INVALID);
    d.size = 0;
    CHECK_EQ(weft_durl_parse("m;rdma_tcp;", &d), WEFT_ERR_INVALID);
    refused("", "no IMPL");
    refused("m", "no IMPL");
    refused(";", "no name");
    refused(";rdma_tcp;", "no name");
    refused("m;", "none of rdma_local");
    refused("m;rdma;", "none of rdma_local");
    refused("m;rdma_uverbs_proxy_server;", "none of rdma_local");
    refused("m;RDMA_TCP;", "none of rdma_local");
    refused("m;rdma_tcp;size", "KEY,VALUE");
    refused("m;rdma_tcp;;size,1;", "KEY,VALUE");
    refused("m;rdma_tcp;sise,1;", "did you mean \"size\"");
    refused("m;rdma_tcp;wholly unknown,1;", "no key");
    refused("m;rdma_tcp;,1;", "no key");
    refused("m;rdma_tcp;size,1;size,1;", "size twice");
    refused("m;rdma_tcp;url,;url,tcp://a:1;", "url twice");
    refused("m;rdma_tcp;size,-1;", "-1");
    refused("m;rdma_tcp;size,1x;", "1x");
    refused("m;rdma_tcp;size,18446744073709551616;", "large");
    refused("m;rdma_tcp;size,1111111111111111111111111111111111111111111;", "size has 43 bytes");
    refused("m;rdma_tcp;timeout_ms,4294967296;", "4294967296");
    refused("m;rdma_tcp;url,http://x;", "http");
    refused("m;rdma_tcp;url,tcp://x:99999;", "99999");
    refused("m;rdma_tcp;url,tcp://x:1,;", "comma");
    refused("m;rdma_tcp;shm_id,../x;", "shm_id");
    refused("m;rdma_tcp;token,abc;", "token");
    refused("m;rdma_tcp;token,zz;", "hexadecimal");
    refused("m;rdma_tcp;replicas,tcp://a:1|;", "empty");
    refused("m;rdma_tcp;replicas,tcp://a:1|tcp://a:1;", "twice");
    refused("m;rdma_tcp;replicas,tcp://a:1|tcp://a:2|tcp://a:3|tcp://a:4;", "more than 3");
    refused("m\n;rdma_tcp;", "one line");
    refused("m\x1b[31m;rdma_tcp;", "one line");
    refused("m\xff;rdma_tcp;", "UTF-8");
    memset(long_text, 'a', sizeof long_text);
    long_text[sizeof long_text - 1] = 0;
    refused(long_text, "at most");
    memcpy(long_text + 128, ";rdma_tcp;", 11);
    refused(long_text, "name has 128 bytes");
    memcpy(long_text, "m;rdma_tcp;peerinfo,", 20);
    memset(long_text + 20, 'a', 512);
    long_text[532] = 0;
    refused(long_text, "peerinfo has 512 bytes");
    memcpy(long_text, "m;rdma_tcp;token,", 17);
    memset(long_text + 17, '0', 2050);
    long_text[17 + 2050] = 0;
    refused(long_text, "token is at most");
}

TEST(secrets_are_in_no_message)
{
    weft_durl_t d = WEFT_DURL_INIT;
    CHECK_EQ(weft_durl_parse("m;rdma_tcp;token,5ec4e75ec4e7g;", &d), WEFT_ERR_INVALID);
    CHECK(!strstr(weft_last_error(), "5ec4e7"));
    CHECK_EQ(weft_durl_parse("m;rdma_tcp;token,5ec4e75ec4e7g0;", &d), WEFT_ERR_INVALID);
    CHECK(!strstr(weft_last_error(), "5ec4e7"));
    CHECK_EQ(weft_durl_parse("m;rdma_tcp;token,5ec4e7;token,5ec4e7;", &d), WEFT_ERR_INVALID);
    CHECK(!strstr(weft_last_error(), "5ec4e7"));
    /* where something else belongs */
    CHECK_EQ(weft_durl_parse("m;token,5ec4e75ec4e7;", &d), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "\"token\"") && !strstr(weft_last_error(), "5ec4e7"));
    CHECK_EQ(weft_durl_parse("token,5ec4e75ec4e7", &d), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "\"token\"") && !strstr(weft_last_error(), "5ec4e7"));
    CHECK_EQ(weft_durl_parse("m;rdma_tcp;0123456789ab5ec4e7", &d), WEFT_ERR_INVALID);
    CHECK(!strstr(weft_last_error(), "5ec4e7"));
    CHECK_EQ(weft_durl_parse("0123456789ab5ec4e7", &d), WEFT_ERR_INVALID);
    CHECK(!strstr(weft_last_error(), "5ec4e7"));
}

TEST(a_durl_that_could_not_be_read_back_is_not_written)
{
    char out[WEFT_DURL_MAX + 1];
    size_t len = sizeof out;
    weft_durl_t good = parse("m;rdma_tcp;url,tcp://a:1;"), d = good;
    CHECK_OK(weft_durl_format(&d, NULL, &len));
    CHECK_EQ(len, strlen("m;rdma_tcp;url,tcp://a:1;"));
    len = 5;
    out[0] = 'x';
    CHECK_EQ(weft_durl_format(&d, out, &len), WEFT_ERR_LIMIT);
    CHECK_EQ(len, strlen("m;rdma_tcp;url,tcp://a:1;"));
    CHECK_EQ(out[0], 'x');
    CHECK_EQ(weft_durl_format(&d, out, &len), WEFT_ERR_LIMIT); /* no room for the terminator */
    len++;
    CHECK_OK(weft_durl_format(&d, out, &len));
    CHECK_STR(out, "m;rdma_tcp;url,tcp://a:1;");
    CHECK_EQ(weft_durl_format(NULL, out, &len), WEFT_ERR_INVALID);
    CHECK_EQ(weft_durl_format(&d, out, NULL), WEFT_ERR_INVALID);
    len = sizeof out;
#define BAD(change) \
    do { \
        d = good; \
        change; \
        CHECK_EQ(weft_durl_format(&d, out, &len), WEFT_ERR_INVALID); \
    } while (0)
    BAD(d.name[0] = 0);
    BAD(memcpy(d.name, "a;b", 4));
    BAD(memset(d.name, 'a', sizeof d.name));
    BAD(d.impl = (weft_impl_t)77);
    BAD(d.impl = WEFT_IMPL_UVERBS_PROXY; d.server = true);
    BAD(memcpy(d.url, "tcp://a:1;size,9", 17));
    BAD(memcpy(d.peerinfo, "a;size,9", 9));
    BAD(memcpy(d.peerinfo, "a\nb", 4));
    BAD(d.region_key_len = sizeof d.region_key + 1);
    BAD(d.timeout_ms = UINT64_MAX);
    BAD(d.bytes = UINT64_MAX);
    BAD(d.n_replicas = 4);
    BAD(d.n_replicas = 2; memcpy(d.replica[0], "tcp://a:1", 10));
    BAD(d.n_replicas = 1; memcpy(d.replica[0], "tcp://a:1|tcp://a:2", 20));
    BAD(memset(d.url, 'a', sizeof d.url));
#undef BAD
}

TEST(a_program_that_knows_a_shorter_struct_is_served)
{
    union {
        weft_durl_t d;
        char bytes[sizeof(weft_durl_t)];
    } u;
    size_t known = offsetof(weft_durl_t, url);
    memset(&u, 0x5a, sizeof u);
    u.d.size = known;
    CHECK_OK(weft_durl_parse("m;rdma_tcp;size,7;url,tcp://a:1;", &u.d));
    CHECK_EQ(u.d.bytes, 7);
    CHECK_EQ(u.d.size, known);
    for (size_t i = known; i < sizeof u; i++)
        CHECK_EQ(u.bytes[i], 0x5a);
    char out[100];
    size_t len = sizeof out;
    CHECK_OK(weft_durl_format(&u.d, out, &len));
    CHECK_STR(out, "m;rdma_tcp;size,7;");
}
