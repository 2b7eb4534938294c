/* A server of a mirror is killed, or stopped and let go on, while a writer and a reader never rest: reads go on at the others,
 * writes wait for its lease and then go on, nothing that was acknowledged is lost, and the one that comes back with old bytes
 * answers nobody. A replacement is refilled under the same load, and then has everything. Over shared memory and TCP, with
 * checksums and without. ctest: tls-long timeout=600 long */
#define TEST_SECONDS 150
#include "lib/mirrored.h"
#include "test.h"

#define LEASE (800 * WEFT_MILLISECOND)
#define HEARTBEAT (3 * WEFT_SECOND) /* longer than the lease: what is stopped is found by the lease */

static const char *const transports[] = {"shm", "tcp"};
static mirrored_t t;

static bool one_fenced(mirrored_t *m)
{
    return mirrored_members(&m->writer, WEFT_MEMBER_FENCED) == 1;
}

static bool writes_go_on(mirrored_t *m)
{
    static unsigned long from;
    if (!from)
        from = m->written;
    bool enough = m->written > from + 50;
    if (enough)
        from = 0;
    return enough;
}

static void tell(const char *what)
{
    printf("# %s: %lu writes, %lu reads; the longest took %.0f and %.0f ms\n", what, t.written, t.read, t.longest_write * 1e3,
           t.longest_read * 1e3);
}

static void add(int server, bool load)
{
    weft_op_t op = WEFT_OP_INIT;
    CHECK_OK(weft_mirror_add(t.writer.m, t.writer.store[server], &op));
    CHECK_OK(mirrored_wait(&t, &op, 60, load));
}

/* Server 0 is lost under load; server 2 takes its place; then server 1 is lost too, and 2 has everything. */
static void lose_and_replace(const char *transport, bool checksums, int sig)
{
    mirrored_start(&t, 3, transport, HEARTBEAT, NULL, NULL);
    mirrored_make(&t, 2, 2 << 20, LEASE, checksums);
    mirrored_load(&t, 0.5, NULL);
    CHECK_EQ(mirrored_members(&t.writer, WEFT_MEMBER_UP), 2);
    uint64_t epoch = mirrored_info(&t.writer).epoch;

    mirrored_signal(&t, 0, sig);
    mirrored_load(&t, 20, one_fenced);
    mirrored_load(&t, 20, writes_go_on);
    CHECK(mirrored_info(&t.writer).epoch > epoch);
    tell("a server was lost");
    CHECK_EQ(t.failed_writes, 0);
    CHECK_EQ(t.failed_reads, 0);

    if (sig == SIGSTOP) { /* it goes on, with old bytes */
        mirrored_signal(&t, 0, SIGCONT);
        mirrored_load(&t, 1, NULL);
        CHECK_EQ(mirrored_members(&t.writer, WEFT_MEMBER_UP), 1);
        CHECK_EQ(t.failed_writes + t.failed_reads, 0);
    }

    add(2, true);
    CHECK_EQ(mirrored_members(&t.writer, WEFT_MEMBER_UP), 2);
    mirrored_load(&t, 0.5, NULL);
    mirrored_signal(&t, 1, SIGKILL);
    mirrored_load(&t, 20, writes_go_on);
    CHECK(mirrored_info(&t.writer).epoch > epoch + 2);
    mirrored_rest(&t, 30);
    mirrored_look(&t);
    tell("its replacement was refilled, and the other one lost");
    CHECK_EQ(t.failed_writes + t.failed_reads, 0);
    mirrored_end(&t);
}

TEST(a_killed_server_is_fenced_and_replaced_under_load_over_shm)
{
    lose_and_replace(transports[0], false, SIGKILL);
}

TEST(a_killed_server_is_fenced_and_replaced_under_load_over_tcp)
{
    lose_and_replace(transports[1], true, SIGKILL);
}

TEST(a_stopped_server_is_fenced_and_comes_back_to_nobody_over_shm)
{
    lose_and_replace(transports[0], true, SIGSTOP);
}

TEST(a_stopped_server_is_fenced_and_comes_back_to_nobody_over_tcp)
{
    lose_and_replace(transports[1], false, SIGSTOP);
}

TEST(a_server_that_was_fenced_can_be_added_again)
{
    mirrored_start(&t, 2, "shm", 10 * WEFT_SECOND, NULL, NULL); /* its connection lives through it */
    mirrored_make(&t, 2, 1 << 20, LEASE, true);
    mirrored_load(&t, 0.3, NULL);
    mirrored_signal(&t, 0, SIGSTOP);
    mirrored_load(&t, 20, one_fenced);
    mirrored_load(&t, 20, writes_go_on);
    mirrored_signal(&t, 0, SIGCONT);
    add(0, true);
    CHECK_EQ(mirrored_members(&t.writer, WEFT_MEMBER_UP), 2);
    mirrored_signal(&t, 1, SIGKILL);
    mirrored_load(&t, 20, writes_go_on);
    mirrored_rest(&t, 30);
    mirrored_look(&t);
    CHECK_EQ(t.failed_writes + t.failed_reads, 0);
    mirrored_end(&t);
}

TEST(without_any_server_left_everything_ends)
{
    weft_op_t op = WEFT_OP_INIT;
    char buf[8] = "";
    mirrored_start(&t, 2, "tcp", 500 * WEFT_MILLISECOND, NULL, NULL);
    mirrored_make(&t, 2, 1 << 20, LEASE, false);
    mirrored_signal(&t, 0, SIGKILL);
    mirrored_signal(&t, 1, SIGKILL);
    CHECK_OK(weft_mirror_read(t.reader.m, 0, buf, sizeof buf, &op));
    CHECK_EQ(mirrored_wait(&t, &op, 20, false), WEFT_ERR_PEER);
    weft_status_t st = weft_mirror_write(t.writer.m, 0, buf, sizeof buf, &op);
    if (!st)
        st = mirrored_wait(&t, &op, 20, false);
    CHECK_EQ(st, WEFT_ERR_PEER);
    CHECK_EQ(mirrored_info(&t.writer).state, WEFT_ERR_PEER);
    mirrored_end(&t);
}
