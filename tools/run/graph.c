/* tools/run/graph.c - names resolved to elements, and what is wrong with the graph.
 *
 * Either side may state an edge, with `parents` or `dependents`, and so with the use of memory. Memory may be there among parents
 * and dependents too: then the elements around it have an order, but get no results of each other. An unknown name is reported
 * with the nearest one, a cycle as a path. After run_link() succeeded every edge leads to an element of the right kind, `before`
 * is ordered by name, and elements that are to run together do not wait for each other. tests/tools/tools_run_check.py and
 * tests/tools/tools_run_meta.py check it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "run.h"

run_element_t *run_find(run_t *run, const char *name)
{
    for (unsigned i = 0; i < run->n_static; i++)
        if (!strcmp(run->elements[i]->name, name))
            return run->elements[i];
    return NULL;
}

bool run_single(const run_t *run)
{
    size_t n = run->file ? strlen(run->file) : 0;
    return n > 5 && !strcmp(run->file + n - 5, ".o.py");
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

/* Of either kind. */
static const char *near_of_any(run_t *run, const char *name)
{
    const char *near = run_did_you_mean(run, name, false);
    return *near ? near : run_did_you_mean(run, name, true);
}

static bool contains(run_element_t *const *list, unsigned n, const run_element_t *e)
{
    for (unsigned i = 0; i < n; i++)
        if (list[i] == e)
            return true;
    return false;
}

static void add_to(run_element_t ***list, unsigned *n, run_element_t *e)
{
    if (contains(*list, *n, e))
        return; /* said by both sides */
    *list = run_grow(*list, (*n + 1) * sizeof(run_element_t *));
    (*list)[(*n)++] = e;
}

static void add_edge(run_element_t *parent, run_element_t *child)
{
    add_to(&child->before, &child->n_before, parent);
    add_to(&parent->after, &parent->n_after, child);
}

/* child waits for parent, and is not given its results. */
static void add_order(run_element_t *parent, run_element_t *child)
{
    if (contains(child->before, child->n_before, parent))
        return;
    add_to(&child->earlier, &child->n_earlier, parent);
    add_to(&parent->later, &parent->n_later, child);
}

/* --- names ---------------------------------------------------------------------------------------------------------- */

/* Where one program is run, the others of its directory are not there. */
static bool left_out(const run_t *run, const char *name)
{
    char *path = run_printf("%s/%s.o.py", run->dir, name);
    bool out = run_single(run) && !access(path, F_OK);
    free(path);
    return out;
}

static void add_use(run_element_t *e, run_element_t *memory, unsigned line)
{
    for (unsigned i = 0; i < e->n_uses; i++)
        if (e->uses[i].element == memory)
            return;
    e->uses = run_grow(e->uses, (e->n_uses + 1) * sizeof *e->uses);
    e->uses[e->n_uses++] = (run_use_t){.element = memory, .line = line};
}

static bool uses(const run_element_t *e, const run_element_t *memory)
{
    for (unsigned i = 0; i < e->n_uses; i++)
        if (e->uses[i].element == memory)
            return true;
    return false;
}

/* The edge that a name among parents or dependents of `e` states. */
static void link_one(run_t *run, run_element_t *e, const run_name_t *name, bool parent)
{
    const char *what = parent ? "parent" : "dependent";
    run_element_t *found = run_find(run, name->name);
    if (!found) {
        if (!run_single(run))
            run_problem(run, e->path, name->line, "%s \"%s\" is no element of this %s%s", what, name->name,
                        run->file ? "DAG" : "directory", near_of_any(run, name->name));
    } else if (found->memory && e->memory) {
        run_warn(run, e->path, name->line, parent ? "parents" : "dependents",
                 "%s \"%s\" is ignored: both are memory, which has no order of its own", what, found->name);
    } else if (found->memory || e->memory) {
        run_element_t *memory = e->memory ? e : found, *other = e->memory ? found : e;
        if (parent == e->memory)
            add_to(&memory->before, &memory->n_before, other);
        else
            add_to(&memory->after, &memory->n_after, other);
    } else {
        add_edge(parent ? found : e, parent ? e : found);
    }
}

static void link_order(run_t *run, run_element_t *e)
{
    for (unsigned i = 0; i < e->parents.n; i++)
        link_one(run, e, &e->parents.at[i], true);
    for (unsigned i = 0; i < e->dependents.n; i++)
        link_one(run, e, &e->dependents.at[i], false);
}

