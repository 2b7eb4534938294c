/* tools/run/dag.c - a DAG in one file of JSON, as Scad's tools write it for OpenWhisk (wskgen) and people write it for them.
 *
 *     {"functions": [{"name": ..., "objects": [OBJECT, ...]}]}
 *     OBJECT: {"name": ..., "exec": {"kind": "python:3", "code": ..., "main": "main"},
 *              "porusParams": {"runtimeType": "compute", "relationships": {"parents": [], "dependents": [], "corunning": []},
 *                              "parallelism": 2, "withMerged": []},
 *              "limits": {"resources": {"cpu": 1, "mem": "256 MB", "storage": "512 MB"}, "timeout": 60000},
 *              "parameters": [{"key": ..., "value": ...}]}
 *
 * What porusParams has may be in the object itself. An object is an element. What describes it becomes the YAML of an element, so
 * that both forms are read by the same rules (keys.c). A program gets a file in the run's scratch directory, since it is
 * Python's to read. tests/tools/tools_run_dag.py checks it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "run.h"

typedef struct dag {
    run_t *run;
    char *path;
    run_text_t text;
    const char *from; /* the object that is being read, and its line */
    unsigned line;
} dag_t;

static unsigned line_of(const dag_t *d, run_value_t v)
{
    bool near = d->from && v.p >= d->from;
    unsigned line = near ? d->line : 1;
    for (const char *p = near ? d->from : d->text.p; p < v.p; p++)
        line += *p == '\n';
    return line;
}

#define problem(d, v, ...) run_problem((d)->run, (d)->path, line_of(d, v), __VA_ARGS__)

/* --- objects with known members ------------------------------------------------------------------------------------------- */

enum { MEMBERS_MAX = 16 };

/* What an object has of these, each once. Those whose name begins with '-' have no meaning here, and are always there where
 * Scad's tools wrote the file. */
typedef struct members {
    const char *of;
    const char *names[MEMBERS_MAX];
    run_value_t values[MEMBERS_MAX];
} members_t;

