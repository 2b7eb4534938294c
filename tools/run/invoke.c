/* tools/run/invoke.c - runtime.invoke and runtime.release: elements that other elements start while they run.
 *
 * An element asks by one line and gets one back; which way the lines go is its host's business. A memory element that was
 * invoked belongs to the process that invoked it, and ends with it. The process gets its answer when the element serves, or when
 * it cannot. Elements may invoke others that invoke others, to a bounded depth. tests/tools/tools_run_invoke.py checks it. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* Who asked what. */
typedef struct asker {
    run_proc_t *who;
    uint64_t question;
} asker_t;

void run_answer_line(run_text_t *line, bool ok, const char *name, const char *value)
{
    tool_json_t j = run_json_begin(line);
    tool_json_open(&j, NULL, '{');
    tool_json_raw(&j, "ok", ok ? "true" : "false");
    if (name)
        tool_json_text(&j, name, value);
    tool_json_end(&j);
    run_json_end(&j);
}

static void say(asker_t to, bool ok, const char *name, const char *value)
{
    run_text_t line = {0};
    run_answer_line(&line, ok, name, value);
    to.who->host->ops->answer(to.who, to.question, line.p, line.n);
    run_free(&line);
}

static void refuse(asker_t to, const char *why)
{
    say(to, false, "error", why);
}

static void accept_it(asker_t to)
{
    say(to, true, NULL, NULL);
}

/* --- what was invoked -------------------------------------------------------------------------------------------------- */

void run_invoked_ready(run_element_t *e)
{
    asker_t to = {.who = e->owner, .question = e->question};
    char *durl;
    if (!e->question)
        return;
    durl = run_durl(e, 0);
    e->question = 0;
    say(to, true, "durl", durl);
    free(durl);
}

void run_invoked_failed(run_element_t *e)
{
    asker_t to = {.who = e->owner, .question = e->question};
    if (!e->question)
        return;
    e->question = 0;
    refuse(to, "the memory element ended before it served");
}

void run_owner_over(run_proc_t *p)
{
    for (unsigned i = p->run->n_static; i < p->run->n_elements; i++) {
        run_element_t *e = p->run->elements[i];
        if (e->memory && e->owner == p && !e->stopping)
            run_stop_memory(e);
    }
}

static run_element_t *find_invoked(run_t *run, const run_proc_t *owner, const char *trans)
{
    for (unsigned i = run->n_static; i < run->n_elements; i++) {
        run_element_t *e = run->elements[i];
        if (e->owner == owner && !e->stopping && e->memory && !strcmp(e->trans, trans))
            return e;
    }
    return NULL;
}

/* A new element like `from`, of which there is one copy. */
static run_element_t *copy_of(const run_element_t *from, run_proc_t *owner, const char *trans)
{
    run_element_t *e = run_alloc(sizeof *e);
    e->name = run_invoked_name(owner, trans, from->memory);
    e->path = run_dup(from->path);
    e->trans = run_dup(trans);
    e->memory = from->memory;
    e->copies = 1;
    e->replicas = from->replicas;
    e->limits = from->limits;
    e->spare = from->spare;
    e->owner = owner;
    for (unsigned i = 0; i < from->imports.n; i++)
        run_name_add(&e->imports, run_dup(from->imports.at[i].name), 0);
    for (unsigned i = 0; i < from->n_uses; i++) {
        e->uses = run_grow(e->uses, (i + 1) * sizeof *e->uses);
        e->uses[e->n_uses++] = (run_use_t){.element = from->uses[i].element};
    }
    for (unsigned i = 0; i < from->n_merged; i++) {
        e->merged = run_grow(e->merged, (i + 1) * sizeof *e->merged);
        e->merged[e->n_merged++] = (run_merged_t){.name = run_dup(from->merged[i].name), .bytes = from->merged[i].bytes};
    }
    e->procs = run_alloc(e->replicas * sizeof(run_proc_t *));
    e->results = run_alloc(sizeof(char *));
    return e;
}

void run_enlist(run_t *run, run_element_t *e)
{
    e->index = run->n_elements;
    run->elements = run_grow(run->elements, (run->n_elements + 1) * sizeof(run_element_t *));
    run->elements[run->n_elements++] = e;
}

/* --- invoke --------------------------------------------------------------------------------------------- */

/* A size as a number of bytes, or as text with a unit. */
static bool take_bytes(run_value_t v, uint64_t *out)
{
    char *text = run_json_string(v);
    uint64_t bytes = 0;
    bool good = text ? run_size(text, &bytes) : run_json_count(v, &bytes) && bytes && bytes < (uint64_t)1 << 46;
    free(text);
    if (good)
        *out = bytes;
    return good;
}

