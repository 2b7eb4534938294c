/* tools/perf/report.c - what is shown: a table for people, a line of JSON for programs, and a line of progress on a terminal.
 *
 * Programs read the JSON: names may be added to it, and none may be renamed. tests/tools/tools_perf.py checks them. */
#include "perf.h"

#include <stdarg.h>
#include <string.h>

static double percentile_us(const perf_result_t *r, double share)
{
    return perf_percentile(r->histogram, share) * r->tick_us;
}

static const char *transports_text(const perf_opts_t *o)
{
    return o->net.transports ? o->net.transports : "default";
}

void perf_progress(const char *fmt, ...)
{
    static bool shown;
    va_list ap;
    if (!tool_is_terminal(stderr))
        return;
    if (shown)
        fputs("\r\033[K", stderr);
    shown = fmt != NULL;
    if (fmt) {
        va_start(ap, fmt);
        vfprintf(stderr, fmt, ap);
        va_end(ap);
    }
    fflush(stderr);
}

void perf_report_head(const perf_opts_t *o, const char *transport, const char *cipher)
{
    if (o->json)
        return;
    printf("transports %s, in use %s%s%s, %s mode, %llu endpoint%s%s\n\n", transports_text(o), *transport ? transport : "?",
           *cipher ? ", met over " : "", cipher, o->threaded ? "thread" : "caller", (unsigned long long)o->endpoints,
           o->endpoints == 1 ? "" : "s",
           !o->pin        ? ""
           : o->cores > 1 ? ", a core for each thread"
                          : ", one core each");
    if (o->clients)
        printf("%llu clients, each a process; figures are those of all together, times those of one call\n\n",
               (unsigned long long)o->clients);
    if (o->shards)
        printf("%llu shard%s of the server\n\n", (unsigned long long)o->shards, o->shards == 1 ? "" : "s");
    if (strcmp(o->send_kind, "host") || strcmp(o->recv_kind, "host") || o->header || o->view || o->kept)
        printf("memory %s to %s, header %llu%s%s\n\n", o->send_kind, o->recv_kind, (unsigned long long)o->header,
               o->view ? ", viewed" : "", o->kept ? ", kept" : "");
    if (o->stream) {
        static const char *const text[PERF_STREAM_WORDS] = {
            [PERF_BEFORE] = "each operation begins behind a stream of its process",
            [PERF_AFTER] = "a stream of its process waits for each operation",
            [PERF_BOTH] = "each operation begins behind a stream of its process, which waits for it"};
        printf("stream %s", perf_stream_names[o->stream]);
        if (o->streams > 1)
            printf(", %llu in turn", (unsigned long long)o->streams);
        printf(": %s\n\n", text[o->stream]);
    }
    printf("%-11s %6s %6s %9s %9s %9s %9s %9s %9s %9s\n", "test", "size", "window", "p50 us", "p99 us", "p99.9 us", "max us",
           "avg us", "MiB/s", "msg/s");
    fflush(stdout);
}

/* Nine columns for any time from nanoseconds to hours. */
static void put_us(double us)
{
    printf(" %9.*f", us < 10 ? 3 : us < 1000 ? 2 : us < 1e6 ? 1 : 0, us);
}

static void put_rate(double v)
{
    if (v >= 1e7)
        printf(" %8.2fM", v / 1e6);
    else
        printf(" %9.*f", v < 100 ? 2 : v < 10000 ? 1 : 0, v);
}

