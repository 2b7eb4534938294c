/* tests/unit/fabric_transports.c - the words of "transports". */
#include "test.h"

#include "fabric/transports.h"

static void means(const char *text, bool shm, bool ucx, const char *tls)
{
    wefti_transports_t t;
    CHECK_OK(wefti_transports_parse(text, &t));
    CHECK_EQ(t.shm, shm);
    CHECK_EQ(t.ucx, ucx);
    CHECK_STR(t.tls, tls);
}

TEST(lists_mean_what_they_say)
{
    means("all", true, true, "^shm,self");
    means("shm", true, false, "");
    means("tcp", false, true, "tcp");
    means("shm,tcp", true, true, "tcp");
    means(" tcp , shm ", true, true, "tcp");
    means("ud,rc", false, true, "ud,rc");
    means("tcp,all", true, true, "^shm,self");
}

static void refused(const char *text, const char *names)
{
    wefti_transports_t t;
    memset(&t, 0x77, sizeof t);
    CHECK_EQ(wefti_transports_parse(text, &t), WEFT_ERR_INVALID);
    CHECK(strstr(weft_last_error(), names));
    CHECK_EQ(t.tls[0], 0x77);
}

TEST(words_that_are_no_transport_are_named)
{
    refused("tpc", "tpc");
    refused("shm,carrier-pigeon,tcp", "carrier-pigeon");
    refused("", "empty");
    refused("shm,,tcp", "empty");
    refused("shm,", "empty");
    refused("self", "self");
    refused("^tcp", "^tcp");
    refused("TCP", "TCP");
}

TEST(a_list_that_is_too_long_is_refused)
{
    static char text[2000];
    for (int i = 0; i < 400; i++)
        strcat(text, i ? ",tcp" : "tcp");
    wefti_transports_t t;
    CHECK_EQ(wefti_transports_parse(text, &t), WEFT_ERR_INVALID);
}
