/* info.c - facts about this build and this machine, for `weft info`. */
#include <weft/config.h>

#include "base/log.h"
#include "core/core.h"
#include "fabric/fabric.h"
#include "mem/mem.h"

static void tell(weft_config_fn fn, void *user, const char *name, const char *value)
{
    weft_config_var_t var = {.name = name, .value = value};
    fn(&var, user);
}

weft_status_t weft_info_each(weft_config_fn fn, void *user)
{
    char kinds[1024];
    if (!fn)
        return wefti_fail(WEFT_ERR_INVALID, "the callback is NULL");
    tell(fn, user, "version", weft_version());
#if defined(__clang__)
    tell(fn, user, "compiler", "clang " __clang_version__);
#else
    tell(fn, user, "compiler", "gcc " __VERSION__);
#endif
#ifdef NDEBUG
    tell(fn, user, "build", "release");
#else
    tell(fn, user, "build", "debug (assertions on)");
#endif
    wefti_mem_kinds_text(kinds, sizeof kinds);
    tell(fn, user, "memory_kinds", kinds);
    /* UCX keeps a lock that another thread may have held at the fork: then it cannot be asked for anything in the child. */
    wefti_fabric_info(fn, user, !wefti_fork_generation);
    return WEFT_OK;
}
