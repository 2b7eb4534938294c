/* tools/mem/show.c - sizes and names as people read them, the bar of a transfer, and statistics as JSON.
 *
 * Names of blocks are written as they are: the library refuses names that could move a terminal's cursor. Programs read the
 * JSON: names may be added to it, and none may be renamed. tests/tools/tools_mem.py checks them. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "mem.h"

const char *mem_size_text(double bytes, char *buf, size_t cap)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    unsigned u = 0;
    while (u < 4 && bytes >= 1023.95) {
        bytes /= 1024;
        u++;
    }
    snprintf(buf, cap, "%.*f %s", u && bytes < 999.95 ? 1 : 0, bytes, units[u]);
    return buf;
}

const char *mem_age_text(uint64_t ns, char *buf, size_t cap)
{
    unsigned long long s = ns / WEFT_SECOND;
    if (s < 60)
        snprintf(buf, cap, "%llus", s);
    else if (s < 3600)
        snprintf(buf, cap, "%llum%02llus", s / 60, s % 60);
    else if (s < 86400)
        snprintf(buf, cap, "%lluh%02llum", s / 3600, s / 60 % 60);
    else
        snprintf(buf, cap, "%llud%02lluh", s / 86400, s / 3600 % 24);
    return buf;
}

/* --- the bar ---------------------------------------------------------------------------------------------- */

#define BAR_EVERY (100 * WEFT_MILLISECOND)

void mem_meter_start(mem_meter_t *m, const char *verb, const char *name, uint64_t total, bool quiet)
{
    *m = (mem_meter_t){.verb = verb, .name = name, .total = total};
    m->start_ns = tool_now();
    m->terminal = !quiet && tool_is_terminal(stderr);
}

void mem_meter_show(mem_meter_t *m, uint64_t done)
{
    char a[32], b[32], rate[32], bar[41];
    uint64_t now;
    unsigned width, filled;
    double seconds;
    if (!m->terminal)
        return;
    now = tool_now();
    if (m->shown && now - m->shown_ns < BAR_EVERY)
        return;
    m->shown = true;
    m->shown_ns = now;
    seconds = (double)(now - m->start_ns) / 1e9;
    mem_size_text((double)done, a, sizeof a);
    mem_size_text(seconds > 0 ? (double)done / seconds : 0, rate, sizeof rate);
    fprintf(stderr, "\r\033[K%s %s", m->verb, m->name);
    if (!m->total) {
        fprintf(stderr, "  %s  %s/s", a, rate);
        fflush(stderr);
        return;
    }
    width = tool_columns(stderr);
    width = width > 70 + strlen(m->name) ? width - 70 - (unsigned)strlen(m->name) : 0;
    width = width < sizeof bar - 1 ? width : sizeof bar - 1;
    filled = (unsigned)((double)done / (double)m->total * width);
    memset(bar, ' ', width);
    memset(bar, '=', filled);
    bar[width] = '\0';
    fprintf(stderr, "  %3.0f %% [%s] %s of %s  %s/s", 100.0 * (double)done / (double)m->total, bar, a,
            mem_size_text((double)m->total, b, sizeof b), rate);
    if (done && done < m->total)
        fprintf(stderr, "  %s left",
                mem_age_text((uint64_t)(seconds * 1e9 * (double)(m->total - done) / (double)done), a, sizeof a));
    fflush(stderr);
}

double mem_meter_end(mem_meter_t *m)
{
    if (m->shown)
        fputs("\r\033[K", stderr);
    m->shown = false;
    return (double)(tool_now() - m->start_ns) / 1e9;
}

void mem_report_transfer(const mem_opts_t *opts, FILE *f, const char *verb, const char *name, uint64_t bytes, double seconds,
                         const char *path)
{
    char size[32], rate[32];
    double per_second = seconds > 0 ? (double)bytes / seconds : 0;
    if (opts->json) {
        tool_json_t j = tool_json_begin(f);
        tool_json_text(&j, "did", verb);
        tool_json_text(&j, "name", name);
        tool_json_count(&j, "bytes", bytes);
        tool_json_number(&j, "seconds", seconds, 6);
        tool_json_number(&j, "mb_s", per_second / (1 << 20), 3);
        tool_json_text(&j, "path", path);
        tool_json_end(&j);
        return;
    }
    fprintf(f, "%s: %s in %.3f s, %s/s (%s)\n", name, mem_size_text((double)bytes, size, sizeof size), seconds,
            mem_size_text(per_second, rate, sizeof rate), path);
}

/* --- statistics ------------------------------------------------------------------------------------------- */

void mem_stats_json(tool_json_t *j, const weft_store_stats_t *s)
{
    tool_json_count(j, "bytes", s->bytes);
    tool_json_count(j, "used_bytes", s->used_bytes);
    tool_json_count(j, "blocks", s->blocks);
    tool_json_count(j, "shared_blocks", s->shared_blocks);
    tool_json_count(j, "clients", s->clients);
    tool_json_count(j, "allocs", s->allocs);
    tool_json_count(j, "frees", s->frees);
    tool_json_count(j, "extends", s->extends);
    tool_json_count(j, "opens", s->opens);
    tool_json_count(j, "renewals", s->renewals);
    tool_json_count(j, "expired_clients", s->expired_clients);
    tool_json_count(j, "expired_blocks", s->expired_blocks);
    tool_json_count(j, "refused", s->refused);
    tool_json_count(j, "reads", s->reads);
    tool_json_count(j, "writes", s->writes);
    tool_json_count(j, "atomics", s->atomics);
    tool_json_count(j, "bytes_read", s->bytes_read);
    tool_json_count(j, "bytes_written", s->bytes_written);
    tool_json_number(j, "uptime", (double)s->uptime_ns / 1e9, 3);
}
