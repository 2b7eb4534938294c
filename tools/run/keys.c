/* tools/run/keys.c - the keys of elements: which there are, and what each of their values means.
 *
 * What has a meaning is taken. What has none is ignored, with a warning that names the file, the line and the key: programs that
 * were written for Scad have keys that it never looked at. What cannot be meant, or contradicts itself, is a problem. Reading
 * goes on after a mistake, so that all of them are reported. The guide has a table of it (docs/guide/elements.md).
 * tests/tools/tools_run_check.py and tests/tools/tools_run_meta.py check it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "meta.h"

static void take_mapping(meta_t *m, const meta_node_t *node, const meta_key_t *known, const char *of, void *into)
{
    meta_keys_t keys = {.known = known, .of = of};
    meta_walk(m, node, &keys, into);
}

/* --- values ---------------------------------------------------------------------------------------------------------- */

/* A name of an element, or NULL after a sentence. */
static const char *take_name(meta_t *m, const meta_node_t *node, const char *what)
{
    const char *s = node->text;
    char shown[80];
    if (!s) {
        problem(m, node, "%s is %s; a name is wanted", what, meta_kind_of(node));
        return NULL;
    }
    if (!run_name_ok(s, strlen(s))) {
        problem(m, node, "%s \"%s\" is no name of an element: letters, digits, '-', '_' and '.' make one", what,
                tool_plain(s, shown, sizeof shown));
        return NULL;
    }
    return s;
}

static bool has_name(const run_names_t *names, const char *name)
{
    for (unsigned i = 0; i < names->n; i++)
        if (!strcmp(names->at[i].name, name))
            return true;
    return false;
}

static void take_names(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    const char *what = key->name, *single = node->text ? take_name(m, node, what) : NULL;
    run_names_t *names = into;
    if (single)
        run_name_add(names, run_dup(single), node->line);
    if (node->text)
        return;
    if (node->kind != META_LIST) {
        problem(m, node, "%s is %s; a list is wanted: \"- NAME\" on lines of its own, or [NAME, NAME]", what, meta_kind_of(node));
        return;
    }
    for (unsigned i = 0; i < node->n; i++) {
        const meta_node_t *entry = meta_item(m, node, i);
        const char *name = take_name(m, entry, what);
        if (name && has_name(names, name))
            warn(m, entry, what, "%s has \"%s\" twice, which is ignored", what, name);
        else if (name)
            run_name_add(names, run_dup(name), entry->line);
    }
}

static void take_type(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    const run_element_t *e = into;
    const char *s = node->text;
    (void)key;
    if (!s || (strcasecmp(s, "compute") && strcasecmp(s, "memory")))
        problem(m, node, "type is compute or memory");
    else if (e->memory && !strcasecmp(s, "compute"))
        problem(m, node, "type is compute, but a compute element is a program: name the file %s.o.py", e->name);
    else if (!e->memory && !strcasecmp(s, "memory"))
        problem(m, node, "type is memory, but a memory element has no program: name the file %s.o.yaml", e->name);
}

/* Scad's tools write both, and its launchers take the name from there. */
static void take_own_name(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    const run_element_t *e = into;
    char shown[80];
    (void)key;
    if (!node->text || strcmp(node->text, e->name) != 0)
        problem(m, node, "name is %s, but an element has the name of its file, which is \"%s\": name the file after it",
                node->text ? tool_plain(node->text, shown, sizeof shown) : meta_kind_of(node), e->name);
}

static void take_file_type(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    const char *is = ((const run_element_t *)into)->memory ? ".yaml" : ".py";
    (void)key;
    if (!node->text || strcmp(node->text, is) != 0)
        problem(m, node, "filetype is not that of this file, which is %s", is);
}

