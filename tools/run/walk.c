/* tools/run/walk.c - a walk over a mapping whose keys are known: each is taken once, and others are ignored with a warning.
 *
 * "<<" is followed, so far as YAML of people needs. tests/tools/tools_run_check.py and tests/tools/tools_run_meta.py check it. */
#include <string.h>
#include <strings.h>

#include "meta.h"

enum { KEYS_MAX = 16, MERGES_MAX = 64 /* "<<" in a file, and what is behind them */ };

const char *meta_kind_of(const meta_node_t *node)
{
    static const char *const texts[] = {"a single value", "a list", "a mapping"};
    return texts[node->kind];
}

/* Nothing was written there: "parents:" alone, [] or {}. */
bool meta_is_empty(const meta_node_t *node)
{
    const char *s = node->text;
    return s ? node->plain && (!*s || !strcmp(s, "~") || !strcasecmp(s, "null")) : !node->n;
}

static int find_key(const meta_key_t *keys, const char *name)
{
    for (int k = 0; keys && keys[k].name; k++)
        if (!strcmp(keys[k].name, name))
            return k;
    return -1;
}

static void unknown_key(meta_t *m, const meta_node_t *node, const meta_node_t *value, const meta_keys_t *keys)
{
    const char *names[KEYS_MAX], *near;
    char shown[80];
    size_t n = 0;
    run_text_t all = {0};
    if (find_key(keys->other, node->text) >= 0) {
        if (!meta_is_empty(value)) /* Scad's tools write the keys of both kinds, and nothing behind them */
            warn(m, node, node->text, "\"%s\" is ignored: it is a key%s", node->text, keys->of_other);
        return;
    }
    for (; keys->known[n].name; n++) {
        names[n] = keys->known[n].name;
        run_addf(&all, "%s%s", n ? ", " : "", keys->known[n].name);
    }
    near = tool_nearest(node->text, names, n);
    tool_plain(node->text, shown, sizeof shown);
    if (near)
        warn(m, node, shown, "\"%s\" is ignored: there is no such key%s; did you mean \"%s\"?", shown, keys->of, near);
    else
        warn(m, node, shown, "\"%s\" is ignored: there is no such key%s; known are %s", shown, keys->of, all.p);
    run_free(&all);
}

static void take_pairs(meta_t *m, const meta_node_t *node, const meta_keys_t *keys, unsigned *seen, void *into);

/* What is behind "<<": its keys count where the mapping itself does not have them. */
static void take_merge(meta_t *m, const meta_node_t *value, const meta_keys_t *keys, unsigned *seen, void *into)
{
    if (m->merges > MERGES_MAX)
        return;
    if (++m->merges > MERGES_MAX) {
        problem(m, value, "\"<<\" leads to more than %d mappings", MERGES_MAX);
    } else if (value->kind == META_MAPPING) {
        take_pairs(m, value, keys, seen, into);
    } else if (value->kind == META_LIST) {
        for (unsigned i = 0; i < value->n; i++)
            take_merge(m, meta_item(m, value, i), keys, seen, into);
    } else {
        problem(m, value, "\"<<\" is followed by an alias of a mapping, or by a list of them");
    }
}

static bool is_merge(const meta_node_t *key)
{
    return key->text && key->plain && !strcmp(key->text, "<<");
}

static void take_pairs(meta_t *m, const meta_node_t *node, const meta_keys_t *keys, unsigned *seen, void *into)
{
    unsigned here = 0;
    for (unsigned i = 0; i < node->n; i++) {
        const meta_node_t *key = meta_key(m, node, i), *value = meta_value(m, node, i);
        int k = key->text ? find_key(keys->known, key->text) : -1;
        if (!key->text) {
            problem(m, key, "a key is %s; keys are words", meta_kind_of(key));
        } else if (is_merge(key)) {
            continue;
        } else if (k < 0) {
            unknown_key(m, key, value, keys);
        } else if (here & 1u << k) {
            problem(m, key, "\"%s\" is there twice", key->text);
        } else if (!(*seen & 1u << k)) {
            here |= 1u << k;
            if (!meta_is_empty(value))
                keys->known[k].take(m, value, &keys->known[k], (char *)into + keys->known[k].to);
        }
    }
    *seen |= here;
    for (unsigned i = 0; i < node->n; i++)
        if (is_merge(meta_key(m, node, i)))
            take_merge(m, meta_value(m, node, i), keys, seen, into);
}

void meta_walk(meta_t *m, const meta_node_t *mapping, const meta_keys_t *keys, void *into)
{
    unsigned seen = 0;
    take_pairs(m, mapping, keys, &seen, into);
}
