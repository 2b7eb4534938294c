/* core/opts.c - the options of a runtime, laid over the configuration, and its name.
 *
 * Options beat environment and file. Zero means "as configured". The bytes of the key become the key at once (key.c); neither
 * reaches the log, and both are wiped. tests/unit/core_opts.c. */
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/opts.h"
#include "core/key.h"
#include "core/local.h"

#define SPIN_THREAD (50 * WEFT_MICROSECOND)
#define SPIN_CALLER (2 * WEFT_MILLISECOND)

static const char *const mode_names[] = {NULL, "caller", "thread", "loop"};

/* --- options over configuration --------------------------------------------------------------------------------------------- */

static weft_status_t merge_number(const char *what, uint64_t given, uint64_t least, uint64_t most, uint64_t *field)
{
    if (!given)
        return WEFT_OK;
    if (given < least || given > most)
        return wefti_fail(WEFT_ERR_INVALID, "%s is %llu, but should be from %llu to %llu", what, (unsigned long long)given,
                          (unsigned long long)least, (unsigned long long)most);
    *field = given;
    return WEFT_OK;
}

static weft_status_t merge_text(wefti_config_t *config, const char *given, const char **field)
{
    if (!given || (*field && !strcmp(given, *field)))
        return WEFT_OK;
    const char *kept = wefti_config_keep(config, given);
    if (!kept)
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the options");
    *field = kept;
    return WEFT_OK;
}

static weft_status_t check_key(const weft_runtime_opts_t *o)
{
    if (!o->key && o->key_len)
        return wefti_fail(WEFT_ERR_INVALID, "the key is NULL, but its length %zu", o->key_len);
    if (o->key && (o->key_len < WEFTI_KEY_LEAST || o->key_len > WEFTI_KEY_MOST))
        return wefti_fail(WEFT_ERR_INVALID, "the key has %zu bytes, but should have %d to %d", o->key_len, (int)WEFTI_KEY_LEAST,
                          (int)WEFTI_KEY_MOST);
    if (o->key_random && !o->key)
        return wefti_fail(WEFT_ERR_INVALID, "key_random is set, but there is no key in the options");
    if (o->key_random && o->key_len != WEFTI_KEY_SIZE)
        return wefti_fail(WEFT_ERR_INVALID, "the key has %zu bytes, but key_random is set: a random key has %d", o->key_len,
                          (int)WEFTI_KEY_SIZE);
    return WEFT_OK;
}

static weft_status_t merge_tls(const weft_tls_opts_t *given, wefti_config_t *config)
{
    weft_tls_opts_t t;
    weft_status_t st = wefti_opts_read(given, &t, sizeof t, "weft_tls_opts_t");
    if (!st)
        st = merge_text(config, t.cert, &config->tls_cert);
    if (!st)
        st = merge_text(config, t.key, &config->tls_key);
    if (!st && t.mode && strcmp(t.mode, "auto") != 0 && strcmp(t.mode, "off") != 0 && strcmp(t.mode, "required") != 0)
        st = wefti_fail(WEFT_ERR_INVALID, "the mode of TLS is \"%.40s\", but should be auto, off or required", t.mode);
    if (!st)
        st = merge_text(config, t.mode, &config->tls);
    return st ? st : merge_text(config, t.ca, &config->tls_ca);
}