/* "2.0" is 2. */
static void take_number(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    char digits[16] = "";
    const char *point = node->text ? strchr(node->text, '.') : NULL;
    size_t whole = node->text ? strspn(node->text, "0123456789") : 0;
    uint64_t n;
    if (point && point == node->text + whole && point[1] && !point[1 + strspn(point + 1, "0")] && whole < sizeof digits)
        memcpy(digits, node->text, whole);
    if (node->text && tool_parse_count(*digits ? digits : node->text, (uint64_t)key->min, (uint64_t)key->max, &n))
        *(unsigned *)into = (unsigned)n;
    else
        problem(m, node, "%s is a whole number from %d to %d", key->name, key->min, key->max);
}

static void take_bool(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (size_t i = 0; node->text && i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(node->text, words[i])) {
            *(bool *)into = i % 2;
            return;
        }
    problem(m, node, "%s is true or false", key->name);
}

static void take_retries(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    m->retries_line = node->line;
    take_number(m, node, key, into);
}

static void take_map(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    char of[32];
    snprintf(of, sizeof of, " in %s", key->name);
    if (node->kind != META_MAPPING)
        problem(m, node, "%s is %s; a mapping is wanted: %s", key->name, meta_kind_of(node), key->example);
    else
        take_mapping(m, node, key->keys, of, into);
}

static void take_size(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    char shown[80];
    uint64_t size;
    if (node->text && run_size_large(node->text))
        problem(m, node, "%s is %s, and sizes are below 64 TB", key->name, tool_plain(node->text, shown, sizeof shown));
    else if (!node->text || !run_size_mb(node->text, &size))
        problem(m, node, "%s is %s; a size is wanted: 512M, 64 MB, 2G; a number alone is MB", key->name,
                node->text ? tool_plain(node->text, shown, sizeof shown) : meta_kind_of(node));
    else if (*(uint64_t *)into)
        problem(m, node, "%s is there under two names", key->name);
    else
        *(uint64_t *)into = size;
}

static void take_cpu(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    const char *s = node->text;
    char *end = NULL;
    double v = s && *s ? strtod(s, &end) : 0;
    if (!end || *end || !isfinite(v) || v <= 0 || v > 4096)
        problem(m, node, "%s is a number of processors above 0, such as 1 or 0.5", key->name);
    else if (*(double *)into > 0)
        problem(m, node, "%s is there under two names", key->name);
    else
        *(double *)into = v;
}

static void take_time(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    uint64_t ns;
    if (m->e->memory)
        warn(m, node, key->name,
             "time is ignored: it is a limit of compute elements, and memory is there while somebody uses it");
    else if (!node->text || !tool_parse_time(node->text, &ns) || !ns)
        problem(m, node, "time is how long one copy may take, such as 30s, 500ms or 2h");
    else
        *(uint64_t *)into = ns;
}

#define RESOURCES \
    {"cpu", take_cpu, .to = offsetof(run_limits_t, cpu)}, {"mem", take_size, .to = offsetof(run_limits_t, mem)}, \
    { \
        "storage", take_size, .to = offsetof(run_limits_t, storage) \
    }

static const meta_key_t limit_keys[] = {RESOURCES, {"time", take_time, .to = offsetof(run_limits_t, time_ns)}, {0}};

static void take_imports(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    run_element_t *e = into;
    (void)key;
    if (node->kind != META_LIST) {
        problem(m, node, "import is %s; a list of files is wanted", meta_kind_of(node));
        return;
    }
    for (unsigned i = 0; i < node->n; i++) {
        const meta_node_t *entry = meta_item(m, node, i);
        if (!entry->text || !*entry->text)
            problem(m, entry, "import has %s; names of files are wanted", meta_kind_of(entry));
        else
            run_name_add(&e->imports, run_dup(entry->text), entry->line);
    }
}

/* --- corunning: [NAME, ...] or {NAME: {trans, type}, ...} ---------------------------------------------------------------- */

static void take_trans(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    const char *memory = into;
    char shown[80];
    if (!node->text || strcmp(node->text, memory) != 0)
        warn(m, node, key->name,
             "trans \"%s\" is ignored: a transport has the name of its element, which is \"%s\" here: "
             "action.get_transport(\"%s\", \"rdma\")",
             node->text ? tool_plain(node->text, shown, sizeof shown) : meta_kind_of(node), memory, memory);
}

