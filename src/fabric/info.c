/* fabric/info.c - what the fabric of this machine is and has, for people: `weft info`. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "fabric/fabric.h"
#include "fabric/module.h"
#include "fabric/tls.h"

static void tell(weft_config_fn fn, void *user, const char *name, const char *value)
{
    weft_config_var_t var = {.name = name, .value = value};
    fn(&var, user);
}

/* The first file of keys or certificates that cannot be read: no runtime opens then. NULL: there is none. */
static const char *tls_file_missing(const wefti_config_t *config, const char **path_out)
{
    static const char *const names[] = {"WEFT_KEY_FILE", "WEFT_TLS_CERT", "WEFT_TLS_KEY", "WEFT_TLS_CA", "WEFT_TLS_CRL"};
    const char *const paths[] = {config->key_file, config->tls_cert, config->tls_key, config->tls_ca, config->tls_crl};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (paths[i] && *paths[i] && access(paths[i], R_OK)) {
            *path_out = paths[i];
            return names[i];
        }
    return NULL;
}

static void tell_tls(weft_config_fn fn, void *user, const wefti_config_t *config)
{
    static const wefti_keys_t any;
    const char *path, *variable = tls_file_missing(config, &path);
    char by[400], text[1200];
    int err = errno;
    if (variable) {
        wefti_tls_version(by, sizeof by);
        snprintf(text, sizeof text, "%s; nothing can be opened: %s is \"%.300s\", which cannot be read: %s", by, variable, path,
                 strerror(err));
        tell(fn, user, "tls", text);
        return;
    }
    wefti_guard_t *g = wefti_guard_new(config);
    if (!g)
        return;
    if (config->key_file && *config->key_file)
        (void)wefti_guard_keys(g, &any); /* that there is one is all that matters here */
    const char *certificate = config->tls_cert && *config->tls_cert ? config->tls_cert : NULL;
    char name[256] = "", known[600] = "";
    weft_status_t st = certificate ? wefti_guard_ready(g) : WEFT_OK;
    if (st)
        snprintf(known, sizeof known, "; the certificate cannot be used: %.400s", weft_last_error());
    else if (certificate)
        wefti_guard_name(g, name, sizeof name);
    if (*name)
        snprintf(known, sizeof known, "; peers know us as \"%s\"", name);
    wefti_tls_version(by, sizeof by);
    snprintf(text, sizeof text, "%s; %s%s", by,
             wefti_guard_demands_here(g)                  ? "what leaves this host is encrypted, and so is tcp:// within it"
             : wefti_guard_demands(g)                     ? "what leaves this host is encrypted"
             : config->tls && !strcmp(config->tls, "off") ? "only tls:// is encrypted, since WEFT_TLS is off"
                                                          : "only tls:// is encrypted, since there is neither a key nor a "
                                                            "certificate",
             known);
    tell(fn, user, "tls", text);
    wefti_guard_free(g);
}

void wefti_fabric_info(weft_config_fn fn, void *user, bool ask_ucx)
{
    char found[512] = "", text[560];
    const char *why = "unknown: the configuration, which says where the module is, is not valid";
    wefti_config_t config;
    const wefti_module_t *m = NULL;
    weft_status_t st = wefti_config_read(&config);
    if (!st) {
        tell_tls(fn, user, &config);
        st = wefti_module_load(config.module_path, &m);
        wefti_config_free(&config);
        why = weft_last_error();
    }
    if (!st && ask_ucx)
        m->ucx_transports(found, sizeof found);
    snprintf(text, sizeof text, "shm tcp%s%s", *found ? "; UCX: " : "", found);
    tell(fn, user, "ucx_version", st ? why : m->ucx_version());
    tell(fn, user, "ucx_built_with", st ? "none" : m->ucx_built_with);
    tell(fn, user, "transports", text);
}
