/* tools/run/run.c - `weft run`: a directory of elements as processes of this machine.
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
    free(run->secrets);
    free(run->elements);
    free(run->dir);
    free(run->scratch);
    free(run->python);
    free(run->socket_path);
    free(run->why);
    free(run->cpus);
    free(run->pinned);
    run_options_free(&run->opts);
}

/* Some elements wait for others: those that start at once tell what is wrong with them at once. */
static bool in_steps(const run_t *run)
{
    for (unsigned i = 0; i < run->n_elements; i++)
        if (run->elements[i]->n_before)
            return true;
    return false;
}

static int check(run_t *run)
{
    bool good = run_read(run) && run_link(run);
    if (!good || run->n_problems)
        return TOOL_FAILED;
    if (run->opts.check || (!run->opts.graph && in_steps(run))) {
        run->python = tool_find_python(run->opts.python);
        if (run->python)
            run_compile(run, run->python);
        else if (run->opts.check)
            tool_error("there is no interpreter %s, so that the programs were not looked into; --python PATH names one",
                       run->opts.python);
    }
    if (run->n_problems)
        return TOOL_FAILED;
    if (run->opts.graph)
        run_show_graph(run, run->opts.dot);
    else if (run->opts.check)
        printf("%s: %u element%s, nothing wrong\n", run->opts.dir, run->n_elements, run->n_elements == 1 ? "" : "s");
    return TOOL_OK;
}

static int go(run_t *run)
{
    bool good;
    run->terminal = tool_is_terminal(stderr) && !run->opts.json;
    if (run->opts.trace && !run_trace_begin(run))
        return TOOL_FAILED;
    good = run_go(run);
    if (run->n_elements && run->started)
        run_report(run);
    if (run->opts.trace && !run_trace_end(run))
        good = false;
    return good ? TOOL_OK : run->signalled ? 128 + run->signalled : TOOL_FAILED;
}

int run_command(int argc, char **argv)
{
    run_t run = {.epoll = -1, .null_fd = -1, .lock_fd = -1, .guard_fd = -1, .signals.fd = -1, .server.fd = -1};
    int rc = run_options(&run.opts, argc, argv);
    run.procs_end = &run.procs;
    if (rc == TOOL_GO) {
        rc = check(&run);
        if (rc == TOOL_OK && !run.opts.check && !run.opts.graph)
            rc = go(&run);
    }
    free_all(&run);
    return rc;
}
