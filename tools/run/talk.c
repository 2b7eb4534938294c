/* tools/run/talk.c - lines to elements and from them, as docs/design/launcher.md says.
 *
 * What a process says is not believed: a line must be JSON, of a bounded length, and say something known. A result is kept as
 * the text that came. A compute element has one result or one error: the first counts. tests/tools/tools_run_hostile.py
 * checks it. */
#include <stdlib.h>
#include <string.h>

#include "run.h"

/* --- to an element --------------------------------------------------------------------------------------------------- */

void run_tell(run_proc_t *p, const run_text_t *line)
{
    p->host->ops->tell(p, line->p, line->n);
}

void run_tell_config(run_proc_t *p, const char *trans, const char *durl)
{
    run_text_t line = {0};
    tool_json_t j = run_json_begin(&line);
    tool_json_open(&j, NULL, '{');
    tool_json_text(&j, "do", "config");
    tool_json_text(&j, "name", trans);
    tool_json_text(&j, "durl", durl);
    tool_json_end(&j);
    run_json_end(&j);
    run_tell(p, &line);
    run_free(&line);
}

/* --- from a compute element ---------------------------------------------------------------------------------------------- */

/* "words", or "words@3", or what it has invoked: then the last of that name. */
run_element_t *run_behind(const run_proc_t *p, const char *trans)
{
    const run_element_t *e = p->element;
    size_t n = strcspn(trans, "@");
    for (unsigned i = p->run->n_elements; i-- > p->run->n_static;)
        if (p->run->elements[i]->owner == p && p->run->elements[i]->memory && !strcmp(p->run->elements[i]->trans, trans))
            return p->run->elements[i];
    for (unsigned i = 0; i < e->n_uses; i++)
        if (strlen(e->uses[i].element->name) == n && !strncmp(e->uses[i].element->name, trans, n))
            return e->uses[i].element;
    return NULL;
}

static void take_stats(run_proc_t *p, run_value_t transports)
{
    run_value_t name, stats;
    wefti_json_t at = {0};
    while (run_json_next(transports, &at, &name, &stats)) {
        char *trans = run_json_string(name);
        uint64_t in = 0, out = 0;
        run_element_t *m = trans ? run_behind(p, trans) : NULL;
        free(trans);
        run_json_count(run_json_get(stats, "bytes_read"), &in);
        run_json_count(run_json_get(stats, "bytes_written"), &out);
        p->element->bytes_read += in;
        p->element->bytes_written += out;
        if (m) {
            m->wanted = true;
            m->bytes_read += in;
            m->bytes_written += out;
        }
    }
}

static void take_error(run_proc_t *p, run_value_t line)
{
    p->error = run_json_shown(run_json_get(line, "error"));
    p->traceback = run_json_shown(run_json_get(line, "traceback"));
    if (!p->error)
        p->error = run_dup("it did not say why");
}

static void hear_compute(run_proc_t *p, run_value_t line)
{
    run_value_t did = run_json_get(line, "did"), value;
    if (p->result || p->error || p->returned)
        return;
    if (run_json_is(did, "begin") && !p->began) {
        p->began = tool_now();
    } else if (run_json_is(did, "stats")) {
        p->told_stats = true;
        take_stats(p, run_json_get(line, "transports"));
        (void)run_json_count(run_json_get(line, "peak_bytes"), &p->peak_said);
    } else if (run_json_is(did, "trace")) {
        run_trace_rows(p, line);
    } else if (run_json_is(did, "error")) {
        take_error(p, line);
    } else if (run_json_is(did, "result")) {
        value = run_json_get(line, "value");
        if (value.p)
            p->result = run_dup_n(value.p, value.n);
        if (value.p)
            run_returned(p);
        else
            p->error = run_dup("it said that there is a result, but not which");
    }
}

/* --- from a memory element ------------------------------------------------------------------------------------------------- */

static void hear_memory(run_proc_t *p, run_value_t line)
{
    char *durl = run_json_string(run_json_get(line, "durl"));
    if (durl && !p->durl && strchr(durl, ';')) {
        p->durl = durl;
        p->began = tool_now();
        run_secret(p->run, durl);
        run_memory_ready(p);
    } else {
        free(durl);
    }
}

void run_heard(run_proc_t *p, const char *text, size_t n)
{
    run_value_t line;
    if (run_json(text, n, &line) && *line.p == '{') {
        if (p->element->memory)
            hear_memory(p, line);
        else
            hear_compute(p, line);
    } else if (!p->error && !p->result && !p->returned) {
        p->error = run_dup("what it said to the launcher is not JSON; results are made of what JSON has: no NaN, no infinity");
    }
}
