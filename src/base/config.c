/* base/config.c - from environment, file and defaults to one snapshot of every variable.
 *
 * Three steps, no state between them: gather() notes for each variable the text that is in force and where it came from;
 * wefti_config_convert() turns one text into the field of the snapshot, or says what would be right; the public functions put
 * the two together. gather() neither logs nor records an error (it keeps it in `problem`), since the log itself asks here for
 * its level.
 *
 * Only which unknown names were warned about outlives a call: a small table of hashes, filled without a lock. When it is full,
 * further names are not warned about.
 *
 * Promise: a snapshot is complete and in range, or nothing was made and weft_last_error() names the variable, the value, its
 * source and what would be right. tests/unit/base_config.c, tests/fuzz/config.c. */
#include "base/config.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/ascii.h"
#include "base/config_text.h"
#include "base/config_value.h"
#include "base/log.h"
#include "base/map.h"
#include "base/nearest.h"
#include "base/uri.h"

static const var_t vars[] = {
#define VAR(field, kind, def, range, doc) {#field, kind, def, range, doc, offsetof(wefti_config_t, field)},
    WEFTI_CONFIG_LIST(VAR)
#undef VAR
};
enum {
#define INDEX(field, kind, def, range, doc) VAR_##field,
    WEFTI_CONFIG_LIST(INDEX)
#undef INDEX
        VAR_N
};

/* A string that lives as long as its snapshot. */
typedef struct wefti_config_store {
    struct wefti_config_store *next;
    char text[];
} store_t;

typedef struct gathered {
    given_t of[VAR_N];
    wefti_config_file_t file;
    weft_status_t status; /* the first thing that is wrong with the file */
    char problem[400];
} gathered_t;

typedef void (*unknown_fn)(const char *name, const char *source, unsigned line, void *arg);

/* --- gathering -------------------------------------------------------------------------------------------------------------- */

/* The variable of that name, as it may be written in the file; VAR_N: none. */
static int find_var(const char *name)
{
    if (strlen(name) > PREFIX_LEN && wefti_same_text(name, PREFIX, PREFIX_LEN))
        name += PREFIX_LEN;
    size_t n = strlen(name);
    for (int i = 0; i < VAR_N; i++)
        if (strlen(vars[i].field) == n && wefti_same_text(name, vars[i].field, n))
            return i;
    return VAR_N;
}

__attribute__((format(printf, 3, 4))) static void note_problem(gathered_t *g, weft_status_t status, const char *fmt, ...)
{
    va_list args;
    if (g->status)
        return;
    g->status = status;
    va_start(args, fmt);
    vsnprintf(g->problem, sizeof g->problem, fmt, args);
    va_end(args);
}

/* An empty value counts only where the default is empty. */
static bool says_something(const var_t *var, const char *text)
{
    return *text || !*var->def;
}

static void gather_file(gathered_t *g, const char *path, unknown_fn unknown, void *arg)
{
    wefti_config_line_t line;
    while (wefti_config_file_next(&g->file, &line)) {
        unsigned at = g->file.line;
        if (line.problem) {
            note_problem(g, WEFT_ERR_INVALID, "%s:%u: \"%.80s\" %s", path, at, line.name, line.problem);
            continue;
        }
        int i = find_var(line.name);
        if (i == VAR_N) {
            if (unknown)
                unknown(line.name, path, at, arg);
        } else if (i == VAR_config_file) {
            note_problem(g, WEFT_ERR_INVALID, "%s:%u: %s belongs in the environment: a file cannot name another", path, at,
                         line.name);
        } else if (g->of[i].line) {
            note_problem(g, WEFT_ERR_INVALID, "%s:%u: %s was given before, on line %u", path, at, line.name, g->of[i].line);
        } else {
            bool says = says_something(&vars[i], line.value);
            g->of[i] = (given_t){says ? line.value : vars[i].def, says ? path : "default", at};
        }
    }
}

static void gather_defaults(gathered_t *g)
{
    memset(g, 0, sizeof *g);
    for (int i = 0; i < VAR_N; i++)
        g->of[i] = (given_t){vars[i].def, "default", 0};
}

