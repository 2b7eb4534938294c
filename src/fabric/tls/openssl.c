/* fabric/tls/openssl.c - loading OpenSSL. A failed search is made again by the next who asks: it may be installed by then. */
#include "fabric/tls/openssl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

#include "base/log.h"

#define FILE_NAME "libssl.so.3" /* it brings libcrypto.so.3, whose names are found through it */

wefti_ssl_t wefti_ssl;

static weft_status_t load(void)
{
    static const struct {
        const char *name;
        void *at;
    } calls[] = {
#define CALL(name) {#name, &wefti_ssl.name},
        WEFTI_SSL_CALLS(CALL)
#undef CALL
    };
    void *so = dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return wefti_fail(WEFT_ERR_UNSUPPORTED, "TLS needs OpenSSL 3 (Debian: apt install libssl3), which does not load: %s",
                          dlerror());
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *found = dlsym(so, calls[i].name);
        if (!found) {
            weft_status_t st =
                wefti_fail(WEFT_ERR_UNSUPPORTED, "the " FILE_NAME " of this machine has no %s: OpenSSL 3.0 or later is needed",
                           calls[i].name);
            dlclose(so);
            return st;
        }
        memcpy(calls[i].at, &found, sizeof found);
    }
    /* Where the program has not used OpenSSL before us: at exit it stays as it is, for threads of ours may be using it. */
    (void)wefti_ssl.OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, NULL);
    /* cppcheck-suppress resourceLeak ; it stays loaded */
    return WEFT_OK;
}

weft_status_t wefti_ssl_load(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool loaded;
    pthread_mutex_lock(&lock);
    weft_status_t st = loaded ? WEFT_OK : load();
    loaded = !st;
    pthread_mutex_unlock(&lock);
    return st;
}

const char *wefti_ssl_why(void)
{
    const char *why = wefti_ssl.ERR_reason_error_string(wefti_ssl.ERR_peek_error());
    return why ? why : "it gives no reason";
}
