/* The network between a mirror's writer and one of its servers is cut silently, under load: two network namespaces with a
 * veth pair between them, and the link taken down. The server is fenced by its lease, everything else goes on; when the link is
 * back the server, which was alive all the time, gives its old bytes to nobody, and can be added again. Needs root and ip(8).
 * ctest: tls timeout=300 */
#define TEST_SECONDS 120
#include "lib/mirrored.h"
#include "lib/netns.h"
#include "test.h"

#define LEASE (800 * WEFT_MILLISECOND)
#define HEARTBEAT (2 * WEFT_SECOND)

static mirrored_t t;

static void enter(int server)
{
    netns_enter(server == 0);
}

static bool one_fenced(mirrored_t *m)
{
    return mirrored_members(&m->writer, WEFT_MEMBER_FENCED) == 1;
}

/* The other side of the cut is noticed, too: by the heartbeat. */
static bool connection_lost(mirrored_t *m)
{
    weft_store_info_t w = WEFT_STORE_INFO_INIT, r = WEFT_STORE_INFO_INIT;
    weft_store_get_info(m->writer.store[0], &w);
    weft_store_get_info(m->reader.store[0], &r);
    return w.state && r.state;
}

TEST(a_server_that_is_cut_off_is_fenced_and_its_old_bytes_are_nobodys)
{
    static const char *const listen[] = {"tcp://10.99.0.2:4721", "tcp://10.99.0.1:4722"};
    weft_op_t op = WEFT_OP_INIT;
    const char *why_not = netns_make();
    if (why_not)
        SKIP("%s", why_not);
    netns_enter(0);
    mirrored_start(&t, 2, "tcp", HEARTBEAT, listen, enter);
    mirrored_make(&t, 2, 1 << 20, LEASE, false);
    mirrored_load(&t, 0.5, NULL);
    CHECK_EQ(mirrored_members(&t.writer, WEFT_MEMBER_UP), 2);

    netns_link(false);
    mirrored_load(&t, 20, one_fenced);
    mirrored_load(&t, 20, connection_lost);
    printf("# cut: %lu writes, %lu reads; the longest took %.0f and %.0f ms\n", t.written, t.read, t.longest_write * 1e3,
           t.longest_read * 1e3);
    CHECK_EQ(t.failed_writes + t.failed_reads, 0);

    netns_link(true); /* the stores from before stay with their mirrors, and go with their runtimes */
    mirrored_connect(&t, &t.writer, 0);
    mirrored_connect(&t, &t.reader, 0);
    /* Who asks it alone is told nothing. */
    weft_mirror_opts_t o = WEFT_MIRROR_OPTS_INIT;
    o.name = "mirror";
    o.stores = t.reader.store;
    o.n_stores = 1;
    CHECK_OK(weft_mirror_open(t.reader.rt, &o, &op));
    CHECK_EQ(mirrored_wait(&t, &op, 20, true), WEFT_ERR_STALE);
    o.write = true;
    CHECK_OK(weft_mirror_open(t.reader.rt, &o, &op));
    CHECK_EQ(mirrored_wait(&t, &op, 20, true), WEFT_ERR_STALE);

    CHECK_OK(weft_mirror_add(t.writer.m, t.writer.store[0], &op));
    CHECK_OK(mirrored_wait(&t, &op, 60, true));
    CHECK_EQ(mirrored_members(&t.writer, WEFT_MEMBER_UP), 2);
    mirrored_load(&t, 0.5, NULL);
    CHECK_EQ(t.failed_writes + t.failed_reads, 0);
    mirrored_rest(&t, 30);
    mirrored_look(&t);
    mirrored_end(&t);
}
