/* fabric/module.c - finding, checking and loading libweft_ucx.so, so that the library itself needs no UCX.
 *
 * The module lies in the folder "weft" of the folder where libraries are installed, or beside the library or program that asks
 * for it, as in a build folder and a wheel. A wheel knows no place where it was installed: WEFT_LIBDIR is empty there. A failed
 * search is made again by the next who asks: what was missing may be installed by then. A program that runs with more rights than
 * its user gets the installed module or none. tests/wire/fabric_module.c. */
#include "fabric/module.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"

bool wefti_ucx_rendezvous;

/* --- what the module is given ------------------------------------------------------------------------------------- */

static int alloc_fails(size_t n)
{
    return wefti_alloc_fails && wefti_alloc_fails(n);
}

static const wefti_module_host_t host = {
    .log_level = &wefti_log_level,
    .log_line = weft_log,
    .fail = wefti_fail,
    .alloc_fails = alloc_fails,
};

/* --- where it is -------------------------------------------------------------------------------------------------- */

#define PATH_BYTES 4096

/* The folder of the file that this code is in: a library, or the program. */
static bool own_folder(char *folder)
{
    Dl_info info;
    struct link_map *map = NULL;
    char path[PATH_BYTES];
    bool known = dladdr1((const void *)&host, &info, (void **)&map, RTLD_DL_LINKMAP) && map;
    /* the program itself has no name there */
    if (!realpath(known && map->l_name[0] ? map->l_name : "/proc/self/exe", path))
        return false;
    char *slash = strrchr(path, '/');
    *slash = 0;
    memcpy(folder, path, (size_t)(slash - path) + 1);
    return true;
}

typedef struct search {
    char path[PATH_BYTES + 128]; /* of the module, once it is found */
    char looked[600];            /* the folders that were searched, for a sentence */
} search_t;

static bool is_in(search_t *s, const char *folder, const char *below)
{
    snprintf(s->path, sizeof s->path, "%s%s/" WEFTI_MODULE_FILE, folder, below);
    return !access(s->path, F_OK);
}

static bool find(search_t *s, const char *chosen)
{
    char own[PATH_BYTES];
    bool may_choose = !getauxval(AT_SECURE);
    if (may_choose && chosen && *chosen) {
        snprintf(s->looked, sizeof s->looked, "%s", chosen);
        return is_in(s, chosen, "");
    }
    s->looked[0] = 0;
    if (may_choose && own_folder(own)) {
        if (is_in(s, own, "") || is_in(s, own, "/weft") || is_in(s, own, "/" WEFT_LIBDIR_FROM_BIN "/weft"))
            return true;
        snprintf(s->looked, sizeof s->looked, "%.400s", own);
    }
    if (!WEFT_LIBDIR[0])
        return false;
    size_t used = strlen(s->looked);
    snprintf(s->looked + used, sizeof s->looked - used, "%s%s", used ? " nor in " : "", WEFT_LIBDIR "/weft");
    return is_in(s, WEFT_LIBDIR, "/weft");
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static weft_status_t load(const char *folder, const wefti_module_t **module_out)
{
    search_t s;
    if (!find(&s, folder))
        return wefti_fail(WEFT_ERR_UNSUPPORTED,
                          "UCX needs " WEFTI_MODULE_FILE
                          ", which is not in %s: install that part of Weft, or set WEFT_MODULE_PATH to "
                          "the folder that has it",
                          s.looked[0] ? s.looked : "any folder that may be searched");
    void *so = dlopen(s.path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        const char *said = dlerror();
        const char *advice = said && strstr(said, "cannot open shared object") ? " (Debian: apt install libucx0)" : "";
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "%s does not load: %s%s", s.path, said ? said : "no reason was given", advice);
    }
    const wefti_module_t *m = dlsym(so, WEFTI_MODULE_SYMBOL);
    if (!m || m->version != WEFTI_MODULE_VERSION || m->size != WEFTI_MODULE_SIZE) {
        weft_status_t st = wefti_fail(WEFT_ERR_UNSUPPORTED,
                                      "%s is of another version of Weft (interface %u.%u, this library has %u.%u): install both "
                                      "from one build",
                                      s.path, m ? m->version : 0, m ? m->size : 0, WEFTI_MODULE_VERSION, WEFTI_MODULE_SIZE);
        dlclose(so);
        return st;
    }
    m->start(&host);
    *module_out = m;
    /* cppcheck-suppress resourceLeak ; a module that is loaded stays */
    return WEFT_OK;
}

weft_status_t wefti_module_load(const char *folder, const wefti_module_t **module_out)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const wefti_module_t *loaded;
    pthread_mutex_lock(&lock);
    weft_status_t st = loaded ? WEFT_OK : load(folder, &loaded);
    if (!st)
        *module_out = loaded;
    pthread_mutex_unlock(&lock);
    return st;
}
