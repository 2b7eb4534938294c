/* tools/call/call.c - `weft call`: finds the function, calls it, and reports the result.
 *
 * Only the server knows the signature. So the command asks for it first, reads the words by it, and then calls: a wrong
 * argument is reported and nothing runs.
 *
 * Exit status: 0 done, 1 the function or the server said no, 2 the command line or an argument was not understood, 3 there is
 * no such function, or its signature is another, 4 no server answers, it was lost, or time ran out, 128 and its number after
 * a signal. tests/tools/tools_call.py checks them. */
#include "call.h"

#include <stdlib.h>
#include <string.h>

/* --- what it came to ------------------------------------------------------------------------------------------------- */

static const char *ran_text(const weft_reply_t *reply)
{
    return reply->ran == WEFT_RAN ? "ran" : reply->ran == WEFT_MAY_HAVE_RUN ? "may have run" : "did not run";
}

static int exit_status(weft_status_t st, const weft_reply_t *reply)
{
    bool turned_away = reply->ran == WEFT_NOT_RUN;
    switch (st) {
    case WEFT_OK:
        return TOOL_OK;
    case WEFT_ERR_INVALID:
        return TOOL_USAGE;
    case WEFT_ERR_CALL:
        if (turned_away && (reply->code == WEFT_CODE_UNIMPLEMENTED || reply->code == WEFT_CODE_FAILED_PRECONDITION))
            return CALL_NOT_THERE;
        return turned_away && reply->code == WEFT_CODE_UNAVAILABLE ? CALL_NO_SERVER : TOOL_FAILED;
    default:
        return tool_no_server(st) ? CALL_NO_SERVER : TOOL_FAILED;
    }
}

/* "calc/add", for sentences. */
static void name_of(const call_made_t *m, char *buf, size_t cap)
{
    const call_target_t *t = m->link->target;
    const char *name = m->sig ? weft_sig_name(m->sig) : t->function;
    char plain[256];
    snprintf(buf, cap, "%s%s%s%s%s", t->service, *t->instance ? "@" : "", t->instance, *t->service ? "/" : "",
             tool_plain(name, plain, sizeof plain));
}

int call_failed(const call_made_t *m, weft_status_t st, const weft_reply_t *reply, uint64_t number)
{
    const char *message = reply->message ? reply->message : "";
    char name[512], plain[2048], which[64] = "", foreign[64] = "";
    if (tool_signal())
        return 128 + tool_signal();
    tool_plain(strcmp(message, weft_status_text(st)) != 0 ? message : "", plain, sizeof plain);
    if (st == WEFT_ERR_INVALID) { /* refused before anything was sent, at once or on the way */
        if (*plain)
            tool_error("%s: %s", weft_sig_text(m->sig), plain);
        else
            tool_error_status(st, "%s", m->sig ? weft_sig_text(m->sig) : m->link->target->function);
        return TOOL_USAGE;
    }
    name_of(m, name, sizeof name);
    if (number)
        snprintf(which, sizeof which, " (call %llu)", (unsigned long long)number);
    if (reply->category)
        snprintf(foreign, sizeof foreign, " (%s %d)",
                 reply->category == WEFT_CATEGORY_ERRNO  ? "errno"
                 : reply->category == WEFT_CATEGORY_WEFT ? "status"
                                                         : "number",
                 reply->value);
    if (st == WEFT_ERR_CALL)
        tool_error("%s%s: %s%s%s%s", name, which, weft_code_name(reply->code), *plain ? ": " : "", plain, foreign);
    else
        tool_error("%s%s: %s%s%s%s; it %s%s", name, which, weft_status_text(st), *plain ? " (" : "", plain, *plain ? ")" : "",
                   ran_text(reply), tool_advice(st));
    return exit_status(st, reply);
}

static void results_json(const call_made_t *m, tool_json_t *j, const weft_reply_t *reply)
{
    size_t n;
    const weft_param_t *results = weft_sig_results(m->sig, &n);
    bool named = true;
    if (reply->n == 1) {
        call_show_json(j, "result", &reply->values[0]);
        return;
    }
    if (!reply->n) {
        tool_json_text(j, "result", NULL);
        return;
    }
    for (size_t i = 0; i < reply->n; i++)
        named = named && i < n && *results[i].name;
    tool_json_open(j, "result", named ? '{' : '[');
    for (size_t i = 0; i < reply->n; i++)
        call_show_json(j, named ? results[i].name : NULL, &reply->values[i]);
    tool_json_close(j, named ? '}' : ']');
}

