/* tools/run/order.c - which element waits for which: what memory between elements says of their order, and circles.
 *
 * Memory may be among parents and dependents: then the elements around it have an order, but get no results of each other. Such
 * an order counts as far as the written edges and the orders before it allow; where it would close a circle it is left out, with
 * a warning. So a circle is always one that somebody wrote, and is reported as a path. After run_order() `before` is ordered by
 * name, and elements that are to run together do not wait for each other. tests/tools/tools_run_check.py and
 * tests/tools/tools_run_meta.py check it. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

enum { NEW = 0, ON_PATH = 1, SEEN = 2 };

bool run_among(run_element_t *const *list, unsigned n, const run_element_t *e)
{
    for (unsigned i = 0; i < n; i++)
        if (list[i] == e)
            return true;
    return false;
}

void run_among_add(run_element_t ***list, unsigned *n, run_element_t *e)
{
    if (run_among(*list, *n, e))
        return; /* said by both sides */
    *list = run_grow(*list, (*n + 1) * sizeof(run_element_t *));
    (*list)[(*n)++] = e;
}

bool run_uses(const run_element_t *e, const run_element_t *memory)
{
    for (unsigned i = 0; i < e->n_uses; i++)
        if (e->uses[i].element == memory)
            return true;
    return false;
}

void run_marks_clear(run_t *run)
{
    for (unsigned i = 0; i < run->n_static; i++)
        run->elements[i]->mark = NEW;
}

/* child waits for parent, and is not given its results. */
static void add_order(run_element_t *parent, run_element_t *child)
{
    if (run_among(child->before, child->n_before, parent))
        return;
    run_among_add(&child->earlier, &child->n_earlier, parent);
    run_among_add(&parent->later, &parent->n_later, child);
}

/* --- order around memory ----------------------------------------------------------------------------------------- */

/* An order that would close a circle. */
typedef struct left_out {
    const run_element_t *first, *second; /* of the first such pair */
    unsigned n;
} left_out_t;

/* Mark what root waits for, or what waits for it, and root itself. */
static void mark_from(run_t *run, run_element_t *root, bool up, run_element_t **todo)
{
    unsigned n = 0;
    run_marks_clear(run);
    root->mark = SEEN;
    todo[n++] = root;
    while (n) {
        run_element_t *e = todo[--n], **lists[] = {up ? e->before : e->after, up ? e->earlier : e->later};
        unsigned lengths[] = {up ? e->n_before : e->n_after, up ? e->n_earlier : e->n_later};
        for (unsigned k = 0; k < 2; k++)
            for (unsigned i = 0; i < lengths[k]; i++)
                if (lists[k][i]->mark == NEW) {
                    lists[k][i]->mark = SEEN;
                    todo[n++] = lists[k][i];
                }
    }
}

static void imply(run_element_t *first, run_element_t *second, bool closes, left_out_t *out)
{
    if (!closes)
        add_order(first, second);
    else if (!out->n++)
        *out = (left_out_t){.first = first, .second = second, .n = 1};
}

static void say_left_out(run_t *run, const run_element_t *memory, const left_out_t *out)
{
    const run_names_t *said = memory->dependents.n ? &memory->dependents : &memory->parents;
    char more[64] = "";
    if (out->n > 1)
        snprintf(more, sizeof more, " (and so for %u more)", out->n - 1);
    run_warn(run, memory->path, said->n ? said->at[0].line : 0, memory->dependents.n ? "dependents" : "parents",
             "by the order around memory \"%s\", \"%s\" would be done before \"%s\" starts, which is ignored%s: \"%s\" waits for "
             "\"%s\"",
             memory->name, out->first->name, out->second->name, more, out->first->name, out->second->name);
}

/* Memory that waits for `before` is there for its users after them; and `after` wait for memory, which is there for as long as
 * one of its users runs. An element may be a user itself: then the others have that order. What is added for one element of
 * `before` does not change what that one waits for, so the marks stay true; nor for one of `after` what waits for it. */
