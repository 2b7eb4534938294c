/* tests/unit/fabric_transports.c - the words of "transports". */
#include "test.h"

#include "fabric/transports.h"

enum { SHM = 1, TCP = 2, UCX = 4, RDMA = 8 };

static void means(const char *text, int which, const char *tls)
{
    wefti_transports_t t;
    CHECK_OK(wefti_transports_parse(text, &t));
    CHECK_EQ(t.shm * SHM + t.tcp * TCP + t.ucx * UCX + t.rdma * RDMA, which);
    CHECK_STR(t.tls, tls);
}

TEST(lists_mean_what_they_say)
{
    means("all", SHM | TCP | RDMA, "^shm,self,tcp");
    means("shm", SHM, "");
    means("tcp", TCP, "");
    means("shm,tcp", SHM | TCP, "");
    means(" tcp , shm ", SHM | TCP, "");
    means("ud,rc", UCX, "ud,rc");
    means("tcp,rc", TCP | UCX, "rc");
    means("tcp,all", SHM | TCP | RDMA, "^shm,self,tcp");
    means("ucx", UCX, "");
    means("rc,ucx,ud", UCX, "");
    means("ucx_tcp", UCX, "tcp");
    means("rc,ucx_tcp", UCX, "rc,tcp");
    means("all,rc", SHM | TCP | UCX | RDMA, "rc");
    means("ucx,all", SHM | TCP | UCX | RDMA, "");
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
    refused("ucx_rc", "ucx_rc");
}

TEST(a_list_that_is_too_long_is_refused)
{
    static char text[2400];
    for (int i = 0; i < 400; i++)
        strcat(text, i ? ",dc_x" : "dc_x");
    wefti_transports_t t;
    CHECK_EQ(wefti_transports_parse(text, &t), WEFT_ERR_INVALID);
}
