/* tests/unit/conn_rules.c - conn/rules.h: who may do what by a text, which line says so, and which texts are none. */
#include "base/keys.h"
#include "conn/rules.h"

#include <string.h>

#include "test.h"

static wefti_policy_t *parse(const char *text)
{
    wefti_policy_t *p;
    CHECK_OK(wefti_policy_parse(text, strlen(text), &p));
    return p;
}

static const char rules[] = "# who            may            what\n"
                            "allow  ops-*     all\n"
                            "deny   old-key   connect\n"
                            "allow  *         connect       # everybody else\n"
                            "allow  web       call           calc.*\n"
                            "allow  web       call           users.get\n"
                            "\n"
                            "allow  batch     mem-allocate   scratch-*   4G\n"
                            "deny   batch     mem-read       secret*\r\n"
                            "allow  batch     mem-read\n"
                            "allow\tbatch\tmem-write\tscratch-*\n"
                            "allow  calc-*.example publish   calc\n"
                            "allow  anonymous call           calc.add\n"
                            "default deny\n";

#define C WEFT_MAY_CONNECT
#define CALL WEFT_MAY_CALL
#define A WEFT_MAY_ALLOCATE
#define R WEFT_MAY_READ
#define W WEFT_MAY_WRITE
#define P WEFT_MAY_PUBLISH
#define NO false
#define YES true

static const struct {
    const char *who;
    weft_may_t action;
    const char *name;
    bool allowed;
    uint32_t line;
} table[] = {
    {"ops-1", C, "", YES, 2},
    {"ops-", CALL, "any.thing", YES, 2},
    {"ops", CALL, "any.thing", NO, 14},
    {"xops-1", CALL, "any.thing", NO, 14},
    {"ops-1", A, "x", YES, 2},
    {"ops-1", P, "calc", YES, 2},
    {"old-key", C, "", NO, 3},
    {"old-key2", C, "", YES, 4},
    {"Old-key", C, "", YES, 4}, /* another one */
    {"", C, "", YES, 4},
    {NULL, C, NULL, YES, 4},
    {"web", C, "", YES, 4},
    {"web", CALL, "calc.add", YES, 5},
    {"web", CALL, "calc.", YES, 5},
    {"web", CALL, "calc.deep.er", YES, 5},
    {"web", CALL, "calc", NO, 14},
    {"web", CALL, "xcalc.add", NO, 14},
    {"web", CALL, "users.get", YES, 6},
    {"web", CALL, "users.get2", NO, 14},
    {"web", CALL, "users.set", NO, 14},
    {"web", A, "scratch-1", NO, 14},
    {"web", R, "scratch-1", NO, 14},
    {"batch", A, "scratch-1", YES, 8},
    {"batch", A, "scratch", NO, 14},
    {"batch", A, "", YES, 8},
    {"web", A, "", NO, 14},
    {"batch", R, "secret", NO, 9},
    {"batch", R, "secrets of all", NO, 9},
    {"batch", R, "open", YES, 10},
    {"batch", R, "", YES, 10},
    {"batch", W, "open", NO, 14},
    {"batch", W, "scratch-9", YES, 11},
    {"calc-1.example", P, "calc", YES, 12},
    {"calc-1.example.org", P, "calc", NO, 14},
    {"calc-1.example", P, "calc2", NO, 14},
    {"", CALL, "calc.add", YES, 13},
    {"anonymous", CALL, "calc.add", YES, 13},
    {"", CALL, "calc.sub", NO, 14},
    {"someone", CALL, "calc.add", NO, 14},
};

TEST(who_has_no_name_is_called_the_same_by_all)
{
    CHECK_STR(WEFT_ANONYMOUS, WEFTI_ANONYMOUS);
}

TEST(the_first_rule_that_fits_decides)
{
    wefti_policy_t *p = parse(rules);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        weft_verdict_t v = WEFT_VERDICT_INIT;
        wefti_policy_ask(p, table[i].who, table[i].action, table[i].name, &v);
        if (v.allowed != table[i].allowed || v.line != table[i].line)
            FAIL("%s %s %s: %s by line %u", table[i].who, wefti_may_name(table[i].action), table[i].name,
                 v.allowed ? "allowed" : "denied", v.line);
        bool limited = table[i].line == 8;
        CHECK_EQ(v.limit, limited ? UINT64_C(4) << 30 : UINT64_MAX);
    }
    wefti_policy_free(p);
}