static void take_trans_type(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    char shown[80];
    (void)into;
    if (!node->text || (strcmp(node->text, "rdma") && strcmp(node->text, "mem")))
        warn(m, node, key->name, "type \"%s\" is ignored: every transport to memory is of type rdma",
             node->text ? tool_plain(node->text, shown, sizeof shown) : meta_kind_of(node));
}

static const meta_key_t use_keys[] = {{"trans", .take = take_trans}, {"type", .take = take_trans_type}, {0}};

static void take_corunning(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    run_element_t *e = into;
    if (node->kind == META_LIST || node->text) {
        take_names(m, node, key, &e->corunning);
        return;
    }
    for (unsigned i = 0; i < node->n; i++) {
        const meta_node_t *at = meta_key(m, node, i), *value = meta_value(m, node, i);
        const char *name = take_name(m, at, "corunning");
        if (!name)
            continue;
        if (has_name(&e->corunning, name)) {
            problem(m, at, "\"%s\" is there twice", name);
            continue;
        }
        run_name_add(&e->corunning, run_dup(name), at->line);
        if (value->kind == META_MAPPING)
            take_mapping(m, value, use_keys, " of a transport", (void *)(e->memory ? e->name : name));
        else if (!meta_is_empty(value))
            warn(m, value, name, "what is behind \"%s\" is ignored: %s, and not a mapping {trans: NAME, type: rdma}", name,
                 meta_kind_of(value));
    }
}

/* --- withMerged: [{action: {namespace, name}, resources: {cpu, mem, storage}, elem: Memory}] ------------ */

#define MERGED_NAME "memory" /* what Scad calls memory that nobody named */

typedef struct merging {
    char *name;
    run_limits_t limits;
    bool memory, wrong;
} merging_t;

static void take_ignored(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    (void)key;
    (void)m;
    (void)node;
    (void)into;
}

static void take_text(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    const char *name = take_name(m, node, key->name);
    if (name) {
        free(*(char **)into);
        *(char **)into = run_dup(name);
    }
}

static const meta_key_t action_keys[] = {
    {"namespace", .take = take_ignored}, {"name", take_text, .to = offsetof(merging_t, name)}, {0}};

/* action: {name: NAME}, or NAME alone, or an empty text. */
static void take_action(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    merging_t *g = into;
    if (node->text && !*node->text)
        return;
    if (node->text)
        take_text(m, node, key, &g->name);
    else
        take_map(m, node, key, into);
    g->wrong |= !g->name;
}

static void take_merged_kind(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    merging_t *g = into;
    (void)key;
    if (!node->text ||
        (strcasecmp(node->text, "memory") && strcasecmp(node->text, "compute") && strcasecmp(node->text, "storage")))
        problem(m, node, "elem is Memory, Compute or Storage");
    else
        g->memory = !strcasecmp(node->text, "memory");
}

/* Scad's programs also have the names of an earlier form. */
static const meta_key_t resource_keys[] = {RESOURCES,
                                           {"compute", take_cpu, .to = offsetof(run_limits_t, cpu)},
                                           {"memory", take_size, .to = offsetof(run_limits_t, mem)},
                                           {0}};

static const meta_key_t merged_keys[] = {
    {"action", take_action, .keys = action_keys, .example = "{name: MEMORY}"},
    {"resources", take_map, .to = offsetof(merging_t, limits), .keys = resource_keys, .example = "{mem: 512M}"},
    {"elem", .take = take_merged_kind},
    {0}};

static void add_merged(meta_t *m, const meta_node_t *entry, merging_t *g)
{
    run_element_t *e = m->e;
    const char *name = g->name ? g->name : MERGED_NAME;
    bool twice = false;
    for (unsigned i = 0; i < e->n_merged; i++)
        twice |= !strcmp(e->merged[i].name, name);
    if (!g->memory) {
        warn(m, entry, "withMerged", "what is merged here and is no memory is ignored: the program has its code already");
    } else if (g->wrong || !g->limits.mem) {
        problem(m, entry, "what is merged needs action: {name: MEMORY} and resources: {mem: SIZE}");
    } else if (twice) {
        problem(m, entry, "there are two transports \"%s\"", name);
    } else {
        e->merged = run_grow(e->merged, (e->n_merged + 1) * sizeof *e->merged);
        e->merged[e->n_merged++] = (run_merged_t){.name = run_dup(name), .bytes = g->limits.mem, .line = entry->line};
    }
}