static void gather_env(gathered_t *g)
{
    for (int i = 0; i < VAR_N; i++) {
        char name[NAME_CAP];
        wefti_config_env_name(&vars[i], name);
        /* secure: the caller of a set-uid program chooses its environment */
        const char *text = secure_getenv(name);
        if (text && says_something(&vars[i], text))
            g->of[i] = (given_t){text, "environment", 0};
    }
}

static void gather_unknown_env(unknown_fn unknown, void *arg)
{
    for (char **e = environ; e && *e; e++) {
        char name[4 * NAME_CAP];
        size_t n = strcspn(*e, "=");
        if (n < PREFIX_LEN || strncmp(*e, PREFIX, PREFIX_LEN))
            continue;
        if (n >= sizeof name)
            n = sizeof name - 1; /* none of ours is nearly as long */
        memcpy(name, *e, n);
        name[n] = '\0';
        int i = find_var(name);
        char right[NAME_CAP] = "";
        if (i < VAR_N)
            wefti_config_env_name(&vars[i], right);
        if (strcmp(name, right)) /* WEFT_heartbeat is not WEFT_HEARTBEAT to the environment */
            unknown(name, "environment", 0, arg);
    }
}

/* Defaults, the file over them, the environment over both. After a problem with the file the rest is still gathered. Free it
 * after use. */
static void gather(gathered_t *g, unknown_fn unknown, void *arg)
{
    const char *why = NULL, *path = secure_getenv(PREFIX "CONFIG_FILE");
    gather_defaults(g);
    if (unknown)
        gather_unknown_env(unknown, arg);
    if (path && *path) {
        weft_status_t st = wefti_config_file_load(path, &g->file, &why);
        if (st)
            note_problem(g, st, PREFIX "CONFIG_FILE is \"%.200s\" (environment), but should be a readable file: %s", path, why);
        else
            gather_file(g, path, unknown, arg);
    }
    gather_env(g);
}

/* --- the snapshot ----------------------------------------------------------------------------------------------------------- */

/* Convert everything that was gathered. */
static weft_status_t snapshot(const gathered_t *g, wefti_config_t *config_out)
{
    wefti_config_t config;
    weft_status_t st = g->status ? wefti_fail(g->status, "%s", g->problem) : WEFT_OK;
    memset(&config, 0, sizeof config);
    for (int i = 0; !st && i < VAR_N; i++)
        st = wefti_config_convert(&vars[i], &g->of[i], &config);
    if (st) {
        wefti_config_free(&config);
        return st;
    }
    *config_out = config;
    return WEFT_OK;
}

/* --- unknown names ---------------------------------------------------------------------------------------------------------- */

/* The known name nearest to an unknown one; false: none is near. */
static bool nearest_name(const char *name, char nearest[NAME_CAP])
{
    const char *bare = strlen(name) > PREFIX_LEN && wefti_same_text(name, PREFIX, PREFIX_LEN) ? name + PREFIX_LEN : name;
    size_t best = SIZE_MAX;
    int found = VAR_N;
    for (int i = 0; i < VAR_N; i++) {
        size_t distance = wefti_word_distance(bare, vars[i].field);
        if (distance < best && wefti_word_near(distance, vars[i].field)) {
            best = distance;
            found = i;
        }
    }
    if (found == VAR_N)
        return false;
    wefti_config_env_name(&vars[found], nearest);
    return true;
}

/* True once per name and process, and false when too many different ones came. */
static bool first_time(const char *name)
{
    static _Atomic uint64_t seen[64];
    uint64_t hash = wefti_hash_bytes(name, strlen(name)) | 1; /* 0 is an empty place */
    for (size_t i = 0; i < sizeof seen / sizeof seen[0]; i++) {
        uint64_t there = 0;
        if (atomic_compare_exchange_strong(&seen[i], &there, hash))
            return true;
        if (there == hash)
            return false;
    }
    return false;
}

static void warn_unknown(const char *name, const char *source, unsigned line, void *arg)
{
    char nearest[NAME_CAP], where[240];
    (void)arg;
    if (!first_time(name))
        return;
    wefti_config_where(source, line, where, sizeof where);
    if (nearest_name(name, nearest))
        wefti_warn("%.80s (%s) is no variable of ours: did you mean %s?", name, where, nearest);
    else
        wefti_warn("%.80s (%s) is no variable of ours", name, where);
}

