/* tools/run/yaml.c - the YAML of a file as a tree for keys.c: the only file that calls libyaml.
 *
 * One document of nodes, nested to a bounded depth, and a second one is refused. Its texts stay libyaml's, and live as long
 * as the document.
 * tests/tools/tools_run_check.py checks it. */
#include <stdlib.h>

#include "meta.h"

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

enum { DEEPEST = 64 };

/* Lines of the text, as the file numbers them. */
typedef struct lines {
    const unsigned *at;
    unsigned n;
} lines_t;

static unsigned number_of(lines_t lines, size_t line)
{
    return line < lines.n ? lines.at[line] : lines.n ? lines.at[lines.n - 1] : 0;
}

static void take_node(const yaml_node_t *from, lines_t lines, meta_node_t *to)
{
    to->line = number_of(lines, from->start_mark.line);
    if (from->type == YAML_SCALAR_NODE) {
        to->text = (const char *)from->data.scalar.value;
        to->plain = from->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    } else if (from->type == YAML_SEQUENCE_NODE) {
        to->kind = META_LIST;
        to->n = (unsigned)(from->data.sequence.items.top - from->data.sequence.items.start);
        to->at = run_alloc(to->n * sizeof *to->at);
        for (unsigned i = 0; i < to->n; i++)
            to->at[i] = (unsigned)from->data.sequence.items.start[i] - 1;
    } else {
        to->kind = META_MAPPING;
        to->n = (unsigned)(from->data.mapping.pairs.top - from->data.mapping.pairs.start);
        to->at = run_alloc(2 * to->n * sizeof *to->at);
        for (unsigned i = 0; i < to->n; i++) {
            to->at[2 * i] = (unsigned)from->data.mapping.pairs.start[i].key - 1;
            to->at[2 * i + 1] = (unsigned)from->data.mapping.pairs.start[i].value - 1;
        }
    }
}

/* libyaml numbers the nodes from 1 on, and the root is the first. */
static void take_document(meta_t *m, const yaml_document_t *doc, lines_t lines)
{
    size_t n = (size_t)(doc->nodes.top - doc->nodes.start);
    if (!n) {
        meta_take_nothing(m);
        return;
    }
    m->nodes = run_alloc(n * sizeof *m->nodes);
    for (size_t i = 0; i < n; i++)
        take_node(&doc->nodes.start[i], lines, &m->nodes[i]);
    meta_take(m);
    for (size_t i = 0; i < n; i++)
        free(m->nodes[i].at);
    free(m->nodes);
}

/* A walk over the document before it is made: libyaml takes seconds for what is nested thousands deep. False after a sentence. */
static bool is_flat(const meta_t *m, lines_t lines, const run_text_t *yaml)
{
    yaml_parser_t parser;
    yaml_event_t event;
    unsigned depth = 0, line = 0;
    bool more = true;
    if (!yaml_parser_initialize(&parser))
        return true; /* the next one will fail, too, and says so */
    yaml_parser_set_input_string(&parser, (const unsigned char *)yaml->p, yaml->n);
    while (more && depth <= DEEPEST && yaml_parser_parse(&parser, &event)) { /* what is wrong is told when it is made */
        depth += event.type == YAML_SEQUENCE_START_EVENT || event.type == YAML_MAPPING_START_EVENT;
        depth -= event.type == YAML_SEQUENCE_END_EVENT || event.type == YAML_MAPPING_END_EVENT;
        line = number_of(lines, event.start_mark.line);
        more = event.type != YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (depth > DEEPEST)
        run_problem(m->run, m->e->path, line, "lists and mappings are nested more than %d deep", DEEPEST);
    return depth <= DEEPEST;
}

static void not_yaml(const meta_t *m, lines_t lines, const yaml_parser_t *parser)
{
    run_problem(m->run, m->e->path, number_of(lines, parser->problem_mark.line), "not YAML: %s%s%s",
                parser->problem ? parser->problem : "unreadable", parser->context ? ", " : "",
                parser->context ? parser->context : "");
}

/* A second document would be silently ignored. */
static void check_end(const meta_t *m, lines_t lines, yaml_parser_t *parser)
{
    yaml_document_t more;
    const yaml_node_t *root;
    if (!yaml_parser_load(parser, &more)) {
        not_yaml(m, lines, parser);
        return;
    }
    root = yaml_document_get_root_node(&more);
    if (root)
        run_problem(m->run, m->e->path, number_of(lines, root->start_mark.line),
                    "a second document begins here, after \"---\": an element has one");
    yaml_document_delete(&more);
}

void run_yaml(run_t *run, run_element_t *e, const run_text_t *yaml, const unsigned *numbers, unsigned n_lines)
{
    meta_t m = {.run = run, .e = e};
    lines_t lines = {numbers, n_lines};
    yaml_document_t doc;
    yaml_parser_t parser;
    if (!is_flat(&m, lines, yaml))
        return;
    if (!yaml_parser_initialize(&parser)) {
        run_problem(run, e->path, 0, "out of memory");
        return;
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)yaml->p, yaml->n);
    if (!yaml_parser_load(&parser, &doc)) {
        not_yaml(&m, lines, &parser);
    } else {
        take_document(&m, &doc, lines);
        if (yaml_document_get_root_node(&doc))
            check_end(&m, lines, &parser);
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
}

#endif
