/* The small-message path neither allocates nor enters the kernel on shared memory. Allocations are counted by standing in front of malloc;
 * system calls by a parent that traces a child through a ping-pong between two runtimes. */
#define TEST_SECONDS 120
#include <stdatomic.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

#include "lib/pair.h"
#include "test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static atomic_uint_fast64_t allocations;

#if !SANITIZED
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t count, size_t n);
extern void *__libc_realloc(void *p, size_t n);
void *malloc(size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(n);
}
void *calloc(size_t count, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(count, n);
}
void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(p, n);
}
#endif

enum { ROUNDS = 20000 };
static pair_t pair;

static void ping_pong(unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        weft_op_t recv[2] = {WEFT_OP_INIT, WEFT_OP_INIT}, send[2] = {WEFT_OP_INIT, WEFT_OP_INIT};
        uint64_t out = i, in[2] = {0, 0};
        for (int side = 0; side < 2; side++) {
            CHECK_OK(weft_msg_recv(pair.ep[side], &in[side], 8, i, WEFT_TAG_FULL, &recv[side]));
            CHECK_OK(weft_msg_send(pair.ep[1 - side], &out, 8, i, &send[side]));
            while (!weft_op_done(&recv[side]))
                weft_runtime_progress(pair.rt[side]);
        }
        CHECK(in[0] == i && in[1] == i);
    }
}

TEST(a_small_message_over_shared_memory_allocates_nothing)
{
    if (SANITIZED)
        SKIP("the sanitizer has its own malloc");
    pair_open(&pair, &pair_ways[0], NULL);
    ping_pong(ROUNDS);
    uint64_t before = atomic_load(&allocations);
    ping_pong(ROUNDS);
    uint64_t made = atomic_load(&allocations) - before;
    printf("# %" PRIu64 " allocations in %d messages\n", made, 2 * ROUNDS);
    CHECK_EQ(made, 0);
    pair_close(&pair);
}

/* Marks the stretch that counts: a system call nobody else makes. */
static void mark(long word)
{
    syscall(SYS_getppid, 0x57454654L, word);
}

static void traced_child(void)
{
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    pair_open(&pair, &pair_ways[0], NULL);
    ping_pong(ROUNDS);
    mark(1);
    ping_pong(ROUNDS);
    mark(2);
    pair_close(&pair);
    _exit(0);
}

TEST(a_small_message_over_shared_memory_makes_no_system_call)
{
    if (SANITIZED)
        SKIP("not under a sanitizer");
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        traced_child();
    int status;
    bool counting = false;
    uint64_t calls = 0;
    bool entering = true, ended = false;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFSTOPPED(status))
        SKIP("tracing is not permitted here");
    CHECK_EQ(ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)), 0);
    for (int sig = 0;;) {
        CHECK_EQ(ptrace(PTRACE_SYSCALL, pid, NULL, (void *)(intptr_t)sig), 0);
        CHECK(waitpid(pid, &status, 0) == pid);
        if (WIFEXITED(status) || WIFSIGNALED(status))
            break;
        sig = 0;
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
            sig = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
            continue;
        }
        if (entering) {
            struct user_regs_struct regs;
            CHECK_EQ(ptrace(PTRACE_GETREGS, pid, NULL, &regs), 0);
            if (regs.orig_rax == SYS_getppid && regs.rdi == 0x57454654UL) {
                counting = regs.rsi == 1;
                ended = ended || regs.rsi == 2;
            } else if (counting) {
                calls++;
            }
        }
        entering = !entering;
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(ended);
    printf("# %" PRIu64 " system calls in %d messages (the wires are looked at every few milliseconds)\n", calls, 2 * ROUNDS);
    /* The stretch lasts tens of milliseconds: a look at the sockets every millisecond is allowed, one per hundred messages is not. */
    CHECK(calls < 2 * ROUNDS / 100);
}
