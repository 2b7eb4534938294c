/* A program with much thread-local storage: glibc takes it from the stack of each thread, those of the library's too, however
 * little of it they need. ctest: shards */
#include <weft/weft.h>

#include "test.h"

static __thread volatile char storage[4 << 20];

TEST(a_program_with_much_thread_local_storage_connects)
{
    weft_runtime_opts_t o = WEFT_RUNTIME_OPTS_INIT;
    weft_runtime_t *rt;
    weft_listener_t *l;
    weft_ep_t *ep;
    char uri[64];
    storage[0] = 1;
    o.progress = WEFT_PROGRESS_THREAD;
    CHECK_OK(weft_runtime_open(&o, &rt));
    CHECK_OK(weft_listen(rt, "tcp://localhost:0", NULL, &l));
    snprintf(uri, sizeof uri, "tcp://localhost:%d", weft_listener_port(l)); /* a name, so that it is looked up */
    CHECK_OK(weft_ep_connect(rt, uri, NULL, 20 * WEFT_SECOND, &ep));
    CHECK_OK(weft_runtime_close(rt));
}