/* NULL, or what is wrong. */
static const char *take_props(run_element_t *e, run_value_t props)
{
    run_value_t size, mem, params;
    if (!props.p || *props.p == 'n')
        return NULL;
    if (*props.p != '{')
        return "props is not an object";
    size = run_json_get(props, "size");
    mem = run_json_get(run_json_get(props, "limits"), "mem");
    params = run_json_get(props, "params");
    if (size.p && !take_bytes(size, &e->limits.mem))
        return "props: size is neither a number of bytes nor a text such as \"64M\"";
    if (mem.p && !take_bytes(mem, &e->limits.mem))
        return "props: limits.mem is neither a number of bytes nor a text such as \"64M\"";
    if (params.p && *params.p != '{')
        return "props: params is not an object";
    if (!e->memory)
        e->params = params.p ? run_dup_n(params.p, params.n) : run_dup("{}");
    return NULL;
}

/* How many were invoked before it, each by the next. */
static unsigned depth_of(const run_proc_t *p)
{
    unsigned n = 0;
    for (; p->element->owner; p = p->element->owner)
        n++;
    return n;
}

static bool memory_is_there(const run_element_t *e)
{
    for (unsigned i = 0; i < e->n_uses; i++)
        if (e->uses[i].element->stopping || e->uses[i].element->state > RUN_RUNNING)
            return false;
    return true;
}

static void invoke(run_t *run, asker_t c, const char *template, const char *trans, run_value_t props)
{
    run_element_t *from = template ? run_find(run, template) : NULL, *e;
    const char *wrong;
    char *text;
    if (!template || !trans || !*trans || strlen(trans) > RUN_NAME_MAX || strpbrk(trans, ";,@\n/")) {
        refuse(c, "invoke needs a template and a name for the transport, without any of ; , @ and /");
        return;
    }
    if (!from) {
        text = run_printf("there is no element \"%s\"%s", template, run_did_you_mean(run, template, true));
        refuse(c, text);
        free(text);
        return;
    }
    if (from->memory && find_invoked(run, c.who, trans)) {
        text = run_printf("\"%s\" is invoked already: release it first, or take another name", trans);
        refuse(c, text);
        free(text);
        return;
    }
    if (from->memory && run_has_transport(c.who, trans)) {
        text = run_printf("this element has a transport \"%s\" already, to other memory: take another name", trans);
        refuse(c, text);
        free(text);
        return;
    }
    e = copy_of(from, c.who, trans);
    wrong = run_props_wrong(from, props);
    if (!wrong)
        wrong = take_props(e, props);
    if (!wrong && run->n_elements >= 2 * RUN_ELEMENTS_MAX)
        wrong = "too many elements have been invoked";
    if (!wrong && !e->memory && depth_of(c.who) >= RUN_INVOKED_DEEPEST)
        wrong = "elements have invoked each other 16 deep, and that is the most: an element that invokes itself needs an end";
    if (!wrong && !memory_is_there(e))
        wrong = "memory that the element uses has ended: nobody else used it any more";
    if (wrong) {
        refuse(c, wrong);
        run_element_free(e);
        return;
    }
    run_enlist(run, e);
    for (unsigned i = 0; i < e->n_uses; i++)
        e->uses[i].element->n_users++;
    if (!e->memory) {
        accept_it(c);
        run_start_ready(run);
        return;
    }
    e->question = c.question; /* the answer comes when it serves */
    if (!run_start_memory(run, e)) {
        e->question = 0;
        refuse(c, "the memory element could not be started");
    }
}

static void release(run_t *run, asker_t c, const char *name)
{
    run_element_t *e = name ? find_invoked(run, c.who, name) : NULL;
    char *text;
    if (e) {
        run_stop_memory(e);
        accept_it(c);
        return;
    }
    for (unsigned i = 0; name && i < c.who->element->n_uses; i++)
        if (!strcmp(c.who->element->uses[i].element->name, name)) {
            accept_it(c); /* others may use it; it ends with the last of them */
            return;
        }
    text = run_printf("there is no element \"%s\" to release here", name ? name : "");
    refuse(c, text);
    free(text);
}

void run_asked(run_proc_t *p, uint64_t question, const char *line, size_t n)
{
    run_t *run = p->run;
    asker_t c = {.who = p, .question = question};
    run_value_t all, doing;
    char *template, *trans, *name;
    if (!run_json(line, n, &all) || *all.p != '{') {
        refuse(c, "the request is not a JSON object");
        return;
    }
    if (run->failed || c.who->over || c.who->asked) {
        refuse(c, "the run is being taken down");
        return;
    }
    doing = run_json_get(all, "do");
    template = run_json_string(run_json_get(all, "template"));
    trans = run_json_string(run_json_get(all, "trans"));
    name = run_json_string(run_json_get(all, "name"));
    if (run_json_is(doing, "invoke"))
        invoke(run, c, template, trans, run_json_get(all, "props"));
    else if (run_json_is(doing, "release"))
        release(run, c, name);
    else
        refuse(c, "\"do\" is invoke or release");
    free(template);
    free(trans);
    free(name);
}
