/* tools/call/stream.c - calls with streams: values are read from standard input or from words, and printed as they come.
 *
 * Two threads, since either side may wait for the other: this one receives and prints, the other reads and sends. It looks at
 * standard input only while the call is under way, and never blocks in read(), so that what it has not read stays for the
 * next program.
 *
 * Promise: every value that came is printed before the end of the call is reported. A line that is not a value ends the call,
 * which is then cancelled at the server. tests/tools/tools_call.py checks it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "call.h"

#define LOOK_MS 50
#define LINE_MAX_BYTES ((size_t)64 << 20)

typedef struct sender {
    call_made_t *m;
    weft_stream_t *stream;
    weft_op_t *call;
    int rc;              /* TOOL_OK, or the exit status after a sentence */
    char *line;          /* what was read and is not sent yet */
    size_t len, cap, at; /* at: what was sent of it */
} sender_t;

/* --- sending ------------------------------------------------------------------------------------------------------------- */

static bool over(const sender_t *s)
{
    return weft_op_done(s->call) || tool_signal();
}

/* One value; false: no more. */
static bool send_text(sender_t *s, char *text, size_t n, const char *where, unsigned long long number)
{
    const weft_param_t *p = s->m->args.stream;
    call_args_t memory = {0};
    weft_value_t value;
    weft_op_t op = WEFT_OP_INIT;
    char why[512], plain[1024];
    weft_status_t st = WEFT_OK;
    bool ok = call_value_read(&memory, p->type, text, n, &value, why, sizeof why);
    if (ok) {
        st = weft_stream_send(s->stream, &value, &op);
        if (st == WEFT_ERR_INVALID)
            snprintf(why, sizeof why, "%s", weft_last_error());
        else if (!st)
            st = tool_wait(&op); /* ends with the call */
    }
    if (!ok || st == WEFT_ERR_INVALID) {
        if (*why)
            tool_error("%s %llu of the stream \"%s\" of %s: %s", where, number, p->name, weft_sig_text(s->m->sig),
                       tool_plain(why, plain, sizeof plain));
        s->rc = *why ? TOOL_USAGE : TOOL_FAILED;
    }
    call_args_free(&memory);
    return ok && !st; /* what else failed, the call tells */
}

/* More of the file behind what is there. 1: some came; 0: the end, or the call is over; -1 after a sentence. */
static int read_more(sender_t *s, int fd, const char *what)
{
    if (s->at) {
        memmove(s->line, s->line + s->at, s->len - s->at);
        s->len -= s->at;
        s->at = 0;
    }
    if (s->cap - s->len < 2) {
        char *more = s->cap < LINE_MAX_BYTES ? realloc(s->line, s->cap ? 2 * s->cap : 65536) : NULL;
        if (!more) {
            tool_error(s->cap < LINE_MAX_BYTES ? "out of memory" : "a line of more than 64 MiB is no value of a stream");
            return -1;
        }
        s->line = more;
        s->cap = s->cap ? 2 * s->cap : 65536;
    }
    while (!over(s)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t got;
        if (poll(&p, 1, LOOK_MS) <= 0)
            continue;
        got = read(fd, s->line + s->len, s->cap - s->len - 1);
        if (got < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (got < 0) {
            tool_error("%s cannot be read: %s", what, strerror(errno));
            return -1;
        }
        s->len += (size_t)got;
        return got > 0;
    }
    return 0;
}

static bool is_blank(const char *text, size_t n)
{
    return strspn(text, " \t\r") >= n;
}

/* Every line of a file is a value; empty ones only of text. */
static void send_lines(sender_t *s, int fd, const char *what)
{
    bool text = s->m->args.stream->type == WEFT_T_STRING;
    unsigned long long number = 0;
    int more = 1;
    s->at = s->len = 0;
    while (more > 0 || s->at < s->len) {
        char *begin = s->line + s->at, *end = s->len > s->at ? memchr(begin, '\n', s->len - s->at) : NULL;
        size_t n;
        if (!end && more > 0) {
            more = read_more(s, fd, what);
            continue;
        }
        if (more < 0 || over(s))
            break;
        n = end ? (size_t)(end - begin) : s->len - s->at;
        begin[n] = '\0';
        s->at += n + (end != NULL);
        number++;
        if ((text || !is_blank(begin, n)) && !send_text(s, begin, n, "line", number))
            return;
    }
    if (more < 0)
        s->rc = TOOL_FAILED;
}

static void send_file(sender_t *s, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        tool_error("%s cannot be opened: %s", path, strerror(errno));
        s->rc = TOOL_USAGE;
        return;
    }
    send_lines(s, fd, path);
    close(fd);
}

