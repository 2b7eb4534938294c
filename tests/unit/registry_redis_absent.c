/* Where hiredis is not installed: the registry is refused with a sentence that says what to install. */
#include <dlfcn.h>
#include <weft/weft.h>

#include "test.h"

static char asked[128];

/* In front of the C library's. */
void *dlopen(const char *name, int flags)
{
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    if (!name || !strstr(name, "hiredis"))
        return next(name, flags);
    snprintf(asked, sizeof asked, "%s", name);
    return NULL;
}

TEST(what_to_install_is_said)
{
    weft_runtime_t *rt;
    weft_registry_t *r = NULL;
    weft_runtime_opts_t opts = WEFT_RUNTIME_OPTS_INIT;
    opts.transports = "shm";
    CHECK_OK(weft_runtime_open(&opts, &rt));
    static const char *const all[] = {"redis://localhost", "redis+unix:///run/redis.sock"};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(weft_registry_open(rt, all[i], NULL, &r), WEFT_ERR_UNSUPPORTED);
        CHECK(strstr(weft_last_error(), *asked ? asked : "libhiredis-dev")); /* built without it: nothing was looked for */
        CHECK(strstr(weft_last_error(), "install"));
        CHECK(!r);
    }
    CHECK_EQ(weft_registry_open(rt, "redis://:hunter2@", NULL, &r), *asked ? WEFT_ERR_INVALID : WEFT_ERR_UNSUPPORTED);
    CHECK(!strstr(weft_last_error(), "hunter2"));
    CHECK_OK(weft_runtime_close(rt));
}
