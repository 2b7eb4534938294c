/* tools/run/props.c - what runtime.invoke() is asked for, before it is done: names and properties that would be something else.
 *
 * A property that nobody knows is refused: the memory would have another size than was meant, and nobody would be told. A
 * transport that the element has already would lead elsewhere from then on. tests/tools/tools_run_invoke.py checks it. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* NULL, or what is wrong with the names of an object's members; in a buffer of this function. */
static const char *names_wrong(run_value_t object, const char *of, const char *const *known, size_t n)
{
    static char text[300];
    run_value_t key, value;
    wefti_json_t at = {0};
    bool wrong = false;
    while (!wrong && run_json_next(object, &at, &key, &value)) {
        char *name = run_json_string(key), shown[80];
        const char *near = name ? tool_nearest(name, known, n) : NULL;
        wrong = true;
        for (size_t i = 0; name && wrong && i < n; i++)
            wrong = strcmp(name, known[i]) != 0;
        if (wrong)
            snprintf(text, sizeof text, "%s: there is no \"%s\"%s%s%s", of, tool_plain(name ? name : "", shown, sizeof shown),
                     near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
        free(name);
    }
    return wrong ? text : NULL;
}

/* The last three are of OpenWhisk, where nothing else ends memory or knows what an action is. */
const char *run_props_wrong(const run_element_t *template, run_value_t props)
{
    static const char *const known[] = {"size", "limits", "params", "type", "grace", "patience"};
    static const char *const limits[] = {"cpu", "mem", "storage", "time"};
    static char text[300];
    run_value_t inside, type;
    const char *wrong;
    char *twice;
    if (!props.p || *props.p != '{')
        return NULL; /* invoke.c says so */
    twice = run_json_twice(props);
    if (twice) {
        snprintf(text, sizeof text, "props: \"%.100s\" is there twice", twice);
        free(twice);
        return text;
    }
    wrong = names_wrong(props, "props", known, sizeof known / sizeof *known);
    if (wrong)
        return wrong;
    inside = run_json_get(props, "limits");
    if (inside.p && *inside.p != '{' && *inside.p != 'n')
        return "props: limits is not an object";
    wrong = inside.p && *inside.p == '{' ? names_wrong(inside, "props: limits", limits, sizeof limits / sizeof *limits) : NULL;
    if (wrong)
        return wrong;
    if (run_json_get(props, "size").p && run_json_get(inside, "mem").p)
        return "props: size and limits.mem are the same, and both are there";
    type = run_json_get(props, "type");
    if (type.p && !run_json_is(type, template->memory ? "memory" : "compute"))
        return template->memory ? "props: type is not memory, which the template is"
                                : "props: type is not compute, which the template is";
    return NULL;
}

static bool is_taken(const run_t *run, const char *name)
{
    for (unsigned i = 0; i < run->n_elements; i++)
        if (!strcmp(run->elements[i]->name, name))
            return true;
    return false;
}

/* Results are known by it: two of a name would be one. */
char *run_invoked_name(const run_proc_t *owner, const char *trans, bool memory)
{
    char *name = run_printf("%s.%s", owner->label, trans);
    for (unsigned n = 2; !memory && is_taken(owner->run, name); n++) {
        free(name);
        name = run_printf("%s.%s.%u", owner->label, trans, n);
    }
    return name;
}

bool run_has_transport(const run_proc_t *p, const char *name)
{
    const run_element_t *e = p->element;
    for (unsigned i = 0; i < e->n_uses; i++)
        if (!strcmp(e->uses[i].element->name, name))
            return true;
    for (unsigned i = 0; i < e->n_merged; i++)
        if (!strcmp(e->merged[i].name, name))
            return true;
    return run_given_has(&p->run->opts, name);
}
