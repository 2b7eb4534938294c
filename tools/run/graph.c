/* tools/run/graph.c - names resolved to elements: parents, dependents, the memory that each uses, and parameters.
 *
 * Either side may state an edge, with `parents` or `dependents`, and so with the use of memory. An unknown name is reported with
 * the nearest one. After run_link() succeeded every edge leads to an element of the right kind, and the order is one (order.c).
 * tests/tools/tools_run_check.py and tests/tools/tools_run_meta.py check it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "graph.h"

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

static void add_edge(run_element_t *parent, run_element_t *child)
{
    run_among_add(&child->before, &child->n_before, parent);
    run_among_add(&parent->after, &parent->n_after, child);
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
            run_among_add(&memory->before, &memory->n_before, other);
        else
            run_among_add(&memory->after, &memory->n_after, other);
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
        if (run_uses(run->elements[i], memory))
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
    run_marks_clear(run);
    for (unsigned i = 0; i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        if (!e->memory || e->given)
            e->mark = 1;
        for (unsigned k = 0; k < e->n_uses; k++)
            e->uses[k].element->mark = 1;
    }
    for (unsigned i = 0; i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        if (e->mark == 1) {
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
    run_order(run);
    check_params(run);
    if (!n_compute && !run->n_problems)
        run_problem(run, NULL, 0, "there is no compute element (NAME.o.py) in %s, so there is nothing to run", run->opts.dir);
    if (run_single(run) && !run->n_problems)
        drop_unused(run);
    return !run->n_problems;
}
