/* tests/unit/base_uri.c - addresses: what is accepted, what is refused and with which words, and that text comes back. */
#include "base/uri.h"

#include "../test.h"
#include "base/rng.h"

static weft_status_t parse_one(const char *text, wefti_uri_t *uri)
{
    const char *at = text;
    weft_status_t st = wefti_uri_parse(&at, uri);
    if (!st)
        CHECK_STR(at, "");
    else
        CHECK(at == text);
    return st;
}

static void check_good(const char *text, wefti_uri_scheme_t scheme, const char *host, unsigned port, const char *canonical)
{
    wefti_uri_t uri;
    char back[300];
    CHECK_OK(parse_one(text, &uri));
    CHECK_EQ(uri.scheme, scheme);
    CHECK_STR(uri.host, host);
    CHECK_EQ(uri.port, port);
    size_t n = wefti_uri_format(&uri, back, sizeof back);
    CHECK_STR(back, canonical);
    CHECK_EQ(n, strlen(canonical));
}

static void check_bad(const char *text, const char *words)
{
    wefti_uri_t uri, before;
    memset(&uri, 0x5a, sizeof uri);
    before = uri;
    if (parse_one(text, &uri) != WEFT_ERR_INVALID)
        FAIL("\"%s\" was accepted", text);
    if (strcmp(weft_last_error(), words))
        FAIL("\"%s\": the error is\n    %s\nnot\n    %s", text, weft_last_error(), words);
    CHECK(!memcmp(&uri, &before, sizeof uri));
}

TEST(tcp_addresses_are_host_and_port)
{
    check_good("tcp://127.0.0.1:13337", WEFTI_URI_TCP, "127.0.0.1", 13337, "tcp://127.0.0.1:13337");
    check_good("tcp://0.0.0.0:0", WEFTI_URI_TCP, "0.0.0.0", 0, "tcp://0.0.0.0:0");
    check_good("tcp://node-7.cluster.example:65535", WEFTI_URI_TCP, "node-7.cluster.example", 65535,
               "tcp://node-7.cluster.example:65535");
    check_good("tcp://localhost.:1", WEFTI_URI_TCP, "localhost.", 1, "tcp://localhost.:1");
    check_good("tcp://eth0:0", WEFTI_URI_TCP, "eth0", 0, "tcp://eth0:0");
    check_good("tcp://eth0.100:0", WEFTI_URI_TCP, "eth0.100", 0, "tcp://eth0.100:0");
    check_good("TCP://a_b:00080", WEFTI_URI_TCP, "a_b", 80, "tcp://a_b:80");
}

TEST(ipv6_addresses_are_written_in_brackets)
{
    check_good("tcp://[::1]:9", WEFTI_URI_TCP, "::1", 9, "tcp://[::1]:9");
    check_good("tcp://[2001:db8::1]:0", WEFTI_URI_TCP, "2001:db8::1", 0, "tcp://[2001:db8::1]:0");
    check_good("tcp://[::ffff:192.0.2.7]:5", WEFTI_URI_TCP, "::ffff:192.0.2.7", 5, "tcp://[::ffff:192.0.2.7]:5");
    check_good("tcp://[fe80::1%eth0]:5", WEFTI_URI_TCP, "fe80::1%eth0", 5, "tcp://[fe80::1%eth0]:5");
}

TEST(unix_addresses_are_a_path_or_an_at_and_a_name)
{
    check_good("unix:///run/weft.sock", WEFTI_URI_UNIX, "/run/weft.sock", 0, "unix:///run/weft.sock");
    check_good("tls://Host.example:7", WEFTI_URI_TLS, "Host.example", 7, "tls://Host.example:7");
    check_good("TLS://[::1]:0", WEFTI_URI_TLS, "::1", 0, "tls://[::1]:0");
    check_good("unix://@weft", WEFTI_URI_UNIX, "@weft", 0, "unix://@weft");
    check_good("Unix:///tmp/with blank:and[brackets]", WEFTI_URI_UNIX, "/tmp/with blank:and[brackets]", 0,
               "unix:///tmp/with blank:and[brackets]");
    char text[200] = "unix:///";
    memset(text + 8, 'x', 106);
    check_good(text, WEFTI_URI_UNIX, text + 7, 0, text); /* 107 bytes: as long as one may be */
}

TEST(a_list_is_parsed_one_by_one_and_ends_with_an_empty_text)
{
    const char *at = "tcp://a:1,unix://@b,tcp://[::1]:2";
    wefti_uri_t uri;
    CHECK_OK(wefti_uri_parse(&at, &uri));
    CHECK_STR(uri.host, "a");
    CHECK_STR(at, "unix://@b,tcp://[::1]:2");
    CHECK_OK(wefti_uri_parse(&at, &uri));
    CHECK_STR(uri.host, "@b");
    CHECK_OK(wefti_uri_parse(&at, &uri));
    CHECK_STR(uri.host, "::1");
    CHECK_STR(at, "");
    CHECK_EQ(wefti_uri_parse(&at, &uri), WEFT_ERR_INVALID);
}

