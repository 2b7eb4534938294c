/* tools/run/yaml.c - what a file says of its element: the only file that calls libyaml.
 *
 * The text is read into a tree of nodes. Every unknown key and every value of a wrong type gets a sentence with the line of
 * the file. Reading goes on after a mistake, so that all of them are reported. An alias is followed at most the four levels
 * deep that there are. tests/tools/tools_run_check.py checks it. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "run.h"

#ifndef WEFT_YAML

void run_yaml(run_t *run, run_element_t *e, const run_text_t *yaml, const unsigned *numbers, unsigned n_lines)
{
    (void)yaml;
    (void)numbers;
    (void)n_lines;
    run_problem(run, e->path, 0, "cannot be read: this weft was built without libyaml; install libyaml-dev and build it again");
}

#else

#include <yaml.h>

/* Where we are: a document, and how its lines are numbered in the file. */
typedef struct reader {
    run_t *run;
    run_element_t *e;
    yaml_document_t doc;
    const unsigned *numbers;
    unsigned n_lines;
} reader_t;

static unsigned number_of(const reader_t *r, size_t line)
{
    return line < r->n_lines ? r->numbers[line] : r->n_lines ? r->numbers[r->n_lines - 1] : 0;
}

static unsigned line_of(const reader_t *r, const yaml_node_t *node)
{
    return number_of(r, node->start_mark.line);
}

#define problem(r, node, ...) run_problem((r)->run, (r)->e->path, line_of(r, node), __VA_ARGS__)

static const char *kind_of(const yaml_node_t *node)
{
    return node->type == YAML_MAPPING_NODE ? "a mapping" : node->type == YAML_SEQUENCE_NODE ? "a list" : "a single value";
}

static const char *scalar(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

/* Nothing was written there: "parents:" alone. */
static bool is_empty(const yaml_node_t *node)
{
    const char *s = scalar(node);
    return s && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (!*s || !strcmp(s, "~") || !strcasecmp(s, "null"));
}

/* --- a walk over a mapping with known keys ------------------------------------------------------------------------ */

typedef struct key key_t_;
struct key {
    const char *name;
    void (*take)(reader_t *r, yaml_node_t *value, const key_t_ *key, void *into);
    size_t to;           /* where the value goes: the offset in what the mapping describes */
    int max;             /* of take_number() */
    const key_t_ *keys;  /* of take_map(): those of the mapping inside */
    const char *example; /* of take_map() */
};

static void unknown_key(reader_t *r, const yaml_node_t *node, const char *name, const key_t_ *keys, const char *of)
{
    const char *names[16], *near;
    char shown[80];
    size_t n = 0;
    run_text_t all = {0};
    for (; keys[n].name; n++) {
        names[n] = keys[n].name;
        run_addf(&all, "%s%s", n ? ", " : "", keys[n].name);
    }
    near = tool_nearest(name, names, n);
    tool_plain(name, shown, sizeof shown);
    if (near)
        problem(r, node, "there is no key \"%s\"%s; did you mean \"%s\"?", shown, of, near);
    else
        problem(r, node, "there is no key \"%s\"%s; known are %s", shown, of, all.p);
    run_free(&all);
}

static void take_mapping(reader_t *r, yaml_node_t *node, const key_t_ *keys, const char *of, void *into)
{
    unsigned seen = 0;
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++) {
        yaml_node_t *key = yaml_document_get_node(&r->doc, pair->key), *value = yaml_document_get_node(&r->doc, pair->value);
        const char *name = scalar(key);
        unsigned k = 0;
        if (!name) {
            problem(r, key, "a key is %s; keys are words", kind_of(key));
            continue;
        }
        while (keys[k].name && strcmp(keys[k].name, name) != 0)
            k++;
        if (!keys[k].name) {
            unknown_key(r, key, name, keys, of);
        } else if (seen & 1u << k) {
            problem(r, key, "\"%s\" is there twice", name);
        } else {
            seen |= 1u << k;
            if (!is_empty(value))
                keys[k].take(r, value, &keys[k], (char *)into + keys[k].to);
        }
    }
}