static void report_text(const perf_opts_t *o, const perf_result_t *r)
{
    static const char *path; /* said when it changes */
    static char device_path[PERF_WAYS_CAP];
    char size[32];
    (void)o;
    if (r->test == PERF_IDLE) {
        printf("%-11s %.2f s: %.3f %% of a core in the client, %.3f %% in the server\n", "idle", r->seconds, r->cpu_percent,
               r->peer_cpu_percent);
        return;
    }
    if (r->path && (!path || strcmp(path, r->path)))
        printf("remote memory, %s:\n", path = r->path);
    if (r->device_path && strcmp(device_path, r->device_path)) {
        snprintf(device_path, sizeof device_path, "%s", r->device_path);
        printf("GPU memory, %s:\n", device_path);
    }
    printf("%-11s %6s %6llu", perf_test_name(r->test), tool_size_text(r->size, size, sizeof size), (unsigned long long)r->window);
    put_us(percentile_us(r, 0.50));
    put_us(percentile_us(r, 0.99));
    put_us(percentile_us(r, 0.999));
    put_us((double)r->histogram->max * r->tick_us);
    put_us(r->avg_us);
    put_rate(r->mb_s);
    put_rate(r->msg_s);
    putchar('\n');
    if (r->endpoints > 1)
        printf("%11s %llu endpoints: %.1f KiB each in the client, %.1f KiB in the server\n", "", (unsigned long long)r->endpoints,
               r->endpoint_bytes / 1024, r->peer_endpoint_bytes / 1024);
}

static void report_json(const perf_opts_t *o, const perf_result_t *r)
{
    tool_json_t j = tool_json_begin(stdout);
    tool_json_text(&j, "test", perf_test_name(r->test));
    tool_json_count(&j, "size", r->size);
    tool_json_text(&j, "transports", transports_text(o));
    tool_json_text(&j, "tls", transports_text(o)); /* its name before there was --transports */
    tool_json_text(&j, "transport", r->transport);
    tool_json_text(&j, "cipher", *r->cipher ? r->cipher : NULL);
    tool_json_text(&j, "mode", o->threaded ? "thread" : "caller");
    tool_json_count(&j, "endpoints", r->endpoints);
    tool_json_count(&j, "clients", o->clients ? o->clients : 1);
    tool_json_count(&j, "shards", o->shards);
    tool_json_number(&j, "seconds", r->seconds, 9);
    if (r->test == PERF_IDLE) {
        tool_json_number(&j, "cpu_percent", r->cpu_percent, 4);
        tool_json_number(&j, "peer_cpu_percent", r->peer_cpu_percent, 4);
    } else {
        tool_json_count(&j, "window", r->window);
        tool_json_count(&j, "outstanding", r->outstanding);
        tool_json_count(&j, "iterations", r->iterations);
        tool_json_number(&j, "avg_us", r->avg_us, 5);
        tool_json_number(&j, "p50_us", percentile_us(r, 0.50), 4);
        tool_json_number(&j, "p90_us", percentile_us(r, 0.90), 4);
        tool_json_number(&j, "p99_us", percentile_us(r, 0.99), 4);
        tool_json_number(&j, "p99_9_us", percentile_us(r, 0.999), 4);
        tool_json_number(&j, "max_us", (double)r->histogram->max * r->tick_us, 4);
        tool_json_number(&j, "mb_s", r->mb_s, 3);
        tool_json_number(&j, "msg_s", r->msg_s, 1);
    }
    tool_json_text(&j, "send_memory", o->send_kind);
    tool_json_text(&j, "recv_memory", o->recv_kind);
    if (r->device_path)
        tool_json_text(&j, "device_path", r->device_path);
    if (o->stream) {
        tool_json_text(&j, "stream", perf_stream_names[o->stream]);
        tool_json_count(&j, "streams", r->streams);
    }
    if (perf_is_am(r->test)) {
        tool_json_count(&j, "header", r->header);
        tool_json_count(&j, "answer", r->answer);
        tool_json_text(&j, "taken", o->view && o->kept ? "viewed, kept" : o->view ? "viewed" : o->kept ? "kept" : "at once");
    }
    if (r->path) {
        tool_json_text(&j, "path", r->path);
        tool_json_count(&j, "region", r->region);
        tool_json_count(&j, "batch", r->batch);
    }
    tool_json_number(&j, "endpoint_bytes", r->endpoint_bytes, 0);
    tool_json_number(&j, "peer_endpoint_bytes", r->peer_endpoint_bytes, 0);
    tool_json_end(&j);
}

void perf_report(const perf_opts_t *o, const perf_result_t *r)
{
    if (o->json)
        report_json(o, r);
    else
        report_text(o, r);
    fflush(stdout);
}
