/* fabric/module.h - the interface between the library and libweft_ucx.so, which is loaded when UCX is wanted.
 *
 * The two meet in this header, in fabric.h, and nowhere else: the module is not linked to the library, since a program may have
 * the library inside itself. What the module uses of base is a copy of its own; what has state there comes with
 * wefti_module_host_t. The library refuses a module whose version or size is not its own. tests/wire/fabric_module.c. */
#ifndef WEFTI_MODULE_H
#define WEFTI_MODULE_H

#include "fabric/fabric.h"

#define WEFTI_MODULE_VERSION 3 /* changes with the meaning of anything that the two share */
#define WEFTI_MODULE_FILE "libweft_ucx.so"
#define WEFTI_MODULE_SYMBOL "weft_ucx_module" /* the wefti_module_t of the module */

/* What the library gives to the module. */
typedef struct wefti_module_host {
    const _Atomic int *log_level; /* as wefti_log_level */
    void (*log_line)(weft_log_level_t level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
    weft_status_t (*fail)(weft_status_t status, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
    int (*alloc_fails)(size_t n); /* tests make an allocation of n bytes fail; never NULL */
} wefti_module_host_t;

typedef struct wefti_ucx_params {
    const char *tls;     /* UCX's list of transports; "": all that it has */
    const char *devices; /* UCX's list of network devices; NULL: all */
    bool trusted;        /* with one-sided operations */
    bool rendezvous;     /* for tests: use UCX's rendezvous over TCP too */
} wefti_ucx_params_t;

/* What the module offers. A driver calls these, like all of fabric.h; mem_register() and mem_unregister() are for any thread. */
typedef struct wefti_module {
    uint32_t version; /* WEFTI_MODULE_VERSION; these two stay first for ever */
    uint32_t size;    /* WEFTI_MODULE_SIZE */
    void (*start)(const wefti_module_host_t *host); /* once, before anything else */

    /* Make the transport. The texts are copied. UCX itself is opened by the first lane. WEFT_ERR_NOMEM. */
    weft_status_t (*open)(wefti_fabric_t *f, const wefti_ucx_params_t *params, wefti_transport_t **transport_out);
    unsigned (*progress)(wefti_transport_t *transport);
    /* Register a range, unregister it. *reg_out is NULL while UCX is not open. WEFT_ERR_NOMEM, _SYSTEM. */
    weft_status_t (*mem_register)(wefti_transport_t *transport, void *base, size_t n, void **reg_out);
    void (*mem_unregister)(wefti_transport_t *transport, void *reg);

    /* Facts: the UCX that runs, the one whose headers the module was built with, and the transports it finds here, separated by
     * spaces. */
    const char *(*ucx_version)(void);
    const char *ucx_built_with;
    void (*ucx_transports)(char *buf, size_t cap);
} wefti_module_t;

/* Of everything that the two share, so that a change of any struct of fabric.h is noticed. */
#define WEFTI_MODULE_SIZE \
    ((uint32_t)(sizeof(wefti_module_t) + sizeof(wefti_module_host_t) + sizeof(wefti_ucx_params_t) + sizeof(wefti_fabric_ops_t) + \
                sizeof(wefti_fabric_up_t) + sizeof(wefti_transport_ops_t) + sizeof(wefti_fabric_t) + sizeof(wefti_transport_t) + \
                sizeof(wefti_lane_t) + sizeof(wefti_pull_t) + sizeof(wefti_xfer_t) + sizeof(wefti_meeting_t)))

/* module.c: load it, or return the one that was loaded; it stays loaded until the process ends. `folder` (the variable
 * "module_path"): look there and nowhere else; "": beside the library or the program, then where the library was to be
 * installed. WEFT_ERR_UNSUPPORTED with a sentence that says what to install. Any thread. */
weft_status_t wefti_module_load(const char *folder, const wefti_module_t **module_out);

extern bool wefti_ucx_rendezvous; /* for tests: of every transport opened from now on, see wefti_ucx_params_t */

#endif
