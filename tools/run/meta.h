/* tools/run/meta.h - what a file says of its element, as a tree: yaml.c makes it of YAML, keys.c looks for what it knows.
 *
 * An alias is the node that it names, so a tree may contain itself. */
#ifndef WEFT_TOOLS_RUN_META_H
#define WEFT_TOOLS_RUN_META_H

#include "run.h"

typedef enum meta_kind { META_VALUE, META_LIST, META_MAPPING } meta_kind_t;

typedef struct meta_node {
    meta_kind_t kind;
    const char *text; /* of a single value; else NULL */
    bool plain;       /* it has no quotes */
    unsigned line;    /* of the file */
    unsigned n, *at;  /* items of a list; pairs of a mapping, key and value in turn: places among the nodes */
} meta_node_t;

/* The document of one element. */
typedef struct meta {
    run_t *run;
    run_element_t *e;
    meta_node_t *nodes; /* the first is the root */
    unsigned retries_line; /* where retries were said; 0: nowhere */
    unsigned merges;       /* how many mappings "<<" has led to */
} meta_t;

static inline const meta_node_t *meta_item(const meta_t *m, const meta_node_t *list, unsigned i)
{
    return &m->nodes[list->at[i]];
}

static inline const meta_node_t *meta_key(const meta_t *m, const meta_node_t *mapping, unsigned i)
{
    return &m->nodes[mapping->at[2 * i]];
}

static inline const meta_node_t *meta_value(const meta_t *m, const meta_node_t *mapping, unsigned i)
{
    return &m->nodes[mapping->at[2 * i + 1]];
}

#define problem(m, node, ...) run_problem((m)->run, (m)->e->path, (node)->line, __VA_ARGS__)
#define warn(m, node, key, ...) run_warn((m)->run, (m)->e->path, (node)->line, key, __VA_ARGS__)

/* --- walk.c ------------------------------------------------------------------------------------------------------ */

typedef struct key meta_key_t;
struct key {
    const char *name;
    void (*take)(meta_t *m, const meta_node_t *value, const meta_key_t *key, void *into);
    size_t to;              /* where the value goes: the offset in what the mapping describes */
    int min, max;           /* of take_number() */
    const meta_key_t *keys; /* of take_map(): those of the mapping inside */
    const char *example;    /* of take_map() */
};

typedef struct keys {
    const meta_key_t *known, *other; /* other: those of the other kind of element, or NULL */
    const char *of, *of_other;
} meta_keys_t;

const char *meta_kind_of(const meta_node_t *node); /* "a list" */
bool meta_is_empty(const meta_node_t *node);       /* nothing was written there: "parents:" alone, [] or {} */
/* Take what is known in a mapping, each into its place in `into`. */
void meta_walk(meta_t *m, const meta_node_t *mapping, const meta_keys_t *keys, void *into);

/* --- keys.c: what the root of a document says, into m->e --------------------------------------------------------- */

void meta_take(meta_t *m);
void meta_take_nothing(meta_t *m); /* there is no document */

#endif