static void order_around(run_t *run, run_element_t *memory, run_element_t **todo)
{
    left_out_t out = {0};
    for (unsigned i = 0; i < memory->n_before; i++) {
        const run_element_t *first = memory->before[i];
        if (run_among(memory->after, memory->n_after, first)) {
            run_problem(run, memory->path, 0, "memory \"%s\" waits for \"%s\", and \"%s\" waits for it: one of the two is wrong",
                        memory->name, first->name, first->name);
            return;
        }
    }
    for (unsigned i = 0; i < memory->n_before; i++) {
        run_element_t *first = memory->before[i];
        mark_from(run, first, true, todo);
        for (unsigned k = 0; k < memory->n_after; k++)
            imply(first, memory->after[k], memory->after[k]->mark == SEEN, &out);
        for (unsigned k = 0; k < run->n_static; k++) {
            run_element_t *user = run->elements[k];
            if (run_uses(user, memory) && !run_among(memory->before, memory->n_before, user))
                imply(first, user, user->mark == SEEN, &out);
        }
    }
    for (unsigned i = 0; i < memory->n_after; i++) {
        run_element_t *last = memory->after[i];
        mark_from(run, last, false, todo);
        for (unsigned k = 0; k < run->n_static; k++) {
            run_element_t *user = run->elements[k];
            if (run_uses(user, memory) && !run_among(memory->after, memory->n_after, user))
                imply(user, last, user->mark == SEEN, &out);
        }
    }
    if (out.n)
        say_left_out(run, memory, &out);
}

static void link_order_around(run_t *run)
{
    run_element_t **todo = run_alloc((run->n_static + 1) * sizeof(run_element_t *));
    for (unsigned i = 0; i < run->n_static; i++)
        if (run->elements[i]->memory)
            order_around(run, run->elements[i], todo);
    free(todo);
    for (unsigned i = 0; i < run->n_static; i++) /* nobody gets results of memory */
        if (run->elements[i]->memory)
            run->elements[i]->n_before = run->elements[i]->n_after = 0;
}

/* --- cycles ------------------------------------------------------------------------------------------------------ */

static run_element_t *next_of(const run_element_t *e, unsigned i)
{
    return i < e->n_after ? e->after[i] : i < e->n_after + e->n_later ? e->later[i - e->n_after] : NULL;
}

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

/* Depth first along the children, without recursion: a directory may be a chain of thousands. target NULL: look for cycles;
 * else for a way to it, which is then path[0...]: how many, 0 if there is none. */
static unsigned walk(run_t *run, run_element_t *root, const run_element_t *target, run_element_t **path, unsigned *next)
{
    unsigned n = 0;
    path[n] = root;
    next[n++] = 0;
    root->mark = ON_PATH;
    while (n) {
        run_element_t *e = path[n - 1], *child = next_of(e, next[n - 1]++);
        if (!child) {
            e->mark = SEEN;
            n--;
        } else if (child == target) {
            path[n] = child;
            return n + 1;
        } else if (child->mark == ON_PATH && !target) {
            say_cycle(run, path, n, child);
        } else if (child->mark == NEW) {
            child->mark = ON_PATH;
            path[n] = child;
            next[n++] = 0;
        }
    }
    return 0;
}

/* Programs that are to run together cannot wait for each other. */
static void check_together(run_t *run, run_element_t *e, run_element_t **path, unsigned *next)
{
    for (unsigned i = 0; i < e->corunning.n; i++) {
        run_element_t *other = run_find(run, e->corunning.at[i].name);
        unsigned n = 0;
        run_text_t way = {0};
        if (!other || other->memory)
            continue;
        if (other == e) {
            run_warn(run, e->path, e->corunning.at[i].line, "corunning", "corunning \"%s\" is ignored: it is the element itself",
                     e->name);
            continue;
        }
        run_marks_clear(run);
        n = walk(run, e, other, path, next);
        if (!n) {
            run_marks_clear(run);
            n = walk(run, other, e, path, next);
        }
        if (!n)
            continue;
        for (unsigned k = 0; k < n; k++)
            run_addf(&way, "%s%s", k ? " -> " : "", path[k]->name);
        run_problem(run, e->path, e->corunning.at[i].line,
                    "corunning \"%s\" is to run together with this one, but one waits for the other: %s", other->name, way.p);
        run_free(&way);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(run_element_t *const *)a)->name, (*(run_element_t *const *)b)->name);
}

static void sort(run_element_t **list, unsigned n)
{
    if (n)
        qsort(list, n, sizeof *list, by_name);
}

static void check_order(run_t *run)
{
    run_element_t **path = run_alloc((run->n_static + 1) * sizeof(run_element_t *));
    unsigned *next = run_alloc((run->n_static + 1) * sizeof *next);
    for (unsigned i = 0; i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        sort(e->before, e->n_before);
        sort(e->after, e->n_after);
        sort(e->earlier, e->n_earlier);
        sort(e->later, e->n_later);
    }
    run_marks_clear(run);
    for (unsigned i = 0; i < run->n_static; i++)
        if (run->elements[i]->mark == NEW)
            (void)walk(run, run->elements[i], NULL, path, next);
    for (unsigned i = 0; i < run->n_static && !run->n_problems; i++)
        if (!run->elements[i]->memory)
            check_together(run, run->elements[i], path, next);
    free(path);
    free(next);
}

void run_order(run_t *run)
{
    link_order_around(run);
    check_order(run);
}
