/* A forked child can make objects of its own, whatever the other threads of its parent did with theirs.
 * ctest: no-asan no-tsan (a child of several threads has locks of the sanitizer that nobody gives back) */
#include <pthread.h>
#include <stdatomic.h>

#include "base/handle.h"
#include "test.h"

typedef struct thing {
    wefti_handle_t handle;
    int body[100];
} thing_t;

static wefti_handles_t things = WEFTI_HANDLES_INIT(thing_t, handle);

static _Atomic bool enough;

static void *makes_and_frees(void *arg)
{
    while (!atomic_load(&enough))
        wefti_handle_free(&things, wefti_handle_new(&things));
    return arg;
}

TEST(a_forked_child_can_make_them_whatever_other_threads_did)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&threads[i], NULL, makes_and_frees, NULL));
    for (int i = 0; i < 300; i++) {
        int status;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) {
            alarm(20);
            wefti_handle_free(&things, wefti_handle_new(&things));
            _exit(0);
        }
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    }
    atomic_store(&enough, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}