/* Has an earlier element said the same of memory that is not there? Once is enough. */
static bool named_before(run_t *run, const run_element_t *e, const char *name)
{
    for (unsigned i = 0; i < e->index; i++)
        for (unsigned k = 0; !run->elements[i]->memory && k < run->elements[i]->corunning.n; k++)
            if (!strcmp(run->elements[i]->corunning.at[k].name, name))
                return true;
    return false;
}

/* The memory that a compute element names. Programs that it names are to run together with it. */
static void link_compute(run_t *run, run_element_t *e)
{
    for (unsigned i = 0; i < e->corunning.n; i++) {
        const run_name_t *name = &e->corunning.at[i];
        run_element_t *found = run_find(run, name->name);
        if (found && found->memory)
            add_use(e, found, name->line);
        else if (!found && !run_given_has(&run->opts, name->name) && !left_out(run, name->name) &&
                 !named_before(run, e, name->name))
            run_problem(run, e->path, name->line,
                        "there is no memory element \"%s\" (%s.o.yaml): --memory %s=SIZE makes it, --transport %s=DURL leads to "
                        "memory that is served elsewhere%s",
                        name->name, name->name, name->name, name->name, run_did_you_mean(run, name->name, true));
    }
}

/* The memory side may name users that do not name it. */
static void link_memory(run_t *run, run_element_t *e)
{
    for (unsigned i = 0; i < e->corunning.n; i++) {
        const run_name_t *name = &e->corunning.at[i];
        run_element_t *user = run_find(run, name->name);
        if (user && !user->memory)
            add_use(user, e, name->line);
        else if (user)
            run_warn(run, e->path, name->line, "corunning", "corunning \"%s\" is ignored: it is memory, and memory uses none",
                     name->name);
        else if (!run_single(run))
            run_problem(run, e->path, name->line, "corunning \"%s\" is no element of this %s%s", name->name,
                        run->file ? "DAG" : "directory", run_did_you_mean(run, name->name, false));
    }
}

/* Memory of --memory that nobody names: its program knows, and asks for it by get_transport(). */
static void link_given(run_t *run, run_element_t *memory)
{
    for (unsigned i = 0; i < run->n_static; i++)
        if (uses(run->elements[i], memory))
            return;
    for (unsigned i = 0; i < run->n_static; i++)
        if (!run->elements[i]->memory)
            add_use(run->elements[i], memory, 0);
}

/* Every name of a transport leads to one thing. */
static void check_transports(run_t *run, const run_element_t *e)
{
    for (unsigned i = 0; i < e->n_merged; i++) {
        bool used = run_given_has(&run->opts, e->merged[i].name);
        for (unsigned k = 0; k < e->n_uses; k++)
            used |= !strcmp(e->uses[k].element->name, e->merged[i].name);
        if (used)
            run_problem(run, e->path, e->merged[i].line, "there are two transports \"%s\": one to memory that is merged into %s",
                        e->merged[i].name, e->name);
    }
}

/* --- order around memory ----------------------------------------------------------------------------------------- */

/* Memory that waits for `before` is there for its users after them; and `after` wait for memory, which is there for as long as
 * one of its users runs. An element may be a user itself: then the others have that order. */
static void order_around(run_t *run, run_element_t *memory)
{
    for (unsigned i = 0; i < memory->n_before; i++) {
        run_element_t *first = memory->before[i];
        if (contains(memory->after, memory->n_after, first)) {
            run_problem(run, memory->path, 0, "memory \"%s\" waits for \"%s\", and \"%s\" waits for it: one of the two is wrong",
                        memory->name, first->name, first->name);
            return;
        }
        for (unsigned k = 0; k < memory->n_after; k++)
            add_order(first, memory->after[k]);
    }
    for (unsigned i = 0; i < run->n_static; i++) {
        run_element_t *user = run->elements[i];
        bool first = contains(memory->before, memory->n_before, user), last = contains(memory->after, memory->n_after, user);
        if (!uses(user, memory))
            continue;
        for (unsigned k = 0; !first && k < memory->n_before; k++)
            add_order(memory->before[k], user);
        for (unsigned k = 0; !last && k < memory->n_after; k++)
            add_order(user, memory->after[k]);
    }
}