typedef struct tell {
    weft_config_fn fn;
    void *user;
} tell_t;

static void tell_unknown(const char *name, const char *source, unsigned line, void *arg)
{
    const tell_t *tell = arg;
    char nearest[NAME_CAP];
    bool near = nearest_name(name, nearest);
    weft_config_var_t var = {.name = name, .value = near ? nearest : NULL, .source = source};
    (void)line;
    tell->fn(&var, tell->user);
}

/* --- the door --------------------------------------------------------------------------------------------------------------- */

const char *wefti_config_keep(wefti_config_t *config, const char *text)
{
    size_t n = strlen(text) + 1;
    store_t *kept = wefti_malloc(sizeof *kept + n);
    if (!kept)
        return NULL;
    memcpy(kept->text, text, n);
    kept->next = config->store;
    config->store = kept;
    return kept->text;
}

void wefti_config_free(wefti_config_t *config)
{
    for (store_t *kept = config->store, *next; kept; kept = next) {
        next = kept->next;
        wefti_free(kept);
    }
    memset(config, 0, sizeof *config);
}

weft_status_t wefti_config_read(wefti_config_t *config_out)
{
    gathered_t g;
    wefti_config_t config;
    char word[WORD_CAP];
    gather(&g, warn_unknown, NULL);
    weft_status_t st = snapshot(&g, &config);
    wefti_config_file_free(&g.file);
    if (st)
        return st;
    wefti_log_configured((weft_log_level_t)wefti_config_choice(&vars[VAR_log], config.log, word));
    *config_out = config;
    return WEFT_OK;
}

weft_status_t wefti_config_parse(const char *source, const void *bytes, size_t n, wefti_config_t *config_out)
{
    gathered_t g;
    gather_defaults(&g);
    if (wefti_config_file_from(bytes, n, &g.file))
        return wefti_fail(WEFT_ERR_NOMEM, "no memory for the configuration");
    gather_file(&g, source, NULL, NULL);
    weft_status_t st = snapshot(&g, config_out);
    wefti_config_file_free(&g.file);
    return st;
}

weft_log_level_t wefti_config_log_level(void)
{
    gathered_t g;
    char word[WORD_CAP];
    gather(&g, NULL, NULL);
    int level = wefti_config_choice(&vars[VAR_log], g.of[VAR_log].text, word);
    wefti_config_file_free(&g.file);
    return level < 0 ? WEFT_LOG_WARN : (weft_log_level_t)level;
}

weft_status_t weft_config_each(weft_config_fn fn, void *user)
{
    gathered_t g;
    wefti_config_t config;
    if (!fn)
        return wefti_fail(WEFT_ERR_INVALID, "weft_config_each: fn is NULL");
    gather(&g, NULL, NULL);
    for (int i = 0; i < VAR_N; i++) {
        char name[NAME_CAP];
        char hidden[1024];
        const char *value = i == VAR_key_file && *g.of[i].text ? "(set)" : g.of[i].text;
        if (i == VAR_registry) { /* there may be a password in it */
            wefti_uri_hide(value, hidden, sizeof hidden);
            value = hidden;
        }
        wefti_config_env_name(&vars[i], name);
        weft_config_var_t var = {.name = name, .doc = vars[i].doc, .value = value, .source = g.of[i].source};
        fn(&var, user);
    }
    weft_status_t st = snapshot(&g, &config);
    if (!st)
        wefti_config_free(&config);
    wefti_config_file_free(&g.file);
    return st;
}

weft_status_t weft_config_unknown_each(weft_config_fn fn, void *user)
{
    gathered_t g;
    tell_t tell = {fn, user};
    if (!fn)
        return wefti_fail(WEFT_ERR_INVALID, "weft_config_unknown_each: fn is NULL");
    gather(&g, tell_unknown, &tell);
    weft_status_t st = g.status ? wefti_fail(g.status, "%s", g.problem) : WEFT_OK;
    wefti_config_file_free(&g.file);
    return st;
}
