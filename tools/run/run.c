/* tools/run/run.c - `weft run`: a directory of elements, one of them, or a DAG in one file, as processes of this machine.
 *
 * Options, then the elements, then their graph: all of it is checked before anything is started. Exit status: 0 every element
 * is done, 1 the elements are wrong or one failed, 2 the command line was not understood, 128 and its number after a signal.
 * tests/tools/tools_run.py checks it. */
#include "run.h"

#include <stdlib.h>
#include <string.h>

static void free_all(run_t *run)
{
    run_proc_t *next;
    for (run_proc_t *p = run->procs; p; p = next) {
        next = p->next;
        run_trace_free_proc(p);
        run_proc_free(p);
    }
    for (unsigned i = 0; i < run->n_elements; i++) {
        free(run->elements[i]->traffic);
        run_element_free(run->elements[i]);
    }
    for (unsigned i = 0; i < run->n_secrets; i++) {
        explicit_bzero(run->secrets[i], strlen(run->secrets[i]));
        free(run->secrets[i]);
    }
    for (unsigned i = 0; i < run->n_paths; i++)
        free(run->paths[i]);
    free(run->paths);
    free(run->secrets);
    free(run->elements);
    free(run->dir);
    free(run->file);
    free(run->scratch);
    free(run->python);
    free(run->self);
    free(run->socket_path);
    free(run->why);
    free(run->cpus);
    free(run->pinned);
    free(run->key_file);
    free(run->code);
    free(run->address);
    if (run->key)
        explicit_bzero(run->key, strlen(run->key));
    free(run->key);
    run_remotes_free(run);
    run_notices_free(run);
    run_given_free(&run->opts);
}

/* Some elements wait for others: those that start at once tell what is wrong with them at once. */
static bool in_steps(const run_t *run)
{
    for (unsigned i = 0; i < run->n_elements; i++)
        if (run->elements[i]->n_before || run->elements[i]->n_earlier)
            return true;
    return false;
}

static bool look(run_t *run)
{
    if (!run_read(run) || !run_link(run) || run->n_problems)
        return false;
    if (run->opts.check || (!run->opts.graph && in_steps(run))) {
        run->python = tool_find_python(run->opts.python);
        if (run->python)
            run_compile(run, run->python);
        else if (run->opts.check)
            tool_error("there is no interpreter %s, so that the programs were not looked into; --python PATH names one",
                       run->opts.python);
    }
    return !run->n_problems;
}

static void say_checked(const run_t *run, bool good)
{
    if (run->opts.json) {
        tool_json_t j = tool_json_begin(stdout);
        tool_json_raw(&j, "ok", good ? "true" : "false");
        tool_json_count(&j, "elements", run->n_elements);
        run_notices_json(run, &j, "problems", false);
        run_notices_json(run, &j, "warnings", true);
        tool_json_end(&j);
    } else if (good && run->n_warnings) {
        printf("%s: %u element%s, %u warning%s\n", run->opts.dir, run->n_elements, run->n_elements == 1 ? "" : "s",
               run->n_warnings, run->n_warnings == 1 ? "" : "s");
    } else if (good) {
        printf("%s: %u element%s, nothing wrong\n", run->opts.dir, run->n_elements, run->n_elements == 1 ? "" : "s");
    }
}

static int check(run_t *run)
{
    bool good = look(run);
    if (good && run->opts.graph)
        run_show_graph(run, run->opts.dot);
    else if (run->opts.check)
        say_checked(run, good);
    return good ? TOOL_OK : TOOL_FAILED;
}

static int go(run_t *run)
{
    bool good;
    run->terminal = tool_is_terminal(stderr) && !run->opts.json;
    if (run->opts.trace && !run_trace_begin(run))
        return TOOL_FAILED;
    good = run_go(run);
    if (good)
        run_given_unused(run);
    if (run->n_elements && run->started)
        run_report(run);
    if (run->opts.trace && !run_trace_end(run))
        good = false;
    return good ? TOOL_OK : run->signalled ? 128 + run->signalled : TOOL_FAILED;
}

int run_command(int argc, char **argv)
{
    static const run_news_t news = {.heard = run_heard, .printed = run_printed, .asked = run_asked, .over = run_proc_over};
    run_t run = {.news = &news,
                 .here.ops = &run_local_ops,
                 .epoll = -1,
                 .null_fd = -1,
                 .lock_fd = -1,
                 .guard_fd = -1,
                 .signals.fd = -1,
                 .server.fd = -1};
    int rc = run_options(&run.opts, argc, argv);
    run.procs_end = &run.procs;
    run.here.run = &run;
    if (rc == TOOL_GO && run.opts.agent) {
        run.agent = true;
        rc = run_go(&run) ? TOOL_OK : TOOL_FAILED;
    } else if (rc == TOOL_GO) {
        rc = check(&run);
        if (rc == TOOL_OK && !run.opts.check && !run.opts.graph)
            rc = go(&run);
    }
    free_all(&run);
    return rc;
}