TEST(a_list_with_a_hole_is_refused)
{
    check_bad("", "the address is empty");
    check_bad(",tcp://a:1", "there is nothing before the comma in \",tcp://a:1\"");
    check_bad("tcp://a:1,", "there is nothing after the comma in \"tcp://a:1,\"");
    const char *null = NULL;
    wefti_uri_t uri;
    CHECK_EQ(wefti_uri_parse(&null, &uri), WEFT_ERR_INVALID);
    CHECK_STR(weft_last_error(), "the address is NULL");
}

TEST(a_bad_scheme_is_named)
{
    check_bad("http://a:1", "scheme \"http\" is not tcp, tls or unix");
    check_bad("://a:1", "scheme \"\" is not tcp, tls or unix");
    check_bad("localhost:1", "\"localhost:1\" has no scheme: tcp://, tls:// or unix://");
    check_bad("tcp:/a:1", "\"tcp:/a:1\" has no scheme: tcp://, tls:// or unix://");
    check_bad(" tcp://a:1", "scheme \" tcp\" is not tcp, tls or unix");
}

TEST(a_bad_port_is_named)
{
    check_bad("tcp://a:99999", "port \"99999\" is not between 0 and 65535");
    check_bad("tcp://a:65536", "port \"65536\" is not between 0 and 65535");
    check_bad("tcp://a:000001", "port \"000001\" is not between 0 and 65535");
    check_bad("tcp://a:18446744073709551617", "port \"18446744073709551617\" is not between 0 and 65535");
    check_bad("tcp://a:-1", "port \"-1\" is not between 0 and 65535");
    check_bad("tcp://a:+1", "port \"+1\" is not between 0 and 65535");
    check_bad("tcp://a:", "port \"\" is not between 0 and 65535");
    check_bad("tcp://a:80/x", "port \"80/x\" is not between 0 and 65535");
    check_bad("tcp://a:80 ", "port \"80 \" is not between 0 and 65535");
    check_bad("tcp://a:x", "port \"x\" is not between 0 and 65535");
    check_bad("tcp://a", "tcp://a has no port; add a port: tcp://a:13337, or port 0 for a server to pick one");
    check_bad("tcp://[::1]", "tcp://[::1] has no port; add a port: tcp://[::1]:13337, or port 0 for a server to pick one");
    check_bad("TCP://10.0.0.1,tcp://b:1",
              "tcp://10.0.0.1 has no port; add a port: tcp://10.0.0.1:13337, or port 0 for a server to pick one");
    check_bad("tcp://[::1]80", "\"80\" after the closing bracket is not \":\" and a port");
}

TEST(a_bad_host_is_named)
{
    check_bad("tcp://:1", "the host is empty: name an address, a host name or a device");
    check_bad("tcp://::1:80", "host \"::1\" has colons: an IPv6 address is written in brackets, as [::1]");
    check_bad("tcp://[::1:80", "host \"[::1:80\" has no closing bracket");
    check_bad("tcp://[]:80", "\"\" in brackets is not an IPv6 address");
    check_bad("tcp://[1.2.3.4]:80", "\"1.2.3.4\" in brackets is not an IPv6 address");
    check_bad("tcp://[::g]:80", "\"::g\" in brackets is not an IPv6 address");
    check_bad("tcp://[fe80::1%]:80", "zone \"\" of an IPv6 address is not a device name");
    check_bad("tcp://[fe80::1%a b]:80", "zone \"a b\" of an IPv6 address is not a device name");
    check_bad("tcp://[fe80::1%abcdefghijklmnop]:80", "zone \"abcdefghijklmnop\" of an IPv6 address is not a device name");
    check_bad("tcp://999.1.1.1:80", "host \"999.1.1.1\" is not an IPv4 address");
    check_bad("tcp://1.2.3:80", "host \"1.2.3\" is not an IPv4 address");
    check_bad("tcp://a..b:80", "host \"a..b\" has a dot with nothing before it");
    check_bad("tcp://.a:80", "host \".a\" has a dot with nothing before it");
    check_bad("tcp://me@a:80", "host \"me@a\" has a character that no host or device name has: \"@\"");
    check_bad("tcp://a\nb:80", "host \"a?b\" has a character that no host or device name has: \"?\"");
    char text[400] = "tcp://";
    memset(text + 6, 'h', 254);
    strcpy(text + 6 + 254, ":1");
    wefti_uri_t uri;
    CHECK_EQ(parse_one(text, &uri), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "has 254 characters; a name has at most 253"));
    strcpy(text + 6 + 253, ":1");
    CHECK_OK(parse_one(text, &uri));
}

