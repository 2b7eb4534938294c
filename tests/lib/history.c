/* tests/lib/history.c - what was written to a mirror and what may be read from it.
 *
 * tests/unit/store_history.c tries it with histories that are right and with some that are not. */
#include "history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = HISTORY_CELL / 8 };

typedef struct written {
    uint64_t first, n; /* cells */
    bool never;
} written_t;

struct history {
    uint32_t mirror;
    uint64_t cells;
    written_t *writes; /* by number, from 1 on */
    uint32_t n, cap;
    uint32_t *floor; /* per cell: the last write acknowledged */
};

struct history_read {
    uint64_t first, n;
    uint32_t floor[];
};

static void *must(void *p)
{
    if (!p)
        abort();
    return p;
}

history_t *history_new(uint32_t mirror, uint64_t len)
{
    history_t *h = must(calloc(1, sizeof *h));
    h->mirror = mirror;
    h->cells = len / HISTORY_CELL;
    h->floor = must(calloc(h->cells, sizeof *h->floor));
    h->n = 1;
    return h;
}

void history_free(history_t *h)
{
    if (!h)
        return;
    free(h->writes);
    free(h->floor);
    free(h);
}

static uint64_t word(uint64_t who, uint64_t cell, unsigned k)
{
    uint64_t v = who * UINT64_C(0x9e3779b97f4a7c15) + cell * WORDS + k;
    v = (v ^ v >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    return v ^ v >> 27;
}

uint32_t history_write(history_t *h, uint64_t offset, size_t len, void *buf)
{
    if (h->n >= h->cap) {
        h->cap = h->cap ? 2 * h->cap : 64;
        h->writes = must(realloc(h->writes, h->cap * sizeof *h->writes));
    }
    uint32_t id = h->n++;
    uint64_t *at = buf, who = (uint64_t)h->mirror << 32 | id;
    h->writes[id] = (written_t){.first = offset / HISTORY_CELL, .n = len / HISTORY_CELL};
    for (uint64_t c = 0; c < h->writes[id].n; c++)
        for (unsigned k = 0; k < WORDS; k++)
            *at++ = k == 0 ? who : word(who, h->writes[id].first + c, k);
    return id;
}

void history_unwrite(history_t *h, uint32_t write)
{
    h->writes[write].never = true;
}

void history_written(history_t *h, uint32_t write)
{
    const written_t *w = &h->writes[write];
    for (uint64_t c = w->first; c < w->first + w->n; c++)
        h->floor[c] = h->floor[c] > write ? h->floor[c] : write;
}

history_read_t *history_read(history_t *h, uint64_t offset, size_t len)
{
    uint64_t first = offset / HISTORY_CELL, n = len / HISTORY_CELL;
    history_read_t *r = must(malloc(sizeof *r + n * sizeof *r->floor));
    r->first = first;
    r->n = n;
    memcpy(r->floor, h->floor + first, n * sizeof *r->floor);
    return r;
}

static bool covers(const history_t *h, uint32_t id, uint64_t cell)
{
    const written_t *w = &h->writes[id];
    return cell >= w->first && cell < w->first + w->n;
}

static char said[256];

/* Which write a cell is of; false: of none that it can be of. */
static bool look(const history_t *h, uint64_t cell, const uint64_t *at, uint32_t *id_out)
{
    uint64_t who = at[0];
    uint32_t id = (uint32_t)who;
    *id_out = 0;
    if (!who) {
        for (unsigned k = 1; k < WORDS; k++)
            if (at[k]) {
                snprintf(said, sizeof said, "cell %llu is torn: it begins with zeros, and word %u is not",
                         (unsigned long long)cell, k);
                return false;
            }
        return true;
    }
    if (who >> 32 != h->mirror || !id || id >= h->n || h->writes[id].never || !covers(h, id, cell)) {
        snprintf(said, sizeof said, "cell %llu of mirror %u is of write %u of mirror %llu, which nobody wrote there",
                 (unsigned long long)cell, h->mirror, id, (unsigned long long)(who >> 32));
        return false;
    }
    for (unsigned k = 1; k < WORDS; k++)
        if (at[k] != word(who, cell, k)) {
            snprintf(said, sizeof said, "cell %llu is torn: it begins with write %u, and word %u is of something else",
                     (unsigned long long)cell, id, k);
            return false;
        }
    *id_out = id;
    return true;
}

static bool whole(const history_t *h, const history_read_t *r, const uint32_t *ids)
{
    enum { IN_BLOCK = HISTORY_BLOCK / HISTORY_CELL };
    for (uint64_t i = 0; i < r->n; i++)
        for (uint64_t k = 0; k < r->n; k++) {
            uint64_t a = r->first + i, b = r->first + k;
            if (a / IN_BLOCK != b / IN_BLOCK || !ids[i] || ids[k] >= ids[i] || !covers(h, ids[i], b))
                continue;
            snprintf(said, sizeof said, "block %llu is torn: cell %llu is of write %u, cell %llu of write %u before it",
                     (unsigned long long)(a / IN_BLOCK), (unsigned long long)a, ids[i], (unsigned long long)b, ids[k]);
            return false;
        }
    return true;
}

const char *history_check(history_t *h, history_read_t *r, const void *buf)
{
    uint32_t *ids = must(calloc(r->n + 1, sizeof *ids));
    bool good = true;
    for (uint64_t i = 0; buf && good && i < r->n; i++) {
        uint64_t words[WORDS];
        memcpy(words, (const uint8_t *)buf + i * HISTORY_CELL, HISTORY_CELL);
        good = look(h, r->first + i, words, &ids[i]);
        if (good && ids[i] < r->floor[i]) {
            snprintf(said, sizeof said, "cell %llu is of write %u; write %u was acknowledged before the read began",
                     (unsigned long long)(r->first + i), ids[i], r->floor[i]);
            good = false;
        }
    }
    if (buf && good)
        good = whole(h, r, ids);
    free(ids);
    free(r);
    return good ? NULL : said;
}