static void send_words(sender_t *s)
{
    const call_args_t *a = &s->m->args;
    for (size_t i = 0; i < a->n_items && !s->rc && !over(s); i++) {
        const char *word = a->items[i];
        char *copy;
        if (!strcmp(word, "-")) {
            send_lines(s, STDIN_FILENO, "standard input");
            continue;
        }
        if (word[0] == '@' && word[1] != '@') {
            send_file(s, word + 1);
            continue;
        }
        copy = strdup(word + (word[0] == '@'));
        if (!copy) {
            tool_error("out of memory");
            s->rc = TOOL_FAILED;
            return;
        }
        send_text(s, copy, strlen(copy), "value", i + 1);
        free(copy);
    }
}

static void *send_all(void *user)
{
    sender_t *s = user;
    weft_op_t op = WEFT_OP_INIT;
    if (s->m->args.n_items)
        send_words(s);
    else
        send_lines(s, STDIN_FILENO, "standard input");
    if (s->rc || tool_signal())
        weft_op_cancel(s->call);
    else if (!weft_op_done(s->call) && !weft_stream_end(s->stream, &op))
        tool_wait(&op); /* the end of the call says why */
    return NULL;
}

/* --- receiving ------------------------------------------------------------------------------------------------------------ */

static bool show(const call_made_t *m, const weft_value_t *v)
{
    if (m->link->opts->json) {
        tool_json_t j = tool_json_begin(stdout);
        call_show_json(&j, "item", v);
        tool_json_end(&j);
    } else {
        call_show(stdout, v);
        fflush(stdout); /* as they come */
    }
    return !ferror(stdout);
}

/* Until the end of the stream, or of the call. */
static void receive(call_made_t *m, weft_stream_t *stream, weft_op_t *call)
{
    bool more = true;
    while (more) {
        weft_item_t item = WEFT_ITEM_INIT;
        weft_op_t op = WEFT_OP_INIT;
        if (tool_do(weft_stream_recv(stream, &item, &op), &op) || !op.len)
            more = false;
        else
            more = show(m, &item.value);
        weft_item_release(&item);
        if (tool_signal() || ferror(stdout))
            weft_op_cancel(call); /* there is no reader */
    }
}

int call_stream(call_made_t *m)
{
    weft_reply_t reply = WEFT_REPLY_INIT;
    call_known_t known;
    sender_t s = {.m = m, .call = &known.op};
    uint64_t began = tool_now();
    pthread_t thread;
    weft_status_t st;
    size_t n;
    const weft_param_t *results = weft_sig_results(m->sig, &n);
    int rc;
    call_known_init(&known, m->link, m->link->opts->timeout_ns); /* a stream takes as long as it takes */
    st = weft_call_stream(m->method, m->args.values, m->args.n, &m->call_opts, &reply, &known.op, &s.stream);
    if (st)
        return call_failed(m, st, &reply, 0);
    if (m->args.stream && pthread_create(&thread, NULL, send_all, &s)) {
        tool_error("no thread can be had to read with");
        m->args.stream = NULL;
        s.rc = TOOL_FAILED;
        weft_op_cancel(&known.op);
    }
    if (n && results[0].stream)
        receive(m, s.stream, &known.op);
    st = call_known_wait(&known);
    if (m->args.stream)
        pthread_join(thread, NULL);
    if (ferror(stdout) && !s.rc) {
        tool_error("stdout cannot be written");
        s.rc = TOOL_FAILED;
    }
    rc = s.rc ? s.rc : call_report(m, st, &reply, (double)(tool_now() - began) / 1e9, 0);
    weft_stream_release(s.stream);
    weft_reply_release(&reply);
    free(s.line);
    return rc;
}