/* --- values ---------------------------------------------------------------------------------------------------------- */

static bool good_name(const char *s)
{
    size_t n = strlen(s);
    return n && n <= RUN_NAME_MAX && n == strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");
}

/* A name of an element, or NULL after a sentence. */
static const char *take_name(reader_t *r, const yaml_node_t *node, const char *what)
{
    const char *s = scalar(node);
    char shown[80];
    if (!s) {
        problem(r, node, "%s is %s; a name is wanted", what, kind_of(node));
        return NULL;
    }
    if (!good_name(s)) {
        problem(r, node, "%s \"%s\" is no name of an element: letters, digits, '-', '_' and '.' make one", what,
                tool_plain(s, shown, sizeof shown));
        return NULL;
    }
    return s;
}

static void take_names(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    const char *what = key->name;
    run_names_t *names = into;
    if (node->type != YAML_SEQUENCE_NODE) {
        problem(r, node, "%s is %s; a list is wanted: \"- NAME\" on lines of its own, or [NAME, NAME]", what, kind_of(node));
        return;
    }
    for (yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++) {
        yaml_node_t *entry = yaml_document_get_node(&r->doc, *item);
        const char *name = take_name(r, entry, what);
        bool twice = false;
        for (unsigned i = 0; name && i < names->n; i++)
            twice |= !strcmp(names->at[i].name, name);
        if (twice)
            problem(r, entry, "%s has \"%s\" twice", what, name);
        else if (name)
            run_name_add(names, run_dup(name), line_of(r, entry));
    }
}

static void take_type(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    run_element_t *e = into;
    const char *s = scalar(node);
    (void)key;
    if (!s || (strcmp(s, "compute") && strcmp(s, "memory")))
        problem(r, node, "type is compute or memory");
    else if (e->memory && !strcmp(s, "compute"))
        problem(r, node, "type is compute, but a compute element is a program: name the file %s.o.py", e->name);
    else if (!e->memory && !strcmp(s, "memory"))
        problem(r, node, "type is memory, but a memory element has no program: name the file %s.o.yaml", e->name);
}

static void take_number(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    const char *s = scalar(node);
    uint64_t n;
    if (s && tool_parse_count(s, 1, (uint64_t)key->max, &n))
        *(unsigned *)into = (unsigned)n;
    else
        problem(r, node, "%s is a number from 1 to %d", key->name, key->max);
}

static void take_map(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    char of[32];
    snprintf(of, sizeof of, " in %s", key->name);
    if (node->type != YAML_MAPPING_NODE)
        problem(r, node, "%s is %s; a mapping is wanted: %s", key->name, kind_of(node), key->example);
    else
        take_mapping(r, node, key->keys, of, into);
}

static void take_size(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    const char *s = scalar(node);
    char shown[80];
    if (!s || !run_size(s, into))
        problem(r, node, "%s is %s; a size with its unit is wanted: 512M, 64 MB, 2G", key->name,
                s ? tool_plain(s, shown, sizeof shown) : kind_of(node));
}

static void take_cpu(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    const char *s = scalar(node);
    char *end = NULL;
    double v = s && *s ? strtod(s, &end) : 0;
    (void)key;
    if (!end || *end || !isfinite(v) || v <= 0 || v > 4096)
        problem(r, node, "cpu is a number of processors above 0, such as 1 or 0.5");
    else
        *(double *)into = v;
}

static void take_time(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    const char *s = scalar(node);
    uint64_t ns;
    (void)key;
    if (r->e->memory)
        problem(r, node, "time is a limit of compute elements; memory is there for as long as somebody uses it");
    else if (!s || !tool_parse_time(s, &ns) || !ns)
        problem(r, node, "time is how long one copy may take, such as 30s, 500ms or 2h");
    else
        *(uint64_t *)into = ns;
}

static const key_t_ limit_keys[] = {{"cpu", take_cpu, .to = offsetof(run_limits_t, cpu)},
                                    {"mem", take_size, .to = offsetof(run_limits_t, mem)},
                                    {"storage", take_size, .to = offsetof(run_limits_t, storage)},
                                    {"time", take_time, .to = offsetof(run_limits_t, time_ns)},
                                    {0}};

