/* Large messages on shared memory between two runtimes with threads of their own, so that both copy at the same time: all bytes
 * arrive, and whatever ends in the middle (a receive, an endpoint, a runtime) ends once and lets go of its buffers.
 *
 * ctest: tls-long */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/weft.h>

#include "ports.h"
#include "test.h"

#define LONG (UINT64_C(6) << 20)
#define PATIENCE (60 * WEFT_SECOND)

typedef struct sides {
    weft_runtime_t *rt[2];
    weft_listener_t *listener;
    weft_ep_t *ep[2];
} sides_t;

static void sides_open(sides_t *s)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_op_t op = WEFT_OP_INIT;
    o.progress = WEFT_PROGRESS_THREAD;
    o.transports = "shm";
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_runtime_open(&o, &s->rt[i]));
    CHECK_OK(weft_listen(s->rt[0], ports_tcp(), NULL, &s->listener));
    CHECK_OK(weft_listener_accept(s->listener, &op));
    CHECK_OK(weft_ep_open(s->rt[1], weft_listener_uri(s->listener), NULL, NULL, &s->ep[1]));
    CHECK_OK(weft_op_wait(&op, PATIENCE));
    s->ep[0] = weft_op_ep(&op);
}

static void sides_close(sides_t *s)
{
    for (int i = 0; i < 2; i++)
        CHECK_OK(weft_runtime_close(s->rt[i]));
}

static uint8_t *memory(void)
{
    void *p = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static uint8_t *marked(uint64_t seed)
{
    uint8_t *p = memory();
    for (uint64_t i = 0; i < LONG / 8; i++)
        ((uint64_t *)(void *)p)[i] = i * seed;
    return p;
}

static void check_marks(const uint8_t *p, uint64_t seed)
{
    for (uint64_t i = 0; i < LONG / 8; i++)
        if (((const uint64_t *)(const void *)p)[i] != i * seed)
            CHECK_EQ(i, LONG);
}

/* What the library has let go of can go away at once. */
static void unmap(void *p)
{
    CHECK(!munmap(p, LONG));
}

TEST(both_directions_at_once_arrive_whole)
{
    sides_t s;
    sides_open(&s);
    for (uint64_t round = 1; round <= 4; round++) {
        weft_op_t send[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, recv[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
        uint8_t *out[2], *in[2];
        for (int i = 0; i < 2; i++) {
            out[i] = marked(round + (uint64_t)i * 77);
            in[i] = memory();
            CHECK_OK(weft_msg_recv(s.ep[i], in[i], LONG, 1, WEFT_TAG_FULL, &recv[i]));
        }
        for (int i = 0; i < 2; i++)
            CHECK_OK(weft_msg_send(s.ep[i], out[i], LONG, 1, &send[i]));
        for (int i = 0; i < 2; i++) {
            CHECK_OK(weft_op_wait(&send[i], PATIENCE));
            unmap(out[i]);
            CHECK_OK(weft_op_wait(&recv[i], PATIENCE));
        }
        for (int i = 0; i < 2; i++) {
            check_marks(in[i], round + (uint64_t)!i * 77);
            unmap(in[i]);
        }
    }
    sides_close(&s);
}

enum { CANCEL_RECV, CANCEL_SEND, CLOSE_SENDER, CLOSE_RECEIVER, N_ENDS };

static weft_status_t ended(weft_op_t *op)
{
    weft_status_t st = weft_op_wait(op, PATIENCE);
    CHECK(st != WEFT_ERR_PENDING);
    return st;
}

TEST(what_ends_in_the_middle_lets_go_of_its_buffers)
{
    for (int how = 0; how < N_ENDS; how++) {
        for (unsigned pause = 0; pause <= 6; pause++) {
            sides_t s;
            weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
            uint8_t *out = marked(9), *in = memory();
            sides_open(&s);
            CHECK_OK(weft_msg_recv(s.ep[0], in, LONG, 1, WEFT_TAG_FULL, &recv));
            CHECK_OK(weft_msg_send(s.ep[1], out, LONG, 1, &send));
            usleep(pause * pause * 100);
            if (how == CANCEL_RECV)
                weft_op_cancel(&recv);
            else if (how == CANCEL_SEND)
                weft_op_cancel(&send);
            else
                CHECK_OK(weft_runtime_close(s.rt[how == CLOSE_SENDER]));
            if (how == CANCEL_RECV || how == CLOSE_RECEIVER) {
                weft_status_t st = ended(&recv);
                if (!st)
                    check_marks(in, 9);
                unmap(in);
                if (how == CANCEL_RECV && st) /* the message is there still, or was lost with its receive */
                    weft_op_cancel(&send);
                ended(&send);
                unmap(out);
            } else {
                ended(&send);
                unmap(out);
                if (how == CANCEL_SEND)
                    weft_op_cancel(&recv);
                if (!ended(&recv))
                    check_marks(in, 9);
                unmap(in);
            }
            for (int i = 0; i < 2; i++)
                if (how < CLOSE_SENDER || i != (how == CLOSE_SENDER))
                    CHECK_OK(weft_runtime_close(s.rt[i]));
        }
    }
}

TEST(a_fork_in_the_middle_changes_nothing)
{
    sides_t s;
    sides_open(&s);
    for (int i = 0; i < 5; i++) {
        weft_op_t send = WEFT_OP_INIT, recv = WEFT_OP_INIT;
        uint8_t *out = marked(3), *in = memory();
        CHECK_OK(weft_msg_recv(s.ep[0], in, LONG, 1, WEFT_TAG_FULL, &recv));
        CHECK_OK(weft_msg_send(s.ep[1], out, LONG, 1, &send));
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid)
            _exit(0);
        CHECK_OK(weft_op_wait(&recv, PATIENCE));
        CHECK_OK(weft_op_wait(&send, PATIENCE));
        check_marks(in, 3);
        unmap(in);
        unmap(out);
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
    }
    sides_close(&s);
}