TEST(who_may_allocate_some_name_may_allocate_without_one)
{
    static const struct {
        const char *text;
        bool allowed;
        uint32_t line;
        uint64_t limit;
    } of[] = {
        {"allow x mem-allocate a* 4k\nallow x mem-allocate b* 8k\nallow x mem-allocate c* 2k\ndefault deny", true, 2, 8192},
        {"allow x mem-allocate a* 4k\nallow x mem-allocate b*\ndefault deny", true, 2, UINT64_MAX},
        {"allow x mem-allocate a* 4k\ndefault allow", true, 2, UINT64_MAX},
        {"allow x mem-allocate a* 4k\ndeny * all\nallow x mem-allocate b*\ndefault allow", true, 1, 4096},
        {"deny x mem-allocate *\nallow x mem-allocate a*\ndefault allow", false, 1, UINT64_MAX},
        {"deny x mem-allocate secret\nallow * mem-allocate * 1k\ndefault deny", true, 2, 1024},
        {"allow x mem-allocate * 1k\nallow x mem-allocate a* 4k\ndefault deny", true, 1, 1024},
        {"allow y mem-allocate a*\ndeny x mem-allocate a*\nallow x mem-read *\ndefault deny", false, 4, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        weft_verdict_t v = WEFT_VERDICT_INIT;
        wefti_policy_t *p = parse(of[i].text);
        wefti_policy_ask(p, "x", A, "", &v);
        if (v.allowed != of[i].allowed || v.line != of[i].line || v.limit != of[i].limit)
            FAIL("%zu: %s by line %u, %llu", i, v.allowed ? "allowed" : "denied", v.line, (unsigned long long)v.limit);
        wefti_policy_free(p);
    }
}

TEST(patterns_with_several_stars)
{
    static const struct {
        const char *pattern, *text;
        bool fits;
    } of[] = {
        {"*", "", true},
        {"**", "x", true},
        {"a*b*c", "abc", true},
        {"a*b*c", "aXbXbYc", true},
        {"a*b*c", "aXc", false},
        {"*a", "aaaa", true},
        {"*ab", "aab", true},
        {"a*a", "a", false},
        {"", "", true},
        {"*.*", "a", false},
        {"a*b", "aXbY", false},
        {"*x*y*z*", "xyz", true},
        {"*x*y*z*", "zyx", false},
        {"a?c", "abc", false},
        {"a?c", "a?c", true},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        char text[200];
        weft_verdict_t v = WEFT_VERDICT_INIT;
        if (!*of[i].pattern)
            continue;
        snprintf(text, sizeof text, "allow * call %s\ndefault deny", of[i].pattern);
        wefti_policy_t *p = parse(text);
        wefti_policy_ask(p, "x", CALL, of[i].text, &v);
        if (v.allowed != of[i].fits)
            FAIL("\"%s\" and \"%s\"", of[i].pattern, of[i].text);
        wefti_policy_free(p);
    }
}

TEST(what_is_no_policy_is_refused_with_its_line)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "line 1: the last line has to be \"default deny\""},
        {"allow * all\n", "line 1: the last line has to be"},
        {"allow * all\ndefault", "line 2: it has to be \"default deny\" or \"default allow\""},
        {"default maybe\n", "line 1: it has to be"},
        {"default deny all\n", "line 1: it has to be"},
        {"default deny\nallow * all\n", "line 2: nothing follows the line that begins with \"default\", which is line 1"},
        {"default deny\ndefault deny\n", "line 2: nothing follows"},
        {"permit * all\ndefault deny\n", "line 1: a rule begins with \"allow\", \"deny\" or \"default\", not with \"permit\""},
        {"Allow * all\ndefault deny\n", "not with \"Allow\""},
        {"#\n\nallow web\ndefault deny\n", "line 3: a rule is: allow WHO ACTION [NAME [BYTES]]"},
        {"allow web cal calc.*\ndefault deny\n", "line 1: there is no action \"cal\"; did you mean \"call\"?"},
        {"allow web mem-alocate x\ndefault deny\n", "did you mean \"mem-allocate\"?"},
        {"allow web sing x\ndefault deny\n", "there is no action \"sing\"; there are connect"},
        {"allow web connect calc\ndefault deny\n", "line 1: no name follows \"connect\", but there is \"calc\""},
        {"allow web all x\ndefault deny\n", "no name follows \"all\""},
        {"allow web call x 4G\ndefault deny\n", "\"4G\" is one word too many"},
        {"deny web mem-allocate x 4G\ndefault deny\n", "\"4G\" is one word too many"},
        {"allow web mem-allocate x 4Q\ndefault deny\n", "\"4Q\" is no number of bytes"},
        {"allow web mem-allocate 4G\ndefault deny\n",
         "line 1: \"4G\" stands where the name of a block does, and reads as a number of "
         "bytes; did you mean \"* 4G\"?"},
        {"allow web mem-allocate 4096\ndefault deny\n", "did you mean \"* 4096\"?"},
        {"allow web mem-allocate 64k\ndefault deny\n", "did you mean \"* 64k\"?"},
        {"allow web mem-allocate 1MiB # all\ndefault deny\n", "did you mean \"* 1MiB\"?"},
        {"allow web mem-allocate 10GB\ndefault deny\n", "did you mean \"* 10GB\"?"},
        {"allow web mem-allocate x 4G now\ndefault deny\n", "there are words behind \"4G\""},
        {"allow w\x01"
         "eb all\ndefault deny\n",
         "line 1: there is a byte 0x01"},
        {"default deny\x7f\n", "line 1: there is a byte 0x7f"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        wefti_policy_t *p = NULL;
        CHECK_EQ(wefti_policy_parse(bad[i].text, strlen(bad[i].text), &p), WEFT_ERR_INVALID);
        CHECK(!p);
        if (!strstr(weft_last_error(), bad[i].says))
            FAIL("\"%s\" says: %s", bad[i].text, weft_last_error());
    }
    wefti_policy_t *p;
    CHECK_EQ(wefti_policy_parse("default deny\0", 13, &p), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "0x00"));
}