static void take_imports(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    run_element_t *e = into;
    (void)key;
    if (node->type != YAML_SEQUENCE_NODE) {
        problem(r, node, "import is %s; a list of files is wanted", kind_of(node));
        return;
    }
    for (yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++) {
        yaml_node_t *entry = yaml_document_get_node(&r->doc, *item);
        const char *s = scalar(entry);
        if (!s || !*s)
            problem(r, entry, "import has %s; names of files are wanted", kind_of(entry));
        else
            run_name_add(&e->imports, run_dup(s), line_of(r, entry));
    }
}

/* --- corunning of compute elements: {memory: {trans, type}} -------------------------------------------------------------- */

static void take_trans(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    const char *name = take_name(r, node, key->name);
    if (name) {
        free(*(char **)into);
        *(char **)into = run_dup(name);
    }
}

static void take_trans_type(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    const char *s = scalar(node);
    (void)key;
    (void)into;
    if (!s || (strcmp(s, "rdma") && strcmp(s, "mem")))
        problem(r, node, "the type of a transport to a memory element is rdma");
}

static const key_t_ use_keys[] = {
    {"trans", take_trans, .to = offsetof(run_use_t, trans)}, {"type", .take = take_trans_type}, {0}};

static bool name_is_taken(const run_element_t *e, const char *name)
{
    for (unsigned i = 0; i < e->n_uses; i++)
        if (!strcmp(e->uses[i].trans, name))
            return true;
    for (unsigned i = 0; i < e->n_merged; i++)
        if (!strcmp(e->merged[i].name, name))
            return true;
    return false;
}

static void take_uses(reader_t *r, yaml_node_t *node, const key_t_ *k, void *into)
{
    run_element_t *e = into;
    (void)k;
    if (node->type != YAML_MAPPING_NODE) {
        problem(r, node, "corunning is %s; in a compute element it is a mapping: {MEMORY: {trans: NAME, type: rdma}}",
                kind_of(node));
        return;
    }
    for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++) {
        yaml_node_t *key = yaml_document_get_node(&r->doc, pair->key), *value = yaml_document_get_node(&r->doc, pair->value);
        const char *name = take_name(r, key, "corunning");
        run_use_t use = {.line = line_of(r, key)};
        if (!name)
            continue;
        use.memory = run_dup(name);
        use.trans = run_dup(name);
        if (value->type == YAML_MAPPING_NODE)
            take_mapping(r, value, use_keys, " of a transport", &use);
        else if (!is_empty(value))
            problem(r, value, "\"%s\" in corunning is %s; a mapping is wanted: {trans: NAME, type: rdma}", name, kind_of(value));
        if (name_is_taken(e, use.trans)) {
            problem(r, key, "there are two transports \"%s\"", use.trans);
            free(use.memory);
            free(use.trans);
            continue;
        }
        e->uses = run_grow(e->uses, (e->n_uses + 1) * sizeof *e->uses);
        e->uses[e->n_uses++] = use;
    }
}

/* --- withMerged: [{action: {namespace, name}, resources: {cpu, mem, storage}, elem: Memory}] ------------ */

typedef struct merging {
    char *name;
    run_limits_t limits;
} merging_t;

static void take_ignored(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    (void)key;
    (void)r;
    (void)node;
    (void)into;
}

static const key_t_ action_keys[] = {
    {"namespace", .take = take_ignored}, {"name", take_trans, .to = offsetof(merging_t, name)}, {0}};

static void take_merged_kind(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    const char *s = scalar(node);
    (void)key;
    (void)into;
    if (!s || strcasecmp(s, "memory") != 0)
        problem(r, node, "only memory is merged into an element: elem is Memory");
}

static const key_t_ merged_keys[] = {
    {"action", take_map, .keys = action_keys, .example = "{name: MEMORY}"},
    {"resources", take_map, .to = offsetof(merging_t, limits), .keys = limit_keys, .example = "{mem: 512M}"},
    {"elem", .take = take_merged_kind},
    {0}};

