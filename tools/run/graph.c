/* tools/run/graph.c - names resolved to elements, and what is wrong with the graph.
 *
 * Either side may state an edge, with `parents` or `dependents`, and so with the use of memory. An unknown name is reported
 * with the nearest one, a cycle as a path. After run_link() succeeded every edge leads to an element of the right kind, and
 * `before` is ordered by name. tests/tools/tools_run_check.py checks it. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

run_element_t *run_find(run_t *run, const char *name)
{
    for (unsigned i = 0; i < run->n_static; i++)
        if (!strcmp(run->elements[i]->name, name))
            return run->elements[i];
    return NULL;
}

const char *run_did_you_mean(run_t *run, const char *name, bool memory)
{
    static char text[RUN_NAME_MAX + 32];
    const char **names = run_alloc(run->n_static * sizeof *names), *near;
    size_t n = 0;
    for (unsigned i = 0; i < run->n_static; i++)
        if (run->elements[i]->memory == memory)
            names[n++] = run->elements[i]->name;
    near = tool_nearest(name, names, n);
    if (near)
        snprintf(text, sizeof text, "; did you mean \"%s\"?", near);
    else
        *text = '\0';
    free(names);
    return text;
}

static void add_to(run_element_t ***list, unsigned *n, run_element_t *e)
{
    for (unsigned i = 0; i < *n; i++)
        if ((*list)[i] == e)
            return; /* said by both sides */
    *list = run_grow(*list, (*n + 1) * sizeof(run_element_t *));
    (*list)[(*n)++] = e;
}

static void add_edge(run_element_t *parent, run_element_t *child)
{
    add_to(&child->before, &child->n_before, parent);
    add_to(&parent->after, &parent->n_after, child);
}

/* A compute element of that name, or NULL after a sentence. */
static run_element_t *compute_of(run_t *run, const run_element_t *e, const run_name_t *name, const char *what)
{
    run_element_t *found = run_find(run, name->name);
    if (!found)
        run_problem(run, e->path, name->line, "%s \"%s\" is no element of this directory%s", what, name->name,
                    run_did_you_mean(run, name->name, false));
    else if (found->memory)
        run_problem(run, e->path, name->line, "%s \"%s\" is a memory element, and a compute element is wanted%s", what,
                    name->name, e->memory ? "" : "; memory goes under corunning");
    return found && !found->memory ? found : NULL;
}

static bool uses(const run_element_t *e, const run_element_t *memory)
{
    for (unsigned i = 0; i < e->n_uses; i++)
        if (e->uses[i].element == memory)
            return true;
    return false;
}

static void link_compute(run_t *run, run_element_t *e)
{
    for (unsigned i = 0; i < e->parents.n; i++) {
        run_element_t *parent = compute_of(run, e, &e->parents.at[i], "parent");
        if (parent)
            add_edge(parent, e);
    }
    for (unsigned i = 0; i < e->dependents.n; i++) {
        run_element_t *child = compute_of(run, e, &e->dependents.at[i], "dependent");
        if (child)
            add_edge(e, child);
    }
    for (unsigned i = 0; i < e->n_uses; i++) {
        run_use_t *u = &e->uses[i];
        u->element = run_find(run, u->memory);
        if (!u->element)
            run_problem(run, e->path, u->line, "there is no memory element \"%s\" (%s.o.yaml) in this directory%s", u->memory,
                        u->memory, run_did_you_mean(run, u->memory, true));
        else if (!u->element->memory)
            run_problem(run, e->path, u->line, "\"%s\" in corunning is a compute element; transports lead to memory elements",
                        u->memory);
    }
}

/* Has it a transport of that name that leads elsewhere, as far as it is known where? */
static bool leads_elsewhere(const run_element_t *e, const char *trans)
{
    for (unsigned i = 0; i < e->n_uses; i++)
        if (!strcmp(e->uses[i].trans, trans))
            return true;
    for (unsigned i = 0; i < e->n_merged; i++)
        if (!strcmp(e->merged[i].name, trans))
            return true;
    return false;
}

