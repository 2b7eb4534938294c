/* tests/wire/tls_exit.c - a process that ends in the middle of handshakes, without closing anything, ends as it wanted to.
 * OpenSSL does not take itself down beneath threads that use it.
 *
 * ctest: no-asan: what is not closed is a leak */
#include <sys/wait.h>
#include <unistd.h>

#include <weft/weft.h>

#include "test.h"

static const char key[] = "weft-key-1 8f01c2aa5d6e7f00112233445566778899aabbccddeeff00123456789abcdef0";

enum { TIMES = 12, CALLS = 24 };

static weft_runtime_t *runtime(void)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    o.progress = WEFT_PROGRESS_THREAD;
    o.transports = "tcp";
    o.key = key;
    o.key_len = strlen(key);
    CHECK_OK(weft_runtime_open(&o, &rt));
    return rt;
}

/* What was registered first is done last: the threads go on for so long after OpenSSL's own part of the end. */
static void linger(void)
{
    usleep(60000);
}

static _Noreturn void leave_in_the_middle(unsigned after)
{
    static weft_op_t ops[CALLS];
    weft_runtime_t *server = runtime(), *client = runtime();
    weft_listener_t *listener;
    CHECK(!atexit(linger));
    CHECK_OK(weft_listen(server, "tls://127.0.0.1:0", NULL, &listener));
    for (int i = 0; i < CALLS; i++) {
        weft_ep_t *ep;
        ops[i] = (weft_op_t)WEFT_OP_INIT;
        CHECK_OK(weft_ep_open(client, weft_listener_uri(listener), NULL, &ops[i], &ep));
    }
    CHECK_OK(weft_op_wait(&ops[after % 8], 30 * WEFT_SECOND));
    exit(7);
}

TEST(a_process_may_end_while_others_shake_hands)
{
    for (unsigned i = 0; i < TIMES; i++) {
        int status;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid)
            leave_in_the_middle(i);
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(!WIFSIGNALED(status));
        CHECK_EQ(WEXITSTATUS(status), 7);
    }
}