TEST(a_name_that_reads_as_a_size_is_one_with_a_size_behind_it_and_elsewhere)
{
    weft_verdict_t v = WEFT_VERDICT_INIT;
    wefti_policy_t *p =
        parse("allow x mem-allocate 4G 1k\nallow x mem-read 4096\nallow x mem-allocate 4G-*\nallow x mem-allocate "
              "k\ndeny x mem-allocate 64k\ndefault deny");
    wefti_policy_ask(p, "x", A, "4G", &v);
    CHECK(v.allowed && v.line == 1 && v.limit == 1024);
    wefti_policy_ask(p, "x", R, "4096", &v);
    CHECK(v.allowed && v.line == 2);
    wefti_policy_ask(p, "x", A, "4G-1", &v);
    CHECK(v.allowed && v.line == 3);
    wefti_policy_ask(p, "x", A, "64k", &v);
    CHECK(!v.allowed && v.line == 5); /* no number of bytes is behind a name that is denied */
    wefti_policy_free(p);
}

TEST(every_beginning_of_a_policy_that_is_cut_short_is_none_or_says_less_than_the_default)
{
    for (size_t n = 0; n + strlen("\n") < strlen(rules); n++) {
        wefti_policy_t *p;
        CHECK_EQ(wefti_policy_parse(rules, n, &p), WEFT_ERR_INVALID);
    }
}

TEST(there_are_bounds)
{
    enum { MANY = 10001 };
    char *text = malloc(MANY * 16 + 600), *at = text;
    wefti_policy_t *p;
    for (int i = 0; i < MANY - 1; i++)
        at += sprintf(at, "allow w all\n");
    strcpy(at, "default deny\n");
    p = parse(text);
    wefti_policy_free(p);
    strcpy(at, "allow w all\ndefault deny\n");
    CHECK_EQ(wefti_policy_parse(text, strlen(text), &p), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "line 10001: a policy has at most 10000 rules"));
    memset(text, 'x', 300);
    strcpy(text + 300, " all\ndefault deny\n");
    CHECK_EQ(wefti_policy_parse(text, strlen(text), &p), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "has 300 bytes; a word has at most 255"));
    free(text);
    text = calloc(1, (1 << 20) + 1);
    CHECK_EQ(wefti_policy_parse(text, (1 << 20) + 1, &p), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), "at most 1048576 bytes"));
    free(text);
}

TEST(whom_a_policy_limits)
{
    static const struct {
        const char *text;
        bool call, allocate;
    } of[] = {
        {"default allow", false, false},
        {"default deny", true, true},
        {"allow * all\ndefault deny", false, false},
        {"allow * call\ndefault deny", false, true},
        {"deny web connect\ndefault allow", false, false},
        {"deny web call x\ndefault allow", true, false},
        {"allow * mem-allocate * 4k\ndefault allow", false, true},
        {"allow * all\ndeny * all\ndefault deny", false, false}, /* nobody comes to the second */
        {"allow web call\ndefault deny", true, true},
    };
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        wefti_policy_t *p = parse(of[i].text);
        if (wefti_policy_limits(p, CALL) != of[i].call || wefti_policy_limits(p, A) != of[i].allocate)
            FAIL("%s", of[i].text);
        wefti_policy_free(p);
    }
}

TEST(a_mark_at_the_beginning_and_a_last_line_without_an_end)
{
    weft_verdict_t v = WEFT_VERDICT_INIT;
    wefti_policy_t *p = parse("\xef\xbb\xbf# made by an editor\r\nallow web call\r\ndefault deny");
    wefti_policy_ask(p, "web", CALL, "x.y", &v);
    CHECK(v.allowed && v.line == 2);
    wefti_policy_free(p);
}

TEST(names_of_actions)
{
    weft_may_t a;
    for (int i = 1; i <= 6; i++) {
        CHECK(wefti_may_find(wefti_may_name((weft_may_t)i), &a));
        CHECK_EQ((int)a, i);
    }
    CHECK(!wefti_may_find("all", &a) && !wefti_may_find("", &a));
    CHECK_STR(wefti_may_name((weft_may_t)0), "?");
    CHECK_STR(wefti_may_name((weft_may_t)7), "?");
    CHECK(!wefti_may_known(0) && !wefti_may_known(7) && wefti_may_known(6));
}