/* The memory side may name users that do not name it: they reach it under its own name. */
static void link_memory(run_t *run, run_element_t *e)
{
    for (unsigned i = 0; i < e->corunning.n; i++) {
        run_element_t *user = compute_of(run, e, &e->corunning.at[i], "corunning");
        if (!user || uses(user, e))
            continue;
        if (leads_elsewhere(user, e->name)) {
            if (!run->n_problems) /* otherwise the name may be misspelt */
                run_problem(run, e->path, e->corunning.at[i].line,
                            "\"%s\" has another transport \"%s\": say in its corunning under which name it uses this memory",
                            user->name, e->name);
            continue;
        }
        user->uses = run_grow(user->uses, (user->n_uses + 1) * sizeof *user->uses);
        user->uses[user->n_uses++] =
            (run_use_t){.memory = run_dup(e->name), .trans = run_dup(e->name), .line = e->corunning.at[i].line, .element = e};
    }
}

/* --- cycles ------------------------------------------------------------------------------------------------------ */

enum { NEW = 0, ON_PATH = 1, SEEN = 2 };

static void say_cycle(run_t *run, run_element_t **path, unsigned n, const run_element_t *again)
{
    run_text_t text = {0};
    unsigned from = 0;
    while (path[from] != again)
        from++;
    for (unsigned i = from; i < n; i++)
        run_addf(&text, "%s -> ", path[i]->name);
    run_problem(run, again->path, 0, "the elements wait for each other in a circle: %s%s", text.p, again->name);
    run_free(&text);
}

/* Depth first along the children, without recursion: a directory may be a chain of thousands. */
static void look_for_cycle(run_t *run, run_element_t *root, run_element_t **path, unsigned *next)
{
    unsigned n = 0;
    path[n] = root;
    next[n++] = 0;
    root->mark = ON_PATH;
    while (n) {
        run_element_t *e = path[n - 1], *child;
        if (next[n - 1] == e->n_after) {
            e->mark = SEEN;
            n--;
            continue;
        }
        child = e->after[next[n - 1]++];
        if (child->mark == ON_PATH) {
            say_cycle(run, path, n, child);
        } else if (child->mark == NEW) {
            child->mark = ON_PATH;
            path[n] = child;
            next[n++] = 0;
        }
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(run_element_t *const *)a)->name, (*(run_element_t *const *)b)->name);
}

bool run_link(run_t *run)
{
    run_element_t **path = run_alloc((run->n_static + 1) * sizeof(run_element_t *));
    unsigned *next = run_alloc((run->n_static + 1) * sizeof *next), n_compute = 0;
    for (unsigned i = 0; i < run->n_static; i++)
        if (!run->elements[i]->memory)
            link_compute(run, run->elements[i]);
    for (unsigned i = 0; i < run->n_static; i++)
        if (run->elements[i]->memory)
            link_memory(run, run->elements[i]);
    for (unsigned i = 0; i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        n_compute += !e->memory;
        if (e->n_before)
            qsort(e->before, e->n_before, sizeof(run_element_t *), by_name);
        if (e->n_after)
            qsort(e->after, e->n_after, sizeof(run_element_t *), by_name);
        if (e->mark == NEW)
            look_for_cycle(run, e, path, next);
    }
    free(path);
    free(next);
    for (unsigned i = 0; i < run->opts.n_params; i++)
        if (run_find(run, run->opts.params[i].name)) {
            tool_error("the parameter \"%s\" has the name of an element, whose results its dependents find there",
                       run->opts.params[i].name);
            run->n_problems++;
        }
    if (!n_compute && !run->n_problems) {
        tool_error("there is no compute element (NAME.o.py) in %s, so there is nothing to run", run->opts.dir);
        run->n_problems++;
    }
    return !run->n_problems;
}

/* --- showing it ---------------------------------------------------------------------------------------------------- */

static void list_names(const char *before, run_element_t *const *list, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        printf("%s%s", i ? ", " : before, list[i]->name);
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
    list_names(", after ", e->before, e->n_before);
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
        run->elements[i]->mark = NEW;
        if (run->elements[i]->memory)
            show_line(run, run->elements[i]);
    }
    while (more) {
        more = false;
        for (unsigned i = 0; i < run->n_static; i++) {
            run_element_t *e = run->elements[i];
            bool ready = !e->memory && e->mark == NEW;
            for (unsigned k = 0; ready && k < e->n_before; k++)
                ready = e->before[k]->mark == SEEN;
            if (ready) {
                show_line(run, e);
                e->mark = SEEN;
                more = true;
            }
        }
    }
}