TEST(a_bad_path_is_named)
{
    check_bad("unix://", "\"\" is neither an absolute path nor \"@\" and a name");
    check_bad("unix://relative", "\"relative\" is neither an absolute path nor \"@\" and a name");
    check_bad("unix://@", "path \"@\" does not end in a name");
    check_bad("unix:///", "path \"/\" does not end in a name");
    check_bad("unix:///tmp/", "path \"/tmp/\" does not end in a name");
    check_bad("unix:///a\tb", "path \"/a?b\" has a control character (0x09)");
    char text[200] = "unix://@";
    memset(text + 8, 'x', 107);
    wefti_uri_t uri;
    CHECK_EQ(parse_one(text, &uri), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "has 108 bytes; a Unix socket's has at most 107"));
}

TEST(formatting_into_too_little_room_is_cut_and_says_how_much_it_needs)
{
    wefti_uri_t uri;
    char buf[9];
    CHECK_OK(parse_one("tcp://[::1]:12345", &uri));
    CHECK_EQ(wefti_uri_format(&uri, buf, sizeof buf), strlen("tcp://[::1]:12345"));
    CHECK_STR(buf, "tcp://[:");
    CHECK_EQ(wefti_uri_format(&uri, buf, 1), strlen("tcp://[::1]:12345"));
    CHECK_STR(buf, "");
    CHECK_EQ(wefti_uri_format(&uri, NULL, 0), strlen("tcp://[::1]:12345"));
}

TEST(random_texts_of_address_characters_are_refused_or_come_back)
{
    static const char letters[] = "tcp://unix:@[]a1.0,:-%/";
    wefti_rng_t rng = {11};
    unsigned accepted = 0;
    for (int i = 0; i < 200000; i++) {
        char text[64], back[300];
        size_t n = (size_t)wefti_rng_below(&rng, 24);
        strcpy(text, wefti_rng_below(&rng, 2) ? "tcp://" : "unix://");
        size_t head = strlen(text);
        for (size_t k = 0; k < n; k++)
            text[head + k] = letters[wefti_rng_below(&rng, sizeof letters - 1)];
        text[head + n] = '\0';
        const char *at = text;
        wefti_uri_t uri, again;
        while (*at && !wefti_uri_parse(&at, &uri)) {
            CHECK(wefti_uri_format(&uri, back, sizeof back) < sizeof back);
            CHECK_OK(parse_one(back, &again));
            CHECK(!memcmp(&uri, &again, sizeof uri));
            accepted++;
        }
    }
    CHECK(accepted > 1000); /* the generator does reach the good ones */
}

TEST(a_service_and_an_instance_of_it)
{
    wefti_uri_service_t uri;
    CHECK(wefti_uri_is_service("weft://calc") && wefti_uri_is_service("WEFT://") && !wefti_uri_is_service("weft:/") &&
          !wefti_uri_is_service("tcp://a:1") && !wefti_uri_is_service("") && !wefti_uri_is_service(NULL));
    CHECK_OK(wefti_uri_parse_service("weft://calc", &uri));
    CHECK_STR(uri.service, "calc");
    CHECK_STR(uri.instance, "");
    CHECK_OK(wefti_uri_parse_service("Weft://calc.v2_a-b@mill-3", &uri));
    CHECK_STR(uri.service, "calc.v2_a-b");
    CHECK_STR(uri.instance, "mill-3");
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"weft://", "the service in"},
        {"weft://@a", "the service in"},
        {"weft://calc@", "the instance in"},
        {"weft://ca lc", "no letter"},
        {"weft://calc@a@b", "the instance \"a@b\""},
        {"weft://calc,more", "no letter"},
        {"weft://calc/add", "connect to weft://calc and ask for the method \"add\""},
        {"weft://calc@mill-3/add", "connect to weft://calc@mill-3 and ask for the method \"add\""},
        {"weft://0123456789012345678901234567890123456789012345678901234567890123", "has 64 characters"},
        {"tcp://calc", "does not begin with weft://"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(wefti_uri_parse_service(bad[i].text, &uri), WEFT_ERR_INVALID);
        CHECK(strstr(weft_last_error(), bad[i].says));
        CHECK_STR(uri.instance, "mill-3"); /* untouched */
    }
}

TEST(a_password_is_not_shown)
{
    static const char *const all[][2] = {
        {"redis://:sesame@host:1/2", "redis://:***@host:1/2"},
        {"redis://me:se:sa@me@host", "redis://me:***@host"},
        {"redis+unix://:s/e@/run/a", "redis+unix://:***@/run/a"},
        {"redis://me@host:1", "redis://me@host:1"},
        {"redis://host:1", "redis://host:1"},
        {"dir:///a:b@c", "dir:///a:b@c"},
        {"@:", "@:"},
        {"://", "://"},
        {"x://:@", "x://:***@"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        char buf[64];
        wefti_uri_hide(all[i][0], buf, strlen(all[i][0]) + 4);
        CHECK_STR(buf, all[i][1]);
    }
}