static void link_order_around(run_t *run)
{
    for (unsigned i = 0; i < run->n_static; i++)
        if (run->elements[i]->memory)
            order_around(run, run->elements[i]);
    for (unsigned i = 0; i < run->n_static; i++) /* nobody gets results of memory */
        if (run->elements[i]->memory)
            run->elements[i]->n_before = run->elements[i]->n_after = 0;
}

/* --- cycles ------------------------------------------------------------------------------------------------------ */

enum { NEW = 0, ON_PATH = 1, SEEN = 2 };

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

static void clear_marks(run_t *run)
{
    for (unsigned i = 0; i < run->n_static; i++)
        run->elements[i]->mark = NEW;
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
        clear_marks(run);
        n = walk(run, e, other, path, next);
        if (!n) {
            clear_marks(run);
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
    for (unsigned i = 0; i < run->n_static; i++)
        if (run->elements[i]->mark == NEW)
            (void)walk(run, run->elements[i], NULL, path, next);
    for (unsigned i = 0; i < run->n_static && !run->n_problems; i++)
        if (!run->elements[i]->memory)
            check_together(run, run->elements[i], path, next);
    free(path);
    free(next);
}

/* --- parameters, and the whole ------------------------------------------------------------------------------------ */

static bool has_param(const run_t *run, const char *name)
{
    for (unsigned i = 0; i < run->opts.n_params; i++)
        if (!strcmp(run->opts.params[i].name, name))
            return true;
    return false;
}

static void check_params(run_t *run)
{
    for (unsigned i = 0; i < run->opts.n_params; i++)
        if (run_find(run, run->opts.params[i].name))
            run_problem(run, NULL, 0, "the parameter \"%s\" has the name of an element, whose results its dependents find there",
                        run->opts.params[i].name);
    for (unsigned i = 0; i < run->n_static; i++) {
        const run_element_t *e = run->elements[i];
        for (unsigned k = 0; k < e->n_defaults; k++)
            if (run_find(run, e->defaults[k].name))
                run_problem(run, e->path, 0,
                            "the parameter \"%s\" of \"%s\" has the name of an element, whose results are found there",
                            e->defaults[k].name, e->name);
    }
    for (unsigned i = 0; run_single(run) && i < run->n_static; i++) {
        const run_element_t *e = run->elements[i];
        for (unsigned k = 0; !e->memory && k < e->parents.n; k++)
            if (!has_param(run, e->parents.at[k].name))
                run_warn(run, e->path, e->parents.at[k].line, "parents",
                         "parent \"%s\" is ignored: one program is run; --params '{\"%s\": [RESULT]}' gives it results",
                         e->parents.at[k].name, e->parents.at[k].name);
    }
}

/* Of the directory of one program, what it does not use. */
static void drop_unused(run_t *run)
{
    unsigned n = 0;
    clear_marks(run);
    for (unsigned i = 0; i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        if (!e->memory || e->given)
            e->mark = SEEN;
        for (unsigned k = 0; k < e->n_uses; k++)
            e->uses[k].element->mark = SEEN;
    }
    for (unsigned i = 0; i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        if (e->mark == SEEN) {
            e->index = n;
            run->elements[n++] = e;
        } else {
            run_element_free(e);
        }
    }
    run->n_static = run->n_elements = n;
}

bool run_link(run_t *run)
{
    unsigned n_compute = 0;
    for (unsigned i = 0; i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        n_compute += !e->memory;
        link_order(run, e);
        if (!e->memory)
            link_compute(run, e);
    }
    for (unsigned i = 0; i < run->n_static; i++)
        if (run->elements[i]->memory)
            link_memory(run, run->elements[i]);
    for (unsigned i = 0; i < run->n_static; i++)
        if (run->elements[i]->given)
            link_given(run, run->elements[i]);
    for (unsigned i = 0; i < run->n_static; i++)
        check_transports(run, run->elements[i]);
    link_order_around(run);
    check_order(run);
    check_params(run);
    if (!n_compute && !run->n_problems)
        run_problem(run, NULL, 0, "there is no compute element (NAME.o.py) in %s, so there is nothing to run", run->opts.dir);
    if (run_single(run) && !run->n_problems)
        drop_unused(run);
    return !run->n_problems;
}
