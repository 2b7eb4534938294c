/* tools/run/show.c - --graph: which elements wait for which others, and which memory they use, as text or for Graphviz.
 *
 * Elements are listed as they would start. tests/tools/tools_run_check.py checks it. */
#include <string.h>

#include "run.h"

enum { SHOWN = 1 };

static void list_names(const char *before, const char *after, run_element_t *const *list, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        printf("%s%s%s", i ? ", " : before, list[i]->name, after);
}

static bool uses(const run_element_t *e, const run_element_t *memory)
{
    for (unsigned i = 0; i < e->n_uses; i++)
        if (e->uses[i].element == memory)
            return true;
    return false;
}

static void show_line(run_t *run, const run_element_t *e)
{
    char size[32];
    bool first = true;
    printf("%s", e->name);
    if (e->copies > 1)
        printf(" x%u", e->copies);
    printf(": %s", e->memory ? "memory" : "compute");
    if (e->limits.mem)
        printf(", %s", tool_size_text(e->limits.mem, size, sizeof size));
    if (e->replicas > 1)
        printf(", %u replicas", e->replicas);
    if (e->idempotent)
        printf(", idempotent, %u retries", e->retries);
    list_names(", after ", "", e->before, e->n_before);
    list_names(e->n_before ? ", " : ", after ", " (by memory)", e->earlier, e->n_earlier);
    for (unsigned i = 0; i < e->n_uses; i++)
        printf("%s%s", i ? ", " : ", uses ", e->uses[i].element->name);
    if (e->memory)
        for (unsigned i = 0; i < run->n_static; i++)
            if (uses(run->elements[i], e)) {
                printf("%s%s", first ? ", used by " : ", ", run->elements[i]->name);
                first = false;
            }
    putchar('\n');
}

static void show_dot(run_t *run)
{
    puts("digraph elements {\n    rankdir=LR;");
    for (unsigned i = 0; i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        printf("    \"%s\" [shape=%s", e->name, e->memory ? "cylinder" : "box");
        if (e->copies > 1)
            printf(", label=\"%s x%u\"", e->name, e->copies);
        puts("];");
        for (unsigned k = 0; k < e->n_after; k++)
            printf("    \"%s\" -> \"%s\";\n", e->name, e->after[k]->name);
        for (unsigned k = 0; k < e->n_later; k++)
            printf("    \"%s\" -> \"%s\" [style=dotted];\n", e->name, e->later[k]->name);
        for (unsigned k = 0; k < e->n_uses; k++)
            printf("    \"%s\" -> \"%s\" [style=dashed, dir=both];\n", e->name, e->uses[k].element->name);
    }
    puts("}");
}

/* As they would start: those whose parents have all been shown, by name. Memory first, since it is there first. */
void run_show_graph(run_t *run, bool dot)
{
    bool more = true;
    if (dot) {
        show_dot(run);
        return;
    }
    for (unsigned i = 0; i < run->n_static; i++) {
        run->elements[i]->mark = 0;
        if (run->elements[i]->memory)
            show_line(run, run->elements[i]);
    }
    while (more) {
        more = false;
        for (unsigned i = 0; i < run->n_static; i++) {
            run_element_t *e = run->elements[i];
            bool ready = !e->memory && e->mark != SHOWN;
            for (unsigned k = 0; ready && k < e->n_before; k++)
                ready = e->before[k]->mark == SHOWN;
            for (unsigned k = 0; ready && k < e->n_earlier; k++)
                ready = e->earlier[k]->mark == SHOWN;
            if (ready) {
                show_line(run, e);
                e->mark = SHOWN;
                more = true;
            }
        }
    }
}