static void take_merged(reader_t *r, yaml_node_t *node, const key_t_ *key, void *into)
{
    run_element_t *e = into;
    (void)key;
    if (node->type != YAML_SEQUENCE_NODE) {
        problem(r, node, "withMerged is %s; a list is wanted: [{action: {name: MEMORY}, resources: {mem: 512M}, elem: Memory}]",
                kind_of(node));
        return;
    }
    for (yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++) {
        yaml_node_t *entry = yaml_document_get_node(&r->doc, *item);
        merging_t m = {0};
        if (entry->type != YAML_MAPPING_NODE) {
            problem(r, entry,
                    "withMerged has %s; mappings are wanted: {action: {name: MEMORY}, resources: {mem: 512M}, elem: Memory}",
                    kind_of(entry));
            continue;
        }
        take_mapping(r, entry, merged_keys, " in withMerged", &m);
        if (!m.name || !m.limits.mem) {
            problem(r, entry, "what is merged needs action: {name: MEMORY} and resources: {mem: SIZE}");
        } else if (name_is_taken(e, m.name)) {
            problem(r, entry, "there are two transports \"%s\"", m.name);
        } else {
            e->merged = run_grow(e->merged, (e->n_merged + 1) * sizeof *e->merged);
            e->merged[e->n_merged++] = (run_merged_t){.name = m.name, .bytes = m.limits.mem};
            m.name = NULL;
        }
        free(m.name);
    }
}

/* --- the whole ----------------------------------------------------------------------------------------------------------- */

#define PARALLELISM \
    { \
        "parallelism", take_number, offsetof(run_element_t, copies), .max = RUN_COPIES_MAX \
    }
#define LIMITS \
    { \
        "limits", take_map, offsetof(run_element_t, limits), .keys = limit_keys, \
                                                             .example = "{cpu: 1, mem: 512M, storage: 64M, time: 30s}" \
    }

static const key_t_ compute_keys[] = {{"type", .take = take_type},
                                      {"parents", take_names, .to = offsetof(run_element_t, parents)},
                                      {"dependents", take_names, .to = offsetof(run_element_t, dependents)},
                                      {"corunning", .take = take_uses},
                                      PARALLELISM,
                                      LIMITS,
                                      {"withMerged", .take = take_merged},
                                      {"import", .take = take_imports},
                                      {0}};
static const key_t_ memory_keys[] = {{"type", .take = take_type},
                                     {"corunning", take_names, .to = offsetof(run_element_t, corunning)},
                                     PARALLELISM,
                                     LIMITS,
                                     {"replicas", take_number, .to = offsetof(run_element_t, replicas), .max = WEFT_MIRROR_MAX},
                                     {"spare", take_size, .to = offsetof(run_element_t, spare)},
                                     {0}};

static void take_document(reader_t *r)
{
    yaml_node_t *root = yaml_document_get_root_node(&r->doc);
    if (!root || is_empty(root))
        return; /* nothing said: all is as by default */
    if (root->type != YAML_MAPPING_NODE)
        problem(r, root, "%s; \"KEY: VALUE\" lines are wanted, such as \"type: %s\"", kind_of(root),
                r->e->memory ? "memory" : "compute");
    else
        take_mapping(r, root, r->e->memory ? memory_keys : compute_keys,
                     r->e->memory ? " of a memory element" : " of a compute element", r->e);
}

void run_yaml(run_t *run, run_element_t *e, const run_text_t *yaml, const unsigned *numbers, unsigned n_lines)
{
    reader_t r = {.run = run, .e = e, .numbers = numbers, .n_lines = n_lines};
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        run_problem(run, e->path, 0, "out of memory");
        return;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)yaml->p, yaml->n);
    if (!yaml_parser_load(&parser, &r.doc)) {
        run_problem(run, e->path, number_of(&r, parser.problem_mark.line), "not YAML: %s%s%s",
                    parser.problem ? parser.problem : "unreadable", parser.context ? ", " : "",
                    parser.context ? parser.context : "");
    } else {
        take_document(&r);
        yaml_document_delete(&r.doc);
    }
    yaml_parser_delete(&parser);
}

#endif