static void report_json(const call_made_t *m, weft_status_t st, const weft_reply_t *reply, double seconds)
{
    tool_json_t j = tool_json_begin(stdout);
    if (st)
        tool_json_text(&j, "result", NULL);
    else
        results_json(m, &j, reply);
    tool_json_count(&j, "code", (uint64_t)reply->code);
    tool_json_text(&j, "code_name", weft_code_name(reply->code));
    tool_json_text(&j, "message", reply->message ? reply->message : "");
    tool_json_text(&j, "status", weft_status_name(st));
    tool_json_text(&j, "ran", ran_text(reply));
    tool_json_count(&j, "tries", reply->tries);
    if (reply->category) {
        tool_json_count(&j, "category", reply->category);
        tool_json_number(&j, "value", reply->value, 0);
    }
    tool_json_text(&j, "server", *m->link->server ? m->link->server : NULL);
    tool_json_text(&j, "transport", *m->link->transport ? m->link->transport : NULL);
    tool_json_text(&j, "cipher", *m->link->cipher ? m->link->cipher : NULL);
    tool_json_text(&j, "identity", *m->link->identity ? m->link->identity : NULL);
    tool_json_number(&j, "seconds", seconds, 9);
    tool_json_end(&j);
}

int call_report(const call_made_t *m, weft_status_t st, const weft_reply_t *reply, double seconds, uint64_t number)
{
    const call_opts_t *o = m->link->opts;
    if (!st && o->save && !call_save(o->save, &reply->values[0]))
        return TOOL_FAILED;
    if (o->json)
        report_json(m, st, reply, seconds);
    if (st)
        return call_failed(m, st, reply, number);
    if (!o->json && !o->save)
        call_show_results(m->sig, reply);
    return TOOL_OK;
}

/* --- one call -------------------------------------------------------------------------------------------------------- */

static int call_once(call_made_t *m)
{
    weft_reply_t reply = WEFT_REPLY_INIT;
    uint64_t began = tool_now();
    call_known_t known;
    weft_status_t st;
    int rc;
    call_known_init(&known, m->link, call_timeout(m->link->opts));
    st = weft_call_with(m->method, m->args.values, m->args.n, &m->call_opts, &reply, &known.op);
    if (st)
        return call_failed(m, st, &reply, 0);
    st = call_known_wait(&known);
    rc = call_report(m, st, &reply, (double)(tool_now() - began) / 1e9, 0);
    weft_reply_release(&reply);
    return rc;
}

/* Find the method, with the signature of the server. */
static int find(call_made_t *m)
{
    weft_reply_t reply = WEFT_REPLY_INIT;
    call_known_t known;
    weft_status_t st = weft_client_method(m->link->client, m->link->target->function, &m->method);
    int rc;
    if (st)
        return call_failed(m, st, &reply, 0);
    call_known_init(&known, m->link, call_timeout(m->link->opts));
    st = weft_method_check(m->method, &reply, &known.op);
    if (st)
        return call_failed(m, st, &reply, 0);
    st = call_known_first(&known);
    if (st == WEFT_ERR_AUTH || st == WEFT_ERR_VERSION) { /* the reply only says that it was cancelled */
        weft_reply_release(&reply);
        reply = (weft_reply_t)WEFT_REPLY_INIT;
        reply.code = st == WEFT_ERR_AUTH ? WEFT_CODE_UNAUTHENTICATED : WEFT_CODE_UNAVAILABLE;
    }
    if (st && m->link->opts->json)
        report_json(m, st, &reply, 0);
    rc = st ? call_failed(m, st, &reply, 0) : TOOL_OK;
    weft_reply_release(&reply);
    m->sig = weft_method_sig(m->method);
    return rc;
}

static bool streams_out(const weft_sig_t *sig)
{
    size_t n;
    const weft_param_t *results = weft_sig_results(sig, &n);
    return n && results[0].stream;
}

static int make(call_made_t *m)
{
    const call_opts_t *o = m->link->opts;
    bool stream;
    size_t results;
    int rc = find(m);
    if (rc)
        return rc;
    rc = call_args_read(&m->args, o, m->sig);
    if (rc)
        return rc;
    stream = m->args.stream || streams_out(m->sig);
    weft_sig_results(m->sig, &results);
    if (o->save && (results != 1 || streams_out(m->sig))) {
        tool_error("--save is for a function with one result, and this is %s", weft_sig_text(m->sig));
        return TOOL_USAGE;
    }
    if (o->repeat && stream) {
        tool_error("--repeat is for calls without streams, and this is %s", weft_sig_text(m->sig));
        return TOOL_USAGE;
    }
    m->call_opts = (weft_call_opts_t)WEFT_CALL_OPTS_INIT;
    m->call_opts.once = o->once;
    return stream ? call_stream(m) : o->repeat ? call_repeat(m) : call_once(m);
}

int call_command(int argc, char **argv)
{
    call_opts_t opts;
    call_target_t target = {0};
    call_link_t link;
    int rc = call_options(argc, argv, &opts);
    if (rc != TOOL_GO)
        return rc;
    if (!call_target_parse(&opts, &target))
        rc = TOOL_USAGE;
    else if (opts.list)
        rc = call_list(&opts, &target);
    else if (!(rc = call_link_open(&link, &opts, &target))) {
        call_made_t made = {.link = &link};
        rc = make(&made);
        call_link_close(&link);
        call_args_free(&made.args);
    }
    call_target_free(&target);
    return rc;
}