static bool find(dag_t *d, run_value_t object, members_t *m)
{
    run_value_t key, value;
    wefti_json_t at = {0};
    bool good = true;
    if (!object.p || *object.p != '{') {
        problem(d, object, "%s is not an object", m->of);
        return false;
    }
    while (run_json_next(object, &at, &key, &value)) {
        char *name = run_json_string(key), shown[80];
        const char *near;
        unsigned k = 0, n = 0;
        while (name && m->names[k] && strcmp(m->names[k] + (*m->names[k] == '-'), name) != 0)
            k++;
        if (name && m->names[k] && m->values[k].p) {
            problem(d, key, "%s has \"%s\" twice", m->of, name);
            good = false;
        } else if (name && m->names[k]) {
            m->values[k] = value;
        } else {
            const char *known[MEMBERS_MAX];
            for (unsigned i = 0; m->names[i]; i++)
                if (*m->names[i] != '-')
                    known[n++] = m->names[i];
            tool_plain(name ? name : "", shown, sizeof shown);
            near = name ? tool_nearest(name, known, n) : NULL;
            run_warn(d->run, d->path, line_of(d, key), shown, "\"%s\" is ignored: %s has no such member%s%s%s", shown, m->of,
                     near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
        }
        free(name);
    }
    return good;
}

/* Without null, which says nothing. */
static run_value_t member(const members_t *m, const char *name)
{
    run_value_t none = {0};
    for (unsigned i = 0; m->names[i]; i++)
        if (!strcmp(m->names[i], name) && m->values[i].p && *m->values[i].p != 'n')
            return m->values[i];
    return none;
}

/* --- an object -------------------------------------------------------------------------------------------------------------- */

typedef struct yaml {
    run_text_t text;
    unsigned *numbers, n;
} yaml_t;

/* "KEY: VALUE", on one line: JSON is YAML, but for the ends of its lines. */
static void add_yaml(dag_t *d, yaml_t *y, const char *key, run_value_t v)
{
    if (!v.p)
        return;
    run_addf(&y->text, "%s: ", key);
    for (size_t i = 0; i < v.n; i++)
        run_add(&y->text, strchr("\r\n\t", v.p[i]) ? " " : &v.p[i], 1);
    run_add(&y->text, "\n", 1);
    y->numbers = run_grow(y->numbers, (y->n + 1) * sizeof *y->numbers);
    y->numbers[y->n++] = line_of(d, v);
}

/* The member of either; both is one too many. */
static run_value_t either(dag_t *d, const members_t *a, const members_t *b, const char *name)
{
    run_value_t v = member(a, name), other = member(b, name);
    if (v.p && other.p)
        problem(d, other, "\"%s\" is there twice: in the object, and in its porusParams", name);
    return v.p ? v : other;
}

static void take_timeout(dag_t *d, run_element_t *e, run_value_t v)
{
    uint64_t ms;
    if (!v.p || e->memory)
        return;
    if (!run_json_count(v, &ms) || !ms || ms > UINT64_MAX / WEFT_MILLISECOND)
        problem(d, v, "timeout is a number of milliseconds");
    else if (!e->limits.time_ns)
        e->limits.time_ns = ms * WEFT_MILLISECOND;
}

/* [{"key": NAME, "value": VALUE}]: parameters of this object alone. */
static void take_parameters(dag_t *d, run_element_t *e, run_value_t list)
{
    run_value_t one;
    wefti_json_t at = {0};
    if (!list.p)
        return;
    if (*list.p != '[') {
        problem(d, list, "parameters is a list of {\"key\": NAME, \"value\": VALUE}");
        return;
    }
    while (run_json_item(list, &at, &one)) {
        members_t m = {.of = "a parameter", .names = {"key", "value", "-init", "-encryption"}};
        char *name, *inside;
        bool twice = false;
        if (!find(d, one, &m))
            continue;
        inside = run_json_twice(m.values[1]);
        if (inside) {
            problem(d, m.values[1], "the value of a parameter has \"%s\" twice", inside);
            free(inside);
            continue;
        }
        name = run_json_string(member(&m, "key"));
        for (unsigned i = 0; name && i < e->n_defaults; i++)
            twice |= !strcmp(e->defaults[i].name, name);
        if (!name || !m.values[1].p || twice) {
            problem(d, one, twice ? "the parameter \"%s\" is there twice" : "a parameter is {\"key\": NAME, \"value\": VALUE}",
                    name);
            free(name);
            continue;
        }
        e->defaults = run_grow(e->defaults, (e->n_defaults + 1) * sizeof *e->defaults);
        e->defaults[e->n_defaults++] = (run_param_t){.name = name, .value = run_dup_n(m.values[1].p, m.values[1].n)};
    }
}

static bool is_word(const char *s)
{
    return *s && !strchr("0123456789", *s) &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == strlen(s);
}

/* The program. "binary" says nothing: Scad's tools set it for text. */
static void take_exec(dag_t *d, run_element_t *e, run_value_t exec, run_value_t object)
{
    members_t m = {.of = "exec", .names = {"kind", "code", "main", "-binary"}};
    char *kind, *code, *entry;
    if (!exec.p) {
        problem(d, object, "\"%s\" has no exec: {\"kind\": \"python:3\", \"code\": PROGRAM}", e->name);
        return;
    }
    if (!find(d, exec, &m))
        return;
    kind = run_json_string(member(&m, "kind"));
    code = run_json_string(member(&m, "code"));
    entry = run_json_string(member(&m, "main"));
    if (kind && strncmp(kind, "python", 6) != 0)
        problem(d, m.values[0], "\"%s\" is a program for %s, and only Python is run here", e->name, kind);
    else if (!code)
        problem(d, m.values[1].p ? m.values[1] : exec, "the code of \"%s\" is a text: its program", e->name);
    else if (!strncmp(code, "UEsDB", 5))
        problem(d, m.values[1], "the code of \"%s\" is an archive, which is not run here: unpack it to a directory of elements",
                e->name);
    else if (entry && !is_word(entry))
        problem(d, m.values[2], "main is the name of a function");
    else if (entry && strcmp(entry, "main") != 0)
        e->code = run_printf("%s\n\nmain = %s\n", code, entry);
    else
        e->code = run_dup(code);
    free(kind);
    free(code);
    free(entry);
}

static void describe(dag_t *d, run_element_t *e, const members_t *o, const members_t *p)
{
    members_t l = {.of = "limits", .names = {"resources", "timeout", "-concurrency", "-logs"}};
    members_t r = {.of = "relationships", .names = {"parents", "dependents", "corunning"}};
    run_value_t limits = member(o, "limits"), relations = either(d, o, p, "relationships");
    yaml_t y = {0};
    if (limits.p)
        (void)find(d, limits, &l);
    if (relations.p)
        (void)find(d, relations, &r);
    run_add(&y.text, "", 0);
    add_yaml(d, &y, "parents", member(&r, "parents"));
    add_yaml(d, &y, "dependents", member(&r, "dependents"));
    add_yaml(d, &y, "corunning", member(&r, "corunning"));
    add_yaml(d, &y, "parallelism", either(d, o, p, "parallelism"));
    add_yaml(d, &y, "withMerged", either(d, o, p, "withMerged"));
    add_yaml(d, &y, "retries", either(d, o, p, "retries"));
    add_yaml(d, &y, "idempotent", either(d, o, p, "idempotent"));
    add_yaml(d, &y, "limits", member(&l, "resources"));
    run_yaml(d->run, e, &y.text, y.numbers, y.n);
    take_timeout(d, e, member(&l, "timeout"));
    run_free(&y.text);
    free(y.numbers);
}

static void take_object(dag_t *d, run_value_t object)
{
    members_t o = {.of = "an object",
                   .names = {"name", "exec", "limits", "parameters", "porusParams", "runtimeType", "relationships", "parallelism",
                             "withMerged", "retries", "idempotent", "-annotations", "-publish", "-version", "-namespace"}};
    members_t p = {.of = "porusParams",
                   .names = {"runtimeType", "relationships", "parallelism", "withMerged", "retries", "idempotent"}};
    run_value_t type;
    run_element_t *e;
    char *name, *kind;
    bool memory;
    if (!find(d, object, &o))
        return;
    if (member(&o, "porusParams").p && !find(d, member(&o, "porusParams"), &p))
        return;
    type = either(d, &o, &p, "runtimeType");
    kind = run_json_string(type);
    memory = kind && !strcasecmp(kind, "memory");
    if (type.p && !memory && (!kind || strcasecmp(kind, "compute") != 0))
        problem(d, type, "runtimeType is compute or memory");
    free(kind);
    name = run_json_string(member(&o, "name"));
    if (!name || !run_name_ok(name, strlen(name))) {
        problem(d, object, "an object has no name of letters, digits, '-', '_' and '.'");
        free(name);
        return;
    }
    e = run_element_new(d->run, name, strlen(name), d->path, memory);
    free(name);
    if (!e)
        return;
    e->described = true;
    describe(d, e, &o, &p);
    take_parameters(d, e, member(&o, "parameters"));
    if (!memory)
        take_exec(d, e, member(&o, "exec"), object);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static void take_objects(dag_t *d, run_value_t list, run_value_t of)
{
    run_value_t one;
    wefti_json_t at = {0};
    if (!list.p || *list.p != '[') {
        problem(d, list.p ? list : of,
                list.p ? "objects is not a list: [OBJECT, ...]" : "the function has no \"objects\": [OBJECT, ...]");
        return;
    }
    while (run_json_item(list, &at, &one)) {
        d->line = line_of(d, one);
        d->from = one.p;
        take_object(d, one);
    }
}

static void take_file(dag_t *d, run_value_t all)
{
    members_t top = {.of = "the file",
                     .names = {"functions", "objects", "name", "-publish", "-annotations", "-version", "-namespace"}};
    members_t f = {.of = "a function", .names = {"name", "objects", "-publish", "-annotations", "-version"}};
    run_value_t functions, one = {0}, function = {0};
    wefti_json_t at = {0};
    unsigned n = 0;
    if (!find(d, all, &top))
        return;
    functions = member(&top, "functions");
    if (!functions.p && !member(&top, "objects").p) {
        problem(
            d, all,
            "the file has neither \"functions\" nor \"objects\": {\"functions\": [{\"objects\": [OBJECT, ...]}]} is a DAG, and "
            "{\"objects\": [OBJECT, ...]}");
        return;
    }
    if (!functions.p) {
        take_objects(d, member(&top, "objects"), all);
        return;
    }
    if (*functions.p != '[') {
        problem(d, functions, "functions is a list");
        return;
    }
    while (run_json_item(functions, &at, &one)) {
        if (++n == 2)
            problem(d, one, "there is more than one function, and one is run: make a file of each");
        function = one;
    }
    if (n == 1 && find(d, function, &f))
        take_objects(d, member(&f, "objects"), function);
}

void run_dag(run_t *run)
{
    dag_t d = {.run = run, .path = run_printf("%s/%s", run->dir, run->file)};
    run_value_t all;
    if (run_slurp(run, d.path, &d.text)) {
        if (!d.text.p || !run_json(d.text.p, d.text.n, &all) || *all.p != '{')
            run_problem(run, d.path, 0, "is not a JSON object");
        else
            take_file(&d, all);
        if (!run->n_elements && !run->n_problems)
            run_problem(run, d.path, 0, "has no objects: {\"functions\": [{\"objects\": [...]}]}");
    }
    run_free(&d.text);
    free(d.path);
}

bool run_dag_write(run_t *run)
{
    char *folder = run_printf("%s/code", run->scratch);
    bool good = true, made = false;
    for (unsigned i = 0; good && i < run->n_static; i++) {
        run_element_t *e = run->elements[i];
        size_t n = e->code ? strlen(e->code) : 0;
        char *path;
        FILE *f;
        if (!e->code)
            continue;
        good = made || !mkdir(folder, 0700);
        made = true;
        path = run_printf("%s/%s.o.py", folder, e->name);
        f = good ? fopen(path, "wxe") : NULL;
        good = f && fwrite(e->code, 1, n, f) == n;
        good = f && !fclose(f) && good;
        if (!good)
            run_fail(run, "the program of %s cannot be written to %s: %s", e->name, path, strerror(errno));
        free(e->path);
        e->path = path;
    }
    free(folder);
    return good;
}