static void take_merged(meta_t *m, const meta_node_t *node, const meta_key_t *key, void *into)
{
    (void)key;
    (void)into;
    if (node->kind != META_LIST) {
        problem(m, node, "withMerged is %s; a list is wanted: [{action: {name: MEMORY}, resources: {mem: 512M}, elem: Memory}]",
                meta_kind_of(node));
        return;
    }
    for (unsigned i = 0; i < node->n; i++) {
        const meta_node_t *entry = meta_item(m, node, i);
        merging_t g = {.memory = true};
        if (entry->kind != META_MAPPING) {
            problem(m, entry,
                    "withMerged has %s; mappings are wanted: {action: {name: MEMORY}, resources: {mem: 512M}, elem: Memory}",
                    meta_kind_of(entry));
            continue;
        }
        take_mapping(m, entry, merged_keys, " in withMerged", &g);
        add_merged(m, entry, &g);
        free(g.name);
    }
}

/* --- the whole ----------------------------------------------------------------------------------------------------------- */

#define COMMON \
    {"type", .take = take_type}, {"name", .take = take_own_name}, {"filetype", .take = take_file_type}, \
        {"parents", take_names, .to = offsetof(run_element_t, parents)}, \
        {"dependents", take_names, .to = offsetof(run_element_t, dependents)}, {"corunning", .take = take_corunning}, \
        {"parallelism", take_number, .to = offsetof(run_element_t, copies), .min = 1, .max = RUN_COPIES_MAX}, \
    { \
        "limits", take_map, .to = offsetof(run_element_t, limits), .keys = limit_keys, \
                            .example = "{cpu: 1, mem: 512M, storage: 64M, time: 30s}" \
    }

static const meta_key_t compute_keys[] = {
    COMMON,
    {"withMerged", .take = take_merged},
    {"import", .take = take_imports},
    {"retries", take_retries, .to = offsetof(run_element_t, retries), .min = 0, .max = RUN_RETRIES_MAX},
    {"idempotent", take_bool, .to = offsetof(run_element_t, idempotent)},
    {0}};
static const meta_key_t memory_keys[] = {
    COMMON,
    {"replicas", take_number, .to = offsetof(run_element_t, replicas), .min = 1, .max = WEFT_MIRROR_MAX},
    {"spare", take_size, .to = offsetof(run_element_t, spare)},
    {0}};

static const meta_keys_t compute = {compute_keys, memory_keys, " of a compute element", " of memory elements"};
static const meta_keys_t memory = {memory_keys, compute_keys, " of a memory element", " of compute elements"};

/* All is as by default. Of memory that is probably not what was meant. */
void meta_take_nothing(meta_t *m)
{
    if (m->e->memory && !m->e->described)
        run_warn(m->run, m->e->path, 0, "limits",
                 "says nothing of its memory, which then has 128 MiB: write \"limits: {mem: SIZE}\", such as {mem: 64M}");
}

void meta_take(meta_t *m)
{
    const meta_node_t *root = &m->nodes[0];
    if (meta_is_empty(root)) {
        meta_take_nothing(m);
        return;
    }
    if (root->kind != META_MAPPING) {
        problem(m, root, "%s; \"KEY: VALUE\" lines are wanted, such as \"type: %s\"", meta_kind_of(root),
                m->e->memory ? "memory" : "compute");
        return;
    }
    meta_walk(m, root, m->e->memory ? &memory : &compute, m->e);
    if (m->retries_line && !m->e->idempotent)
        run_problem(m->run, m->e->path, m->retries_line,
                    "retries says how often the element may be started again, which it may not be without \"idempotent: true\"");
    if (m->e->idempotent && !m->retries_line)
        m->e->retries = RUN_RETRIES_DEFAULT;
}