weft_status_t wefti_runtime_merge_opts(const weft_runtime_opts_t *opts, wefti_config_t *config)
{
    weft_runtime_opts_t o;
    uint64_t ring = config->shm_ring;
    const uint64_t hour = 3600 * WEFT_SECOND;
    weft_status_t st = wefti_opts_read(opts, &o, sizeof o, "weft_runtime_opts_t");
    if (st)
        return st;
    if ((int)o.progress < WEFT_PROGRESS_DEFAULT || o.progress > WEFT_PROGRESS_LOOP)
        return wefti_fail(WEFT_ERR_INVALID, "%d is no progress mode", (int)o.progress);
    if (o.name && strlen(o.name) >= sizeof(((weft_runtime_t *)0)->name))
        return wefti_fail(WEFT_ERR_INVALID, "the name \"%.40s...\" has %zu bytes; at most %zu are allowed", o.name,
                          strlen(o.name), sizeof(((weft_runtime_t *)0)->name) - 1);
    if ((st = check_key(&o)) || (st = merge_number("spin_ns", o.spin_ns, 0, WEFT_SECOND, &config->spin)) ||
        (st = merge_number("heartbeat_ns", o.heartbeat_ns, 100 * WEFT_MILLISECOND, hour, &config->heartbeat)) ||
        (st = merge_number("connect_timeout_ns", o.connect_timeout_ns, WEFT_MILLISECOND, hour, &config->connect_timeout)) ||
        (st = merge_number("close_timeout_ns", o.close_timeout_ns, WEFT_MILLISECOND, hour, &config->close_timeout)) ||
        (st = merge_number("recv_window", o.recv_window, 16384, UINT64_C(1) << 30, &config->recv_window)) ||
        (st = merge_number("am_window", o.am_window, 16384, UINT64_C(1) << 30, &config->am_window)) ||
        (st = merge_number("am_messages", o.am_messages, 16, 65535, &config->am_messages)) ||
        (st = merge_number("am_hold_ns", o.am_hold_ns, WEFT_MILLISECOND, 24 * hour, &config->am_hold)) ||
        (st = merge_number("shm_ring", o.shm_ring, 16384, UINT64_C(1) << 26, &ring)) ||
        (st = merge_number("max_endpoints", o.max_endpoints, 1, 16777215, &config->max_endpoints)))
        return st;
    if (ring & (ring - 1))
        return wefti_fail(WEFT_ERR_INVALID, "shm_ring is %llu, but should be a power of two", (unsigned long long)ring);
    config->shm_ring = ring;
    bool threads = o.shards > 1 && !o.progress; /* several shards are driven by threads */
    const char *mode = o.progress ? mode_names[o.progress] : threads ? mode_names[WEFT_PROGRESS_THREAD] : NULL;
    if ((st = merge_text(config, mode, &config->progress)) || (st = merge_text(config, o.name, &config->name)) ||
        (st = merge_text(config, o.transports, &config->transports)) ||
        (st = merge_text(config, o.interfaces, &config->interfaces)) ||
        (st = merge_text(config, o.heartbeat_by_program ? "program" : NULL, &config->heartbeat_by)) ||
        (st = merge_tls(o.tls, config)) ||
        (st = merge_text(config, o.trusted && !wefti_trusted(config) ? "on" : NULL, &config->trusted)))
        return st;
    return WEFT_OK;
}

/* --- all of it -------------------------------------------------------------------------------------------------------------- */

static weft_progress_mode_t mode_of(const char *word)
{
    for (int i = WEFT_PROGRESS_CALLER; i <= WEFT_PROGRESS_LOOP; i++)
        if (word && !strcmp(word, mode_names[i]))
            return (weft_progress_mode_t)i;
    return WEFT_PROGRESS_CALLER;
}

weft_status_t wefti_runtime_configure(weft_runtime_t *rt, const weft_runtime_opts_t *opts)
{
    wefti_config_t *c = &rt->config;
    weft_runtime_opts_t o;
    weft_status_t st = wefti_runtime_merge_opts(opts, c);
    if (!st)
        st = wefti_opts_read(opts, &o, sizeof o, "weft_runtime_opts_t");
    if (st)
        return st;
    rt->mode = (uint8_t)mode_of(c->progress);
    rt->spin_ns = c->spin != UINT64_MAX ? c->spin : wefti_mode(rt) == WEFT_PROGRESS_THREAD ? SPIN_THREAD : SPIN_CALLER;
    rt->beats_by_program = c->heartbeat_by && !strcmp(c->heartbeat_by, "program");
    if (c->name && strlen(c->name) >= sizeof rt->name)
        return wefti_fail(WEFT_ERR_INVALID, "WEFT_NAME has %zu bytes; at most %zu are allowed", strlen(c->name),
                          sizeof rt->name - 1);
    if (c->name && *c->name)
        snprintf(rt->name, sizeof rt->name, "%s", c->name);
    else
        snprintf(rt->name, sizeof rt->name, "%.100s-%d", program_invocation_short_name, (int)getpid());
    if (sodium_init() < 0)
        return wefti_fail(WEFT_ERR_SYSTEM, "libsodium cannot start: there is no randomness");
    bool in_file = !o.key && c->key_file && *c->key_file;
    if (o.key && (st = wefti_keys_make("the key", o.key, o.key_len, o.key_random, &rt->keys)))
        return st;
    if (in_file)
        (void)wefti_changed_look(&rt->keys_seen, c->key_file);
    if (in_file && (st = wefti_keys_read(c->key_file, false, &rt->keys)))
        return st;
    rt->keys_in_file = in_file;
    rt->has_key = rt->keys;
    if (wefti_trusted(c) && !rt->has_key)
        return wefti_fail(WEFT_ERR_INVALID,
                          "WEFT_TRUSTED is %s, but there is no key that peers could prove: set WEFT_KEY_FILE, or "
                          "WEFT_TRUSTED=off",
                          c->trusted);
    return WEFT_OK;
}
